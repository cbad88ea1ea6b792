/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-64 of packed pages in a few threads of their own: a page is read whole, which takes longer than the core mutex
 * may be held. A batch of pages goes in, the same batch comes out with its sums.
 *
 * Threads: submit and collect from any thread (a mutex of its own, a leaf). Nothing is allocated after checksum_new.
 */
#ifndef KVD_CHECKSUM_H
#define KVD_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

#define CHECKSUM_PAGES 64u

struct checksum;

struct checksum_batch {
    struct checksum_batch *next; /* the pool's, */
    uint32_t taken, summed;      /* as these are: pages that threads have begun, and ended */
    uint32_t n;                  /* at least 1 */
    struct {
        const uint8_t *at;
        uint64_t bytes, sum;
    } page[CHECKSUM_PAGES];
};

/* What suits the machine and the links of so many devices: one for two CPUs, at most 8 a device. */
uint32_t checksum_threads(uint32_t devices);
/* Threads that cannot be started are done without. 0, or 1: no memory or not one thread. */
int checksum_new(uint32_t threads, struct checksum **ret_checksum);
/* What was submitted and not collected is forgotten. NULL is fine; returns NULL. */
struct checksum *checksum_free(struct checksum *checksum);
/* The batch is the pool's until collected. urgent: before what is not, which has a turn beside it now and then. */
void checksum_submit(struct checksum *checksum, struct checksum_batch *batch, bool urgent);
struct checksum_batch *checksum_collect(struct checksum *checksum); /* NULL: none is done */
/* An eventfd, readable when a batch is done, or after a kick. Read its 8 bytes, then collect. */
int checksum_event_fd(const struct checksum *checksum);
void checksum_kick(struct checksum *checksum);

uint64_t checksum_of(const uint8_t *at, uint64_t bytes);

#endif
