# SPDX-License-Identifier: Apache-2.0
if(TARGET kvd_client)
  add_executable(bench_rpc ${CMAKE_CURRENT_SOURCE_DIR}/bench_rpc.c ${CMAKE_CURRENT_SOURCE_DIR}/bench_echo.c
                           ${CMAKE_CURRENT_SOURCE_DIR}/bench_flood.c)
  target_link_libraries(bench_rpc PRIVATE kvd_client kvd_proto nng::nng kvd_flags)
endif()
