# SPDX-License-Identifier: Apache-2.0
if(TARGET kvdctl AND TARGET kvd AND NOT KVD_SANITIZE)
  find_program(BASH bash)
  if(BASH)
    add_test(NAME test_completion COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_completion.sh ${CMAKE_SOURCE_DIR}
                                          $<TARGET_FILE:kvdctl> $<TARGET_FILE:kvd>)
    set_tests_properties(test_completion PROPERTIES LABELS unit TIMEOUT 300)
  endif()
endif()
