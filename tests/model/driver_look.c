/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that can be seen of a store, written down as words and compared with the model.
 */
#include <stdio.h>
#include <string.h>

#include "driver.h"

static void put(struct run *r, uint64_t word) { r->words[r->n_words++] = word; }

static void put_view(struct run *r, const struct kvd_pool_view *v) {
    put(r, v->row);
    put(r, v->membership);
    put(r, v->entitlement);
    put(r, v->committed);
    put(r, v->protected_frontier);
}

#define SEE(got, want, ...)                                                                                            \
    do {                                                                                                               \
        if ((uint64_t)(got) != (uint64_t)(want)) {                                                                     \
            char where[128];                                                                                           \
            snprintf(where, sizeof where, __VA_ARGS__);                                                                \
            fail(r, "%s: %s is %lld, the model says %lld", where, #got, (long long)(got), (long long)(want));          \
        }                                                                                                              \
    } while (0)

/* ---- sequences ---- */

static void see_row(struct run *r, const struct model_seq *s, uint32_t p) {
    const int32_t *mirror = store_table_row(r->store, p, s->row[p]);
    const int32_t *device = r->matrix[p] + (size_t)s->row[p] * r->model.blocks;
    for (uint32_t b = 0; b < r->model.blocks; b++) { /* ROW-1, ROW-6 */
        int32_t want = b < s->sp.n[p] && !s->hidden ? (int32_t)s->sp.page[p][b] : -1;
        SEE(mirror[b], want, "pool %u row %u block %u", p, s->row[p], b);
        if (s->state != STORE_SEQ_ACTIVATING)
            SEE(device[b], want, "published: pool %u row %u block %u", p, s->row[p], b); /* ROW-4 */
    }
}

static void see_content(struct run *r, const struct space *sp, uint32_t p, uint32_t tokens, const char *whose) {
    for (uint32_t b = sp->base[p]; b * KVD_PAGE_TOKENS < tokens; b++) {
        uint32_t n = tokens - b * KVD_PAGE_TOKENS;
        if (n > KVD_PAGE_TOKENS) n = KVD_PAGE_TOKENS;
        if (!memory_holds(r->memory, p, sp->page[p][b], n, &sp->token[p][b * KVD_PAGE_TOKENS]))
            fail(r, "%s: pool %u block %u (page %u) reads other content than was written", whose, p, b, sp->page[p][b]);
    }
}

static void see_seq_pool(struct run *r, struct model_seq *s, const struct kvd_pool_view *v, uint32_t p) {
    SEE(v->row, s->row[p], "sequence, pool %u", p);
    SEE(v->membership, s->sp.n[p], "sequence, pool %u", p);
    SEE(v->entitlement, s->entitlement[p], "sequence, pool %u", p);
    SEE(v->committed, s->sp.committed[p], "sequence, pool %u", p);
    if (s->state != STORE_SEQ_ACTIVATING)
        SEE(v->protected_frontier, model_protected(&r->model, s, p), "sequence, pool %u", p);
    uint32_t n = store_seq_pages(r->store, s->handle, p, run_ids[p], MODEL_BLOCKS);
    SEE(n, s->sp.n[p], "page list of a sequence, pool %u", p);
    if (r->failed) return;
    if (memcmp(run_ids[p], s->sp.page[p], n * sizeof(uint32_t)) != 0)
        fail(r, "pages of a sequence changed in pool %u", p);
    for (uint32_t b = 0; b < n; b++) put(r, run_ids[p][b]);
    see_row(r, s, p);
    if (s->state != STORE_SEQ_ACTIVATING) see_content(r, &s->sp, p, r->worker[s - r->model.seq].written[p], "sequence");
}

/* GRP-5: its own rolling checkpoints, in order. */
static void see_rolling(struct run *r, const struct model_seq *s) {
    struct store_rolling got[STORE_MAX_ROLLING];
    int own[MODEL_CONTS], k = (int)(s - r->model.seq);
    uint32_t n = store_get_rolling(r->store, s->handle, got);
    for (int c = 0; c < MODEL_CONTS; c++) {
        if (!r->model.cont[c].used || !r->model.cont[c].asked || r->model.cont[c].rolls != k + 1) continue;
        bool listed = false;
        for (uint32_t i = 0; i < n; i++) listed |= got[i].cont.bits == r->model.cont[c].handle.bits;
        if (!listed) r->model.cont[c].rolls = 0;
        r->model.cont[c].asked = false;
    }
    SEE(n, model_rolled(&r->model, k, own), "rolling checkpoints of sequence %d", k);
    for (uint32_t i = 0; i < n && !r->failed; i++) {
        SEE(got[i].cont.bits, r->model.cont[own[i]].handle.bits, "rolling checkpoint %u of sequence %d", i, k);
        SEE(got[i].frontier, r->model.cont[own[i]].frontier, "rolling checkpoint %u of sequence %d", i, k);
        SEE(got[i].found, r->model.cont[own[i]].published, "rolling checkpoint %u of sequence %d", i, k);
        put(r, got[i].cont.bits);
        put(r, got[i].found);
    }
}

static void see_seq(struct run *r, const struct kvd_sequence_info *info) {
    int k = model_find_seq(&r->model, (store_seq){ info->sequence.bits });
    if (k < 0) {
        fail(r, "a sequence is listed that is not there");
        return;
    }
    struct model_seq *s = &r->model.seq[k];
    SEE(info->state, s->state, "sequence");
    SEE(info->root.digest.bytes[0], s->domain, "sequence");
    SEE(info->prompt_tokens, s->prompt, "sequence");
    SEE(info->ceiling_tokens, s->ceiling, "sequence");
    SEE(info->state_slot, s->slot, "sequence");
    if (s->state != STORE_SEQ_ACTIVATING)
        SEE(info->named_pages, model_named(&r->model, &s->sp, s->sp.committed[0] / KVD_PAGE_TOKENS), "sequence");
    if (s->state != STORE_SEQ_ACTIVATING) SEE(store_live(r->store, s->handle).bits, s->live.bits, "sequence");
    see_rolling(r, s);
    put(r, info->sequence.bits);
    put(r, info->state);
    put(r, (uint64_t)info->prompt_tokens << 32 | info->ceiling_tokens);
    put(r, (uint64_t)info->state_slot << 32 | info->named_pages);
    for (uint32_t p = 0; p < r->model.n_pools && !r->failed; p++) {
        put_view(r, &info->pool[p]);
        see_seq_pool(r, s, &info->pool[p], p);
    }
    if (r->model.config.has_state && s->state != STORE_SEQ_ACTIVATING && s->source_slot != KVD_NONE &&
        memory_state_read(r->memory, s->source_slot) != s->wanted_image)
        fail(r, "the source's state image was overwritten before the fork's first commit");
}

/* ---- continuations ---- */

static void see_cont_pool(struct run *r, struct model_cont *c, const struct kvd_continuation_info *info, uint32_t p,
                          int k) {
    SEE(info->pages[p], c->sp.n[p] - c->sp.base[p], "continuation, pool %u", p);
    if (c->claimed_by < 0 && c->pins == 0)
        SEE(info->exclusive_pages[p], model_joint(&r->model, &k, NULL, 1, p), "continuation, pool %u", p);
    uint32_t n = store_cont_pages(r->store, c->handle, p, run_ids[p], MODEL_BLOCKS);
    SEE(n, c->sp.n[p], "page list of a continuation, pool %u", p);
    if (r->failed) return;
    if (memcmp(run_ids[p], c->sp.page[p], n * sizeof(uint32_t)) != 0)
        fail(r, "pages of a continuation changed in pool %u", p);
    for (uint32_t b = 0; b < n; b++) put(r, run_ids[p][b]);
    put(r, (uint64_t)info->pages[p] << 32 | info->exclusive_pages[p]);
    see_content(r, &c->sp, p, c->frontier, "continuation");
}

/* LIVE-1: the sequence's own pages, as many as are named and complete in all pools. */
static void see_live(struct run *r, const struct kvd_continuation_info *info) {
    store_cont handle = store_cont_of(info->continuation);
    int k = model_find_live(&r->model, handle);
    if (k < 0) {
        fail(r, "a sequence is found that runs no more, or has named nothing");
        return;
    }
    const struct model_seq *s = &r->model.seq[k];
    uint32_t pages = model_live(&r->model, k);
    SEE(info->frontier, pages * KVD_PAGE_TOKENS, "running sequence");
    SEE(info->named_pages, pages, "running sequence");
    SEE(info->root.digest.bytes[0], s->domain, "running sequence");
    SEE(info->claimed || info->demoted || info->exclusive_pages[0], 0, "running sequence");
    put(r, info->continuation.bits);
    put(r, info->frontier);
    for (uint32_t p = 0; p < r->model.n_pools && !r->failed; p++) {
        uint32_t n = store_cont_pages(r->store, handle, p, run_ids[p], MODEL_BLOCKS);
        SEE(n, pages, "pages found of a running sequence, pool %u", p);
        if (!r->failed && memcmp(run_ids[p], s->sp.page[p], n * sizeof(uint32_t)) != 0)
            fail(r, "other pages are found of a running sequence in pool %u", p);
    }
}

/* GRP-5: one that was taken and named in the last Round, and stood for another's (FIT-5) before its end, was in no list
 * of its sequence's own: its handle comes to light here. */
static int find_listed(struct run *r, const struct kvd_continuation_info *info) {
    store_cont handle = store_cont_of(info->continuation);
    int k = model_find_cont(&r->model, handle);
    for (int c = 0; k < 0 && c < MODEL_CONTS; c++) {
        struct model_cont *m = &r->model.cont[c];
        bool unknown = m->used && m->published && m->rolls == 0 && m->handle.bits >= UINT64_MAX - r->model.births;
        if (!unknown || m->frontier != info->frontier || m->domain != info->root.digest.bytes[0]) continue;
        m->handle = handle;
        k = c;
    }
    return k;
}

static void see_cont(struct run *r, const struct kvd_continuation_info *info) {
    if (info->live) {
        see_live(r, info);
        return;
    }
    int k = find_listed(r, info);
    if (k < 0 || !r->model.cont[k].published) {
        fail(r, "a continuation is listed that is not there (CONT-1)");
        return;
    }
    struct model_cont *c = &r->model.cont[k];
    SEE(info->frontier, c->frontier, "continuation");
    SEE(info->root.digest.bytes[0], c->domain, "continuation");
    SEE(info->named_pages, model_named(&r->model, &c->sp, c->frontier / KVD_PAGE_TOKENS), "continuation");
    SEE(info->retention, c->retention, "continuation");
    SEE(info->state_slot, c->slot, "continuation");
    SEE(info->tail_named, c->tail_named, "continuation");
    SEE(info->claimed, c->claimed_by >= 0, "continuation");
    if (c->claimed_by < 0) SEE(info->sharers, model_sharers(&r->model, c), "continuation");
    put(r, info->continuation.bits);
    put(r, (uint64_t)info->frontier << 32 | info->named_pages);
    put(r, (uint64_t)info->retention << 32 | info->state_slot);
    put(r, (uint64_t)info->sharers << 2 | (uint64_t)info->tail_named << 1 | info->claimed);
    put(r, info->created);
    put(r, info->used);
    for (uint32_t p = 0; p < r->model.n_pools && !r->failed; p++) see_cont_pool(r, c, info, p, k);
    if (r->model.config.has_state && memory_state_read(r->memory, c->slot) != c->sp.image)
        fail(r, "a continuation's state image changed");
}

/* ---- the store as a whole ---- */

static void see_stats(struct run *r) {
    struct kvd_stats st;
    store_get_stats(r->store, &st);
    uint32_t published = 0;
    for (int i = 0; i < MODEL_CONTS; i++) published += r->model.cont[i].used && r->model.cont[i].published;
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        struct kvd_pool_stats want = model_stats(&r->model, p);
        const struct kvd_pool_stats *got = &st.pool[p];
        SEE(got->capacity, want.capacity, "pool %u", p);
        SEE(got->allocated, want.allocated, "pool %u", p);
        SEE(got->reserved, want.reserved, "pool %u", p);
        SEE(got->available, want.available, "pool %u", p);
        SEE(store_available(r->store, p), want.available, "pool %u", p);
        SEE(got->rows_used, want.rows_used, "pool %u", p);
        SEE(got->shared, want.shared, "pool %u", p);
        SEE(got->quarantined, want.quarantined, "pool %u", p);
        put(r, (uint64_t)got->allocated << 32 | got->reserved);
        put(r, (uint64_t)got->available << 32 | got->shared);
        put(r, (uint64_t)got->quarantined << 32 | got->rows_used);
    }
    SEE(st.sequences, model_seqs_used(&r->model), "stats");
    if (st.continuations != published && st.continuations != model_conts_used(&r->model))
        SEE(st.continuations, published, "stats");
    SEE(st.continuation_limit, r->model.config.max_continuations, "stats");
    SEE(st.state_slots_used, model_slots_used(&r->model), "stats");
    if (st.membership_used < model_membership(&r->model) || st.membership_used > st.membership_limit)
        fail(r, "membership: %llu of %llu used, %llu entries live", (unsigned long long)st.membership_used,
             (unsigned long long)st.membership_limit, (unsigned long long)model_membership(&r->model));
    put(r, st.sequences);
    put(r, st.continuations);
    put(r, st.state_slots_used);
    put(r, st.membership_used);
    put(r, st.operations);
    put(r, st.revision);
    SEE(st.revision, store_revision(r->store), "stats");
}

