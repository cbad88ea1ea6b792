/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd_find and kvd_choose_victims against a scripted store.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "kvd.h"
#include "kvt.h"
#include "scripted.h"

static kvd_client *connect_to(struct script *s) {
    struct kvd_connect_options o = {
        .struct_size = sizeof o, .socket = script_path(s), .role = KVD_ROLE_SCHEDULER, .name = "test"
    };
    kvd_client *c = NULL;
    KVT_EQ(kvd_connect(&o, &c, NULL), KVD_OK);
    return c;
}

static uint32_t low(uint32_t a, uint32_t b) { return a < b ? a : b; }

static struct kvd_store_info small_store(uint64_t state_bytes) {
    return (struct kvd_store_info){
        .name = "scripted",
        .n_pools = 1,
        .max_context = 4096,
        .max_concurrency = 4,
        .row_entries = 64,
        .state_bytes = state_bytes,
        .capacity_tokens = 6400,
        .pool = { { .n_layers = 1, .n_kv_heads = 1, .head_dim = 64, .n_ranks = 1, .pages = 100, .page_bytes = 16384 } }
    };
}

/* ---- find -------------------------------------------------------------------------------------------- */

struct shelf {
    struct kvd_store_info info;
    uint32_t n, asked, asked_digests;
    struct kvd_candidate candidates[8];
};

static enum script_act shelf_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    static struct kvd_candidate answer[8];
    struct shelf *shelf = user;
    if (request->type == FRAME_DESCRIBE_STORE) reply->u.store = &shelf->info;
    if (request->type != FRAME_FIND) return SCRIPT_ANSWER;
    shelf->asked++;
    shelf->asked_digests += request->u.find.n;
    uint32_t n = 0;
    for (uint32_t i = 0; i < shelf->n; i++) /* no full pages: asked for with none */
        if ((request->u.find.n == 0) == (shelf->candidates[i].matched_pages == 0)) answer[n++] = shelf->candidates[i];
    reply->u.candidates.n = n;
    reply->u.candidates.items = answer;
    return SCRIPT_ANSWER;
}

static struct kvd_candidate candidate(uint64_t bits, uint32_t matched, uint32_t frontier, bool exact,
                                      const uint32_t *prompt, uint32_t differs_at) {
    struct kvd_candidate c = {
        .continuation = { bits }, .matched_pages = matched, .frontier = frontier, .exact_pages = exact
    };
    if (exact) {
        c.tail.n = frontier - matched * 64;
        for (uint32_t i = 0; i < c.tail.n; i++) c.tail.tokens[i] = prompt[matched * 64 + i] + (i >= differs_at);
    }
    return c;
}

static void find_in(struct shelf *shelf, const uint32_t *prompt, uint32_t n_prompt, struct kvd_hit *hits, uint32_t max,
                    uint32_t *ret_n) {
    struct script *s = script_start(shelf_fn, shelf);
    kvd_client *c = connect_to(s);
    kvd_chain *chain = NULL;
    struct kvd_error error = { .message = "" };
    shelf->asked = shelf->asked_digests = 0;
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, prompt, n_prompt), KVD_OK);
    KVT_EQ(kvd_find(c, chain, prompt, n_prompt, hits, max, ret_n, &error), KVD_OK);
    KVT_EQ_STR(error.message, "");
    kvd_chain_free(chain);
    kvd_disconnect(c);
    script_stop(s);
}

