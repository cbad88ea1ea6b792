# SPDX-License-Identifier: Apache-2.0
if(TARGET kvd_store)
  add_executable(bench_store ${CMAKE_CURRENT_SOURCE_DIR}/bench_store.c)
  target_link_libraries(bench_store PRIVATE kvd_store kvd_flags)
endif()
