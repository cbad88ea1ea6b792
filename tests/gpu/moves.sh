#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Pages between a GPU and pinned memory: runs the tests of the CUDA device and bench_moves where they are built, and prints
# the bench's table last. Needs a GPU and the built programs, nothing else.
# Usage: sh tests/gpu/moves.sh [--tests-only | --bench-only] [SECTION...]      sections of bench_moves, by default all
#        sh tests/gpu/moves.sh --pack FOLDER    copies the programs of $KVD_BUILD, stripped, and the libraries that they
#                                               need into FOLDER, for a machine that has none of them
# Programs are taken from $KVD_MOVES, by default build-moves where it is there, else from tests/gpu of $KVD_BUILD, by default
# build-release. Exit: 0 all passed, 1 a test failed, 2 nothing to run.
set -u

top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 2
built=${KVD_BUILD:-build-release}/tests/gpu
tests="test_device_cuda test_device_cuda_moves test_device_cuda_fd"
programs="$tests bench_moves bench_ops_cuda"

pack() {
    mkdir -p "$1/lib" || exit 2
    for p in $programs; do
        [ -x "$built/$p" ] || { echo "moves.sh: $built/$p is not built" >&2; exit 2; }
        cp "$built/$p" "$1/$p" && strip "$1/$p"
        ldd "$built/$p" | awk '/libcunit|libsodium/ { print $3 }'
    done | sort -u | xargs -r cp -L -t "$1/lib"
    du -sh "$1"
}

run_tests=yes run_bench=yes
case ${1:-} in
    --pack) pack "${2:?moves.sh: --pack needs a folder}"; exit 0 ;;
    --tests-only) run_bench=no; shift ;;
    --bench-only) run_tests=no; shift ;;
esac

at=${KVD_MOVES:-build-moves}
[ -d "$at" ] || at=$built
[ -x "$at/bench_moves" ] || { echo "moves.sh: no programs in $at: build them, or say where in KVD_MOVES" >&2; exit 2; }
at=$(cd "$at" && pwd)
[ -d "$at/lib" ] && export LD_LIBRARY_PATH="$at/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

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
