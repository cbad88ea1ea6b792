/* SPDX-License-Identifier: Apache-2.0
 *
 * Boards (board.h): which sequences stand on the board of a session, and what is told there. What a worker writes on
 * its board is looked at when it rings, by sweep.h.
 *
 * A sequence is on the board of its launcher, from the end of the Round in which that asked to map. Whatever changes
 * who may run on it takes it off first. What is mapped is told when it is in device memory (ROW-4): a bundle remembers
 * the batch, and boards_published tells what came with it.
 *
 * Under the core mutex unless said otherwise.
 */
#ifndef KVD_BOARDS_H
#define KVD_BOARDS_H

#include "board.h"
#include "bundle.h"

struct session;

struct board {
    struct board_segment *segment;
    uint32_t n_slots;
    int segment_fd, bell_fd;
    struct session *session; /* whose it is */
    bool due;                /* its wishes are to be looked at, from bundle `at` on */
    bool busy;               /* a batch of the last look is under way */
    bool deaf;               /* it rang too often */
    uint32_t at, rings;
    uint64_t second_ns;
    struct board *next; /* of those that are due and not busy */
};

/* Numbers at the socket of descriptors. */
enum { BOARD_SEGMENT_FD = 1u << 17, BOARD_BELL_FD };
#define BOARD_TAG (UINT32_C(1) << 31) /* in epoll: of a bell, + the session's index */

/* Without the lock. NULL: no memory or no file. */
struct board *board_new(uint64_t epoch, uint32_t n_slots);
/* All sequences are off it. NULL is fine; returns NULL. */
struct board *board_free(struct board *board);
/* The store has boards: shared memory is allowed, and a frontier needs no state image. Any thread. */
bool boards_are_given(const struct service *s);
/* Takes the board over; false: its bell cannot be watched. */
bool board_hand_over(struct service *s, struct session *session, struct board *board);
/* The session ends. */
void board_take_back(struct service *s, struct session *session);

/* A Round mapped for the sequence; the batch with this tag brings the rows. True: boards_published must be called. */
bool board_expect(struct service *s, struct bundle *b, const struct kvd_pool_view *views, uint32_t tag);
/* The same for a sequence that is on the board. */
void board_expect_more(const struct service *s, struct bundle *b, const struct kvd_pool_view *views, uint32_t tag);
/* ROW-4: the batch that is being built ends after the one that this bundle's board waits for, if there is one. */
void board_follow(const struct service *s, const struct bundle *b);
/* A batch has ended; done: its rows are in device memory. */
void boards_published(struct service *s, uint32_t tag, bool done);
/* Takes it off. */
void board_remove(struct service *s, struct bundle *b);
/* Where a bundle's worker writes; NULL: nowhere. */
const struct board_slot *board_slot_of(struct service *s, const struct bundle *b);

/* A bell rang (its tag in epoll). Takes the lock. */
void board_rung(struct service *s, uint64_t tag);
/* Those that rang too often are heard again when their second is over. */
void boards_listen(struct service *s, uint64_t now_ns);
/* The board is looked at again if it is due. */
void board_go_on(struct service *s, struct board *board);
struct board *boards_take_due(struct service *s); /* NULL: none */

#endif
