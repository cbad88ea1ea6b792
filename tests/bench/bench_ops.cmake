# SPDX-License-Identifier: Apache-2.0
add_executable(bench_ops bench_ops.c)
target_link_libraries(bench_ops PRIVATE kvd_ops kvd_geometry kvd_flags)
