# SPDX-License-Identifier: Apache-2.0
if(TARGET codec_fill)
  add_executable(bench_codec ${CMAKE_CURRENT_SOURCE_DIR}/bench_codec.c)
  target_link_libraries(bench_codec PRIVATE codec_fill kvd_flags)
endif()
