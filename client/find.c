/* SPDX-License-Identifier: Apache-2.0
 *
 * Token-exact lookup (CONT-2). kvd matches whole pages by digest; what lies between a page boundary and the end of a
 * continuation is compared here, with the tail's tokens in the answer.
 *
 * One message holds KVD_MAX_DIGESTS digests. A longer chain goes on from the anchor of the answer before, with the last
 * digest sent as the first of the next message, as long as all that was sent matches something.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct found_hits {
    struct kvd_hit *hits;
    uint32_t n, max;
};

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Tokens of the prompt that a candidate holds exactly; 0 = of no use. */
static uint32_t usable_tokens(const struct kvd_candidate *candidate, const uint32_t *prompt, uint32_t n_prompt,
                              bool whole_only) {
    uint64_t boundary = (uint64_t)candidate->matched_pages * KVD_PAGE_TOKENS;
    if (boundary > candidate->frontier || boundary > n_prompt) return 0; /* an answer that contradicts itself */
    uint32_t usable = (uint32_t)boundary;
    if (candidate->exact_pages) {
        uint32_t limit = smaller(candidate->tail.n, smaller(candidate->frontier, n_prompt) - usable), i = 0;
        while (i < limit && candidate->tail.tokens[i] == prompt[boundary + i]) i++;
        usable += i;
    }
    if (whole_only) return usable == candidate->frontier && usable < n_prompt ? usable : 0;
    return smaller(usable, n_prompt - 1); /* the last token's query must be computed */
}

static bool better_hit(const struct kvd_hit *a, const struct kvd_hit *b) {
    if (a->usable != b->usable) return a->usable > b->usable;
    if (a->restore_pages != b->restore_pages) return a->restore_pages < b->restore_pages;
    return a->frontier < b->frontier; /* the one that ends sooner holds less that is of no use here */
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

struct question {
    const uint32_t *prompt;
    uint32_t n_prompt;
    bool whole_only;
    struct kvd_find
        find; /* one message; find.n == 0: those without full pages. The next one's anchor, from the answer */
};

/* One message. */
static enum kvd_status ask_candidates(struct kvd_client *c, struct question *q, struct found_hits *found,
                                      struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_FIND, .u.find = q->find };
    struct msg_reply reply;
    struct pending_call *call;
    enum kvd_status status = call_run(c, &request, &call, &reply, error);
    if (status != KVD_OK) return status;
    for (uint32_t i = 0; i < reply.u.candidates.n; i++) {
        const struct kvd_candidate *candidate = &reply.u.candidates.items[i];
        struct kvd_hit hit = { .continuation = candidate->continuation,
                               .frontier = candidate->frontier,
                               .retention = candidate->retention,
                               .restore_pages = candidate->restore_pages };
        if (candidate->matched_pages > q->find.first + q->find.n) continue;
        hit.usable = usable_tokens(candidate, q->prompt, q->n_prompt, q->whole_only);
        if (hit.usable) add_hit(found, &hit);
    }
    q->find.anchor = reply.u.candidates.anchor;
    call_done(c, call);
    return KVD_OK;
}

/* The whole chain, a message for every KVD_MAX_DIGESTS - 1 pages as long as they match. */
static enum kvd_status ask_pages(struct kvd_client *c, struct question *q, const kvd_chain *chain,
                                 struct found_hits *found, struct kvd_error *error) {
    uint32_t pages = (uint32_t)kvd_chain_pages(chain), sent = 0;
    while (sent < pages) {
        q->find.first = sent ? sent - 1 : 0;
        q->find.n = smaller(pages - q->find.first, KVD_MAX_DIGESTS);
        q->find.digests = kvd_chain_digests(chain) + q->find.first;
        struct kvd_error refusal = { .message = "" };
        enum kvd_status status = ask_candidates(c, q, found, &refusal);
        if (status == KVD_NOT_FOUND && sent) return KVD_OK; /* the anchor has gone: what was found stays true */
        if (status != KVD_OK) return client_fail(error, status, "%s", refusal.message);
        sent = q->find.first + q->find.n;
        if (!q->find.anchor.bits) return KVD_OK;
    }
    return KVD_OK;
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
    struct kvd_store_info info;
    struct kvd_hit hits[KVD_MAX_CANDIDATES + 1];
    enum kvd_status status = check_prompt(chain, prompt, n_prompt, ret_hits, max, ret_n, error);
    if (status == KVD_OK) status = client_store(c, &info, error);
    if (status != KVD_OK) return status;

    struct found_hits found = { .hits = hits, .max = smaller(max, KVD_MAX_CANDIDATES) };
    struct question q = { .prompt = prompt, .n_prompt = (uint32_t)n_prompt, .whole_only = info.state_bytes > 0 };
    q.find.max = KVD_MAX_CANDIDATES;
    status = ask_pages(c, &q, chain, &found, error);
    if (status == KVD_OK && found.n < found.max) {
        q.find = (struct kvd_find){ .max = KVD_MAX_CANDIDATES };
        status = ask_candidates(c, &q, &found, error);
    }
    if (status != KVD_OK) return status;
    memcpy(ret_hits, hits, found.n * sizeof *hits);
    *ret_n = found.n;
    return KVD_OK;
}
