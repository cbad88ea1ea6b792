/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of the directory's tables. They may hold anything: what does not check does not count, and what checks is still
 * held against the limits, so that no value leaves here that the caller could not index with. Bodies are copied out
 * before they are judged.
 */
#include "directory.h"

#include <string.h>

#include "directory_internal.h"

#define PAGE_TOKENS 64u
#define MAX_BLOCK (INT32_MAX / PAGE_TOKENS)

/* ---- pages -------------------------------------------------------------------------------------------------- */

static bool good_base(const struct directory *d, uint32_t pool, uint32_t page, const struct base_body *b) {
    if (b->parent == DIRECTORY_NONE) return b->block <= MAX_BLOCK && b->parent_generation == 0;
    return b->block > 0 && b->block <= MAX_BLOCK && b->parent < d->limits.pages[pool] && b->parent != page;
}

enum found_record { ABSENT, GOOD, DAMAGED };

static enum found_record load_base(const struct directory *d, uint32_t pool, uint32_t page, struct base_body *ret_body,
                                   uint64_t *ret_check) {
    const struct page_record *r = &d->pages[pool][page];
    uint64_t check = read_check(&r->base.check);
    struct base_body body = r->base.body;
    if (!check) return ABSENT;
    if (check != base_check(d, pool, page, &body) || !good_base(d, pool, page, &body)) return DAMAGED;
    *ret_body = body;
    *ret_check = check;
    return GOOD;
}

bool directory_page_is_open(const struct directory *d, uint32_t pool, uint32_t page) {
    struct base_body body;
    uint64_t check;
    return page_is_known(d, pool, page) && load_base(d, pool, page, &body, &check) == GOOD;
}

/* Copies the body of a part out, if it is there; counts it where it is there and does not check. */
static bool load_part(const check_word *check, const void *body, size_t bytes, uint64_t seed, void *ret_body,
                      uint32_t *damaged) {
    uint64_t mark = read_check(check);
    if (!mark) return false;
    memcpy(ret_body, body, bytes);
    bool good = mark == check_of(ret_body, bytes, seed);
    *damaged += !good;
    return good;
}

static void load_parts(const struct page_record *r, uint64_t base, struct directory_page *page) {
    struct host_body host;
    struct device_body device;
    uint32_t *damaged = &page->damaged_parts;
    page->named =
        load_part(&r->name.check, &r->name.body, sizeof r->name.body, base + PART_NAME, page->digest, damaged);
    if (!page->named) memset(page->digest, 0, sizeof page->digest);
    if (load_part(&r->host.check, &r->host.body, sizeof host, base + PART_HOST, &host, damaged)) {
        page->has_host = host.columns >= 1 && host.columns <= PAGE_TOKENS;
        *damaged += !page->has_host;
        if (page->has_host) page->host = (struct directory_host){ host.offset, host.checksum, host.columns };
    }
    if (load_part(&r->device.check, &r->device.body, sizeof device, base + PART_DEVICE, &device, damaged))
        page->device = device.device;
}

bool directory_page_load(const struct directory *d, uint32_t pool, uint32_t page, struct directory_page *ret_page,
                         bool *ret_damaged) {
    struct base_body body;
    uint64_t check;
    *ret_damaged = false;
    if (!page_is_known(d, pool, page)) return false;
    enum found_record found = load_base(d, pool, page, &body, &check);
    *ret_damaged = found == DAMAGED;
    if (found != GOOD) return false;
    memset(ret_page, 0, sizeof *ret_page);
    ret_page->base = (struct directory_base){ body.generation, body.block, body.parent, body.parent_generation };
    ret_page->device = DIRECTORY_NONE;
    load_parts(&d->pages[pool][page], check, ret_page);
    return true;
}

/* ---- bundles ------------------------------------------------------------------------------------------------ */

