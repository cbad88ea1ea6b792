# SPDX-License-Identifier: Apache-2.0
if(TARGET kvd AND TARGET kvdctl AND TARGET kvd-replay)
  find_program(SCDOC scdoc)
  if(NOT KVD_SANITIZE) # the example of libkvd-ops(3) is run with it
    set(ops $<TARGET_FILE:kvd_ops_shared>)
  endif()
  add_test(NAME test_man COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_man.sh ${CMAKE_SOURCE_DIR} $<TARGET_FILE:kvd>
                                 $<TARGET_FILE:kvdctl> $<TARGET_FILE:kvd-replay> ${SCDOC} ${ops})
  set_tests_properties(test_man PROPERTIES LABELS unit SKIP_RETURN_CODE 77 TIMEOUT 300)
  add_test(NAME test_stop_limit COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_stop_limit.sh $<TARGET_FILE:kvd>)
  set_tests_properties(test_stop_limit PROPERTIES LABELS unit TIMEOUT 300)
endif()
