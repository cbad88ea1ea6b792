/* SPDX-License-Identifier: Apache-2.0
 *
 * Workers for the IPC tests: processes that attach a CUDA store through libkvd and use its views with the driver API on
 * command, so that a test can kill them at exact points. The program runs itself with --worker.
 */
#ifndef KVD_TESTS_GPU_IPC_H
#define KVD_TESTS_GPU_IPC_H

#include <sys/types.h>

#include "driver.h"
#include "e2e.h"

#define IPC_ENTRIES 512u /* of a row that an answer carries */

enum ipc_op {
    IPC_CONNECT = 1, /* -> session */
    IPC_CONTEXT,     /* creates the CUDA context -> ms */
    IPC_ATTACH,      /* flip: with a wrong UUID -> ms */
    IPC_ROW,         /* pool, row -> entries: the row as it stands in device memory */
    IPC_WRITE,    /* pool, row, seed, [from, to): bytes that follow from seed and position, in every layer and plane */
    IPC_CHECK,    /* compares them: KVD_OK or KVD_DATA_LOSS */
    IPC_SCRIBBLE, /* pool, row, from: starts a kernel that stores to the first 8 bytes of that token's page for ever */
    IPC_PEEK,     /* pool, row, from: 8 bytes there -> word */
    IPC_ROUND,    /* item */
    IPC_DETACH    /* and disconnects: kvd is another one */
};

struct ipc_call {
    enum ipc_op op;
    uint32_t pool, row, from, to;
    uint32_t rank, device; /* of CONTEXT and ATTACH */
    bool flip;
    uint64_t seed;
    char socket[128];
    struct kvd_round_item item;
};
struct ipc_answer {
    enum kvd_status status;
    char message[KVD_MESSAGE_BYTES];
    kvd_session_id session;
    double ms;
    uint64_t word;
    struct kvd_round_result result;
    int32_t entries[IPC_ENTRIES];
};

struct ipc_worker {
    pid_t pid;
    int fd;
    uint32_t rank; /* and device */
    kvd_session_id session;
    double context_ms, attach_ms;
};

int ipc_worker_main(void); /* fd 3 */

bool ipc_start(struct ipc_worker *worker);
bool ipc_do(struct ipc_worker *worker, const struct ipc_call *call, struct ipc_answer *ret_answer);
void ipc_kill(struct ipc_worker *worker); /* SIGKILL and reap */
/* Started, connected, with a context, attached: true. Failures are recorded. */
bool ipc_open(struct ipc_worker *worker, const struct e2e_daemon *daemon);
bool ipc_open_rank(struct ipc_worker *worker, const struct e2e_daemon *daemon, uint32_t rank); /* on device `rank` */
/* A worker that lives connects and attaches anew. */
bool ipc_reopen(struct ipc_worker *worker, const struct e2e_daemon *daemon);
enum kvd_status ipc_columns(struct ipc_worker *worker, enum ipc_op op, uint32_t pool, uint32_t row, uint64_t seed,
                            uint32_t from, uint32_t to);

/* The byte of (seed, layer, slot, head, position, i): BF16 planes hold small whole numbers in every element, so that
 * others can compute them. */
uint16_t ipc_value(uint64_t seed, uint32_t layer, uint32_t slot, uint32_t head, uint32_t position, uint32_t d);

#endif
