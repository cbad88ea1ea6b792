/* SPDX-License-Identifier: Apache-2.0 */
#include "board.h"

#include <assert.h>

static_assert(sizeof(struct board_segment) == 64 && sizeof(struct board_slot) == 128 &&
                  offsetof(struct board_slot, wish) == 8 && offsetof(struct board_slot, turn) == 64 &&
                  offsetof(struct board_slot, sequence) == 72 && offsetof(struct board_slot, mapped) == 80,
              "PROTOCOL.md has these offsets");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "slots are shared with other processes");

#define STORE(at, value) atomic_store_explicit((at), (value), memory_order_release)
#define LOAD(at) atomic_load_explicit((at), memory_order_acquire)

/* ---- kvd ---- */

void board_put(struct board_slot *s, uint64_t sequence, uint64_t turn, const uint32_t *mapped) {
    STORE(&s->turn, 0);
    STORE(&s->sequence, sequence);
    board_raise(s, mapped);
    STORE(&s->turn, turn);
}

void board_raise(struct board_slot *s, const uint32_t *mapped) {
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) STORE(&s->mapped[p], mapped[p]);
}

void board_take_off(struct board_slot *s) { STORE(&s->turn, 0); }

bool board_read_wishes(const struct board_slot *s, uint64_t turn, struct board_wish *ret_wishes) {
    uint64_t wish[KVD_MAX_POOLS];
    if (LOAD(&s->worker_turn) != turn) return false;
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) wish[p] = LOAD(&s->wish[p]);
    if (LOAD(&s->worker_turn) != turn) return false;
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        ret_wishes[p] = (struct board_wish){ .commit = (uint32_t)wish[p], .ensure = (uint32_t)(wish[p] >> 32) };
    return true;
}

/* ---- the worker ---- */

enum board_standing board_look(const struct board_slot *s, uint64_t sequence, uint64_t *ret_turn,
                               uint32_t *ret_mapped) {
    uint32_t mapped[KVD_MAX_POOLS];
    uint64_t turn = LOAD(&s->turn);
    if (LOAD(&s->sequence) != sequence) return BOARD_STRANGE;
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) mapped[p] = LOAD(&s->mapped[p]);
    if (!turn || LOAD(&s->turn) != turn) return BOARD_OFF;
    *ret_turn = turn;
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) ret_mapped[p] = mapped[p];
    return BOARD_ON;
}

void board_write_wishes(struct board_slot *s, uint64_t turn, const struct board_wish *wishes) {
    bool fresh = atomic_load_explicit(&s->worker_turn, memory_order_relaxed) != turn;
    if (fresh) STORE(&s->worker_turn, 0);
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        STORE(&s->wish[p], (uint64_t)wishes[p].ensure << 32 | wishes[p].commit);
    if (fresh) STORE(&s->worker_turn, turn);
}
