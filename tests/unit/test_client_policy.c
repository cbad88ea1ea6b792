/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd_find and kvd_choose_victims against a scripted store.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "kvd_policy.h"
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

/* Answers one after the other; what was asked is kept. */
struct shelf {
    struct kvd_store_info info;
    uint32_t n, asked;
    struct {
        uint32_t n, want_page; /* 0: none is wanted */
        struct kvd_hit hits[4];
    } answer[8];
    struct kvd_find find[8];
    kvd_digest last[8]; /* digest of each question */
};

static enum script_act shelf_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct shelf *shelf = user;
    if (request->type == FRAME_DESCRIBE_STORE) reply->u.store = &shelf->info;
    if (request->type != FRAME_FIND) return SCRIPT_ANSWER;
    reply->u.hits.want_page = KVD_NONE;
    if (shelf->asked >= 8) return SCRIPT_ANSWER;
    const uint32_t k = shelf->asked++;
    shelf->find[k] = request->u.find;
    if (request->u.find.n) shelf->last[k] = request->u.find.digests[request->u.find.n - 1];
    if (k >= shelf->n) return SCRIPT_ANSWER;
    reply->u.hits.n = shelf->answer[k].n;
    reply->u.hits.items = shelf->answer[k].hits;
    if (shelf->answer[k].want_page) reply->u.hits.want_page = shelf->answer[k].want_page;
    return SCRIPT_ANSWER;
}

static void find_in(struct shelf *shelf, const uint32_t *prompt, uint32_t n_prompt, struct kvd_hit *hits, uint32_t max,
                    uint32_t *ret_n) {
    struct script *s = script_start(shelf_fn, shelf);
    kvd_client *c = connect_to(s);
    kvd_chain *chain = NULL;
    struct kvd_error error = { .message = "" };
    shelf->asked = 0;
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, prompt, n_prompt), KVD_OK);
    KVT_EQ(kvd_find(c, chain, prompt, n_prompt, hits, max, ret_n, &error), KVD_OK);
    KVT_EQ_STR(error.message, "");
    for (uint32_t i = 0; i < shelf->asked && i < 8; i++) {
        const struct kvd_find *f = &shelf->find[i];
        uint32_t from = f->token_page * 64, left = n_prompt - from;
        KVT_EQ_MEM(&f->root, &kvd_chain_root(chain)->digest, sizeof f->root);
        KVT_EQ(f->prompt_tokens, n_prompt);
        KVT_EQ(f->tokens.n, left < 63 ? left : 63);
        KVT_EQ_MEM(f->tokens.tokens, prompt + from, f->tokens.n * sizeof *prompt);
        KVT_EQ(f->n, n_prompt / 64);
        if (f->n) KVT_EQ_MEM(&shelf->last[i], &kvd_chain_digests(chain)[f->n - 1], sizeof shelf->last[i]);
    }
    kvd_chain_free(chain);
    kvd_disconnect(c);
    script_stop(s);
}

/* CONT-2, NAME-2: the tokens behind the last page go with the first question; where tails end at an earlier page, one
 * more question has that page's. What both tell is joined, longest first. */
static void name_2_tokens_of_the_page_that_is_wanted(void) {
    uint32_t prompt[400], n = 0;
    struct kvd_hit hits[16];
    for (uint32_t i = 0; i < 400; i++) prompt[i] = 1000 + i;
    struct shelf shelf = { .info = small_store(0), .n = 2 };
    shelf.answer[0].n = 2, shelf.answer[0].want_page = 2;
    shelf.answer[0].hits[0] = (struct kvd_hit){ .continuation = { 1 }, .usable = 128, .frontier = 500 };
    shelf.answer[0].hits[1] = (struct kvd_hit){ .continuation = { 2 }, .usable = 128, .frontier = 150 };
    shelf.answer[1].n = 1;
    shelf.answer[1].hits[0] = (struct kvd_hit){ .continuation = { 2 }, .usable = 150, .frontier = 150 };
    find_in(&shelf, prompt, 400, hits, 16, &n);
    KVT_EQ(shelf.asked, 2);
    KVT_EQ(shelf.find[0].token_page, 6);
    KVT_EQ(shelf.find[0].tokens.n, 16);
    KVT_EQ(shelf.find[1].token_page, 2);
    KVT_EQ(n, 2);
    KVT_EQ(hits[0].continuation.bits, 2);
    KVT_EQ(hits[0].usable, 150);
    KVT_EQ(hits[1].continuation.bits, 1);
    KVT_EQ(hits[1].usable, 128);
}

