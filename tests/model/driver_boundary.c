/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker's operations: write and step, name, checkpoint, finish; and its death.
 */
#include <string.h>

#include "driver.h"
#include "kvt.h"

#define MAX_ITEMS 6
#define LIST 12 /* victims of a list for growth, or of a checkpoint */

static uint32_t min32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t max32(uint32_t a, uint32_t b) { return a > b ? a : b; }

#define SAME(got, want, subject)                                                                                       \
    do {                                                                                                               \
        if ((uint64_t)(got) != (uint64_t)(want))                                                                       \
            fail(r, "%s, pool %u: %s is %llu, the model says %llu", subject, p, #got, (unsigned long long)(got),       \
                 (unsigned long long)(want));                                                                          \
    } while (0)

/* The kernels write columns [from, to) of a pool through the published row: those past the committed frontier are the
 * worker's. */
static void write_columns(struct run *r, int k, uint32_t p, uint32_t from, uint32_t to) {
    struct model_seq *s = &r->model.seq[k];
    const int32_t *row = r->matrix[p] + (size_t)s->row[p] * r->model.blocks;
    for (uint32_t t = from; t < to; t++) s->sp.token[p][t] = (uint32_t)kvt_random(&r->random);
    for (uint32_t t = from; t < to;) {
        uint32_t end = min32(to, (t / KVD_PAGE_TOKENS + 1) * KVD_PAGE_TOKENS);
        memory_write(r->memory, p, (uint32_t)row[t / KVD_PAGE_TOKENS], t % KVD_PAGE_TOKENS, end - t,
                     &s->sp.token[p][t]);
        t = end;
    }
    r->worker[k].written[p] = max32(r->worker[k].written[p], to);
}

/* ---- items of a round ---- */

static const struct kvd_round_pool nothing = { 0, KVD_NONE, KVD_NONE, KVD_NONE, KVD_NONE };

static void ask_frontiers(struct run *r, int k, struct store_round_item *it, bool truncating) {
    const struct model_seq *s = &r->model.seq[k];
    uint32_t room = r->model.config.max_context, low = 0;
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        room = min32(room, s->sp.n[p] * KVD_PAGE_TOKENS);
        low = max32(low, s->sp.committed[p]);
    }
    bool together = low <= room && chance(r, 75);
    uint32_t f = min32(room, low + below(r, (chance(r, 30) ? 130 : 20) * r->stride));
    if (chance(r, 15)) f = min32(room, (low + 63) / 64 * 64);
    if (chance(r, 30) && r->worker[k].before_cut > low) f = min32(room, r->worker[k].before_cut);
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        uint32_t c = s->sp.committed[p], top = min32(s->sp.n[p] * KVD_PAGE_TOKENS, r->model.config.max_context);
        if (together) it->pool[p].commit = f;
        else if (chance(r, 60)) it->pool[p].commit = between(r, c, min32(top, c + 70 * r->stride));
        if (chance(r, 1)) it->pool[p].commit = below(r, top + 80);
        if (!truncating) continue;
        uint32_t now = it->pool[p].commit == KVD_NONE ? c : it->pool[p].commit,
                 floor = model_protected(&r->model, s, p);
        it->pool[p].truncate = chance(r, 85) ? between(r, min32(floor, now), now) : below(r, now + 10);
        if (p > 0 && chance(r, 60)) it->pool[p].truncate = it->pool[0].truncate;
    }
}

static void ask_mapping(struct run *r, int k, struct store_round_item *it) {
    const struct model_seq *s = &r->model.seq[k];
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        uint32_t c = it->pool[p].commit == KVD_NONE ? s->sp.committed[p] : it->pool[p].commit;
        if (chance(r, 35)) it->pool[p].keep = between(r, c > 64 ? c - 64 : 0, c + 150 * r->stride);
        if (chance(r, 55)) it->pool[p].ensure = c + below(r, (chance(r, 25) ? 260 : 70) * r->stride);
        if (it->pool[p].ensure != KVD_NONE && !chance(r, 20))
            it->pool[p].ensure = min32(it->pool[p].ensure,
                                       s->entitlement[p] * KVD_PAGE_TOKENS + (r->model.config.lease_growth ? 200 : 0));
        if (chance(r, 1)) it->pool[p].ensure = chance(r, 50) ? UINT32_MAX - 1 : below(r, 5000);
        if (chance(r, 1)) it->pool[p].keep = UINT32_MAX - 1;
    }
}

