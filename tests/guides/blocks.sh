# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Read by who follows the operator's guide: its blocks are run in order, as they stand. What a block's first line may say:
#     ```sh run [exit=N] [needs=PROGRAM]     runs, with that status (0)
#     ```sh run daemon                       runs in the background until kvd serves
#     ```sh run stop                         runs; the daemon ends with status 0
#     ```sh boot                             runs where the packages are installed under systemd, only
#     ```expect                              each line is one of the output of the block before; ... stands for anything
#     <!-- engine ARGUMENTS -->              an engine is started (engine.c)
#     <!-- packages newer -->                the packages in out/ are a newer version's, those of before in before/
# shellcheck disable=SC2016 # backquotes are Markdown's
failures=0
fail() { echo "FAIL: $*" >&2; failures=$((failures + 1)); }

# $1: the guide; $2: an empty folder; $3: "run", or "run|boot". NNN.what (one line), NNN.text.
take_blocks() {
    awk -v folder="$2" -v kinds="^\`\`\`sh ($3)( |$)" '
        function new(what) { file = sprintf("%s/%03d", folder, ++n); print what >(file ".what"); close(file ".what") }
        /^<!-- (engine|packages) / { new($0); next }
        /^```sh/ { taken = $0 ~ kinds; if (taken) { new($0); inside = 1 } next }
        /^```expect$/ { if (taken) { new($0); inside = 1 } next }
        /^```/ { inside = 0; next }
        inside { print >(file ".text") }' "$1"
}

# What is run, and the words of its first line. Its output is in $output; there is none of what cannot run here.
run_block() {
    wanted=0
    for word in $2; do
        case $word in
            exit=*) wanted=${word#exit=} ;;
            needs=*) command -v "${word#needs=}" >/dev/null || { echo "skipped: there is no ${word#needs=}"; rm -f "$output"; return 0; } ;;
        esac
    done
    code=0
    yes 2>/dev/null | sh -e "$1" >"$output" 2>&1 || code=$?
    [ "$code" = "$wanted" ] && return 0
    fail "status $code, not $wanted, of:"
    tail -n 40 "$1" "$output" >&2
}

# Each line is found: blanks at both ends do not count, ... is anything.
expect() {
    [ -e "$output" ] || return 0
    while IFS= read -r line; do
        pattern=$(printf '%s\n' "$line" | sed 's/[][\.*^$]/\\&/g; s/ *\\\.\\\.\\\. */.*/g; s/^ *//; s/ *$//')
        grep -q "^ *$pattern *\$" "$output" && continue
        fail "the output has no line \"$line\":"
        tail -n 40 "$output" >&2
    done <"$1"
}

start_engine() { # the program, its socket, arguments, a folder
    mkfifo "$4/in" "$4/out"
    # shellcheck disable=SC2086 # arguments
    timeout 600 "$1" "$2" $3 <"$4/in" >"$4/out" &
    engine_pid=$!
    exec 7>"$4/in" 8<"$4/out"
    read -r word <&8 || word=none
    [ "$word" = ready ] || fail "the engine does not start"
}
