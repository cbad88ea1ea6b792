/* SPDX-License-Identifier: Apache-2.0 */
#include "kept.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

static const char *const whats[KEPT_KINDS] = { "main", "draft", "state" };

void kept_name(uint64_t id, uint32_t rank, enum kept_what what, uint32_t pages, uint64_t bytes, char *name,
               size_t size) {
    snprintf(name, size, "kvd.%016" PRIx64 ".r%u.%s.%u.%" PRIu64, id, rank, whats[what], pages, bytes);
}

static bool parse(const char *name, uint64_t *ret_id, uint32_t *ret_rank, uint32_t *ret_what, uint32_t *ret_pages,
                  uint64_t *ret_bytes) {
    char what[8], again[FDSTORE_NAME];
    if (sscanf(name, "kvd.%16" SCNx64 ".r%u.%7[a-z].%u.%" SCNu64, ret_id, ret_rank, what, ret_pages, ret_bytes) != 5)
        return false;
    for (*ret_what = 0; *ret_what < KEPT_KINDS && strcmp(what, whats[*ret_what]);) ++*ret_what;
    if (*ret_what == KEPT_KINDS || *ret_rank >= KVD_MAX_RANKS || !*ret_id || !*ret_bytes) return false;
    kept_name(*ret_id, *ret_rank, (enum kept_what) * ret_what, *ret_pages, *ret_bytes, again, sizeof again);
    return strcmp(name, again) == 0;
}

void kept_load(struct kept *kept, const struct fdstore_item *items, uint32_t n) {
    *kept = (struct kept){ 0 };
    for (uint32_t r = 0; r < KVD_MAX_RANKS; r++)
        for (uint32_t k = 0; k < KEPT_KINDS; k++) kept->region[r][k].fd = -1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id, bytes;
        uint32_t rank, what, pages;
        bool ours = parse(items[i].name, &id, &rank, &what, &pages, &bytes);
        if (!ours || (kept->id && (id != kept->id || pages != kept->pages)) || kept->region[rank][what].bytes) {
            LOG(LOG_WARNING, "descriptor %.90s of the store is of no use here: let go", items[i].name);
            bool twice = ours && id == kept->id && pages == kept->pages && bytes == kept->region[rank][what].bytes;
            if (!twice) fdstore_remove(items[i].name); /* by name: the first of two would go with the second */
            close(items[i].fd);
            continue;
        }
        kept->id = id;
        kept->pages = pages;
        kept->bytes[rank] += bytes;
        kept->region[rank][what] = (struct kept_region){ items[i].fd, bytes };
    }
}

static bool is_one(const struct kept_region *region, uint64_t bytes) {
    return bytes ? region->fd >= 0 && region->bytes == bytes : region->fd < 0;
}

bool kept_matches(const struct kept *kept, const struct geom_layout *layout, uint32_t n_ranks) {
    if (!kept->id || kept->pages != layout->pages[0]) return false;
    for (uint32_t r = 0; r < KVD_MAX_RANKS; r++) {
        const struct kept_region *region = kept->region[r];
        bool there = r < n_ranks;
        if (!is_one(&region[KEPT_MAIN], there ? layout->pool_bytes[0] : 0) ||
            !is_one(&region[KEPT_DRAFT], there && layout->n_pools > 1 ? layout->pool_bytes[1] : 0) ||
            !is_one(&region[KEPT_STATE], there ? layout->state_bytes : 0))
            return false;
    }
    return true;
}

void kept_drop(struct kept *kept) {
    char name[FDSTORE_NAME];
    for (uint32_t r = 0; r < KVD_MAX_RANKS; r++)
        for (uint32_t k = 0; k < KEPT_KINDS; k++) {
            struct kept_region *region = &kept->region[r][k];
            if (!region->bytes) continue;
            kept_name(kept->id, r, (enum kept_what)k, kept->pages, region->bytes, name, sizeof name);
            fdstore_remove(name);
            if (region->fd >= 0) close(region->fd);
            *region = (struct kept_region){ .fd = -1 };
        }
    kept->id = 0;
    memset(kept->bytes, 0, sizeof kept->bytes);
}
