#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The units and packages. `units`: systemd-analyze finds nothing to complain about, and little to attack. `packages`: the
# build is packaged, in two versions, and lintian agrees. `source`: the source package builds. `boot`: a real systemd, in a container over the machine's own
# root file system, has the packages installed, starts kvd, loses it, reloads, upgrades and purges it (check.sh). `guide`: the
# same over a bare Debian, on which the operator's guide is followed as written (guide.sh).
# Usage: sh tests/systemd/run.sh units|packages|source|boot|guide BUILD
# Exit: 0 fine, 1 not, 77 SKIPPED: this machine cannot do it (with KVD_SYSTEMD_REQUIRED=1 in the environment: 1)
set -eu

threshold=1.5 # of systemd-analyze security, whose scale ends at 10
[ $# -eq 2 ] || { echo "usage: sh run.sh units|packages|source|boot|guide BUILD" >&2; exit 1; }
build=$(CDPATH='' cd -- "$2" && pwd)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=$(sed -n 's/^CMAKE_INSTALL_PREFIX:[A-Z]*=//p' "$build/CMakeCache.txt")

# shellcheck source=tests/systemd/bare.sh
. "$here/bare.sh"

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
    stop=$(sed -n 's/^TimeoutStopSec=//p' "$work/units/kvd@.service")
    demotion=$(sed -n 's/^#stop_time = \([0-9]*\)s$/\1/p' "$here/../../deploy/kvd.conf")
    [ "${stop:-0}" -ge $((${demotion:-1000} + 30)) ] ||
        fail "TimeoutStopSec=$stop leaves too little beside [host] stop_time = ${demotion}s"
    echo "The units are clean; the exposure of kvd@.service is $exposure of 10."
}

# ---- packages ----------------------------------------------------------------------------------------------------

# NAME: the listing of its content has, in this order or not, each of the patterns; and all belongs to root.
has() {
    dpkg-deb -c "$build"/packages/first/"$1"_*.deb >"$work/content"
    ! grep -v '^[^ ]* root/root ' "$work/content" || fail "$1 has files that are not root's"
    name=$1
    shift
    for pattern in "$@"; do
        grep -qE " \./$pattern( -> .*)?\$" "$work/content" || fail "$name has no $pattern"
    done
}

package_version() { # folder, version or ''
    sh "$here/../../deploy/package.sh" --build "$build" --out "$build/packages/$1" ${2:+--version "$2"} >"$work/log" 2>&1 ||
        { cat "$work/log"; fail "deploy/package.sh"; }
    dpkg-deb -f "$build/packages/$1"/kvd_*.deb Version >"$build/packages/$1/version"
}