/* CONT-2: exact to the token, longest first, never the whole prompt. */
static void cont_2_hits_are_exact(void) {
    uint32_t prompt[200], n = 0;
    struct kvd_hit hits[16];
    for (uint32_t i = 0; i < 200; i++) prompt[i] = 1000 + i;
    struct shelf shelf = { .info = small_store(0), .n = 5 };
    shelf.candidates[0] = candidate(1, 2, 500, false, prompt, 0); /* leaves within page 2: usable at its boundary */
    shelf.candidates[1] = candidate(2, 2, 150, true, prompt, 10); /* tail differs at 138 */
    shelf.candidates[2] = candidate(3, 2, 150, true, prompt, 99); /* all of it */
    shelf.candidates[3] = candidate(4, 0, 30, true, prompt, 99);  /* no full page */
    shelf.candidates[4] = candidate(5, 0, 30, true, prompt, 0);   /* nothing in common */
    find_in(&shelf, prompt, 200, hits, 16, &n);
    KVT_EQ(n, 4);
    KVT_EQ(hits[0].continuation.bits, 3);
    KVT_EQ(hits[0].usable, 150);
    KVT_EQ(hits[1].continuation.bits, 2);
    KVT_EQ(hits[1].usable, 138);
    KVT_EQ(hits[2].continuation.bits, 1);
    KVT_EQ(hits[2].usable, 128);
    KVT_EQ(hits[2].frontier, 500);
    KVT_EQ(hits[3].usable, 30);
    KVT_EQ(shelf.asked, 2);
    KVT_EQ(shelf.asked_digests, 3);
    find_in(&shelf, prompt, 150, hits, 2, &n); /* the last token must be computed */
    KVT_EQ(n, 2);
    KVT_EQ(hits[0].usable, 149);
    KVT_EQ(shelf.asked, 1);
}

/* CONT-2: of hits that reach equally far the one that costs fewer pages from the host comes first, in whatever order
 * the store names them. */
static void cont_2_equal_hits_by_restore_cost(void) {
    uint32_t prompt[200], n = 0;
    struct kvd_hit hits[4];
    for (uint32_t i = 0; i < 200; i++) prompt[i] = 1000 + i;
    struct shelf shelf = { .info = small_store(0), .n = 3 };
    const uint32_t restore[3] = { 2, 0, 1 };
    for (uint32_t i = 0; i < 3; i++) {
        shelf.candidates[i] = candidate(i + 1, 2, 150, true, prompt, 99);
        shelf.candidates[i].restore_pages = restore[i];
    }
    find_in(&shelf, prompt, 200, hits, 4, &n);
    KVT_EQ(n, 3);
    for (uint32_t i = 0; i < 3; i++) KVT_EQ(hits[i].restore_pages, i);
}

/* CONT-4: with a state image only whole frontiers. */
static void cont_4_state_needs_whole_frontiers(void) {
    uint32_t prompt[200], n = 99;
    struct kvd_hit hits[16];
    for (uint32_t i = 0; i < 200; i++) prompt[i] = 7 * i;
    struct shelf shelf = { .info = small_store(4096), .n = 3 };
    shelf.candidates[0] = candidate(1, 2, 500, false, prompt, 0);
    shelf.candidates[1] = candidate(2, 2, 150, true, prompt, 10);
    shelf.candidates[2] = candidate(3, 2, 150, true, prompt, 99);
    find_in(&shelf, prompt, 200, hits, 16, &n);
    KVT_EQ(n, 1);
    KVT_EQ(hits[0].continuation.bits, 3);
    find_in(&shelf, prompt, 150, hits, 16, &n); /* the whole prompt: no query is left to compute */
    KVT_EQ(n, 0);
}

/* A candidate that contradicts itself is no hit. */
static void odd_candidates_are_left_out(void) {
    uint32_t prompt[200], n = 99;
    struct kvd_hit hits[16];
    for (uint32_t i = 0; i < 200; i++) prompt[i] = i;
    struct shelf shelf = { .info = small_store(0), .n = 2 };
    shelf.candidates[0] = (struct kvd_candidate){ .continuation = { 1 }, .matched_pages = 60, .frontier = 3900 };
    shelf.candidates[1] = (struct kvd_candidate){ .continuation = { 2 }, .matched_pages = 2, .frontier = 100 };
    find_in(&shelf, prompt, 200, hits, 16, &n);
    KVT_EQ(n, 0);
}

/* ---- a prompt longer than a message ---- */

#define LONG_PAGES 2500u

/* Two continuations that match `match[i]` pages of the prompt and have twice as many. */
struct long_shelf {
    struct kvd_store_info info;
    uint32_t match[2], messages, gone_at; /* gone_at: the message (from 1) whose anchor has gone */
    uint32_t sent;                        /* pages sent so far */
    kvd_digest last;                      /* digest of page sent - 1 */
    bool wrong;                           /* a message that the protocol does not allow, or a needless one */
};

