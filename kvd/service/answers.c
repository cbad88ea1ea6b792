/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "session.h"

#define N_SLOW (2 * SLOW_PER_SESSION)

struct answer *answer_find(struct session *session, uint64_t sequence) {
    struct answer *a = &session->answers.window[sequence % ANSWER_WINDOW];
    if (a->state != ANSWER_NONE && a->sequence == sequence) return a;
    for (size_t i = 0; i < N_SLOW; i++) {
        a = &session->answers.slow[i];
        if (a->state != ANSWER_NONE && a->sequence == sequence) return a;
    }
    return NULL;
}

/* Free, or the oldest that is done; NULL: all are in work. */
static struct answer *slow_place(const struct session *session) {
    const struct answer *best = NULL;
    for (size_t i = 0; i < N_SLOW; i++) {
        const struct answer *a = &session->answers.slow[i];
        if (a->state == ANSWER_NONE) return (struct answer *)a;
        if (a->state == ANSWER_DONE && (!best || a->sequence < best->sequence)) best = a;
    }
    return (struct answer *)best;
}

bool answer_has_slow_place(const struct session *session) { return slow_place(session); }

static void drop_body(struct service *s, struct session *session, struct answer *a) {
    session->answers.bytes -= a->bytes;
    s->answer_bytes -= a->bytes;
    free(a->body);
    a->body = NULL;
    a->bytes = 0;
}

static void answer_clear(struct service *s, struct session *session, struct answer *a) {
    drop_body(s, session, a);
    for (uint32_t i = 0; i < a->n_waiters; i++) link_unref(a->waiter[i].link);
    memset(a, 0, sizeof *a);
}

void answer_make_slow(struct service *s, struct session *session, uint64_t sequence) {
    struct answer *a = &session->answers.window[sequence % ANSWER_WINDOW], *slow = slow_place(session);
    if (a->state == ANSWER_NONE || a->sequence != sequence || !slow) return;
    answer_clear(s, session, slow);
    *slow = *a;
    memset(a, 0, sizeof *a);
}

struct answer *answer_begin(struct service *s, struct session *session, uint64_t sequence, uint16_t type, bool slow) {
    struct answer *a = slow ? slow_place(session) : NULL; /* who made it slow has seen that there is one */
    if (!a) a = &session->answers.window[sequence % ANSWER_WINDOW];
    answer_clear(s, session, a);
    a->sequence = sequence;
    a->type = type;
    a->state = ANSWER_PENDING;
    session->last_sequence = sequence;
    return a;
}

void answer_store(struct service *s, struct session *session, struct answer *answer, uint8_t *body, uint32_t bytes) {
    answer->body = body;
    answer->bytes = bytes;
    session->answers.bytes += bytes;
    s->answer_bytes += bytes;
    uint32_t limit = s->answer_bytes > ANSWER_TOTAL ? ANSWER_LEAST : ANSWER_BYTES;
    uint64_t oldest = session->last_sequence >= ANSWER_WINDOW ? session->last_sequence - ANSWER_WINDOW + 1 : 1;
    for (; session->answers.bytes > limit && oldest < session->last_sequence; oldest++) {
        struct answer *old = answer_find(session, oldest);
        if (old && old != answer && old->state == ANSWER_DONE) answer_clear(s, session, old);
    }
}

void answer_unstore(struct service *s, struct session *session, struct answer *answer) {
    if (session && answer) drop_body(s, session, answer);
}

void answers_free(struct service *s, struct session *session) {
    for (uint32_t i = 0; i < ANSWER_WINDOW; i++) answer_clear(s, session, &session->answers.window[i]);
    for (size_t i = 0; i < N_SLOW; i++) answer_clear(s, session, &session->answers.slow[i]);
}

void answers_leave(struct session *session, const struct link *link) {
    for (size_t i = 0; i < ANSWER_WINDOW + N_SLOW; i++) {
        struct answer *a = i < ANSWER_WINDOW ? &session->answers.window[i] : &session->answers.slow[i - ANSWER_WINDOW];
        uint32_t n = 0;
        for (uint32_t k = 0; k < a->n_waiters; k++) {
            if (a->waiter[k].link == link) link_unref(a->waiter[k].link);
            else a->waiter[n++] = a->waiter[k];
        }
        a->n_waiters = n;
    }
}
