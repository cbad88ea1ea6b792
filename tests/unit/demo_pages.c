/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_pages.h"

#include <stdlib.h>
#include <string.h>

#include "kvt.h"

#ifdef DEMO_CUDA
#include <cuda_runtime_api.h>

static void *pages_alloc(uint64_t bytes) {
    void *at = NULL; /* pinned host memory: the test and the kernels see it at one address */
    return cudaMallocHost(&at, bytes) == cudaSuccess ? at : NULL;
}

static void pages_free(void *at) { cudaFreeHost(at); }
#else
static void *pages_alloc(uint64_t bytes) { return aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); }

static void pages_free(void *at) { free(at); }
#endif

static void shuffle(int32_t *ids, uint32_t n, uint64_t *seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = kvt_below(seed, i + 1);
        int32_t id = ids[i];
        ids[i] = ids[j];
        ids[j] = id;
    }
}

void demo_pages_init(struct demo_pages *pages, enum kvd_storage storage, struct engine *engine, uint32_t n_pools,
                     uint32_t window, uint64_t seed) {
    char err[256] = "";
    memset(pages, 0, sizeof *pages);
    engine->n_pools = n_pools;
    engine->window = window;
    engine->max_context = DEMO_PAGES_ENTRIES * KVD_PAGE_TOKENS;
    memset(engine->lane, 0, sizeof engine->lane);
    for (uint32_t p = 0; p < n_pools; p++) {
        uint32_t layers = p == ENGINE_MAIN ? MODEL_LAYERS : MODEL_DRAFT_LAYERS;
        pages->spec[p] = (struct geom_pool_spec){ .storage = storage,
                                                  .order = GEOM_PAGE_MAJOR,
                                                  .arrangement = GEOM_RECORD,
                                                  .n_layers = layers,
                                                  .n_kv_heads = MODEL_KV_HEADS,
                                                  .head_dim = MODEL_HEAD_DIM,
                                                  .n_ranks = 1 };
        pages->bytes[p] = geom_region_bytes(&pages->spec[p], DEMO_PAGES_PAGES);
        pages->region[p] = pages_alloc(pages->bytes[p]);
        pages->table[p] = pages_alloc(DEMO_PAGES_PAGES * sizeof(int32_t));
        KVT_NEED(pages->region[p] != NULL && pages->table[p] != NULL);
        for (uint64_t i = 0; i < pages->bytes[p]; i++) pages->region[p][i] = (uint8_t)(i * 167 + seed);
        shuffle(pages->ids[p], DEMO_PAGES_PAGES, &seed);
        memset(pages->table[p], 0xff, DEMO_PAGES_PAGES * sizeof(int32_t));
        for (uint32_t l = 0; l < layers; l++) {
            PagedKVBatchLayerView *view = p == ENGINE_MAIN ? &engine->main[l] : &engine->mtp[l];
            KVT_OK(geom_layer_view(&pages->spec[p], DEMO_PAGES_PAGES, 0, l, pages->region[p], view, err, sizeof err));
            view->block_tables = pages->table[p][0];
            view->n_logical = DEMO_PAGES_ENTRIES;
            view->n_rows = DEMO_PAGES_ROWS;
        }
    }
}

void demo_pages_free(struct demo_pages *pages) {
    for (uint32_t p = 0; p < ENGINE_POOLS; p++) {
        pages_free(pages->region[p]);
        pages_free(pages->table[p]);
    }
}

void demo_pages_map(struct demo_pages *pages, struct engine *engine, struct engine_lane *lane, uint32_t n_tokens) {
    uint32_t n = (n_tokens + KVD_PAGE_MASK) / KVD_PAGE_TOKENS;
    for (uint32_t p = 0; p < engine->n_pools; p++) {
        uint32_t row = lane->row[p];
        for (uint32_t b = 0; b < DEMO_PAGES_ENTRIES; b++)
            pages->table[p][row][b] = b < n ? pages->ids[p][row * DEMO_PAGES_ENTRIES + b] : -1;
        lane->mapped[p] = n * KVD_PAGE_TOKENS;
    }
}

uint8_t *demo_pages_at(const struct demo_pages *pages, const struct engine *engine, uint32_t row, uint32_t layer,
                       uint32_t position, uint32_t head, bool value) {
    const kvd_plane_view *plane = value ? &engine->main[layer].v : &engine->main[layer].k;
    uint64_t page = (uint64_t)pages->table[ENGINE_MAIN][row][position / KVD_PAGE_TOKENS];
    return (uint8_t *)plane->base + (position & KVD_PAGE_MASK) * plane->stride_token + head * plane->stride_head +
           page * plane->stride_page;
}
