# SPDX-License-Identifier: Apache-2.0
# The model test of the demo, with the model on a GPU. The demo itself on a GPU: demo.sh.
if(TARGET kvd_demo_cuda)
  kvd_test(test_demo_cuda ../unit/test_demo_model.c ../unit/demo_pages.c LIBS kvd_demo_cuda kvd_geometry m LABEL gpu
           TIMEOUT 300)
  target_compile_definitions(test_demo_cuda PRIVATE DEMO_CUDA)
  target_include_directories(test_demo_cuda PRIVATE ../unit)
  set_tests_properties(test_demo_cuda PROPERTIES SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endif()
