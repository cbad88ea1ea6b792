# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Read by check.sh: what is cached outlives what it should, under systemd's store of descriptors and with an arena in
# /dev/shm. Each prefix is asked for again and compared byte by byte (engine.c).
# shellcheck disable=SC2015,SC2154 # fail exits; $unit and so on are check.sh's

# Engines are another user's processes: kvd does not see them in its /proc.
alien() { exec setpriv --reuid=nobody --regid=nogroup --groups=kvd-clients /kvd-check/kvd_boot_engine "$@"; }
engine() { (alien "$@") 2>/out/engine || fail "engine $*: $(cat /out/engine)"; }
engine_stays() { # $stays; what it says is in /out/stays
    : >/out/stays
    alien "$1" stay 11 >>/out/stays 2>&1 &
    stays=$!
    await "an engine runs" ran 1
}
ran() { [ "$(grep -c "^runs under" /out/stays)" = "$1" ]; } # $1 times
is_on() { engine "$socket" check 1 3 "$1"; } # three prefixes, cached at the first start
arenas() { find /dev/shm -name 'kvd-arena-*'; }
stored() { property NFileDescriptorStore; }
status_text() { property StatusText | grep -q -- "$1"; }
# One line of the last start tells what was found in the arena.
found() {
    journalctl --sync
    invocation=$(property InvocationID)
    journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID="$invocation" | grep '^.*arena of [0-9]* bytes, ' >/out/found
    [ "$(wc -l </out/found)" = 1 ] && grep -q -- "$1" /out/found || fail "found is \"$(cat /out/found)\", not \"$1\""
}

keeping_begins() {
    step "pools are descriptors that systemd keeps, the arena is shared memory; an engine caches three prefixes"
    [ "$(shm)" = 1 ] && [ -n "$(arenas)" ] || fail "shared memory: $(find /dev/shm -name 'kvd-*')"
    [ "$(stat -c %a:%U:%G "$(arenas)")" = 600:kvd:kvd-clients ] || fail "arena: $(stat -c %a:%U:%G "$(arenas)")"
    arena=$(arenas)
    [ "$(stat -c %a:%U:%G "$socket.fd")" = 660:kvd:kvd-clients ] || fail "socket: $(stat -c %a:%U:%G "$socket.fd")"
    [ "$(stored)" = 1 ] || fail "systemd keeps $(stored) descriptors"
    found "new: 0 continuations found"
    engine "$socket" fill 1 3
    is_on device
    systemctl status --no-pager --lines=0 "$unit" | grep 'Status: "serving 8192 tokens on 1 devices"' ||
        fail "no word of it in systemctl status"
}

# Engine that lives on over a restart: nobody gets a page before it has said that it runs nothing on them.
keeping_over_an_engine() {
    step "restarted under an engine that lives: nobody gets a page before it has attached anew (ROW-5, SRV-8)"
    engine_stays "$socket"
    systemctl restart "$unit" || fail "restart"
    found "of an earlier kvd: 5 continuations found (0 of them shortened)" # the running one as far as it had committed
    said "process $stays used the device memory under the kvd before this one" || fail "no word of who is waited for"
    engine "$socket" refused >/out/refused
    grep "until each has attached anew, yielded or exited no page is given out" /out/refused ||
        fail "refused in other words: $(cat /out/refused)"
    kill -USR1 "$stays"
    await "it attached anew, with its bytes" grep -q "^attached anew under $(epoch)" /out/stays
    is_on device
    await "it runs again" ran 2
    systemctl kill --kill-whom=main -s KILL "$unit"
    await "restart after SIGKILL" restarted 1
    engine "$socket" refused >/dev/null
    kill -KILL "$stays"
    wait "$stays" 2>/dev/null
    await "its exit was seen" said "process $stays has exited; 0 more are waited for"
    is_on device
}