/* Whatever will be committed must have been written. */
static void write_before_commit(struct run *r, int k, const struct store_round_item *it) {
    const struct model_seq *s = &r->model.seq[k];
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        uint32_t top = min32(s->sp.n[p] * KVD_PAGE_TOKENS, r->model.config.max_context), c = s->sp.committed[p];
        uint32_t commit = it->pool[p].commit, written = r->worker[k].written[p];
        if (chance(r, 10)) write_columns(r, k, p, c, written); /* rejected drafts, written again (SPEC-3) */
        uint32_t to = chance(r, 30) ? min32(top, written + below(r, 40 * r->stride)) : written;
        if (commit != KVD_NONE && commit <= top) to = max32(to, commit);
        if (to > written) write_columns(r, k, p, written, to);
    }
}

static void ask_state(struct run *r, int k, struct store_round_item *it) {
    const struct model_seq *s = &r->model.seq[k];
    if (!r->model.config.has_state) {
        if (chance(r, 1)) it->state_frontier = 0;
        return;
    }
    uint32_t f = it->pool[0].truncate != KVD_NONE ? it->pool[0].truncate
                 : it->pool[0].commit != KVD_NONE ? it->pool[0].commit
                                                  : s->sp.committed[0];
    if (chance(r, it->pool[0].truncate != KVD_NONE ? 40 : 80)) it->state_frontier = f;
    if (chance(r, 5)) it->state_frontier = below(r, f + 20);
}

static void make_item(struct run *r, int k, struct store_round_item *it, bool commits_only) {
    *it = (struct store_round_item){ .state_frontier = KVD_NONE, .pool = { nothing, nothing, nothing, nothing } };
    it->seq = some_seq(r, k);
    if (k < 0) return;
    if (model_find_seq(&r->model, it->seq) >= 0) it->seq = r->model.seq[k].handle; /* a bad one that is another's */
    const struct model_seq *s = &r->model.seq[k];
    it->lease = chance(r, 98) ? s->lease : s->lease + 1;
    ask_frontiers(r, k, it, !commits_only && chance(r, 12));
    if (!commits_only) ask_mapping(r, k, it);
    for (uint32_t p = 0; commits_only && p < r->model.n_pools; p++)
        if (it->pool[p].commit > s->sp.n[p] * KVD_PAGE_TOKENS)
            it->pool[p].commit = KVD_NONE; /* not mapped yet: not written */
    it->ahead = !commits_only && chance(r, 25);
    ask_state(r, k, it);
    if (s->state == STORE_SEQ_ACTIVE) write_before_commit(r, k, it);
    ROUND_ASK(it);
    note(r, " [seq %d c %d,%d t %d,%d k %d,%d e %d,%d s %d a %d]", k, (int)it->pool[0].commit, (int)it->pool[1].commit,
         (int)it->pool[0].truncate, (int)it->pool[1].truncate, (int)it->pool[0].keep, (int)it->pool[1].keep,
         (int)it->pool[0].ensure, (int)it->pool[1].ensure, (int)it->state_frontier, it->ahead);
}

/* ---- answers of a round ---- */

static void check_slice(struct run *r, const struct model_round *rd, uint32_t base, uint32_t before,
                        const struct kvd_pool_view *view, uint32_t p) {
    uint32_t high = max32(before, rd->map[p]), low = rd->base[p] > base ? base : rd->kept[p];
    if (rd->map[p] == before && rd->kept[p] == before && rd->base[p] == base) SAME(view->slice_count, 0, "slice");
    else if (view->slice_begin < low || view->slice_begin + view->slice_count >
                                            high) /* tight; that it is wide enough shows in the published table */
        fail(r, "pool %u: slice %u+%u, changed are %u..%u", p, view->slice_begin, view->slice_count, low, high);
}

