# SPDX-License-Identifier: Apache-2.0
if(TARGET e2e)
  add_executable(bench_cost bench_cost.c ${CMAKE_SOURCE_DIR}/tests/support/http_client.c)
  target_link_libraries(bench_cost PRIVATE e2e kvd_flags)
  add_dependencies(bench_cost kvd)
endif()
