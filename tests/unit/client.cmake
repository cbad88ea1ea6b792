# SPDX-License-Identifier: Apache-2.0
if(TARGET kvd_client_static)
  kvd_test(test_client_session test_client_session.c scripted.c LIBS kvd_client_static Threads::Threads)
  kvd_test(test_client_chain test_client_chain.c LIBS kvd_client_static)
  kvd_test(test_policy test_policy.c LIBS kvd_client_static)
  # The paper store has the calls of libkvd that a policy makes: of the archive only the policy is linked.
  kvd_test(test_policy_store test_policy_store.c paper_store.c LIBS kvd_client_static)
  kvd_test(test_client_policy test_client_policy.c scripted.c LIBS kvd_client_static Threads::Threads)
  kvd_test(test_client_attach test_client_attach.c scripted.c LIBS kvd_client_static Threads::Threads)
  if(TARGET kvdctl)
    kvd_test(test_kvdctl test_kvdctl.c scripted.c ${CMAKE_SOURCE_DIR}/tests/support/program.c LIBS kvd_client_static
             Threads::Threads PkgConfig::CJSON TIMEOUT 300) # the thread sanitizer lets each kvdctl sleep a second at its end
    target_compile_definitions(test_kvdctl PRIVATE KVDCTL="$<TARGET_FILE:kvdctl>")
    add_dependencies(test_kvdctl kvdctl)
  endif()
  if(NOT KVD_SANITIZE)
    add_test(NAME test_client_package COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_client_package.sh ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}
             ${CMAKE_INSTALL_LIBDIR})
    set_tests_properties(test_client_package PROPERTIES LABELS unit TIMEOUT 300)
  endif()
endif()