/* A list that a scheduler left, where the model can tell what membership gives. */
static void leave_list(struct run *r, struct store_round_item *it, struct kvd_victim *list, struct kvd_victim *gone) {
    it->growth = list;
    it->gone = gone;
    if (!r->model.config.lease_growth || r->model.config.membership_entries || chance(r, 10)) return;
    for (uint32_t n = 1 + below(r, LIST); it->n_growth < n;) {
        struct kvd_victim *victim = &list[it->n_growth++];
        *victim = (struct kvd_victim){ .continuation.bits = some_cont(r, any_cont(r, !chance(r, 5))).bits };
        draw_cut(r, victim);
    }
}

/* FIT-4: exactly those went. */
static void check_gone(struct run *r, const struct store_round_item *it, const struct model_round *rd,
                       const struct store_round_result *res) {
    if (res->n_gone != rd->n_gone) fail(r, "%u went for growth, the model says %u", res->n_gone, rd->n_gone);
    for (uint32_t i = 0; i < rd->n_gone && !r->failed; i++) {
        store_cont handle = r->model.cont[rd->gone[i]].handle;
        if (it->gone[i].continuation.bits != handle.bits || it->gone[i].frontier != rd->cut[i])
            fail(r, "victim %u of growth: not cont %d, or not to %u", i, rd->gone[i], rd->cut[i]);
        if (rd->cut[i] == 0) bury_cont(r, handle);
        r->grown++;
    }
}

/* An injected shortage may have cost a rung of lease growth: any rung, or none, is then right. */
static void settle_rungs(struct run *r, const struct store_round_item *it, struct model_round *rd,
                         const struct store_round_result *res) {
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        uint32_t got = res->pool[p].entitlement;
        bool right =
            got == (model_has_window(&r->model, p) ? rd->entitlement[p] : r->model.seq[rd->seq].entitlement[p]);
        for (uint32_t i = 0; i < rd->growth[p].n; i++) right |= got == rd->growth[p].target[i];
        if (!right) fail(r, "pool %u: entitlement %u is no rung", p, got);
        rd->entitlement[p] = got;
    }
    rd->n_gone = res->n_gone; /* as many as the rung that was given needed */
    for (uint32_t i = 0; i < rd->n_gone; i++) {
        rd->gone[i] = model_find_cont(&r->model, store_cont_of(it->gone[i].continuation));
        rd->cut[i] = it->gone[i].frontier;
        if (rd->gone[i] < 0) fail(r, "growth took what is not there");
    }
    model_round_settle(&r->model, it, rd);
}

static void check_round_view(struct run *r, const struct model_seq *s, const struct kvd_pool_view *v,
                             const struct model_round *rd, uint32_t p) {
    SAME(v->row, s->row[p], "round");
    SAME(v->membership, rd->map[p], "round");
    SAME(v->entitlement, rd->entitlement[p], "round");
    SAME(v->committed, rd->committed[p], "round");
    for (int c = 0; c < MODEL_CONTS; c++)
        if (r->model.cont[c].used && r->model.cont[c].asked) return; /* whose own it is comes to light later */
    SAME(v->protected_frontier, model_protected(&r->model, s, p), "round");
}

/* The state images: a fork's worker fetches the source's before its first commit, and makes its own as it goes. */
static void state_step(struct run *r, const struct store_round_item *it, struct model_seq *s, uint32_t source,
                       bool had_image) {
    if (!r->model.config.has_state) return;
    if (source != KVD_NONE && s->source_slot == KVD_NONE && !had_image) {
        if (memory_state_read(r->memory, source) != s->wanted_image)
            fail(r, "the source's state image went before the first commit");
        memory_state_copy(r->memory, source, s->slot);
    }
    if (it->state_frontier == KVD_NONE) return;
    s->sp.image = kvt_random(&r->random);
    memory_state_write(r->memory, s->slot, s->sp.image);
}

static uint32_t n_rolled(const struct run *r, int k) {
    int own[MODEL_CONTS];
    return model_rolled(&r->model, k, own);
}

