#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The rules of kvd/store/CONTRACT.md: each is named by a test, and whatever sources, tests and guides name is one.
# Usage: test_rules.sh SOURCE_DIR
set -u
cd "$1" || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
complain() { echo "$1"; bad=$((bad + 1)); }

kinds=$(grep -oE '^- [A-Z]+-[0-9]+ ' kvd/store/CONTRACT.md | sed 's/- //; s/-.*//' | sort -u | tr '\n' '|')
rule="\\b(${kinds}INV)-[0-9]{1,2}\\b"
grep -oE "$rule" kvd/store/CONTRACT.md | sort -u >"$work/rules"
[ "$(wc -l <"$work/rules")" -gt 100 ] || complain "the rules are read wrongly: $(wc -l <"$work/rules")"
find tests -path tests/fuzz/corpus -prune -o -type f -print >"$work/tests"
find README.md cuda hostarena proto kvd client deploy -type f -print >"$work/others"
xargs grep -hoE "$rule" <"$work/tests" | sort -u >"$work/tested"
xargs cat <"$work/tests" "$work/others" 2>/dev/null | grep -oE "$rule" | sort -u >"$work/named"
for id in $(comm -23 "$work/rules" "$work/tested"); do complain "no test names the rule $id"; done
for id in $(comm -13 "$work/rules" "$work/named"); do complain "$id is named, which is no rule"; done
[ $bad -eq 0 ] || exit 1
echo "$(wc -l <"$work/rules") rules, each named by a test"
