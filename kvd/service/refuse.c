/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "request.h"

void call_refuse(struct call *call, enum kvd_status status, const char *format, ...) {
    va_list arguments;
    memset(&call->reply.u, 0, sizeof call->reply.u);
    call->reply.status = (uint32_t)status;
    call->short_of = METRICS_SHORT_LIMIT;
    va_start(arguments, format);
    vsnprintf(call->reply.message, sizeof call->reply.message, format, arguments);
    va_end(arguments);
}

enum kvd_status status_of_store(enum store_code code) {
    switch (code) {
    case STORE_OK: return KVD_OK;
    case STORE_E_STALE: return KVD_NOT_FOUND;
    case STORE_E_LEASE: return KVD_PERMISSION_DENIED;
    case STORE_E_STATE:
    case STORE_E_INCOMPLETE:
    case STORE_E_UNNAMED:
    case STORE_E_TIER:
    case STORE_E_PROTECTED: return KVD_FAILED_PRECONDITION;
    case STORE_E_RANGE:
    case STORE_E_ENTITLEMENT: return KVD_OUT_OF_RANGE;
    case STORE_E_NEVER:
    case STORE_E_NAME:
    case STORE_E_ARGUMENT: return KVD_INVALID_ARGUMENT;
    case STORE_E_SHORT: return KVD_RESOURCE_EXHAUSTED;
    case STORE_E_BUSY:
    case STORE_E_REVISION: return KVD_ABORTED;
    case STORE_E_DAMAGED: return KVD_DATA_LOSS;
    case STORE_MORE:
    case STORE_WAIT: break; /* of commits, which handle them */
    }
    return KVD_INTERNAL;
}

enum metrics_short short_of_store(const struct store_refusal *refusal) {
    static const enum metrics_short shorts[] = { [STORE_S_ROW] = METRICS_SHORT_ROWS,
                                                 [STORE_S_SEQUENCE] = METRICS_SHORT_SEQUENCES,
                                                 [STORE_S_CONTINUATION] = METRICS_SHORT_CONTINUATIONS,
                                                 [STORE_S_PAGE_DESCRIPTOR] = METRICS_SHORT_MEMBERSHIP,
                                                 [STORE_S_MEMBERSHIP] = METRICS_SHORT_MEMBERSHIP,
                                                 [STORE_S_STATE_SLOT] = METRICS_SHORT_STATE_SLOTS,
                                                 [STORE_S_ARENA] = METRICS_SHORT_ARENA };
    uint32_t pool = refusal->pool < KVD_MAX_POOLS ? refusal->pool : 0;
    if (refusal->subject == STORE_S_PAGES) return METRICS_SHORT_PAGES + pool;
    return (size_t)refusal->subject < sizeof shorts / sizeof *shorts ? shorts[refusal->subject] : METRICS_SHORT_LIMIT;
}

void call_refuse_store(struct call *call, const struct store_refusal *refusal) {
    char text[KVD_MESSAGE_BYTES];
    call_refuse(call, status_of_store(refusal->code), "%s", store_refusal_text(refusal, text, sizeof text));
    call->short_of = short_of_store(refusal);
}
