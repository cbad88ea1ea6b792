/* SPDX-License-Identifier: Apache-2.0
 *
 * What the audits share: the report, and walks in steps.
 */
#include <stdarg.h>
#include <stdio.h>

#include "audit.h"

void audit_report(struct audit *a, const char *format, ...) {
    va_list args;
    a->violations++;
    if (!a->text || a->used + 1 >= a->bytes) return;
    va_start(args, format);
    int n = vsnprintf(a->text + a->used, a->bytes - a->used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n + 1 >= a->bytes - a->used) { /* a line that does not fit is left out */
        a->text[a->used] = '\0';
        a->bytes = a->used;
        return;
    }
    a->used += (size_t)n;
    a->text[a->used++] = '\n';
    a->text[a->used] = '\0';
}

bool audit_spend(struct audit *a, uint64_t work) {
    a->left -= min_u64(work, a->left);
    return a->left > 0;
}

bool audit_each(struct audit *a, uint32_t n, uint32_t (*look)(struct audit *, uint32_t)) {
    while (a->at < n)
        if (!audit_spend(a, look(a, a->at++))) break;
    if (a->at < n) return false;
    a->at = 0;
    return true;
}
