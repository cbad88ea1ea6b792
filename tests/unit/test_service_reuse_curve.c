/* SPDX-License-Identifier: Apache-2.0
 *
 * The reuse curve: caches of other sizes, against caches that are kept in full; and what of the requests of engines
 * goes into it. DescribeReuse tells it (OBS).
 */
#include <stdlib.h>
#include <string.h>

#include "kvt.h"
#include "reuse_curve.h"
#include "service_fixture.h"

static struct kvd_reuse told;

static kvd_digest name_of(uint64_t number) {
    kvd_digest name = { { 0 } };
    memcpy(name.bytes + 8, &number, sizeof number);
    return name;
}

static void use_pages(struct reuse_curve *curve, uint64_t first, uint32_t n, uint32_t counted) {
    kvd_digest name[64];
    for (uint32_t i = 0; i < n; i++) name[i] = name_of(first + i);
    reuse_curve_note(curve, &(struct curve_pages){ name, n, counted, n * 64 });
}

static uint64_t found_by(uint64_t pages) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < told.n_sizes; i++)
        if (told.sizes[i].pages <= pages) found = told.sizes[i].found_tokens;
    return found;
}

/* The most recently used page first; deep pages of a prompt are used first. */
enum { MOST = 3000 };
struct stack {
    uint32_t n;
    uint64_t page[MOST];
    uint64_t returns[MOST]; /* at this depth */
};

static void use_in_stack(struct stack *s, uint64_t first, uint32_t n) {
    for (uint64_t page = first + n; page-- > first;) {
        uint32_t at = 0;
        while (at < s->n && s->page[at] != page) at++;
        if (at < s->n) s->returns[at]++;
        else if (s->n < MOST) s->n++;
        else at = MOST - 1;
        memmove(&s->page[1], &s->page[0], at * sizeof s->page[0]);
        s->page[0] = page;
    }
}

static uint64_t tokens_within(const struct stack *s, uint64_t pages) {
    uint64_t returns = 0;
    for (uint64_t depth = 0; depth < MOST && depth < pages; depth++) returns += s->returns[depth];
    return returns * 64;
}

/* Prompts of 1 to 20 pages, some texts more often than others. */
static void draw_prompt(uint64_t *random, uint64_t *ret_first, uint32_t *ret_n) {
    uint32_t texts = kvt_below(random, 2) ? 10 : 140;
    *ret_first = 1000 + 20 * (uint64_t)kvt_below(random, texts);
    *ret_n = 1 + kvt_below(random, 20);
}

/* Where every page is a sample the sizes are exact: also after the turns were given anew, several times. */
static void sizes_are_those_of_whole_caches(void) {
    struct reuse_curve *curve = reuse_curve_new(200);
    struct stack *stack = calloc(1, sizeof *stack);
    uint64_t random = kvt_seed(), prompts = 0;
    KVT_NEED(curve && stack);
    for (uint32_t i = 0; i < 30000; i++) {
        uint64_t first;
        uint32_t n;
        draw_prompt(&random, &first, &n);
        use_pages(curve, first, n, n);
        use_in_stack(stack, first, n);
        prompts += n * 64;
    }
    reuse_curve_read(curve, &told);
    KVT_EQ(told.pages_of_sample, 1);
    KVT_EQ(told.prompt_tokens, prompts);
    KVT_EQ(told.n_sizes, KVD_REUSE_SIZES);
    for (uint32_t i = 0; i < told.n_sizes; i++)
        KVT_EQ(told.sizes[i].found_tokens, tokens_within(stack, told.sizes[i].pages));
    free(stack);
    reuse_curve_free(curve);
}

/* Of a store of 20,000 pages one page of ten is looked at. The same texts each time: the samples are the same. */
static void samples_stand_for_the_others(void) {
    struct reuse_curve *curve = reuse_curve_new(20000);
    KVT_NEED(curve);
    for (uint32_t i = 0; i < 3000; i++) use_pages(curve, 1000 + 64 * (i % 300), 64, 64); /* a loop over 19,200 pages */
    reuse_curve_read(curve, &told);
    KVT_EQ(told.pages_of_sample, 9);
    double all = 2700 * 64 * 64;
    KVT_TRUE((double)found_by(16384) < 0.08 * all);
    KVT_NEAR((double)found_by(32768), all, 0.08 * all);
    reuse_curve_free(curve);
}

/* What is older than the samples is forgotten: it has not been there. */
static void memory_has_an_end(void) {
    struct reuse_curve *curve = reuse_curve_new(64);
    KVT_NEED(curve);
    for (uint64_t i = 0; i < 2 * CURVE_SAMPLES / 64; i++) use_pages(curve, 1000 + 64 * i, 64, 64);
    use_pages(curve, 1000, 64, 64);
    reuse_curve_read(curve, &told);
    KVT_EQ(told.sizes[KVD_REUSE_SIZES - 1].found_tokens, 0);
    use_pages(curve, 1000 + 2 * (uint64_t)CURVE_SAMPLES - 64, 64, 64); /* the one before */
    reuse_curve_read(curve, &told);
    KVT_EQ(told.sizes[KVD_REUSE_SIZES - 1].found_tokens, 64 * 64);
    KVT_EQ(found_by(128), 64 * 64);
    KVT_EQ(found_by(64), 0);
    reuse_curve_free(curve);
}