packages() {
    rm -rf "$build/packages"
    for program in dpkg-deb dh lintian; do
        command -v "$program" >/dev/null || skip "there is no $program (Debian: dpkg, debhelper, lintian)"
    done
    work=$(mktemp -d "${TMPDIR:-/tmp}/kvd-packages.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    package_version first ''
    first=$(cat "$build/packages/first/version")
    lintian --allow-root --fail-on error,warning "$build"/packages/first/*.deb >"$work/lintian" 2>&1 ||
        { cat "$work/lintian"; fail "lintian"; }
    [ ! -s "$work/lintian" ] || { cat "$work/lintian"; fail "lintian has something to say"; }
    has kvd usr/sbin/kvd 'lib/systemd/system/kvd@\.service' lib/systemd/system/kvd.target lib/systemd/system/kvd.slice \
        etc/kvd/kvd.conf usr/lib/sysusers.d/kvd.conf usr/lib/tmpfiles.d/kvd.conf usr/lib/modules-load.d/kvd.conf \
        usr/share/man/man8/kvd.8.gz usr/share/man/man5/kvd.conf.5.gz usr/share/kvd/prometheus/kvd.rules.yml \
        usr/share/kvd/grafana/kvd.json usr/share/doc/kvd/examples/example.conf 'usr/share/doc/kvd/OPERATING\.md'
    has kvd usr/share/bash-completion/completions/kvd usr/share/zsh/vendor-completions/_kvd
    has kvdctl usr/bin/kvdctl usr/share/man/man1/kvdctl.1.gz usr/share/bash-completion/completions/kvdctl \
        usr/share/zsh/vendor-completions/_kvdctl usr/bin/kvd-replay usr/share/man/man1/kvd-replay.1.gz
    has libkvd1 'usr/lib/[^/]*/libkvd\.so\.1'
    has libkvd-dev usr/include/kvd/kvd.h 'usr/lib/[^/]*/libkvd\.so' 'usr/lib/[^/]*/pkgconfig/kvd.pc' \
        'usr/lib/[^/]*/cmake/kvd/kvdConfig.cmake' usr/share/man/man3/libkvd.3.gz 'usr/share/doc/libkvd-dev/PROTOCOL\.md' \
        'usr/share/doc/libkvd-dev/ENGINE-GUIDE\.md'
    has libkvd-ops1 'usr/lib/[^/]*/libkvd-ops\.so\.1'
    has libkvd-ops-dev usr/include/kvd/kvd_ops.h 'usr/lib/[^/]*/libkvd-ops\.so' 'usr/lib/[^/]*/pkgconfig/kvd-ops.pc' \
        'usr/lib/[^/]*/cmake/kvd-ops/kvd-opsConfig.cmake' usr/share/man/man3/libkvd-ops.3.gz
    has python3-kvd usr/lib/python3/dist-packages/kvd/__init__.py usr/lib/python3/dist-packages/kvd/kvd.binpb \
        usr/lib/python3/dist-packages/kvd/py.typed 'usr/share/doc/python3-kvd/README\.md'
    [ "$(dpkg-deb --info "$build"/packages/first/kvd_*.deb conffiles)" = /etc/kvd/kvd.conf ] || fail "conffiles"
    dpkg-deb -f "$build"/packages/first/kvdctl_*.deb Depends | grep -q 'libkvd1 (>= ' || fail "kvdctl does without libkvd1"
    project=$(sed -n 's/^CMAKE_PROJECT_VERSION:[A-Z]*=//p' "$build/CMakeCache.txt")
    case $(sed -n 's/^KVD_WITH_CUDA:INTERNAL=//p' "$build/CMakeCache.txt") in
        ON) mine=$project+cuda other=$project switch=OFF ;;
        *) mine=$project other=$project+cuda switch=ON ;;
    esac
    [ "$first" = "$mine" ] || fail "the packages are version $first, the build is $mine"

    # A build with CUDA is another package than one without: the same files, here, under a cache that says the other.
    mkdir "$work/other"
    ln -s "$build"/* "$work/other"
    rm "$work/other/CMakeCache.txt"
    sed "s/^KVD_WITH_CUDA:INTERNAL=.*/KVD_WITH_CUDA:INTERNAL=$switch/" "$build/CMakeCache.txt" >"$work/other/CMakeCache.txt"
    DEB_BUILD_OPTIONS=noautodbgsym sh "$here/../../deploy/package.sh" --build "$work/other" --out "$work/other-packages" >"$work/log" 2>&1 ||
        { cat "$work/log"; fail "packages of a build with CUDA $switch"; }
    [ "$(dpkg-deb -f "$work"/other-packages/kvd_*.deb Version)" = "$other" ] || fail "a build with CUDA has the version of one without"
    for packages in "$build/packages/first" "$work/other-packages"; do
        case $(dpkg-deb -f "$packages"/kvd_*.deb Version) in *+cuda) provides=kvd-cuda ;; *) provides= ;; esac
        [ "$(dpkg-deb -f "$packages"/kvd_*.deb Provides)" = "$provides" ] || fail "$packages: a package with CUDA says so, and no other"
    done

    DEB_BUILD_OPTIONS=noautodbgsym package_version next "$first+next"
    dpkg --compare-versions "$(cat "$build/packages/next/version")" gt "$first" || fail "the next version is no higher one"
    if sh "$here/../../deploy/package.sh" --build "$work" --out "$work" >"$work/log" 2>&1; then fail "no build was packaged"; fi
    grep -q "is no build of kvd" "$work/log" || { cat "$work/log"; fail "no word of what is wrong"; }
    ls "$build"/packages/*/*.deb
}

# ---- source ------------------------------------------------------------------------------------------------------

# The source package builds, with nothing but what is in it, and its kvd says what it is.
source_package() {
    for program in dpkg-source dpkg-buildpackage dh scdoc; do
        command -v "$program" >/dev/null || skip "there is no $program (Debian: dpkg-dev, debhelper, scdoc)"
    done
    work=$(mktemp -d "${TMPDIR:-/tmp}/kvd-source.XXXXXX")
    trap 'rm -rf -- "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    sh "$here/../../deploy/package.sh" --source --version 0.1.0+test --out "$work" >"$work/log" 2>&1 ||
        { cat "$work/log"; fail "deploy/package.sh --source"; }
    (cd "$work" && dpkg-source --no-check -x kvd_0.1.0+test.dsc kvd && cd kvd && [ ! -e build-release ] && [ ! -e .git ] &&
        DEB_BUILD_OPTIONS="parallel=2 nocheck noautodbgsym" dpkg-buildpackage -us -uc -b) >"$work/log" 2>&1 ||
        { tail -n 60 "$work/log"; fail "dpkg-buildpackage"; }
    for package in kvd kvdctl libkvd1 libkvd-dev libkvd-ops1 libkvd-ops-dev python3-kvd; do
        [ -e "$work"/${package}_0.1.0+test_*.deb ] || fail "no package $package"
    done
    dpkg-deb -x "$work"/kvd_0.1.0+test_*.deb "$work/root"
    "$work/root/usr/sbin/kvd" --version >"$work/version"
    grep -qE '^kvd [0-9.]+ without CUDA \(package 0\.1\.0\+test, commit [0-9a-z-]+\)$' "$work/version" || fail "$(cat "$work/version")"
    ! dpkg-deb -f "$work"/kvd_0.1.0+test_*.deb Provides | grep . || fail "a package without CUDA provides something"
    cat "$work/version"
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

# $1: the script that is run. In the root file system that is booted.
place_check() {
    mkdir "$root/kvd-check"
    cp "$here/$1" "$root/kvd-check"
    cp -R "$build/packages" "$root/kvd-check/packages"
    rm -f "$root"/kvd-check/packages/*/*-dbgsym_*
    cat >"$root/etc/systemd/system/kvd-check.service" <<UNIT
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=400
ExecStart=/bin/sh /kvd-check/$1
StandardOutput=file:/out/log
StandardError=file:/out/log
UNIT
}

