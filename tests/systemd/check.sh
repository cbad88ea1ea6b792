#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What must hold under a real systemd, from the installation of the packages to their purge. Runs inside the container,
# as root, started by kvd-check.service; /kvd-check has this folder, and the packages in two versions.
# shellcheck disable=SC2015 # A && B || fail: fail exits
set -u

unit=kvd@test.service
socket=/run/kvd/test/kvd.sock
config=/etc/kvd/test.conf

step() { echo "$(cut -d' ' -f1 /proc/uptime) $*"; }
fail() {
    echo "FAILED: $*"
    systemctl status --no-pager --lines=0 "$unit"
    journalctl --no-pager -o short-monotonic -b | tail -n 60
    exit 1
}
property() { systemctl show --value -p "$1" "$unit"; }
is() { [ "$(property "$1")" = "$2" ] || fail "$1 is \"$(property "$1")\", not \"$2\""; }
status() { kvdctl -s "$socket" --json status; }
epoch() { status | sed -n 's/.*"epoch":[^"]*"\([0-9a-f]*\)".*/\1/p'; }
shm() { find /dev/shm -name 'kvd-*' | wc -l; }
said() { journalctl --sync; journalctl --no-pager -u "$unit" -b | grep -q -- "$1"; }

# Instances test and sibling, by the documentation's example. /usr/share/doc has what the package brings.
configure() {
    examples=/usr/share/doc/kvd/examples
    mkdir -p /etc/systemd/system/kvd@test.service.d /etc/systemd/system/kvd@sibling.service.d
    {
        cat $examples/example.conf # the socket is that of the unit's folder
        # A stop waits for engines that live on for a quarter of its time.
        printf '[devices]\nexport = vmm\n[host]\narena = 64MiB\nstop_time = 4s\n'
    } >"$config"
    # A watchdog that is not waited for long.
    printf '[Service]\nWatchdogSec=2s\n' >/etc/systemd/system/kvd@test.service.d/test.conf
    # A stop that takes longer than the unit's own limit asks for more.
    printf '[Service]\nTimeoutStopSec=1s\n' >/etc/systemd/system/kvd@sibling.service.d/stop.conf
    # The sibling is monitored, lets in one group more narrowly, and its pools go with the process.
    cp $examples/metrics.conf /etc/systemd/system/kvd@sibling.service.d
    sed 's,/run/kvd/test/,/run/kvd/sibling/,; s,^observer = .*,observer = gid:games,; s,^export = .*,export = ipc,; s,^stop_time = .*,stop_time = 12s,' "$config" >/etc/kvd/sibling.conf
    printf '[http]\nlisten = 127.0.0.1:9471\n' >>/etc/kvd/sibling.conf
    systemctl daemon-reload || fail "daemon-reload"
}

# Asks again until it is so, for a minute.
await() {
    what=$1
    shift
    tries=1200
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "waited for this in vain: $what"
        sleep 0.05
    done
}
restarted() { [ "$(property NRestarts)" = "$1" ] && [ "$(property ActiveState)" = active ]; }

# shellcheck source=tests/systemd/packages.sh
. /kvd-check/packages.sh
# shellcheck source=tests/systemd/keeping.sh
. /kvd-check/keeping.sh
# shellcheck source=tests/systemd/journal.sh
. /kvd-check/journal.sh

packages_install
configure

step "a stop_time beyond the unit's limit is told by the check, drop-ins counted"
kvd --check-config --config /etc/kvd/sibling.conf >/out/check 2>&1 || fail "the sibling's configuration: $(cat /out/check)"
grep -q "stop_time = 12s is not below TimeoutStopSec= of kvd@sibling.service (1s)" /out/check || fail "$(cat /out/check)"
kvd --check-config --config "$config" >/out/check 2>&1 && [ ! -s /out/check ] || fail "$(cat /out/check)"

step "starts: enabled instances come with kvd.target"
systemctl enable --quiet "$unit" || fail "enable"
systemctl start kvd.target || fail "kvd.target does not start"
await "the instance is active" restarted 0
is StatusText "serving 8192 tokens on 1 devices"
is RemoveIPC no
pid=$(property MainPID)
[ "$(stat -c %U:%G "/proc/$pid")" = kvd:kvd-clients ] || fail "runs as $(stat -c %U:%G "/proc/$pid")"
grep -q '^CapEff:[[:space:]]*0*$' "/proc/$pid/status" || fail "has capabilities"
grep -q '^Seccomp:[[:space:]]*2$' "/proc/$pid/status" || fail "has no system call filter"
[ "$(stat -c %a:%U:%G /run/kvd/test)" = 750:kvd:kvd-clients ] || fail "/run/kvd/test: $(stat -c %a:%U:%G /run/kvd/test)"
[ "$(stat -c %a:%U:%G "$socket")" = 660:kvd:kvd-clients ] || fail "socket: $(stat -c %a:%U:%G "$socket")"
# Sockets of its own network namespace: it listens in its folder, and nowhere on a network.
awk '$4 == "00010000" { n++; if ($8 !~ "^/run/kvd/test/") exit 1 } END { if (!n) exit 1 }' "/proc/$pid/net/unix" ||
    fail "Unix sockets: $(cat "/proc/$pid/net/unix")"
