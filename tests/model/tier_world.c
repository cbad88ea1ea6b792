/* SPDX-License-Identifier: Apache-2.0
 *
 * The world around a store of two tiers: its memory, its history, its random numbers.
 */
#include "tier.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <xxhash.h>

#include "kvt.h"

/* ---- history ---- */

static struct world *running;

static void print_history(const struct world *w) {
    printf("\n  scenario %s, seed %" PRIu64 ", step %" PRIu64 "; replay: -c %s -s %" PRIu64 " -n %" PRIu64 "\n",
           w->name, w->seed, w->step, w->name, w->seed, w->step + 1);
    for (uint64_t i = w->step < HISTORY ? 0 : w->step - HISTORY + 1; i <= w->step; i++)
        printf("    %" PRIu64 " %s\n", i, w->history[i % HISTORY]);
    fflush(stdout);
}

void fail(struct world *w, const char *format, ...) {
    va_list args;
    if (w->failed) return;
    w->failed = true;
    printf("\n  WRONG: ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    print_history(w);
}

void note(struct world *w, const char *format, ...) {
    char *line = w->history[w->step % HISTORY];
    size_t used = strlen(line);
    va_list args;
    va_start(args, format);
    if (used < sizeof w->history[0] - 1) vsnprintf(line + used, sizeof w->history[0] - used, format, args);
    va_end(args);
}

/* A store that dies or hangs must still say where. */
static void crashed(int sig) {
    if (running) print_history(running);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* ---- random choices ---- */

uint32_t below(struct world *w, uint32_t n) { return n ? kvt_below(&w->random, n) : 0; }
bool chance(struct world *w, uint32_t percent) { return below(w, 100) < percent; }
uint32_t between(struct world *w, uint32_t low, uint32_t high) {
    return high <= low ? low : low + below(w, high - low + 1);
}

/* ---- objects ---- */

int find_cont(const struct world *w, store_cont handle) {
    for (int i = 0; handle.bits && i < CONTS; i++)
        if (w->cont[i].used && w->cont[i].handle.bits == handle.bits) return i;
    return -1;
}

int find_seq(const struct world *w, store_seq handle) {
    for (int i = 0; i < SEQS; i++)
        if (w->seq[i].used && w->seq[i].handle.bits == handle.bits) return i;
    return -1;
}

int any_cont(struct world *w, bool published) {
    int list[CONTS];
    uint32_t n = 0;
    for (int i = 0; i < CONTS; i++)
        if (w->cont[i].used && w->cont[i].published == published) list[n++] = i;
    return n ? list[below(w, n)] : -1;
}

int find_live(const struct world *w, store_cont handle) {
    for (int k = 0; k < SEQS; k++)
        if (w->seq[k].used && w->seq[k].active && store_live(w->kvd.store, w->seq[k].handle).bits == handle.bits)
            return k;
    return -1;
}

int any_seq(struct world *w, bool active) {
    int list[SEQS];
    uint32_t n = 0;
    for (int i = 0; i < SEQS; i++)
        if (w->seq[i].used && w->seq[i].active == active) list[n++] = i;
    return n ? list[below(w, n)] : -1;
}

int free_cont(const struct world *w) {
    for (int i = 0; i < CONTS; i++)
        if (!w->cont[i].used) return i;
    abort();
}

/* Every page of every continuation of a chain is named by what nobody else has: a name that comes back with other bytes
 * is seen. */
void chain_fill(struct world *w, struct content *c, uint32_t from) {
    for (uint32_t b = from; b < w->blocks; b++)
        for (size_t i = 0; i < 32; i += 8) {
            uint64_t word = kvt_random(&w->random);
            memcpy(c->chain[b] + i, &word, 8);
        }
}

/* ---- memory ---- */

uint32_t *device_page(struct world *w, uint32_t p, uint32_t page) {
    return w->device[p] + (size_t)page * KVD_PAGE_TOKENS;
}

uint64_t checksum_of(const struct world *w, uint64_t offset, uint64_t bytes) {
    if (offset > w->config.host_bytes || bytes > w->config.host_bytes - offset) return 0;
    uint64_t sum = XXH3_64bits(w->arena + offset, bytes);
    return sum + (sum == 0);
}

static void *must(void *p) {
    if (!p) abort();
    return p;
}

/* One that has run for long: stamps and generations are about to wrap. */
static void age(const struct world *w, const struct store *store) {
    if (w->seed % 2) return;
    *store->stamp = UINT32_MAX - 50;
    for (uint32_t p = 0; p < store_n_pools(store); p++) {
        const struct pool *pool = &store->pool[p];
        for (uint32_t d = 0; d < pool->descriptors; d++) pool->pages[d].generation = UINT32_MAX - d % 4;
        for (uint32_t i = 0; i < pool->capacity; i++) pool->leases[i].generation = UINT32_MAX - i % 4;
    }
}

bool kvd_start(struct world *w, struct kvd *kvd) {
    char err[256] = "";
    if (!kvd->block) {
        kvd->block = must(aligned_alloc(64, (w->store_size + 63) / 64 * 64));
        kvd->handle = must(malloc(directory_handle_bytes()));
    }
    if (w->step == 0) memset(kvd->block, 0xA5, w->store_size); /* the store must not lean on zeroes */
    if (store_init(kvd->block, w->store_size, &w->config, &kvd->store, err, sizeof err)) {
        fail(w, "init: %s", err);
        return false;
    }
    age(w, kvd->store);
    if (w->tables_size == 0) {
        store_directory_limits(kvd->store, &w->limits);
        w->tables_size = directory_bytes(&w->limits);
    }
    if (!kvd->tables) kvd->tables = must(aligned_alloc(4096, w->tables_size));
    return true;
}

void kvd_free(struct kvd *kvd) {
    free(kvd->block);
    free(kvd->tables);
    free(kvd->handle);
    *kvd = (struct kvd){ 0 };
}

bool world_open(struct world *w) {
    char err[256] = "";
    const struct store_config *c = &w->config;
    w->store_size = store_bytes(c);
    if (w->store_size == 0 || store_check_config(c, err, sizeof err)) {
        printf("  %s: the configuration is refused: %s\n", w->name, err);
        return false;
    }
    if (!kvd_start(w, &w->kvd) || !kvd_start(w, &w->next)) return false;
    w->n_pools = store_n_pools(w->kvd.store);
    w->blocks = store_row_entries(w->kvd.store);
    w->kvd.id = w->seed;
    directory_format(w->kvd.tables, &w->limits, w->kvd.id);
    if (directory_open(w->kvd.handle, w->kvd.tables, &w->limits, w->kvd.id, &w->kvd.directory)) return false;
    store_set_directory(w->kvd.store, w->kvd.directory);
    for (uint32_t p = 0; p < w->n_pools; p++)
        w->device[p] = must(calloc((size_t)c->pool_pages[p] * KVD_PAGE_TOKENS, sizeof(uint32_t)));
    w->slots = must(calloc(c->state_slots + 1, sizeof *w->slots));
    w->arena = must(calloc(1, c->host_bytes + UNIT));
    running = w;
    signal(SIGSEGV, crashed);
    signal(SIGABRT, crashed);
    signal(SIGFPE, crashed);
    signal(SIGALRM, crashed);
    return true;
}

void world_close(struct world *w) {
    running = NULL;
    kvd_free(&w->kvd);
    kvd_free(&w->next);
    for (uint32_t p = 0; p < POOLS; p++) free(w->device[p]);
    free(w->slots);
    free(w->arena);
}

/* ---- fingerprint ---- */

static uint64_t mix(uint64_t seed, const void *data, size_t bytes) { return XXH3_64bits_withSeed(data, bytes, seed); }

static uint64_t print_pool(const struct store *store, uint32_t p, uint64_t sum) {
    const struct pool *pool = &store->pool[p];
    uint32_t numbers[] = { pool->allocated, pool->reserved,   pool->shared, pool->occupied,
                           pool->spare,     pool->host_pages, pool->absent, pool->rows_used };
    sum = mix(sum, numbers, sizeof numbers);
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        struct page page;
        memcpy(&page, &pool->pages[d], sizeof page);
        if (!(page.flags & PAGE_OCCUPIED)) continue;
        page.stamp = page.mark = 0;
        sum = mix(sum, &page, offsetof(struct page, pinned) + sizeof page.pinned);
        if (!pool->tier) continue;
        uint64_t tier[] = { pool->tier[d].checksum, pool->tier[d].demoted };
        sum = mix(sum, tier, sizeof tier);
    }
    sum = mix(sum, pool->bitmap, (size_t)pool->n_leaves * BLOCK_PAGES / 8);
    sum = mix(sum, pool->leases, pool->capacity * sizeof *pool->leases);
    return mix(sum, pool->table, (size_t)store->config.max_concurrency * store->row_entries * sizeof *pool->table);
}

static uint64_t print_arena(const struct store *store, uint64_t sum) {
    uint32_t cursor = 0;
    struct extent_info extent;
    if (!store->arena) return sum;
    while (extent_next(store->arena, &cursor, &extent)) {
        uint64_t words[] = { extent.id.bits, extent.offset, extent.stride, extent.tag };
        sum = mix(sum, words, sizeof words);
    }
    return sum;
}

uint64_t fingerprint(const struct world *w) {
    const struct store *store = w->kvd.store;
    uint64_t sum = 0, numbers[] = { store->revision,    store->operations,      store->entries,    store->seqs_used,
                                    store->conts_used,  store->in_flight,       store->slots_used, store->moves_used,
                                    store->host_images, store->demoted,         store->damaged,    store->lost,
                                    store->chunks.used, store->chunks.reserved, store->seq_free,   store->cont_free,
                                    store->move_free,   store->conts_owned,     store->fetching };
    for (uint32_t p = 0; p < store->n_pools; p++) sum = print_pool(store, p, sum);
    sum = print_arena(store, sum);
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        struct cont cont = store->conts[i];
        if (!cont.occupied) continue;
        cont.stamp = 0;
        uint64_t words[] = { i,
                             cont.generation,
                             cont.published,
                             cont.claimed,
                             cont.pins,
                             cont.frontier,
                             cont.slot,
                             cont.image.bits,
                             cont.image_pins,
                             cont.demoted,
                             cont.moves,
                             cont.used,
                             cont.space[0].count,
                             cont.space[1].count };
        sum = mix(sum, words, sizeof words);
    }
    sum = mix(sum, store->seqs, store->config.max_concurrency * sizeof *store->seqs);
    if (store->slots && store->config.has_state)
        sum = mix(sum, store->slots, store->config.state_slots * sizeof *store->slots);
    sum = mix(sum, w->kvd.tables, w->tables_size);
    return mix(sum, numbers, sizeof numbers);
}
