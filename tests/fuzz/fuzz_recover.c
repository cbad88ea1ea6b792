/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery of a store from any directory (CONT-3, GRP-6). The input makes a store with continuations, forks, replicas,
 * running sequences and their rolling checkpoints, in one pool or in several with windows, whose directory is then
 * changed byte by byte; check words are made right again for some of the records, so that recovery gets past them and
 * meets contradictions.
 *
 * Must hold: the audit finds nothing in what was recovered; a second recovery, of the directory that the first one
 * left, finds the same and no damage; whatever came back can be prefetched, demoted, forked and be damaged as what was
 * made by ordinary means; and when all continuations are released, pools, slots and arena are empty.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "directory_internal.h"
#include "fuzz.h"
#include "store.h"

#define LEASE 7u
#define ARENA (24u << 12)
#define ID UINT64_C(0x9b1d5ca7)
#define STEP 256u /* tokens from one boundary to the next */

static const uint8_t *input;
static size_t left;

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_recover: %s\n", what);
    abort();
}

static uint8_t u8(void) {
    if (!left) return 0;
    left--;
    return *input++;
}
static uint32_t u16(void) { return u8() | (uint32_t)u8() << 8; }

/* ---- a store on a directory -------------------------------------------------------------------------- */

struct world {
    struct store *store;
    void *memory, *handle;
    struct directory *directory;
    struct directory_limits limits;
};

static struct store_config config_without_windows(uint8_t kind) {
    return (struct store_config){ .backend = kind & 1 ? GEOM_MTP : GEOM_OFF,
                                  .pool_pages = { 16, 16 },
                                  .max_context = 512,
                                  .max_concurrency = 3,
                                  .draft_window = 4,
                                  .widest_verify = 4,
                                  .lease_window = 4096,
                                  .prefill_chunk = STEP,
                                  .max_continuations = 8,
                                  .has_state = kind & 2,
                                  .state_slots = kind & 2 ? 8 : 0,
                                  .recorded = true,
                                  .host_bytes = kind & 4 ? ARENA : 0,
                                  .host_stride = { 4096, 1024 },
                                  .host_state_stride = 2048 };
}

/* groups: how many pools with windows are behind the others, what these are, and the rolling checkpoints. */
static struct store_config config_of(uint8_t kind, uint8_t groups) {
    static const uint32_t tokens[] = { 64, 100, 128, 300 };
    struct store_config config = config_without_windows(kind);
    uint32_t first = kind & 1 ? 2 : 1;
    config.more_pools = groups % 3;
    config.max_rolling = groups >> 6;
    for (uint32_t i = 0; i < config.more_pools; i++) {
        config.pool_pages[first + i] = 16;
        config.host_stride[first + i] = 1024;
        config.window[first + i] = (struct store_window){ .tokens = tokens[(groups >> 2) % 4],
                                                          .lead = groups & 16 ? 70 : 0,
                                                          .aligned = groups & 32 && i == 0 };
    }
    return config;
}

static void open_world(struct world *w, const struct store_config *config) {
    char err[256] = "";
    size_t bytes = store_bytes(config);
    w->memory = aligned_alloc(64, bytes);
    w->handle = malloc(directory_handle_bytes());
    must(bytes && w->memory && w->handle && !store_init(w->memory, bytes, config, &w->store, err, sizeof err), err);
    store_directory_limits(w->store, &w->limits);
}

static void *new_tables(const struct world *w) {
    void *tables = aligned_alloc(4096, directory_bytes(&w->limits));
    must(tables != NULL, "there is memory for the tables");
    directory_format(tables, &w->limits, ID);
    return tables;
}

static void open_directory(struct world *w, void *tables) {
    must(!directory_open(w->handle, tables, &w->limits, ID, &w->directory), "the directory opens");
}

static void close_world(struct world *w) {
    free(w->memory);
    free(w->handle);
}

static void audit(const struct world *w) {
    char text[2048];
    if (!store_audit(w->store, text, sizeof text)) return;
    fprintf(stderr, "%s\n", text);
    must(false, "the audit finds nothing");
}

/* ---- what it holds --------------------------------------------------------------------------------------- */

static store_cont conts[8];
static uint32_t n_conts;

static void copy_all(struct world *w, struct store_transition of) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(w->store, of, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT || copy.kind == STORE_COPY_STATE_OUT)
            store_copied_out(w->store, copy.replica, copy.host + 1);
}