/* A page is not asked about where what is known is better than any tail there; and there are at most four questions
 * about tokens. */
static void name_2_no_needless_questions(void) {
    uint32_t prompt[1000] = { 0 }, n = 99;
    struct kvd_hit hits[16];
    struct shelf shelf = { .info = small_store(4096), .n = 8 };
    shelf.answer[0].n = 1, shelf.answer[0].want_page = 2;
    shelf.answer[0].hits[0] = (struct kvd_hit){ .continuation = { 1 }, .usable = 192, .frontier = 192 };
    find_in(&shelf, prompt, 1000, hits, 16, &n);
    KVT_EQ(shelf.asked, 1);
    KVT_EQ(n, 1);
    for (uint32_t i = 0; i < 8; i++) shelf.answer[i].n = 0, shelf.answer[i].want_page = 12 - i;
    find_in(&shelf, prompt, 1000, hits, 16, &n);
    KVT_EQ(shelf.asked, 5);
    KVT_EQ(shelf.find[4].token_page, 9);
    KVT_EQ(n, 0);
    shelf.n = 1; /* a prompt of less than a page is asked about like any other */
    shelf.answer[0].n = 1, shelf.answer[0].want_page = 0;
    shelf.answer[0].hits[0] = (struct kvd_hit){ .continuation = { 5 }, .usable = 3, .frontier = 30 };
    find_in(&shelf, prompt, 9, hits, 16, &n);
    KVT_EQ(shelf.asked, 1);
    KVT_EQ(shelf.find[0].n, 0);
    KVT_EQ(shelf.find[0].tokens.n, 9);
    KVT_EQ(n, 1);
}

/* CONT-2: of hits that reach equally far the one that costs fewer pages from the host comes first, in whatever order
 * the store names them. */
static void cont_2_equal_hits_by_restore_cost(void) {
    uint32_t prompt[200] = { 0 }, n = 0;
    struct kvd_hit hits[4];
    struct shelf shelf = { .info = small_store(0), .n = 1 };
    const uint32_t restore[3] = { 2, 0, 1 };
    shelf.answer[0].n = 3;
    for (uint32_t i = 0; i < 3; i++)
        shelf.answer[0].hits[i] = (struct kvd_hit){ { i + 1 }, 150, 150, 0, restore[i], false };
    shelf.answer[0].hits[3] = (struct kvd_hit){ { 9 }, 150, 150, 0, 0, true };
    shelf.answer[0].n = 4;
    find_in(&shelf, prompt, 200, hits, 4, &n);
    KVT_EQ(n, 4);
    KVT_FALSE(hits[0].live); /* the other one can be moved, too (LIVE-1) */
    KVT_TRUE(hits[1].live);
    for (uint32_t i = 2; i < 4; i++) KVT_EQ(hits[i].restore_pages, i - 1);
}

/* A hit that contradicts itself is none. */
static void odd_hits_are_left_out(void) {
    uint32_t prompt[200] = { 0 }, n = 99;
    struct kvd_hit hits[16];
    struct shelf shelf = { .info = small_store(0), .n = 1 };
    shelf.answer[0].n = 3;
    shelf.answer[0].hits[0] = (struct kvd_hit){ .continuation = { 1 }, .usable = 200, .frontier = 3900 };
    shelf.answer[0].hits[1] = (struct kvd_hit){ .continuation = { 2 }, .usable = 0, .frontier = 100 };
    shelf.answer[0].hits[2] = (struct kvd_hit){ .continuation = { 3 }, .usable = 128, .frontier = 100 };
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
    static struct kvd_hit answer[2];
    struct long_shelf *s = user;
    const struct kvd_find *f = &request->u.find;
    if (request->type == FRAME_DESCRIBE_STORE) reply->u.store = &s->info;
    if (request->type != FRAME_FIND) return SCRIPT_ANSWER;
    reply->u.hits.want_page = KVD_NONE;
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
        answer[n++] =
            (struct kvd_hit){ .continuation = { i + 1 }, .usable = matched * 64, .frontier = 2 * s->match[i] * 64 };
        if (s->match[i] > s->sent) reply->u.hits.anchor.bits = 77;
    }
    reply->u.hits.n = n;
    reply->u.hits.items = answer;
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

/* What a store answers to Choose: whether it is ready with the source as it is asked for, and who goes. */
struct ladder {
    bool fork, move, root, busy, more, never;
    uint32_t n, asked, other;
    struct kvd_activation last;
};

