/* SPDX-License-Identifier: Apache-2.0 */
#include "history.h"

#include <string.h>
#include <time.h>

#include "core.h"
#include "mover.h"
#include "named_before.h"
#include "session.h"

uint64_t history_time_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

bool history_is_due(const struct history *history, uint64_t now_ns) { return now_ns >= history->due_ns; }

void history_note(struct service *s, uint64_t now_ns) {
    struct history *h = &s->history;
    struct mover_stats moved = { .pages_left = 0 };
    struct kvd_stats stats;
    store_get_stats(s->store, &stats);
    if (s->mover) mover_get_stats(s->mover, &moved);
    struct history_sample *to = &h->sample[h->samples++ % HISTORY_SAMPLES];
    *to = (struct history_sample){ .time_ms = history_time_ms(),
                                   .tokens = stats.committed_tokens,
                                   .requests = s->requests,
                                   .refusals = s->refusals,
                                   .prompt_tokens = s->metrics.prompt_tokens,
                                   .reused_tokens = s->metrics.reused_tokens,
                                   .endless_tokens = s->metrics.endless_tokens + named_before_tokens(s->named_before),
                                   .moved_bytes = moved.bytes[0] + moved.bytes[1],
                                   .occupied_bytes = stats.host_occupied,
                                   .sequences = stats.sequences,
                                   .continuations = stats.continuations };
    for (uint32_t p = 0; p < stats.n_pools; p++) to->available[p] = stats.pool[p].available;
    h->due_ns = now_ns + HISTORY_STEP_NS;
}

void history_note_event(struct service *s, const struct kvd_event *event) {
    struct history_event *to = &s->history.event[s->history.events++ % HISTORY_EVENTS];
    const struct session *session = event->session.bits ? session_find(s, event->session) : NULL;
    *to = (struct history_event){ .time_ms = history_time_ms(), .event = *event };
    if (session) memcpy(to->session, session->name, sizeof to->session);
}