for family in tcp tcp6 udp udp6; do
    [ "$(wc -l <"/proc/$pid/net/$family")" = 1 ] || fail "sockets: $(cat "/proc/$pid/net/$family")"
done

step "answers: root and the clients' group, nobody else"
kvdctl -s "$socket" status || fail "kvdctl status"
setpriv --reuid=nobody --regid=nogroup --groups=kvd-clients kvdctl -s "$socket" status >/dev/null || fail "a client"
setpriv --reuid=nobody --regid=nogroup --clear-groups kvdctl -s "$socket" status >/dev/null 2>&1 && fail "a stranger"

keeping_begins
keeping_over_an_engine

step "restarted: back, in a new epoch, with every page in its place"
old=$(epoch)
systemctl daemon-reexec || fail "daemon-reexec" # an upgrade of systemd: it goes on with what it keeps
systemctl restart "$unit" || fail "restart"
found "of an earlier kvd: [1-9][0-9]* continuations found (0 of them shortened)"
is_on device
[ -n "$old" ] && [ "$(epoch)" != "$old" ] || fail "epoch $(epoch) after $old"
pid=$(property MainPID)

idle_since=$(date +%s)
keeping_lock # of another instance
step "an idle daemon outlives two and a half times its watchdog"
idle=$(($(date +%s) - idle_since))
[ $idle -gt 5 ] || sleep $((6 - idle)) # the time itself is what is tested
is NRestarts 0
is ActiveState active
[ "$(property MainPID)" = "$pid" ] || fail "another process"

step "killed: back, in a new epoch, nothing left over, every page in its place"
old=$(epoch)
[ -n "$old" ] || fail "no epoch"
systemctl kill --kill-whom=main -s KILL "$unit"
await "restart after SIGKILL" restarted 1
new=$(epoch)
[ -n "$new" ] && [ "$new" != "$old" ] || fail "epoch $new after $old"
[ "$(shm)" = 1 ] || fail "$(shm) shared-memory objects, 1 before"
[ "$(property MainPID)" != "$pid" ] || fail "the same process"
is_on device
pid=$(property MainPID)

step "reloads in place"
sed -i 's/^\[kvd\]$/[kvd]\nlog_level = debug/' "$config"
systemctl reload "$unit" || fail "reload"
await "the reload is in the journal" said "configuration reloaded"
await "the reload is over" restarted 1
[ "$(epoch)" = "$new" ] && [ "$(property MainPID)" = "$pid" ] || fail "the reload was a restart"
echo "nonsense" >>"$config"
systemctl reload "$unit" 2>/dev/null && fail "a wrong configuration was reloaded"
kill -HUP "$pid" # past the check
await "the refusal shows in the status" sh -c "systemctl show -p StatusText $unit | grep -q 'was not reloaded'"
await "it goes on" restarted 1
[ "$(epoch)" = "$new" ] || fail "another epoch after a refused reload"
sed -i '/^nonsense$/d' "$config"
systemctl reload "$unit" || fail "reload of the mended configuration"
await "the status is as it was" sh -c "systemctl show -p StatusText $unit | grep -q 'on 1 devices$'"

step "hangs: the watchdog ends it, and it is back with every page"
kill -STOP "$pid"
await "restart by the watchdog" restarted 2
said "Watchdog timeout" || fail "no word of the watchdog"
last=$(epoch)
[ -n "$last" ] && [ "$last" != "$new" ] || fail "epoch $last after $new"
[ "$(shm)" = 1 ] || fail "$(shm) shared-memory objects, 1 before"
is_on device

packages_upgrade
packages_rollback
keeping_stop

step "a sibling tells groups apart, and is monitored, from inside its sandbox"
systemctl start kvd@sibling.service || fail "a second instance does not start"
look() { setpriv --reuid=nobody --regid=nogroup --groups="$1" kvdctl -s /run/kvd/sibling/kvd.sock status; }
look kvd-clients,games >/dev/null || fail "a member of a group that may look"
look kvd-clients >/out/refusal 2>&1 && fail "a stranger to the group that may look"
grep -q "may not be observer; add it to observer = in section \[access\]" /out/refusal || fail "refused in other words: $(cat /out/refusal)"
# shellcheck disable=SC2016 # for bash, whose redirections can connect
scrape='exec 3<>/dev/tcp/127.0.0.1/9471 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && grep -m 1 "^kvd_" <&3'
bash -c "$scrape" || fail "no metrics over TCP"