/* GRP-5: the image of a rolling checkpoint, copied before the worker goes on in the slot. */
static void copy_rolled(struct run *r, const struct model_seq *s, const struct store_round_result *res) {
    int own[MODEL_CONTS], fresh = -1;
    for (uint32_t i = model_rolled(&r->model, (int)(s - r->model.seq), own); r->model.config.has_state && i-- > 0;)
        if (r->model.cont[own[i]].handle.bits == res->rolled.bits) fresh = own[i];
    if ((fresh >= 0) != (res->rolled.bits != 0)) fail(r, "a rolling checkpoint is copied that is not there");
    if (fresh < 0 || r->failed) return;
    struct model_cont *c = &r->model.cont[fresh];
    if (res->image.kind != STORE_COPY_STATE || res->image.src != s->slot || res->image.dst != c->slot)
        fail(r, "rolling checkpoint: image %u -> %u", res->image.src, res->image.dst);
    r->snapper[fresh].n_copies = 0;
    c->sp.image = s->sp.image;
    memory_state_copy(r->memory, res->image.src, res->image.dst);
    r->copies++;
}

static void applied(struct run *r, const struct store_round_item *it, struct model_round *rd,
                    const struct store_round_result *res) {
    struct model_seq *s = &r->model.seq[rd->seq];
    uint32_t before[POOLS], base[POOLS], n[POOLS] = { 0 }, source = s->source_slot,
                                         named = model_named(&r->model, &s->sp, s->sp.committed[0] / 64);
    uint32_t p = 0;
    SAME(res->bounded, rd->bounded, "bounded");
    if (rd->bounded) {
        SAME(res->bounded_pool, rd->bounded_pool, "bounded");
        SAME(res->bounded_frontier, rd->bounded_frontier, "bounded");
        r->bounded++;
    }
    r->own_only = r->own_only && res->refusal.code == STORE_OK;
    for (p = 0; p < r->model.n_pools; p++) {
        before[p] = s->sp.n[p];
        base[p] = s->sp.base[p];
        if (rd->base[p] > base[p]) r->own_only = false; /* another may hold what it passes */
        if (rd->entitlement[p] != s->entitlement[p] && !model_has_window(&r->model, p)) {
            r->own_only = false;
            r->reowned = true;
        }
        n[p] = store_seq_pages(r->store, s->handle, p, run_ids[p], MODEL_BLOCKS);
        SAME(n[p], rd->map[p], "round");
    }
    check_gone(r, it, rd, res);
    if (r->failed) return;
    uint32_t had = s->sp.committed[0], due[MODEL_BLOCKS];
    bool had_image = s->state_frontier != KVD_NONE;
    struct store_rolling got[STORE_MAX_ROLLING];
    const struct model_rolling rolling = { .got = got,
                                           .n = store_get_rolling(r->store, s->handle, got),
                                           .unsure = r->unsure,
                                           .image = it->state_frontier,
                                           .slot = res->image.dst };
    bool rolls = model_due(&r->model, rd->seq, rd->committed, due) || n_rolled(r, rd->seq);
    if (rolls) r->own_only = false;
    model_round_apply(&r->model, it, rd, &rolling, run_ids, n);
    if (it->pool[0].truncate != KVD_NONE)
        r->worker[rd->seq].before_cut = it->pool[0].commit != KVD_NONE ? it->pool[0].commit : had;
    if (s->source_slot != source) r->own_only = false; /* the pinned slot may go */
    state_step(r, it, s, source, had_image);
    copy_rolled(r, s, res);
    for (p = 0; p < r->model.n_pools; p++) {
        check_round_view(r, s, &res->pool[p], rd, p);
        check_slice(r, rd, base[p], before[p], &res->pool[p], p);
        r->worker[rd->seq].written[p] = min32(r->worker[rd->seq].written[p], rd->kept[p] * KVD_PAGE_TOKENS);
        publish(r, p, &res->pool[p]);
    }
    uint32_t full = s->sp.committed[0] / 64;
    if (full < named) chain_fill(r, &s->sp, full); /* other tokens will follow */
}

