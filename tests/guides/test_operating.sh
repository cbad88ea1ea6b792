#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The operator's guide does what it says. Its blocks are run in order, as they stand (blocks.sh), in a scratch root: /etc/kvd
# and /run/kvd are folders of their own, kvd and kvdctl are those of a build.
# Then its tables: sizes as kvd computes them, alarms and sections and keys as they are. And what it says about containers,
# where namespaces can be made.
# Usage: test_operating.sh SOURCE_DIR KVD KVDCTL ENGINE SIZES
# shellcheck disable=SC2016,SC2013 # backquotes are Markdown's; names are words
set -eu
source=$1 kvd=$2 kvdctl=$3 engine=$4 sizes=$5
guide=$source/deploy/OPERATING.md
root=$(mktemp -d /tmp/kvd-guide-XXXXXX)
output=$root/output
daemon='' engine_pid='' ran=0
# shellcheck source=tests/guides/blocks.sh
. "$source/tests/guides/blocks.sh"
end() {
    exec 7>&- 8<&- 2>/dev/null || true
    for pid in $engine_pid $daemon; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$root"
}
trap end EXIT
mkdir -p "$root/etc" "$root/run" "$root/bin" "$root/blocks"
ln -s "$kvd" "$root/bin/kvd"
ln -s "$kvdctl" "$root/bin/kvdctl"
PATH=$root/bin:$PATH
unset KVD_SOCKET
cd "$root"

take_blocks "$guide" "$root/blocks" run

scratch() { sed "s,/etc/kvd,$root/etc/kvd,g; s,/run/kvd,$root/run/kvd,g" "$1"; }

# A log that is read on: ready.
start_daemon() {
    mkfifo "$root/said" "$root/serves"
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$root/log"
        case $line in *"; socket "* | *"cannot start"*) echo "$line" >"$root/serves" ;; esac
    done <"$root/said" &
    sh -e "$1" >"$root/said" 2>&1 &
    daemon=$!
    timeout 60 head -n 1 "$root/serves" >"$root/output" || fail "the daemon says nothing for a minute"
}

# A child's status; it has a minute.
end_of() {
    tries=600
    while [ "$tries" -gt 0 ] && [ -e "/proc/$1" ] && ! grep -qs '^State:.Z' "/proc/$1/status"; do
        tries=$((tries - 1))
        sleep 0.1
    done
    [ "$tries" -gt 0 ] || kill -KILL "$1"
    wait "$1"
}

stop_daemon() {
    exec 7>&- 8<&-
    [ -z "$engine_pid" ] || end_of "$engine_pid" || fail "the engine failed"
    engine_pid=''
    code=0
    sh -e "$1" >"$root/output" 2>&1 || fail "the daemon cannot be stopped"
    end_of "$daemon" || code=$?
    daemon=''
    [ $code -eq 0 ] || fail "the daemon ended with $code"
    wait
    cat "$root/log" >>"$root/output"
}

