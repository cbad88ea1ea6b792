# SPDX-License-Identifier: Apache-2.0
# The blocks of one kind of a Markdown file, one after the other: awk -v kind=c -f blocks.awk FILE
# Those of C know where they come from.
$0 == "```" kind { inside = 1; if (kind == "c") printf "#line %d \"%s\"\n", NR + 1, FILENAME; next }
/^```/ { inside = 0; next }
inside { print }