/* As the store gets it: what is not asked for has any value. */
static struct store_round_item obscured(struct run *r, const struct store_round_item *it) {
    struct store_round_item out = *it;
    if (!(it->ask & KVD_ROUND_STATE)) out.state_frontier = below(r, 200);
    for (uint32_t p = 0; p < POOLS; p++) {
        uint32_t *field[] = { &out.pool[p].commit, &out.pool[p].truncate, &out.pool[p].keep, &out.pool[p].ensure };
        for (uint32_t k = 0; k < 4; k++)
            if (!(it->pool[p].ask >> k & 1)) *field[k] = below(r, 200);
    }
    return out;
}

struct round_attempt {
    const struct store_round_item *item;
    struct store_round_result result;
};

static int attempt_round(struct run *r, void *context, struct store_refusal *refusal) {
    struct round_attempt *a = context;
    store_round(r->store, a->item, 1, &a->result);
    *refusal = a->result.refusal;
    return (int)a->result.refusal.code;
}

static bool sweep_round(struct run *r, const struct store_round_item *it, const struct model_round *rd,
                        struct store_round_result *res) {
    struct store_round_item item = obscured(r, it);
    struct round_attempt a = { .item = &item };
    bool fired = false, grows = false;
    uint32_t due[MODEL_BLOCKS];
    for (uint32_t p = 0; p < r->model.n_pools; p++) grows |= rd->growth[p].n > 0;
    grows |= model_due(&r->model, rd->seq, rd->committed, due) > 0; /* or is skipped */
    sweep(r, attempt_round, &a, grows, &fired);
    *res = a.result;
    return fired;
}

void op_round(struct run *r) {
    struct store_round_item items[MAX_ITEMS];
    struct store_round_result results[MAX_ITEMS];
    struct kvd_victim lists[MAX_ITEMS][LIST], gone[MAX_ITEMS][LIST];
    struct model_round rd;
    uint32_t due[MODEL_BLOCKS];
    bool busy[MODEL_SEQS] = { false }, cut[MODEL_SEQS] = { false }, swept = false;
    uint32_t n = chance(r, 2) ? 0 : 1 + below(r, chance(r, 50) ? 2 : MAX_ITEMS);
    for (uint32_t i = 0; i < n; i++) {
        int k = any_seq(r, chance(r, 97) ? STORE_SEQ_ACTIVE : -1);
        if (k >= 0 && busy[k] && cut[k]) k = -1;
        make_item(r, k, &items[i], k >= 0 && busy[k]);
        leave_list(r, &items[i], lists[i], gone[i]);
        if (k < 0) continue;
        busy[k] = true; /* twice in a round: the second only commits, and nothing that the first may have cut away */
        for (uint32_t p = 0; p < POOLS; p++)
            cut[k] |= items[i].pool[p].truncate != KVD_NONE || items[i].pool[p].keep != KVD_NONE;
    }
    memset(results, 0xEE, sizeof results);
    if (n == 1) {
        model_round(&r->model, &items[0], &rd);
        swept = rd.reasons.n == 0 && chance(r, 15) && model_due(&r->model, rd.seq, rd.committed, due) < 2;
    }
    bool fired = swept && sweep_round(r, &items[0], &rd, &results[0]);
    struct store_round_item sent[MAX_ITEMS];
    for (uint32_t i = 0; i < n; i++) sent[i] = obscured(r, &items[i]);
    if (!swept) store_round(r->store, sent, n, results);
    r->own_only = true;
    r->unsure = fired || r->model.config.membership_entries;
    for (uint32_t i = 0; i < n && !r->failed; i++) {
        model_round(&r->model, &items[i], &rd);
        if (!agreed(r, "item", (int)results[i].refusal.code, &results[i].refusal, &rd.reasons)) continue;
        if (fired) settle_rungs(r, &items[i], &rd, &results[i]);
        applied(r, &items[i], &rd, &results[i]);
        r->moved = true;
    }
    if (!r->moved) r->own_only = false;
}

/* ---- names ---- */