for what in "$root"/blocks/*.what; do
    read -r kind <"$what"
    text=${what%.what}.text
    if [ -e "$text" ]; then scratch "$text" >"$text.here"; fi
    case $kind in
        '```expect') expect "$text" ;;
        '<!-- engine'*) kind=${kind#<!-- engine}
            start_engine "$engine" "$root/run/kvd/main/kvd.sock" "${kind%-->}" "$root" ;;
        '<!-- packages'*) ;;
        *' daemon') start_daemon "$text.here" ;;
        *' stop') stop_daemon "$text.here" ;;
        *) run_block "$text.here" "$kind" ;;
    esac
    ran=$((ran + 1))
done
[ $ran -ge 25 ] || fail "only $ran blocks: this test reads the guide wrongly"
[ -z "$daemon" ] || fail "the guide does not stop what it starts"
[ ! -e "$root/run/kvd/main/kvd.sock" ] || fail "the socket stays"

# ---- tables ---------------------------------------------------------------------------------------------

"$sizes" >"$root/sizes"
[ "$(wc -l <"$root/sizes")" -eq 24 ] || fail "sizes: not as many lines as it should have"
while IFS= read -r line; do
    grep -qxF -e "$line" "$guide" || fail "the tables of sizes lack: $line"
done <"$root/sizes"

grep -o 'alert: .*' "$source/deploy/prometheus/kvd.rules.yml" | cut -d ' ' -f 2 | sort >"$root/alerts"
grep -oE '^\| `Kvd[A-Za-z]+`' "$guide" | tr -d '|` ' | sort >"$root/rows"
[ -s "$root/alerts" ] || fail "no alerts: this test reads the rules wrongly"
for alert in $(comm -23 "$root/alerts" "$root/rows"); do fail "no row says what to do about $alert"; done
for alert in $(comm -13 "$root/alerts" "$root/rows"); do fail "there is no alert $alert"; done

kvd --help-config >"$root/keys"
sed -n 's/^\(\[.*\]\)$/\1/p' "$root/keys" | sort >"$root/sections"
grep -oE '^\| `\[[a-zA-Z.]+\]`' "$guide" | tr -d '|` ' | sort >"$root/rows"
for section in $(comm -3 "$root/sections" "$root/rows"); do fail "section $section is not in both the guide and kvd"; done
# Keys of a row belong to its section; names in the text that look like "key = value" are keys.
grep -E '^\| `\[' "$guide" | while IFS= read -r row; do
    section=$(echo "$row" | cut -d '`' -f 2)
    for key in $(echo "$row" | cut -d '|' -f 3 | grep -oE '`[a-z_.0-9]+`' | tr -d '`'); do
        case $key in device.[1-7]) key=device.0 ;; esac
        awk -v s="$section" '/^\[/ { on = $0 == s } on' "$root/keys" | grep -q "^#$key =" || echo "$section $key"
    done
done >"$root/strange"
grep -oE '`[a-z_]+ = [^`]+`' "$guide" | tr -d '`' | cut -d ' ' -f 1 | sort -u | while IFS= read -r key; do
    grep -q "^#$key = " "$root/keys" || echo "$key"
done >>"$root/strange"
while IFS= read -r key; do fail "kvd has no key $key"; done <"$root/strange"

for name in $(grep -oE 'kvd_[a-z_]+(_total|_bytes)\b' "$guide" | sort -u); do
    grep -q "\"$name\"" "$source/kvd/serve/metrics_page.c" || fail "there is no series $name"
done

# ---- the README, and what any guide names -----------------------------------------------------------------

awk '/^```ini$/ { on = 1; next } /^```/ { on = 0 } on' "$source/README.md" >"$root/readme.conf"
grep -q '^\[model\]' "$root/readme.conf" || fail "README: there is no configuration in it"
kvd --check-config --config "$root/readme.conf" || fail "README: kvd refuses its configuration"
guides="$source/README.md $guide $source/client/ENGINE-GUIDE.md"
kvdctl --help >"$root/help"
# shellcheck disable=SC2086 # names of files
for word in $(grep -hoE '(^|[`(])kvdctl [a-z]+' $guides | cut -d ' ' -f 2 | sort -u); do
    grep -q "^ *$word\b" "$root/help" || fail "kvdctl has no command $word"
done
for option in $(grep -hoE 'kvdctl [^`|;]*' $guides | grep -oE -e '--[a-z-]+' | sort -u); do
    grep -q -e "$option\b" "$root/help" || fail "kvdctl has no option $option"
done
for path in $(grep -hoE '\b(deploy|tests|client|proto)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' $guides | sort -u); do
    [ -e "$source/$path" ] || fail "there is no $path"
done
for name in $(grep -hoE '\b(kvd_[a-z_]+|KVD_[A-Z_]+)\b(\.h)?' "$source/README.md" "$source/client/ENGINE-GUIDE.md" | grep -v '\.h$' | sort -u); do
    cat "$source/client/kvd.h" "$source/client/kvd_policy.h" "$source/proto/kvd_types.h" "$source/cuda/paged_view.h" "$source/cuda/kvd_ops.h" | grep -qwE "$name|X\((${name#KVD_}|${name#KVD_ROLE_})" || [ "$name" = KVD_SOCKET ] ||
        grep -q "\"$name\"" "$source/kvd/serve/metrics_page.c" || fail "there is no $name"
done

# ---- main memory ----------------------------------------------------------------------------------------

serve() { # command
    rm -f "$root/said" "$root/serves" "$root/log"
    echo "exec $* --config $root/etc/kvd/main.conf" >"$root/here.sh"
    start_daemon "$root/here.sh"
}
served() {
    end_of "$daemon" || fail "kvd ended with $?"
    daemon=''
    wait
}
# The arena's file of the kvd that runs, which outlives it.
segment() { sed -n 's,.* \(/dev/shm/kvd-arena-.*\),\1,p' "/proc/$daemon/maps" | head -n 1; }

# Tokens, arena and continuations of which one makes nearly all of the tables: about as many bytes each as the guide says.
metadata() { # what, how many, bytes each by the guide
    printf '[kvd]\nsocket = %s\n[model]\nlayers = 1\nkv_heads = 1\nhead_dim = 16\nmax_context = 4096\nmax_concurrency = %s\n' \
        "$root/run/kvd/main/kvd.sock" "$4" >"$root/etc/kvd/main.conf"
    printf '[capacity]\ntokens = %s\n[host]\narena = %s\n[limits]\ncontinuations = %s\n' "$5" "$6" "$7" >>"$root/etc/kvd/main.conf"
    serve kvd
    bytes=$(kvdctl --socket "$root/run/kvd/main/kvd.sock" --json status | sed -n 's/.*"metadata_bytes":[^0-9]*\([0-9]*\).*/\1/p')
    arena=$(segment)
    kill "$daemon"
    served
    rm "$arena"
    each=$((${bytes:-0} / $2))
    [ $((each * 100)) -gt $(($3 * 85)) ] && [ $((each * 100)) -lt $(($3 * 115)) ] || fail "$each bytes $1, the guide says $3"
}
sentence=$(tr '\n' ' ' <"$guide" | grep -oE "tables take about [0-9]+ bytes a page of the pools, [0-9]+ bytes a page that the arena can hold, and [0-9]+ bytes a continuation")
# shellcheck disable=SC2086 # its numbers
set -- $(echo "$sentence" | grep -oE '[0-9]+')
[ $# -eq 3 ] || fail "the guide does not say how large the tables are"
metadata "a page" 65536 "$1" 1 4194304 1MiB 2
metadata "a page of the arena" 65536 "$2" 1 4096 256MiB 2
metadata "a continuation" 20000 "$3" 1 4096 1MiB 20000

# ---- namespaces -----------------------------------------------------------------------------------------

attach_without_shm() {
    unshare --mount --propagation private sh -c "mount -t tmpfs none /dev/shm && exec '$engine' '$socket' attach" 2>"$root/output"
}

if unshare --mount --pid --fork --propagation private true 2>/dev/null; then
    scratch "$root/blocks/001.text" >"$root/again.sh"
    sh -e "$root/again.sh"
    socket=$root/run/kvd/main/kvd.sock
    serve kvd
    unshare --pid --fork --kill-child "$engine" "$socket" attach ||
        fail "a client in a PID namespace inside kvd's is refused"
    attach_without_shm || fail "a client with a /dev/shm of its own: $(cat "$root/output")"
    kill "$daemon"
    served
    serve unshare --pid --fork --kill-child kvd
    code=0
    kvdctl --socket "$socket" status >"$root/output" 2>&1 || code=$?
    [ $code -eq 2 ] || fail "a client outside of kvd's PID namespace: status $code"
    grep -q 'another PID namespace' "$root/output" || fail "outside of kvd's PID namespace: $(cat "$root/output")"
    kill "$(ps -o pid= --ppid "$daemon" | tr -d ' ')" # kvd itself, the first process of its namespace
    served
    sed -i 's/^device.0 = .*/&\nexport = vmm/' "$root/etc/kvd/main.conf"
    serve kvd
    directory=$(segment)
    attach_without_shm || fail "export = vmm, a client with a /dev/shm of its own: $(cat "$root/output")"
    kill "$daemon"
    served
    [ -z "$directory" ] || rm "$directory" # it outlives kvd
else
    echo "skipped: no namespaces can be made here"
fi

[ $failures -eq 0 ] || exit 1
echo "deploy/OPERATING.md: $ran blocks, its tables and its containers"