static bool good_bundle(const struct directory *d, const struct bundle_body *b) {
    for (uint32_t i = 0; i < d->limits.n_pools; i++) {
        if (b->frontier[i] > INT32_MAX) return false;
        bool none = b->last[i] == DIRECTORY_NONE; /* at a page boundary a window may be empty */
        if (none ? b->frontier[i] % PAGE_TOKENS != 0 : b->last[i] >= d->limits.pages[i]) return false;
    }
    if (b->label[sizeof b->label - 1]) return false;
    return b->named <= MAX_BLOCK + 1 && b->state_frontier <= INT32_MAX;
}

/* Only n_tail tokens of the tail are read. */
static enum found_record load_copy(const struct directory *d, enum directory_kind kind, uint32_t slot, uint32_t copy,
                                   struct bundle_body *ret_body) {
    const struct bundle_copy *c = &d->bundles[kind][(size_t)slot * 2 + copy];
    uint64_t check = read_check(&c->check);
    if (!check) return ABSENT;
    memcpy(ret_body, &c->body, offsetof(struct bundle_body, tail));
    if (ret_body->n_tail > DIRECTORY_TAIL) return DAMAGED;
    memcpy(ret_body->tail, c->body.tail, ret_body->n_tail * sizeof ret_body->tail[0]);
    return check == bundle_check(d, kind, slot, copy, ret_body) && good_bundle(d, ret_body) ? GOOD : DAMAGED;
}

static enum found_record load_place(const struct directory *d, enum directory_kind kind, uint32_t slot,
                                    struct bundle_body *ret_body, uint32_t *ret_copy) {
    struct bundle_body second;
    enum found_record a = load_copy(d, kind, slot, 0, ret_body), b = load_copy(d, kind, slot, 1, &second);
    if (b == GOOD && (a != GOOD || second.serial > ret_body->serial)) {
        memcpy(ret_body, &second, offsetof(struct bundle_body, tail) + second.n_tail * sizeof second.tail[0]);
        *ret_copy = 1;
        return GOOD;
    }
    *ret_copy = a == GOOD ? 0 : 2;
    return a == GOOD ? GOOD : a == DAMAGED || b == DAMAGED ? DAMAGED : ABSENT;
}

uint32_t bundle_valid_copy(const struct directory *d, enum directory_kind kind, uint32_t slot) {
    struct bundle_body body;
    uint32_t copy;
    load_place(d, kind, slot, &body, &copy);
    return copy;
}

bool directory_bundle_is_there(const struct directory *d, enum directory_kind kind, uint32_t slot) {
    return slot_is_known(d, kind, slot) && bundle_valid_copy(d, kind, slot) < 2;
}

static void read_bundle(const struct directory *d, const struct bundle_body *from, struct directory_bundle *to) {
    memset(to, 0, sizeof *to);
    for (uint32_t i = 0; i < DIRECTORY_MAX_POOLS; i++) {
        bool used = i < d->limits.n_pools;
        to->frontier[i] = used ? from->frontier[i] : 0;
        to->last[i] = used ? from->last[i] : DIRECTORY_NONE;
        to->last_generation[i] = used ? from->last_generation[i] : 0;
    }
    to->named = from->named, to->retention = from->retention;
    to->created = from->created, to->used = from->used, to->tag = from->tag;
    to->state_slot = from->state_slot, to->state_frontier = from->state_frontier;
    to->has_image = from->flags & BUNDLE_IMAGE;
    to->image = (struct directory_host){ .offset = from->image_offset, .checksum = from->image_checksum };
    to->tail_named = from->flags & BUNDLE_TAIL_NAMED;
    memcpy(to->root, from->root, sizeof to->root);
    memcpy(to->label, from->label, sizeof to->label);
    to->n_tail = from->n_tail;
    memcpy(to->tail, from->tail, from->n_tail * sizeof to->tail[0]);
}

bool directory_bundle_load(const struct directory *d, enum directory_kind kind, uint32_t slot,
                           struct directory_bundle *ret_bundle, bool *ret_damaged) {
    struct bundle_body body;
    uint32_t copy;
    *ret_damaged = false;
    if (!slot_is_known(d, kind, slot)) return false;
    enum found_record found = load_place(d, kind, slot, &body, &copy);
    *ret_damaged = found == DAMAGED;
    if (found == GOOD) read_bundle(d, &body, ret_bundle);
    return found == GOOD;
}