static enum script_act long_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    static struct kvd_candidate answer[2];
    struct long_shelf *s = user;
    const struct kvd_find *f = &request->u.find;
    if (request->type == FRAME_DESCRIBE_STORE) reply->u.store = &s->info;
    if (request->type != FRAME_FIND || f->n == 0) return SCRIPT_ANSWER;
    s->messages++;
    bool on = f->first > 0;
    if (on != (f->anchor.bits == 77) || on != (s->messages > 1) || (on && f->first + 1 != s->sent)) s->wrong = true;
    if (on && memcmp(&f->digests[0], &s->last, sizeof s->last) != 0) s->wrong = true;
    if (s->messages == s->gone_at) {
        reply->status = KVD_NOT_FOUND;
        return SCRIPT_ANSWER;
    }
    s->sent = f->first + f->n;
    s->last = f->digests[f->n - 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t matched = low(s->match[i], s->sent);
        if (on && matched <= f->first + 1) continue;
        answer[n++] = (struct kvd_candidate){ .continuation = { i + 1 },
                                              .matched_pages = matched,
                                              .frontier = 2 * s->match[i] * 64 };
        if (s->match[i] > s->sent) reply->u.candidates.anchor.bits = 77;
    }
    reply->u.candidates.n = n;
    reply->u.candidates.items = answer;
    return SCRIPT_ANSWER;
}

static uint32_t find_long(struct long_shelf *shelf, struct kvd_hit *hits) {
    uint32_t n_prompt = LONG_PAGES * 64 + 5, n = 0;
    uint32_t *prompt = calloc(n_prompt, sizeof *prompt);
    struct script *s = script_start(long_fn, shelf);
    kvd_client *c = connect_to(s);
    kvd_chain *chain = NULL;
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, prompt, n_prompt), KVD_OK);
    KVT_EQ(kvd_find(c, chain, prompt, n_prompt, hits, 16, &n, NULL), KVD_OK);
    KVT_FALSE(shelf->wrong);
    kvd_chain_free(chain);
    kvd_disconnect(c);
    script_stop(s);
    free(prompt);
    return n;
}

/* CONT-2: matches deeper than a message are found to their end, each continuation once, in as few messages as hold
 * them. */
static void cont_2_prompts_longer_than_a_message(void) {
    struct kvd_hit hits[16];
    struct long_shelf deep = { .info = small_store(0), .match = { 2400, 1100 } };
    KVT_EQ(find_long(&deep, hits), 2);
    KVT_EQ(deep.messages, 3); /* 1024 + 1023 + the rest */
    KVT_EQ(hits[0].continuation.bits, 1);
    KVT_EQ(hits[0].usable, 2400 * 64);
    KVT_EQ(hits[1].continuation.bits, 2);
    KVT_EQ(hits[1].usable, 1100 * 64);
    struct long_shelf shallow = { .info = small_store(0), .match = { 900, 1024 } };
    KVT_EQ(find_long(&shallow, hits), 2);
    KVT_EQ(shallow.messages, 1); /* nothing goes on */
    KVT_EQ(hits[0].usable, 1024 * 64);
    KVT_EQ(hits[0].continuation.bits, 2);
}

/* The anchor was released between two messages: what is known already is the answer. */
static void cont_2_anchor_gone(void) {
    struct kvd_hit hits[16];
    struct long_shelf shelf = { .info = small_store(0), .match = { 2400, 1100 }, .gone_at = 3 };
    KVT_EQ(find_long(&shelf, hits), 2);
    KVT_EQ(shelf.messages, 3);
    KVT_EQ(hits[0].usable, 2047 * 64);
    KVT_EQ(hits[1].usable, 1100 * 64);
}

