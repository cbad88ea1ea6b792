#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes one manual page. @VERSION@ becomes the version, the line @KEYS@ what keys.awk makes of KEYS, which is the output
# of kvd --help-config. PAGE is written whole or not at all. Its date is that of the newest entry of the changelog, not of
# the build, so that every build and every architecture has the same page.
# Usage: page.sh SCDOC VERSION PAGE.scd PAGE [KEYS]
set -eu
scdoc=$1 version=$2 source=$3 page=$4 keys=${5:-}
here=$(dirname "$0")
entry=$(sed -n 's/^ -- .*>  //p' "$here/../debian/changelog" | head -n 1)
SOURCE_DATE_EPOCH=$(date -d "$entry" +%s)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

: >"$work/keys"
if [ -n "$keys" ]; then
    awk -f "$here/keys.awk" "$keys" >"$work/keys"
    [ -s "$work/keys" ] || { echo "page.sh: $keys has no key" >&2; exit 1; }
fi
sed -e "s/@VERSION@/$version/" -e "/^@KEYS@\$/{r $work/keys
d
}" "$source" >"$work/source"
"$scdoc" <"$work/source" >"$work/page"
cp "$work/page" "$page.new"
mv "$page.new" "$page"
