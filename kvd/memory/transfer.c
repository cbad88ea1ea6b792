/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer.h"

#include "mutant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One batch, for all ranks. Arrays grow to the largest batch that used them and are kept. */
struct batch {
    struct batch *next;
    uint32_t tag;
    uint32_t n_copies, n_writes;
    struct store_copy copies[STORE_MAX_COPIES];
    struct write {
        uint32_t pool, count;
        uint64_t offset;
        size_t at; /* in values */
    } * writes;
    uint32_t room_writes;
    int32_t *values;
    size_t n_values, room_values;
    struct device_table_write *device_writes; /* [n_ranks][n_writes] */
    size_t room_device_writes;
    struct device_page_copy device_copies[KVD_MAX_RANKS][STORE_MAX_COPIES];
    uint64_t ticket[KVD_MAX_RANKS]; /* 0: done there */
    bool failed;
};

struct transfer {
    const struct pools *pools;
    const struct store *store;
    struct batch *building, *spare;
    struct batch *first, **last; /* in flight, in order of submission */
    struct batch *dead;          /* a lost device may still read them */
    uint64_t done[KVD_MAX_RANKS];
    bool lost, no_memory;
    char error[384];
};

int transfer_new(const struct pools *pools, const struct store *store, struct transfer **ret_transfer) {
    struct transfer *t = calloc(1, sizeof *t);
    if (!t) return 1;
    t->pools = pools;
    t->store = store;
    t->last = &t->first;
    *ret_transfer = t;
    return 0;
}

static void free_batches(struct batch *b) {
    for (struct batch *next; b; b = next) {
        next = b->next;
        free(b->writes);
        free(b->values);
        free(b->device_writes);
        free(b);
    }
}

struct transfer *transfer_free(struct transfer *t) {
    if (!t) return NULL;
    free_batches(t->building);
    free_batches(t->spare);
    free_batches(t->first);
    free_batches(t->dead);
    free(t);
    return NULL;
}

void transfer_lose(struct transfer *t, uint32_t rank, const char *why) {
    if (!t->lost) snprintf(t->error, sizeof t->error, "device.%u failed: %s", rank, why);
    t->lost = true;
}

/* Room for n elements in all; keeps what is there. */
static bool grow_array(void **array, size_t element, size_t n, size_t *room) {
    if (n <= *room) return true;
    size_t more = *room ? *room * 2 : 64;
    if (more < n) more = n;
    void *grown = realloc(*array, more * element);
    if (!grown) return false;
    *array = grown;
    *room = more;
    return true;
}

void transfer_begin(struct transfer *t) {
    t->no_memory = false;
    if (!t->building) {
        t->building = t->spare ? t->spare : calloc(1, sizeof *t->building);
        if (t->spare) t->spare = t->spare->next;
    }
    if (!t->building) {
        t->no_memory = true;
        return;
    }
    struct batch *b = t->building;
    b->next = NULL;
    b->n_copies = b->n_writes = 0;
    b->n_values = 0;
    b->failed = false;
}

void transfer_copy(struct transfer *t, const struct store_copy *copy) {
    struct batch *b = t->building;
    if (b && b->n_copies < STORE_MAX_COPIES) b->copies[b->n_copies++] = *copy;
}

static void add_slice(struct transfer *t, uint32_t pool, const struct kvd_pool_view *view) {
    struct batch *b = t->building;
    if (t->no_memory || !view->slice_count) return;
    size_t room = b->room_writes;
    if (!grow_array((void **)&b->writes, sizeof *b->writes, b->n_writes + 1, &room) ||
        !grow_array((void **)&b->values, sizeof *b->values, b->n_values + view->slice_count, &b->room_values)) {
        t->no_memory = true;
        return;
    }
    b->room_writes = (uint32_t)room;
    uint64_t entry = (uint64_t)view->row * t->pools->row_entries + view->slice_begin;
    b->writes[b->n_writes++] =
        (struct write){ .pool = pool, .count = view->slice_count, .offset = entry * 4, .at = b->n_values };
    memcpy(b->values + b->n_values, store_table_row(t->store, pool, view->row) + view->slice_begin,
           view->slice_count * sizeof *b->values);
    b->n_values += view->slice_count;
}

void transfer_rows(struct transfer *t, const struct kvd_pool_view *views) {
    for (uint32_t p = 0; p < t->pools->n_pools; p++) add_slice(t, p, &views[p]);
}

