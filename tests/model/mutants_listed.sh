#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The store's faults are those that tests run with, each listed once. Usage: mutants_listed.sh STORE-DIRECTORY NAME...
set -u
store=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat "$store"/*.c "$store"/store_internal.h | grep -oE 'MUTANT\([a-z_0-9]+\)' | sed 's/MUTANT(\(.*\))/\1/' | sort -u >"$work/store"
printf '%s\n' "$@" | sort >"$work/listed"
[ -s "$work/store" ] || { echo "the store has no MUTANT"; exit 1; }
diff "$work/store" "$work/listed" >"$work/diff" && { echo "$# mutants"; exit 0; }
sed -n 's/^< \(.*\)/\1 is in the store and not in tests\/model\/mutants.cmake/p
        s/^> \(.*\)/\1 is in tests\/model\/mutants.cmake and not in the store, or is there twice/p' "$work/diff"
exit 1