static void see_free_rows(struct run *r) {
    for (uint32_t p = 0; p < r->model.n_pools; p++)
        for (uint32_t row = 0; row < r->model.config.max_concurrency; row++) {
            bool used = false;
            for (int i = 0; i < MODEL_SEQS; i++) used |= r->model.seq[i].used && r->model.seq[i].row[p] == row;
            const int32_t *mirror = store_table_row(r->store, p, row),
                          *device = r->matrix[p] + (size_t)row * r->model.blocks;
            for (uint32_t b = 0; !used && b < r->model.blocks; b++)
                if (mirror[b] != -1 || device[b] != -1) fail(r, "pool %u: free row %u still maps block %u", p, row, b);
        }
}

void observe(struct run *r) {
    struct kvd_sequence_info seq;
    struct kvd_continuation_info cont;
    uint32_t cursor, n = 0, published = 0;
    r->n_words = 0;
    see_stats(r);
    for (cursor = 0; !r->failed && store_next_seq(r->store, &cursor, &seq); n++) see_seq(r, &seq);
    if (!r->failed && n != model_seqs_used(&r->model))
        fail(r, "%u sequences are listed, there are %u", n, model_seqs_used(&r->model));
    for (int i = 0; i < MODEL_CONTS; i++) published += r->model.cont[i].used && r->model.cont[i].published;
    for (int i = 0; i < MODEL_SEQS; i++) published += model_live(&r->model, i) > 0;
    for (cursor = 0, n = 0; !r->failed && store_next_cont(r->store, &cursor, &cont); n++) see_cont(r, &cont);
    if (!r->failed && n != published) fail(r, "%u continuations are listed, there are %u", n, published);
    if (!r->failed) see_free_rows(r);
}

