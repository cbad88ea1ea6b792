# SPDX-License-Identifier: Apache-2.0
kvd_test(test_geometry test_geometry.c LIBS kvd_geometry)
kvd_test(test_capacity test_capacity.c LIBS kvd_geometry)
kvd_test(test_device_host test_device_host.c LIBS kvd_device)
kvd_test(test_device_host_moves test_device_host_moves.c LIBS kvd_device TIMEOUT 900)
kvd_test(test_device_host_fd test_device_host_fd.c LIBS kvd_device)
kvd_test(test_ops_codec test_ops_codec.c LIBS kvd_ops m)
kvd_test(test_ops_append test_ops_append.c ops_fixture.c LIBS kvd_ops kvd_geometry m)
kvd_test(test_ops_attention test_ops_attention.c ops_fixture.c LIBS kvd_ops kvd_geometry m)
if(NOT KVD_SANITIZE)
  add_test(NAME test_ops_package COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_ops_package.sh ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}
           ${CMAKE_INSTALL_LIBDIR})
  set_tests_properties(test_ops_package PROPERTIES LABELS unit TIMEOUT 300)
endif()
