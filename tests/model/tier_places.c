/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves, drops, scrub, and bytes that rot.
 */
#include "tier.h"

#include <string.h>

#include "kvt.h"

#define REPLICA_IMAGE (UINT64_C(1) << 62)

/* ---- moves ---- */

struct moving {
    store_cont cont;
    enum store_place place;
    store_move move;
};

static int attempt_move(struct world *w, void *context, struct store_refusal *refusal) {
    struct moving *m = context;
    return store_move_begin(w->kvd.store, m->cont, m->place, &m->move, refusal);
}

/* Pages that the move must copy: those that the place lacks and nobody is bringing. */
static uint32_t lacking(const struct world *w, const struct cont *cont, enum store_place place, uint32_t p) {
    const struct pool *pool = &w->kvd.store->pool[p];
    uint32_t n = 0;
    for (uint32_t b = cont->space[p].base; b < cont->space[p].count; b++) {
        const struct page *page = &pool->pages[space_entry(w->kvd.store, &cont->space[p], b)];
        if (place == STORE_PLACE_DEVICE) n += page->device == KVD_NONE;
        else n += !page_is_current(page) && !(page->flags & PAGE_BACKING);
    }
    return n;
}

static void check_moving(struct world *w, struct flight *f, const uint32_t lacks[POOLS], bool image) {
    uint32_t listed[POOLS] = { 0 }, images = 0, p = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        const struct store_copy *c = &f->copies[i];
        bool out = c->kind == STORE_COPY_PAGE_OUT || c->kind == STORE_COPY_STATE_OUT,
             state = c->kind == STORE_COPY_STATE_OUT || c->kind == STORE_COPY_STATE_IN;
        if (out != (f->place != STORE_PLACE_DEVICE)) fail(w, "a move lists a copy in the other direction");
        if (state) images++;
        else listed[c->pool]++;
    }
    for (p = 0; p < w->n_pools; p++)
        if (listed[p] != lacks[p])
            fail(w, "pool %u: a move lists %u copies, %u pages are lacking", p, listed[p], lacks[p]);
    if (images != image) fail(w, "a move lists %u state images, %d is lacking", images, image);
}

void op_move(struct world *w) {
    struct store_refusal refusal = { 0 };
    struct moving m = { .place = (enum store_place)below(w, 3) };
    int c = any_cont(w, true);
    struct flight *f = c < 0 ? NULL : flight_new(w);
    if (!f) return;
    m.cont = w->cont[c].handle;
    const struct cont *cont = cont_find(w->kvd.store, m.cont);
    uint32_t lacks[POOLS] = { 0 };
    for (uint32_t p = 0; p < w->n_pools; p++) lacks[p] = lacking(w, cont, m.place, p);
    bool image = w->config.has_state && (m.place == STORE_PLACE_DEVICE ? cont->slot == KVD_NONE : !cont->image.bits);
    uint64_t before = fingerprint(w);
    int code = chance(w, 12) ? sweep(w, attempt_move, &m, &refusal) : attempt_move(w, &m, &refusal);
    note(w, " cont %d place %d = %d", c, (int)m.place, code);
    if (code) {
        bool known = code == STORE_E_STATE || code == STORE_E_BUSY || code == STORE_E_SHORT || code == STORE_E_TIER ||
                     code == STORE_E_REVISION || code == STORE_E_DAMAGED;
        if (!known || (code == STORE_E_TIER) != (w->config.host_bytes == 0)) fail(w, "move: %d", code);
        if (fingerprint(w) != before) fail(w, "a refused move changed the store");
        for (uint32_t p = 0; p < w->n_pools; p++)
            if (code == STORE_E_SHORT && refusal.subject == STORE_S_PAGES && refusal.pool == p &&
                (refusal.asked != lacks[p] || refusal.had != pool_available(&w->kvd.store->pool[p]) ||
                 lacks[p] <= refusal.had))
                fail(w, "pool %u: a prefetch of %u pages is refused", p, lacks[p]);
        flight_end(w, f);
        w->refused++;
        return;
    }
    f->kind = FLIGHT_MOVE;
    f->cont = m.cont;
    f->move = m.move;
    f->place = m.place;
    flight_fetch(w, f);
    check_moving(w, f, lacks, image);
    w->applied++;
}

