/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookup of a prompt (CONT-2). kvd compares pages by digest and tails by token, and answers with what can be used; here
 * the messages are made and their answers joined.
 *
 * One message holds KVD_MAX_DIGESTS digests. A longer chain goes on from the anchor of the answer before, with the last
 * digest sent as the first of the next message, as long as all that was sent matches something. The first question
 * carries the tokens behind the last full page. Where the match ends earlier, kvd says which page's tokens it lacks,
 * and the same question is asked again with those.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct found_hits {
    struct kvd_hit *hits;
    uint32_t n, max;
};

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

static bool better_hit(const struct kvd_hit *a, const struct kvd_hit *b) {
    if (a->usable != b->usable) return a->usable > b->usable;
    if (a->restore_pages != b->restore_pages) return a->restore_pages < b->restore_pages;
    if (a->live != b->live) return b->live; /* the others can be moved, too */
    return a->frontier < b->frontier;       /* the one that ends sooner holds less that is of no use here */
}

static void remove_hit(struct found_hits *found, uint32_t at) {
    found->n--;
    memmove(&found->hits[at], &found->hits[at + 1], (found->n - at) * sizeof *found->hits);
}

/* Keeps the best, each continuation once: a deeper answer may know more of one. */
static void add_hit(struct found_hits *found, const struct kvd_hit *hit) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < found->n; i++) {
        if (found->hits[i].continuation.bits != hit->continuation.bits) continue;
        if (!better_hit(hit, &found->hits[i])) return;
        remove_hit(found, i);
        break;
    }
    while (at < found->n && !better_hit(hit, &found->hits[at])) at++;
    if (at == found->max) return;
    if (found->n < found->max) found->n++;
    memmove(&found->hits[at + 1], &found->hits[at], (found->n - 1 - at) * sizeof *found->hits);
    found->hits[at] = *hit;
}

/* Without state images one further message is enough. With them each looks one branch further up; a prompt that agrees
 * with no tail at so many branches starts from what was found. */
#define TOKEN_QUESTIONS 4

struct question {
    const uint32_t *prompt;
    struct kvd_find find; /* one message */
    kvd_continuation anchor;
    uint32_t want_page; /* of the answer, KVD_NONE */
};

static void put_tokens(struct question *q, uint32_t page) {
    struct kvd_find *find = &q->find;
    uint32_t from = page * KVD_PAGE_TOKENS;
    find->token_page = page;
    find->tokens.n = smaller(find->prompt_tokens - from, KVD_TAIL_TOKENS);
    memcpy(find->tokens.tokens, q->prompt + from, find->tokens.n * sizeof *q->prompt);
}

/* One message. */
static enum kvd_status ask_hits(struct kvd_client *c, struct question *q, struct found_hits *found,
                                struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_FIND, .u.find = q->find };
    struct msg_reply reply;
    struct pending_call *call;
    struct kvd_error refusal = { .message = "" };
    enum kvd_status status = call_run(c, &request, &call, &reply, &refusal);
    q->want_page = KVD_NONE;
    q->anchor.bits = 0;
    if (status == KVD_NOT_FOUND && q->find.first) return KVD_OK; /* the anchor has gone: what was found stays true */
    if (status != KVD_OK) return client_fail(error, status, "%s", refusal.message);
    for (uint32_t i = 0; i < reply.u.hits.n; i++) {
        const struct kvd_hit *hit = &reply.u.hits.items[i];
        bool sound = hit->usable && hit->usable < q->find.prompt_tokens && hit->usable <= hit->frontier;
        if (sound) add_hit(found, hit);
    }
    q->anchor = reply.u.hits.anchor;
    if (reply.u.hits.want_page < q->find.token_page) q->want_page = reply.u.hits.want_page;
    call_done(c, call);
    return KVD_OK;
}

/* Tails at that page may still be better than what is known. */
static bool is_worth_asking(const struct question *q, const struct found_hits *found) {
    return q->want_page != KVD_NONE && (found->n == 0 || found->hits[0].usable / KVD_PAGE_TOKENS <= q->want_page);
}

static enum kvd_status ask_tokens(struct kvd_client *c, struct question *q, struct found_hits *found,
                                  struct kvd_error *error) {
    enum kvd_status status = KVD_OK;
    for (uint32_t i = 0; i < TOKEN_QUESTIONS && status == KVD_OK && is_worth_asking(q, found); i++) {
        put_tokens(q, q->want_page);
        status = ask_hits(c, q, found, error);
    }
    return status;
}

/* The whole chain, a message for every KVD_MAX_DIGESTS - 1 pages as long as they match; then the tokens that the last
 * answer with a wish lacked. */
static enum kvd_status ask_pages(struct kvd_client *c, struct question *q, const kvd_chain *chain,
                                 struct found_hits *found, struct kvd_error *error) {
    uint32_t pages = (uint32_t)kvd_chain_pages(chain), sent = 0;
    struct question wish = { .want_page = KVD_NONE };
    put_tokens(q, pages);
    do {
        q->find.first = sent ? sent - 1 : 0;
        q->find.n = smaller(pages - q->find.first, KVD_MAX_DIGESTS);
        q->find.digests = kvd_chain_digests(chain) ? kvd_chain_digests(chain) + q->find.first : NULL;
        q->find.anchor = q->anchor;
        enum kvd_status status = ask_hits(c, q, found, error);
        if (status != KVD_OK) return status;
        if (q->want_page != KVD_NONE) wish = *q;
        sent = q->find.first + q->find.n;
    } while (sent < pages && q->anchor.bits);
    return ask_tokens(c, &wish, found, error);
}

static enum kvd_status check_prompt(const kvd_chain *chain, const uint32_t *prompt, size_t n_prompt,
                                    struct kvd_hit *ret_hits, uint32_t max, uint32_t *ret_n, struct kvd_error *error) {
    if (!chain || !prompt || !n_prompt || !ret_hits || !max || !ret_n)
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "kvd_find needs a chain, its prompt of at least one token, and a place for hits");
    if (n_prompt >= KVD_UNCHANGED || kvd_chain_tokens(chain) != n_prompt) {
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "the chain holds %zu tokens and the prompt has %zu: push exactly the prompt",
                           kvd_chain_tokens(chain), n_prompt);
    }
    return KVD_OK;
}

enum kvd_status kvd_find(kvd_client *c, const kvd_chain *chain, const uint32_t *prompt, size_t n_prompt,
                         struct kvd_hit *ret_hits, uint32_t max, uint32_t *ret_n, struct kvd_error *error) {
    struct kvd_hit hits[KVD_MAX_HITS + 1];
    enum kvd_status status = check_prompt(chain, prompt, n_prompt, ret_hits, max, ret_n, error);
    if (status != KVD_OK) return status;
    struct found_hits found = { .hits = hits, .max = smaller(max, KVD_MAX_HITS) };
    struct question q = { .prompt = prompt };
    q.find = (struct kvd_find){ .root = kvd_chain_root(chain)->digest,
                                .max = KVD_MAX_HITS,
                                .prompt_tokens = (uint32_t)n_prompt };
    status = ask_pages(c, &q, chain, &found, error);
    if (status != KVD_OK) return status;
    memcpy(ret_hits, hits, found.n * sizeof *hits);
    *ret_n = found.n;
    return KVD_OK;
}
