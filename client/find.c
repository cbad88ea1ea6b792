/* SPDX-License-Identifier: Apache-2.0
 *
 * Token-exact lookup (CONT-2). kvd matches whole pages by digest; what lies between a page boundary and the end of a
 * continuation is compared here, with the tail's tokens in the answer.
 *
 * kvd matches a chain from its first page, so the digests of one message reach KVD_MAX_DIGESTS pages (65536 tokens)
 * deep. A continuation that matches all of them and goes on is usable up to there; the result is exact, if shorter than
 * it might be.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct found {
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

static bool better(const struct kvd_hit *a, const struct kvd_hit *b) {
    if (a->usable != b->usable) return a->usable > b->usable;
    if (a->restore_pages != b->restore_pages) return a->restore_pages < b->restore_pages;
    return a->frontier < b->frontier; /* the one that ends sooner holds less that is of no use here */
}

static void add(struct found *found, const struct kvd_hit *hit) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < found->n; i++)
        if (found->hits[i].continuation.bits == hit->continuation.bits) return;
    while (at < found->n && !better(hit, &found->hits[at])) at++;
    if (at == found->max) return;
    if (found->n < found->max) found->n++;
    memmove(&found->hits[at + 1], &found->hits[at], (found->n - 1 - at) * sizeof *found->hits);
    found->hits[at] = *hit;
}

/* One message: candidates of the chain's first n pages; n == 0: those without full pages. */
static enum kvd_status ask(struct kvd_client *c, const kvd_digest *digests, uint32_t n, const uint32_t *prompt,
                           uint32_t n_prompt, bool whole_only, struct found *found, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_FIND,
                                   .u.find = { .n = n, .max = KVD_MAX_CANDIDATES, .digests = digests } };
    struct msg_reply reply;
    struct call *call;
    enum kvd_status status = call_run(c, &request, &call, &reply, error);
    if (status != KVD_OK) return status;
    for (uint32_t i = 0; i < reply.u.candidates.n; i++) {
        const struct kvd_candidate *candidate = &reply.u.candidates.items[i];
        struct kvd_hit hit = { .continuation = candidate->continuation,
                               .frontier = candidate->frontier,
                               .retention = candidate->retention,
                               .restore_pages = candidate->restore_pages };
        if (candidate->matched_pages > n) continue;
        hit.usable = usable_tokens(candidate, prompt, n_prompt, whole_only);
        if (hit.usable) add(found, &hit);
    }
    call_done(c, call);
    return KVD_OK;
}

static enum kvd_status check(const kvd_chain *chain, const uint32_t *prompt, size_t n_prompt, struct kvd_hit *ret_hits,
                             uint32_t max, uint32_t *ret_n, struct kvd_error *error) {
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
    enum kvd_status status = check(chain, prompt, n_prompt, ret_hits, max, ret_n, error);
    if (status == KVD_OK) status = client_store(c, &info, error);
    if (status != KVD_OK) return status;

    struct found found = { .hits = hits, .max = smaller(max, KVD_MAX_CANDIDATES) };
    size_t pages = kvd_chain_pages(chain);
    uint32_t n = pages < KVD_MAX_DIGESTS ? (uint32_t)pages : KVD_MAX_DIGESTS;
    if (n)
        status = ask(c, kvd_chain_digests(chain), n, prompt, (uint32_t)n_prompt, info.state_bytes > 0, &found, error);
    if (status == KVD_OK && found.n < found.max)
        status = ask(c, NULL, 0, prompt, (uint32_t)n_prompt, info.state_bytes > 0, &found, error);
    if (status != KVD_OK) return status;
    memcpy(ret_hits, hits, found.n * sizeof *hits);
    *ret_n = found.n;
    return KVD_OK;
}
