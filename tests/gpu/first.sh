#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a session on a GPU runs first, in one call: all that must be right, then how fast it is, and one table last. Each
# program has a time limit, and one that fails or hangs keeps none of the others from running.
# Usage: sh tests/gpu/first.sh --pack FILE.txz    puts every program that it runs into an archive, out of the build folder
#                                                 and stripped, with the libraries that they need, for a machine that
#                                                 cannot build them
#        sh tests/gpu/first.sh [SECTION...]       right: op tests, device, IPC, tiers, demo      memory: op tests under
#                                                 compute-sanitizer      fast: benches      beside: PyTorch, FlashInfer
#                                                 By default right, fast and beside.
# Programs are those of $KVD_BUILD, a build folder or such an archive, by default build-release. Logs, and what an archive has,
# go to $KVD_FIRST_LOGS, by default build-first. FlashInfer: see flashinfer_baseline.sh.
# Exit: 0 all passed, 1 something failed, 2 there is no GPU here or nothing to run.
set -u

top=$(cd "$(dirname "$0")/../.." && pwd)
build=${KVD_BUILD:-$top/build-release}
logs=${KVD_FIRST_LOGS:-$top/build-first}
programs="kvd/kvd client/demo/demo_run client/demo/demo_worker client/demo/demo_scheduler tests/e2e/e2e_puppet
tests/bench/bench_first_token tests/gpu/test_ops_cuda tests/gpu/bench_ops_cuda tests/gpu/test_device_cuda
tests/gpu/test_device_cuda_moves tests/gpu/test_device_cuda_fd tests/gpu/test_ipc tests/gpu/test_tiers tests/gpu/test_demo_cuda
tests/gpu/bench_moves tests/gpu/bench_publish"
most_mib=32 # of an archive: sources and a FlashInfer travel beside it

refuse() { echo "first.sh: $1" >&2; exit 2; }

pack() { # archive
    for p in $programs; do
        [ -x "$build/$p" ] || refuse "$build/$p is not built: cmake --build $build --target ${p##*/}"
    done
    dir=$(mktemp -d) || exit 2
    trap 'rm -rf "$dir"' EXIT
    mkdir "$dir/lib" || exit 2
    for p in $programs; do
        mkdir -p "$dir/${p%/*}" && cp "$build/$p" "$dir/$p" && strip "$dir/$p" || exit 2
        ldd "$build/$p" | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|dl|rt|pthread|stdc[+][+]|gcc_s)[.]/ { print $3 }'
    done | sort -u | xargs -r cp -L -t "$dir/lib" || exit 2
    tar cJf "$1" -C "$dir" . || exit 2
    size=$(($(wc -c <"$1") / 1048576))
    echo "first.sh: $1 has $size MiB; on the other machine: KVD_BUILD=$1 sh tests/gpu/first.sh"
    [ $size -le $most_mib ] || refuse "$1 has more than $most_mib MiB"
}

# ---- one program after the other ----

status=0
step() { # name, seconds, command...
    name=$1 seconds=$2
    shift 2
    [ -x "$1" ] || command -v "$1" >/dev/null || { echo "$name SKIPPED 0 no $1" >>"$logs/steps"; return; }
    echo "== $name"
    began=$(date +%s)
    timeout -k 10 "$seconds" "$@" >"$logs/$name.log" 2>&1
    code=$?
    case $code in
        0) outcome=PASSED ;;
        77) outcome=SKIPPED ;;
        124 | 137) outcome=HANGS ;;
        *) outcome=FAILED ;;
    esac
    case $outcome in HANGS | FAILED) status=1; tail -n 15 "$logs/$name.log" ;; esac
    echo "$name $outcome $(($(date +%s) - began)) $(tail -n 1 "$logs/$name.log" | cut -c1-90)" >>"$logs/steps"
}

