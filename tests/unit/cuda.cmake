# SPDX-License-Identifier: Apache-2.0
kvd_test(test_geometry test_geometry.c LIBS kvd_geometry)
kvd_test(test_capacity test_capacity.c LIBS kvd_geometry)
kvd_test(test_device_host test_device_host.c LIBS kvd_device)
