# SPDX-License-Identifier: Apache-2.0
kvd_test(test_geometry unit/test_geometry.c LIBS kvd_geometry)
kvd_test(test_capacity unit/test_capacity.c LIBS kvd_geometry)
