#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test program on a store with a fault, with fresh seeds, until a check of it fails.
# Usage: mutant.sh MUTANT SECONDS PROGRAM [ARGUMENT...]     Exit: 0 a check failed, 1 none did within SECONDS.
set -u
KVD_MUTANT=$1 KVT_STOP=1 end=$(($(date +%s) + $2))
export KVD_MUTANT KVT_STOP
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
while left=$((end - $(date +%s))) && [ $left -gt 0 ]; do
    timeout $left "$@" >"$log" 2>&1
    status=$?
    case $status in
        0) ;;        # nothing was seen with this seed
        124) break ;;
        126 | 127) cat "$log"; echo "$1 cannot be run"; exit 1 ;;
        *)
            echo "$KVD_MUTANT is seen (status $status):"
            grep -a -m 3 -E 'WRONG|^    [^ ]*\.c:[0-9]+: ' "$log"
            exit 0 ;;
    esac
done
echo "$KVD_MUTANT lives: no check of $* fails with it"
exit 1
