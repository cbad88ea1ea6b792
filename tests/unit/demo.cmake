# SPDX-License-Identifier: Apache-2.0
if(TARGET kvd_demo)
  kvd_test(test_demo_model test_demo_model.c demo_pages.c LIBS kvd_demo kvd_geometry m TIMEOUT 300)
  kvd_test(test_demo_report test_demo_report.c LIBS kvd_demo)
  kvd_test(test_demo_input test_demo_input.c LIBS kvd_demo)
endif()
