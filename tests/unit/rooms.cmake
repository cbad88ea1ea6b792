# SPDX-License-Identifier: Apache-2.0
add_test(NAME test_rooms COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_rooms.sh ${CMAKE_SOURCE_DIR})
add_test(NAME test_rules COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_rules.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(test_rooms test_rules PROPERTIES LABELS unit)