static enum script_act ladder_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    static struct kvd_victim going[8];
    struct ladder *ladder = user;
    if (request->type != FRAME_CHOOSE) {
        ladder->other += request->type != FRAME_HELLO && request->type != FRAME_GOODBYE;
        return SCRIPT_ANSWER;
    }
    const struct kvd_activation *a = &request->u.choose.activation;
    bool moves = a->from.bits && !a->keep;
    ladder->asked++;
    ladder->last = *a;
    KVT_EQ(request->u.choose.order, KVD_ORDER_RETENTION_USED);
    KVT_EQ(a->n_victims, 0);
    KVT_TRUE(a->from.bits || a->frontier == 0);
    if (moves && ladder->busy) {
        reply->status = KVD_ABORTED;
        snprintf(reply->message, sizeof reply->message, "scripted: others read it");
        return SCRIPT_ANSWER;
    }
    bool ready = !a->from.bits ? ladder->root : moves ? ladder->move : ladder->fork;
    struct kvd_choice *choice = &reply->u.choice;
    for (uint32_t i = 0; i < 8; i++) going[i] = (struct kvd_victim){ { 100 + i }, i % 2, 0 };
    choice->n = ready ? low(ladder->n, request->u.choose.max) : 0;
    choice->victims = going;
    choice->more = !ready && ladder->more;
    choice->plan = (struct kvd_plan){ .feasibility = ladder->never ? KVD_INFEASIBLE
                                                     : ready       ? KVD_READY
                                                                   : KVD_BLOCKED,
                                      .revision = 77,
                                      .n_pools = 1,
                                      .pages = { { 50, ready ? 50 : 10, ready ? 0 : 40 } } };
    return SCRIPT_ANSWER;
}

static struct kvd_victim room[8];

static enum kvd_status choose(struct ladder *ladder, struct kvd_activation *want, struct kvd_error *error) {
    struct script *s = script_start(ladder_fn, ladder);
    kvd_client *c = connect_to(s);
    enum kvd_status status = kvd_choose_victims(c, want, room, 8, error);
    kvd_disconnect(c);
    script_stop(s);
    KVT_EQ(ladder->other, 0);
    return status;
}

static struct kvd_activation wanted(bool fork) {
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1, .revision = 3, .n_victims = 5 };
    if (fork) want.from.bits = 9, want.frontier = 60, want.keep = true;
    return want;
}

/* One message, where the others do. */
static void q_2_victims_in_one_message(void) {
    struct ladder ladder = { .fork = true, .root = true, .n = 3 };
    struct kvd_activation want = wanted(true);
    KVT_EQ(choose(&ladder, &want, NULL), KVD_OK);
    KVT_EQ(ladder.asked, 1);
    KVT_TRUE(want.keep && want.from.bits == 9 && want.frontier == 60);
    KVT_EQ(want.n_victims, 3);
    KVT_TRUE(want.victims == room && room[2].continuation.bits == 102 && room[1].demote && !room[2].demote);
    KVT_EQ(want.revision, 77);
    ladder = (struct ladder){ .root = true };
    want = wanted(false);
    KVT_EQ(choose(&ladder, &want, NULL), KVD_OK);
    KVT_EQ(want.n_victims, 0);
    KVT_TRUE(want.victims == NULL);
}

/* FIT-1: where even all others would not do, the source goes: moved, then computed anew. */
static void fit_1_the_source_goes_last(void) {
    struct ladder ladder = { .move = true, .root = true };
    struct kvd_activation want = wanted(true);
    KVT_EQ(choose(&ladder, &want, NULL), KVD_OK);
    KVT_EQ(ladder.asked, 2);
    KVT_TRUE(!want.keep && want.from.bits == 9 && want.frontier == 60);
    ladder = (struct ladder){ .root = true, .n = 1 };
    want = wanted(true);
    KVT_EQ(choose(&ladder, &want, NULL), KVD_OK);
    KVT_EQ(ladder.asked, 3);
    KVT_TRUE(!want.from.bits && want.frontier == 0 && want.n_victims == 1);
    ladder = (struct ladder){ .root = true, .busy = true }; /* it cannot be moved now */
    want = wanted(true);
    KVT_EQ(choose(&ladder, &want, NULL), KVD_OK);
    KVT_TRUE(!want.from.bits);
}

