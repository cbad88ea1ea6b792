/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "scrub.h"
#include "segment.h"

struct host {
    struct host *next; /* abandoned before */
    struct segment *segment;
    struct mover *mover;
    struct scrub *scrub;
    struct store_recovered recovered;
};

/* ---- the segment ---------------------------------------------------------------------------- */

/* The arena is one mapping, known to every device. */
static int pin(void *context, void *address, uint64_t bytes, char *err, size_t err_bytes) {
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

static void unpin(void *context, void *address, uint64_t bytes) {
    struct pools *p = context;
    (void)bytes;
    for (uint32_t r = 0; r < p->n_ranks; r++) device_unpin(p->device[r], address);
}

/* "/kvd-0123456789abcdef-" -> "/kvd-arena-0123456789abcdef" */
static void arena_name(const char *prefix, char *name, size_t bytes) {
    const char *instance = strncmp(prefix, "/kvd-", 5) == 0 ? prefix + 5 : prefix;
    int n = (int)strlen(instance);
    if (n && instance[n - 1] == '-') n--;
    snprintf(name, bytes, "/kvd-arena-%.*s", n, instance);
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
    arena_name(prefix, name, sizeof name);
    struct segment_config config = { .name = name,
                                     .arena_bytes = store_get_config(s->store)->host_bytes,
                                     .numa_node = node_of(s),
                                     .lock = c->arena_lock != 0,
                                     .pin = pin,
                                     .unpin = unpin,
                                     .context = &s->pools };
    store_directory_limits(s->store, &config.limits);
    memcpy(config.geometry, s->pools.info.geometry.bytes, sizeof config.geometry);
    char why[512];
    if (!segment_open(&config, &s->host->segment, ret_found, why, sizeof why)) return 0;
    snprintf(err, err_bytes, "arena: %s", why);
    return 1;
}

/* ---- recovery --------------------------------------------------------------------------------- */

static void note_tenants(struct service *s) {
    struct store_cont_info info;
    uint32_t cursor = 0;
    while (store_next_cont(s->store, &cursor, &info)) tenant_note(s, info.cont, info.tag);
}

static void say_found(const struct service *s, enum segment_found found) {
    const struct store_recovered *r = &s->host->recovered;
    static const char *const founds[] = { [SEGMENT_NEW] = "new",
                                          [SEGMENT_ADOPTED] = "of an earlier kvd",
                                          [SEGMENT_FOREIGN] = "emptied, it was of another geometry or size",
                                          [SEGMENT_DAMAGED] = "emptied, its header was damaged" };
    LOG(found == SEGMENT_NEW || found == SEGMENT_ADOPTED ? LOG_NOTICE : LOG_WARNING,
        "arena of %" PRIu64 " bytes, %s: %u continuations found (%u of them shortened) with %u + %u pages and %u state "
        "images; lost: %u continuations, %u + %u pages; %u damaged records",
        segment_arena_bytes(s->host->segment), founds[found], r->continuations, r->shortened, r->pages[0], r->pages[1],
        r->images, r->dropped, r->dropped_pages[0], r->dropped_pages[1], r->damaged);
}

static void recover(struct service *s, enum segment_found found) {
    struct directory *directory = segment_directory(s->host->segment);
    bool lives = s->pools.adopted && segment_pools_id(s->host->segment) == s->pools.id;
    if (found == SEGMENT_ADOPTED) store_recover(s->store, directory, lives, &s->host->recovered);
    /* After recovery: device parts in the directory are of these now. */
    segment_set_pools_id(s->host->segment, s->pools.id);
    store_set_directory(s->store, directory);
    note_tenants(s);
    say_found(s, found);
}

/* ---- life ---------------------------------------------------------------------------------------- */

int host_open(struct service *s, const char *prefix, char *err, size_t err_bytes) {
    enum segment_found found;
    if (!s->config.arena_bytes && !s->pools.id) return 0;
    s->host = calloc(1, sizeof *s->host);
    if (!s->host) {
        snprintf(err, err_bytes, "no memory for the host tier");
        return 1;
    }
    if (open_segment(s, prefix, &found, err, err_bytes)) return 1;
    recover(s, found);
    if (!s->config.arena_bytes) return 0;
    struct mover_config config = { .pools = &s->pools,
                                   .store = s->store,
                                   .transfer = s->transfer,
                                   .arena = segment_arena(s->host->segment),
                                   .arena_bytes = segment_arena_bytes(s->host->segment),
                                   .jobs = s->config.max_concurrency + MOVES_AT_ONCE + STOP_MOVES,
                                   .threads = s->config.arena_threads == CONFIG_AUTO32 ? 0 : s->config.arena_threads,
                                   .damaged = damage_found };
    if (!mover_new(&config, &s->host->mover) &&
        (!s->config.scrub_rate || !scrub_new(s, config.arena, s->config.scrub_rate, &s->host->scrub)))
        return 0;
    snprintf(err, err_bytes, "no memory or threads for copies between device and host");
    return 1;
}

void host_close(struct service *s) {
    struct host *h = s->host;
    if (!h) return;
    scrub_free(h->scrub);
    mover_free(h->mover);
    s->host = NULL;
    if (transfer_lost(s->transfer)) {
        static struct host *abandoned;
        h->next = abandoned;
        abandoned = h;
        return; /* a device that does not answer may still write: the memory stays until the process is gone */
    }
    segment_close(h->segment);
    free(h);
}

struct segment *host_segment(const struct service *s) {
    return s->host ? s->host->segment : NULL;
}

static struct mover *mover_of(const struct service *s) { return s->host ? s->host->mover : NULL; }

/* ---- the mover -------------------------------------------------------------------------------------- */

bool host_work(const struct service *s, struct store_transition of, struct store_work *ret_work) {
    return mover_of(s) && !store_get_work(s->store, of, ret_work) && ret_work->copies_out + ret_work->copies_in;
}

bool host_start(struct service *s, struct store_transition of, const struct store_work *work, uint32_t tag) {
    return mover_start(s->host->mover, of, work, tag);
}

void host_cancel(struct service *s, uint32_t tag) {
    if (mover_of(s)) mover_cancel(mover_of(s), tag);
}

void host_run(struct service *s) {
    if (mover_of(s)) mover_run(mover_of(s));
}

bool host_collect(struct service *s, uint32_t *ret_tag, enum mover_result *ret_result, struct mover_moved *ret_moved) {
    return mover_of(s) && mover_collect(mover_of(s), ret_tag, ret_result, ret_moved);
}

int host_event_fd(const struct service *s) { return mover_of(s) ? mover_event_fd(mover_of(s)) : -1; }

void host_kick(struct service *s) {
    if (mover_of(s)) mover_kick(mover_of(s));
}

void host_get_stats(const struct service *s, struct host_stats *ret_stats) {
    *ret_stats = (struct host_stats){ 0 };
    if (!s->host) return;
    const struct store_recovered *r = &s->host->recovered;
    if (mover_of(s)) mover_get_stats(mover_of(s), &ret_stats->mover);
    scrub_get(s->host->scrub, &ret_stats->scrubbed_pages, &ret_stats->scrubbed_bytes);
    ret_stats->recovered[HOST_KEPT] = r->continuations;
    ret_stats->recovered[HOST_SHORTENED] = r->shortened;
    ret_stats->recovered[HOST_DROPPED] = r->dropped;
    ret_stats->recovered[HOST_DAMAGED] = r->damaged;
}
