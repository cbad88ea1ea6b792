/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of sizes in the operator's guide, line by line, from the geometry that kvd itself computes with. CAP-3,
 * GEOM-2.
 */
#include <inttypes.h>
#include <stdio.h>

#include "geometry.h"

static const struct model {
    const char *name;
    uint32_t layers, kv_heads;
} models[] = { { "27B dense", 16, 4 }, { "35B-A3B", 10, 2 } };

static struct geom_pool_spec pool(const struct model *m, enum kvd_storage storage, uint32_t layers) {
    return (struct geom_pool_spec){ .storage = storage,
                                    .order = GEOM_PAGE_MAJOR,
                                    .arrangement = GEOM_RECORD,
                                    .n_layers = layers,
                                    .n_kv_heads = m->kv_heads,
                                    .head_dim = 256,
                                    .n_ranks = 1 };
}

static void page_line(const struct model *m, enum kvd_storage storage) {
    struct geom_pool_spec main = pool(m, storage, m->layers), mtp = pool(m, storage, 1);
    uint64_t page = geom_page_bytes(&main), draft = geom_page_bytes(&mtp);
    printf("| %s | %s | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " |\n", m->name, geom_storage_name(storage),
           page / 64, page, draft / 64, draft);
}

/* Tokens of all sequences together, in thousands, that so many GiB hold: without and with MTP; 262,144 a sequence, 128
 * at once. */
static int capacity_line(const struct model *m, enum kvd_storage storage) {
    static const uint64_t gib[] = { 40, 100 };
    char err[256];
    printf("| %s | %s |", m->name, geom_storage_name(storage));
    for (int i = 0; i < 4; i++) {
        bool mtp = i % 2;
        struct geom_store_spec spec = { .backend = mtp ? GEOM_MTP : GEOM_OFF,
                                        .main = pool(m, storage, m->layers),
                                        .draft = pool(m, storage, 1),
                                        .max_context = 262144,
                                        .max_concurrency = 128,
                                        .draft_window = mtp ? 4 : 0 };
        struct geom_capacity capacity;
        if (geom_capacity_auto(&spec, gib[i / 2] << 30, 0, &capacity, err, sizeof err)) {
            fprintf(stderr, "%s\n", err);
            return 1;
        }
        printf(" %" PRIu64 " |", capacity.tokens / 1000);
    }
    putchar('\n');
    return 0;
}

int main(void) {
    for (size_t m = 0; m < 2; m++)
        for (int s = 0; s < KVD_N_STORAGE; s++) page_line(&models[m], (enum kvd_storage)s);
    for (size_t m = 0; m < 2; m++)
        for (int s = 0; s < KVD_N_STORAGE; s++)
            if (capacity_line(&models[m], (enum kvd_storage)s)) return 1;
    return 0;
}