static void find_checks_its_arguments(void) {
    struct shelf shelf = { .info = small_store(0) };
    struct script *s = script_start(shelf_fn, &shelf);
    kvd_client *c = connect_to(s);
    kvd_chain *chain = NULL;
    uint32_t prompt[3] = { 1, 2, 3 }, n;
    struct kvd_hit hits[2];
    struct kvd_error error;
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, prompt, 2), KVD_OK);
    KVT_EQ(kvd_find(c, chain, prompt, 3, hits, 2, &n, &error), KVD_INVALID_ARGUMENT);
    KVT_HAS(error.message, "push exactly the prompt");
    KVT_EQ(kvd_find(c, chain, prompt, 0, hits, 2, &n, &error), KVD_INVALID_ARGUMENT);
    KVT_EQ(shelf.asked, 0);
    kvd_chain_free(chain);
    kvd_disconnect(c);
    script_stop(s);
}

/* ---- victims -------------------------------------------------------------------------------------------- */

/* A store of 1000 pages and perhaps an arena; continuations own page ranges, which may overlap (shared prefixes). */
struct pile {
    uint32_t n, free, needed, plans, lists, vanish;
    uint32_t arena;   /* pages */
    uint32_t entries; /* of membership that are needed beyond what all continuations hold now */
    bool rows_short;
    struct {
        uint32_t first, count, retention;
        uint64_t used;
        bool claimed, gone, demoted;
    } cont[400];
};

static bool is_victim(const struct kvd_activation *want, uint32_t i, bool demoted) {
    for (uint32_t v = 0; v < want->n_victims; v++)
        if (want->victims[v].bits == i + 1) return (want->demote >> v & 1) == demoted;
    return false;
}

static bool covers(const struct pile *pile, uint32_t i, uint32_t page) {
    return page >= pile->cont[i].first && page < pile->cont[i].first + pile->cont[i].count;
}

/* What the recipe leaves in the arena, and what it brings there. */
static struct kvd_need arena_need(const struct pile *pile, const struct kvd_activation *want) {
    uint32_t stay = 0, come = 0;
    for (uint32_t page = 0; page < 1000; page++) {
        bool there = false, demoted = false;
        for (uint32_t i = 0; i < pile->n; i++) {
            if (pile->cont[i].gone || !covers(pile, i, page)) continue;
            there |= pile->cont[i].demoted && !is_victim(want, i, false);
            demoted |= is_victim(want, i, true);
        }
        stay += there;
        come += demoted && !there;
    }
    uint32_t room = pile->arena > stay ? pile->arena - stay : 0;
    return (struct kvd_need){ come, low(come, room), come > room ? come - room : 0 };
}

static struct kvd_need entries_need(const struct pile *pile, const struct kvd_activation *want) {
    uint64_t freed = 0;
    for (uint32_t i = 0; i < pile->n; i++)
        if (!pile->cont[i].gone && is_victim(want, i, false)) freed += pile->cont[i].count;
    return (struct kvd_need){ pile->entries, freed, pile->entries > freed ? pile->entries - freed : 0 };
}

/* Device pages that no continuation but demoted ones holds once these have gone. */
static uint32_t freed_by(const struct pile *pile, const kvd_continuation *victims, uint32_t n) {
    uint32_t freed = 0;
    for (uint32_t page = 0; page < 1000; page++) {
        bool held = false, was = false;
        for (uint32_t i = 0; i < pile->n; i++) {
            if (pile->cont[i].gone || pile->cont[i].demoted || !covers(pile, i, page)) continue;
            bool victim = false;
            for (uint32_t v = 0; v < n; v++) victim |= victims[v].bits == i + 1;
            was = true;
            held |= !victim;
        }
        freed += was && !held;
    }
    return freed;
}

