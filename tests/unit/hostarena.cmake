# SPDX-License-Identifier: Apache-2.0
kvd_test(test_extent ${CMAKE_CURRENT_SOURCE_DIR}/test_extent.c LIBS kvd_hostarena)
