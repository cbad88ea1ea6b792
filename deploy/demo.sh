#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds kvd and shows it: a scheduler and two workers generate text over KV pages that a kvd daemon owns; one worker,
# then the scheduler, then all of them are killed and started again, while kvd goes on. Then, with too few pages for all
# conversations and an arena in host memory, kvd itself is stopped and killed, and they go on. Then, where redis-server
# is installed, a second kvd with an engine of its own goes on with what the first wrote there. Every token is compared
# with an undisturbed run.
set -eu

usage() {
    cat <<EOF
Usage: sh deploy/demo.sh [--profile P]... [--device D] [--keep] [--build DIR] [--as-built] [--help]
  --profile P   only this row: bf16, int8, fp8, nvfp4, k8v4, speculate, fp8-tensor, window, or latent (default: all; the
                last three on a host device only)
  --device D    where the pages are and the model runs: host:0 (shared memory, CPU; default) or cuda:N
  --keep        keep the folder with configurations, sockets and logs
  --build DIR   build folder (default: build-release beside the sources)
  --as-built    install and build nothing: the programs are in the build folder
Exit: 0 every row is token-exact with tokens reused, 1 usage, 2 could not build or run, 4 a row is not exact
EOF
}

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=$root/build-release
profiles=
device=host:0
keep=no
as_built=no
while [ $# -gt 0 ]; do
    case $1 in
        --profile)
            [ $# -gt 1 ] || { usage >&2; exit 1; }
            case $2 in
                bf16 | int8 | fp8 | nvfp4 | k8v4 | fp8-tensor | speculate | window | latent) profiles="$profiles $2" ;;
                *) echo "demo.sh: there is no profile $2" >&2; usage >&2; exit 1 ;;
            esac
            shift ;;
        --build) [ $# -gt 1 ] || { usage >&2; exit 1; }; build=$2; shift ;;
        --device)
            [ $# -gt 1 ] || { usage >&2; exit 1; }
            case $2 in
                host:[0-9]* | cuda:[0-9]*) device=$2 ;;
                *) echo "demo.sh: $2 is no device; host:0 is one, or cuda:0" >&2; usage >&2; exit 1 ;;
            esac
            shift ;;
        --keep) keep=yes ;;
        --as-built) as_built=yes ;;
        --help) usage; exit 0 ;;
        *) echo "demo.sh: unknown option $1" >&2; usage >&2; exit 1 ;;
    esac
    shift
done
if [ -z "$profiles" ]; then
    profiles="bf16 int8 fp8 nvfp4 k8v4 speculate"
    [ "${device#host}" = "$device" ] || profiles="$profiles fp8-tensor window latent"
fi

dir=
child=
redis=
clean() {
    code=$?
    trap - EXIT HUP INT TERM
    if [ -n "$child" ]; then # demo_run ends what it started
        kill -TERM "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    [ -z "$redis" ] || kill -KILL "$redis" 2>/dev/null || true
    if [ -n "$dir" ]; then
        if [ "$keep" = yes ]; then
            echo "Configurations and logs are in $dir"
        else
            rm -rf -- "$dir"
        fi
    fi
    exit "$code"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

step() {
    "$@" &
    child=$!
    code=0
    wait "$child" || code=$?
    child=
    return "$code"
}

[ "$as_built" = yes ] || sh "$root/deploy/setup.sh" || exit 2
dir=$(mktemp -d "${TMPDIR:-/tmp}/kvd-demo.XXXXXX")
[ "$as_built" = yes ] || echo "Building in $build"
compile() {
    if [ ! -f "$build/build.ninja" ]; then
        step cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo || return 1
    fi
    step cmake --build "$build" --target kvd kvdctl demo_run demo_worker demo_scheduler || return 1
}
if [ "$as_built" = no ] && ! compile >"$dir/build.log" 2>&1; then
    tail -n 30 "$dir/build.log" >&2
    echo "demo.sh: the build failed" >&2
    exit 2
fi

# What is in the cold tier ends with the demo.
if command -v redis-server >/dev/null; then
    redis-server --port 0 --unixsocket "$dir/redis" --save "" --appendonly no --dir "$dir" --logfile redis.log &
    redis=$!
    tries=0
    while [ ! -S "$dir/redis" ] && [ "$tries" -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    if [ ! -S "$dir/redis" ]; then
        echo "demo.sh: redis-server does not start" >&2
        exit 2
    fi
else
    echo "No second kvd beside the first: redis-server is not installed (apt install redis-server)"
fi

# Two kvds a row: a store of the demo's model on one device, with room for six conversations; and one with room for two
# and an arena. A third, on another socket, is like the second.
configure() { # row, tokens, arena, socket, cold tier
    profile=$1
    backend=off
    layers="layers = 4"
    pools=
    case $1 in
        speculate)
            profile=int8
            backend=mtp ;;
        window) # three layers of four
            profile=bf16
            layers="layers = 1"
            pools="[pool.near]
groups = near
window = 128
share = 1000
[group.near]
layers = 3
[lease]
prefill_chunk = 128" ;;
        latent)
            profile=bf16
            layers=
            pools="[pool.main]
