/* SPDX-License-Identifier: Apache-2.0
 *
 * The board of a session (PROTOCOL.md): memory that a worker shares with kvd, one slot for each row of pool 0. The
 * worker writes how far the GPU has come and what it needs next; kvd writes what is mapped. So steady decode makes no
 * call. Both sides may write anywhere at any moment: kvd believes nothing that it reads here, and reads nothing that it
 * wrote here.
 *
 * Turns. A Round of the session that asks for `ensure` puts its sequence on the board under a turn, a number that is
 * never used again. The worker repeats it beside its wishes, so that what it wrote for an earlier sequence of the row,
 * or before a truncation, counts no more. kvd takes a sequence off by storing turn 0.
 *
 * Order. A writer stores turn 0, then the fields, then the turn (all release). A reader loads the turn, the fields and
 * the turn again (all acquire), and has read fields of one turn if both are the same.
 *
 * Threads: a slot has one writer at a time on each side.
 */
#ifndef KVD_PROTO_BOARD_H
#define KVD_PROTO_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvd_types.h"

#define BOARD_MAGIC UINT32_C(0x4264766b) /* "kvdB" */
#define BOARD_VERSION 1u

struct board_slot {
    /* the worker writes */
    _Alignas(64) _Atomic uint64_t worker_turn;
    _Atomic uint64_t wish[KVD_MAX_POOLS]; /* commit | ensure << 32 */
    /* kvd writes */
    _Alignas(64) _Atomic uint64_t turn; /* 0: a message is needed */
    _Atomic uint64_t sequence;
    _Atomic uint32_t mapped[KVD_MAX_POOLS]; /* tokens whose pages are in the row in device memory */
};

struct board_segment {
    /* constant; kvd writes them before anybody else has the segment */
    uint32_t magic, version;
    uint64_t epoch; /* of the instance */
    uint32_t n_slots, slot_bytes;
    _Alignas(64) struct board_slot slot[];
};

static inline size_t board_bytes(uint32_t n_slots) {
    return sizeof(struct board_segment) + (size_t)n_slots * sizeof(struct board_slot);
}

/* What a worker says of one pool, in tokens, as in an item of a Round. 0: nothing. */
struct board_wish {
    uint32_t commit, ensure;
};

/* ---- kvd ---- */

/* The sequence is on the board. turn: not 0, never used before. */
void board_put(struct board_slot *slot, uint64_t sequence, uint64_t turn, const uint32_t *mapped);
/* More is mapped, under the same turn. */
void board_raise(struct board_slot *slot, const uint32_t *mapped);
/* The sequence is off the board: the worker needs a Round. */
void board_take_off(struct board_slot *slot);
/* What the worker wishes under this turn, of all pools. False: nothing. */
bool board_read_wishes(const struct board_slot *slot, uint64_t turn, struct board_wish *ret_wishes);

/* ---- the worker ---- */

enum board_standing {
    BOARD_STRANGE = 0, /* the slot says nothing of this sequence */
    BOARD_OFF,         /* it was on the board: send a Round */
    BOARD_ON
};
/* BOARD_ON: its turn, and of all pools what is mapped. */
enum board_standing board_look(const struct board_slot *slot, uint64_t sequence, uint64_t *ret_turn,
                               uint32_t *ret_mapped);
void board_write_wishes(struct board_slot *slot, uint64_t turn, const struct board_wish *wishes);

#endif
