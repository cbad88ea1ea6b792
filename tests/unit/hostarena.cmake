# SPDX-License-Identifier: Apache-2.0
kvd_test(test_extent ${CMAKE_CURRENT_SOURCE_DIR}/test_extent.c LIBS kvd_hostarena)
# With crash points: the tests look at what a kill would leave at each of them.
kvd_test(test_directory ${CMAKE_CURRENT_SOURCE_DIR}/test_directory.c LIBS kvd_hostarena_crash PkgConfig::XXHASH)
kvd_test(test_segment ${CMAKE_CURRENT_SOURCE_DIR}/test_segment.c LIBS kvd_hostarena_crash PkgConfig::XXHASH)
