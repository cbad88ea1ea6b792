#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the pages say in tables and figures is what the code has: events, limits and time-outs of PROTOCOL.md, defaults of
# the operator's guide, the keys that kvd(8) says a reload changes, the rooms of the architecture page. What the pages name
# is there: files, and the functions of the architecture page. (The tables of requests, statuses and sizes are compared by test_codec, test_codec_inside and
# test_operating.sh; manual pages by test_man.sh.)
# Usage: test_tables.sh SOURCE_DIR KVD
# shellcheck disable=SC2016,SC2013 # backquotes are Markdown's; names are words
set -u
cd "$1" || exit 2
kvd=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0 compared=0
fail() { echo "FAIL: $*" >&2; failures=$((failures + 1)); }
has() { # page, line, whose fact it is
    compared=$((compared + 1))
    grep -qF -e "$2" "$1" || fail "$1 lacks \"$2\" ($3)"
}
"$kvd" --help-config >"$work/keys" || exit 2
key() { # section, name
    awk -v section="[$1]" -v name="#$2 =" '/^\[/ { on = $0 == section }
        on && index($0, name) == 1 { value = substr($0, length(name) + 1); sub(/^ /, "", value); print value }' "$work/keys"
}

# The value of a #define; other macros in it are looked up.
number() {
    text=$(grep -rhE "^#define $1 " --include='*.[ch]' kvd proto | sed -E "s/^#define $1 +//; s,/\*.*,,; s/\(uint32_t\)//")
    for name in $(echo "$text" | grep -oE '[A-Z][A-Z_]+'); do text=$(echo "$text" | sed "s/$name/$(number "$name")/"); done
    echo $(($(echo "$text" | sed -E 's/([0-9])u/\1/g')))
}

# ---- the protocol ---------------------------------------------------------------------------------------

page=proto/PROTOCOL.md
sed -n '/^enum kvd_event_kind/,/^};/p' proto/kvd_types.h | tr '\n' ' ' | sed 's,/\*[^/]*\*/,,g' |
    grep -oE 'KVD_EVENT_[A-Z_]+ *= *[0-9]+' | sed -E 's/KVD_EVENT_([A-Z_]+) *= *([0-9]+)/| \2 | \1 |/' >"$work/events"
[ "$(wc -l <"$work/events")" -ge 6 ] || fail "the events are read wrongly"
while IFS= read -r row; do has $page "$row" "enum kvd_event_kind"; done <"$work/events"
rows=$(sed -n '/^| kind | name | fields |/,/^$/p' $page | grep -c '^| [0-9]')
[ "$rows" -eq "$(wc -l <"$work/events")" ] || fail "$page has $rows events"

has $page "| memory that one body may take once unpacked | $(($(number CODEC_ARENA_LIMIT) >> 20)) MiB |" CODEC_ARENA_LIMIT
has $page "| requests of a session that wait for copies between device and host | $(number SLOW_PER_SESSION) |" SLOW_PER_SESSION
has $page "| moves of continuations at once, of all sessions | $(number MOVES_AT_ONCE) |" MOVES_AT_ONCE
tr '\n' ' ' <$page | tr -s ' ' >"$work/protocol"
in_text() { # words, whose fact it is
    compared=$((compared + 1))
    grep -qF -e "$1" "$work/protocol" || fail "$page does not say \"$1\" ($2)"
}
in_text "the last $(number ANSWER_WINDOW) answers of a session, at most $(($(number ANSWER_BYTES) >> 10)) KiB of them, or $(($(number ANSWER_LEAST) >> 10)) KiB" ANSWER_WINDOW
in_text "at most $(number ANSWER_WINDOW) numbers of a session are open" ANSWER_WINDOW
in_text "A session has $(number SLOW_PER_SESSION) places for such requests" SLOW_PER_SESSION
in_text "handshake timeout (default $(key limits handshake_timeout | sed 's/s$/ s/'))" handshake_timeout
in_text "stall timeout (default $(key limits stall_timeout | sed 's/s$/ s/'))" stall_timeout
in_text "default \`$(key kvd socket)\`" socket

