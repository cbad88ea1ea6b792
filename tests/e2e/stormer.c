/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of the storm: an engine in one process that follows the guide, for as long as it lives. It compares every
 * byte that it gets as a hit, and writes what it computes. Any of its calls may meet a daemon that stands still, is
 * gone, or is another one, and a fence; all other refusals, and a wrong byte, are faults.
 *
 *     e2e_stormer SOCKET SLOT SEED
 */
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "scene.h"
#include "storm.h"

enum outcome {
    FINE,
    AGAIN, /* the same call once more */
    OVER,  /* this request; the session goes on */
    LOST   /* the session, too */
};

struct stormer {
    const char *socket;
    struct storm_slot *slot;
    kvd_client *client;
    kvd_store *store;
    uint64_t random;
    uint64_t text; /* of the request */
    uint32_t n, from;
    kvd_chain *chain;
    struct kvd_activation want;
    struct kvd_activated is;
    struct kvd_victim victims[64];
};

/* As long as an engine is busy elsewhere, or does not come back to a kvd that is not there or has no place. */
static void take_breath(struct stormer *s) {
    struct pollfd nothing = { .fd = -1 };
    poll(&nothing, 0, (int)kvt_below(&s->random, 100));
}

static void fail_with(struct stormer *s, const char *what, const char *status, const char *message) {
    if (atomic_load(&s->slot->failed)) return;
    snprintf(s->slot->why, sizeof s->slot->why, "%s: %s: %s", what, status, message);
    atomic_store(&s->slot->failed, 1);
}

/* ---- what an answer means ------------------------------------------------------------------------- */

/* The connection is restored if it can be. */
static enum outcome try_again(struct stormer *s) {
    struct kvd_error error;
    take_breath(s);
    return kvd_client_reconnect(s->client, &error) == KVD_ABORTED ? LOST : AGAIN;
}

/* Fenced and replaced daemons answer every call so; a source in transition only this one. */
static enum outcome after_aborted(struct stormer *s) {
    struct kvd_stats stats;
    struct kvd_error error;
    for (enum outcome o = AGAIN; o == AGAIN; o = try_again(s)) {
        enum kvd_status status = kvd_stats(s->client, &stats, &error);
        if (status == KVD_OK) return OVER;
        if (status == KVD_ABORTED) break;
    }
    return LOST;
}

/* kvd stops in order: no unit of this process runs any more. */
static enum outcome yield_all(struct stormer *s) {
    uint32_t n;
    (void)kvd_yield(s->client, &n, NULL);
    return OVER;
}

static enum outcome heard(struct stormer *s, const char *what, enum kvd_status status, const struct kvd_error *error) {
    snprintf(s->slot->call, sizeof s->slot->call, "%s", what);
    atomic_store(&s->slot->status, (uint32_t)status);
    if (status == KVD_OK) return FINE;
    if (status == KVD_RESOURCE_EXHAUSTED || status == KVD_NOT_FOUND) return OVER;
    if (status == KVD_DEADLINE_EXCEEDED || status == KVD_UNAVAILABLE) return try_again(s);
    if (status == KVD_ABORTED) return after_aborted(s);
    if (status == KVD_FAILED_PRECONDITION && strstr(error->message, "is ending")) return yield_all(s);
    fail_with(s, what, kvd_status_name(status), error->message);
    return OVER;
}

/* ---- life ------------------------------------------------------------------------------------------- */

static void close_client(struct stormer *s) {
    kvd_detach(s->store);
    kvd_disconnect(s->client);
    s->store = NULL;
    s->client = NULL;
}

static bool open_client(struct stormer *s) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = s->socket,
                                           .role = KVD_ROLE_SCHEDULER,
                                           .name = "stormer",
                                           .timeout_ms = 2000 * E2E_SLOW };
    struct kvd_error error;
    enum kvd_status status = kvd_connect(&options, &s->client, &error);
    const char *what = "connect";
    if (status == KVD_OK) {
        atomic_store(&s->slot->session, kvd_client_session(s->client).bits);
        status = kvd_attach(s->client, 0, NULL, &s->store, &error);
        what = "attach";
    }
    if (status == KVD_OK) return true;
    if (status != KVD_UNAVAILABLE && status != KVD_DEADLINE_EXCEEDED && status != KVD_ABORTED)
        fail_with(s, what, kvd_status_name(status), error.message);
    close_client(s);
    return false;
}

/* ---- a request -------------------------------------------------------------------------------------- */

static bool compare_columns(struct stormer *s, const char *when, uint32_t to) {
    uint64_t wrong = e2e_check_columns(s->store, 0, s->is.pool[0].row, s->text, 0, to);
    char why[160];
    atomic_fetch_add(&s->slot->compared, to);
    if (!wrong) return true;
    snprintf(why, sizeof why, "%" PRIu64 " bytes of columns 0 to %u, text %" PRIx64 ", from %u", wrong, to, s->text,
             s->from);
    fail_with(s, "wrong bytes", when, why);
    return false;
}