void op_name(struct run *r) {
    static uint8_t digests[MODEL_BLOCKS + 8][32];
    struct store_refusal refusal = { 0 };
    struct reasons reasons = { 0 };
    int k = any_seq(r, chance(r, 95) ? STORE_SEQ_ACTIVE : -1);
    store_seq h = some_seq(r, k);
    k = model_find_seq(&r->model, h);
    uint32_t full = k < 0 ? 0 : r->model.seq[k].sp.committed[0] / KVD_PAGE_TOKENS;
    uint32_t first = k < 0 ? 0 : model_named(&r->model, &r->model.seq[k].sp, full), n = full - first;
    uint64_t lease = k < 0 ? 1 : r->model.seq[k].lease;
    if (chance(r, 20)) {
        first = below(r, full + 1);
        n = full - first;
    }
    if (chance(r, 15)) n = below(r, n + 2);
    if (chance(r, 1)) first = UINT32_MAX - below(r, 3);
    if (chance(r, 2)) lease++;
    if (n > MODEL_BLOCKS) n = MODEL_BLOCKS;
    for (uint32_t i = 0; k >= 0 && i < n && first + i < MODEL_BLOCKS; i++)
        memcpy(digests[i], r->model.seq[k].sp.chain[first + i], 32);
    if (chance(r, 5) && n) digests[below(r, n)][below(r, 32)] ^= 1; /* another name, or an unexpected one */
    bool odd = false;
    for (uint32_t i = 0; k >= 0 && i < n && first < MODEL_BLOCKS && first + i < MODEL_BLOCKS; i++)
        odd |= memcmp(digests[i], r->model.seq[k].sp.chain[first + i], 32) != 0;
    model_name_reasons(&r->model, k, lease, first, n, (const uint8_t(*)[32])digests, &reasons);
    if (odd && reasons.n == 0) return; /* a chain never takes an unexpected turn */
    note(r, " seq %d pages %u+%u", k, first, n);
    int code = store_name_pages(r->store, h, lease, first, n, (const uint8_t(*)[32])digests, &refusal);
    if (!agreed(r, "name", code, &refusal, &reasons)) return;
    uint32_t pending = r->model.n_pools > 1 || r->model.config.has_state ? n_rolled(r, k) : 0;
    model_name(&r->model, k, first, n, (const uint8_t(*)[32])digests);
    r->moved = true;
    r->own_only = pending == 0;
}

/* ---- checkpoint, finish ---- */

struct snap {
    store_seq seq;
    uint64_t lease;
    struct kvd_tail tail;
    const struct kvd_tail *given;
    uint32_t retention;
    struct kvd_victim victims[LIST];
    uint32_t n_victims;
    uint64_t revision;
    struct store_checkpointed got;
};

static int make_snap(struct run *r, struct snap *s) {
    int k = any_seq(r, chance(r, 95) ? STORE_SEQ_ACTIVE : -1);
    memset(s, 0, sizeof *s);
    s->seq = some_seq(r, k);
    k = model_find_seq(&r->model, s->seq);
    s->lease = k < 0 ? 1 : r->model.seq[k].lease + chance(r, 2);
    s->retention = below(r, 8);
    s->tail.n = k < 0 ? 0 : r->model.seq[k].sp.committed[0] % KVD_PAGE_TOKENS;
    if (chance(r, 3)) s->tail.n = below(r, 64);
    uint32_t salt = chance(r, 30) ? below(r, 50000) : 7; /* mostly the same, as of equal prompts */
    for (uint32_t i = 0; i < s->tail.n; i++) s->tail.tokens[i] = salt + i;
    s->given = (s->tail.n == 0 && chance(r, 50)) || chance(r, 1) ? NULL : &s->tail;
    return k;
}

static int attempt_checkpoint(struct run *r, void *context, struct store_refusal *refusal) {
    struct snap *s = context;
    const struct store_checkpoint want = { .tail = s->given,
                                           .retention = s->retention,
                                           .victims = s->victims,
                                           .n_victims = s->n_victims,
                                           .revision = s->revision };
    return store_checkpoint_begin(r->store, s->seq, s->lease, &want, &s->got, refusal);
}

