# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Read by check.sh: the packages come, are upgraded under running instances, and go, and nothing of them stays.
# shellcheck disable=SC2015,SC2154 # fail exits; $unit and so on are check.sh's

packages=/kvd-check/packages

# Where packages put things. What dpkg and the programs that it calls keep for themselves is left out; so is what others
# may change on the machine whose file system shows through.
everything() {
    find /etc /opt /srv /usr /var/lib -xdev -path /var/lib/dpkg -prune -o -print | sort
    find /run/kvd /dev/shm 2>/dev/null | sort
}
accounts() { sort /etc/passwd /etc/group; }
dpkg_run() { # options...
    dpkg "$@" >/out/dpkg 2>&1 </dev/null || { cat /out/dpkg; fail "dpkg $*"; }
}
version() { dpkg-query -W -f '${db:Status-Abbrev}${Version}' "$1" 2>/dev/null; }
is_version() { [ "$(version "$1")" = "$2" ] || fail "$1 is \"$(version "$1")\", not \"$2\""; }

packages_install() {
    step "the packages are installed: users, folders, a target, and nothing that runs"
    everything >/out/before
    accounts >/out/accounts.before
    dpkg_run -i "$packages"/first/*.deb
    for package in kvd kvdctl libkvd1 libkvd-dev libkvd-ops1 libkvd-ops-dev python3-kvd; do is_version $package "ii $(cat "$packages/first/version")"; done
    [ "$(id -Gn kvd)" = "kvd kvd-clients" ] || fail "groups of kvd: $(id -Gn kvd)"
    [ "$(id -u kvd)" -lt 1000 ] || fail "kvd is a login user, whose shared memory logind deletes"
    [ "$(stat -c %a:%U:%G /run/kvd /etc/kvd | tr '\n' ' ')" = "755:root:root 755:root:root " ] || fail "/run/kvd, /etc/kvd"
    systemctl is-enabled --quiet kvd.target || fail "kvd.target is not enabled"
    [ -z "$(systemctl list-units --plain --no-legend 'kvd@*')" ] || fail "an instance runs that nobody configured"
    kvd --check-config --config /etc/kvd/kvd.conf || fail "the configuration of the package is wrong"
    kvdctl --version || fail "kvdctl does not find its library"
    kvd-replay --requests 50 --pool 20 || fail "kvd-replay does not find kvd"
    echo "# the administrator's line" >>/etc/kvd/kvd.conf
}

follows() { grep -q -- "$1" /out/follower; }

# Three instances run: test, which a client watches; other; and broken, whose configuration the new kvd does not take.
packages_upgrade() {
    step "upgraded: running instances are restarted, in a new epoch, with every page in its place"
    for name in other broken; do
        cp "$config" /etc/kvd/$name.conf
        systemctl start kvd@$name || fail "kvd@$name does not start"
    done
    echo nonsense >>/etc/kvd/broken.conf
    old=$(epoch)
    kvdctl -s "$socket" --json events --follow >/out/follower 2>&1 &
    follower=$!
    await "a client that follows" follows "$old"
    pid=$(property MainPID)
    touch /run/kvd/test/witness # of RuntimeDirectoryPreserve=restart: gone after stop and start
    is FileDescriptorStoreMax 128
    # In two steps, as after a crash in between: files are replaced, instances go on; then they are restarted.
    dpkg_run --unpack "$packages"/next/*.deb
    is MainPID "$pid"
    [ "$(epoch)" = "$old" ] || fail "epoch $(epoch) before the packages were configured"
    broken=$(systemctl show --value -p MainPID kvd@broken)
    dpkg_run --configure -a
    for package in kvd kvdctl libkvd1 libkvd-dev libkvd-ops1 libkvd-ops-dev python3-kvd; do is_version $package "ii $(cat "$packages/next/version")"; done
    is ActiveState active # without waiting: dpkg has waited
    [ "$(property MainPID)" != "$pid" ] || fail "the old process still runs"
    new=$(epoch)
    [ -n "$new" ] && [ "$new" != "$old" ] || fail "epoch $new after $old"
    await "the client sees the new epoch (SRV-8)" follows "$new"
    kill -0 "$follower" && kill "$follower" || fail "the client is gone: $(cat /out/follower)"
    [ -e /run/kvd/test/witness ] || fail "stopped and started, not restarted: systemd has let go of what it kept"
    is_on device
    systemctl is-active --quiet kvd@other || fail "kvd@other was not restarted"
    # The new kvd does not take its configuration: it runs on as it was, and the upgrade says why.
    [ "$(systemctl show --value -p MainPID kvd@broken)" = "$broken" ] || fail "kvd@broken was restarted"
    kvdctl -s /run/kvd/broken/kvd.sock status >/dev/null || fail "kvd@broken does not serve"
    grep -q "kvd@broken.service was not restarted: this kvd does not accept its configuration" /out/dpkg &&
        grep -q "/etc/kvd/broken.conf:[0-9]*: is neither" /out/dpkg && grep -q "systemctl restart kvd@broken.service" /out/dpkg ||
        fail "no word of what is wrong: $(cat /out/dpkg)"
    systemctl stop kvd@broken || fail "stop of kvd@broken"
    tail -n 1 /etc/kvd/kvd.conf | grep -q "the administrator's line" || fail "the administrator's line is gone"
    systemctl stop kvd@other || fail "stop of kvd@other"
    find /dev/shm -name 'kvd-arena-*' ! -path "$arena" -delete
    systemctl reset-failed
    rm /etc/kvd/other.conf /etc/kvd/broken.conf
}

packages_rollback() {
    step "gone back to the version of before, then forward again: restarted, in a new epoch, with every page in its place"
    for from in first next; do
        old=$(epoch)
        dpkg_run -i "$packages/$from"/*.deb
        for package in kvd kvdctl libkvd1 libkvd-dev libkvd-ops1 libkvd-ops-dev python3-kvd; do is_version $package "ii $(cat "$packages/$from/version")"; done
        is ActiveState active
        new=$(epoch)
        [ -n "$new" ] && [ "$new" != "$old" ] || fail "epoch $new after $old"
        is_on device
    done
}

packages_remove() {
    step "removed: instances stop in order; configuration, user and what is cached stay"
    systemctl start "$unit" kvd@sibling || fail "start before the removal"
    pid=$(property MainPID)
    dpkg_run -r kvd
    is_version kvd "rc $(cat "$packages/next/version")"
    [ ! -e "/proc/$pid" ] || fail "process $pid still runs"
    journalctl --sync
    journalctl --no-pager -b _PID="$pid" | grep -q stopping || fail "no word of stopping"
    [ -z "$(systemctl list-units --plain --no-legend --state=active 'kvd@*')" ] || fail "an instance still runs"
    [ -e "$config" ] || fail "the configuration is gone"
    id kvd >/dev/null || fail "the user is gone"
    [ ! -e /run/kvd ] || fail "/run/kvd is still there"
    [ -e "$arena" ] && [ "$(shm)" = "$(arenas | wc -l)" ] || fail "shared memory: $(find /dev/shm -name 'kvd-*')"

    step "installed again: what is cached is there"
    dpkg_run -i "$packages"/next/kvd_*.deb
    systemctl start "$unit" || fail "start after the removal"
    is_on arena
    dpkg_run -r kvd
    [ -e "$arena" ] || fail "the arena went with the package"
}

packages_purge_busy() {
    step "purged while a process of user kvd and a member of kvd-clients live: their part stays, and dpkg says so"
    systemd-run --quiet --unit=by-hand -p User=kvd sleep infinity || fail "a process of user kvd"
    dpkg_run -P kvd
    grep "processes of user kvd still run" /out/dpkg || fail "no word of the process"
    [ -e "$arena" ] || fail "the arena of a running process was deleted"
    id kvd >/dev/null || fail "the user of a running process was deleted"
    [ ! -e /etc/kvd ] || fail "/etc/kvd is still there"
    systemctl stop by-hand || fail "stop of the process"
    dpkg_run -i "$packages"/next/kvd_*.deb
    usermod -a -G kvd-clients games || fail "usermod"
    dpkg_run -P kvd
    grep "group kvd-clients stays, its members are: games" /out/dpkg || fail "no word of the member"
    getent group kvd-clients || fail "the group of a member was deleted"
    ! id kvd >/dev/null 2>&1 || fail "the user stays without a process"
    [ -z "$(arenas)" ] || fail "the arena of no process stays after a purge"
    gpasswd -d games kvd-clients >/dev/null || fail "gpasswd"
}

packages_purge() {
    step "purged: nothing is left, and nothing that is others' is gone"
    dpkg_run -i "$packages"/next/kvd_*.deb
    configure
    systemctl enable --now --quiet "$unit" || fail "start before the purge"
    engine "$socket" fill 1 3
    [ -e "$arena" ] || fail "no arena before the purge"
    touch /dev/shm/kvd-of-somebody-else && chown games:games /dev/shm/kvd-of-somebody-else || fail "shared memory"
    dpkg_run -P kvd kvdctl libkvd-ops-dev libkvd-ops1 libkvd-dev libkvd1 python3-kvd
    [ -e /dev/shm/kvd-of-somebody-else ] || fail "somebody else's shared memory was deleted"
    rm /dev/shm/kvd-of-somebody-else
    rm -r /etc/systemd/system/kvd@test.service.d /etc/systemd/system/kvd@sibling.service.d # ours, as administrators
    everything >/out/after
    accounts >/out/accounts.after
    [ "$(wc -l </out/before)" -gt 1000 ] || fail "the file system was not looked at"
    diff /out/before /out/after || fail "files differ from those before the installation"
    diff /out/accounts.before /out/accounts.after || fail "users or groups differ from those before the installation"
    systemctl daemon-reload
    [ "$(systemctl list-unit-files --plain --no-legend 'kvd*' | cut -d' ' -f1)" = kvd-check.service ] ||
        fail "units are left: $(systemctl list-unit-files --plain --no-legend 'kvd*')"
    [ -z "$(systemctl list-units --plain --no-legend --state=active 'kvd@*')" ] || fail "an instance still runs"
}
