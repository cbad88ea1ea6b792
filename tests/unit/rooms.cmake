# SPDX-License-Identifier: Apache-2.0
add_test(NAME test_rooms COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_rooms.sh ${CMAKE_SOURCE_DIR})
add_test(NAME test_rules COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_rules.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(test_rooms test_rules PROPERTIES LABELS unit TIMEOUT 300)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND NOT KVD_SANITIZE)
  add_test(NAME test_house COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/test_house.py ${CMAKE_SOURCE_DIR}
                                   ${CMAKE_BINARY_DIR})
  set_tests_properties(test_house PROPERTIES LABELS unit SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()
