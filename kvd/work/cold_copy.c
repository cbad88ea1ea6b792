/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_copy.h"

#include "clock.h"
#include "core.h"
#include "pending.h"
#include "stage.h"
#include "transfer.h"

void cold_copy_ended(struct cold_copy *copy, bool done) { copy->state = done ? COLD_COPY_THERE : COLD_COPY_REFUSED; }

static bool has_room(const struct service *s, uint64_t bytes) {
    struct kvd_stats stats;
    store_get_stats(s->store, &stats);
    return bytes <= stats.host_capacity / 2 && stats.host_occupied <= stats.host_capacity / 2 - bytes;
}

/* Nothing of it is in the arena: what is there is of somebody else's making, and so may be what would come to it. */
static bool is_on_device_alone(const struct service *s, store_cont cont, uint64_t *ret_bytes) {
    const struct store_config *config = store_get_config(s->store);
    struct kvd_continuation_info info;
    struct store_refusal refusal;
    if (store_cont_look(s->store, cont, &info, &refusal) || info.live || info.demoted || info.moving) return false;
    bool alone = !info.image_in_host;
    *ret_bytes = info.image_on_device ? config->host_state_stride : 0;
    for (uint32_t p = 0; p < s->pools.n_pools; p++) {
        alone &= !info.host_pages[p];
        *ret_bytes += info.pages[p] * config->host_stride[p];
    }
    return alone;
}

static enum cold_copy_state begin_move(struct service *s, struct cold_copy *copy) {
    struct pending *op = s->ops + (size_t)s->config.sessions * PENDING_SLOTS + STOP_MOVES;
    struct store_refusal refusal = { 0 };
    char why[KVD_MESSAGE_BYTES];
    enum kvd_status status;
    store_move move;
    uint64_t bytes;
    if (s->stopping || transfer_lost(s->transfer) || !is_on_device_alone(s, copy->cont, &bytes)) return COLD_COPY_NONE;
    if (!has_room(s, bytes)) return COLD_COPY_REFUSED;
    int code = store_move_begin(s->store, copy->cont, STORE_PLACE_BOTH, &move, &refusal);
    if (code) return code == STORE_E_SHORT ? COLD_COPY_REFUSED : COLD_COPY_NONE;
    *op = (struct pending){
        .used = true, .slow = true, .cold_copy = true, .kind = PENDING_MOVE, .move = move, .arrived_ns = clock_ns()
    };
    s->n_moves++;
    stage_submit(s, op, (struct store_transition){ true, move.bits }, NULL, 0, NULL);
    if (!move_advance(s, op, &status, why, sizeof why)) {
        s->cold_copying = copy->cont;
        return COLD_COPY_RUNNING;
    }
    pending_free(s, op);
    return status == KVD_OK ? COLD_COPY_THERE : COLD_COPY_REFUSED;
}

enum cold_copy_state cold_copy_begin(struct service *s, struct cold_copy *copy, store_cont cont) {
    pthread_mutex_lock(&s->lock);
    *copy = (struct cold_copy){ .cont = cont };
    copy->state = begin_move(s, copy);
    enum cold_copy_state state = copy->state;
    pthread_mutex_unlock(&s->lock);
    return state;
}

enum cold_copy_state cold_copy_state_of(struct service *s, const struct cold_copy *copy) {
    pthread_mutex_lock(&s->lock);
    enum cold_copy_state state = copy->state;
    pthread_mutex_unlock(&s->lock);
    return state;
}

bool cold_copy_give_back(struct service *s, struct cold_copy *copy) {
    struct store_refusal refusal = { 0 };
    uint32_t dropped[KVD_MAX_POOLS];
    pthread_mutex_lock(&s->lock);
    int code = copy->kept ? 0 : store_drop_replica(s->store, copy->cont, KVD_TIER_HOST, dropped, &refusal);
    pthread_mutex_unlock(&s->lock);
    return code != STORE_E_BUSY; /* other refusals: it is gone, or the arena has it for good by now */
}
