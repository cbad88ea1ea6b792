#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages kvd, kvdctl, libkvd1, libkvd-dev and python3-kvd (and kvd-dbgsym, ... with debug symbols).
# Usage: sh deploy/package.sh [--out DIR] [--build DIR] [--version VERSION]
#   --out      where the packages go; out/ unless given
#   --build    an existing build that is to be packaged as it is; without it what is missing is installed (setup.sh) and
#              the release preset is built first, with CUDA where there is a CUDA compiler
#   --version  of the packages; that of deploy/debian/changelog unless given
# Exit: 0 built, 1 not, 2 a program or package is missing here
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
out=$top/out build='' version=''
fail() { echo "package.sh: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || fail "$1 needs a value, or is unknown; there are --out, --build and --version"
    case $1 in
        --out) out=$2 ;;
        --build) build=$2 ;;
        --version) version=$2 ;;
        *) fail "unknown option $1; there are --out, --build and --version" ;;
    esac
    shift 2
done

[ -n "$build" ] || sh "$top/deploy/setup.sh" --packages || exit 2
for program in dh dpkg-architecture dpkg-parsechangelog; do
    command -v "$program" >/dev/null && continue
    echo "package.sh: there is no $program; sh deploy/setup.sh --packages installs it (Debian: debhelper, dpkg-dev)" >&2
    exit 2
done

if [ -z "$build" ]; then
    build=$top/build-release
    (cd "$top" && cmake --preset release && cmake --build --preset release --target kvd kvdctl kvd_client kvd_python kvd_man) ||
        fail "the release build failed"
fi
[ -e "$build/CMakeCache.txt" ] || fail "$build is no build of kvd"
build=$(CDPATH='' cd -- "$build" && pwd)
mkdir -p "$out"
out=$(CDPATH='' cd -- "$out" && pwd)
libdir=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[A-Z]*=//p' "$build/CMakeCache.txt")
wanted=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
[ "$libdir" = "$wanted" ] ||
    fail "$build puts libraries into $libdir, packages need $wanted: cmake -D CMAKE_INSTALL_LIBDIR=$wanted $build"

work=$(mktemp -d "${TMPDIR:-/tmp}/kvd-package.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
trap 'exit 1' HUP INT TERM
umask 022
mkdir "$work/kvd"
cp -R "$top/deploy/debian" "$work/kvd/debian"
cd "$work/kvd"
if [ -n "$version" ]; then
    { printf 'kvd (%s) unstable; urgency=medium\n\n  * Built as version %s.\n\n' "$version" "$version"
      sed -n '/^ -- /{p;q}' "$top/deploy/debian/changelog"; echo
      cat "$top/deploy/debian/changelog"; } >debian/changelog
fi
# As dpkg-buildpackage would: no root is needed, files are root's in the packages all the same.
DEB_RULES_REQUIRES_ROOT=no KVD_BUILD=$build debian/rules binary >"$work/log" 2>&1 || { cat "$work/log"; fail "debhelper failed"; }
cp "$work"/*.deb "$out"
for package in "$work"/*.deb; do echo "$out/${package##*/}"; done
