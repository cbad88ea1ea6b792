#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kvd-replay reads both forms of traces: what is found of traces of a few lines is known to the token. What it cannot read
# or be asked for is refused with a sentence, and it leaves nothing behind.
# Usage: test_replay_forms.sh KVD-REPLAY KVD
set -u
replay=$1 kvd=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAIL: $*" >&2; failures=$((failures + 1)); }

# run STATUS ARGUMENT...: the figures are in $work/figures, the complaints in $work/errors.
run() {
    status=$1
    shift
    "$replay" --kvd "$kvd" "$@" >"$work/figures" 2>"$work/errors"
    got=$?
    [ $got -eq "$status" ] || fail "kvd-replay $* ended with $got, not $status: $(cat "$work/errors")"
}
# is NAME VALUE: of the figures.
is() {
    got=$(awk -v name="$1" '$1 == name { print $2 }' "$work/figures")
    [ "$got" = "$2" ] || fail "$1 is $got, not $2: $(cat "$work/figures")"
}
refuses() { grep -qF -e "$1" "$work/errors" || fail "the refusal does not say \"$1\": $(cat "$work/errors")"; }

# Mooncake: 1,536 tokens, of which the second request shares two blocks with the first, and the third all but one token.
cat >"$work/mooncake" <<'TRACE'
{"timestamp": 0, "input_length": 1536, "output_length": 64, "hash_ids": [1, 2, 3]}
{"timestamp": 1000, "input_length": 1536, "output_length": 64, "hash_ids": [1, 2, 4]}
{"timestamp": 2500, "input_length": 1536, "output_length": 64, "hash_ids": [1, 2, 3]}
TRACE
run 0 --trace "$work/mooncake" --pool 500
is requests 3.00
is reuse.hit 55.53           # (1024 + 1535) / 4608: any part of what was computed before counts
is blocks.infinite.hit 44.44 # (1024 + 1024) / 4608: whole blocks without the last token
is audits.violations 0.00
run 0 --trace "$work/mooncake" --pool 500 --requests 2
is requests 2.00
is reuse.hit 33.33

# Agent: blocks of 64; ids are of a session, so that equal ids of two sessions are different texts.
cat >"$work/agent" <<'TRACE'
{"session": 1, "t": 0, "in": 640, "out": 1, "ids": [[0, 10]]}
{"session": 2, "t": 0.5, "in": 640, "out": 1, "ids": [[0, 10]]}
{"session": 1, "t": 1, "in": 1280, "out": 1, "ids": [[0, 10], [20, 10]]}
TRACE
run 0 --trace "$work/agent" --pool 500 --policy lru --active 2
is requests 3.00
is lru.hit 25.00 # 640 / 2560
is blocks.infinite.hit 25.00
run 0 --trace "$work/agent" --pool 500 --speed 10
is reuse.hit 25.00

# Of 2,560 tokens the pool is 1,536, so session 2 is left out by kvd and by the simulated caches, which are larger.
cat >"$work/long" <<'TRACE'
{"session": 1, "t": 0, "in": 640, "out": 1, "ids": [[0, 10]]}
{"session": 2, "t": 1, "in": 1920, "out": 1, "ids": [[0, 30]]}
{"session": 2, "t": 2, "in": 1920, "out": 1, "ids": [[0, 30]]}
{"session": 1, "t": 3, "in": 640, "out": 1, "ids": [[0, 10]]}
TRACE
run 0 --trace "$work/long" --pool 60 --arena 1000
is skipped 2.00
is reuse.hit 12.48           # 639 / 5120
is blocks.lru.hit 11.25      # 576 / 5120
is blocks.next_use.hit 11.25
is blocks.infinite.hit 11.25

echo '{"timestamp": 0, "input_length"' >"$work/broken"
run 1 --trace "$work/broken"
refuses "broken:1: neither a Mooncake line nor an agent line"
run 1 --trace "$work/nowhere"
refuses "No such file or directory"
run 1 --pool 0
refuses '--pool takes a number from 0.01 to 1000, not "0"'
run 1 --active 1.5
refuses '--active takes a whole number from 1 to 1024, not "1.5"'
run 1 --policy best
refuses '--policy takes reuse or lru, not "best"'
run 1 left
refuses '"left" is no option'
run 1 --trace "$work/agent" --pool 0.01
refuses "are a pool of 0"
run 2 --kvd "$work/nothing" --requests 10
refuses "cannot be run: No such file or directory"

[ $failures -eq 0 ] || exit 1
echo "kvd-replay reads both forms, and refuses what is neither"
