#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual pages say what the programs say. They are built anew; roff has nothing to complain about; options, commands,
# keys, exit statuses, environment and calls are the same on both sides; the examples are accepted.
# Usage: test_man.sh SOURCE_DIR KVD KVDCTL KVD_REPLAY SCDOC [LIBKVD_OPS]       Skipped (77) without scdoc.
set -eu
root=$1 kvd=$2 kvdctl=$3 replay=$4 scdoc=${5:-} ops=${6:-}
if [ ! -x "$scdoc" ]; then
    echo "skipped: scdoc is not installed (Debian: scdoc)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAIL: $*" >&2; failures=$((failures + 1)); }

# ---- building -------------------------------------------------------------------------------------------

"$kvd" --help-config >"$work/keys"
"$kvd" --help >"$work/kvd.help"
"$kvdctl" --help >"$work/kvdctl.help"
"$replay" --help >"$work/kvd-replay.help"
for page in kvd.8 kvd.conf.5 kvdctl.1 kvd-replay.1 libkvd.3 libkvd-ops.3; do
    keys=
    [ $page != kvd.conf.5 ] || keys=$work/keys
    # shellcheck disable=SC2086 # no keys, no argument
    sh "$root/deploy/man/page.sh" "$scdoc" 1.2.3 "$root/deploy/man/$page.scd" "$work/$page" $keys ||
        { echo "FAIL: $page does not build" >&2; exit 1; }
    grep -q '"kvd 1\.2\.3"' "$work/$page" || fail "$page does not carry the version"
    ! grep -q '@[A-Z]*@' "$work/$page" || fail "$page has a placeholder left"
    # Plain text: without fonts and the escapes that scdoc writes.
    sed -e 's/\\f[A-Z]//g' -e 's/\\&//g' -e 's/\\-/-/g' -e 's/\\(aq/'"'"'/g' "$work/$page" >"$work/$page.text"
    if command -v groff >/dev/null 2>&1; then
        groff -t -man -Tutf8 -ww "$work/$page" 2>"$work/warnings" >/dev/null || fail "groff refuses $page"
        [ ! -s "$work/warnings" ] || fail "groff about $page: $(cat "$work/warnings")"
    fi
    if command -v man >/dev/null 2>&1; then
        MANPAGER=cat LC_ALL=C.UTF-8 man --warnings -l "$work/$page" 2>"$work/warnings" >/dev/null ||
            fail "man refuses $page"
        [ ! -s "$work/warnings" ] || fail "man about $page: $(cat "$work/warnings")"
    fi
done

# A page's date is that of the changelog, whenever it is built: all architectures of a package have the same page.
mkdir -p "$work/deploy/debian"
cp -R "$root/deploy/man" "$work/deploy/man"
sed 's/^\( -- .*>\)  .*/\1  Sat, 03 Feb 2001 12:00:00 +0000/' "$root/deploy/debian/changelog" >"$work/deploy/debian/changelog"
sh "$work/deploy/man/page.sh" "$scdoc" 1.2.3 "$root/deploy/man/kvd.8.scd" "$work/dated"
grep -q '^\.TH .*"2001-02-03"' "$work/dated" || fail "a page has another date than the changelog: $(grep '^\.TH' "$work/dated")"

# ---- the same on both sides -----------------------------------------------------------------------------

# Terms of one section of a page: the lines above an indented description.
terms() {
    awk -v want=".SH $2" '
        /^\.SH/ { inside = $0 == want; next }
        inside && /^\.RS/ { print before }
        { before = $0 }' "$work/$1.text"
}

# same WHAT PAGE: $work/said (the program) and $work/written (the page).
same() {
    sort -u "$work/said" >"$work/said.sorted"
    sort -u "$work/written" >"$work/written.sorted"
    [ -s "$work/said.sorted" ] || fail "the program names no $1: this test reads it wrongly"
    for word in $(comm -23 "$work/said.sorted" "$work/written.sorted"); do fail "$2 lacks $1 $word"; done
    for word in $(comm -13 "$work/said.sorted" "$work/written.sorted"); do fail "$2 has $1 $word, which is none"; done
}

