#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds kvd and runs every test: release, address+undefined sanitizers, thread sanitizer, fuzzers.
# Usage: sh tests/run.sh [--quick]        --quick: release build and tests only
# Exit: 0 all passed, 1 something failed, 2 cannot be built here. The last line counts the test programs.
set -u

top=$(cd "$(dirname "$0")/.." && pwd)
began=$(date +%s)
quick=no
fuzz_seconds=${KVD_FUZZ_SECONDS:-40}
for option in "$@"; do
    case $option in
        --quick) quick=yes ;;
        *) echo "run.sh: unknown option $option; there is --quick" >&2; exit 2 ;;
    esac
done
cd "$top" || exit 2
if [ "$quick" = yes ]; then sh deploy/setup.sh || exit 2; else sh deploy/setup.sh --tests || exit 2; fi

passed=0
failed=0
summary=
note() { summary="$summary$1
"; echo "== $1"; }
count() { # $1 = 0 for a pass
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

build() { # preset
    echo "== building $1"
    start=$(date +%s)
    if cmake --preset "$1" >"build-$1.log" 2>&1 && cmake --build --preset "$1" >>"build-$1.log" 2>&1; then
        rm -f "build-$1.log"
        note "$1: built, $(($(date +%s) - start)) s"
        return 0
    fi
    tail -n 40 "build-$1.log"
    return 1
}

suite() { # preset, what it is, ctest options...
    preset=$1 what=$2
    shift 2
    build "$preset" || { note "$what: does not build"; count 1; return; }
    out=build-$preset/ctest.log
    start=$(date +%s)
    # Two at a time: what measures time, or what one daemon holds, is RUN_SERIAL.
    (cd "build-$preset" && ctest -j2 --output-on-failure --no-tests=error "$@") | tee "$out"
    good=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .* Passed ' "$out")
    bad=$(grep -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*(Failed|Timeout|Not Run|Exception|\*\*\*)' "$out" | grep -vc '\*\*\*Skipped')
    grep -q '^100% tests passed' "$out" || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + good)) failed=$((failed + bad))
    skipped=$(grep -c '\*\*\*Skipped' "$out") # each says why
    note "$what: $good passed, $bad failed, $skipped skipped, $(($(date +%s) - start)) s"
}

fuzz() { # target, seconds: its exit status goes to a file, since it runs beside another
    bin=build-fuzz/tests/fuzz/$1
    corpus=$(cat "$bin.corpus")
    work=build-fuzz/corpus-$1
    read -r options <"$bin.options" || true # no end of line
    mkdir -p "$work"
    # shellcheck disable=SC2086 # options
    "$bin" $options -max_total_time="$2" -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 -artifact_prefix="build-fuzz/" \
        "$work" "$corpus" >"build-fuzz/$1.log" 2>&1
    echo $? >"build-fuzz/$1.status"
}

fuzz_outcome() { # target, seconds
    if [ "$(cat "build-fuzz/$1.status" 2>/dev/null)" = 0 ]; then
        note "$1: clean, $(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/$1.log") inputs in $2 s"
        count 0
    else
        tail -n 40 "build-fuzz/$1.log"
        note "$1: FAILED (input kept beside build-fuzz/)"
        count 1
    fi
}

fuzz_all() { # two at a time
    targets=$(for corpus in build-fuzz/tests/fuzz/fuzz_*.corpus; do basename "$corpus" .corpus; done)
    echo "== fuzzing for $fuzz_seconds s each:" $targets
    rm -f build-fuzz/*.status
    running=0
    for target in $targets; do
        fuzz "$target" "$fuzz_seconds" &
        running=$((running + 1))
        [ $((running % 2)) -eq 1 ] || wait
    done
    wait
    for target in $targets; do fuzz_outcome "$target" "$fuzz_seconds"; done
}

suite release "release build, all tests"
if [ "${KVD_ENGINES:-}" = 1 ]; then
    start=$(date +%s)
    sh tests/engines/run.sh
    code=$?
    count $code
    note "engines: $([ $code -eq 0 ] && echo passed || echo FAILED), $(($(date +%s) - start)) s"
else
    note "engines: skipped (KVD_ENGINES=1 downloads torch and transformers, about 5 GB, and kills them)"
fi
if [ "$quick" = no ]; then
    suite asan "address and undefined-behaviour sanitizers"
    # Not the long programs of one thread, where this sanitizer has nothing to see; nor the crash points, which end the
    # daemon where only one thread works.
    suite tsan "thread sanitizer" -LE model -E '^test_(ops|demo_model|first_token|e2e_crash)'
    if build fuzz; then fuzz_all; else note "fuzzers: do not build"; count 1; fi
fi
echo
printf '%s' "$summary"
echo "$passed passed, $failed failed, $(($(date +%s) - began)) s"
[ "$failed" -eq 0 ]
