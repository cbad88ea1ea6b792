#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The units. `units`: systemd-analyze finds nothing to complain about, and little to attack. `boot`: a real systemd, in
# a container over the machine's own root file system, starts kvd, loses it, and reloads it (check.sh).
# Usage: sh tests/systemd/run.sh units|boot BUILD
# Exit: 0 fine, 1 not, 77 SKIPPED: this machine cannot do it (with KVD_SYSTEMD_REQUIRED=1 in the environment: 1)
set -eu

threshold=1.5 # of systemd-analyze security, whose scale ends at 10
[ $# -eq 2 ] || { echo "usage: sh run.sh units|boot BUILD" >&2; exit 1; }
build=$(CDPATH='' cd -- "$2" && pwd)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=$(sed -n 's/^CMAKE_INSTALL_PREFIX:[A-Z]*=//p' "$build/CMakeCache.txt")

fail() { echo "FAILED: $*" >&2; exit 1; }
skip() {
    [ "${KVD_SYSTEMD_REQUIRED:-0}" = 0 ] || fail "$*"
    echo "SKIPPED: $*"
    exit 77
}

install_into() {
    for component in kvd libkvd; do
        DESTDIR=$1 cmake --install "$build" --component "$component" >"$work/install.log" ||
            { cat "$work/install.log"; fail "installation"; }
    done
}

# ---- units -------------------------------------------------------------------------------------------------------

units() {
    command -v systemd-analyze >/dev/null || skip "there is no systemd-analyze (Debian: systemd)"
    work=$(mktemp -d "${TMPDIR:-/tmp}/kvd-units.XXXXXX")
    stamp=/run/systemd/systemd-units-load # systemd-analyze makes it
    [ ! -e $stamp ] || stamp=
    trap 'rm -rf -- "$work" $stamp' EXIT
    trap 'exit 1' HUP INT TERM
    install_into "$work/root"
    top=$work/root$prefix
    mkdir "$work/units"
    cp "$top"/lib/systemd/system/* "$top"/share/doc/kvd/examples/kvd-engine@.service "$work/units"
    sed -i "s|$prefix/\(s*bin/kvd\)|$top/\1|g" "$work"/units/*.service # programs must exist
    for file in sysusers.d/kvd.conf tmpfiles.d/kvd.conf modules-load.d/kvd.conf; do
        [ -s "$top/lib/$file" ] || fail "$file is not installed"
    done

    SYSTEMD_UNIT_PATH=$work/units: systemd-analyze verify --man=no --recursive-errors=no kvd@test.service kvd.target \
        kvd.slice kvd-engine@test.service >"$work/verify" 2>&1 || { cat "$work/verify"; fail "systemd-analyze verify"; }
    [ ! -s "$work/verify" ] || { cat "$work/verify"; fail "systemd-analyze verify has something to say"; }

    exposure=$(SYSTEMD_UNIT_PATH=$work/units: systemd-analyze security --offline=true --no-pager kvd@test.service |
        sed -n 's/.*Overall exposure level for kvd@test.service: \([0-9.]*\).*/\1/p')
    awk -v e="$exposure" -v t=$threshold 'BEGIN { exit !(e != "" && e + 0 <= t) }' ||
        fail "the exposure of kvd@.service is \"$exposure\", more than $threshold"
    echo "The units are clean; the exposure of kvd@.service is $exposure of 10."
}

# ---- boot --------------------------------------------------------------------------------------------------------

# In a mount namespace of its own, so that nothing has to be unmounted. $work is an empty folder.
overlay() {
    mount -t tmpfs -o mode=0755,size=1g kvd-test "$work" || return 1
    mkdir "$work/lower" "$work/upper" "$work/scratch" "$work/root" "$work/out"
    mount -t tmpfs -o mode=0755 kvd-test /run || return 1 # what nspawn leaves there
    mount --bind / "$work/lower" && mount -o remount,bind,ro "$work/lower" || return 1
    mount -t overlay -o "lowerdir=$work/lower,upperdir=$work/upper,workdir=$work/scratch" overlay "$work/root"
}

furnish() {
    root=$work/root
    rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/kvd* "$root/etc/kvd"
    install_into "$root"
    ldconfig -r "$root"
    systemd-sysusers --root="$root" >"$work/out/sysusers" 2>&1 || { cat "$work/out/sysusers"; fail "systemd-sysusers"; }
    cp "$here/check.sh" "$root/kvd-check.sh"
    mkdir -p "$root/etc/kvd" "$root/etc/systemd/system/kvd@test.service.d"
    sed 's,/run/kvd/example/,/run/kvd/test/,; s,^store = .*,store = test,' \
        "$root$prefix/share/doc/kvd/examples/example.conf" >"$root/etc/kvd/test.conf"
    printf '[Service]\nWatchdogSec=2s\n' >"$root/etc/systemd/system/kvd@test.service.d/test.conf"
    # A sibling, which is monitored.
    mkdir "$root/etc/systemd/system/kvd@sibling.service.d"
    cp "$root$prefix/share/doc/kvd/examples/metrics.conf" "$root/etc/systemd/system/kvd@sibling.service.d"
    sed 's,/run/kvd/test/,/run/kvd/sibling/,' "$root/etc/kvd/test.conf" >"$root/etc/kvd/sibling.conf"
    printf '[http]\nlisten = 127.0.0.1:9471\n' >>"$root/etc/kvd/sibling.conf"
    cat >"$root/etc/systemd/system/kvd-check.service" <<UNIT
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=50
ExecStart=/bin/sh /kvd-check.sh
StandardOutput=file:/out/log
StandardError=file:/out/log
UNIT
}

boot_inside() {
    overlay >/dev/null 2>&1 || skip "no overlay of the root file system can be mounted here"
    furnish
    code=0
    # /tmp and /var/tmp of the machine stay out of it: a booting systemd cleans them.
    timeout -k 5 55 systemd-nspawn --quiet --register=no --keep-unit --private-network --machine="kvd-test-$$" \
        --directory="$work/root" --bind="$work/out:/out" --tmpfs=/tmp:mode=1777 --tmpfs=/var/tmp:mode=1777 \
        --link-journal=no --resolv-conf=off --timezone=off --console=pipe \
        --boot systemd.unit=kvd-check.service systemd.log_target=journal </dev/null >"$work/out/console" 2>&1 || code=$?
    if [ ! -e "$work/out/log" ]; then
        tail -n 20 "$work/out/console"
        skip "systemd does not boot in systemd-nspawn here (exit code $code)"
    fi
    cat "$work/out/log"
    [ "$code" -eq 0 ] || { tail -n 20 "$work/out/console"; fail "exit code $code"; }
    grep -q '^kvd-check: all of it$' "$work/out/log" || fail "the check did not reach its end"
}

boot() {
    [ "$(id -u)" -eq 0 ] || skip "booting a container takes root"
    for program in systemd-nspawn unshare timeout systemd-sysusers setpriv; do
        command -v "$program" >/dev/null || skip "there is no $program (Debian: systemd-container, util-linux)"
    done
    case $prefix in
        /usr | /usr/local) ;;
        *) skip "installed below $prefix: systemd looks for units in /usr and /usr/local" ;;
    esac
    work=$(mktemp -d /tmp/kvd-boot.XXXXXX)
    groups_were=$(groups)
    trap 'clean' EXIT
    trap 'exit 1' HUP INT TERM
    code=0
    unshare --mount --propagation private true 2>/dev/null || skip "no mount namespace can be made here"
    KVD_BOOT_WORK=$work unshare --mount --propagation private sh "$0" inside "$build" || code=$?
    exit "$code"
}

# Control groups that nspawn makes below the one that this script runs in, and leaves.
groups() {
    sed -n 's/^[0-9]*:\(name=systemd\)*:\(.*\)/\2/p' /proc/self/cgroup | sort -u | while read -r path; do
        for top in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
            for group in "$top${path%/}/payload" "$top${path%/}/supervisor"; do
                [ ! -d "$group" ] || echo "$group"
            done
        done
    done
}

clean() {
    rmdir "$work"
    groups | while read -r group; do
        case "
$groups_were
" in
            *"
$group
"*) ;;
            *) find "$group" -depth -type d -exec rmdir {} + || true ;;
        esac
    done
}

case $1 in
    units) units ;;
    boot) boot ;;
    inside) work=$KVD_BOOT_WORK; boot_inside ;;
    *) echo "run.sh: there are units and boot, no $1" >&2; exit 1 ;;
esac