/* ---- drops ---- */

void op_drop(struct world *w) {
    struct store_refusal refusal = { 0 };
    enum kvd_tier tier = chance(w, 50) ? KVD_TIER_DEVICE : KVD_TIER_HOST;
    uint32_t dropped[POOLS] = { 0 }, before[POOLS], host[POOLS];
    int c = any_cont(w, true);
    if (c < 0) return;
    struct store *store = w->kvd.store;
    const struct cont *cont = cont_find(store, w->cont[c].handle);
    for (uint32_t p = 0; p < w->n_pools; p++)
        before[p] = pool_available(&store->pool[p]), host[p] = store->pool[p].host_pages;
    uint64_t print = fingerprint(w);
    int code = store_drop_replica(store, w->cont[c].handle, tier, dropped, &refusal);
    note(w, " cont %d tier %d = %d", c, (int)tier, code);
    if (code) {
        if (code != STORE_E_STATE && code != STORE_E_BUSY && code != STORE_E_TIER && code != STORE_E_DAMAGED &&
            code != STORE_E_REVISION)
            fail(w, "drop: %d", code);
        if (fingerprint(w) != print) fail(w, "a refused drop changed the store");
        w->refused++;
        return;
    }
    for (uint32_t p = 0; p < w->n_pools; p++) {
        uint32_t freed =
            tier == KVD_TIER_DEVICE ? pool_available(&store->pool[p]) - before[p] : host[p] - store->pool[p].host_pages;
        if (freed != dropped[p]) fail(w, "pool %u: %u replicas are dropped, %u are told", p, freed, dropped[p]);
    }
    if (tier == KVD_TIER_DEVICE && !cont->demoted) fail(w, "its device replicas were dropped, and it does not rest");
    if (tier == KVD_TIER_HOST && cont->demoted) fail(w, "its host replicas were dropped, and it rests");
    w->applied++;
}

/* ---- shorter ---- */

/* SHORT-1: cut where its name can be cut, or refused for a reason that is there. */
void op_shorten(struct world *w) {
    struct store_refusal refusal = { 0 };
    int c = any_cont(w, true);
    if (c < 0) return;
    struct tier_cont *m = &w->cont[c];
    const struct cont *cont = cont_find(w->kvd.store, m->handle);
    uint32_t boundary = m->frontier / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS,
             to = chance(w, 50) ? between(w, 1, m->frontier) : between(w, 1, pages_of(m->frontier)) * KVD_PAGE_TOKENS;
    if (to > m->frontier || (chance(w, 30) && boundary < m->frontier)) to = between(w, boundary + 1, m->frontier);
    bool has_name = to % KVD_PAGE_TOKENS == 0 || (to > boundary && m->tail_named) || to == m->frontier,
         held = windows_hold(w->kvd.store, cont->space, to),
         idle = !cont->claimed && !cont->pins && !cont->image_pins && !cont->moves;
    uint64_t print = fingerprint(w);
    int code = store_shorten(w->kvd.store, m->handle, to, &refusal);
    note(w, " cont %d of %u to %u = %d", c, m->frontier, to, code);
    if (code) {
        bool right = code == STORE_E_BUSY    ? !idle || to % KVD_PAGE_TOKENS
                     : code == STORE_E_NAME  ? !has_name
                     : code == STORE_E_RANGE ? !held || (w->config.has_state && to != m->frontier)
                                             : false;
        if (!right) fail(w, "shorten: %d", code);
        if (fingerprint(w) != print) fail(w, "a refused shortening changed the store");
        w->refused++;
        return;
    }
    if (!has_name || (to != m->frontier && (w->config.has_state || !idle || !held)))
        fail(w, "shortened what cannot be");
    if (to != m->frontier) shortened_to(m, to);
    w->applied++;
}

/* ---- damage ---- */

