/* SPDX-License-Identifier: Apache-2.0
 *
 * The bell is an eventfd that nobody reads: epoll tells each ring, edge by edge. Who rings more often than any engine
 * needs is not heard for the rest of the second, so that nobody keeps the main thread busy; a worker that is not heard
 * sends a Round, as one without a board.
 */
#include "boards.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"
#include "mutant.h"
#include "session.h"
#include "transfer.h"

#define SECOND_NS UINT64_C(1000000000)
#define RINGS 4096u /* a second */

/* ---- life ---------------------------------------------------------------------------------------------- */

static struct board_segment *map_slots(int fd, size_t bytes) {
    if (fd < 0 || ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct board *board_new(uint64_t epoch, uint32_t n_slots) {
    struct board *board = calloc(1, sizeof *board);
    if (!board) return NULL;
    board->n_slots = n_slots;
    board->segment_fd = memfd_create("kvd-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    board->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    board->segment = map_slots(board->segment_fd, board_bytes(n_slots));
    if (!board->segment || board->bell_fd < 0) return board_free(board);
    board->segment->magic = BOARD_MAGIC;
    board->segment->version = BOARD_VERSION;
    board->segment->epoch = epoch;
    board->segment->n_slots = n_slots;
    board->segment->slot_bytes = sizeof(struct board_slot);
    return board;
}

struct board *board_free(struct board *board) {
    if (!board) return NULL;
    for (uint32_t i = 0; board->session && i < board->n_slots; i++) board_take_off(&board->segment->slot[i]);
    if (board->segment) munmap(board->segment, board_bytes(board->n_slots));
    if (board->segment_fd >= 0) close(board->segment_fd);
    if (board->bell_fd >= 0) close(board->bell_fd);
    free(board);
    return NULL;
}

bool boards_are_given(const struct service *s) { return s->config.ring && !s->config.state_bytes; }

static uint64_t tag_of(const struct service *s, const struct session *session) {
    return BOARD_TAG + (uint64_t)(session - s->sessions);
}

static bool hear_bell(struct service *s, const struct session *session, const struct board *board) {
    struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.u64 = tag_of(s, session) };
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, board->bell_fd, &e) == 0;
}

bool board_hand_over(struct service *s, struct session *session, struct board *board) {
    if (!hear_bell(s, session, board)) return false;
    board->session = session;
    session->board = board;
    return true;
}

static void forget_due(struct service *s, const struct board *board) {
    struct board **at = &s->due_boards;
    while (*at && *at != board) at = &(*at)->next;
    if (*at) *at = board->next;
}

void board_take_back(struct service *s, struct session *session) {
    struct board *board = session->board;
    if (!board) return;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, board->bell_fd, NULL); /* closing does not: the worker has the file, too */
    forget_due(s, board);
    s->deaf_boards -= board->deaf;
    session->board = board_free(board);
}

/* ---- sequences on it --------------------------------------------------------------------------------------- */

static struct board_slot *slot_at(struct service *s, const struct bundle *b) {
    struct session *session = session_find(s, b->launcher);
    if (!session || !session->board || b->on_board.row >= session->board->n_slots) return NULL;
    return &session->board->segment->slot[b->on_board.row];
}

const struct board_slot *board_slot_of(struct service *s, const struct bundle *b) { return slot_at(s, b); }

void board_expect_more(const struct service *s, struct bundle *b, const struct kvd_pool_view *views, uint32_t tag) {
    for (uint32_t p = 0; p < s->pools.n_pools; p++) b->on_board.mapped[p] = views[p].membership * KVD_PAGE_TOKENS;
    b->on_board.tag = tag;
}

bool board_expect(struct service *s, struct bundle *b, const struct kvd_pool_view *views, uint32_t tag) {
    b->on_board = (struct on_board){ .row = views[0].row };
    if (!slot_at(s, b)) return false;
    b->on_board.arrives = true;
    board_expect_more(s, b, views, tag);
    return true;
}

/* One entry of its row once more: batches end in order, and one without a write would be done at once. */
void board_follow(const struct service *s, const struct bundle *b) {
    const struct kvd_pool_view views[KVD_MAX_POOLS] = { { .row = b->on_board.row, .slice_count = 1 } };
    if (b->on_board.tag && !MUTANT(round_overtakes_its_board)) transfer_rows(s->transfer, views);
}

static void tell_mapped(struct service *s, struct bundle *b) {
    struct board_slot *slot = slot_at(s, b);
    if (!slot) return;
    if (!b->on_board.arrives) {
        board_raise(slot, b->on_board.mapped);
        return;
    }
    b->on_board.arrives = false;
    b->on_board.turn = ++s->board_turn;
    board_put(slot, b->seq.bits, b->on_board.turn, b->on_board.mapped);
}

void boards_published(struct service *s, uint32_t tag, bool done) {
    for (uint32_t i = 0, seen = 0; seen < s->n_bundles; i++) { /* new ones are the first that are free */
        struct bundle *b = &s->bundles[i];
        seen += b->used;
        if (!b->used || b->on_board.tag != tag) continue;
        b->on_board.tag = 0;
        if (done) tell_mapped(s, b);
    }
}

void board_remove(struct service *s, struct bundle *b) {
    struct board_slot *slot = b->on_board.turn ? slot_at(s, b) : NULL;
    if (slot) board_take_off(slot);
    b->on_board = (struct on_board){ 0 };
}

/* ---- bells ---------------------------------------------------------------------------------------------------- */

void board_go_on(struct service *s, struct board *board) {
    if (!board->due || board->busy) return;
    struct board **last = &s->due_boards;
    while (*last && *last != board) last = &(*last)->next;
    if (*last) return;
    board->next = NULL;
    *last = board;
}

struct board *boards_take_due(struct service *s) {
    struct board *board = s->due_boards;
    if (board) s->due_boards = board->next;
    return board;
}

/* Out of epoll: a file that is in it wakes its owner with errors, too. */
static void stop_hearing_bell(struct service *s, struct board *board) {
    if (board->deaf || epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, board->bell_fd, NULL)) return;
    board->deaf = true;
    s->deaf_boards++;
}

void board_rung(struct service *s, uint64_t tag) {
    pthread_mutex_lock(&s->lock);
    struct session *session = &s->sessions[tag - BOARD_TAG];
    struct board *board = session->used ? session->board : NULL;
    if (board) {
        uint64_t now = clock_ns();
        if (clock_since(board->second_ns, now) >= SECOND_NS) {
            board->second_ns = now;
            board->rings = 0;
        }
        if (++board->rings >= RINGS) stop_hearing_bell(s, board);
        board->due = true;
        board->at = 0;
        board_go_on(s, board);
    }
    pthread_mutex_unlock(&s->lock);
}

void boards_listen(struct service *s, uint64_t now_ns) {
    for (uint32_t i = 0; s->deaf_boards && i < s->config.sessions; i++) {
        const struct session *session = &s->sessions[i];
        struct board *board = session->used ? session->board : NULL;
        if (!board || !board->deaf || clock_since(board->second_ns, now_ns) < SECOND_NS) continue;
        board->deaf = !hear_bell(s, session, board); /* no memory: later */
        s->deaf_boards -= !board->deaf;
    }
}
