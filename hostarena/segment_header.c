/* SPDX-License-Identifier: Apache-2.0
 * What stands before the tables: identity, state, drivers. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "segment_internal.h"

int segment_refuse(int r, char *err, size_t err_bytes, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (err_bytes) vsnprintf(err, err_bytes, format, arguments);
    va_end(arguments);
    return r;
}

uint64_t segment_random(void) {
    uint64_t id = 0;
    while (!id)
        if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) id = 0; /* only a signal at boot can cut it short */
    return id;
}

/* ---- identity ----------------------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

int segment_describe(const struct segment_config *config, struct segment_identity *ret_identity, char *err,
                     size_t err_bytes) {
    const struct directory_limits *l = &config->limits;
    uint64_t tables = directory_bytes(l);
    if (!tables)
        return segment_refuse(-EINVAL, err, err_bytes, "a segment needs 1 or %d pools with descriptors in each",
                              DIRECTORY_MAX_POOLS);
    uint64_t arena_offset = round_up(SEGMENT_TABLES + tables, SEGMENT_LARGE);
    if (config->arena_bytes > INT64_MAX - arena_offset - SEGMENT_PAGE)
        return segment_refuse(-EFBIG, err, err_bytes,
                              "an arena of %" PRIu64 " bytes is more than a file can have: lower [host] arena",
                              config->arena_bytes);
    uint64_t arena = round_up(config->arena_bytes, SEGMENT_PAGE);
    memset(ret_identity, 0, sizeof *ret_identity);
    ret_identity->magic = SEGMENT_MAGIC, ret_identity->version = SEGMENT_VERSION, ret_identity->n_pools = l->n_pools;
    ret_identity->total_bytes = arena ? arena_offset + arena : SEGMENT_TABLES + tables;
    ret_identity->tables_bytes = tables, ret_identity->arena_offset = arena_offset, ret_identity->arena_bytes = arena;
    for (uint32_t i = 0; i < l->n_pools; i++) ret_identity->pages[i] = l->pages[i];
    ret_identity->continuations = l->continuations, ret_identity->sequences = l->sequences;
    memcpy(ret_identity->geometry, config->geometry, sizeof ret_identity->geometry);
    return 0;
}

static uint64_t identity_check(const struct segment_identity *id) {
    return check_of(id, offsetof(struct segment_identity, check), SEGMENT_MAGIC);
}

static uint64_t state_check(uint64_t segment_id, uint32_t slot, const struct state_body *body) {
    return check_of(body, sizeof *body, segment_id ^ (UINT64_C(1) << 33 | slot));
}

/* The state slot that counts; 2: none. */
static uint32_t valid_state(uint64_t segment_id, const struct state_slot slots[2]) {
    bool good[2];
    for (uint32_t i = 0; i < 2; i++)
        good[i] = read_check(&slots[i].check) == state_check(segment_id, i, &slots[i].body);
    if (good[0] && good[1]) return slots[1].body.serial > slots[0].body.serial;
    return good[0] ? 0 : good[1] ? 1 : 2;
}

static struct directory_limits limits_of(const struct segment_identity *id);

/* Another one's sizes fit to each other. */
static bool is_laid_out(const struct segment_identity *id) {
    struct segment_config config = { .arena_bytes = id->arena_bytes, .limits = limits_of(id) };
    struct segment_identity same;
    return !segment_describe(&config, &same, NULL, 0) && same.total_bytes == id->total_bytes &&
           same.tables_bytes == id->tables_bytes && same.arena_offset == id->arena_offset &&
           same.arena_bytes == id->arena_bytes;
}

enum segment_found segment_judge(const struct segment_identity *want, uint64_t object_bytes, const void *page,
                                 size_t page_bytes, struct segment_identity *ret_identity) {
    struct segment_identity id;
    struct state_slot state[2];
    if (!object_bytes) return SEGMENT_NEW;
    if (page_bytes < SEGMENT_PAGE) return SEGMENT_DAMAGED;
    memcpy(&id, page, sizeof id);
    if (!id.check) return SEGMENT_NEW; /* written last */
    memcpy(state, (const char *)page + offsetof(struct segment_header, state), sizeof state);
    if (id.magic == SEGMENT_MAGIC && id.version != SEGMENT_VERSION) return SEGMENT_FOREIGN;
    if (id.check != identity_check(&id) || id.total_bytes != object_bytes) return SEGMENT_DAMAGED;
    if (id.n_pools != want->n_pools || memcmp(id.geometry, want->geometry, sizeof id.geometry)) return SEGMENT_FOREIGN;
    if (valid_state(id.segment_id, state) == 2 || !is_laid_out(&id)) return SEGMENT_DAMAGED;
    *ret_identity = id;
    return memcmp(&id, want, offsetof(struct segment_identity, segment_id)) ? SEGMENT_RESIZED : SEGMENT_ADOPTED;
}

void segment_sign(struct segment *s) {
    memcpy(&s->header->identity, &s->identity, offsetof(struct segment_identity, check));
    set_mark(&s->header->identity.check, identity_check(&s->identity), "segment.sign");
}