/* The block at which it holds a page; its count: none. */
static uint32_t block_of(const struct store *store, const struct cont *cont, uint32_t p, uint32_t d) {
    uint32_t b = 0;
    while (b < cont->space[p].count && space_entry(store, &cont->space[p], b) != d) b++;
    return b;
}

/* It reaches as far as that at most; with state, or where a window begins later, there is no less. */
static void doom_at(const struct world *w, struct tier_cont *m, const struct cont *cont, uint32_t frontier) {
    uint32_t good = w->config.has_state || !windows_hold(w->kvd.store, cont->space, frontier) ? 0 : frontier;
    m->good = m->doomed ? min_u32(m->good, good) : good;
    m->doomed = true;
}

/* Who cannot be whole any more, if this replica goes. */
static void doom(struct world *w, uint64_t replica) {
    const struct store *store = w->kvd.store;
    uint32_t p = (uint32_t)(replica >> 32) & 0xff, d = (uint32_t)replica;
    for (int i = 0; i < CONTS; i++) {
        struct tier_cont *m = &w->cont[i];
        const struct cont *cont = m->used ? cont_find(store, m->handle) : NULL;
        if (!cont) continue;
        if (replica & REPLICA_IMAGE) {
            bool arriving = cont->image_coming;
            if (cont == &store->conts[d] && cont->image.bits && !cont->image_backing &&
                (cont->slot == KVD_NONE || arriving))
                doom_at(w, m, cont, 0);
            continue;
        }
        const struct page *page = &store->pool[p].pages[d];
        bool lost =
            (page->flags & PAGE_OCCUPIED) && page->host.bits && !(page->flags & PAGE_BACKING) && !page_on_device(page);
        uint32_t block = block_of(store, cont, p, d);
        if (lost && block < cont->space[p].count) doom_at(w, m, cont, block * KVD_PAGE_TOKENS);
    }
}

static uint32_t conts_there(const struct world *w) {
    uint32_t n = 0;
    for (int i = 0; i < CONTS; i++) n += w->cont[i].used && cont_find(w->kvd.store, w->cont[i].handle) != NULL;
    return n;
}

static bool counts(const struct store *store, uint64_t replica) {
    uint32_t i = (uint32_t)replica;
    if (replica & REPLICA_IMAGE) return store->conts[i].occupied && image_in_host(&store->conts[i]);
    const struct page *page = &store->pool[replica >> 32].pages[i];
    return (page->flags & PAGE_OCCUPIED) && page_in_host(page, 1);
}

void damaged(struct world *w, uint64_t replica) {
    uint32_t before = conts_there(w), told;
    if (!w->rots) fail(w, "a checksum does not match, and nothing was rotten");
    w->damages++;
    doom(w, replica);
    told = store_damaged(w->kvd.store, replica);
    note(w, " damaged %llx: %u go", (unsigned long long)replica, told);
    if (before - conts_there(w) != told) fail(w, "%u continuations went, %u are told", before - conts_there(w), told);
    if (counts(w->kvd.store, replica)) fail(w, "a replica that is known to be damaged counts as one");
}

/* A name for the replica whose bytes these are; 0: it is being written. */
static bool what_of(const struct world *w, const struct extent_info *extent, uint64_t *ret_what) {
    const struct store *store = w->kvd.store;
    for (uint32_t i = 0; extent->tag == POOLS && i < store->config.max_continuations; i++) {
        *ret_what = REPLICA_IMAGE | i;
        if (store->conts[i].occupied && store->conts[i].image.bits == extent->id.bits)
            return !store->conts[i].image_backing;
    }
    for (uint32_t d = 0; extent->tag < w->n_pools && d < store->pool[extent->tag].descriptors; d++) {
        const struct page *page = &store->pool[extent->tag].pages[d];
        *ret_what = (uint64_t)extent->tag << 32 | d;
        if ((page->flags & PAGE_OCCUPIED) && page->host.bits == extent->id.bits) return !(page->flags & PAGE_BACKING);
    }
    return false;
}