static struct device_page_copy device_copy(const struct pools *p, uint32_t rank, const struct store_copy *c) {
    if (c->kind == STORE_COPY_STATE)
        return (struct device_page_copy){ .spec = &p->state_spec,
                                          .n_pages = p->state_slots,
                                          .rank = 0,
                                          .region = p->state[rank],
                                          .src = c->src,
                                          .dst = c->dst,
                                          .columns = KVD_PAGE_TOKENS };
    return (struct device_page_copy){ .spec = &p->spec[c->pool],
                                      .n_pages = p->pages[c->pool],
                                      .rank = rank,
                                      .region = p->planes[c->pool][rank],
                                      .src = c->src,
                                      .dst = c->dst,
                                      .columns = c->columns };
}

static bool submit_batch_rank(struct transfer *t, struct batch *b, uint32_t rank) {
    const struct pools *p = t->pools;
    struct device_table_write *writes = b->n_writes ? b->device_writes + (size_t)rank * b->n_writes : NULL;
    bool inline_done = false;
    char why[320] = "";
    for (uint32_t i = 0; i < b->n_copies; i++) b->device_copies[rank][i] = device_copy(p, rank, &b->copies[i]);
    for (uint32_t i = 0; i < b->n_writes; i++)
        writes[i] = (struct device_table_write){ .region = p->table[b->writes[i].pool][rank],
                                                 .offset = b->writes[i].offset,
                                                 .count = b->writes[i].count,
                                                 .values = b->values + b->writes[i].at };
    struct device_batch batch = {
        .copies = b->device_copies[rank], .n_copies = b->n_copies, .writes = writes, .n_writes = b->n_writes
    };
    if (device_submit(p->device[rank], &batch, &b->ticket[rank], &inline_done, why, sizeof why)) {
        b->ticket[rank] = 0;
        b->failed = true;
        transfer_lose(t, rank, why);
        return false;
    }
    if (inline_done) b->ticket[rank] = 0;
    return !inline_done;
}

enum transfer_result transfer_submit(struct transfer *t, uint32_t tag) {
    struct batch *b = t->building;
    bool pending = false;
    if (t->lost) return TRANSFER_LOST;
    if (b && !t->no_memory && !b->n_copies && !b->n_writes) return TRANSFER_DONE;
    if (t->no_memory || !grow_array((void **)&b->device_writes, sizeof *b->device_writes,
                                    (size_t)b->n_writes * t->pools->n_ranks, &b->room_device_writes)) {
        transfer_lose(t, 0, "no memory to describe a batch; the tables on the device can no longer follow");
        return TRANSFER_LOST;
    }
    b->tag = tag;
    memset(b->ticket, 0, sizeof b->ticket);
    for (uint32_t r = 0; r < t->pools->n_ranks && !b->failed; r++) pending |= submit_batch_rank(t, b, r);
    if (!pending) return b->failed ? TRANSFER_LOST : TRANSFER_DONE;
    *t->last = b;
    t->last = &b->next;
    t->building = NULL;
    return TRANSFER_PENDING;
}

void transfer_publish(struct transfer *t, const struct kvd_pool_view *views) {
    transfer_begin(t);
    transfer_rows(t, views);
    (void)transfer_submit(t, 0);
}

static void poll_devices(struct transfer *t) {
    char why[320] = "";
    for (uint32_t r = 0; r < t->pools->n_ranks; r++)
        if (device_poll(t->pools->device[r], &t->done[r], why, sizeof why)) transfer_lose(t, r, why);
}

static bool batch_is_done(const struct transfer *t, const struct batch *b) {
    for (uint32_t r = 0; r < t->pools->n_ranks; r++)
        if (b->ticket[r] > t->done[r] && !(r && MUTANT(batches_of_rank_0_alone))) return false;
    return true;
}

bool transfer_collect(struct transfer *t, uint32_t *ret_tag, enum transfer_result *ret_result) {
    struct batch *b = t->first;
    if (!b) return false;
    if (!batch_is_done(t, b)) poll_devices(t);
    bool done = batch_is_done(t, b);
    if (!done && !t->lost) return false;
    *ret_tag = b->tag;
    *ret_result = done && !b->failed && !t->lost ? TRANSFER_DONE : TRANSFER_LOST;
    t->first = b->next;
    if (!t->first) t->last = &t->first;
    struct batch **to = done ? &t->spare : &t->dead;
    b->next = *to;
    *to = b;
    return true;
}

bool transfer_lost(const struct transfer *t) { return t->lost; }
const char *transfer_error(const struct transfer *t) { return t->error; }