static void check_snap_copies(struct run *r, int k, int c, const struct store_checkpointed *got) {
    struct model_cont *mc = &r->model.cont[c];
    struct worker *snapper = &r->snapper[c];
    uint32_t want = r->model.config.has_state ? 1 : 0, block = mc->frontier / KVD_PAGE_TOKENS,
             tail = mc->frontier % KVD_PAGE_TOKENS;
    if (tail) want += r->model.n_pools;
    snapper->n_copies = got->n_copies;
    memcpy(snapper->copies, got->copies, sizeof snapper->copies);
    if (got->n_copies != want) fail(r, "%u copies, the model says %u", got->n_copies, want);
    for (uint32_t i = 0; i < got->n_copies && !r->failed; i++) {
        const struct store_copy *x = &got->copies[i];
        if (x->kind == STORE_COPY_STATE) {
            if (x->src != r->model.seq[k].slot || model_slot_taken(&r->model, x->dst))
                fail(r, "state copy %u -> %u", x->src, x->dst);
            mc->slot = x->dst;
            memory_state_copy(r->memory, x->src, x->dst); /* at once: the worker goes on in the source slot */
        } else if (x->pool >= r->model.n_pools || x->columns != tail ||
                   x->src != r->model.seq[k].sp.page[x->pool][block] || x->dst != mc->sp.page[x->pool][block]) {
            fail(r, "copy of pool %u: %u -> %u, %u columns", x->pool, x->src, x->dst, x->columns);
        }
        r->copies++;
    }
}

static void draw_recipe(struct run *r, struct snap *s) {
    for (uint32_t n = chance(r, 30) ? 1 + below(r, 4) : 0; s->n_victims < n; s->n_victims++) {
        int c = any_cont(r, !chance(r, 3));
        s->victims[s->n_victims].continuation.bits = some_cont(r, c).bits;
        draw_cut(r, &s->victims[s->n_victims]);
    }
    if (chance(r, 20)) s->revision = store_revision(r->store) - chance(r, 5);
}

/* They have given way, unless an equal one stands for the checkpoint. */
static void give_way(struct run *r, const struct snap *s, const struct model_plan *recipe) {
    if (s->got.n_gone != recipe->n_victims)
        fail(r, "checkpoint: %u victims went of %u", s->got.n_gone, recipe->n_victims);
    for (uint32_t v = 0; v < recipe->n_victims; v++) {
        if (recipe->cut[v] == 0) bury_cont(r, r->model.cont[recipe->victims[v]].handle);
        model_give_way(&r->model, recipe->victims[v], recipe->cut[v]);
    }
}

void op_checkpoint(struct run *r) {
    struct snap s;
    struct model_plan recipe;
    struct reasons reasons = { 0 };
    struct store_refusal refusal = { 0 };
    uint32_t n[POOLS] = { 0 };
    bool fired;
    int k = make_snap(r, &s);
    draw_recipe(r, &s);
    model_recipe(&r->model, s.victims, s.n_victims, s.revision, store_revision(r->store), &recipe);
    int equal = k < 0 ? -1
                      : model_equal(&r->model, r->model.seq[k].domain, &r->model.seq[k].sp,
                                    r->model.seq[k].sp.committed[0], s.given, (store_cont){ 0 });
    model_keep_reasons(&r->model, k, s.lease, s.given, equal >= 0, &recipe, &reasons);
    if (r->model.config.membership_entries && equal < 0) model_maybe_membership(&reasons);
    note(r, " seq %d", k);
    int code = reasons.n == 0 && chance(r, 15) ? sweep(r, attempt_checkpoint, &s, false, &fired)
                                               : attempt_checkpoint(r, &s, &refusal);
    if (r->failed || !agreed(r, "checkpoint", code, &refusal, &reasons)) return;
    if (s.got.is_published != (equal >= 0)) fail(r, "checkpoint: %s equal one is there", equal < 0 ? "no" : "an");
    if (equal >= 0) { /* FIT-5 */
        equal =
            model_equal(&r->model, r->model.seq[k].domain, &r->model.seq[k].sp, s.got.frontier, s.given, s.got.cont);
        if (equal < 0) fail(r, "checkpoint: what stands for it is not equal");
        else model_merge(&r->model, equal, s.retention);
        if (s.got.n_gone) fail(r, "checkpoint: victims went though an equal one is there");
        r->moved = true;
        return;
    }
    give_way(r, &s, &recipe);
    read_pages(r, (store_seq){ 0 }, s.got.cont, n);
    int c = model_checkpoint(&r->model, k, s.given, s.retention, &s.got, run_ids, n);
    note(r, " -> cont %d", c);
    check_snap_copies(r, k, c, &s.got);
    r->moved = r->reowned = true;
}