static enum script_act pile_plan(struct pile *pile, const struct kvd_activation *want, struct msg_reply *reply) {
    struct kvd_plan *plan = &reply->u.plan;
    pile->plans++;
    if (pile->vanish && want->n_victims) { /* one goes while the client thinks */
        pile->cont[pile->vanish - 1].gone = true;
        pile->vanish = 0;
    }
    for (uint32_t v = 0; v < want->n_victims; v++) {
        uint64_t i = want->victims[v].bits - 1;
        KVT_TRUE(i < pile->n && want->victims[v].bits != want->from.bits && !pile->cont[i].claimed);
        if (pile->cont[i].gone) {
            reply->status = KVD_NOT_FOUND;
            snprintf(reply->message, sizeof reply->message, "gone");
            return SCRIPT_ANSWER;
        }
    }
    uint32_t freed = freed_by(pile, want->victims, want->n_victims), have = pile->free + freed;
    plan->n_pools = 1;
    plan->revision = 70 + want->n_victims;
    plan->freed_pages[0] = freed;
    plan->pages[0] = (struct kvd_need){ pile->needed, have, pile->needed > have ? pile->needed - have : 0 };
    plan->rows = (struct kvd_need){ 1, pile->rows_short ? 0 : 1, pile->rows_short };
    plan->arena = arena_need(pile, want);
    plan->membership = entries_need(pile, want);
    KVT_TRUE(pile->arena || !want->demote);
    KVT_TRUE(want->n_victims == 64 || want->demote >> want->n_victims == 0);
    bool blocked = plan->pages[0].short_by || plan->arena.short_by || plan->membership.short_by || pile->rows_short;
    plan->feasibility = blocked ? KVD_BLOCKED : KVD_READY;
    if (pile->needed > 1000) plan->feasibility = KVD_INFEASIBLE;
    return SCRIPT_ANSWER;
}

static enum script_act pile_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    static struct kvd_continuation_info infos[KVD_MAX_LIST];
    struct pile *pile = user;
    if (request->type == FRAME_PLAN) return pile_plan(pile, &request->u.activation, reply);
    if (request->type == FRAME_STATS) reply->u.stats.host_capacity = pile->arena * UINT64_C(16384);
    if (request->type != FRAME_LIST_CONTINUATIONS) return SCRIPT_ANSWER;
    uint32_t at = request->u.list.cursor, n = 0;
    pile->lists++;
    for (; at < pile->n && n < low(request->u.list.max, 100); at++) {
        if (pile->cont[at].gone) continue;
        kvd_continuation me = { at + 1 };
        infos[n++] = (struct kvd_continuation_info){ .continuation = me,
                                                     .frontier = 64,
                                                     .retention = pile->cont[at].retention,
                                                     .used = pile->cont[at].used,
                                                     .claimed = pile->cont[at].claimed,
                                                     .demoted = pile->cont[at].demoted,
                                                     .pages = { pile->cont[at].count },
                                                     .exclusive_pages = { freed_by(pile, &me, 1) } };
    }
    reply->u.continuations.n = n;
    reply->u.continuations.items = infos;
    reply->u.continuations.next_cursor = at < pile->n ? at : KVD_UNCHANGED;
    return SCRIPT_ANSWER;
}

static void lay(struct pile *pile, uint32_t i, uint32_t first, uint32_t count, uint32_t retention, uint64_t used) {
    pile->cont[i].first = first;
    pile->cont[i].count = count;
    pile->cont[i].retention = retention;
    pile->cont[i].used = used;
    if (pile->n <= i) pile->n = i + 1;
}

static enum kvd_status choose(struct pile *pile, struct kvd_activation *want, struct kvd_error *error) {
    struct script *s = script_start(pile_fn, pile);
    kvd_client *c = connect_to(s);
    enum kvd_status status = kvd_choose_victims(c, want, error);
    kvd_disconnect(c);
    script_stop(s);
    return status;
}

static void q_2_no_victims_where_it_fits(void) {
    struct pile *pile = calloc(1, sizeof *pile);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1, .n_victims = 3 };
    pile->free = 10;
    pile->needed = 10;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 0);
    KVT_EQ(want.revision, 70);
    KVT_EQ(pile->plans, 1);
    KVT_EQ(pile->lists, 0);
    free(pile);
}

