# SPDX-License-Identifier: Apache-2.0
if(TARGET service_fixture)
  add_executable(bench_cold bench_cold.c ${CMAKE_SOURCE_DIR}/tests/support/redis.c)
  target_link_libraries(bench_cold PRIVATE service_fixture PkgConfig::HIREDIS PkgConfig::SODIUM Threads::Threads kvd_flags)
endif()