void op_damage(struct world *w) {
    uint32_t cursor = 0, n = 0;
    struct extent_info extent, chosen = { 0 };
    uint64_t replica;
    if (!w->rots || !w->kvd.store->arena) return;
    while (extent_next(w->kvd.store->arena, &cursor, &extent))
        if (below(w, ++n) == 0) chosen = extent;
    if (n == 0 || !what_of(w, &chosen, &replica)) return;
    w->arena[chosen.offset + below(w, UNIT)] ^= (uint8_t)(1 + below(w, 255));
    w->rotten[chosen.offset / UNIT] = true;
    if (chance(w, 50)) damaged(w, replica);
    w->applied++;
}

/* ---- scrub ---- */

/* Bytes that do not match are damage, unless the replica went under the scrub's eyes. */
static void end_scrub(struct world *w) {
    const struct store_copy *c = &w->scrub;
    bool right = checksum_of(w, c->host, c->bytes) == c->checksum, there = !w->kvd.store->reads[READ_SCRUB].gone;
    uint32_t before = conts_there(w), told = 0;
    if (!right && !w->rots) fail(w, "the scrub reads other bytes than were copied out, and nothing was rotten");
    if (!right && there) {
        w->damages++;
        doom(w, c->replica);
    }
    bool damage = store_scrub_end(w->kvd.store, right, &told);
    if (damage != (!right && there) || before - conts_there(w) != told)
        fail(w, "the scrub tells %d and %u", damage, told);
}

/* ---- what the cold tier reads ---- */

/* COLD-4: what was read is what was copied out, whatever became of it meanwhile; and it has the name that its
 * continuation says. */
static void end_read(struct world *w) {
    const struct store_copy *c = &w->read.copy;
    bool right = checksum_of(w, c->host, c->bytes) == c->checksum, there = !w->kvd.store->reads[READ_COLD].gone;
    uint32_t before = conts_there(w), told = 0;
    if (!right && !w->rots) fail(w, "the cold tier reads other bytes than were copied out, and nothing was rotten");
    if (!right && there) {
        w->damages++;
        doom(w, c->replica);
    }
    bool damage = store_read_end(w->kvd.store, right, &told);
    if (damage != (!right && there) || before - conts_there(w) != told)
        fail(w, "the cold tier's read tells %d and %u", damage, told);
}

static void check_piece(struct world *w, const struct cont *cont, uint64_t cursor) {
    const struct store_piece *piece = &w->read;
    uint32_t block = (uint32_t)((cursor - 1) / w->n_pools), columns = columns_of(cont->frontier, block);
    bool tail = piece->kind == STORE_PIECE_TAIL;
    if (piece->kind == STORE_PIECE_IMAGE) block = cont->frontier / KVD_PAGE_TOKENS;
    else if (piece->copy.columns != columns || tail != (columns < KVD_PAGE_TOKENS))
        fail(w, "block %u is read with %u of %u columns", block, piece->copy.columns, columns);
    uint32_t step = piece->kind == STORE_PIECE_PAGE ? block + 1 : block;
    if (step > cont->named ||
        memcmp(piece->digest.bytes, index_digest(w->kvd.store, cont, step), KVD_DIGEST_BYTES) != 0)
        fail(w, "block %u is read with another name", block);
    if (tail && piece->tail.n != columns) fail(w, "a tail of %u tokens is named by %u", columns, piece->tail.n);
}

void op_read(struct world *w) {
    if (w->reading) end_read(w);
    w->applied += w->reading;
    w->reading = false;
    store_cont taken;
    uint64_t at, cursor = below(w, 6);
    const struct cont *cont = store_take_demoted(w->kvd.store, &taken, &at) ? cont_find(w->kvd.store, taken) : NULL;
    if (!cont || !store_read_begin(w->kvd.store, taken, &cursor, &w->read)) return;
    w->reading = true;
    check_piece(w, cont, cursor);
}

void op_scrub(struct world *w) {
    if (w->scrubbing) end_scrub(w);
    w->applied += w->scrubbing;
    w->scrubbing = !w->scrubbing && store_scrub_begin(w->kvd.store, &w->scrub) && w->scrub.bytes;
}