/* Least retention first, then least recently used; no more than needed; never the source, never a claimed one. */
static void q_2_victims_by_retention_and_use(void) {
    struct pile *pile = calloc(1, sizeof *pile);
    struct kvd_activation want = {
        .prompt_tokens = 64, .max_output_tokens = 1, .from = { 2 }, .keep = true, .frontier = 3
    };
    lay(pile, 0, 0, 10, 1, 5);  /* kept longer */
    lay(pile, 1, 10, 10, 0, 1); /* the source */
    lay(pile, 2, 20, 10, 0, 2); /* claimed */
    lay(pile, 3, 30, 10, 0, 9);
    lay(pile, 4, 40, 10, 0, 4);
    lay(pile, 5, 50, 10, 0, 6);
    pile->cont[2].claimed = true;
    pile->needed = 15;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 2);
    KVT_EQ(want.victims[0].bits, 5);
    KVT_EQ(want.victims[1].bits, 6);
    KVT_EQ(want.revision, 72);
    pile->needed = 35;
    want.n_victims = 0;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 4);
    KVT_EQ(want.victims[3].bits, 1); /* the longer kept one last */
    free(pile);
}

/* Two that share their pages free them together only; one that frees nothing is spared. */
static void victims_that_free_nothing_are_spared(void) {
    struct pile *pile = calloc(1, sizeof *pile);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    lay(pile, 0, 0, 10, 0, 1);
    lay(pile, 1, 0, 10, 3, 9); /* holds the same pages and stays */
    lay(pile, 2, 20, 10, 0, 2);
    pile->needed = 10;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 1);
    KVT_EQ(want.victims[0].bits, 3);
    pile->needed = 20;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 3);
    free(pile);
}

static void victims_bounded_messages_among_many(void) {
    struct pile *pile = calloc(1, sizeof *pile);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    uint64_t random = kvt_seed();
    for (uint32_t i = 0; i < 390; i++) lay(pile, i, 2 * i, 2, kvt_below(&random, 3), kvt_below(&random, 1000));
    pile->needed = 80;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 40);
    KVT_EQ(freed_by(pile, want.victims, want.n_victims), 80);
    KVT_TRUE(pile->plans <= 11);
    for (uint32_t v = 0; v < want.n_victims; v++) /* nobody outside goes before anybody inside */
        for (uint32_t i = 0; i < pile->n; i++) {
            bool chosen = false;
            for (uint32_t w = 0; w < want.n_victims; w++) chosen |= want.victims[w].bits == i + 1;
            uint64_t x = want.victims[v].bits - 1;
            if (!chosen)
                KVT_TRUE(
                    pile->cont[i].retention > pile->cont[x].retention ||
                    (pile->cont[i].retention == pile->cont[x].retention && pile->cont[i].used >= pile->cont[x].used));
        }
    /* 64 of the least valued free 128 pages; a recipe of big ones does more. */
    for (uint32_t i = 0; i < 8; i++) pile->cont[i].count = 2, pile->cont[i].retention = 9;
    pile->cont[389].count = 100;
    pile->cont[389].retention = 9;
    pile->needed = 200;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_TRUE(freed_by(pile, want.victims, want.n_victims) >= 200);
    free(pile);
}

static void victims_refusals(void) {
    struct pile *pile = calloc(1, sizeof *pile);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 }, before = want;
    struct kvd_error error;
    lay(pile, 0, 0, 10, 0, 1);
    pile->needed = 50;
    KVT_EQ(choose(pile, &want, &error), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(error.message, "40 short");
    KVT_EQ_MEM(&want, &before, sizeof want);
    pile->needed = 5;
    pile->rows_short = true;
    KVT_EQ(choose(pile, &want, &error), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(error.message, "rows");
    pile->needed = 5000;
    KVT_EQ(choose(pile, &want, &error), KVD_INVALID_ARGUMENT);
    free(pile);
}

/* ---- victims with an arena ------------------------------------------------------------------------------- */

static struct pile *six_of_ten(uint32_t arena) {
    struct pile *pile = calloc(1, sizeof *pile);
    for (uint32_t i = 0; i < 6; i++) lay(pile, i, 10 * i, 10, 0, i + 1);
    pile->arena = arena;
    return pile;
}

/* Q-2, ACT-8: the same order of victims, and nothing is lost as long as the arena can hold it. */
static void q_2_victims_are_demoted_where_the_arena_has_room(void) {
    struct pile *pile = six_of_ten(30);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1, .demote = 99 };
    pile->cont[0].retention = 1;
    pile->needed = 25;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 3);
    for (uint32_t v = 0; v < 3; v++) KVT_EQ(want.victims[v].bits, v + 2);
    KVT_EQ(want.demote, 7);
    KVT_EQ(want.revision, 73);
    KVT_TRUE(pile->plans <= 11);
    pile->needed = 0;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK); /* nobody is needed: no bit is left behind */
    KVT_EQ(want.n_victims, 0);
    KVT_EQ(want.demote, 0);
    free(pile);
}

