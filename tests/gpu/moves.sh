#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Pages between a GPU and pinned memory: runs the tests of the CUDA device and bench_moves where they are built, and prints
# the bench's table last. Needs a GPU and the built programs, nothing else.
# Usage: sh tests/gpu/moves.sh [--tests-only | --bench-only] [SECTION...]      sections of bench_moves, by default all
# Programs are those of $KVD_BUILD, a build folder, by default build-release.
# Exit: 0 all passed, 1 a test failed, 2 nothing to run.
set -u

top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 2
tests="test_device_cuda test_device_cuda_moves test_device_cuda_fd"

run_tests=yes run_bench=yes
case ${1:-} in
    --tests-only) run_bench=no; shift ;;
    --bench-only) run_tests=no; shift ;;
esac

at=${KVD_BUILD:-build-release}/tests/gpu
[ -x "$at/bench_moves" ] || { echo "moves.sh: no programs in $at: build them, or say in KVD_BUILD where they are" >&2; exit 2; }
at=$(cd "$at" && pwd)
[ ! -d "$at/../../lib" ] || export LD_LIBRARY_PATH="$at/../../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

status=0
if [ "$run_tests" = yes ]; then
    for p in $tests; do
        "$at/$p" && echo "PASS $p" && continue
        case $? in
            77) echo "SKIPPED $p" ;;
            *) echo "FAIL $p"; status=1 ;;
        esac
    done
fi
if [ "$run_bench" = yes ]; then
    decode=
    [ -x "$at/bench_ops_cuda" ] && decode="decode=$at/bench_ops_cuda"
    if [ $# -eq 0 ]; then set -- rates beside ways far $decode; fi
    "$at/bench_moves" "$@" || status=1
fi
exit $status
