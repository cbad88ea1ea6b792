/* SPDX-License-Identifier: Apache-2.0
 *
 * The cold tier of the service: the client of its engine, and the thread that writes what was demoted. Section [cold]
 * of the configuration; address = none means that there is none, and every function here is then a no-op.
 *
 * What waits to be written holds nothing: it is a list of handles in the store, newest first. One page at a time is
 * read out of the arena, checked, and copied into a buffer of a fixed size; no request waits for that or for the engine
 * (COLD-2, COLD-4). What cannot be written is dropped and counted.
 */
#ifndef KVD_COLD_TIER_H
#define KVD_COLD_TIER_H

#include "cold_check.h"
#include "cold_engine.h"
#include "store.h"

struct service;

/* After the arena is open. 0, or 1 with a sentence. */
int cold_tier_open(struct service *service, const uint8_t *arena, char *err, size_t err_bytes);
/* Not under the core mutex; before the arena is closed. It waits for no engine. */
void cold_tier_close(struct service *service);

enum cold_drop {
    COLD_DROP_AGE = 0, /* demoted too long ago */
    COLD_DROP_QUEUE,   /* forgotten for newer ones */
    COLD_DROP_ENGINE,  /* the engine did not take some of it */
    COLD_DROP_ARENA,   /* retained: the arena had no room for a copy to write from */
    COLD_DROPS
};
struct cold_stats {
    bool on;
    struct cold_engine_state engine;
    uint64_t waiting;                        /* continuations to be written */
    uint64_t continuations;                  /* that were written, or found to be there */
    uint64_t written_objects, written_bytes; /* into the engine */
    uint64_t written_ns;                     /* time with writes under way */
    uint64_t met_objects;                    /* that were there */
    uint64_t dropped[COLD_DROPS];            /* continuations, of which the engine lacks some or all */
    uint64_t checks;                         /* that have ended */
    struct cold_checked checked;             /* by the last one */
    uint64_t checked_objects[COLD_CHECK_OUTCOMES];
};
/* Under the core mutex. */
void cold_tier_stats(const struct service *service, struct cold_stats *ret_stats);
/* A continuation that was kept: it is written, too, where [cold] write says so. Under the core mutex. */
void cold_tier_retained(struct service *service, store_cont cont);
/* A continuation of the arena is about to go: it is written first, before all that waits. Under the core mutex. False:
 * it is not, there is no engine that answers. */
bool cold_tier_offer(struct service *service, store_cont cont);
/* Whether it waits, or is just written. False also where the engine is left alone. Under the core mutex. */
bool cold_tier_is_writing(const struct service *service, store_cont cont);
/* Something goes to the arena that may count on what is there: no copy is given back. Under the core mutex. */
void cold_tier_keep_copy(struct service *service);
/* The move of its copy has ended. Under the core mutex. */
void cold_tier_copied(struct service *service, bool done);
/* Begins a check, or adds to the one that has not begun; it reads so many objects back. Under the core mutex. False:
 * there is no cold tier. */
bool cold_tier_check(struct service *service, uint32_t objects);

#endif