/* Answers fill a cache and are no uses. */
static void answers_are_not_counted(void) {
    struct reuse_curve *curve = reuse_curve_new(64);
    KVT_NEED(curve);
    use_pages(curve, 1, 4, 4);
    use_pages(curve, 100, 12, 0);
    use_pages(curve, 100, 12, 0);
    use_pages(curve, 1, 4, 4);
    reuse_curve_read(curve, &told);
    KVT_EQ(found_by(8), 0);
    KVT_EQ(found_by(16), 4 * 64);
    reuse_curve_free(curve);
}

/* ---- through the service ---- */

static struct msg_reply reply;

static uint32_t ask(struct fx_peer *peer, struct msg_request *request) {
    KVT_TRUE(fx_call(peer, request, &reply));
    return reply.status;
}
#define REQUEST(...) (&(struct msg_request){ .type = __VA_ARGS__ })

static void look(struct fx_peer *peer) {
    KVT_EQ(ask(peer, REQUEST(FRAME_DESCRIBE_REUSE)), KVD_OK);
    told = *reply.u.reuse;
}

/* Of a prompt of n pages and one token; the message has names of `asked`. */
static void look_up(struct fx_peer *s, const kvd_digest *names, uint32_t n, uint32_t asked) {
    struct msg_request q = {
        .type = FRAME_FIND,
        .u.find = { .n = asked, .max = 4, .digests = names, .prompt_tokens = n * 64 + 1, .token_page = n }
    };
    KVT_EQ(ask(s, &q), KVD_OK);
}

/* Such a prompt, and two pages of answer. */
static void serve_prompt(struct fx_peer *s, const kvd_digest *names, uint32_t n, uint32_t asked) {
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .worker = s->session,
                                               .root.label = "chat",
                                               .prompt_tokens = n * 64 + 1,
                                               .max_output_tokens = 128 } };
    uint32_t pages = n + 2;
    look_up(s, names, n, asked);
    look_up(s, names, n, asked); /* it waits, and looks again */
    q.u.activation.root.digest.bytes[0] = 1;
    KVT_EQ(ask(s, &q), KVD_OK);
    kvd_sequence sequence = reply.u.activated.sequence;
    KVT_EQ(fx_round(s, sequence, KVD_UNCHANGED, pages * 64, NULL), KVD_OK);
    KVT_EQ(fx_round(s, sequence, pages * 64, KVD_UNCHANGED, NULL), KVD_OK);
    for (int twice = 0; twice < 2; twice++)
        KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { sequence, 0, pages, names })), KVD_OK);
    KVT_EQ(fx_finish(s, sequence), KVD_OK);
}

static void each_page_of_a_prompt_is_used_once(void) {
    struct fx fx;
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    kvd_digest names[8];
    for (uint32_t i = 0; i < 8; i++) names[i] = name_of(i + 1);
    look(o);
    KVT_EQ(told.prompt_tokens + told.n_domains, 0);
    serve_prompt(s, names, 4, 4);
    look(o);
    KVT_EQ(told.sizes[told.n_sizes - 1].found_tokens, 0);
    serve_prompt(s, names, 4, 4);
    look(o);
    KVT_EQ(told.sizes[told.n_sizes - 1].found_tokens, 4 * 64);
    KVT_EQ(found_by(4), 0); /* the answer was used between */
    KVT_EQ(found_by(6), 4 * 64);
    serve_prompt(s, names, 6, 3); /* a lookup whose messages ended early: naming has the others */
    look(o);
    KVT_EQ(told.sizes[told.n_sizes - 1].found_tokens, (4 + 6) * 64);
    KVT_EQ(told.n_domains, 1);
    KVT_EQ_STR(told.domains[0].label, "chat");
    KVT_EQ(told.domains[0].activations, 3);
    KVT_EQ(told.domains[0].prompt_tokens, 14 * 64 + 3);
    KVT_EQ(told.domains[0].reused_tokens, 0);
    fx_peer_free(o);
    fx_peer_free(s);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(sizes_are_those_of_whole_caches),
                                             KVT_CASE(samples_stand_for_the_others),
                                             KVT_CASE(memory_has_an_end),
                                             KVT_CASE(answers_are_not_counted),
                                             KVT_CASE(each_page_of_a_prompt_is_used_once),
                                             { 0 } };
    return kvt_main("reuse curve", cases, argc, argv);
}
