/* SPDX-License-Identifier: Apache-2.0 */
#include "directory.h"

#include <errno.h>
#include <string.h>

#include "directory_internal.h"

#define TABLES_ALIGN 4096u

/* ---- tables ------------------------------------------------------------------------------------------------ */

static bool good_limits(const struct directory_limits *limits) {
    if (!limits->n_pools || limits->n_pools > DIRECTORY_MAX_POOLS) return false;
    for (uint32_t i = 0; i < limits->n_pools; i++)
        if (!limits->pages[i] || limits->pages[i] == DIRECTORY_NONE) return false;
    return limits->continuations != DIRECTORY_NONE && limits->sequences != DIRECTORY_NONE;
}

/* At most four tables of 2^32 records below 1 KiB: no sum overflows where size_t has 64 bits. */
static_assert(sizeof(size_t) == 8, "sums of table sizes are not checked");

size_t directory_bytes(const struct directory_limits *limits) {
    size_t bytes = 0;
    if (!good_limits(limits)) return 0;
    for (uint32_t i = 0; i < limits->n_pools; i++) bytes += limits->pages[i] * sizeof(struct page_record);
    bytes += ((size_t)limits->continuations + limits->sequences) * 2 * sizeof(struct bundle_copy);
    return (bytes + TABLES_ALIGN - 1) / TABLES_ALIGN * TABLES_ALIGN;
}

void directory_format(void *tables, const struct directory_limits *limits, uint64_t id) {
    (void)id; /* a part of every check word: an empty directory has none */
    memset(tables, 0, directory_bytes(limits));
}

size_t directory_handle_bytes(void) { return sizeof(struct directory); }

int directory_open(void *memory, void *tables, const struct directory_limits *limits, uint64_t id,
                   struct directory **ret_directory) {
    if (!directory_bytes(limits) || (uintptr_t)tables % sizeof(struct page_record)) return -EINVAL;
    struct directory *d = memory;
    char *at = tables;
    *d = (struct directory){ .limits = *limits, .id = id };
    for (uint32_t i = 0; i < limits->n_pools; i++) {
        d->pages[i] = (struct page_record *)(void *)at;
        at += limits->pages[i] * sizeof(struct page_record);
    }
    d->bundles[DIRECTORY_CONTINUATION] = (struct bundle_copy *)(void *)at;
    d->bundles[DIRECTORY_SEQUENCE] = d->bundles[DIRECTORY_CONTINUATION] + (size_t)limits->continuations * 2;
    *ret_directory = d;
    return 0;
}

/* ---- pages -------------------------------------------------------------------------------------------------- */

/* The base's check word, which the other parts' are made with; 0 where the page is not open. */
static uint64_t open_base(const struct directory *d, uint32_t pool, uint32_t page) {
    return page_is_known(d, pool, page) ? read_check(&d->pages[pool][page].base.check) : 0;
}

void directory_page_close(struct directory *d, uint32_t pool, uint32_t page) {
    if (!page_is_known(d, pool, page)) return;
    struct page_record *r = &d->pages[pool][page];
    clear_mark(&r->base.check, "directory.page.close");
    clear_mark(&r->name.check, "directory.page.close.name");
    clear_mark(&r->host.check, "directory.page.close.host");
    clear_mark(&r->device.check, "directory.page.close.device");
}

void directory_page_open(struct directory *d, uint32_t pool, uint32_t page, const struct directory_base *base) {
    if (!page_is_known(d, pool, page)) return;
    struct page_record *r = &d->pages[pool][page];
    directory_page_close(d, pool, page); /* a close that was cut short may have left parts */
    r->base.body = (struct base_body){ base->generation, base->block, base->parent, base->parent_generation };
    set_mark(&r->base.check, base_check(d, pool, page, &r->base.body), "directory.page.open");
}

void directory_page_name(struct directory *d, uint32_t pool, uint32_t page, const uint8_t *digest) {
    uint64_t base = open_base(d, pool, page);
    if (!base) return;
    struct page_record *r = &d->pages[pool][page];
    clear_mark(&r->name.check, "directory.page.unname");
    if (!digest) return;
    memcpy(r->name.body.digest, digest, sizeof r->name.body.digest);
    set_mark(&r->name.check, check_of(&r->name.body, sizeof r->name.body, base + PART_NAME), "directory.page.name");
}

