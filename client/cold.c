/* SPDX-License-Identifier: Apache-2.0
 *
 * The cold tier: what its engine has of a prompt, and that into the host. One message holds KVD_MAX_DIGESTS digests; a
 * longer prompt goes on where the answer before ended, as long as all that was asked for was there. Where the pages end
 * before the prompt does, one more message asks for a continuation that ends within the next page.
 */
#include "client.h"

static enum kvd_status check_prompt(const struct kvd_cold_prompt *p, const void *ret, struct kvd_error *error) {
    if (!p || !p->chain || !p->prompt || !ret)
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "a question to the cold tier needs a chain, its prompt, and a place for the answer");
    size_t have = kvd_chain_tokens(p->chain);
    if (p->until <= have && (uint64_t)p->first * KVD_PAGE_TOKENS < p->until) return KVD_OK;
    return client_fail(error, KVD_OUT_OF_RANGE,
                       "asked for the tokens behind page %u up to token %u; the chain has %zu tokens: push the tokens "
                       "first, and ask for what is behind the pages that are there",
                       p->first, p->until, have);
}

/* The part that begins at page `first`. */
static struct kvd_cold_want part_of(const struct kvd_cold_prompt *p, uint32_t first, kvd_continuation from) {
    uint32_t pages = p->until / KVD_PAGE_TOKENS, left = pages - first;
    struct kvd_cold_want want = { .root = *kvd_chain_root(p->chain),
                                  .from = from,
                                  .first = first,
                                  .n = left < KVD_MAX_DIGESTS ? left : KVD_MAX_DIGESTS,
                                  .retention = p->retention };
    if (want.n) want.digests = kvd_chain_digests(p->chain) + first;
    if (want.n < left || (first && !want.n)) return want;
    want.tail.n = p->until % KVD_PAGE_TOKENS;
    for (uint32_t i = 0; i < want.tail.n; i++) want.tail.tokens[i] = p->prompt[pages * KVD_PAGE_TOKENS + i];
    return want;
}

/* The first part. Where all pages are there and the tail alone is asked for, the last page comes once more: its digest
 * is the tail's name. */
static struct kvd_cold_want first_part(const struct kvd_cold_prompt *p, uint16_t type) {
    uint32_t first = p->first && p->first == p->until / KVD_PAGE_TOKENS ? p->first - 1 : p->first;
    return part_of(p, first, type == FRAME_LOAD_COLD && first ? p->from : (kvd_continuation){ 0 });
}

static enum kvd_status ask_part(struct kvd_client *c, uint16_t type, const struct kvd_cold_want *want,
                                struct kvd_cold_found *ret_found, struct kvd_error *error) {
    struct msg_request request = { .type = type, .u.cold = *want };
    struct msg_reply reply;
    struct pending_call *call;
    enum kvd_status status = call_run(c, &request, &call, &reply, error);
    if (status != KVD_OK) return status;
    *ret_found = reply.u.cold;
    call_done(c, call);
    return KVD_OK;
}

/* Of this part all was there, and more is to be asked for. */
static bool goes_on(const struct kvd_cold_prompt *p, const struct kvd_cold_want *want,
                    const struct kvd_cold_found *got) {
    uint32_t end = want->first + want->n;
    return got->frontier == end * KVD_PAGE_TOKENS && end < p->until / KVD_PAGE_TOKENS;
}

/* True: more has come. */
static bool add_part(struct kvd_client *c, const struct kvd_cold_found *got, uint64_t bytes,
                     struct kvd_cold_found *all) {
    all->pages = got->pages;
    if (got->frontier <= all->frontier) return false;
    if (all->continuation.bits && all->continuation.bits != got->continuation.bits)
        (void)kvd_release(c, all->continuation, NULL); /* the longer one has its pages */
    *all = *got;
    all->bytes = bytes;
    return true;
}

/* The last part again, as far as its pages are there, and what ends within the page behind them. What was loaded up to
 * there is shared, but its last page, whose digest the tail's name needs. before: bytes of the other parts. */
static void ask_behind(struct kvd_client *c, uint16_t type, const struct kvd_cold_prompt *p, struct kvd_cold_want want,
                       uint64_t before, struct kvd_cold_found *all) {
    struct kvd_cold_prompt near = *p;
    struct kvd_cold_found got, more = *all;
    uint32_t end = all->pages * KVD_PAGE_TOKENS + KVD_TAIL_TOKENS;
    if (all->pages <= want.first || all->pages >= p->until / KVD_PAGE_TOKENS) return;
    near.until = end < p->until ? end : p->until;
    if (all->continuation.bits && all->frontier == all->pages * KVD_PAGE_TOKENS) {
        want = part_of(&near, all->pages - 1, all->pages > 1 ? all->continuation : (kvd_continuation){ 0 });
        before = all->bytes;
    } else {
        want = part_of(&near, want.first, want.from);
        more.continuation.bits = 0; /* a shorter one has windows or an image of its own */
    }
    if (ask_part(c, type, &want, &got, NULL) == KVD_OK && add_part(c, &got, before + got.bytes, &more)) *all = more;
}

