# bash completion of kvd                                                               SPDX-License-Identifier: Apache-2.0
# Options are read from `kvd --help`: they are those of the program that is there.

_kvd() {
    local program=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} IFS=$' \t\n'
    COMPREPLY=()
    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]} # "--config=x" comes as three words
    [[ $cur == = ]] && before=${COMP_WORDS[COMP_CWORD - 1]} cur=
    if [[ $before == -c || $before == --config || $before == -F || $before == --from-hf ]]; then
        IFS=$'\n'
        COMPREPLY=($(compgen -f -- "$cur"))
        compopt -o filenames 2>/dev/null
    else
        COMPREPLY=($(compgen -W "$("$program" --help 2>/dev/null | grep -oE '^ +(-[A-Za-z], )?--[a-z-]+' | tr -d ,)" -- "$cur"))
    fi
    return 0
}
complete -F _kvd kvd
