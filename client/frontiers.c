/* SPDX-License-Identifier: Apache-2.0
 *
 * The bell is rung once for each end of what is mapped that a sequence comes near to: kvd maps on, or refuses, and does
 * not change its mind for being asked again.
 */
#include "frontiers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "board.h"

#define PAGE 64u

/* For what the bell was rung last, of one row. */
struct rung {
    uint64_t turn;
    uint32_t mapped[KVD_MAX_POOLS];
};

struct frontiers {
    struct board_segment *segment;
    size_t bytes;
    int bell_fd;
    struct rung rung[];
};

/* ---- life ---------------------------------------------------------------------------------------------- */

static bool is_board(const struct board_segment *s, size_t bytes, uint64_t epoch, uint32_t n_rows) {
    return s->magic == BOARD_MAGIC && s->version == BOARD_VERSION && s->epoch == epoch &&
           s->slot_bytes == sizeof(struct board_slot) && s->n_slots == n_rows && board_bytes(n_rows) == bytes;
}

static struct board_segment *map_board(int fd, size_t *ret_bytes) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS), must = F_SEAL_SHRINK | F_SEAL_GROW;
    if (seals < 0 || (seals & must) != must || fstat(fd, &st) || st.st_size < (off_t)sizeof(struct board_segment))
        return NULL;
    *ret_bytes = (size_t)st.st_size;
    void *at = mmap(NULL, *ret_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct frontiers *frontiers_open(int segment_fd, int bell_fd, uint64_t epoch, uint32_t n_rows) {
    size_t bytes = 0;
    struct frontiers *f = NULL;
    struct board_segment *segment = map_board(segment_fd, &bytes);
    close(segment_fd);
    if (segment && is_board(segment, bytes, epoch, n_rows) && !madvise(segment, bytes, MADV_DONTFORK))
        f = calloc(1, sizeof *f + n_rows * sizeof *f->rung);
    if (!f) {
        if (segment) munmap(segment, bytes);
        close(bell_fd);
        return NULL;
    }
    f->segment = segment;
    f->bytes = bytes;
    f->bell_fd = bell_fd;
    return f;
}

void frontiers_close(struct frontiers *f, bool in_child) {
    if (!f) return;
    if (!in_child) munmap(f->segment, f->bytes); /* a child has something else there */
    close(f->bell_fd);
    free(f);
}

/* ---- advancing ------------------------------------------------------------------------------------------- */

static bool asks_for_more(const struct kvd_frontier *item) {
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        if (item->ensure[p] > item->mapped[p]) return true;
    return false;
}

/* A pool comes to the last page of what is mapped, and the bell was not rung for that end. */
static bool must_ring(struct rung *rung, uint64_t turn, const struct kvd_frontier *item) {
    bool ring = false;
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) {
        bool last_page = item->ensure[p] && (uint64_t)item->ensure[p] + PAGE > item->mapped[p];
        if (!last_page || (rung->turn == turn && rung->mapped[p] == item->mapped[p])) continue;
        rung->mapped[p] = item->mapped[p];
        ring = true;
    }
    if (ring) rung->turn = turn;
    return ring;
}

/* True: kvd is to look. */
static bool advance_one(struct frontiers *f, struct kvd_frontier *item) {
    struct board_slot *slot = &f->segment->slot[item->row];
    struct board_wish wishes[KVD_MAX_POOLS];
    uint64_t turn;
    enum board_standing standing = board_look(slot, item->sequence.bits, &turn, item->mapped);
    item->due = standing == BOARD_OFF || asks_for_more(item);
    if (standing != BOARD_ON) return false;
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        wishes[p] = (struct board_wish){ .commit = item->commit[p], .ensure = item->ensure[p] };
    board_write_wishes(slot, turn, wishes);
    return must_ring(&f->rung[item->row], turn, item);
}

uint32_t frontiers_advance(struct frontiers *f, struct kvd_frontier *items, uint32_t n) {
    uint64_t one = 1;
    uint32_t due = 0;
    bool ring = false;
    for (uint32_t i = 0; i < n; i++) {
        if (f) ring |= advance_one(f, &items[i]);
        else items[i].due = asks_for_more(&items[i]);
        due += items[i].due;
    }
    if (!ring) return due;
    ssize_t written = write(f->bell_fd, &one, sizeof one); /* full: it rings already */
    (void)written;
    return due;
}
