#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages kvd, kvdctl, libkvd1, libkvd-dev, libkvd-ops1, libkvd-ops-dev and python3-kvd (and
# kvd-dbgsym, ... with debug symbols).
# Packages of a build with CUDA have +cuda behind their version, and kvd provides kvd-cuda.
# Usage: sh deploy/package.sh [--out DIR] [--build DIR] [--version VERSION] [--source]
#   --out      where the packages go; out/ unless given
#   --build    an existing build that is to be packaged as it is; without it what is missing is installed (setup.sh) and
#              the release preset is built first, with CUDA where there is a CUDA compiler
#   --version  of the packages; that of deploy/debian/changelog unless given
#   --source   the source package alone (kvd_VERSION.dsc, kvd_VERSION.tar.xz); dpkg-buildpackage makes the others of it
# Exit: 0 built, 1 not, 2 a program or package is missing here
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
out=$top/out build='' version='' source=no
fail() { echo "package.sh: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    if [ "$1" = --source ]; then source=yes; shift; continue; fi
    [ $# -gt 1 ] || fail "$1 needs a value, or is unknown; there are --out, --build, --version and --source"
    case $1 in
        --out) out=$2 ;;
        --build) build=$2 ;;
        --version) version=$2 ;;
        *) fail "unknown option $1; there are --out, --build, --version and --source" ;;
    esac
    shift 2
done

[ -n "$build" ] || [ $source = yes ] || sh "$top/deploy/setup.sh" --packages || exit 2
for program in dh dpkg-architecture dpkg-parsechangelog; do
    command -v "$program" >/dev/null && continue
    echo "package.sh: there is no $program; sh deploy/setup.sh --packages installs it (Debian: debhelper, dpkg-dev)" >&2
    exit 2
done
plain=$(dpkg-parsechangelog -l "$top/deploy/debian/changelog" -S Version)

work=$(mktemp -d "${TMPDIR:-/tmp}/kvd-package.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
trap 'exit 1' HUP INT TERM
umask 022
mkdir -p "$work/kvd" "$out"
out=$(CDPATH='' cd -- "$out" && pwd)

# debian/ of version $1 in $work/kvd.
debian() {
    cp -R "$top/deploy/debian" "$work/kvd/debian"
    [ "$1" != "$plain" ] || return 0
    # A second later than the entry below it, so that equal sources make equal packages.
    at=$(dpkg-parsechangelog -l "$top/deploy/debian/changelog" -S Timestamp)
    { printf 'kvd (%s) unstable; urgency=medium\n\n  * Built as version %s.\n\n' "$1" "$1"
      printf ' -- %s  %s\n\n' "$(dpkg-parsechangelog -l "$top/deploy/debian/changelog" -S Maintainer)" \
          "$(LC_ALL=C date -u -R -d "@$((at + 1))")"
      cat "$top/deploy/debian/changelog"; } >"$work/kvd/debian/changelog"
}

if [ $source = yes ]; then
    # The tree without what was built in it, and with its debian/ where dpkg wants it.
    tar -C "$top" --exclude='./build*' --exclude=./out --exclude=./.git --exclude=./shared -cf - . | tar -C "$work/kvd" -xf -
    debian "${version:-$plain}"
    git -C "$top" describe --always --dirty --abbrev=12 --exclude='*' >"$work/kvd/debian/commit" 2>/dev/null || rm "$work/kvd/debian/commit"
    (cd "$work" && dpkg-source --build kvd) >"$work/log" 2>&1 || { cat "$work/log"; fail "dpkg-source failed"; }
    for file in "$work"/kvd_*.dsc "$work"/kvd_*.tar.*; do
        cp "$file" "$out"
        echo "$out/${file##*/}"
    done
    exit 0
fi

setting() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
version_of_build() {
    suffix=
    [ "$(setting KVD_WITH_CUDA)" != ON ] || suffix=+cuda
    version=${version:-$plain}$suffix
}
if [ -z "$build" ]; then
    build=$top/build-release
    (cd "$top" && cmake --preset release) || fail "the release build cannot be configured"
    version_of_build
    (cd "$top" && cmake --preset release -D KVD_PACKAGE_VERSION="$version" &&
        cmake --build --preset release --target kvd kvdctl kvd-replay kvd_client kvd_ops_shared kvd_python kvd_man) || fail "the release build failed"
else
    [ -e "$build/CMakeCache.txt" ] || fail "$build is no build of kvd"
    version_of_build
fi
build=$(CDPATH='' cd -- "$build" && pwd)
libdir=$(setting CMAKE_INSTALL_LIBDIR)
wanted=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
[ "$libdir" = "$wanted" ] ||
    fail "$build puts libraries into $libdir, packages need $wanted: cmake -D CMAKE_INSTALL_LIBDIR=$wanted $build"

debian "$version"
cd "$work/kvd"
# As dpkg-buildpackage would: no root is needed, files are root's in the packages all the same.
DEB_RULES_REQUIRES_ROOT=no KVD_BUILD=$build debian/rules binary >"$work/log" 2>&1 || { cat "$work/log"; fail "debhelper failed"; }
cp "$work"/*.deb "$out"
for package in "$work"/*.deb; do echo "$out/${package##*/}"; done
