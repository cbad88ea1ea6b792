# SPDX-License-Identifier: Apache-2.0
# Writes OUT where it says something else than before: VERSION, CUDA (ON or not), PACKAGE (its version, or nothing), and the
# commit: COMMIT, or what git knows of SOURCE.
if(NOT COMMIT)
  find_package(Git QUIET)
  if(GIT_FOUND)
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                    OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
if(NOT COMMIT)
  set(COMMIT unknown)
endif()
set(KVD_BUILD_TEXT "${VERSION} without CUDA (")
set(KVD_BUILD_CUDA no)
if(CUDA)
  set(KVD_BUILD_CUDA yes)
  set(KVD_BUILD_TEXT "${VERSION} with CUDA (")
endif()
if(PACKAGE)
  string(APPEND KVD_BUILD_TEXT "package ${PACKAGE}, ")
endif()
string(APPEND KVD_BUILD_TEXT "commit ${COMMIT})")
configure_file(${SOURCE}/kvd/start/build.c.in ${OUT} @ONLY)