/* The next boundary of a sequence that has `at` tokens and will have so many. */
static uint32_t step_from(uint32_t at, uint32_t tokens) { return tokens - at > STEP ? at + STEP : tokens; }

static store_seq activate(struct world *w, store_cont from, uint32_t frontier, uint32_t prompt) {
    struct store_activation want = { .from = from,
                                     .keep = u8() % 4,
                                     .frontier = frontier,
                                     .lease = LEASE,
                                     .prompt_tokens = prompt,
                                     .max_output_tokens = 1,
                                     .tag = u8(),
                                     .checkpoint_prompt = true,
                                     .checkpoint_every = 2 * KVD_PAGE_TOKENS };
    for (uint32_t p = 0; p < store_n_pools(w->store); p++) want.ensure[p] = step_from(frontier, prompt);
    struct store_activated got;
    struct store_refusal refusal;
    int rc = store_activate_begin(w->store, &want, &got, &refusal);
    if (rc) return (store_seq){ 0 };
    do {
        copy_all(w, (struct store_transition){ .bits = got.seq.bits });
        rc = store_activate_commit(w->store, got.seq, &refusal);
    } while (rc == STORE_MORE);
    must(rc == STORE_OK, "what is begun alone can be committed");
    return got.seq;
}

/* Commits what is mapped, at most, and maps as far as `next`. */
static void boundary(struct world *w, store_seq seq, uint32_t at, uint32_t next) {
    struct store_round_item item = {
        .seq = seq, .lease = LEASE, .ask = KVD_ROUND_STATE, .state_frontier = at, .ticket = 1
    };
    struct store_round_result result;
    for (uint32_t p = 0; p < store_n_pools(w->store); p++)
        item.pool[p] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = at };
    for (uint32_t p = 0; next > at && p < store_n_pools(w->store); p++)
        item.pool[p].ask |= KVD_ROUND_ENSURE, item.pool[p].ensure = next;
    store_round(w->store, &item, 1, &result);
    if (result.rolled.bits) store_rolling_copied(w->store, item.ticket, true);
}

static void fill(struct world *w, store_seq seq, uint32_t from, uint32_t tokens) {
    struct store_refusal refusal;
    for (uint32_t at = from, named = 0; at < tokens;) {
        at = step_from(at, tokens);
        boundary(w, seq, at, step_from(at, tokens));
        for (; named < at / KVD_PAGE_TOKENS; named++) {
            uint8_t digest[1][32] = { { (uint8_t)named } };
            digest[0][1] = u8() % 3;
            (void)store_name_pages(w->store, seq, LEASE, named, 1, (const uint8_t(*)[32])digest, &refusal);
        }
    }
}

static void make(struct world *w) {
    store_cont from = conts[u8() % 8], kept = { 0 };
    struct kvd_continuation_info info = { .frontier = 0 };
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_refusal refusal;
    if (store_cont_look(w->store, from, &info, &refusal)) from.bits = 0;
    uint32_t tokens = 1 + u8() * 2u % 500u;
    if (from.bits && tokens < info.frontier) tokens = info.frontier;
    store_seq seq = activate(w, from, from.bits ? info.frontier : 0, tokens);
    if (!seq.bits) return;
    fill(w, seq, from.bits ? info.frontier : 0, tokens);
    if (u8() % 4 == 0) return; /* it runs on */
    struct kvd_tail tail = { .n = tokens % KVD_PAGE_TOKENS };
    if (!store_finish(w->store, seq, LEASE, STORE_FINISH_RETAIN, &tail, u8(), &kept, rows, &refusal))
        conts[n_conts++ % 8] = kept;
}

static void move(struct world *w) {
    store_move begun;
    struct store_refusal refusal;
    if (store_move_begin(w->store, conts[u8() % 8], (enum store_place)(u8() % 3), &begun, &refusal)) return;
    copy_all(w, (struct store_transition){ true, begun.bits });
    (void)store_move_commit(w->store, begun, &refusal);
}

static void *write_history(const struct store_config *config) {
    struct world w;
    open_world(&w, config);
    void *tables = new_tables(&w);
    open_directory(&w, tables);
    store_set_directory(w.store, w.directory);
    memset(conts, 0, sizeof conts);
    n_conts = 0;
    for (uint32_t steps = u8() % 24; steps; steps--)
        if (u8() % 2) make(&w);
        else move(&w);
    audit(&w);
    close_world(&w);
    return tables;
}

