#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the tests and benches of the CUDA ops. Needs nvcc, a C compiler and a GPU; nothing else of kvd's needs
# (no nng, protobuf-c, CMake). Python with PyTorch is used for the baseline where it is there.
# Usage: sh tests/gpu/run.sh [--build-only] [--tests-only] [--sanitize]
#   --build-only  compile and stop                 --tests-only  no benches
#   --sanitize    op tests at reduced sizes under compute-sanitizer (memcheck, racecheck) as well
# The build folder is $KVD_GPU_BUILD, by default build-gpu; programs that are there already are used as they are.
# The device tests and benches (test_device_cuda*, test_ipc, test_demo_cuda, bench_publish) and the demo on cuda:0 need all
# that kvd needs: they are built by CMake and run from $KVD_BUILD, by default build-release, where they are there.
# Prints PASS and FAIL lines, then a table of BENCH lines. Exit: 0 all passed, 1 a test failed, 2 cannot be built or run.
set -u

top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 2
build=${KVD_GPU_BUILD:-build-gpu}
benches=yes tests=yes sanitize=no
for option in "$@"; do
    case $option in
        --build-only) tests=no benches=no ;;
        --tests-only) benches=no ;;
        --sanitize) sanitize=yes ;;
        *) echo "run.sh: unknown option $option; there are --build-only, --tests-only, --sanitize" >&2; exit 2 ;;
    esac
done

# ---- build: every object on its own, as many at a time as there are processors ----
objects="refuse.c geometry.c ops_codec.c ops_append.c ops_attention.c ops_check.c"
kernels=$(cd cuda && ls ops_*.cu)
programs="test_ops_cuda bench_ops_cuda"

compile() {
    echo "== building in $build"
    mkdir -p "$build" || return 1
    nvcc=${NVCC:-nvcc}
    flags="-std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icuda -Itests/gpu -Xcompiler -Wall,-Wextra"
    {
        for c in $objects; do
            echo "${CC:-cc} -std=c17 -O2 -D_GNU_SOURCE -ffp-contract=off -Icuda -c cuda/$c -o $build/c_${c%.c}.o"
        done
        for cu in $kernels; do
            echo "$nvcc $flags -c cuda/$cu -o $build/u_${cu%.cu}.o"
        done
        for p in $programs; do
            echo "$nvcc $flags -c tests/gpu/$p.cu -o $build/p_$p.o"
        done
    } | xargs -P "$(nproc)" -I{} sh -c '{}' || return 1
    for p in $programs; do
        $nvcc -cudart static -o "$build/$p" "$build/p_$p.o" "$build"/u_*.o "$build"/c_*.o -lm || return 1
        strip "$build/$p"
    done
    python3 tests/gpu/machine_code.py "$build"/u_*.o
    [ $? -ne 1 ] || return 1
    rm -f "$build"/?_*.o
}

for p in $programs; do
    [ -x "$build/$p" ] || { compile || exit 2; break; }
done

# ---- run ----
status=0
if [ "$tests" = yes ]; then
    "$build/test_ops_cuda" || status=1
fi
device=${KVD_BUILD:-build-release}/tests/gpu
for p in test_device_cuda test_device_cuda_moves test_device_cuda_fd test_ipc test_demo_cuda; do
    [ "$tests" = yes ] || continue
    [ -x "$device/$p" ] || { echo "SKIPPED $p: not built in $device"; continue; }
    "$device/$p"
    case $? in
        0) echo "PASS $p" ;;
        77) echo "SKIPPED $p: it says why above" ;;
        *) echo "FAIL $p"; status=1 ;;
    esac
done
# The demo: generation that goes on after SIGKILL, token by token the same, in every profile and with drafts.
if [ "$tests" = yes ]; then
    if [ -x "${KVD_BUILD:-build-release}/client/demo/demo_run" ]; then
        sh deploy/demo.sh --as-built --build "${KVD_BUILD:-build-release}" --device cuda:0 && echo "PASS demo" || { echo "FAIL demo"; status=1; }
    else
        echo "SKIPPED demo: not built in ${KVD_BUILD:-build-release}"
    fi
fi
if [ "$sanitize" = yes ]; then
    for tool in memcheck racecheck; do
        if compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/test_ops_cuda" --small >"$build/$tool.log" 2>&1; then
            echo "PASS compute-sanitizer $tool"
        else
            echo "FAIL compute-sanitizer $tool"
            tail -n 20 "$build/$tool.log"
            status=1
        fi
    done
fi
if [ "$benches" = yes ]; then
    "$build/bench_ops_cuda" >"$build/bench.txt" || status=1
    if [ -x "$device/bench_publish" ] && [ -x "$device/test_ipc" ]; then
        "$device/bench_publish" >>"$build/bench.txt" || status=1
        "$device/test_ipc" --bench >>"$build/bench.txt" || status=1
    fi
    if [ -x "$device/../bench/bench_first_token" ]; then
        "$device/../bench/bench_first_token" --device cuda:0 >>"$build/bench.txt" || status=1
    fi
    if python3 -c 'import torch' 2>/dev/null; then
        python3 -W ignore tests/gpu/sdpa_baseline.py >>"$build/bench.txt" || echo "== no baseline"
    fi
    cat "$build/bench.txt"
    # Ours against the best backend of the same run: above 1 is faster than contiguous KV in PyTorch. A "full" prefill has no
    # mask: it is not the same function, but the fastest thing that a backend does with these shapes.
    awk '$1 == "BENCH" && $2 ~ /^sdpa[.]/ {
             split($2, part, "."); key = part[2] "." part[3] "." (part[4] ~ /_full$/ ? "full" : "sdpa")
             if (!(key in best) || $3 < best[key]) best[key] = $3
         }
         $1 == "BENCH" && $2 ~ /^(decode|prefill2048)[.]bf16[.].*[.]us$/ && $2 !~ /identity|record/ {
             split($2, part, "."); ours[part[1] "." part[3]] = $3
         }
         END {
             for (key in ours) {
                 if ((key ".sdpa") in best) printf "BENCH ratio.%s.sdpa_time_over_ours %.3f x\n", key, best[key ".sdpa"] / ours[key]
                 if ((key ".full") in best) printf "BENCH ratio.%s.full_time_over_ours %.3f x\n", key, best[key ".full"] / ours[key]
             }
         }' "$build/bench.txt" | sort
fi
exit $status
