# SPDX-License-Identifier: Apache-2.0
add_test(NAME test_rooms COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_rooms.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(test_rooms PROPERTIES LABELS unit)
