# SPDX-License-Identifier: Apache-2.0
if(TARGET kvd_store)
  add_library(store_fixture STATIC ${CMAKE_CURRENT_SOURCE_DIR}/store_fixture.c)
  target_include_directories(store_fixture PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(store_fixture PUBLIC kvd_store kvt PRIVATE kvd_flags)
  foreach(test pool space activate checkpoint find fault rules random tier flight places shorten victims equal choose lives live import lent read fetch window roll)
    kvd_test(test_store_${test} ${CMAKE_CURRENT_SOURCE_DIR}/test_store_${test}.c LIBS store_fixture)
  endforeach()
endif()