static enum outcome look_for_prefix(struct stormer *s) {
    uint32_t tokens[STORM_LONGEST], found = 0;
    struct kvd_hit hits[4];
    struct kvd_error error;
    enum outcome o = AGAIN;
    e2e_tokens(s->text, s->n, tokens);
    while (o == AGAIN)
        o = heard(s, "find", kvd_find(s->client, s->chain, tokens, s->n, hits, 4, &found, &error), &error);
    if (o != FINE) return o;
    s->want = scene_want(kvd_client_session(s->client), s->n, 16);
    if (!found) return FINE;
    const struct kvd_hit *hit = &hits[kvt_below(&s->random, found)];
    s->want.from = hit->continuation;
    s->want.frontier = hit->usable;
    s->want.keep = kvt_below(&s->random, 3) > 0;
    return FINE;
}

static enum outcome begin_sequence(struct stormer *s) {
    struct kvd_error error;
    for (int attempt = 0; attempt < 4; attempt++) {
        enum outcome o = AGAIN;
        while (o == AGAIN) o = heard(s, "activate", kvd_activate(s->client, &s->want, &s->is, &error), &error);
        if (o != OVER) return o;
        if (error.status == KVD_NOT_FOUND) return OVER;
        for (o = AGAIN; o == AGAIN;)
            o = heard(s, "choose", kvd_choose_victims(s->client, &s->want, s->victims, 64, &error), &error);
        if (o != FINE) return o;
    }
    return OVER;
}

static enum outcome commit_text(struct stormer *s) {
    struct kvd_round_item item = { .sequence = s->is.sequence, .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = s->n } };
    struct kvd_round_result result;
    struct kvd_error error;
    enum outcome o = AGAIN;
    while (o == AGAIN) o = heard(s, "round", kvd_round(s->client, &item, 1, &result, &error), &error);
    if (o == FINE && result.status != KVD_OK) {
        memcpy(error.message, result.message, sizeof result.message);
        o = heard(s, "item of a round", (enum kvd_status)result.status, &error);
    }
    uint32_t first = s->from / KVD_PAGE_TOKENS, full = s->n / KVD_PAGE_TOKENS;
    if (o != FINE || full == first) return o;
    for (o = AGAIN; o == AGAIN;)
        o = heard(s, "name", kvd_name_pages(s->client, s->is.sequence, s->chain, first, full - first, &error), &error);
    return o;
}

static enum outcome end_sequence(struct stormer *s, bool retain) {
    struct kvd_finish how = { .sequence = s->is.sequence, .retain = retain };
    struct kvd_finished finished;
    struct kvd_error error;
    enum outcome o = AGAIN;
    if (retain) e2e_tail(s->text, s->n, &how.tail);
    while (o == AGAIN) o = heard(s, "finish", kvd_finish(s->client, &how, &finished, &error), &error);
    return o;
}

/* The whole text is there at last: what it began from, and what was computed. */
static enum outcome run_sequence(struct stormer *s) {
    s->from = s->want.from.bits ? s->want.frontier : 0;
    atomic_fetch_add(&s->slot->hits, s->from > 0);
    bool right = compare_columns(s, "in a hit", s->from);
    e2e_write_columns(s->store, 0, s->is.pool[0].row, s->text, s->from, s->n);
    enum outcome o = right ? commit_text(s) : OVER;
    if (o == FINE) right = compare_columns(s, "in what was committed", s->n);
    if (o == LOST) return LOST;
    return end_sequence(s, o == FINE && right && kvt_below(&s->random, 8) > 0);
}

/* Somewhere between the tiers, as a scheduler that makes room does; a refusal is one. */
static enum outcome move_prefix(struct stormer *s) {
    struct kvd_moved moved;
    struct kvd_error error;
    enum outcome o = AGAIN;
    bool out = kvt_below(&s->random, 2);
    for (int i = 0; o == AGAIN && i < 4; i++) {
        enum kvd_status status = out ? kvd_demote(s->client, s->want.from, false, &moved, &error)
                                     : kvd_prefetch(s->client, s->want.from, &moved, &error);
        o = heard(s, out ? "demote" : "prefetch", status == KVD_FAILED_PRECONDITION ? KVD_NOT_FOUND : status, &error);
    }
    return o;
}

static enum outcome serve_request(struct stormer *s) {
    enum outcome o = look_for_prefix(s);
    if (o == FINE && s->want.from.bits && kvt_below(&s->random, 8) == 0) return move_prefix(s);
    if (o == FINE) o = begin_sequence(s);
    if (o == FINE) o = run_sequence(s);
    return o;
}

/* Texts of a family share their first pages. */
static void draw_request(struct stormer *s) {
    uint32_t which = kvt_below(&s->random, STORM_TEXTS);
    s->text = storm_text(which);
    s->n = 65 + kvt_below(&s->random, STORM_LONGEST - 65);
    s->chain = e2e_chain(s->text, s->n);
}

int main(int argc, char **argv) {
    static struct stormer s;
    if (argc != 4) return 2;
    struct storm_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, STORM_BOARD_FD, 0);
    if (board == MAP_FAILED) return 2;
    s.socket = argv[1];
    s.slot = &board->slot[strtoul(argv[2], NULL, 10) % STORM_CLIENTS];
    s.random = strtoull(argv[3], NULL, 10);
    while (!atomic_load(&s.slot->failed)) {
        take_breath(&s);
        if (!s.client && !open_client(&s)) continue;
        draw_request(&s);
        enum outcome o = serve_request(&s);
        kvd_chain_free(s.chain);
        if (o == FINE) atomic_fetch_add(&s.slot->requests, 1);
        if (o != LOST) continue;
        atomic_fetch_add(&s.slot->losses, 1);
        close_client(&s);
    }
    return 1;
}