/* ---- changes ------------------------------------------------------------------------------------------------ */

static void right_page(const struct directory *d, uint32_t pool, uint32_t page) {
    struct page_record *r = &d->pages[pool][page];
    uint64_t base = base_check(d, pool, page, &r->base.body);
    r->base.check = base;
    if (r->name.check) r->name.check = check_of(&r->name.body, sizeof r->name.body, base + PART_NAME);
    if (r->host.check) r->host.check = check_of(&r->host.body, sizeof r->host.body, base + PART_HOST);
    if (r->device.check) r->device.check = check_of(&r->device.body, sizeof r->device.body, base + PART_DEVICE);
}

static void right_bundle(const struct directory *d, enum directory_kind kind, uint32_t place, uint32_t copy) {
    struct bundle_copy *c = &d->bundles[kind][place * 2 + copy];
    if (c->body.n_tail > DIRECTORY_TAIL) c->body.n_tail %= DIRECTORY_TAIL + 1;
    c->check = bundle_check(d, kind, place, copy, &c->body);
}

/* Small numbers, those of neighbours and edges do more than any. */
static void change(uint8_t *record, size_t bytes) {
    size_t at = u8() % bytes / 4 * 4;
    uint32_t value;
    if (bytes > 128 && u8() % 4 == 0) at = u16() % bytes / 4 * 4;
    memcpy(&value, record + at, sizeof value);
    switch (u8() % 6) {
    case 0: value = u8(); break;
    case 1: value ^= 1u << u8() % 32; break;
    case 2: value += 1 + u8() % 4; break;
    case 3: value -= 1 + u8() % 4; break;
    case 4: value = u8() * 256u; break;
    default: value = UINT32_MAX - u8() % 3; break;
    }
    memcpy(record + at, &value, sizeof value);
}

static void spoil_page(const struct directory *d) {
    uint32_t pool = u8() % d->limits.n_pools, page = u8() % d->limits.pages[pool];
    struct page_record *r = &d->pages[pool][page];
    if (u8() % 8 == 0) memcpy(r, &d->pages[pool][u8() % d->limits.pages[pool]], sizeof *r); /* another's */
    change((uint8_t *)r, sizeof *r);
    if (u8() % 4) right_page(d, pool, page);
}

static void spoil_bundle(const struct directory *d) {
    enum directory_kind kind = u8() % 3 ? DIRECTORY_CONTINUATION : DIRECTORY_SEQUENCE;
    uint32_t places = kind == DIRECTORY_CONTINUATION ? d->limits.continuations : d->limits.sequences;
    uint32_t place = u8() % places, copy = u8() % 2;
    struct bundle_copy *c = &d->bundles[kind][place * 2 + copy];
    if (u8() % 4 == 0) memcpy(c, &d->bundles[kind][u8() % (places * 2)], sizeof *c);
    change((uint8_t *)c, sizeof *c);
    if (u8() % 4) right_bundle(d, kind, place, copy);
}

/* ---- recovery --------------------------------------------------------------------------------------------------- */

static struct store_recovered recover(struct world *w, const struct store_config *config, void *tables,
                                      bool device_lives) {
    struct store_recovered recovered;
    open_world(w, config);
    open_directory(w, tables);
    store_recover(w->store, w->directory, device_lives, &recovered);
    audit(w);
    return recovered;
}

/* A transition that was begun ends; alone there is nothing to wait for. */
static void end_move(struct world *w, store_move move) {
    struct store_refusal refusal;
    int rc;
    do {
        copy_all(w, (struct store_transition){ true, move.bits });
        audit(w);
        rc = store_move_commit(w->store, move, &refusal);
    } while (rc == STORE_MORE);
    must(rc == STORE_OK, "a move of what was recovered ends");
}

static void place(struct world *w, store_cont cont, enum store_place to) {
    struct store_refusal refusal;
    store_move move;
    int rc = store_move_begin(w->store, cont, to, &move, &refusal);
    must(rc == STORE_OK || rc == STORE_E_SHORT || rc == STORE_E_TIER, "what was recovered can be moved");
    if (rc == STORE_OK) end_move(w, move);
    audit(w);
}

