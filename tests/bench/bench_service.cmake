# SPDX-License-Identifier: Apache-2.0
if(TARGET service_fixture)
  add_executable(bench_service ${CMAKE_CURRENT_SOURCE_DIR}/bench_service.c)
  target_link_libraries(bench_service PRIVATE service_fixture kvd_flags)
endif()
