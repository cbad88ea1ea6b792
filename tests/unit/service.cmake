# SPDX-License-Identifier: Apache-2.0
if(TARGET kvd_service)
  add_library(service_fixture STATIC ${CMAKE_CURRENT_SOURCE_DIR}/service_fixture.c)
  target_include_directories(service_fixture PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(service_fixture PUBLIC kvd_service kvt PRIVATE kvd_flags)
  foreach(test config session death device events former peer ranks tenant domain victims fdstore log named_before reuse_curve statuses lent)
    kvd_test(test_service_${test} ${CMAKE_CURRENT_SOURCE_DIR}/test_service_${test}.c LIBS service_fixture)
  endforeach()
  kvd_test(test_cold_value ${CMAKE_CURRENT_SOURCE_DIR}/test_cold_value.c LIBS kvd_service kvt PkgConfig::SODIUM)
  target_compile_definitions(test_cold_value PRIVATE PROTOCOL_MD="${CMAKE_SOURCE_DIR}/proto/PROTOCOL.md")
  kvd_test(test_cold_engine ${CMAKE_CURRENT_SOURCE_DIR}/test_cold_engine.c ${CMAKE_SOURCE_DIR}/tests/support/redis.c
           ${CMAKE_SOURCE_DIR}/tests/support/redis_cluster.c
           LIBS kvd_service kvt PkgConfig::HIREDIS Threads::Threads)
  target_compile_definitions(test_cold_engine PRIVATE OPERATING_MD="${CMAKE_SOURCE_DIR}/deploy/OPERATING.md")
  kvd_test(test_service_cold ${CMAKE_CURRENT_SOURCE_DIR}/test_service_cold.c ${CMAKE_SOURCE_DIR}/tests/support/redis.c
           LIBS service_fixture PkgConfig::HIREDIS PkgConfig::SODIUM Threads::Threads)
  kvd_test(test_service_cold_load ${CMAKE_CURRENT_SOURCE_DIR}/test_service_cold_load.c
           ${CMAKE_SOURCE_DIR}/tests/support/redis.c
           LIBS service_fixture PkgConfig::HIREDIS PkgConfig::SODIUM Threads::Threads)
  target_compile_definitions(test_service_config PRIVATE KVD_CONF="${CMAKE_SOURCE_DIR}/deploy/kvd.conf")
  kvd_test(test_from_hf ${CMAKE_CURRENT_SOURCE_DIR}/test_from_hf.c ${CMAKE_SOURCE_DIR}/kvd/start/from_hf.c
           LIBS kvd_service kvt PkgConfig::CJSON)
  target_compile_definitions(test_from_hf PRIVATE KVD_MODELS="${CMAKE_SOURCE_DIR}/tests/models")
  target_include_directories(test_from_hf PRIVATE ${CMAKE_SOURCE_DIR}/kvd/start)
  kvd_test(test_service_order ${CMAKE_CURRENT_SOURCE_DIR}/test_service_order.c LIBS service_fixture Threads::Threads)
  kvd_test(test_service_host ${CMAKE_CURRENT_SOURCE_DIR}/test_service_host.c LIBS service_fixture Threads::Threads)
  kvd_test(test_service_stop ${CMAKE_CURRENT_SOURCE_DIR}/test_service_stop.c LIBS service_fixture Threads::Threads)
  kvd_test(test_service_boards ${CMAKE_CURRENT_SOURCE_DIR}/test_service_boards.c LIBS service_fixture Threads::Threads)
  kvd_test(test_service_threads ${CMAKE_CURRENT_SOURCE_DIR}/test_service_threads.c LIBS service_fixture Threads::Threads)
  foreach(test socket watchdog)
    kvd_test(test_service_${test} ${CMAKE_CURRENT_SOURCE_DIR}/test_service_${test}.c LIBS service_fixture Threads::Threads)
    target_compile_definitions(test_service_${test} PRIVATE KVD_BINARY="$<TARGET_FILE:kvd>")
    add_dependencies(test_service_${test} kvd)
  endforeach()
endif()
