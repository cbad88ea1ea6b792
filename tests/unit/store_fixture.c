/* SPDX-License-Identifier: Apache-2.0 */
#include "store_fixture.h"

#include <stdarg.h>
#include <stdlib.h>

struct store_config fix_config(enum geom_backend backend) {
    return (struct store_config){ .backend = backend,
                                  .pool_pages = { 8, 8 },
                                  .max_context = 512,
                                  .max_concurrency = 3,
                                  .draft_window = 4,
                                  .widest_verify = 4,
                                  .lease_window = 4096,
                                  .prefill_chunk = 256,
                                  .max_continuations = 8 };
}

void fix_open(struct fix *fix, const struct store_config *config) {
    char err[256] = "";
    size_t bytes = store_bytes(config);
    memset(fix, 0, sizeof *fix);
    fix->memory = bytes ? aligned_alloc(64, bytes) : NULL;
    if (!KVT_TRUE(fix->memory != NULL)) exit(2);
    memset(fix->memory, 0xa5, bytes); /* nothing may depend on zeroed memory */
    if (!KVT_OK(store_init(fix->memory, bytes, config, &fix->store, err, sizeof err))) exit(2);
}

bool fix_audit(struct fix *fix) {
    char text[2048];
    uint32_t n = store_audit(fix->store, text, sizeof text);
    if (n) printf("\naudit: %u violations\n%s", n, text);
    return KVT_EQ(n, 0);
}

void fix_close(struct fix *fix) {
    fix_audit(fix);
    free(fix->memory);
}

struct store_activation fix_root(uint32_t prompt, uint32_t output, uint32_t ensure) {
    static uint64_t owners;
    return (struct store_activation){ .lease = FIX_LEASE,
                                      .prompt_tokens = prompt,
                                      .max_output_tokens = output,
                                      .ensure = { ensure, ensure },
                                      .tag = UINT64_C(1) << 32 | owners++ };
}

struct store_activation fix_from(store_cont from, bool keep, uint32_t frontier, uint32_t prompt, uint32_t output) {
    struct store_activation want = fix_root(prompt, output, 0);
    want.from = from;
    want.keep = keep;
    want.frontier = frontier;
    return want;
}

void fix_recipe(struct store_activation *want, const store_cont *victims, uint32_t n, uint64_t demote) {
    static struct kvd_victim recipes[8][KVD_MAX_VICTIMS + 1];
    static uint32_t turn;
    struct kvd_victim *recipe = recipes[turn++ % 8];
    for (uint32_t i = 0; i < n; i++)
        recipe[i] = (struct kvd_victim){ .continuation.bits = victims[i].bits, .demote = i < 64 && demote >> i & 1 };
    want->victims = recipe;
    want->n_victims = n;
}

int fix_commit(struct fix *fix, store_seq seq) {
    struct store_work left = { 0 };
    int rc = store_activate_commit(fix->store, seq, &fix->refusal);
    if (rc != STORE_MORE || store_get_work(fix->store, (struct store_transition){ .bits = seq.bits }, &left) ||
        left.copies_out + left.copies_in + left.copies_device)
        return rc;
    return store_activate_commit(fix->store, seq, &fix->refusal);
}

store_seq fix_activate(struct fix *fix, struct store_activation want, struct store_activated *ret) {
    struct store_activated got;
    store_seq none = { 0 };
    if (store_activate_begin(fix->store, &want, &got, &fix->refusal)) return none;
    if (!KVT_OK(fix_commit(fix, got.seq))) return none;
    if (ret) *ret = got;
    return got.seq;
}

struct store_round_item fix_item(store_seq seq) {
    struct kvd_round_pool nothing = round_pool(KVD_NONE, KVD_NONE, KVD_NONE, KVD_NONE);
    return (struct store_round_item){
        .seq = seq, .lease = FIX_LEASE, .state_frontier = KVD_NONE, .pool = { nothing, nothing }
    };
}

void fix_apply(struct fix *fix, struct store_round_item *item, struct store_round_result *ret) {
    ROUND_ASK(item);
    store_round(fix->store, item, 1, ret);
}

int fix_round(struct fix *fix, store_seq seq, uint32_t commit, uint32_t truncate, uint32_t keep, uint32_t ensure,
              struct store_round_result *ret) {
    struct store_round_result result;
    struct store_round_item item = fix_item(seq);
    item.pool[0] = item.pool[1] = round_pool(commit, truncate, keep, ensure);
    fix_apply(fix, &item, &result);
    fix->refusal = result.refusal;
    if (ret) *ret = result;
    return (int)result.refusal.code;
}

