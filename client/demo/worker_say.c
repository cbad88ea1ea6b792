/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "worker.h"

static void say_message(struct worker *worker, uint32_t type, const struct engine_lane *lane) {
    struct wire_message *m = &worker->message;
    m->type = type;
    m->id = lane->id;
    m->pid = (uint32_t)getpid();
    m->frontier = lane->committed[ENGINE_MAIN];
    if (worker->engine.n_pools > 1 && lane->committed[1] < m->frontier) m->frontier = lane->committed[1];
    m->held = lane->hold_at != 0 && m->frontier == lane->hold_at;
    m->bounded = lane->bounded;
    m->drafted = lane->drafted;
    m->accepted = lane->accepted;
    (void)wire_send(worker->scheduler, m);
}

void worker_say(struct worker *worker, uint32_t type, const struct engine_lane *lane) {
    worker->message.n_tokens = 0;
    say_message(worker, type, lane);
}

void worker_say_failed(struct worker *worker, const struct engine_lane *lane, const char *why) {
    size_t n = strlen(why);
    worker->message.n_tokens = (uint32_t)(n < WIRE_MAX_TOKENS ? n : WIRE_MAX_TOKENS);
    memcpy(worker->message.tokens, why, worker->message.n_tokens);
    say_message(worker, WIRE_FAILED, lane);
}

void worker_say_tokens(struct worker *worker) {
    for (uint32_t i = 0; i < ENGINE_LANES; i++) {
        struct engine_lane *lane = &worker->engine.lane[i];
        if (!lane->used || lane->known == lane->reported) continue;
        worker->message.first = lane->reported;
        worker->message.n_tokens = lane->known - lane->reported;
        memcpy(worker->message.tokens, lane->history + lane->reported, worker->message.n_tokens);
        say_message(worker, WIRE_TOKENS, lane);
        lane->reported = lane->known;
    }
}