/* What rests frees nothing on the device: it is left alone as long as the arena is not short. */
static void victims_that_rest_are_left_alone(void) {
    struct pile *pile = six_of_ten(60);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    pile->cont[0].demoted = pile->cont[1].demoted = true;
    pile->needed = 15;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 2);
    KVT_EQ(want.victims[0].bits, 3);
    KVT_EQ(want.victims[1].bits, 4);
    KVT_EQ(want.demote, 3);
    free(pile);
}

/* A full arena: the least valuable demoted ones go, no more than make room. */
static void victims_push_out_the_least_valuable_that_rest(void) {
    struct pile *pile = six_of_ten(30);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    for (uint32_t i = 0; i < 3; i++) pile->cont[i].demoted = true;
    pile->needed = 20;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK); /* 4 and 5 for 1 and 2 */
    KVT_EQ(want.n_victims, 4);
    for (uint32_t v = 0; v < 4; v++) KVT_EQ(want.victims[v].bits, v < 2 ? v + 1 : v + 2);
    KVT_EQ(want.demote, 0xc);
    KVT_TRUE(pile->plans <= 20);
    free(pile);
}

/* One that rests and is worth more than a victim outlives it. */
static void victims_of_less_value_do_not_push_out_more(void) {
    struct pile *pile = six_of_ten(20);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    pile->cont[0].demoted = pile->cont[1].demoted = true;
    pile->cont[0].retention = pile->cont[1].retention = 5;
    pile->needed = 10;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 1);
    KVT_EQ(want.victims[0].bits, 3);
    KVT_EQ(want.demote, 0);      /* released */
    pile->cont[1].retention = 0; /* worth less than the victim */
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 2);
    KVT_EQ(want.victims[0].bits, 2);
    KVT_EQ(want.victims[1].bits, 3);
    KVT_EQ(want.demote, 2);
    free(pile);
}

/* An arena smaller than what must go keeps the more valuable part of it. */
static void victims_larger_than_the_arena_are_released_in_part(void) {
    struct pile *pile = six_of_ten(25);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    pile->needed = 40;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 4);
    KVT_EQ(want.victims[0].bits, 1);
    KVT_EQ(want.victims[1].bits, 2);
    KVT_EQ(want.demote, 0xc);
    free(pile);
}

/* Membership is held by what rests, too: there the oldest goes, wherever it lies, and demoting helps nobody. */
static void victims_for_membership_are_released(void) {
    struct pile *pile = six_of_ten(60);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    pile->cont[0].demoted = true;
    pile->entries = 15;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 2);
    KVT_EQ(want.victims[0].bits, 1);
    KVT_EQ(want.victims[1].bits, 2);
    KVT_EQ(want.demote, 0);
    free(pile);
}

static void victims_refused_with_an_arena(void) {
    struct pile *pile = six_of_ten(20);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 }, before = want;
    struct kvd_error error;
    pile->cont[0].demoted = true;
    pile->needed = 70;
    KVT_EQ(choose(pile, &want, &error), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(error.message, "even with 5 of 6 releasable");
    KVT_HAS(error.message, "20 short");
    KVT_EQ_MEM(&want, &before, sizeof want);
    free(pile);
}