void fix_digest(uint32_t salt, uint32_t page, uint8_t ret[32]) {
    uint64_t state = (uint64_t)salt << 32 | page;
    for (int i = 0; i < 4; i++) {
        uint64_t word = kvt_random(&state);
        memcpy(ret + 8 * i, &word, 8);
    }
}

void fix_chain(uint32_t salt, uint32_t turn, uint32_t salt2, uint32_t n, uint8_t (*ret)[32]) {
    for (uint32_t i = 0; i < n; i++) fix_digest(i < turn ? salt : salt2, i, ret[i]);
}

bool fix_fill(struct fix *fix, store_seq seq, uint32_t tokens, uint32_t salt) {
    uint8_t digest[1][32];
    if (!KVT_OK(fix_round(fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, tokens, NULL))) return false;
    if (!KVT_OK(fix_round(fix, seq, tokens, KVD_NONE, KVD_NONE, KVD_NONE, NULL))) return false;
    for (uint32_t i = fix_seq(fix, seq).named_pages; i < tokens / KVD_PAGE_TOKENS; i++) {
        fix_digest(salt, i, digest[0]);
        if (!KVT_OK(store_name_pages(fix->store, seq, FIX_LEASE, i, 1, (const uint8_t(*)[32])digest, &fix->refusal)))
            return false;
    }
    if (!fix->store->config.has_state) return true;
    struct store_round_result result;
    struct store_round_item item = fix_item(seq);
    item.state_frontier = tokens;
    fix_apply(fix, &item, &result);
    return KVT_OK(result.refusal.code);
}

const struct kvd_tail *fix_tail(uint32_t frontier) {
    static struct kvd_tail tail;
    tail.n = frontier % KVD_PAGE_TOKENS;
    for (uint32_t i = 0; i < tail.n; i++) tail.tokens[i] = i + 1;
    return &tail;
}

store_cont fix_retain(struct fix *fix, store_seq seq, uint32_t frontier) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 0 };
    KVT_OK(store_finish(fix->store, seq, FIX_LEASE, STORE_FINISH_RETAIN, fix_tail(frontier), 1, &cont, rows,
                        &fix->refusal));
    return cont;
}

store_cont fix_cont(struct fix *fix, uint32_t tokens, uint32_t salt) {
    store_cont none = { 0 };
    store_seq seq = fix_activate(fix, fix_root(tokens, 1, 0), NULL);
    if (!KVT_TRUE(seq.bits != 0) || !fix_fill(fix, seq, tokens, salt)) return none;
    return fix_retain(fix, seq, tokens);
}

store_cont fix_checkpoint(struct fix *fix, store_seq seq, uint32_t frontier) {
    struct store_checkpointed got = { 0 };
    store_cont none = { 0 };
    if (!KVT_OK(
            store_checkpoint_begin(fix->store, seq, FIX_LEASE, FIX_KEEP(fix_tail(frontier), 1), &got, &fix->refusal)))
        return none;
    KVT_OK(store_checkpoint_commit(fix->store, got.cont, NULL, &fix->refusal));
    return got.cont;
}

struct kvd_sequence_info fix_seq(struct fix *fix, store_seq seq) {
    struct kvd_sequence_info info;
    memset(&info, 0, sizeof info);
    store_seq_look(fix->store, seq, &info, &fix->refusal);
    return info;
}

struct kvd_continuation_info fix_info(struct fix *fix, store_cont cont) {
    struct kvd_continuation_info info;
    memset(&info, 0, sizeof info);
    store_cont_look(fix->store, cont, &info, &fix->refusal);
    return info;
}

struct kvd_pool_stats fix_pool(struct fix *fix, uint32_t pool) {
    struct kvd_stats stats;
    store_get_stats(fix->store, &stats);
    return stats.pool[pool];
}

static const char *ids_text(const uint32_t *ids, uint32_t n) {
    static char text[4][512];
    static int turn;
    char *out = text[turn++ & 3];
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n && used < 500; i++)
        used += (size_t)snprintf(out + used, 512 - used, i ? " %u" : "%u", ids[i]);
    return out;
}

const char *fix_ids(struct fix *fix, store_seq seq, uint32_t pool) {
    uint32_t ids[64];
    return ids_text(ids, store_seq_pages(fix->store, seq, pool, ids, 64));
}