step "an instance with a group of its own: members of kvd-clients stay out of its socket and its shared memory"
mkdir -p /run/systemd/system/kvd@apart.service.d
printf '[Service]\nGroup=games\n' >/run/systemd/system/kvd@apart.service.d/group.conf
sed 's,/run/kvd/test/,/run/kvd/apart/,; s,^export = .*,export = ipc,; /^\[host\]/,$d' "$config" >/etc/kvd/apart.conf
systemctl daemon-reload
systemctl start kvd@apart.service || fail "an instance with a group of its own does not start"
look_apart() { setpriv --reuid=nobody --regid=nogroup --groups="$1" kvdctl -s /run/kvd/apart/kvd.sock status; }
look_apart games >/dev/null || fail "a member of its group"
look_apart kvd-clients >/dev/null 2>&1 && fail "a member of kvd-clients"
systemctl stop kvd@apart.service || fail "stop"
rm -r /run/systemd/system/kvd@apart.service.d /etc/kvd/apart.conf
systemctl daemon-reload

unit=kvd@sibling.service
keeping_demotes /run/kvd/sibling/kvd.sock
unit=kvd@test.service

step "stops: nothing but what is cached stays, and the sibling loses nothing"
systemctl stop "$unit" || fail "stop"
is Result success
is ExecMainStatus 0
[ ! -e "$socket" ] && [ ! -e /run/kvd/test ] || fail "the socket or its folder is still there"
said "stopping" || fail "no word of stopping"
[ -e "$arena" ] || fail "the arena is gone"
systemctl is-active --quiet kvd@sibling.service || fail "the sibling stopped too"
kvdctl -s /run/kvd/sibling/kvd.sock audit >/dev/null || fail "the sibling's audit"
systemctl stop kvd.target || fail "stop of kvd.target" # with every instance
await "the sibling has stopped" sh -c "[ \"\$(systemctl show --value -p ActiveState kvd@sibling.service)\" = inactive ]"
[ "$(shm)" = "$(arenas | wc -l)" ] || fail "shared memory is still there: $(find /dev/shm -name 'kvd-*')"
[ -z "$(ls -A /run/kvd)" ] || fail "still in /run/kvd: $(ls /run/kvd)"

step "a wrong configuration is not tried again, and starts by hand are not limited"
echo "nonsense" >/etc/kvd/broken.conf
unit=kvd@broken.service
for start in 1 2 3 4 5 6 7 8 9 10; do systemctl start $unit 2>/dev/null && fail "a wrong configuration started"; done
is NRestarts 0
is Result exit-code
is ExecMainStatus 1
said "broken.conf:1: " || fail "no word of what is wrong"
said "repeated too quickly" && fail "starts by hand trip the limit"
cp /usr/share/doc/kvd/examples/example.conf /etc/kvd/broken.conf
systemctl start $unit || fail "a configuration that was mended does not start"
systemctl stop $unit || fail "stop"

step "an instance that nobody configured names its path, and what to copy there"
unit=kvd@mistyped.service
systemctl start $unit 2>/dev/null && fail "an instance without a configuration started"
said "/etc/kvd/mistyped.conf: No such file or directory; cp /usr/share/doc/kvd/examples/example.conf there" ||
    fail "no word of the path"
unit=kvd@test.service

step "the shipped file, the example and the package's own test start an instance each; kvdctl finds what runs"
systemctl start kvd@kvd || fail "kvd@kvd does not start with the shipped /etc/kvd/kvd.conf"
kvdctl status >/dev/null || fail "the only instance is not found"
kvdctl config | grep -q '^\[kvd\] socket  */run/kvd/kvd/kvd.sock  *default' || fail "kvdctl config: $(kvdctl config | head -n 3)"
cp /usr/share/doc/kvd/examples/example.conf /etc/kvd/main.conf
systemctl start kvd@main || fail "kvd@main does not start with the example"
kvdctl status >/dev/null 2>/out/refusal && fail "one of two instances was taken"
grep -q "several instances run here: kvd, main; say which one by --instance NAME" /out/refusal || fail "$(cat /out/refusal)"
kvdctl --instance main status >/dev/null || fail "kvdctl --instance main"
kvdctl instances >/out/instances || fail "kvdctl instances"
grep -q "^main  *serves .*/run/kvd/main/kvd.sock" /out/instances && grep -q "^test  *does not run " /out/instances ||
    fail "$(cat /out/instances)"
grep -q "^test .* $(basename "$arena" | sed 's/kvd-arena-//')\$" /out/instances || fail "whose arena? $(cat /out/instances)"
systemctl stop kvd@main kvd@kvd || fail "stop"
sh /kvd-check/autopkgtest || fail "the package's own test"

journal_speaks

step "the installed units"
systemd-analyze verify --man=no --recursive-errors=no kvd@test.service kvd.target || fail "systemd-analyze verify"
journalctl --no-pager -b _PID=1 | grep -iE 'kvd.*(ignor|unknown|fail(ed)? to (parse|add|set))' &&
    fail "systemd complains"

packages_remove
packages_purge_busy
packages_purge

echo "kvd-check: all of it"
