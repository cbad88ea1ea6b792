# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Read by check.sh: what an operator finds in the journal.
# shellcheck disable=SC2015,SC2154 # fail exits; $unit and so on are check.sh's

# Of the last start of $unit, as plain lines.
journal_of() { # options of journalctl...
    journalctl --sync
    journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID="$(property InvocationID)" "$@"
}
journal_has() { # priority, pattern
    journal_of -p "$1" | grep -q -- "$2" || fail "the journal has no \"$2\" at level $1: $(journal_of -o short)"
}

journal_speaks() {
    step "monitoring that the unit does not allow is left off with a sentence; one line says all of the start"
    unit=kvd@plain.service
    at=/run/kvd/plain/kvd.sock
    { cat /usr/share/doc/kvd/examples/example.conf; printf '[http]\nlisten = 127.0.0.1:9472\n'; } >/etc/kvd/plain.conf
    systemctl start $unit || fail "monitoring over TCP without its drop-in keeps the cache down"
    journal_has err "there is no monitoring: "
    journal_has notice "^kvd .* CUDA (.*commit .*) serves store main of /etc/kvd/plain.conf: 8192 tokens in 128 pages .* arena none; socket $at\$"
    [ "$(journal_of | grep -c ' serves store ')" = 1 ] || fail "more than one line says that it serves"

    step "who only looks leaves no line; who leaves in order is not lost"
    before=$(journal_of | wc -l)
    for look in status continuations sessions config audit; do
        kvdctl --instance plain $look >/dev/null || fail "kvdctl $look"
    done
    kvdctl --instance plain --json events --follow >/out/follower 2>&1 &
    follower=$!
    await "a client that follows" follows '"connected"'
    [ "$(journal_of | wc -l)" = "$before" ] || fail "kvdctl fills the journal: $(journal_of)"
    engine $at fill 1 2
    kvdctl --instance plain drain >/dev/null || fail "drain"
    await "an event after the engine's end" follows '"draining"'
    follows '"session_lost"' && fail "an orderly end is a loss: $(cat /out/follower)"
    kill $follower

    step "a stop without an arena says what it loses, as a warning; every line can be read"
    last=$(property InvocationID)
    systemctl stop $unit || fail "stop"
    journalctl --sync
    journalctl --no-pager -o cat -p warning _SYSTEMD_INVOCATION_ID="$last" >/out/warnings
    grep -q "stop: 2 continuations and 0 sequences are lost, as there is no arena" /out/warnings || fail "$(cat /out/warnings)"
    ! journalctl --no-pager -b | grep -q "blob data" || fail "a line that cannot be read: $(journalctl --no-pager -b | grep 'blob data')"
    echo nonsense >>/etc/kvd/plain.conf
    systemctl start $unit 2>/dev/null && fail "a wrong configuration started"
    journal_has err "^/etc/kvd/plain.conf:[0-9]*: is neither"
    rm /etc/kvd/plain.conf
    systemctl reset-failed
    unit=kvd@test.service
}