const char *fix_cont_ids(struct fix *fix, store_cont cont, uint32_t pool) {
    uint32_t ids[64];
    return ids_text(ids, store_cont_pages(fix->store, cont, pool, ids, 64));
}

const struct page *fix_page(struct fix *fix, uint32_t pool, uint32_t device) {
    return &fix->store->pool[pool].pages[fix->store->pool[pool].leases[device].owner];
}

/* ---- dump ---- */

struct dump {
    char *text;
    size_t used, size;
};

static void add(struct dump *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct dump *d, const char *format, ...) {
    va_list args;
    if (d->size - d->used < 512) d->text = realloc(d->text, d->size = 2 * d->size + 4096);
    va_start(args, format);
    d->used += (size_t)vsnprintf(d->text + d->used, d->size - d->used, format, args);
    va_end(args);
}

static void dump_space(struct dump *d, const struct store *store, uint32_t p, const struct space *space) {
    add(d, " [%u: committed %u reserved %u owed %u:", space->count, space->committed, space->reserved, space->pending);
    for (uint32_t i = 0; i < space->count; i++) add(d, " %x", space_entry(store, space, i));
    add(d, "] protected %u\n", space_protected(store, p, space));
}

static void dump_pool(struct dump *d, const struct store *store, uint32_t p) {
    const struct pool *pool = &store->pool[p];
    add(d, "pool %u: allocated %u reserved %u shared %u occupied %u rows %u\n", p, pool->allocated, pool->reserved,
        pool->shared, pool->occupied, pool->rows_used);
    for (uint32_t i = 0; i < pool->descriptors; i++) {
        const struct page *page = &pool->pages[i];
        if (!(page->flags & PAGE_OCCUPIED)) continue;
        add(d,
            "page %u: generation %u epoch %llu device %u lease %u committed %u protected %u references %u active %u "
            "pins %u flags %u\n",
            i, page->generation, (unsigned long long)page->epoch, page->device, page->lease, page->committed,
            page->protected, page->references, page->active_references, page->pins, page->flags);
    }
    for (uint32_t i = 0; i < pool->capacity; i++) add(d, "%c", pool_is_free(pool, i) ? '.' : '#');
    for (uint32_t r = 0; r < store->config.max_concurrency; r++) {
        add(d, "\nrow %u of %u:", r, pool->rows[r].owner);
        for (uint32_t i = 0; i < store->row_entries; i++) add(d, " %d", row_entries(store, p, r)[i]);
    }
    add(d, "\n");
}

char *fix_dump(struct fix *fix) {
    const struct store *store = fix->store;
    struct dump d = { malloc(4096), 0, 4096 };
    for (uint32_t p = 0; p < store->n_pools; p++) dump_pool(&d, store, p);
    add(&d, "chunks used %u reserved %u, %llu entries, %u sequences, %u continuations, %u slots, %u nodes\n",
        store->chunks.used, store->chunks.reserved, (unsigned long long)store->entries, store->seqs_used,
        store->conts_used, store->slots_used, store->index.used);
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *s = &store->seqs[i];
        if (!s->occupied) continue;
        add(&d,
            "sequence %u.%u: state %d lease %llu prompt %u ceiling %u named %u slot %u at %u source slot %u own %u\n",
            i, s->generation, (int)s->state, (unsigned long long)s->lease, s->prompt, s->ceiling, s->named,
            s->state_slot, s->state_frontier, s->source_slot, s->own);
        for (uint32_t p = 0; p < store->n_pools; p++) dump_space(&d, store, p, &s->space[p]);
    }
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        const struct cont *c = &store->conts[i];
        if (!c->occupied) continue;
        add(&d,
            "continuation %u.%u: frontier %u named %u retention %u published %d claimed %d pins %u slot %u tail %u "
            "created %llu\n",
            i, c->generation, c->frontier, c->named, c->retention, c->published, c->claimed, c->pins, c->slot,
            c->tail.n, (unsigned long long)c->created);
        for (uint32_t p = 0; p < store->n_pools; p++) dump_space(&d, store, p, &c->space[p]);
    }
    for (uint32_t i = 0; store->config.has_state && i < store->config.state_slots; i++)
        add(&d, "slot %u: %d pins %u\n", i, store->slots[i].used, store->slots[i].pins);
    return d.text;
}
