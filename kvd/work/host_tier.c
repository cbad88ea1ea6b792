/* SPDX-License-Identifier: Apache-2.0 */
#include "host_tier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "arena_import.h"
#include "cold_reader.h"
#include "cold_tier.h"
#include "core.h"
#include "events.h"
#include "log.h"
#include "pending.h"
#include "scrub.h"
#include "segment.h"
#include "tenant.h"
#include "transfer.h"

/* ---- the segment ---------------------------------------------------------------------------- */

/* The arena is one mapping, known to every device. */
static int pin_devices(void *context, void *address, uint64_t bytes, char *err, size_t err_bytes) {
    struct pools *p = context;
    char why[320] = "";
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        int code = device_pin(p->device[r], address, bytes, why, sizeof why);
        if (!code) continue;
        snprintf(err, err_bytes,
                 "device.%u cannot pin the arena: %s; lower arena = in section [host], or raise "
                 "LimitMEMLOCK",
                 r, why);
        while (r-- > 0) device_unpin(p->device[r], address);
        return code;
    }
    return 0;
}

static void unpin_devices(void *context, void *address, uint64_t bytes) {
    struct pools *p = context;
    (void)bytes;
    for (uint32_t r = 0; r < p->n_ranks; r++) device_unpin(p->device[r], address);
}

static int node_of(const struct service *s) {
    if (s->config.arena_node != CONFIG_AUTO32) return (int)s->config.arena_node;
    const char *pci = s->plan.identity[0].pci;
    return *pci ? segment_node_of_pci(pci) : SEGMENT_ANY_NODE;
}

static int open_segment(struct service *s, const char *prefix, enum segment_found *ret_found, char *err,
                        size_t err_bytes) {
    const struct config *c = &s->config;
    char name[96];
    plan_arena_name(prefix, name, sizeof name);
    struct segment_config config = { .name = name,
                                     .arena_bytes = store_get_config(s->store)->host_bytes,
                                     .numa_node = node_of(s),
                                     .lock = c->arena_lock != 0,
                                     .pin = pin_devices,
                                     .unpin = unpin_devices,
                                     .context = &s->pools };
    store_directory_limits(s->store, &config.limits);
    geom_packed_digest(&s->plan.spec, s->pools.n_pools, config.geometry);
    char why[512];
    if (!segment_open(&config, &s->segment, ret_found, why, sizeof why)) return 0;
    snprintf(err, err_bytes, "arena: %s", why);
    return 1;
}

/* ---- recovery --------------------------------------------------------------------------------- */

static void note_tenants(struct service *s) {
    struct kvd_continuation_info info;
    uint32_t cursor = 0;
    while (store_next_cont(s->store, &cursor, &info)) {
        store_cont cont = store_cont_of(info.continuation);
        tenant_note(s, cont, store_tag(s->store, cont));
    }
}

/* "12 pages of main, 3 of draft" */
static const char *by_pool(const struct service *s, const uint32_t pages[KVD_MAX_POOLS], char text[160]) {
    size_t n = 0;
    for (uint32_t p = 0; p < store_n_pools(s->store) && n < 160; p++)
        n += (size_t)snprintf(text + n, 160 - n, p ? ", %u of %s" : "%u pages of %s", pages[p],
                              plan_pool(&s->config, &s->plan.spec, p)->name);
    return text;
}

static void say_found(const struct service *s, enum segment_found found) {
    const struct store_recovered *r = &s->recovered;
    char pages[160], dropped[160];
    static const char *const founds[] = { [SEGMENT_NEW] = "new",
                                          [SEGMENT_ADOPTED] = "of an earlier kvd",
                                          [SEGMENT_RESIZED] = "laid out anew, it was of another size" };
    if (found == SEGMENT_FOREIGN || found == SEGMENT_DAMAGED) {
        LOG(LOG_WARNING, "arena of %" PRIu64 " bytes, emptied, %s: lost is all that an earlier kvd had cached there",
            segment_arena_bytes(s->segment),
            found == SEGMENT_FOREIGN ? "it was of another geometry or format, or there is no memory for two"
                                     : "its header was damaged");
        return;
    }
    LOG(r->shortened || r->dropped || r->damaged ? LOG_WARNING : LOG_NOTICE,
        "arena of %" PRIu64 " bytes, %s: %u continuations found (%u of them shortened) with %s and %u state images; "
        "lost: %u continuations, %s; %u damaged records",
        segment_arena_bytes(s->segment), founds[found], r->continuations, r->shortened, by_pool(s, r->pages, pages),
        r->images, r->dropped, by_pool(s, r->dropped_pages, dropped), r->damaged);
}

