# bash completion of kvdctl                                                            SPDX-License-Identifier: Apache-2.0
# Commands, options and what they take are read from `kvdctl --help`: they are those of the program that is there.
# Handles are asked of the daemon that the line names.

# Commands as "name arguments", options as "--name ARGUMENT" and "-n ARGUMENT".
_kvdctl_commands() {
    "$1" --help 2>/dev/null | awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 }
        on { line = substr($0, 3); sub(/   *.*/, "", line); print line }'
}
_kvdctl_options() {
    "$1" --help 2>/dev/null | awk '/^Options:/ { on = 1; next } /^$/ { on = 0 }
        on { line = substr($0, 3); sub(/^ +/, "", line); sub(/   *.*/, "", line); n = split(line, names, /, */)
             value = index(names[n], "=") ? substr(names[n], index(names[n], "=") + 1) : ""
             for (i = 1; i <= n; i++) { sub(/=.*/, "", names[i]); print names[i], value } }'
}

_kvdctl_instances() { # kvdctl
    "$1" --timeout=500 --json instances 2>/dev/null | grep -o '"instance":[[:space:]]*"[^"]*"' | cut -d '"' -f 4
}

_kvdctl_handles() { # kvdctl, option that names the daemon, list, key
    "$1" ${2:+"$2"} --timeout=500 --json "$3" 2>/dev/null | grep -o "\"$4\":[[:space:]]*\"0x[0-9a-f]*\"" |
        grep -o '0x[0-9a-f]*'
}

# What may stand for one word of the usage.
_kvdctl_kind() { # kvdctl, option that names the daemon, word of the usage, what is typed
    local kind=${3//[\[\].]/} IFS=$' \t\n'
    case $kind in
        HANDLE | HANDLES) COMPREPLY=($(compgen -W "$(_kvdctl_handles "$1" "$2" continuations continuation)" -- "$4")) ;;
        SESSION) COMPREPLY=($(compgen -W "$(_kvdctl_handles "$1" "$2" sessions session)" -- "$4")) ;;
        NAME) COMPREPLY=($(compgen -W "$(_kvdctl_instances "$1")" -- "$4")) ;;
        FILE | PATH) IFS=$'\n'; COMPREPLY=($(compgen -f -- "$4")); compopt -o filenames 2>/dev/null ;;
        WHEN) COMPREPLY=($(compgen -W "auto always never" -- "$4")) ;;
        *[A-Z]*) ;; # a number
        *) COMPREPLY=($(compgen -W "${kind//|/ }" -- "$4")) ;;
    esac
}

_kvdctl() {
    local program=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} daemon= command= place=0 waits= i word args usage IFS=$' \t\n'
    local -A takes=()
    COMPREPLY=()
    while read -r word args; do takes[$word]=$args; done < <(_kvdctl_options "$program")
    for ((i = 1; i < COMP_CWORD; i++)); do # "--socket=x" comes as three words
        word=${COMP_WORDS[i]}
        if [[ $word == = && $waits ]]; then continue; fi
        if [[ $waits ]]; then
            case $waits in
                --socket | -s) daemon=--socket=$word ;;
                --instance | -I) daemon=--instance=$word ;;
            esac
            waits=
        elif [[ $word == -* ]]; then
            [[ ${takes[$word]-} ]] && waits=$word
        elif [[ ! $command ]]; then command=$word
        else place=$((place + 1))
        fi
    done
    [[ $cur == = ]] && cur=
    if [[ $waits ]]; then
        _kvdctl_kind "$program" "$daemon" "${takes[$waits]}" "$cur"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "${!takes[*]}" -- "$cur"))
    elif [[ ! $command ]]; then
        COMPREPLY=($(compgen -W "$(_kvdctl_commands "$program" | cut -d' ' -f1)" -- "$cur"))
    else
        read -r -a usage < <(_kvdctl_commands "$program" | sed -n "s/^$command //p")
        [[ ${#usage[@]} -gt 0 && $place -ge ${#usage[@]} && ${usage[-1]} == *... ]] && place=$((${#usage[@]} - 1))
        [[ ${usage[place]-} ]] && _kvdctl_kind "$program" "$daemon" "${usage[place]}" "$cur"
    fi
    return 0
}
complete -F _kvdctl kvdctl