bool unchanged(struct run *r) {
    observe(r);
    if (r->failed) return false;
    if (r->n_words == r->n_before && memcmp(r->words, r->before, r->n_words * sizeof *r->words) == 0) return true;
    uint32_t i = 0;
    while (i < r->n_words && i < r->n_before && r->words[i] == r->before[i]) i++;
    fail(r, "a refusal changed the store: word %u of %u (%u before): %llx, was %llx", i, r->n_words, r->n_before,
         (unsigned long long)r->words[i], (unsigned long long)r->before[i]);
    return false;
}

/* Who still reads a freed page reads rubbish from now on. */
static void poison_freed(struct run *r) {
    model_count(&r->model);
    for (uint32_t p = 0; p < r->model.n_pools; p++)
        for (uint32_t i = 0; i < r->model.config.pool_pages[p]; i++) {
            bool held = r->model.refs[p][i] || r->model.pins[p][i];
            if (r->occupied[p][i] && !held) memory_poison(r->memory, p, i, (uint32_t)r->step * 2654435761u);
            r->occupied[p][i] = held;
        }
}

/* Half of the time whole, half of the time a step of one that runs while the store changes: it may leave out what
 * changed, and never accuses. */
static void audit_now(struct run *r) {
    char text[1024] = "";
    struct store_audited audited = { 0 };
    bool more = false;
    if (r->step % 256 < 128) audited.violations = store_audit(r->store, text, sizeof text);
    else if (r->step % 256 == 128) store_audit_begin(r->store, r->audit_text, sizeof r->audit_text);
    else more = store_audit_step(r->store, 64, &audited);
    if (more || audited.violations == 0) return;
    fail(r, "audit: %u violations: %s", audited.violations, r->step % 256 < 128 ? text : r->audit_text);
}

void look(struct run *r) {
    poison_freed(r);
    if (!r->moved && r->n_before) {
        if (!unchanged(r)) return;
    } else {
        observe(r);
    }
    audit_now(r);
    uint64_t revision = store_revision(r->store);
    if (r->own_only && revision != r->revision) fail(r, "mapping inside a reservation changed the revision");
    if (r->reowned && revision <= r->revision) fail(r, "the revision did not increase");
    r->revision = revision;
    uint64_t *swap = r->before;
    r->before = r->words;
    r->words = swap;
    r->n_before = r->n_words;
}