static void free_rows(struct run *r, const struct model_seq *s, const struct kvd_pool_view *rows, bool published) {
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        if (published) SAME(rows[p].row, s->row[p], "freed row");
        if (published && rows[p].slice_count > r->model.blocks)
            fail(r, "freed row: slice of %u entries", rows[p].slice_count);
        if (published && !r->failed) publish(r, p, &rows[p]);
    }
}

void op_finish(struct run *r) {
    struct snap s;
    struct reasons reasons = { 0 };
    struct store_refusal refusal = { 0 };
    store_cont cont = { 77 };
    struct kvd_pool_view rows[POOLS];
    int k = make_snap(r, &s);
    bool retain = chance(r, 75);
    if (retain) model_keep_reasons(&r->model, k, s.lease, s.given, true, NULL, &reasons);
    else model_drive_reasons(&r->model, k, s.lease, &reasons);
    note(r, " seq %d %s", k, retain ? "retain" : "release");
    int code = store_finish(r->store, s.seq, s.lease, retain ? STORE_FINISH_RETAIN : STORE_FINISH_RELEASE, s.given,
                            s.retention, &cont, rows, &refusal);
    if (!agreed(r, "finish", code, &refusal, &reasons)) return;
    if (retain != (cont.bits != 0)) fail(r, "finish: a continuation where none is due, or none");
    free_rows(r, &r->model.seq[k], rows, true);
    bury_seq(r, s.seq);
    model_finish(&r->model, k, retain, s.given, s.retention, cont);
    r->moved = r->reowned = true;
}

/* ---- death ---- */

void op_end(struct run *r) {
    struct store_refusal refusal = { 0 };
    struct reasons reasons = { 0 };
    store_cont cont = { 77 };
    struct kvd_pool_view rows[POOLS];
    int k = any_seq(r, chance(r, 40) ? STORE_SEQ_QUARANTINED : -1);
    store_seq h = some_seq(r, k);
    k = model_find_seq(&r->model, h);
    if (k < 0)
        reasons.list[reasons.n++] =
            (struct reason){ .code = STORE_E_STALE, .subject = (enum store_subject)99, .pool = KVD_NONE - 1 };
    note(r, " seq %d", k);
    if (!agreed(r, "end", store_end(r->store, h, &cont, rows, &refusal), &refusal, &reasons)) return;
    bool retains = model_end_retains(&r->model, k), published = r->model.seq[k].state != STORE_SEQ_ACTIVATING;
    if (retains != (cont.bits != 0))
        fail(r, "end: %s continuation, the model says %s", cont.bits ? "a" : "no", retains ? "one" : "none");
    free_rows(r, &r->model.seq[k], rows, published);
    bury_seq(r, h);
    if (retains) note(r, " -> cont %d", model_end(&r->model, k, cont));
    else model_end(&r->model, k, cont);
    r->moved = r->reowned = true;
}

void op_quarantine(struct run *r) {
    struct store_refusal refusal = { 0 };
    struct reasons reasons = { 0 };
    int k = any_seq(r, chance(r, 50) ? STORE_SEQ_QUARANTINED : -1);
    store_seq h = some_seq(r, k);
    k = model_find_seq(&r->model, h);
    bool on = k >= 0 && r->model.seq[k].state == STORE_SEQ_QUARANTINED ? chance(r, 10) : chance(r, 90);
    model_quarantine_reasons(&r->model, k, on, &reasons);
    note(r, " seq %d %s", k, on ? "on" : "off");
    if (!agreed(r, "quarantine", store_quarantine(r->store, h, on, &refusal), &refusal, &reasons)) return;
    r->model.seq[k].state = on ? STORE_SEQ_QUARANTINED : STORE_SEQ_ACTIVE;
    r->moved = true;
}
