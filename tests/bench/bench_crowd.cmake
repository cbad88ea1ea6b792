# SPDX-License-Identifier: Apache-2.0
if(TARGET e2e)
  add_executable(bench_crowd bench_crowd.c)
  target_link_libraries(bench_crowd PRIVATE e2e kvd_flags)
  add_dependencies(bench_crowd kvd)
endif()
