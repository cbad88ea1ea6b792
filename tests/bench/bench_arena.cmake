# SPDX-License-Identifier: Apache-2.0
add_executable(bench_arena ${CMAKE_CURRENT_SOURCE_DIR}/bench_arena.c)
target_link_libraries(bench_arena PRIVATE kvd_hostarena kvd_flags Threads::Threads)
