/* SPDX-License-Identifier: Apache-2.0
 *
 * Life of a run: set-up, choice of operations, history, report.
 */
#include "driver.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "kvt.h"

static uint32_t ids_of_pool[POOLS][MODEL_BLOCKS];
uint32_t *const run_ids[POOLS] = { ids_of_pool[0], ids_of_pool[1], ids_of_pool[2], ids_of_pool[3] };

/* ---- history and failure ---- */

static void print_history(const struct run *r) {
    printf("\n  scenario %s, seed %" PRIu64 ", step %" PRIu64 "; replay: -c %s -s %" PRIu64 " -n %" PRIu64
           "\n  last operations:\n",
           r->scenario->name, r->seed, r->step, r->scenario->name, r->seed, r->step + 1);
    for (uint64_t i = r->step < HISTORY ? 0 : r->step - HISTORY + 1; i <= r->step; i++)
        printf("    %" PRIu64 " %s\n", i, r->history[i % HISTORY]);
    fflush(stdout);
}

void fail(struct run *r, const char *format, ...) {
    va_list args;
    if (r->failed) return;
    r->failed = true;
    printf("\n  WRONG: ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    print_history(r);
}

void note(struct run *r, const char *format, ...) {
    char *line = r->history[r->step % HISTORY];
    size_t used = strlen(line);
    va_list args;
    va_start(args, format);
    if (used < sizeof r->history[0] - 1) vsnprintf(line + used, sizeof r->history[0] - used, format, args);
    va_end(args);
}

static struct run *crashing;

/* A store that dies or hangs must still say where: the process is lost anyhow, so printing is worth its risk. */
static void crashed(int sig) {
    if (crashing) print_history(crashing);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* ---- random choices ---- */

uint32_t below(struct run *r, uint32_t n) { return n ? kvt_below(&r->random, n) : 0; }
bool chance(struct run *r, uint32_t percent) { return below(r, 100) < percent; }
uint32_t between(struct run *r, uint32_t low, uint32_t high) {
    return high <= low ? low : low + below(r, high - low + 1);
}

int any_seq(struct run *r, int state) {
    int list[MODEL_SEQS];
    uint32_t n = 0;
    for (int i = 0; i < MODEL_SEQS; i++)
        if (r->model.seq[i].used && (state < 0 || (int)r->model.seq[i].state == state)) list[n++] = i;
    return n ? list[below(r, n)] : -1;
}

int any_cont(struct run *r, bool published) {
    int list[MODEL_CONTS];
    uint32_t n = 0;
    for (int i = 0; i < MODEL_CONTS; i++)
        if (r->model.cont[i].used && !r->model.cont[i].going && r->model.cont[i].published == published) list[n++] = i;
    return n ? list[below(r, n)] : -1;
}

int any_live(struct run *r) {
    int list[MODEL_SEQS];
    uint32_t n = 0;
    for (int k = 0; k < MODEL_SEQS; k++)
        if (model_live(&r->model, k)) list[n++] = k;
    return n ? list[below(r, n)] : -1;
}

store_cont some_target(struct run *r) {
    int live = chance(r, 5) ? any_live(r) : -1;
    return live >= 0 ? r->model.seq[live].live : some_cont(r, any_cont(r, !chance(r, 5)));
}

/* Handles that must be refused: dead, of another generation or index, foreign, none. */
static uint64_t bad_bits(struct run *r, const uint64_t *dead, uint32_t n_dead, uint64_t live) {
    uint32_t n = n_dead < DEAD ? n_dead : DEAD;
    switch (below(r, 5)) {
    case 0: return live ^ (UINT64_C(1) << below(r, 64));
    case 1: return kvt_random(&r->random);
    case 2: return live ? live + (UINT64_C(1) << 32) : 1;
    default: return n ? dead[below(r, n)] : UINT64_MAX;
    }
}

store_seq some_seq(struct run *r, int live) {
    if (live >= 0 && chance(r, 96)) return r->model.seq[live].handle;
    return (store_seq){ bad_bits(r, r->dead_seq, r->n_dead_seq, live >= 0 ? r->model.seq[live].handle.bits : 0) };
}

store_cont some_cont(struct run *r, int live) {
    if (live >= 0 && chance(r, 96)) return r->model.cont[live].handle;
    uint64_t bits = bad_bits(r, r->dead_cont, r->n_dead_cont, live >= 0 ? r->model.cont[live].handle.bits : 0);
    return (store_cont){ bits ? bits : UINT64_MAX };
}

void bury_seq(struct run *r, store_seq handle) { r->dead_seq[r->n_dead_seq++ % DEAD] = handle.bits; }
void bury_cont(struct run *r, store_cont handle) { r->dead_cont[r->n_dead_cont++ % DEAD] = handle.bits; }

/* The digests of a chain: each commits to all before it. Few choices a page, so that different sequences often agree.
 */
void chain_fill(struct run *r, struct space *sp, uint32_t from) {
    for (uint32_t b = from; b < r->model.blocks; b++) {
        uint64_t x = chance(r, 85) ? 1 : 2 + below(r, 2);
        if (b) {
            uint64_t prev;
            memcpy(&prev, sp->chain[b - 1], sizeof prev);
            x ^= prev;
        }
        for (size_t i = 0; i < sizeof sp->chain[b]; i += sizeof x) {
            uint64_t y = kvt_random(&x);
            memcpy(sp->chain[b] + i, &y, sizeof y);
        }
    }
}

void publish(struct run *r, uint32_t p, const struct kvd_pool_view *view) {
    uint32_t L = r->model.blocks;
    if (view->row >= r->model.config.max_concurrency || view->slice_begin > L ||
        view->slice_count > L - view->slice_begin) {
        fail(r, "pool %u: slice %u+%u of view->row %u is outside the table", p, view->slice_begin, view->slice_count,
             view->row);
        return;
    }
    memcpy(r->matrix[p] + (size_t)view->row * L + view->slice_begin,
           store_table_row(r->store, p, view->row) + view->slice_begin, view->slice_count * sizeof(int32_t));
}

void read_pages(struct run *r, store_seq seq, store_cont cont, uint32_t n[POOLS]) {
    for (uint32_t p = 0; p < r->model.n_pools; p++)
        n[p] = seq.bits ? store_seq_pages(r->store, seq, p, run_ids[p], MODEL_BLOCKS)
                        : store_cont_pages(r->store, cont, p, run_ids[p], MODEL_BLOCKS);
}

bool agreed(struct run *r, const char *subject, int code, const struct store_refusal *refusal,
            const struct reasons *reasons) {
    struct store_refusal got = *refusal;
    char text[256];
    if (code == STORE_OK) got.code = STORE_OK;
    else if ((int)got.code != code) fail(r, "%s returned %d, its refusal says %d", subject, code, (int)got.code);
    if (!model_expects(reasons, &got)) {
        fail(r, "%s: code %d what %d pool %d asked %" PRIu64 " had %" PRIu64 " (%s); the model has %u reasons", subject,
             code, (int)got.subject, (int)got.pool, got.asked, got.had,
             code ? store_refusal_text(&got, text, sizeof text) : "ok", reasons->n);
        for (uint32_t i = 0; i < reasons->n; i++)
            printf("    expected code %d what %d pool %d asked %" PRIu64 " had %" PRIu64 "%s\n",
                   (int)reasons->list[i].code, (int)reasons->list[i].subject, (int)reasons->list[i].pool,
                   reasons->list[i].asked, reasons->list[i].had, reasons->list[i].maybe ? " (maybe)" : "");
    }
    if (code && strlen(store_refusal_text(&got, text, sizeof text)) < 12)
        fail(r, "%s: no sentence for code %d", subject, code);
    note(r, " = %d", code);
    return code == STORE_OK && !r->failed;
}

int sweep(struct run *r, attempt_fn attempt, void *context, bool lenient, bool *ret_fired) {
    struct store_refusal refusal;
    for (uint32_t nth = 1;; nth++) {
        store_fail_acquisition(r->store, nth);
        int code = attempt(r, context, &refusal);
        uint32_t made = store_fail_acquisition(r->store, 0);
        *ret_fired = made >= nth;
        if (code == STORE_OK && *ret_fired && !lenient)
            fail(r, "acquisition %u was refused, yet the operation succeeded", nth);
        if (code == STORE_OK || r->failed) return code;
        if (code != STORE_E_SHORT || !*ret_fired)
            fail(r, "with acquisition %u of %u refused the code is %d", nth, made, code);
        r->faults++;
        if (r->failed || !unchanged(r)) return code;
    }
}

/* ---- operations ---- */

static const struct {
    const char *name;
    uint32_t weight;
    void (*run)(struct run *run);
} operations[] = {
    { "round", 36, op_round },
    { "begin", 15, op_begin },
    { "resolve", 17, op_resolve },
    { "name", 10, op_name },
    { "checkpoint", 8, op_checkpoint },
    { "finish", 6, op_finish },
    { "end", 3, op_end },
    { "quarantine", 3, op_quarantine },
    { "release", 5, op_release },
    { "retention", 1, op_retention },
    { "shorten", 3, op_shorten },
    { "find", 5, op_find },
    { "plan", 4, op_plan },
};
#define N_OPERATIONS (sizeof operations / sizeof *operations)

static void step(struct run *r) {
    uint32_t total = 0, pick, k = 0;
    for (size_t i = 0; i < N_OPERATIONS; i++) total += operations[i].weight;
    for (pick = below(r, total); pick >= operations[k].weight; k++) pick -= operations[k].weight;
    bool idle = any_seq(r, STORE_SEQ_ACTIVE) < 0 && operations[k].run != op_resolve && operations[k].run != op_find;
    for (uint32_t i = 0; idle && chance(r, 70) && i < N_OPERATIONS;
         i++) /* nobody is running: begin something instead */
        if (operations[i].run == op_begin) k = i;
    r->history[r->step % HISTORY][0] = 0;
    r->moved = r->own_only = r->reowned = false;
    note(r, "%s", operations[k].name);
    operations[k].run(r);
    r->done[k] += r->moved;
    r->refused[k] += !r->moved;
    if (!r->failed) look(r);
    if (r->model.wrong[0]) fail(r, "%s", r->model.wrong);
}

/* ---- set-up ---- */

static struct memory *device(const struct scenario *s, uint32_t n_pools) {
    const struct geom_pool_spec specs[POOLS] = {
        { .storage = s->storage,
          .order = GEOM_PAGE_MAJOR,
          .arrangement = s->arrangement,
          .n_layers = 2,
          .n_kv_heads = 2,
          .head_dim = 256,
          .n_ranks = s->arrangement == GEOM_RECORD ? 2 : 1 },
        { .storage = s->config.backend == GEOM_DFLASH ? KVD_STORAGE_BF16 : s->storage,
          .order = s->config.backend == GEOM_DFLASH ? GEOM_HEAD_MAJOR : GEOM_PAGE_MAJOR,
          .arrangement = s->arrangement,
          .n_layers = 1,
          .n_kv_heads = 2,
          .head_dim = s->config.backend == GEOM_DFLASH ? 128 : 256,
          .n_ranks = 1 }
    };
    uint32_t slots = s->config.has_state ? s->config.state_slots : 0;
    if (s->geometry) return memory_geometry(n_pools, s->config.pool_pages, slots, specs);
    return memory_flat(n_pools, s->config.pool_pages, slots);
}

static bool set_up(struct run *r) {
    char err[256] = "";
    size_t bytes = store_bytes(&r->scenario->config);
    model_init(&r->model, &r->scenario->config);
    if (bytes == 0 || store_check_config(&r->scenario->config, err, sizeof err)) {
        printf("  scenario %s: the configuration is refused: %s\n", r->scenario->name, err);
        return false;
    }
    r->block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(r->block, 0xA5, bytes); /* the store must not lean on zeroes */
    if (store_init(r->block, bytes, &r->scenario->config, &r->store, err, sizeof err)) {
        printf("  scenario %s: %s\n", r->scenario->name, err);
        return false;
    }
    r->memory = device(r->scenario, r->model.n_pools);
    size_t cells = (size_t)r->model.config.max_concurrency * r->model.blocks;
    for (uint32_t p = 0; p < POOLS; p++) {
        r->matrix[p] = malloc(cells * sizeof(int32_t));
        memset(r->matrix[p], 0xFF, cells * sizeof(int32_t));
    }
    r->words = malloc(sizeof(uint64_t) << 20);
    r->before = malloc(sizeof(uint64_t) << 20);
    return r->memory && store_n_pools(r->store) == r->model.n_pools && store_row_entries(r->store) == r->model.blocks;
}

static void tear_down(struct run *r) {
    memory_free(r->memory);
    for (uint32_t p = 0; p < POOLS; p++) free(r->matrix[p]);
    free(r->words);
    free(r->before);
    free(r->block);
    free(r);
}

static void report(const struct run *r) {
    printf("\n  %s: seed %" PRIu64 ", %" PRIu64 " operations;", r->scenario->name, r->seed, r->step);
    for (size_t i = 0; i < N_OPERATIONS; i++)
        printf(" %s %" PRIu64 "+%" PRIu64, operations[i].name, r->done[i], r->refused[i]);
    printf("; tail copies %" PRIu64 ", tails copied by a move %" PRIu64 ", bounded %" PRIu64
           ", injected shortages %" PRIu64 ", victims lost %" PRIu64 ", owed %" PRIu64
           ", mapped ahead of commit %" PRIu64 ", victims of growth %" PRIu64 ", rolling checkpoints %" PRIu64 "\n    ",
           r->copies, r->moved_tails, r->bounded, r->faults, r->lost_victims, r->owed, r->borrowed, r->grown,
           r->model.taken);
}

/* Everything goes back: whatever state random operations left, the store must close to empty. */
static void close_down(struct run *r) {
    struct store_refusal refusal;
    struct kvd_stats st;
    for (int i = 0; i < MODEL_SEQS; i++)
        if (r->model.seq[i].used) {
            store_cont cont;
            struct kvd_pool_view rows[POOLS];
            if (store_end(r->store, r->model.seq[i].handle, &cont, rows, &refusal)) fail(r, "closing: end refused");
        }
    for (int i = 0; i < MODEL_CONTS; i++)
        if (r->model.cont[i].used && !r->model.cont[i].published && !r->model.cont[i].going)
            store_checkpoint_abort(r->store, r->model.cont[i].handle, &refusal);
    uint32_t cursor = 0;
    struct kvd_continuation_info info;
    while (store_next_cont(r->store, &cursor, &info))
        if (store_release(r->store, store_cont_of(info.continuation), &refusal)) fail(r, "closing: release refused");
    store_get_stats(r->store, &st);
    for (uint32_t p = 0; p < r->model.n_pools; p++)
        if (st.pool[p].available != st.pool[p].capacity || st.pool[p].rows_used)
            fail(r, "closing: pool %u has %u of %u available", p, st.pool[p].available, st.pool[p].capacity);
    if (st.sequences || st.continuations || st.membership_used || st.state_slots_used)
        fail(r, "closing: something is still held");
    char text[512];
    if (store_audit(r->store, text, sizeof text)) fail(r, "closing: %s", text);
}

bool run_scenario(const struct scenario *s, uint64_t seed, uint64_t n_operations) {
    struct run *r = calloc(1, sizeof *r);
    bool ok = false;
    r->scenario = s;
    r->seed = seed;
    r->stride = 1 + model_pages(s->config.max_context) / 32;
    r->random = seed ^ UINT64_C(0x5851F42D4C957F2D);
    crashing = r;
    signal(SIGSEGV, crashed);
    signal(SIGABRT, crashed);
    signal(SIGFPE, crashed);
    signal(SIGALRM, crashed);
    if (set_up(r)) {
        look(r);
        for (; r->step < n_operations && !r->failed; r->step++) {
            if (r->step % 64 == 0) alarm(30); /* one that hangs */
            step(r);
        }
        alarm(0);
        if (!r->failed) close_down(r);
        report(r);
        ok = !r->failed;
    }
    crashing = NULL;
    tear_down(r);
    return ok;
}
