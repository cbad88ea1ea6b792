/* SPDX-License-Identifier: Apache-2.0
 *
 * Domains (NAME-1): the root digests of names, and their labels. Each sequence and continuation holds one; there are as
 * many records as there can be holders, so that a record is never short.
 */
#include "store_internal.h"

#include <string.h>

void domain_init(struct domains *domains) {
    memset(domains->hash, 0xff, ((size_t)domains->hash_mask + 1) * sizeof *domains->hash);
    domains->head = KVD_NONE;
    domains->fresh = domains->used = 0;
}

/* A digest is random: any word of it is a hash, and whoever chooses digests slows down his own domains only. */
static uint32_t *domain_bucket(const struct domains *domains, const kvd_digest *digest) {
    uint64_t word;
    memcpy(&word, digest->bytes, sizeof word);
    return &domains->hash[(word * UINT64_C(0x9E3779B97F4A7C15) >> 32) & domains->hash_mask];
}

/* Its references change by so much: so do those that an audit in work has counted. */
static void count_references(struct domains *domains, uint32_t d, uint32_t by) {
    uint32_t bucket = (uint32_t)(domain_bucket(domains, &domains->list[d].root.digest) - domains->hash);
    domains->list[d].references += by;
    if (bucket < domains->audited) domains->recounted_holders += (uint64_t)(int64_t)(int32_t)by;
}

uint32_t domain_find(const struct store *store, const kvd_digest *digest) {
    uint32_t d = *domain_bucket(&store->domains, digest);
    while (d != KVD_NONE && !digests_equal(store->domains.list[d].root.digest.bytes, digest->bytes))
        d = store->domains.list[d].next;
    return d;
}

uint32_t domain_take(struct store *store, const struct kvd_root *root) {
    struct domains *domains = &store->domains;
    uint32_t d = domain_find(store, &root->digest);
    if (d == KVD_NONE) {
        uint32_t *bucket = domain_bucket(domains, &root->digest);
        d = domains->head;
        if (d == KVD_NONE) d = domains->fresh++;
        else domains->head = domains->list[d].next;
        domains->used++;
        domains->list[d] = (struct domain){ .root = *root, .next = *bucket };
        *bucket = d;
        domains->recounted += (uint32_t)(bucket - domains->hash) < domains->audited;
    }
    if (!domains->list[d].root.label[0]) domains->list[d].root = *root; /* the first label stays */
    count_references(domains, d, 1);
    return d;
}

uint32_t domain_hold(struct store *store, uint32_t d) {
    count_references(&store->domains, d, 1);
    return d;
}

void domain_drop(struct store *store, uint32_t d) {
    struct domains *domains = &store->domains;
    if (d == KVD_NONE) return;
    count_references(domains, d, UINT32_MAX);
    if (domains->list[d].references) return;
    uint32_t *bucket = domain_bucket(domains, &domains->list[d].root.digest), *link = bucket;
    domains->recounted -= (uint32_t)(bucket - domains->hash) < domains->audited;
    while (*link != d) link = &domains->list[*link].next;
    *link = domains->list[d].next;
    domains->list[d].next = domains->head;
    domains->head = d;
    domains->used--;
}

bool store_root_is_none(const kvd_digest *digest) {
    static const kvd_digest none;
    return memcmp(digest->bytes, none.bytes, sizeof none.bytes) == 0;
}

bool store_root_is(const struct kvd_root *root, const struct kvd_root *meant) {
    bool same = digests_equal(root->digest.bytes, meant->digest.bytes);
    if (!store_root_is_none(&meant->digest) && !same) return false;
    return !meant->label[0] || strcmp(root->label, meant->label) == 0;
}
