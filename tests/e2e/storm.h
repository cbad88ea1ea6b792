/* SPDX-License-Identifier: Apache-2.0
 *
 * What the storm's clients (e2e_stormer) write and the test reads, in memory that both have mapped. A slot outlives the
 * processes that had it.
 */
#ifndef KVD_E2E_STORM_H
#define KVD_E2E_STORM_H

#include <stdatomic.h>
#include <stdint.h>

#include "e2e.h"

#define STORM_CLIENTS 64
#define STORM_TEXTS 96u    /* of the clients' prompts; see storm_text */
#define STORM_LONGEST 700u /* tokens of a prompt */
#define STORM_BOARD_FD 3

/* Texts of a family of eight share their first four pages. */
static inline uint64_t storm_text(uint32_t which) { return e2e_stream(1 + which / 8, 256, (uint16_t)(1 + which % 8)); }

struct storm_slot {
    _Atomic uint64_t session;                /* of the process that has the slot now */
    _Atomic uint64_t requests;               /* that came to their end */
    _Atomic uint64_t hits, compared, losses; /* columns; sessions that ended under it */
    _Atomic uint32_t status;                 /* of the last call */
    char call[24];                           /* which it was; for people */
    _Atomic uint32_t failed;                 /* set after why is written */
    char why[600];                           /* the first thing that must not be */
};
struct storm_board {
    struct storm_slot slot[STORM_CLIENTS];
};

#endif