static void victims_refusals(void) {
    struct ladder ladder = { .n = 0 };
    struct kvd_activation want = wanted(true), before = want;
    struct kvd_error error;
    KVT_EQ(choose(&ladder, &want, &error), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(error.message, "needs 50 pages of pool 0, and 40 more");
    KVT_EQ(ladder.asked, 3);
    KVT_EQ_MEM(&want, &before, sizeof want);
    ladder.more = true;
    KVT_EQ(choose(&ladder, &want, &error), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(error.message, "more than 8 victims");
    ladder = (struct ladder){ .never = true };
    KVT_EQ(choose(&ladder, &want, &error), KVD_INVALID_ARGUMENT);
    KVT_EQ_MEM(&want, &before, sizeof want);
    KVT_EQ(kvd_choose_victims(NULL, &want, room, 8, &error), KVD_INVALID_ARGUMENT);
    KVT_EQ(kvd_choose_victims(NULL, &want, room, 0, &error), KVD_INVALID_ARGUMENT);
}

/* ---- the policy over reuse ------------------------------------------------------------------------------ */

/* Continuations of 10 pages each, of which so many pages are needed; each shares its first `shared` with all others. */
struct till {
    uint32_t need, shared;
    bool images; /* state images: nothing can be shortened */
    uint32_t plans, chooses, victims, demoted;
};

/* Pages that go: the shared ones only if all of the ten go whole. */
static uint32_t freed_by(const struct till *till, const struct kvd_activation *a) {
    uint32_t freed = 0, whole = 0;
    for (uint32_t i = 0; i < a->n_victims; i++) {
        uint32_t left = a->victims[i].frontier / KVD_PAGE_TOKENS;
        whole += !left;
        freed += 10 - (left > till->shared ? left : till->shared);
    }
    return freed + (whole == 20 ? till->shared : 0);
}

static enum script_act till_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct till *till = user;
    if (request->type == FRAME_CHOOSE) {
        till->chooses++;
        reply->u.choice.plan.feasibility = KVD_READY;
    }
    if (request->type != FRAME_PLAN) return SCRIPT_ANSWER;
    const struct kvd_activation *a = &request->u.activation;
    struct kvd_plan *plan = &reply->u.plan;
    till->plans++;
    till->victims = a->n_victims;
    till->demoted = 0;
    for (uint32_t i = 0; i < a->n_victims; i++) {
        till->demoted += a->victims[i].demote;
        if (till->images && a->victims[i].frontier) reply->status = KVD_OUT_OF_RANGE;
    }
    uint32_t freed = low(freed_by(till, a), till->need);
    plan->n_pools = 1;
    plan->freed_pages[0] = freed;
    plan->pages[0] = (struct kvd_need){ till->need, freed, till->need - freed };
    plan->feasibility = plan->pages[0].short_by ? KVD_BLOCKED : KVD_READY;
    return SCRIPT_ANSWER;
}

static enum kvd_status policy_choose(kvd_policy *policy, struct till *till, struct kvd_activation *want) {
    static struct kvd_victim victims[64];
    struct kvd_error error;
    struct script *s = script_start(till_fn, till);
    kvd_client *c = connect_to(s);
    enum kvd_status status = kvd_policy_choose(policy, c, want, victims, 64, 1000, &error);
    kvd_disconnect(c);
    script_stop(s);
    return status;
}

static kvd_policy *policy_of_twenty(bool demotes) {
    kvd_policy *policy = NULL;
    KVT_EQ(kvd_policy_new(&(struct kvd_policy_options){ .demotes = demotes }, &policy), KVD_OK);
    for (uint64_t i = 1; i <= 20; i++) kvd_policy_kept(policy, 0, (kvd_continuation){ i }, 640);
    return policy;
}

/* As few as do, the first of the order, in two messages. What was demoted before frees nothing on the device: where
 * only such ones are known, kvd_choose_victims decides. */
static void q_2_the_policy_finds_the_shortest_recipe(void) {
    kvd_policy *policy = policy_of_twenty(true);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    struct till till = { .need = 0 };
    KVT_EQ(policy_choose(policy, &till, &want), KVD_OK);
    KVT_EQ(want.n_victims, 0);
    KVT_EQ(till.plans, 1);
    till = (struct till){ .need = 30 };
    KVT_EQ(policy_choose(policy, &till, &want), KVD_OK);
    KVT_EQ(want.n_victims, 3);
    for (uint32_t i = 0; i < want.n_victims; i++)
        KVT_TRUE(want.victims[i].continuation.bits == i + 1 && want.victims[i].demote);
    KVT_EQ(till.plans, 2);
    KVT_EQ(till.chooses, 0);
    till = (struct till){ .need = 170 };
    KVT_EQ(policy_choose(policy, &till, &want), KVD_OK);
    KVT_EQ(want.n_victims, 17);
    till = (struct till){ .need = 10 };
    KVT_EQ(policy_choose(policy, &till, &want), KVD_OK);
    KVT_TRUE(till.plans <= 2 && till.chooses == 1);
    kvd_policy_free(policy);
}

/* SHORT-1: the last of the victims loses what is needed and no more, and is the first to go the next time. */
static void short_1_the_last_victim_is_shortened(void) {
    kvd_policy *policy = policy_of_twenty(false);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    struct till till = { .need = 13 };
    KVT_EQ(policy_choose(policy, &till, &want), KVD_OK);
    KVT_EQ(till.plans, 2);
    KVT_EQ(want.n_victims, 2);
    KVT_TRUE(want.victims[0].continuation.bits == 1 && want.victims[0].frontier == 0);
    KVT_TRUE(want.victims[1].continuation.bits == 2 && want.victims[1].frontier == 7 * KVD_PAGE_TOKENS);
    kvd_policy_free(policy);
    policy = policy_of_twenty(false); /* shared pages free nothing: the recipe grows by what is short still */
    till = (struct till){ .need = 13, .shared = 4 };
    KVT_EQ(policy_choose(policy, &till, &want), KVD_OK);
    KVT_TRUE(till.plans <= 4 && till.chooses == 0);
    KVT_EQ(want.n_victims, 3);
    KVT_TRUE(want.victims[1].frontier == 0 && want.victims[2].frontier == 9 * KVD_PAGE_TOKENS);
    kvd_policy_free(policy);
}

/* CONT-4: a state image belongs to its frontier. A refusal says so; then victims go whole for a while. */
static void cont_4_with_state_images_victims_go_whole(void) {
    kvd_policy *policy = policy_of_twenty(false);
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    for (uint32_t k = 0; k < 2; k++) {
        struct till till = { .need = 13, .images = true };
        KVT_EQ(policy_choose(policy, &till, &want), KVD_OK);
        KVT_EQ(till.plans, k ? 2 : 4);
        KVT_EQ(want.n_victims, 2);
        KVT_TRUE(want.victims[0].frontier == 0 && want.victims[1].frontier == 0);
        KVT_EQ(want.victims[0].continuation.bits, 2 * k + 1);
    }
    kvd_policy_free(policy);
}

/* ---- terms ---- */

/* A store of continuations that share nothing. */
enum { SHELVES = 40, STORE_PAGES = 400, PIN_PAGES = 120 };
struct little {
    uint32_t free, need, pages[SHELVES + 1]; /* by handle; 0: none */
    bool pinned[SHELVES + 1];
};

static uint32_t all_pages(const struct little *l, bool pinned) {
    uint32_t pages = 0;
    for (uint32_t h = 1; h <= SHELVES; h++) pages += l->pinned[h] == pinned ? l->pages[h] : 0;
    return pages;
}

static uint32_t freed_of(const struct little *l, const struct kvd_victim *victims, uint32_t n) {
    uint32_t freed = 0;
    for (uint32_t i = 0; i < n; i++) freed += l->pages[victims[i].continuation.bits] - victims[i].frontier / 64;
    return freed;
}

/* kvd's own order: those of the highest retention, which are the pinned ones, go last. */
static void choose_in_little(const struct little *l, struct kvd_choice *choice) {
    static struct kvd_victim going[SHELVES];
    for (uint32_t pinned = 0; pinned < 2; pinned++)
        for (uint32_t h = 1; h <= SHELVES && l->free + freed_of(l, going, choice->n) < l->need; h++)
            if (l->pages[h] && l->pinned[h] == pinned) going[choice->n++] = (struct kvd_victim){ { h }, false, 0 };
    choice->victims = going;
    choice->plan.feasibility = l->free + freed_of(l, going, choice->n) < l->need ? KVD_BLOCKED : KVD_READY;
}

static enum script_act little_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    const struct little *l = user;
    if (request->type == FRAME_CHOOSE) choose_in_little(l, &reply->u.choice);
    if (request->type != FRAME_PLAN) return SCRIPT_ANSWER;
    uint32_t has = l->free + freed_of(l, request->u.activation.victims, request->u.activation.n_victims);
    uint32_t short_by = has < l->need ? l->need - has : 0;
    reply->u.plan = (struct kvd_plan){ .n_pools = 1, .pages = { { l->need, has, short_by } } };
    reply->u.plan.feasibility = short_by ? KVD_BLOCKED : KVD_READY;
    return SCRIPT_ANSWER;
}