void directory_page_host(struct directory *d, uint32_t pool, uint32_t page, const struct directory_host *host) {
    uint64_t base = open_base(d, pool, page);
    if (!base) return;
    struct page_record *r = &d->pages[pool][page];
    clear_mark(&r->host.check, "directory.page.unhost");
    if (!host) return;
    r->host.body = (struct host_body){ host->offset, host->checksum, host->columns, 0 };
    set_mark(&r->host.check, check_of(&r->host.body, sizeof r->host.body, base + PART_HOST), "directory.page.host");
}

void directory_page_device(struct directory *d, uint32_t pool, uint32_t page, uint32_t device) {
    uint64_t base = open_base(d, pool, page);
    if (!base) return;
    struct page_record *r = &d->pages[pool][page];
    clear_mark(&r->device.check, "directory.page.undevice");
    if (device == DIRECTORY_NONE) return;
    r->device.body = (struct device_body){ device, 0 };
    set_mark(&r->device.check, check_of(&r->device.body, sizeof r->device.body, base + PART_DEVICE),
             "directory.page.device");
}

/* ---- bundles ------------------------------------------------------------------------------------------------ */

static void write_bundle(struct bundle_body *to, uint64_t serial, const struct directory_bundle *from) {
    uint32_t n_tail = from->n_tail <= DIRECTORY_TAIL ? from->n_tail : DIRECTORY_TAIL;
    to->serial = serial;
    memcpy(to->frontier, from->frontier, sizeof to->frontier);
    memcpy(to->last, from->last, sizeof to->last);
    memcpy(to->last_generation, from->last_generation, sizeof to->last_generation);
    to->named = from->named, to->retention = from->retention;
    to->created = from->created, to->used = from->used, to->tag = from->tag;
    to->state_slot = from->state_slot, to->state_frontier = from->state_frontier;
    to->image_offset = from->has_image ? from->image.offset : 0;
    to->image_checksum = from->has_image ? from->image.checksum : 0;
    to->flags = (from->has_image ? BUNDLE_IMAGE : 0) | (from->tail_named ? BUNDLE_TAIL_NAMED : 0);
    memcpy(to->root, from->root, sizeof to->root);
    memcpy(to->label, from->label, sizeof to->label);
    to->n_tail = n_tail;
    memcpy(to->tail, from->tail, n_tail * sizeof to->tail[0]);
}

/* The copy that stays while the other is written: the only one, or, where a kill left both, the one that counts. 2:
 * neither. */
static uint32_t copy_to_keep(const struct directory *d, enum directory_kind kind, uint32_t slot) {
    const struct bundle_copy *copies = &d->bundles[kind][(size_t)slot * 2];
    bool first = read_check(&copies[0].check), second = read_check(&copies[1].check);
    if (first != second) return second;
    return first ? bundle_valid_copy(d, kind, slot) : 2;
}

void directory_bundle_put(struct directory *d, enum directory_kind kind, uint32_t slot,
                          const struct directory_bundle *bundle) {
    if (!slot_is_known(d, kind, slot)) return;
    struct bundle_copy *copies = &d->bundles[kind][(size_t)slot * 2];
    uint32_t old = copy_to_keep(d, kind, slot), new = old == 0;
    clear_mark(&copies[new].check, "directory.bundle.clean");
    write_bundle(&copies[new].body, old < 2 ? copies[old].body.serial + 1 : 1, bundle);
    set_mark(&copies[new].check, bundle_check(d, kind, slot, new, &copies[new].body), "directory.bundle.put");
    clear_mark(&copies[!new].check, "directory.bundle.old");
}

void directory_bundle_drop(struct directory *d, enum directory_kind kind, uint32_t slot) {
    if (!slot_is_known(d, kind, slot)) return;
    struct bundle_copy *copies = &d->bundles[kind][(size_t)slot * 2];
    uint32_t last = copy_to_keep(d, kind, slot) == 1; /* the one that counts goes last, or the other would come back */
    clear_mark(&copies[!last].check, "directory.bundle.drop.old");
    clear_mark(&copies[last].check, "directory.bundle.drop");
}
