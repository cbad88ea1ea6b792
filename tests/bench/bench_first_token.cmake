# SPDX-License-Identifier: Apache-2.0
if(TARGET demo_worker)
  add_executable(bench_first_token bench_first_token.c ${CMAKE_SOURCE_DIR}/client/demo/demo_process.c)
  target_link_libraries(bench_first_token PRIVATE kvd_demo kvd_client kvd_flags)
  add_dependencies(bench_first_token kvd demo_worker)
  # Not for its times: each answer after a hit, of either kind, is the undisturbed one.
  add_test(NAME test_first_token COMMAND bench_first_token --tokens 400 --hits 2)
  set_tests_properties(test_first_token PROPERTIES LABELS e2e TIMEOUT 300)
  kvd_test_sanitizer(test_first_token)
endif()