/* ---- state -------------------------------------------------------------------------------------------------- */

static void write_state(struct segment *s, const struct state_body *body) {
    struct state_slot *slots = s->header->state;
    uint32_t new = s->slot == 0;
    clear_mark(&slots[new].check, "segment.state.clean");
    slots[new].body = *body;
    slots[new].body.serial = s->state.serial + 1;
    set_mark(&slots[new].check, state_check(s->identity.segment_id, new, &slots[new].body), "segment.state");
    clear_mark(&slots[!new].check, "segment.state.old");
    s->state = slots[new].body;
    s->slot = new;
}

static struct directory_limits limits_of(const struct segment_identity *id) {
    struct directory_limits limits = { .n_pools = id->n_pools,
                                       .continuations = id->continuations,
                                       .sequences = id->sequences };
    memcpy(limits.pages, id->pages, sizeof limits.pages);
    return limits;
}

void segment_limits(const struct segment *segment, struct directory_limits *ret_limits) {
    *ret_limits = limits_of(&segment->identity);
}

/* The id is there before the tables are emptied: whenever this ends, no record of before counts, and the next one
 * finishes it. */
static void empty_tables(struct segment *s) {
    struct directory_limits limits = limits_of(&s->identity);
    struct state_body state = s->state;
    if (!state.formatted) {
        directory_format((uint8_t *)s->header + SEGMENT_TABLES, &limits, state.directory_id);
        CRASH_POINT("segment.emptied");
        state.formatted = 1;
        write_state(s, &state);
    }
    /* Cannot fail: limits and place were checked when the segment was described. */
    directory_open(s->handle, (uint8_t *)s->header + SEGMENT_TABLES, &limits, state.directory_id, &s->directory);
}

void segment_empty(struct segment *s) {
    struct state_body state = s->state;
    state.directory_id = segment_random();
    state.formatted = 0;
    write_state(s, &state);
    empty_tables(s);
}

void segment_resume(struct segment *s) {
    s->slot = valid_state(s->identity.segment_id, s->header->state);
    s->state = s->header->state[s->slot].body;
    empty_tables(s);
}

uint64_t segment_pools_id(const struct segment *segment) { return segment->state.pools_id; }

void segment_set_pools_id(struct segment *segment, uint64_t id) {
    struct state_body state = segment->state;
    state.pools_id = id;
    write_state(segment, &state);
}

/* ---- drivers ------------------------------------------------------------------------------------------------ */

static uint64_t driver_check(const struct segment *s, uint32_t slot, const struct driver_body *body) {
    return check_of(body, sizeof *body, s->identity.segment_id ^ (UINT64_C(2) << 33 | slot));
}

static bool driver_record(const struct segment *s, uint32_t slot, struct segment_driver *ret_driver) {
    const struct driver_slot *d = &s->header->drivers[slot];
    uint64_t check = read_check(&d->check);
    struct driver_body body = d->body;
    if (!check || check != driver_check(s, slot, &body)) return false;
    *ret_driver = (struct segment_driver){ body.pid, body.start_time };
    return true;
}

/* The slot of a driver; else SEGMENT_DRIVERS and, in *ret_free, the first slot that holds none. */
static uint32_t find_driver(const struct segment *s, const struct segment_driver *driver, uint32_t *ret_free) {
    struct segment_driver at;
    *ret_free = SEGMENT_DRIVERS;
    for (uint32_t i = 0; i < SEGMENT_DRIVERS; i++) {
        bool there = driver_record(s, i, &at);
        if (there && at.pid == driver->pid && at.start_time == driver->start_time) return i;
        if (!there && *ret_free == SEGMENT_DRIVERS) *ret_free = i;
    }
    return SEGMENT_DRIVERS;
}

int segment_driver_add(struct segment *segment, const struct segment_driver *driver) {
    uint32_t slot;
    if (find_driver(segment, driver, &slot) < SEGMENT_DRIVERS) return 0;
    if (slot == SEGMENT_DRIVERS) return -ENOSPC;
    struct driver_slot *d = &segment->header->drivers[slot];
    clear_mark(&d->check, "segment.driver.clean");
    d->body = (struct driver_body){ driver->pid, driver->start_time };
    set_mark(&d->check, driver_check(segment, slot, &d->body), "segment.driver.add");
    return 0;
}

void segment_driver_remove(struct segment *segment, const struct segment_driver *driver) {
    uint32_t unused, slot = find_driver(segment, driver, &unused);
    if (slot < SEGMENT_DRIVERS) clear_mark(&segment->header->drivers[slot].check, "segment.driver.remove");
}

uint32_t segment_drivers(const struct segment *segment, struct segment_driver *ret_drivers, uint32_t max) {
    struct segment_driver at;
    uint32_t n = 0;
    for (uint32_t i = 0; i < SEGMENT_DRIVERS; i++) {
        if (!driver_record(segment, i, &at)) continue;
        if (n == max) break;
        ret_drivers[n++] = at;
    }
    return n;
}
