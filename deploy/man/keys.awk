# SPDX-License-Identifier: Apache-2.0
# Turns the output of kvd --help-config into scdoc: "[section]" into a heading, the comment above each "#key = value"
# into its description. What stands before the first section is left out: the page says it itself.

function escape(text) {
    gsub(/[\\*_]/, "\\\\&", text)
    return text ~ /^[][|#.;`-]/ ? "\\" text : text # else it would be a table, a heading, a list ...
}
function describe(line) {
    if (line ~ /^(auto, or )?[0-9]+ to [0-9]+$/) line = "Values: " line "."
    else if (line ~ /^One of: /) line = line "."
    text = text "\t" escape(line) "\n"
}

/^\[/ { section = $0; text = ""; print "## " section "\n"; next }
section == "" { next }
/^# / { describe(substr($0, 3)); next }
/^#[a-z]/ {
    at = index($0, " =")
    name = substr($0, 2, at - 2)
    value = substr($0, at + 3)
    printf "*%s* =%s\n%s\n", escape(name), value == "" ? "" : " " escape(value), text
    text = ""
}