right() {
    step machine_code 60 python3 tests/gpu/machine_code.py "$build/tests/gpu/test_ops_cuda"
    step test_ops_cuda 400 "$build/tests/gpu/test_ops_cuda"
    for p in test_device_cuda test_device_cuda_moves test_device_cuda_fd test_ipc test_tiers test_demo_cuda; do
        step $p 200 "$build/tests/gpu/$p"
    done
    step demo 300 sh deploy/demo.sh --as-built --build "$build" --device cuda:0
}

memory() {
    for tool in memcheck racecheck; do
        step $tool 500 compute-sanitizer --tool $tool --error-exitcode 9 "$build/tests/gpu/test_ops_cuda" --small
    done
}

fast() {
    step bench_ops_cuda 400 "$build/tests/gpu/bench_ops_cuda"
    step bench_publish 100 "$build/tests/gpu/bench_publish"
    step bench_ipc 100 "$build/tests/gpu/test_ipc" --bench
    step bench_tiers 100 "$build/tests/gpu/test_tiers" --bench
    step bench_first_token 100 "$build/tests/bench/bench_first_token" --device cuda:0
    step bench_moves 300 "$build/tests/gpu/bench_moves" rates beside ways far "decode=$build/tests/gpu/bench_ops_cuda"
}

beside() {
    step pytorch 300 python3 -W ignore tests/gpu/sdpa_baseline.py
    step flashinfer 500 sh tests/gpu/flashinfer_baseline.sh
}

# Ours over the best of another of the same shape: above 1, ours is faster.
ratios() {
    cat "$logs"/*.log | awk '
        $1 != "BENCH" { next }
        $2 ~ /^(sdpa|flashinfer)[.]/ {
            n = split($2, part, ".")
            key = part[1] == "sdpa" ? part[2] ".bf16." part[3] : part[2] "." part[3] "." part[4]
            if (part[1] == "sdpa" && part[4] ~ /_full$/) next # another function: no mask
            if (!(key in best) || $3 < best[key]) { best[key] = $3; by[key] = part[1] == "sdpa" ? "pytorch" : part[5] }
        }
        $2 ~ /^(decode|verify8|prefill[0-9]+)[.].*[.]us$/ && $2 !~ /identity|record/ {
            split($2, part, "."); ours[part[1] "." part[2] "." part[3]] = $3
        }
        END {
            for (key in ours)
                if (key in best) printf "%-52s %9.1f us %9.1f us %s %6.2f\n", key, ours[key], best[key], by[key], best[key] / ours[key]
        }' | sort
}

[ "${1:-}" != --pack ] || { pack "${2:?first.sh: --pack needs the name of an archive}"; exit; }
for section in "$@"; do
    case $section in
        right | memory | fast | beside) ;;
        *) refuse "there is no section $section; there are right, memory, fast and beside" ;;
    esac
done
rm -rf "$logs"
mkdir -p "$logs" && : >"$logs/steps" || exit 2
if [ -f "$build" ]; then
    mkdir "$logs/build" && tar xJf "$build" -C "$logs/build" || refuse "$build cannot be unpacked"
    build=$logs/build
fi
[ -x "$build/tests/gpu/test_ops_cuda" ] || refuse "there is no $build/tests/gpu/test_ops_cuda: build it or set KVD_BUILD"
build=$(cd "$build" && pwd)
export KVD_BINARY="$build/kvd/kvd" KVD_PUPPET="$build/tests/e2e/e2e_puppet" KVD_IPC_PY="$top/tests/gpu/test_ipc.py"
[ ! -d "$build/lib" ] || export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"$build/tests/gpu/test_ops_cuda" --small none >/dev/null 2>&1
code=$?
case $code in
    0) ;;
    77) refuse "there is no GPU here: nothing was run" ;;
    *) "$build/tests/gpu/test_ops_cuda" --small none >&2; refuse "test_ops_cuda ends with $code without running a case" ;;
esac
cd "$top" || exit 2
for section in ${*:-right fast beside}; do $section; done
echo
echo "ours, the best of others, and that over ours:"
ratios
echo
awk '{ printf "%-24s %-8s %5d s  ", $1, $2, $3; $1 = $2 = $3 = ""; print }' "$logs/steps"
exit $status
