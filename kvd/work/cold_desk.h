/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of the cold tier's reader: what its desks are made of. For cold_desk.c, cold_reader.c, cold_find.c and
 * cold_load.c.
 */
#ifndef KVD_COLD_DESK_H
#define KVD_COLD_DESK_H

#include <pthread.h>

#include "cold_pieces.h"
#include "cold_reader.h"

#define DESK_OPS 1024u /* in the engine at once */

/* Of a prompt's blocks: which pools have an object of it, and bit KVD_MAX_POOLS: its image. Block i is page first + i;
 * behind the pages a tail of one token, of two, and so on. */
struct cold_presence {
    uint32_t blocks;
    uint8_t has[KVD_MAX_DIGESTS + KVD_TAIL_TOKENS];
};

struct cold_desk {
    struct cold_reader *reader;
    struct cold_engine *engine;
    pthread_cond_t asked;
    struct cold_job *first, **last; /* under the reader's lock */
    pthread_t thread;
    bool runs;
    /* The thread's. */
    struct cold_op *ops; /* [DESK_OPS] */
    struct cold_presence presence;
};

struct cold_reader {
    struct service *service;
    uint8_t *arena;
    struct cold_naming naming;
    struct cold_most most; /* of one piece */
    uint64_t room;         /* bytes of the buffer */
    pthread_mutex_t lock;  /* a leaf: queues, stop, figures */
    bool stop;
    struct cold_reads reads;
    struct cold_desk finder, loader;
    uint8_t *buffer; /* the loader's */
    struct load_batch *batch;
    struct cold_absent *absent; /* the finder's */
};

/* The first n operations, all with this verb. */
void cold_run_ops(struct cold_desk *desk, enum cold_verb verb, uint32_t n, uint64_t deadline_ns);
/* Answers the job, or goes on with what comes behind it. Under the core mutex; the job is gone then. */
void cold_end_job(struct service *service, struct cold_job *job);

/* cold_find.c: asks the engine for the job's pages until the deadline. Returns the tokens up to which it has all that a
 * continuation needs; want.first pages: nothing. The tail of the job is as long as it is there then; found.pages is
 * set. */
uint32_t cold_look_up(struct cold_desk *desk, struct cold_job *job, uint64_t deadline_ns);
/* Bytes of the values between want.first and that frontier. */
uint64_t cold_cost_of(const struct cold_reader *reader, const struct cold_job *job, uint32_t frontier);
/* It ends the job. */
void cold_find(struct cold_desk *desk, struct cold_job *job);
/* What is not there is remembered for a moment: [COLD_ABSENT_SLOTS]. */
struct cold_absent {
    uint64_t mark, until_ns;
};
#define COLD_ABSENT_SLOTS 4096u

/* cold_load.c */
struct load_batch *cold_batch_new(void); /* NULL: no memory. free */
uint64_t cold_batch_bytes(void);
void cold_load(struct cold_desk *desk, struct cold_job *job); /* it ends the job */

#endif