static enum kvd_status ask_all(struct kvd_client *c, uint16_t type, const struct kvd_cold_prompt *p,
                               struct kvd_cold_found *ret_found, struct kvd_error *error) {
    struct kvd_cold_found all = { .frontier = p->first * KVD_PAGE_TOKENS, .pages = p->first }, got;
    struct kvd_cold_want want = first_part(p, type);
    uint64_t before;
    for (;;) {
        before = all.bytes;
        enum kvd_status status = ask_part(c, type, &want, &got, error);
        if (status != KVD_OK && !all.continuation.bits) return status; /* else what has come stays true */
        if (status != KVD_OK || !add_part(c, &got, before + got.bytes, &all) || !goes_on(p, &want, &got)) break;
        want = part_of(p, want.first + want.n, got.continuation);
    }
    ask_behind(c, type, p, want, before, &all);
    *ret_found = all;
    return KVD_OK;
}

enum kvd_status kvd_find_cold(kvd_client *c, const struct kvd_cold_prompt *p, struct kvd_cold_found *ret_found,
                              struct kvd_error *error) {
    enum kvd_status status = check_prompt(p, ret_found, error);
    return status == KVD_OK ? ask_all(c, FRAME_FIND_COLD, p, ret_found, error) : status;
}

enum kvd_status kvd_load_cold(kvd_client *c, const struct kvd_cold_prompt *p, struct kvd_cold_found *ret_found,
                              struct kvd_error *error) {
    enum kvd_status status = check_prompt(p, ret_found, error);
    return status == KVD_OK ? ask_all(c, FRAME_LOAD_COLD, p, ret_found, error) : status;
}

/* ---- for an activation ---- */

enum kvd_status kvd_set_cold(struct kvd_activation *want, const kvd_chain *chain, const uint32_t *prompt,
                             struct kvd_error *error) {
    if (!want || !chain || !prompt)
        return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_set_cold needs an activation, a chain and its prompt");
    uint32_t until = want->prompt_tokens ? want->prompt_tokens - 1 : 0;
    const struct kvd_cold_prompt p = {
        .chain = chain, .prompt = prompt, .until = until, .first = want->frontier / KVD_PAGE_TOKENS
    };
    uint32_t retention = want->cold.retention;
    want->cold = (struct kvd_cold_source){ .retention = retention };
    if (until <= p.first * KVD_PAGE_TOKENS) return KVD_OK;
    enum kvd_status status = check_prompt(&p, want, error);
    if (status != KVD_OK) return status;
    struct kvd_cold_want part = part_of(&p, p.first, want->from);
    if (part.n || part.tail.n)
        want->cold = (struct kvd_cold_source){ p.first, part.n, part.digests, part.tail, retention };
    return KVD_OK;
}

enum kvd_status kvd_prefetch_cold(kvd_client *c, const struct kvd_cold_prompt *p, struct kvd_cold_found *ret_found,
                                  struct kvd_error *error) {
    struct kvd_cold_found found = { 0 };
    enum kvd_status status = check_prompt(p, ret_found, error);
    if (status == KVD_OK) status = ask_all(c, FRAME_LOAD_COLD, p, &found, error);
    if (status == KVD_OK && found.continuation.bits) status = kvd_prefetch(c, found.continuation, NULL, error);
    if (status == KVD_OK) *ret_found = found;
    return status;
}

/* ---- by ticket ---- */

static enum kvd_status start_part(struct kvd_client *c, uint16_t type, const struct kvd_cold_prompt *p,
                                  kvd_ticket *ret_ticket, struct kvd_error *error) {
    enum kvd_status status = check_prompt(p, ret_ticket, error);
    if (status != KVD_OK) return status;
    struct msg_request request = { .type = type, .u.cold = first_part(p, type) };
    return ticket_start(c, &request, ret_ticket, error);
}

static enum kvd_status end_part(struct kvd_client *c, kvd_ticket ticket, bool wait, struct kvd_cold_found *ret_found,
                                struct kvd_error *error) {
    struct msg_reply reply;
    struct pending_call *call;
    if (!ret_found) return client_fail(error, KVD_INVALID_ARGUMENT, "a ticket needs a place for its answer");
    enum kvd_status status = ticket_finish(c, ticket, TICKET_OF(FRAME_FIND_COLD) | TICKET_OF(FRAME_LOAD_COLD), 0, wait,
                                           &call, &reply, error);
    if (status != KVD_OK) return status;
    *ret_found = reply.u.cold;
    call_done(c, call);
    return KVD_OK;
}

enum kvd_status kvd_find_cold_start(kvd_client *c, const struct kvd_cold_prompt *p, kvd_ticket *ret_ticket,
                                    struct kvd_error *error) {
    return start_part(c, FRAME_FIND_COLD, p, ret_ticket, error);
}

enum kvd_status kvd_load_cold_start(kvd_client *c, const struct kvd_cold_prompt *p, kvd_ticket *ret_ticket,
                                    struct kvd_error *error) {
    return start_part(c, FRAME_LOAD_COLD, p, ret_ticket, error);
}

enum kvd_status kvd_cold_poll(kvd_client *c, kvd_ticket ticket, struct kvd_cold_found *ret_found,
                              struct kvd_error *error) {
    return end_part(c, ticket, false, ret_found, error);
}

enum kvd_status kvd_cold_wait(kvd_client *c, kvd_ticket ticket, struct kvd_cold_found *ret_found,
                              struct kvd_error *error) {
    return end_part(c, ticket, true, ret_found, error);
}
