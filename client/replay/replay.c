/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include <stdlib.h>

#include "kvd.h"

bool replay_failed(struct replay *r, uint32_t request, const char *what, enum kvd_status status, const char *message) {
    snprintf(r->shared->message, sizeof r->shared->message, "request %u: %s: %s: %s", request, what,
             kvd_status_name(status), message);
    return false;
}

uint32_t *replay_tokens(const struct replay *r) { return malloc(((size_t)r->longest + 1) * sizeof(uint32_t)); }
