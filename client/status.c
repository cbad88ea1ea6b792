/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "client.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *kvd_version(void) {
    return TEXT(KVD_VERSION_MAJOR) "." TEXT(KVD_VERSION_MINOR) "." TEXT(KVD_VERSION_PATCH);
}

const char *kvd_status_name(enum kvd_status status) {
    switch ((int)status) {
#define STATUS_NAME(name, code, ...)                                                                                   \
    case code: return #name;
        KVD_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    default: return "?";
    }
}

bool kvd_status_retryable(enum kvd_status status) {
    switch ((int)status) {
#define STATUS_AGAIN(name, code, again, ...)                                                                           \
    case code: return again;
        KVD_STATUS_LIST(STATUS_AGAIN)
#undef STATUS_AGAIN
    default: return false;
    }
}

enum kvd_status client_fail(struct kvd_error *error, enum kvd_status status, const char *format, ...) {
    if (!error) return status;
    va_list args;
    va_start(args, format);
    error->status = status;
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return status;
}
