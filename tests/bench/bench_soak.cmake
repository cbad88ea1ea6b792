# SPDX-License-Identifier: Apache-2.0
if(TARGET e2e)
  add_executable(bench_soak bench_soak.c)
  target_link_libraries(bench_soak PRIVATE e2e kvd_flags)
  add_dependencies(bench_soak kvd)
endif()
