/* SPDX-License-Identifier: Apache-2.0 */
#include "arena_import.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct former_bundle {
    enum directory_kind kind;
    uint32_t slot, frontier, retention;
    uint64_t used;
};

static int by_value(const void *a, const void *b) {
    const struct former_bundle *x = a, *y = b;
    return store_compare_value(y->retention, y->used, x->retention, x->used);
}

static uint32_t list_former(struct directory *directory, const struct directory_limits *limits,
                            struct former_bundle *ret_list) {
    const uint32_t slots[] = {
        [DIRECTORY_CONTINUATION] = limits->continuations, [DIRECTORY_SEQUENCE] = limits->sequences
    };
    struct directory_bundle bundle;
    bool damaged;
    uint32_t n = 0;
    for (uint32_t kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < slots[kind]; i++)
            if (directory_bundle_load(directory, (enum directory_kind)kind, i, &bundle, &damaged))
                ret_list[n++] = (struct former_bundle){ (enum directory_kind)kind, i, bundle.frontier[0],
                                                        bundle.retention, bundle.used };
    qsort(ret_list, n, sizeof *ret_list, by_value);
    return n;
}

/* The most valuable first; the rest is lost, and counted. */
static void import_all(struct store *store, const struct store_import *from, const struct former_bundle *list,
                       uint32_t n, struct store_recovered *r) {
    struct kvd_stats stats;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t kept = store_import(store, from, list[i].kind, list[i].slot);
        r->continuations += kept > 0;
        r->shortened += kept > 0 && kept < list[i].frontier;
        r->dropped += kept == 0;
    }
    store_get_stats(store, &stats);
    for (uint32_t p = 0; p < store_n_pools(store); p++) r->pages[p] = stats.host_pages[p];
    r->images = stats.host_images;
}

int arena_import(struct store *store, struct segment *former,
                 void (*copy)(void *context, uint64_t from, uint64_t to, uint64_t bytes), void *context,
                 struct store_recovered *ret_recovered) {
    struct directory_limits limits;
    segment_limits(former, &limits);
    struct store_import from = { .directory = segment_directory(former),
                                 .arena_bytes = segment_arena(former) ? segment_arena_bytes(former) : 0,
                                 .copy = copy,
                                 .context = context };
    struct former_bundle *list = calloc((size_t)limits.continuations + limits.sequences, sizeof *list);
    bool room = list != NULL;
    for (uint32_t p = 0; p < limits.n_pools; p++) {
        from.map[p] = malloc(limits.pages[p] * sizeof *from.map[p]);
        room &= from.map[p] != NULL;
        if (from.map[p]) memset(from.map[p], 0xff, limits.pages[p] * sizeof *from.map[p]);
    }
    if (room) import_all(store, &from, list, list_former(segment_directory(former), &limits, list), ret_recovered);
    for (uint32_t p = 0; p < limits.n_pools; p++) free(from.map[p]);
    free(list);
    return !room;
}

/* ---- before there is a kvd ---- */

static void copy_nothing(void *context, uint64_t from, uint64_t to, uint64_t bytes) {
    (void)context, (void)from, (void)to, (void)bytes;
}

static uint32_t count_bundles(struct segment *segment) {
    struct directory_limits limits;
    uint32_t n = 0;
    segment_limits(segment, &limits);
    for (uint32_t i = 0; i < limits.continuations; i++)
        n += directory_bundle_is_there(segment_directory(segment), DIRECTORY_CONTINUATION, i);
    for (uint32_t i = 0; i < limits.sequences; i++)
        n += directory_bundle_is_there(segment_directory(segment), DIRECTORY_SEQUENCE, i);
    return n;
}

static int try_import(struct store *store, struct segment *segment, enum segment_found found,
                      struct arena_cost *ret_cost) {
    struct store_recovered r = { 0 };
    ret_cost->there = true;
    ret_cost->continuations = count_bundles(segment);
    ret_cost->kept = ret_cost->continuations;
    if (found == SEGMENT_ADOPTED) return 0;
    if (arena_import(store, segment, copy_nothing, NULL, &r)) return 1;
    ret_cost->kept = r.continuations;
    ret_cost->shortened = r.shortened;
    return 0;
}

int arena_cost_of(const struct config *config, const struct plan *plan, const char *name, struct arena_cost *ret_cost,
                  char *err, size_t err_bytes) {
    struct store_config c;
    struct store *store;
    struct segment *segment = NULL;
    enum segment_found found;
    *ret_cost = (struct arena_cost){ .there = false };
    plan_store_config(config, plan, &c);
    if (!c.recorded) return 0;
    size_t bytes = store_bytes(&c);
    void *memory = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                         : MAP_FAILED;
    if (memory == MAP_FAILED || store_init(memory, bytes, &c, &store, err, err_bytes) != STORE_OK) {
        if (memory != MAP_FAILED) munmap(memory, bytes);
        snprintf(err, err_bytes, "no memory to try what of the arena would stay");
        return 1;
    }
    struct segment_config peek = { .name = name, .arena_bytes = c.host_bytes };
    store_directory_limits(store, &peek.limits);
    geom_packed_digest(&plan->spec, plan->capacity.layout.n_pools, peek.geometry);
    int r = segment_peek(&peek, &segment, &found, err, err_bytes) != 0;
    if (!r && segment) {
        r = try_import(store, segment, found, ret_cost);
        if (r) snprintf(err, err_bytes, "no memory to try what of the arena would stay");
    } else if (!r) {
        ret_cost->there = ret_cost->foreign = found != SEGMENT_NEW;
    }
    segment_close(segment);
    munmap(memory, bytes);
    return r;
}