static void set_terms(kvd_policy *policy, struct little *l, uint32_t h, uint64_t draw) {
    struct kvd_policy_terms terms = { .pinned = draw % 3 == 0, .over = draw % 3 == 1, .back = draw % 5 == 0 };
    uint32_t others = all_pages(l, true) - (l->pinned[h] ? l->pages[h] : 0);
    enum kvd_status status = kvd_policy_set(policy, (kvd_continuation){ h }, &terms);
    if (!l->pages[h]) KVT_EQ(status, KVD_NOT_FOUND);
    else if (terms.pinned && others + l->pages[h] > PIN_PAGES) KVT_EQ(status, KVD_RESOURCE_EXHAUSTED);
    else {
        KVT_EQ(status, KVD_OK);
        l->pinned[h] = terms.pinned;
    }
}

static void take_pages(kvd_policy *policy, struct little *l, kvd_client *c, uint32_t h, uint64_t now) {
    static struct kvd_victim victims[SHELVES];
    struct kvd_activation want = { .prompt_tokens = 64, .max_output_tokens = 1 };
    bool fits = l->need <= l->free + all_pages(l, false);
    enum kvd_status status = kvd_policy_choose(policy, c, &want, victims, SHELVES, now, NULL);
    KVT_EQ(status, fits ? KVD_OK : KVD_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; status == KVD_OK && i < want.n_victims; i++) {
        uint64_t v = victims[i].continuation.bits;
        KVT_FALSE(l->pinned[v]);
        l->free += l->pages[v] - victims[i].frontier / 64;
        l->pages[v] = victims[i].frontier / 64;
    }
    if (status != KVD_OK || l->pages[h]) return;
    KVT_TRUE(l->free >= l->need);
    l->pages[h] = l->need;
    l->free -= l->need;
    kvd_policy_kept(policy, 0, (kvd_continuation){ h }, l->need * 64);
}

