# SPDX-License-Identifier: Apache-2.0
# The CUDA device and what uses it through IPC. Each test runs twice: on the GPU of the machine, skipping (77) where
# there is none, and on a stand-in driver (fake_driver.h), which needs no GPU.
set(fake_driver_dir ${CMAKE_CURRENT_BINARY_DIR}/fake)
add_library(fake_driver SHARED fake_driver.c)
target_include_directories(fake_driver SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(fake_driver PRIVATE Threads::Threads rt)
target_compile_definitions(fake_driver PRIVATE _GNU_SOURCE)
set_target_properties(fake_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${fake_driver_dir})

# kvd_gpu_test(NAME SOURCES... LIBS ...)
function(kvd_gpu_test name)
  kvd_test(${name} ${ARGN} LABEL gpu TIMEOUT 600)
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 RUN_SERIAL ON)
  add_dependencies(${name} fake_driver)
  add_test(NAME ${name}_standin COMMAND ${name})
  set_tests_properties(${name}_standin PROPERTIES LABELS unit TIMEOUT 300 RUN_SERIAL ON
                       ENVIRONMENT "LD_LIBRARY_PATH=${fake_driver_dir}:$ENV{LD_LIBRARY_PATH}")
endfunction()

kvd_gpu_test(test_device_cuda test_device_cuda.c LIBS kvd_device)
kvd_gpu_test(test_device_cuda_moves test_device_cuda_moves.c LIBS kvd_device)
kvd_gpu_test(test_device_cuda_fd test_device_cuda_fd.c LIBS kvd_device)

if(TARGET e2e)
  kvd_gpu_test(test_ipc test_ipc.c ipc_worker.c LIBS e2e)
  target_compile_definitions(test_ipc PRIVATE IPC_PY="${CMAKE_CURRENT_SOURCE_DIR}/test_ipc.py")
  add_dependencies(test_ipc kvd e2e_puppet)
  kvd_gpu_test(test_tiers test_tiers.c ipc_worker.c LIBS e2e)
  add_dependencies(test_tiers kvd e2e_puppet)
endif()

foreach(program bench_publish bench_moves)
  add_executable(${program} ${program}.c)
  target_include_directories(${program} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${program} PRIVATE kvd_device kvd_flags Threads::Threads ${CMAKE_DL_LIBS})
endforeach()
