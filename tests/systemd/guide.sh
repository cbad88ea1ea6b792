#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The operator's guide followed as written, on a Debian with an init, the packages, what they depend on, and nothing else.
# Runs inside the container, as root, started by kvd-check.service; /kvd-check has the guide, the packages in two versions,
# and an engine to look at.
set -u
output=/out/output
engine_pid='' ran=0
# shellcheck source=tests/guides/blocks.sh
. /kvd-check/blocks.sh

mkdir /root/guide /root/blocks /root/engine
cd /root/guide || exit 1
ln -s /kvd-check/packages/first out
take_blocks /kvd-check/OPERATING.md /root/blocks 'run|boot'

journal() {
    journalctl --sync
    journalctl --no-pager -o cat -u kvd@main
}
property() { systemctl show --value -p "$1" kvd@main; }
# Lines of the journal begin with the time, the machine and the process.
plain() { [ ! -e $output ] || sed -i 's/^[A-Z][a-z]* [0-9]* [0-9:]* [^ ]* [a-z]*\[[0-9]*\]: //' $output; }

newer_packages() {
    rm out
    ln -s /kvd-check/packages/first before
    ln -s /kvd-check/packages/next out
}

# The daemon that a block has stopped is the unit's.
stop_unit() {
    exec 7>&- 8<&-
    [ -z "$engine_pid" ] || wait "$engine_pid" || fail "the engine failed"
    run_block "$1" "$2"
    tries=1200
    while [ "$tries" -gt 0 ] && [ "$(property ActiveState)" != inactive ]; do
        tries=$((tries - 1))
        sleep 0.05
    done
    [ "$(property Result)" = success ] && [ "$tries" -gt 0 ] || fail "the unit is $(property ActiveState), $(property Result)"
    journal >>$output
}

for what in /root/blocks/*.what; do
    read -r kind <"$what"
    text=${what%.what}.text
    echo "$(cut -d' ' -f1 /proc/uptime) $kind $(sed -n '1p' "$text" 2>/dev/null)"
    case $kind in
        '```expect') expect "$text" ;;
        '<!-- engine'*) kind=${kind#<!-- engine}
            start_engine /kvd-check/guide_engine /run/kvd/main/kvd.sock "${kind%-->}" /root/engine ;;
        '<!-- packages'*) newer_packages ;;
        *' daemon') ;; # the unit serves: what is expected of the daemon is in the journal, which the block before shows
        *' stop') stop_unit "$text" "$kind" ;;
        *) run_block "$text" "$kind"; plain ;;
    esac
    ran=$((ran + 1))
done
[ $ran -ge 35 ] || fail "only $ran blocks: this test reads the guide wrongly"
[ "$(dpkg-query -W -f '${Version}' kvd)" = "$(cat /kvd-check/packages/first/version)" ] || fail "the guide does not go back"
journalctl --sync
! journalctl --no-pager -b | grep "blob data" || fail "a line that cannot be read"
if [ $failures -gt 0 ]; then
    journalctl --no-pager -o short-monotonic -b | tail -n 60
    exit 1
fi
echo "kvd-check: all of it"
