# SPDX-License-Identifier: Apache-2.0
if(TARGET service_fixture)
  kvd_test(test_service_metrics ${CMAKE_CURRENT_SOURCE_DIR}/test_service_metrics.c LIBS service_fixture PkgConfig::CJSON
           Threads::Threads)
  target_compile_definitions(test_service_metrics PRIVATE KVD_DEPLOY="${CMAKE_SOURCE_DIR}/deploy")
  add_test(NAME test_promtool COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_promtool.sh
                                      $<TARGET_FILE:test_service_metrics> ${CMAKE_SOURCE_DIR}/deploy)
  set_tests_properties(test_promtool PROPERTIES LABELS unit SKIP_RETURN_CODE 77 TIMEOUT 300)
  kvd_test(test_service_http ${CMAKE_CURRENT_SOURCE_DIR}/test_service_http.c ${CMAKE_SOURCE_DIR}/tests/support/http_client.c
           LIBS service_fixture)
  kvd_test(test_service_ui ${CMAKE_CURRENT_SOURCE_DIR}/test_service_ui.c ${CMAKE_SOURCE_DIR}/tests/support/http_client.c
           LIBS service_fixture PkgConfig::CJSON)
endif()