/* FIT-1, Q-2: whatever is pinned, over or coming back, what fits beside the pinned ones is never refused, and they
 * never go. */
static void fit_1_pins_stay_and_what_fits_is_served(void) {
    struct little l = { .free = STORE_PAGES };
    struct script *s = script_start(little_fn, &l);
    kvd_client *c = connect_to(s);
    kvd_policy *policy = NULL;
    uint64_t random = kvt_seed();
    struct kvd_policy_options options = { .prompts = 16, .continuations = SHELVES, .pinned_pages = PIN_PAGES };
    KVT_EQ(kvd_policy_new(&options, &policy), KVD_OK);
    for (uint64_t step = 1; step <= 1500; step++) {
        uint32_t h = 1 + (uint32_t)kvt_below(&random, SHELVES);
        l.need = 1 + (uint32_t)kvt_below(&random, step % 10 ? 40 : STORE_PAGES);
        if (step % 3 == 0) set_terms(policy, &l, h, kvt_below(&random, 30));
        else take_pages(policy, &l, c, h, step * 1000000000u);
        uint32_t ranked = kvd_policy_rank(policy, step * 1000000000u, (kvd_continuation[SHELVES]){ { 0 } }, SHELVES);
        uint32_t there = 0;
        for (uint32_t k = 1; k <= SHELVES; k++) there += l.pages[k] && !l.pinned[k];
        if (!KVT_EQ(ranked, there)) break;
    }
    kvd_policy_free(policy);
    kvd_disconnect(c);
    script_stop(s);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(name_2_tokens_of_the_page_that_is_wanted),
        KVT_CASE(name_2_no_needless_questions),
        KVT_CASE(cont_2_equal_hits_by_restore_cost),
        KVT_CASE(odd_hits_are_left_out),
        KVT_CASE(cont_2_prompts_longer_than_a_message),
        KVT_CASE(cont_2_anchor_gone),
        KVT_CASE(find_checks_its_arguments),
        KVT_CASE(q_2_victims_in_one_message),
        KVT_CASE(fit_1_the_source_goes_last),
        KVT_CASE(victims_refusals),
        KVT_CASE(q_2_the_policy_finds_the_shortest_recipe),
        KVT_CASE(short_1_the_last_victim_is_shortened),
        KVT_CASE(cont_4_with_state_images_victims_go_whole),
        KVT_CASE(fit_1_pins_stay_and_what_fits_is_served),
        { 0 },
    };
    return kvt_main("client policy", cases, argc, argv);
}
