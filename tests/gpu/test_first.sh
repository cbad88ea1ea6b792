#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# first.sh without a GPU, over programs that only pretend: one that fails, one that hangs, one that is missing and one that
# skips keep nothing else from running, and the last table says which. Usage: sh tests/gpu/test_first.sh
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export KVD_BUILD="$dir/build" KVD_FIRST_LOGS="$dir/logs"
mkdir -p "$KVD_BUILD/tests/gpu" "$KVD_BUILD/tests/bench" "$dir/bin"

pretend() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; } # program, what it does
failed=0
expect() { # what, pattern, file
    grep -qE "$2" "$3" && return
    echo "FAIL $1: no line like \"$2\" in:"
    cat "$3"
    failed=1
}
first() { # exit code that it must have, arguments...
    want=$1
    shift
    sh "$top/tests/gpu/first.sh" "$@" >"$dir/out" 2>&1
    code=$?
    [ $code -eq "$want" ] || { echo "FAIL first.sh $*: ended with $code, not $want:"; cat "$dir/out"; failed=1; }
}

first 2
expect "nothing is built" 'there is no .*/tests/gpu/test_ops_cuda' "$dir/out"
pretend "$KVD_BUILD/tests/gpu/test_ops_cuda" 'echo "no GPU here: skipped"; exit 77'
first 2
expect "no GPU" 'there is no GPU here: nothing was run' "$dir/out"
first 2 quick
expect "an unknown section" 'there is no section quick; there are right' "$dir/out"
first 2 --pack "$dir/pack.txz"
expect "a pack of what is not built" 'kvd/kvd is not built: cmake --build .* --target kvd' "$dir/out"

pretend "$KVD_BUILD/tests/gpu/test_ops_cuda" 'exit 0'
pretend "$KVD_BUILD/tests/gpu/bench_ops_cuda" 'echo "BENCH decode.fp8.b8_q16_h2_d256_c64.us 50 us"'
pretend "$KVD_BUILD/tests/gpu/bench_publish" 'echo "rows are wrong"; exit 1'
pretend "$KVD_BUILD/tests/gpu/test_ipc" 'exit 124' # what timeout(1) makes of a program that hangs
pretend "$KVD_BUILD/tests/gpu/bench_moves" 'exit 77'
pretend "$KVD_BUILD/tests/bench/bench_first_token" 'echo "well done"'
pretend "$dir/bin/python3" 'echo "BENCH flashinfer.decode.fp8.b8_q16_h2_d256_c64.xqa.us 75 us"'
PATH="$dir/bin:$PATH" first 1 fast beside
expect "ours over the best of others" '^decode.fp8.b8_q16_h2_d256_c64 +50.0 us +75.0 us xqa +1.50$' "$dir/out"
expect "a program that fails" '^bench_publish +FAILED .* rows are wrong$' "$dir/out"
expect "a program that hangs" '^bench_ipc +HANGS ' "$dir/out"
expect "a program that is not there" '^bench_tiers +SKIPPED .* no .*/test_tiers$' "$dir/out"
expect "a program that skips" '^bench_moves +SKIPPED ' "$dir/out"
expect "what comes behind them" '^bench_first_token +PASSED .* well done$' "$dir/out"
expect "the last of all" '^flashinfer +PASSED ' "$dir/out"
exit $failed
