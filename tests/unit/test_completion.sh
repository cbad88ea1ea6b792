#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What bash and zsh offer for kvd and kvdctl is what they have: every command, every option, and something for every argument of
# which there is a kind. The daemon's answers come from a program in its place.
# Usage: test_completion.sh SOURCE_DIR KVDCTL KVD
set -eu
root=$1 kvdctl=$2 kvd=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAIL: $*" >&2; failures=$((failures + 1)); }

# Help of the real one, lists of our own; the command line that was asked for is kept.
cat >"$work/kvdctl" <<END
#!/bin/sh
[ "\$*" != --help ] || exec "$kvdctl" --help
echo "\$*" >>"$work/asked"
case "\$*" in
    *" continuations") echo '{ "continuations": [ { "continuation":	"0x100000001" }, { "continuation": "0x100000002" } ] }' ;;
    *" instances") echo '{ "instances": [ { "instance":	"main" }, { "instance": "test" } ] }' ;;
    *" sessions") echo '{ "sessions": [ { "session":	"0x200000007" } ] }' ;;
esac
END
chmod +x "$work/kvdctl"
"$kvdctl" --help >"$work/help"
awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }' "$work/help" | sort >"$work/commands"
awk '/^Options:/ { on = 1; next } /^$/ { on = 0 } on' "$work/help" | grep -oE '^ +(-[A-Za-z], +)?--[a-z-]+' | tr -d ' ' |
    tr ',' '\n' | sort >"$work/options"
ln -s "$kvd" "$work/kvd"
"$kvd" --help | grep -oE '^ +-[A-Za-z], +--[a-z-]+' | tr -d ' ' | tr ',' '\n' | sort >"$work/kvd.options"
[ "$(wc -l <"$work/commands")" -gt 10 ] || fail "this test reads the commands wrongly"
! awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on && substr($0, 30, 1) != " "' "$work/help" | grep . ||
    fail "this command and its arguments do not fit their column of --help, from which completions are read"

complete=kvdctl # whose completion
bash_offers() { # the words of a line; the last one is being typed
    bash -c 'source "$1"; f=_$2; shift 2; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); $f; printf "%s\n" "${COMPREPLY[@]}"' \
        bash "$root/deploy/completion/$complete.bash" $complete "$work/$complete" "$@" | grep . | sort
}
zsh_offers() { # zsh's own functions are replaced: what they would be told is what is offered
    zsh -fc '
        compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- $@ }
        _describe() { local name=$@[-1]; print -l -- ${${(P)name}%%:*} }
        _files() { print -l -- *(N) }
        compset() { }
        file=$1; shift; words=("$@"); CURRENT=$#; functions[_kvdctl_file]=$(<$file); _kvdctl_file' \
        zsh "$root/deploy/completion/_$complete" "$work/$complete" "$@" | grep . | sort
}

check() { # shell
    offers=$1_offers
    same() { # what, words...
        want=$1
        shift
        $offers "$@" >"$work/offered" || true
        printf '%s\n' "$want" | tr ' ' '\n' | grep . | sort >"$work/want" || true
        cmp -s "$work/want" "$work/offered" ||
            fail "$offers of \"$*\": $(tr '\n' ' ' <"$work/offered"), not $(tr '\n' ' ' <"$work/want")"
    }
    all() { tr '\n' ' ' <"$work/$1"; }
    same "$(all commands)" ""
    same "$(all commands)" --json ""
    same "$(all commands)" -s /run/x ""
    same "$(all options)" -
    same "$(all options)" status -
    # Every command: its words as they are, and an answer for each kind of argument.
    awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on { print substr($0, 3, 27) }' "$work/help" >"$work/usages"
    (cd "$work" && : >some-file)
    while read -r command args; do
        for arg in $args; do
            case $arg in
                HANDLE*) same "0x100000001 0x100000002" "$command" "" ;;
                SESSION*) same "0x200000007" "$command" "" ;;
                FILE*) ;; # below
                *[A-Z]*) fail "completions know no argument $arg of $command" ;;
                *) same "$(printf %s "$arg" | tr -d '[].' | tr '|' ' ')" "$command" "" ;;
            esac
            break
        done
    done <"$work/usages"
    same "0x100000001 0x100000002" release 0x100000001 0x100000002 ""
    same "" status ""
    same "auto always never" --color ""
    same "main test" --instance ""
    same "0x100000001 0x100000002" plan --from ""
    same "" plan --prompt ""
    same "record show" trace ""
    : >"$work/asked"
    same "0x200000007" --socket /run/other fence ""
    grep -q -- '--socket=/run/other' "$work/asked" || fail "$offers asks another daemon than that of the line"
    : >"$work/asked"
    same "0x100000001 0x100000002" -I other release ""
    grep -q -- '--instance=other' "$work/asked" || fail "$offers asks another instance than that of the line"
    (cd "$work" && $offers trace show "") | grep -qx some-file || fail "$offers: trace show offers no file"
    complete=kvd
    same "$(all kvd.options)" ""
    same "$(all kvd.options)" --check-config -
    (cd "$work" && $offers --config "") | grep -qx some-file || fail "$offers: kvd --config offers no file"
    complete=kvdctl
}

bash_equals() { bash_offers --color = "$1"; }
check bash
[ "$(bash_equals a)" = "$(printf 'always\nauto')" ] || fail "bash: --color=a"
[ "$(bash_offers sta)" = status ] || fail "bash: a word that is begun"
if command -v zsh >/dev/null 2>&1; then
    check zsh
    [ "$(zsh_offers --color=)" = "$(printf 'always\nauto\nnever')" ] || fail "zsh: --color="
else
    echo "zsh is not installed: only bash was tried"
fi
[ $failures -eq 0 ] || exit 1
echo "bash and zsh offer what kvd and kvdctl have"