# ---- the operator's guide and the manual page -------------------------------------------------------------

guide=deploy/OPERATING.md
# In a row of a section: `key` (DEFAULT ...).
sed -n '/^| section | decide | notes |/,/^$/p' $guide | grep '^| `' | while IFS='|' read -r _ section cell _; do
    echo "$cell" | grep -oE '`[a-z_]+` \([^)]*\)' | sed "s/^/$(echo "$section" | tr -d '` []') /"
done >"$work/defaults"
[ "$(wc -l <"$work/defaults")" -ge 12 ] || fail "the defaults in $guide are read wrongly"
while read -r section name value; do
    name=$(echo "$name" | tr -d '`')
    value=$(echo "$value" | sed 's/^(//; s/[ :)].*//')
    case $value in tokens | sequences) continue ;; nobody) value= ;; esac
    compared=$((compared + 1))
    [ "$(key "$section" "$name")" = "$value" ] || fail "$guide: the default of [$section] $name is \"$(key "$section" "$name")\", not \"$value\""
done <"$work/defaults"

# The roles of [access] are written as such.
sed -n '/ live\[\] = {/,/};/p' kvd/base/config.c | grep -oE '"[a-z_]+"' | tr -d '"' |
    grep -vxE 'observer|worker|scheduler|admin' | sort -u >"$work/reloaded"
sed -n '/^\*SIGHUP\*/,/^\*SIGPIPE\*/p' deploy/man/kvd.8.scd | grep -oE '\*[a-z_]+\*' | tr -d '*' | sort -u >"$work/written"
[ -s "$work/reloaded" ] || fail "what a reload changes is read wrongly"
for name in $(comm -23 "$work/reloaded" "$work/written"); do fail "kvd(8) does not say that a reload changes $name"; done
for name in $(comm -13 "$work/reloaded" "$work/written"); do fail "kvd(8) says that a reload changes $name"; done
compared=$((compared + $(wc -l <"$work/reloaded")))

# ---- what the pages name ----------------------------------------------------------------------------------

pages=$(find . -name '*.md' -not -path './build*' -not -path './shared/*' -not -path './.git/*' | sed 's,^\./,,')
for page in $pages; do
    for path in $(grep -oE '`[A-Za-z0-9_.@-]+/[A-Za-z0-9_./@-]*`' "$page" | tr -d '`' | sort -u); do
        case $path in build* | out/* | *NAME* | .*/) continue ;; esac
        compared=$((compared + 1))
        # From the top, or beside the page.
        [ -e "$path" ] || [ -e "$(dirname "$page")/$path" ] || fail "$page names $path, which is not there"
    done
done
page=kvd/ARCHITECTURE.md
for name in $(grep -oE '`[a-z][a-z0-9_]+\(\)`' $page | tr -d '`()' | sort -u); do
    compared=$((compared + 1))
    grep -rqw "$name" --include='*.[ch]' cuda hostarena proto kvd client || fail "$page names $name(), which is not there"
done

# ---- rooms --------------------------------------------------------------------------------------------------

eval "$(sed -n '/^allowed()/,/^}/p' tests/unit/test_rooms.sh)"
words() { tr ' ' '\n' | grep . | sort -u | tr '\n' ' '; }
sed -n '/^| room | what it is | may include |/,/^$/p' $page | grep -E '^\| `' >"$work/rooms"
[ "$(wc -l <"$work/rooms")" -eq "$(sed -n '/^allowed()/,/^}/p' tests/unit/test_rooms.sh | grep -c ') echo')" ] || fail "$page has not all rooms"
while IFS='|' read -r _ room _ may; do
    room=$(echo "$room" | tr -d '` ' | sed 's,/$,,')
    compared=$((compared + 1))
    [ "$(echo "$may" | tr -d '|' | words)" = "$(allowed "$room" | words)" ] || fail "$page: $room may include $(allowed "$room")"
done <"$work/rooms"

[ $failures -eq 0 ] || exit 1
echo "$compared facts of the pages compared with the code"
