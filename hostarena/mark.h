/* SPDX-License-Identifier: Apache-2.0
 *
 * Marks: check words that say that what stands beside them is there and whole. Written after it, cleared before it
 * changes; 0 says that nothing is there. The directory and the segment's header are made of records under marks.
 */
#ifndef KVD_HOSTARENA_MARK_H
#define KVD_HOSTARENA_MARK_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

#include "crash.h"

typedef _Atomic uint64_t check_word;
_Static_assert(sizeof(check_word) == 8, "a check word is stored whole");

/* The check word of a body; the seed ties it to its place. Never 0. */
static inline uint64_t check_of(const void *body, size_t bytes, uint64_t seed) {
    uint64_t check = XXH3_64bits_withSeed(body, bytes, seed);
    return check ? check : 1;
}

static inline uint64_t read_check(const check_word *check) { return atomic_load_explicit(check, memory_order_acquire); }

/* What was written before the mark is there before it, what follows comes after it: a killed process leaves its stores
 * in the order of the program, and the compiler must keep that order. */
static inline void set_mark(check_word *check, uint64_t value, const char *where) {
    (void)where;
    CRASH_POINT(where);
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(check, value, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    CRASH_POINT(where);
}

static inline void clear_mark(check_word *check, const char *where) {
    if (read_check(check)) set_mark(check, 0, where);
}

#endif