groups = latent
[group.latent]
layers = 4
format = latent
bytes = 512" ;;
    esac
    cat <<EOF
[kvd]
socket = $dir/$1/$4
store = demo-$1
[devices]
device.0 = $device
memory = 256MiB
[model]
$layers
kv_heads = 2
head_dim = 256
profile = $profile
max_context = 1152
max_concurrency = 8
$pools
[backend]
kind = $backend
draft_window = 5
[capacity]
tokens = $2
[host]
arena = $3
[cold]
address = $5
timeout = 20s
find_time = 20s
EOF
}

worst=0
for row in $profiles; do
    mkdir "$dir/$row"
    label=$row
    option=
    cold=none
    if [ -n "$redis" ]; then
        cold=unix:$dir/redis
        configure "$row" 1920 96MiB cold.sock "$cold" >"$dir/$row/cold.conf"
        option="--cold-config $dir/$row/cold.conf --cold-socket $dir/$row/cold.sock"
    fi
    configure "$row" 6912 0 kvd.sock none >"$dir/$row/kvd.conf"
    configure "$row" 1920 96MiB kvd.sock "$cold" >"$dir/$row/arena.conf"
    case $row in
        speculate)
            label="int8+drafts"
            option="$option --speculate" ;;
        window) label="bf16+windows" ;;
    esac
    code=0
    # shellcheck disable=SC2086 # options or none
    step "$build/client/demo/demo_run" --kvd "$build/kvd/kvd" --config "$dir/$row/kvd.conf" \
        --arena-config "$dir/$row/arena.conf" --socket "$dir/$row/kvd.sock" --prompts "$root/client/demo/prompts.list" --dir "$dir/$row" --label "$label" \
        --results "$dir/results" $option || code=$?
    if [ "$code" -ne 0 ] && [ "$code" -ne 4 ]; then
        for log in "$dir/$row"/*.log; do
            [ -s "$log" ] && { echo "--- the end of ${log##*/}"; tail -n 5 "$log"; } >&2
        done
        echo "demo.sh: the row $label could not be run" >&2
        exit 2
    fi
    [ "$code" -eq 0 ] || worst=4
done

echo
echo "Processes of the engine are killed; kvd goes on:"
awk -F'|' '
    BEGIN { form = "%-13s %8s %14s %14s %18s %20s %19s %12s\n"
            printf form, "profile", "prompts", "prompt tokens", "tokens reused", "tokens recomputed",
                   "shared prefix again", "answers said again", "token-exact" }
    { printf form, $1, $2, $3, $4, $5, $6, $7, $8 }' "$dir/results"
echo
echo "Too few pages, and kvd is stopped, then killed; the engine goes on:"
awk -F'|' '
    BEGIN { form = "%-13s %8s %14s %14s %18s %14s %14s %20s %12s\n"
            printf form, "profile", "prompts", "prompt tokens", "tokens reused", "of the host arena", "pages demoted",
                   "pages restored", "back after restarts", "token-exact" }
    { printf form, $1, $9, $10, $11, $12, $14, $15, $16 " + " $17, $18 }' "$dir/results"
if [ -n "$redis" ]; then
    echo
    echo "A second kvd and engine, which knows what the first wrote into redis-server:"
    awk -F'|' '
        BEGIN { form = "%-13s %8s %14s %14s %36s %12s\n"
                printf form, "profile", "prompts", "prompt tokens", "tokens reused", "first prompts out of the cold tier",
                       "token-exact" }
        NF > 18 { printf form, $1, $19, $20, $21, $22, $23 }' "$dir/results"
fi
cat <<EOF

With windows three layers of four see the last 128 tokens only, and their pages behind are given back. A latent is one
row a token, of which kvd knows the length alone.
Each row: the prompts of all schedulers together. Recomputed are prompt tokens that had been computed before and were
lost with a process, or stand after the last named page. Said again are answer tokens that a new scheduler, which knows
no transcript, had generated again. Of the host arena are reused tokens whose pages were only there: conversations were
demoted to it for others, or kvd had been restarted. Demoted and restored are pages copied to the arena and back. Back
after restarts are the continuations that kvd had right after the starts that followed SIGTERM and SIGKILL. Out of the
cold tier are tokens of each conversation's first prompt, of which the second kvd had computed nothing.
Token-exact compares every token with a run that reuses nothing and is not disturbed.
EOF
exit "$worst"
