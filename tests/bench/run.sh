#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs built benches and prints their lines `BENCH name value unit`.
# Usage: run.sh [-B BUILD_DIR] [TOPIC...]      topics: store arena codec service rpc soak ops cost crowd cold python;
# default all that are built. python: the Python client beside libkvd, with $PYTHON (default /usr/bin/python3).
# Exit status: 0 fine, 1 a bench failed or one that was named is not built, 2 usage.
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
build=$root/build-release
topics='store arena codec service rpc soak ops cost crowd cold python'
while getopts B:h option; do
    case $option in
    B) build=$OPTARG ;;
    h) sed -n '3,6s/^# //p' "$0"; exit 0 ;;
    *) sed -n '4s/^# //p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

named=no
if [ $# -gt 0 ]; then
    topics=$*
    named=yes
fi
status=0

run_python() {
    PYTHONPATH=$build/client/python:$root/tests/python KVD_SOURCE=$root KVD_BINARY=$build/kvd/kvd \
        KVDCTL=$build/client/kvdctl/kvdctl LIBKVD=$build/client/libkvd.so \
        "${PYTHON:-/usr/bin/python3}" "$root/tests/bench/bench_python.py"
}

for topic in $topics; do
    case $topic in
    store | arena | codec | service | rpc | soak | ops | cost | crowd | cold | python) ;;
    *) echo "run.sh: there is no topic \"$topic\"; topics are store, arena, codec, service, rpc, soak, ops, cost, crowd, cold, python" >&2; exit 2 ;;
    esac
    bench=$build/tests/bench/bench_$topic
    [ "$topic" = python ] && bench=$build/client/kvdctl/kvdctl # the last of what it needs
    if [ ! -x "$bench" ]; then
        echo "run.sh: $bench is not built (cmake --build $build --target bench_$topic)" >&2
        [ $named = yes ] && status=1
        continue
    fi
    echo "# $topic"
    if [ "$topic" = rpc ]; then
        if [ ! -x "$build/kvd/kvd" ]; then
            echo "run.sh: $build/kvd/kvd is not built, which bench_rpc starts" >&2
            status=1
            continue
        fi
        output=$("$bench" "$build/kvd/kvd") || status=1
    elif [ "$topic" = python ]; then
        output=$(run_python) || status=1
    else
        output=$("$bench") || status=1
    fi
    printf '%s\n' "$output" | grep '^BENCH ' || { echo "run.sh: bench_$topic printed no BENCH line" >&2; status=1; }
done
exit $status
