/* SPDX-License-Identifier: Apache-2.0
 *
 * The last hour, for people: figures every ten seconds, and the last events, in rings of fixed size.
 *
 * All functions are called under the core mutex, but for history_is_due: from the thread of service_run.
 */
#ifndef KVD_HISTORY_H
#define KVD_HISTORY_H

#include "kvd_types.h"

struct service;

#define HISTORY_STEP_NS UINT64_C(10000000000)
#define HISTORY_SAMPLES 361u
#define HISTORY_EVENTS 64u

/* Counters are those of the metrics page, since the start. */
struct history_sample {
    uint64_t time_ms; /* since 1970 */
    uint64_t tokens, requests, refusals, prompt_tokens, reused_tokens, endless_tokens, moved_bytes, occupied_bytes;
    uint32_t sequences, continuations, available[KVD_MAX_POOLS];
};
struct history_event {
    uint64_t time_ms;
    struct kvd_event event;
    char session[KVD_NAME_BYTES]; /* name of its session; empty: it has none, or is gone */
};
struct history {
    uint64_t due_ns;
    uint64_t samples, events; /* so far; number i is at i % HISTORY_SAMPLES, i % HISTORY_EVENTS */
    struct history_sample sample[HISTORY_SAMPLES];
    struct history_event event[HISTORY_EVENTS];
};

uint64_t history_time_ms(void); /* of now. Any thread */
bool history_is_due(const struct history *history, uint64_t now_ns);
/* Notes the figures of now; the next ones are due a step after now_ns. */
void history_note(struct service *service, uint64_t now_ns);
void history_note_event(struct service *service, const struct kvd_event *event);

#endif