# A Debian of this machine's packages, as few as the packages to be tested can do with.
furnish_bare() {
    mount -t tmpfs -o mode=0755,size=1g kvd-test "$work" || return 1
    root=$work/root
    mkdir "$root" "$work/out"
    mount -t tmpfs -o mode=0755 kvd-test /run || return 1 # what nspawn leaves there
    for package in kvd kvdctl libkvd1; do
        dpkg-deb -f "$build"/packages/first/${package}_*.deb Depends
    done | tr '\n' ',' | sed 's/libkvd1 ([^)]*)//' >"$work/needs"
    bare_packages "systemd-sysv, $(cat "$work/needs")" >"$work/names" || return 1
    bare_files "$root" "$work/names" || return 1
    place_check guide.sh
    cp "$here/../guides/blocks.sh" "$here/../../deploy/OPERATING.md" "$build/tests/guides/guide_engine" "$root/kvd-check"
}

furnish() {
    root=$work/root
    # Nothing of an installation on the machine itself, and nothing of an image's that has dpkg leave out things.
    rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/kvd* "$root/etc/kvd" "$root"/etc/dpkg/dpkg.cfg.d/* \
        "$root/usr/sbin/policy-rc.d" "$root/var/lib/man-db/auto-update"
    for place in bin sbin lib include share/doc; do rm -rf "$root/usr/local/$place"/kvd* "$root/usr/local/$place"/*/kvd*; done
    place_check check.sh
    cp "$here/packages.sh" "$here/keeping.sh" "$here/journal.sh" "$build/tests/systemd/kvd_boot_engine" "$root/kvd-check"
    cp "$here/../../deploy/debian/tests/instance" "$root/kvd-check/autopkgtest"
}

boot_inside() { # boot or guide
    if [ "$1" = guide ]; then
        furnish_bare || skip "no bare Debian can be put together out of this machine's packages"
    else
        overlay >/dev/null 2>&1 || skip "no overlay of the root file system can be mounted here"
        furnish
    fi
    code=0
    # /tmp and /var/tmp of the machine stay out of it: a booting systemd cleans them.
    timeout -k 5 410 systemd-nspawn --quiet --register=no --keep-unit --private-network --machine="kvd-test-$$" \
        --directory="$work/root" --bind="$work/out:/out" --tmpfs=/tmp:mode=1777 --tmpfs=/var/tmp:mode=1777 \
        --link-journal=no --resolv-conf=off --timezone=off --console=pipe --system-call-filter=@memlock \
        --boot systemd.unit=kvd-check.service systemd.log_target=journal </dev/null >"$work/out/console" 2>&1 || code=$?
    if [ ! -e "$work/out/log" ]; then
        tail -n 20 "$work/out/console"
        skip "systemd does not boot in systemd-nspawn here (exit code $code)"
    fi
    cat "$work/out/log"
    [ "$code" -eq 0 ] || { tail -n 20 "$work/out/console"; fail "exit code $code"; }
    grep -q '^kvd-check: all of it$' "$work/out/log" || fail "the check did not reach its end"
}

boot() { # boot or guide
    [ "$(id -u)" -eq 0 ] || skip "booting a container takes root"
    for program in systemd-nspawn unshare timeout setpriv dpkg; do
        command -v "$program" >/dev/null || skip "there is no $program (Debian: systemd-container, util-linux)"
    done
    [ -e "$build/packages/next/version" ] || skip "there are no packages: the part before this makes them"
    work=$(mktemp -d /tmp/kvd-boot.XXXXXX)
    groups_were=$(groups)
    trap 'clean' EXIT
    trap 'exit 1' HUP INT TERM
    code=0
    unshare --mount --propagation private true 2>/dev/null || skip "no mount namespace can be made here"
    KVD_BOOT_WORK=$work unshare --mount --propagation private sh "$0" "inside-$1" "$build" || code=$?
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
    packages) packages ;;
    source) source_package ;;
    boot | guide) boot "$1" ;;
    inside-*) work=$KVD_BOOT_WORK; boot_inside "${1#inside-}" ;;
    *) echo "run.sh: there are units, packages, source, boot and guide, no $1" >&2; exit 1 ;;
esac
