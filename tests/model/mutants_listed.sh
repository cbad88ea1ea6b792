#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The faults in the code are those that tests run with, each listed once. Usage: mutants_listed.sh DIRECTORY NAME...
set -u
code=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find "$code" -name '*.[ch]' ! -name mutant.h -exec cat {} + | grep -oE 'MUTANT\([a-z_0-9]+\)' | sed 's/MUTANT(\(.*\))/\1/' | sort -u >"$work/code"
printf '%s\n' "$@" | sort >"$work/listed"
[ -s "$work/code" ] || { echo "the code has no MUTANT"; exit 1; }
diff "$work/code" "$work/listed" >"$work/diff" && { echo "$# mutants"; exit 0; }
sed -n 's/^< \(.*\)/\1 is in the code and not in tests\/model\/mutants.cmake/p
        s/^> \(.*\)/\1 is in tests\/model\/mutants.cmake and not in the code, or is there twice/p' "$work/diff"
exit 1