/* ---- another size (KEEP-1) --------------------------------------------------------------------- */

static void copy_packed(void *context, uint64_t from, uint64_t to, uint64_t bytes) {
    struct segment *segment = context;
    memcpy(segment_arena(segment) + to, segment_arena(segment_former(segment)) + from, bytes);
}

static int import_former(struct service *s, char *err, size_t err_bytes) {
    if (!arena_import(s->store, segment_former(s->segment), copy_packed, s->segment, &s->recovered))
        return segment_replace(s->segment, err, err_bytes);
    snprintf(err, err_bytes, "no memory to lay the arena out anew");
    return 1;
}

static int recover_arena(struct service *s, enum segment_found found, char *err, size_t err_bytes) {
    struct directory *directory = segment_directory(s->segment);
    bool lives = s->pools.adopted && segment_pools_id(s->segment) == s->pools.id;
    if (found == SEGMENT_ADOPTED) store_recover(s->store, directory, lives, &s->recovered);
    /* After recovery: device parts in the directory are of these now. */
    segment_set_pools_id(s->segment, s->pools.id);
    store_set_directory(s->store, directory);
    s->recovered.dropped += segment_lost(s->segment);
    if (found == SEGMENT_RESIZED && import_former(s, err, err_bytes)) return 1;
    note_tenants(s);
    say_found(s, found);
    return 0;
}

/* ---- life ---------------------------------------------------------------------------------------- */

int host_tier_open(struct service *s, const char *prefix, char *err, size_t err_bytes) {
    enum segment_found found;
    if (!s->config.arena_bytes && !s->pools.id) return 0;
    if (open_segment(s, prefix, &found, err, err_bytes)) return 1;
    if (recover_arena(s, found, err, err_bytes)) return 1;
    if (!s->config.arena_bytes) return 0;
    struct mover_config config = { .pools = &s->pools,
                                   .store = s->store,
                                   .transfer = s->transfer,
                                   .arena = segment_arena(s->segment),
                                   .arena_bytes = segment_arena_bytes(s->segment),
                                   .jobs = s->config.max_concurrency + MOVES_AT_ONCE + STOP_MOVES + COLD_MOVES,
                                   .threads = s->config.arena_threads == CONFIG_AUTO32 ? 0 : s->config.arena_threads,
                                   .damaged = damage_found };
    if (!mover_new(&config, &s->mover) &&
        (!s->config.scrub_rate || !scrub_new(s, config.arena, s->config.scrub_rate, &s->scrub)))
        return cold_tier_open(s, config.arena, err, err_bytes) || cold_reader_open(s, config.arena, err, err_bytes);
    snprintf(err, err_bytes, "no memory or threads for copies between device and host");
    return 1;
}

void host_tier_close(struct service *s) {
    static struct abandoned {
        struct abandoned *next;
        struct segment *segment;
    } * all;
    struct segment *segment = s->segment;
    if (!segment) return;
    cold_tier_close(s);
    scrub_free(s->scrub);
    mover_free(s->mover);
    s->segment = NULL;
    s->mover = NULL;
    s->scrub = NULL;
    if (!transfer_lost(s->transfer)) {
        segment_close(segment);
        return;
    }
    /* A device that does not answer may still write: the memory stays until the process is gone. */
    struct abandoned *one = malloc(sizeof *one);
    if (!one) return;
    *one = (struct abandoned){ all, segment };
    all = one;
}

void host_tier_stats(const struct service *s, struct host_stats *ret_stats) {
    *ret_stats = (struct host_stats){ 0 };
    const struct store_recovered *r = &s->recovered;
    if (s->mover) mover_get_stats(s->mover, &ret_stats->mover);
    scrub_get(s->scrub, &ret_stats->scrubbed_pages, &ret_stats->scrubbed_bytes);
    ret_stats->recovered[HOST_KEPT] = r->continuations;
    ret_stats->recovered[HOST_SHORTENED] = r->shortened;
    ret_stats->recovered[HOST_DROPPED] = r->dropped;
    ret_stats->recovered[HOST_DAMAGED] = r->damaged;
}
