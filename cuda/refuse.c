/* SPDX-License-Identifier: Apache-2.0 */
#include "refuse.h"

#include <stdarg.h>
#include <stdio.h>

int refuse_with(int code, char *err, size_t err_bytes, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (err && err_bytes) vsnprintf(err, err_bytes, format, args);
    va_end(args);
    return code;
}
