#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The page of metrics and the alert rules as Prometheus's own checker sees them. Skipped (77) where there is no promtool.
# Usage: test_promtool.sh TEST_SERVICE_METRICS DEPLOY_DIR
set -eu
if ! command -v promtool >/dev/null 2>&1; then
    echo "skipped: promtool is not installed (Debian: prometheus)"
    exit 77
fi
page=$(mktemp)
trap 'rm -f "$page"' EXIT
"$1" --page | grep -E '^(# (HELP|TYPE) (kvd|process)_|(kvd|process)_)' >"$page" # without what the test runner says
echo "$(wc -l <"$page") lines"
[ "$(wc -l <"$page")" -gt 500 ]
promtool check metrics <"$page"
promtool check rules "$2/prometheus/kvd.rules.yml"
# Each alert has a group of its own, with an instant at which nothing fires and one at which it does.
tests=$(dirname "$0")/kvd_rules_test.yml
promtool test rules "$tests"
grep -o 'alert: .*' "$2/prometheus/kvd.rules.yml" | cut -d ' ' -f 2 | while read -r alert; do
    group=$(awk -v name="$alert" '/^  - name: /{ on = $3 == name } on' "$tests")
    case $group in *'exp_samples: []'*) ;; *) echo "$alert: no test shows it silent"; exit 1 ;; esac
    case $group in *"alertname=\"$alert\""*) ;; *) echo "$alert: no test shows it firing"; exit 1 ;; esac
done