keeping_stop() {
    step "stopped, then started: systemd has let go of the pools, and the arena has what the stop copied"
    engine "$socket" fill 21 1 # the others were copied by the restarts before
    systemctl stop "$unit" || fail "stop"
    is Result success
    status_text "stopping: 0 sequences to end, 1 continuations demoted, 0 left, 0 do not fit" ||
        fail "the last status is \"$(property StatusText)\""
    [ "$(stored)" = 0 ] || fail "systemd keeps $(stored) descriptors of a stopped unit"
    [ "$(find /dev/shm -name 'kvd-*')" = "$arena" ] || fail "shared memory: $(find /dev/shm -name 'kvd-*')"
    systemctl start "$unit" || fail "start"
    found "of an earlier kvd: [1-9][0-9]* continuations found (0 of them shortened) with .* lost: 0 .* 0 damaged"
    is_on arena
    engine "$socket" check 21 1 arena
    kvdctl -s "$socket" audit >/dev/null || fail "audit"
}

# An arena so small that it may be locked where the container's limit cannot be raised.
keeping_lock() {
    step "an arena that is locked in memory: as LimitMEMLOCK allows, else refused in words"
    most=$(awk '/^Max locked memory/ { print $5 }' /proc/1/limits)
    if [ "$most" != unlimited ] && [ "$most" -lt 6291456 ]; then
        echo "SKIPPED: systemd itself may lock no more than $most bytes here"
        return
    fi
    drop=/run/systemd/system/kvd@locked.service.d
    mkdir -p $drop
    printf '[Service]\nRestart=no\n' >$drop/restart.conf
    sed 's,/run/kvd/test/,/run/kvd/locked/,; s,^arena = .*,arena = 2MiB\nlock = yes,' "$config" >/etc/kvd/locked.conf
    systemctl daemon-reload
    unit=kvd@locked.service
    systemctl start $unit || fail "start with a locked arena"
    engine /run/kvd/locked/kvd.sock fill 5 1
    awk '/^VmLck:/ { kb = $2 } END { exit !(kb >= 2048) }' "/proc/$(property MainPID)/status" ||
        fail "locked is $(grep VmLck "/proc/$(property MainPID)/status")"
    systemctl restart $unit || fail "restart with a locked arena"
    engine /run/kvd/locked/kvd.sock check 5 1 device
    printf '[Service]\nLimitMEMLOCK=1M\n' >$drop/limit.conf
    systemctl daemon-reload
    systemctl restart $unit 2>/dev/null && fail "an arena that must not be locked was locked"
    is ExecMainStatus 2
    said "RLIMIT_MEMLOCK allows 1048576: set LimitMEMLOCK=infinity in the unit" || fail "no word of the limit"
    rm $drop/limit.conf
    systemctl daemon-reload
    systemctl start $unit || fail "start within the limit"
    # The refusal touched nothing. The unit had failed, and systemd let go of its pools.
    engine /run/kvd/locked/kvd.sock check 5 1 arena
    systemctl stop $unit || fail "stop"
    rm -r $drop /etc/kvd/locked.conf
    find /dev/shm -name 'kvd-arena-*' ! -path "$arena" -delete
    systemctl daemon-reload
    unit=kvd@test.service
}

# $1: socket of an instance with export = ipc, whose unit is in $unit.
keeping_demotes() {
    step "pools that go with the process: the stop demotes, and says how far it is"
    engine "$1" fill 1 3
    engine_stays "$1"
    systemctl stop --no-block "$unit" || fail "stop"
    await "it waits for the engine's sequence" status_text "stopping: 1 sequences to end, 0 continuations demoted"
    sleep 1.5 # longer than TimeoutStopSec: the time itself is what is tested
    status_text "stopping: 1 sequences to end" || fail "systemd does not wait for a stop that goes on"
    kill -KILL "$stays"
    wait "$stays" 2>/dev/null
    await "it has stopped" said "$unit: Deactivated successfully"
    said "stop: 5 continuations demoted, 0 left" || fail "no word of what was demoted"
    systemctl start "$unit" || fail "start"
    found "of an earlier kvd: 5 continuations found (0 of them shortened) .* lost: 0 continuations"
    engine "$1" check 1 3 arena
    engine "$1" fill 4 1
    systemctl kill --kill-whom=main -s KILL "$unit"
    await "restart after SIGKILL" restarted 1
    found "5 continuations found (0 of them shortened) .* lost: 1 continuations, 9 pages of main"
    engine "$1" check 1 3 arena # the device's part is lost, the arena's is not
    engine "$1" check 4 1 none
}