/* A fork of it is filled up and goes; where a copy of the fork finds damage, it ends, and the continuation with it. */
static void fork_of(struct world *w, store_cont cont, uint32_t frontier, bool damage) {
    struct store_activation want = { .from = cont,
                                     .keep = true,
                                     .frontier = frontier,
                                     .lease = LEASE,
                                     .prompt_tokens = frontier,
                                     .max_output_tokens = 1 };
    struct store_activated got;
    struct store_copy copy;
    struct store_refusal refusal;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont none;
    uint64_t cursor = 0;
    bool wrong = false;
    int rc = store_activate_begin(w->store, &want, &got, &refusal);
    must(rc == STORE_OK || rc == STORE_E_SHORT, "what was recovered can be forked");
    if (rc) return;
    while (store_next_copies(w->store, (struct store_transition){ .bits = got.seq.bits }, &cursor, &copy, 1)) {
        if (!damage || wrong || (copy.kind != STORE_COPY_PAGE_IN && copy.kind != STORE_COPY_STATE_IN)) continue;
        (void)store_damaged(w->store, copy.replica);
        wrong = true;
        audit(w);
    }
    rc = store_activate_commit(w->store, got.seq, &refusal);
    audit(w);
    if (rc == STORE_MORE) rc = store_activate_commit(w->store, got.seq, &refusal); /* rows follow the copies */
    must(rc == (wrong ? STORE_E_DAMAGED : STORE_OK), "a fork of what was recovered is published, unless it is damaged");
    audit(w);
    if (wrong)
        must(!store_activate_abort(w->store, got.seq, NULL, &refusal), "an activation that met damage is undone");
    else
        must(!store_finish(w->store, got.seq, LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, &refusal),
             "a fork can be released");
    audit(w);
}

static void use_all(struct world *w, uint32_t damages) {
    struct kvd_continuation_info info;
    for (uint32_t cursor = 0, i = 0; store_next_cont(w->store, &cursor, &info); i++) {
        fork_of(w, store_cont_of(info.continuation), info.frontier, damages >> i & 1);
        struct store_refusal refusal;
        if (store_cont_look(w->store, store_cont_of(info.continuation), &info, &refusal)) continue;
        place(w, store_cont_of(info.continuation), STORE_PLACE_DEVICE);
        fork_of(w, store_cont_of(info.continuation), info.frontier, false);
        place(w, store_cont_of(info.continuation), STORE_PLACE_HOST);
    }
}

static void release_all(struct world *w) {
    struct kvd_continuation_info info;
    struct store_refusal refusal;
    struct kvd_stats stats;
    for (uint32_t cursor = 0; store_next_cont(w->store, &cursor, &info);)
        must(!store_release(w->store, store_cont_of(info.continuation), &refusal),
             "what was recovered can be released");
    audit(w);
    store_get_stats(w->store, &stats);
    must(!stats.continuations && !stats.host_occupied && !stats.membership_used && !stats.state_slots_used &&
             !stats.demoted_continuations,
         "nothing is left over");
    for (uint32_t p = 0; p < store_n_pools(w->store); p++)
        must(!stats.pool[p].allocated && !stats.pool[p].reserved, "the pools are empty");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct world w;
    input = data;
    left = size;
    uint8_t kind = u8();
    struct store_config config = config_of(kind, u8());
    void *tables = write_history(&config);
    open_world(&w, &config);
    open_directory(&w, tables);
    while (left) {
        if (u8() % 2) spoil_page(w.directory);
        else spoil_bundle(w.directory);
    }
    close_world(&w);
    bool lives = kind & 8;
    struct store_recovered first = recover(&w, &config, tables, lives);
    close_world(&w); /* killed */
    struct store_recovered second = recover(&w, &config, tables, lives);
    must(second.continuations == first.continuations && second.images == first.images,
         "what a recovery left is found again");
    must(!second.damaged && !second.dropped && !second.shortened, "and nothing else");
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        must(second.pages[p] == first.pages[p] && !second.dropped_pages[p], "page by page");
    use_all(&w, kind >> 4);
    release_all(&w);
    close_world(&w);
    struct store_recovered third = recover(&w, &config, tables, lives);
    must(!third.continuations && !third.dropped && !third.damaged, "what was released is gone");
    close_world(&w);
    free(tables);
    return 0;
}
