#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what kvd needs to build on Debian 12, if anything is missing.
# Usage: sh deploy/setup.sh [--packages] [--tests] [--check]
#   --packages  also what deploy/package.sh needs          --tests  also what all tests need
#   --check     installs nothing
# Exit: 0 everything is there, 2 something is missing and cannot be installed
set -eu

need="build-essential cmake ninja-build pkg-config libnng-dev libprotobuf-c-dev protobuf-c-compiler
libsodium-dev libxxhash-dev libcjson-dev libmicrohttpd-dev libhiredis-dev libcunit1-dev scdoc"
packages="debhelper"
tests="redis-server stunnel4 clang libclang-rt-14-dev systemd systemd-container prometheus lintian zsh python3-numpy python3-protobuf python3-pip python3-wheel mypy
python3 universal-ctags clang-format
chromium-headless-shell" # the least of Debian's Chromium: 98 MB to fetch, 306 MB installed, a quarter less than chromium
check=no
for option in "$@"; do
    case $option in
        --packages) need="$need $packages" ;;
        --tests) need="$need $packages $tests" ;;
        --check) check=yes ;;
        *) echo "setup.sh: unknown option $option; there are --packages, --tests and --check" >&2; exit 2 ;;
    esac
done

missing=
for package in $need; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$check" = yes ]; then
    echo "setup.sh: missing packages:$missing" >&2
    exit 2
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "setup.sh: missing packages:$missing" >&2
    echo "setup.sh: install them as root:  apt-get install$missing" >&2
    exit 2
fi
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
for service in prometheus redis-server; do
    case $missing in
        *$service*) # the tests want its programs; its own service would listen on a port
            unit=/etc/systemd/system/$service.service
            [ -e "$unit" ] || { mkdir -p "${unit%/*}" && ln -sf /dev/null "$unit"; } ;;
    esac
done
# shellcheck disable=SC2086 # a list of package names
apt-get install -y -qq --no-install-recommends $missing >/dev/null
