/* SPDX-License-Identifier: Apache-2.0
 *
 * A session's board in this process (board.h): frontiers out, what is mapped in, by plain loads and stores.
 *
 * Threads: one thread at a time advances a sequence.
 */
#ifndef KVD_CLIENT_FRONTIERS_H
#define KVD_CLIENT_FRONTIERS_H

#include "kvd.h"

struct frontiers;

/* Maps a board that must be this instance's and have a slot for each row. Takes both descriptors over, in every case.
 * NULL: it is no such segment, or no memory. A child of fork() does not have it. */
struct frontiers *frontiers_open(int segment_fd, int bell_fd, uint64_t epoch, uint32_t n_rows);
/* NULL is fine. Also in a fork's child. */
void frontiers_close(struct frontiers *frontiers, bool in_child);
/* frontiers NULL: there is no board, and a Round is due where more is asked for than is mapped. Returns how many are
 * due. */
uint32_t frontiers_advance(struct frontiers *frontiers, struct kvd_frontier *items, uint32_t n);

#endif
