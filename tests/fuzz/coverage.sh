#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the inputs of the fuzzers of requests reach: the kept corpora, and what a run of tests/run.sh has found beside them
# in build-fuzz. Prints llvm-cov's table of the files that serve requests; builds in build-coverage.
# Usage: sh tests/fuzz/coverage.sh [CORPUS...]        CORPUS: more folders, for all three
set -eu

top=$(cd "$(dirname "$0")/../.." && pwd)
build=$top/build-coverage
cd "$top"
mkdir -p "$build"
flags='-fprofile-instr-generate -fcoverage-mapping'
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang -DKVD_CUDA=OFF \
    -DCMAKE_C_FLAGS="$flags" >"$build/build.log"
ninja -C "$build" fuzz_dispatch_replay fuzz_dispatch_host_replay fuzz_dispatch_state_replay >>"$build/build.log"
objects=
for name in dispatch dispatch_host dispatch_state; do
    corpus=tests/fuzz/corpus/dispatch
    [ $name = dispatch ] || corpus=tests/fuzz/corpus/dispatch_host
    found=build-fuzz/corpus-fuzz_$name
    [ -d "$found" ] || found=
    # shellcheck disable=SC2086 # there may be none
    LLVM_PROFILE_FILE=$build/$name.profraw "$build/tests/fuzz/fuzz_${name}_replay" $corpus $found "$@"
    objects="$objects ${objects:+-object} $build/tests/fuzz/fuzz_${name}_replay"
done
llvm-profdata-14 merge -o "$build/all.profdata" "$build"/*.profraw
# shellcheck disable=SC2086 # several objects
llvm-cov-14 report -instr-profile "$build/all.profdata" -show-region-summary=0 -show-branch-summary=0 $objects \
    kvd/serve kvd/service kvd/work kvd/memory kvd/store