/* Of any pile: the recipe is ready, demotes none that rests, and loses nobody unless the arena is short. */
static void victims_of_random_piles(void) {
    uint64_t random = kvt_seed();
    for (int round = 0; round < 60; round++) {
        struct pile *pile = calloc(1, sizeof *pile);
        struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
        uint32_t n = 1 + kvt_below(&random, 90), on_device = 0, lost = 0;
        pile->arena = 1 + kvt_below(&random, 300);
        for (uint32_t i = 0; i < n; i++) {
            lay(pile, i, 10 * i, 1 + kvt_below(&random, 10), kvt_below(&random, 3), kvt_below(&random, 1000));
            pile->cont[i].demoted = kvt_below(&random, 3) == 0;
            on_device += pile->cont[i].demoted ? 0 : pile->cont[i].count;
        }
        pile->needed = 1 + kvt_below(&random, on_device + 1);
        enum kvd_status status = choose(pile, &want, NULL);
        KVT_TRUE(pile->plans <= 20);
        if (status == KVD_RESOURCE_EXHAUSTED) { /* 64 victims may be too few, or all */
            KVT_TRUE(n > KVD_MAX_VICTIMS || pile->needed > on_device);
            free(pile);
            continue;
        }
        KVT_NEED(status == KVD_OK);
        KVT_TRUE(freed_by(pile, want.victims, want.n_victims) >= pile->needed);
        KVT_EQ(arena_need(pile, &want).short_by, 0);
        struct kvd_activation kept = want;
        for (uint32_t v = 0; v < want.n_victims; v++) {
            KVT_TRUE(!(want.demote >> v & 1) || !pile->cont[want.victims[v].bits - 1].demoted);
            lost += !(want.demote >> v & 1);
        }
        if (lost) { /* all of them demoted would not fit, so something had to go */
            for (uint32_t v = kept.n_victims = 0; v < want.n_victims; v++)
                if (!pile->cont[want.victims[v].bits - 1].demoted) kept.victims[kept.n_victims++] = want.victims[v];
            kept.demote = kept.n_victims == 64 ? UINT64_MAX : (UINT64_C(1) << kept.n_victims) - 1;
            KVT_TRUE(arena_need(pile, &kept).short_by > 0);
        }
        free(pile);
    }
}

/* The store moves on while the client chooses: it looks again. */
static void victims_chosen_again_when_one_goes(void) {
    struct pile *pile = calloc(1, sizeof *pile);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    lay(pile, 0, 0, 10, 0, 1);
    lay(pile, 1, 10, 10, 0, 2);
    lay(pile, 2, 20, 10, 0, 3);
    pile->needed = 20;
    pile->vanish = 1;
    KVT_EQ(choose(pile, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 2);
    KVT_EQ(want.victims[0].bits, 2);
    KVT_EQ(pile->lists, 2);
    free(pile);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(cont_2_hits_are_exact),
        KVT_CASE(cont_2_equal_hits_by_restore_cost),
        KVT_CASE(cont_4_state_needs_whole_frontiers),
        KVT_CASE(odd_candidates_are_left_out),
        KVT_CASE(cont_2_prompts_longer_than_a_message),
        KVT_CASE(cont_2_anchor_gone),
        KVT_CASE(find_checks_its_arguments),
        KVT_CASE(q_2_no_victims_where_it_fits),
        KVT_CASE(q_2_victims_by_retention_and_use),
        KVT_CASE(victims_that_free_nothing_are_spared),
        KVT_CASE(victims_bounded_messages_among_many),
        KVT_CASE(victims_refusals),
        KVT_CASE(victims_chosen_again_when_one_goes),
        KVT_CASE(q_2_victims_are_demoted_where_the_arena_has_room),
        KVT_CASE(victims_that_rest_are_left_alone),
        KVT_CASE(victims_push_out_the_least_valuable_that_rest),
        KVT_CASE(victims_of_less_value_do_not_push_out_more),
        KVT_CASE(victims_larger_than_the_arena_are_released_in_part),
        KVT_CASE(victims_for_membership_are_released),
        KVT_CASE(victims_refused_with_an_arena),
        KVT_CASE(victims_of_random_piles),
        { 0 },
    };
    return kvt_main("client policy", cases, argc, argv);
}
