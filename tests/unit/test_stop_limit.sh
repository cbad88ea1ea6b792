#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `kvd --check-config` compares stop_time with the limit that the unit has by systemctl's word. What systemctl says is made
# up here; tests/systemd asks the real one.
# Usage: test_stop_limit.sh KVD
set -eu
kvd=$1
work=$(mktemp -d /tmp/kvd-limit-XXXXXX)
trap 'rm -rf -- "$work"' EXIT
trap 'exit 1' HUP INT TERM
failures=0
fail() { echo "FAIL: $*" >&2; failures=$((failures + 1)); }
mkdir "$work/bin"
config=$work/main.conf
PATH=$work/bin:$PATH

# stop_time, arena
configure() {
    printf '[kvd]\nsocket = %s/kvd.sock\n[host]\nstop_time = %s\narena = %s\n' "$work" "$1" "${2:-1MiB}" >"$config"
}
# systemctl says LoadState, TimeoutStopUSec, the configuration that is read; it ends with a status.
systemctl_says() {
    {
        echo '#!/bin/sh'
        # shellcheck disable=SC2016 # for that script
        echo 'for last; do :; done'
        echo "[ \"\$last\" = kvd@main.service ] || exit 9"
        echo "echo 'TimeoutStopUSec=$2'"
        echo "echo 'ExecStart={ path=/usr/sbin/kvd ; argv[]=/usr/sbin/kvd --config $3 ; ignore_errors=no ; pid=0 }'"
        echo "echo LoadState=$1"
    } >"$work/bin/systemctl"
    chmod +x "$work/bin/systemctl"
}
said() { "$kvd" --check-config --config "${1:-$config}" >"$work/said" 2>&1 || fail "status $?: $(cat "$work/said")"; }
silent() {
    said
    [ ! -s "$work/said" ] || fail "$1: $(cat "$work/said")"
}
warned() { # seconds of stop_time, systemd's limit, seconds that would do
    said
    wanted="warning: $config: stop_time = $1s is not below TimeoutStopSec= of kvd@main.service ($2): systemd grants the rest only as long as kvd asks for it; to grant it beforehand, run systemctl edit kvd@main.service and write [Service] and TimeoutStopSec=$3"
    [ "$(cat "$work/said")" = "$wanted" ] || fail "stop_time = $1s, limit $2: $(cat "$work/said")"
}

systemctl_says loaded '1min 30s' "$config"
configure 5min && warned 300 '1min 30s' 360
configure 90s && warned 90 '1min 30s' 150
configure 89s && silent "within the limit"
configure 5min 0 && silent "without an arena a stop demotes nothing"
systemctl_says loaded '1h 1s 500ms' "$config"
configure 60min && silent "below an hour and a second"
systemctl_says loaded '2s 100ms' "$config"
configure 2101ms && warned 3 '2s 100ms' 63
configure 5min
for limit in infinity '' '1min 30' '1 fortnight' 'x'; do
    systemctl_says loaded "$limit" "$config"
    silent "the limit \"$limit\""
done
systemctl_says not-found '1min 30s' "$config"
silent "a unit that is not there has systemd's default"
systemctl_says loaded '1min 30s' /etc/kvd/main.conf
silent "the unit reads another file"
mv "$config" "$work/ma in.conf"
said "$work/ma in.conf"
[ ! -s "$work/said" ] || fail "a name that systemd would escape: $(cat "$work/said")"
mv "$work/ma in.conf" "$config"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/systemctl"
silent "systemctl fails"
printf '#!/bin/sh\nexec sleep 1000\n' >"$work/bin/systemctl"
silent "systemctl is silent" # and is not waited for
PATH=$work/empty
silent "there is no systemctl" 2>/dev/null
PATH=/usr/sbin:/usr/bin:/sbin:/bin
[ "$failures" -eq 0 ]