for pair in "kvd kvd.8" "kvdctl kvdctl.1" "kvd-replay kvd-replay.1"; do
    program=${pair% *} page=${pair#* }
    grep -E '^ +-' "$work/$program.help" | grep -oE '^ +(-[A-Za-z], +)?--[a-z-]+' | tr -d ' ' |
        sed 's/,/\n/' >"$work/said"
    terms "$page" OPTIONS | grep -oE -e '(^|, )--?[A-Za-z-]+' | tr -d ', ' >"$work/written"
    same option "$page"

    tr '\n' ' ' <"$work/$program.help" | sed 's/.*Exit status: //' | grep -oE '(^|; )[0-9]+ ' | tr -d '; ' >"$work/said"
    terms "$page" "EXIT STATUS" >"$work/written"
    same "exit status" "$page"
done

awk '/^Commands:/ { inside = 1; next } /^$/ { inside = 0 } inside { print $1 }' "$work/kvdctl.help" >"$work/said"
terms kvdctl.1 COMMANDS | awk '{ print $1 }' >"$work/written"
same command kvdctl.1

# Keys with their sections and defaults, blanks taken out.
awk '/^\[/ { section = $0 } /^#[a-z]/ { line = section substr($0, 2); gsub(/ /, "", line); print line }' \
    "$work/keys" >"$work/said"
awk '/^\.SH/ { inside = $0 == ".SH KEYS" } !inside { next }
     /^\.SS/ { section = $2 }
     /^\.RS/ { line = section before; gsub(/ /, "", line); print line }
     { before = $0 }' "$work/kvd.conf.5.text" >"$work/written"
same key kvd.conf.5
sed -n 's/^# //p' "$work/keys" | sed 1,2d >"$work/docs"
[ -s "$work/docs" ] || fail "the keys have no descriptions: this test reads them wrongly"
while read -r doc; do
    grep -qF -e "$doc" "$work/kvd.conf.5.text" || fail "kvd.conf.5 lacks the description: $doc"
done <"$work/docs"

environment() { grep -hoE '(getenv|number_in)\("[A-Z_]+"' "$@" | sed 's/.*("//; s/"//'; }
environment "$root"/kvd/*/*.c >"$work/said"
terms kvd.8 ENVIRONMENT | tr -d ' ' | tr ',' '\n' >"$work/written"
same variable kvd.8
environment "$root"/client/*.c "$root"/client/kvdctl/*.c >"$work/said"
terms kvdctl.1 ENVIRONMENT | tr -d ' ' | tr ',' '\n' >"$work/written"
same variable kvdctl.1
environment "$root"/client/*.c >"$work/said"
terms libkvd.3 ENVIRONMENT | tr -d ' ' | tr ',' '\n' >"$work/written"
same variable libkvd.3

grep -hoE '\bkvd_[a-z_]+\(' "$root/client/kvd.h" "$root/client/kvd_policy.h" | tr -d '(' | sort -u >"$work/mentioned"
sed -n '/^KVD_API/p' "$root/client/kvd.h" "$root/client/kvd_policy.h" | grep -oE '\bkvd_[a-z_]+\(' | tr -d '(' >"$work/said"
awk '/^\.SH/ { inside = $0 == ".SH CALLS" } inside' "$work/libkvd.3.text" | grep -oE '\bkvd_[a-z_]+' >"$work/written"
same call libkvd.3
# shellcheck disable=SC2013 # names are words
for name in $(grep -oE '\b(kvd_[a-z_]+|KVD_[A-Z_]+)' "$work/libkvd.3.text" | sort -u); do
    cat "$root/client/kvd.h" "$root/client/kvd_policy.h" "$root/proto/kvd_types.h" | grep -qwE "$name|X\((${name#KVD_}|${name#KVD_ROLE_})" ||
        [ "$name" = KVD_SOCKET ] || fail "libkvd.3 names $name, which the headers do not have"
done

sed -n '/^KVD_OPS_API/p' "$root/cuda/kvd_ops.h" | grep -oE '\bkvd_ops_[a-z_]+\(' | tr -d '(' >"$work/said"
awk '/^\.SH/ { inside = $0 == ".SH CALLS" } inside' "$work/libkvd-ops.3.text" | grep -oE '\bkvd_ops_[a-z_]+' >"$work/written"
same call libkvd-ops.3
for name in $(grep -oE '\b(kvd_ops_[a-z_]+|KVD_OPS_[A-Z_]+)' "$work/libkvd-ops.3.text" | sort -u); do
    grep -qw "$name" "$root/cuda/kvd_ops.h" || [ "$name" = kvd_ops ] || fail "libkvd-ops.3 names $name, which the header does not have"
done

# ---- examples -------------------------------------------------------------------------------------------

# The first example of a page, as its reader sees it.
example() {
    awk '/^\.nf/ { inside = 1; next } /^\.fi/ && inside { exit } inside && !/^\.RS/' "$work/$1.text" |
        sed 's,\\\(e\|\\\),\\,g'
}

for page in kvd.8 kvd.conf.5; do
    example $page >"$work/example.conf"
    grep -q '^\[devices\]' "$work/example.conf" || fail "$page: its first example is no configuration"
    "$kvd" --check-config --config "$work/example.conf" || fail "$page: kvd refuses its example"
done
if command -v cc >/dev/null 2>&1; then
    mkdir "$work/kvd"
    cp "$root/client/kvd.h" "$root/client/kvd_policy.h" "$root/proto/kvd_types.h" "$root/cuda/paged_view.h" "$work/kvd"
    example libkvd.3 >"$work/example.c"
    grep -q 'continuations\\n"' "$work/example.c" || fail "libkvd.3: its example is not the program that it was"
    cc -std=c11 -Wall -Wextra -Werror -fsyntax-only -I"$work" "$work/example.c" || fail "libkvd.3: cc refuses its example"
    cp "$root/cuda/kvd_ops.h" "$work/kvd"
    example libkvd-ops.3 >"$work/ops.c"
    if [ -z "$ops" ]; then
        cc -std=c11 -Wall -Wextra -Werror -fsyntax-only -I"$work" "$work/ops.c" || fail "libkvd-ops.3: cc refuses its example"
    elif ! cc -std=c11 -Wall -Wextra -Werror -I"$work" "$work/ops.c" "$ops" -o "$work/ops" ||
        [ "$(LD_LIBRARY_PATH=$(dirname "$ops") "$work/ops")" != 4000 ]; then
        fail "libkvd-ops.3: its example does not say 4000"
    fi
fi

[ $failures -eq 0 ] || exit 1
echo "kvd(8), kvd.conf(5), kvdctl(1), kvd-replay(1), libkvd(3), libkvd-ops(3): the same as the programs say"
