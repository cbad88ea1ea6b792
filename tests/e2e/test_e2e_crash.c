/* SPDX-License-Identifier: Apache-2.0
 * The daemon is killed at every point at which it writes into the arena's directory or header, in the course of a
 * script that demotes, restores, keeps, releases, drops, checkpoints, moves, forks, truncates and lends. Then an
 * ordinary daemon starts on what is left: its books must be right, every continuation that it lists must have the bytes
 * of some text of the script, and what was demoted before the kill must be there. CONT-3, PAGE-8, HOST-2, SRV-8, ENG-2.
 * A second script writes to a cold tier and loads from it. COLD-3, COLD-4.
 *
 * Sampled evenly; all points with KVD_CRASH_ALL in the environment. Two processes share the work. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "redis.h"
#include "scene.h"

#define SAMPLES 600u
#define PROCESSES 2u

static const struct e2e_setup setup = {
    .max_context = 1024,
    .max_concurrency = 4,
    .capacity_tokens = 4096,
    .layers = 1,
    .kv_heads = 1,
    .head_dim = 16,
    .more = "[host]\narena = 2MiB\nscrub = 0\n[limits]\ncontinuations = 64\nsessions = 8\n"
};

/* Another size and other limits: the arena is laid out anew. */
static const struct e2e_setup larger = {
    .max_context = 2048,
    .max_concurrency = 6,
    .capacity_tokens = 8192,
    .layers = 1,
    .kv_heads = 1,
    .head_dim = 16,
    .more = "[host]\narena = 3MiB\nscrub = 0\n[limits]\ncontinuations = 80\nsessions = 8\n"
};

static struct e2e_daemon daemon_;
static kvd_client *client;
static kvd_store *store;

/* ---- texts ------------------------------------------------------------------------------------------ */

enum { A, B, C, D, E, TEXTS };
static uint64_t seed_of(int text) {
    switch (text) {
    case A: return e2e_stream(1, 200, 1);
    case C: return e2e_stream(1, 200, 2); /* A up to 200 */
    case B: return e2e_stream(2, 320, 1);
    case E: return e2e_stream(3, 0, 1);
    default: return e2e_stream(2, 320, 2); /* B up to 320 */
    }
}

/* What the script has been told: a continuation that rests in the arena, and of how much of which text. 0: none. */
static struct durable {
    kvd_continuation cont;
    int text;
    uint32_t tokens;
} durable[TEXTS];

static bool whole; /* the script came to its end */

/* ---- the script: it ends with the first call that the daemon does not answer ---------------------------- */

#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != KVD_OK) return;                                                                                  \
    } while (0)

static bool connect_all(void) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = daemon_.socket,
                                           .role = KVD_ROLE_ADMIN,
                                           .name = "script",
                                           .timeout_ms = 10000 * E2E_SLOW };
    if (kvd_connect(&options, &client, NULL) != KVD_OK) return false;
    return kvd_attach(client, 0, NULL, &store, NULL) == KVD_OK;
}

static void disconnect_all(void) {
    kvd_detach(store);
    kvd_disconnect(client);
    store = NULL;
    client = NULL;
}

static struct kvd_activation want_of(kvd_continuation from, bool keep, uint32_t frontier, uint32_t prompt) {
    struct kvd_activation want = scene_want(kvd_client_session(client), prompt, 64);
    want.from = from;
    want.keep = keep;
    want.frontier = frontier;
    return want;
}

static enum kvd_status round_of(kvd_sequence sequence, uint32_t commit, uint32_t truncate, uint32_t ensure) {
    struct kvd_round_item item = scene_item(sequence);
    struct kvd_round_result result;
    item.pool[0].commit = commit;
    item.pool[0].truncate = truncate;
    item.pool[0].ensure = ensure;
    ROUND_ASK(&item);
    enum kvd_status status = kvd_round(client, &item, 1, &result, NULL);
    return status == KVD_OK ? (enum kvd_status)result.status : status;
}

static enum kvd_status name(kvd_sequence sequence, int text, uint32_t n) {
    kvd_chain *chain = e2e_chain(seed_of(text), n);
    enum kvd_status status = kvd_name_pages(client, sequence, chain, 0, (uint32_t)kvd_chain_pages(chain), NULL);
    kvd_chain_free(chain);
    return status;
}

/* Columns [from, to) of the text, committed and named. */
static enum kvd_status write_on(const struct kvd_activated *a, int text, uint32_t from, uint32_t to) {
    e2e_write_columns(store, 0, a->pool[0].row, seed_of(text), from, to);
    enum kvd_status status = round_of(a->sequence, to, KVD_UNCHANGED, KVD_UNCHANGED);
    return status == KVD_OK ? name(a->sequence, text, to) : status;
}

static enum kvd_status retain(kvd_sequence sequence, int text, uint32_t n, kvd_continuation *ret_cont) {
    struct kvd_finish how = { .sequence = sequence, .retain = true };
    struct kvd_finished finished = { .revision = 0 };
    e2e_tail(seed_of(text), n, &how.tail);
    enum kvd_status status = kvd_finish(client, &how, &finished, NULL);
    *ret_cont = finished.continuation;
    return status;
}

static enum kvd_status demote(kvd_continuation c, bool keep_device, int text, uint32_t tokens) {
    struct kvd_moved moved;
    enum kvd_status status = kvd_demote(client, c, keep_device, &moved, NULL);
    if (status == KVD_OK) durable[text] = (struct durable){ c, text, tokens };
    return status;
}

/* From page `first` to this token of text E, in pages that the sequence lends: written, and named. */
static enum kvd_status lent_on(const struct kvd_activated *a, kvd_continuation from, uint32_t first, uint32_t end,
                               struct kvd_lent_page *pages, kvd_continuation *ret_cont) {
    uint32_t n = (end + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS, full = end / KVD_PAGE_TOKENS;
    PagedKVLayerView view;
    struct kvd_lent_named named = { 0 };
    struct kvd_root root = e2e_root();
    e2e_write_columns(store, 0, a->pool[0].row, seed_of(E), first * KVD_PAGE_TOKENS, end);
    enum kvd_status status = kvd_store_layer_view(store, 0, 0, a->pool[0].row, &view, NULL);
    if (status != KVD_OK) return status;
    kvd_chain *chain = e2e_chain(seed_of(E), end);
    for (uint32_t i = first; i < n; i++) {
        pages[i] = (struct kvd_lent_page){ .page = (uint32_t)view.block_table[i] };
        if (i < full) pages[i].digest = kvd_chain_digests(chain)[i];
    }
    struct kvd_lent_names names = { .sequence = a->sequence,
                                    .from = from,
                                    .first = first,
                                    .root = root,
                                    .n = n - first,
                                    .pages = pages + first,
                                    .retention = 1,
                                    .replace = true };
    e2e_tail(seed_of(E), end, &names.tail);
    status = kvd_name_lent(client, &names, &named, NULL);
    kvd_chain_free(chain);
    *ret_cont = named.continuation;
    return status;
}

/* ENG-1, ENG-2, ENG-4: an engine that hands out pages itself names some, also one that is written up to a column, goes
 * on from them, and wants them again. */
static void lending_script(void) {
    struct kvd_activated a;
    struct kvd_lent lent;
    struct kvd_lent_page pages[3];
    kvd_continuation ce;
    struct kvd_activation want = want_of((kvd_continuation){ 0 }, false, 0, 256);
    STEP(kvd_activate(client, &want, &a, NULL));
    STEP(kvd_lend_pages(client, &(struct kvd_lend){ a.sequence, false }, &lent, NULL));
    STEP(lent_on(&a, (kvd_continuation){ 0 }, 0, 138, pages, &ce));
    STEP(demote(ce, true, E, 138));
    durable[E].tokens = 0;
    STEP(lent_on(&a, ce, 2, 150, pages, &ce));
    STEP(lent_on(&a, ce, 2, 192, pages, &ce));
    STEP(demote(ce, false, E, 192));
    STEP(kvd_return_lent(client, &(struct kvd_lent_return){ a.sequence, true, 3, pages }, NULL));
    STEP(lent_on(&a, (kvd_continuation){ 0 }, 0, 64, pages, &ce)); /* a page of it again, while the sequence runs */
    STEP(kvd_finish(client, &(struct kvd_finish){ .sequence = a.sequence }, &(struct kvd_finished){ 0 }, NULL));
    whole = true;
}

static void script(void) {
    struct kvd_activated a;
    struct kvd_moved moved;
    struct kvd_checkpoint how = { .retention = 1 };
    struct kvd_checkpointed kept;
    kvd_continuation ca, cb, cc, cd;
    struct kvd_activation want = want_of((kvd_continuation){ 0 }, false, 0, 330);
    STEP(kvd_activate(client, &want, &a, NULL));
    STEP(write_on(&a, A, 0, 330));
    STEP(retain(a.sequence, A, 330, &ca));
    STEP(demote(ca, false, A, 330));
    want = want_of((kvd_continuation){ 0 }, false, 0, 448);
    STEP(kvd_activate(client, &want, &a, NULL));
    STEP(write_on(&a, B, 0, 300));
    how.sequence = a.sequence;
    e2e_tail(seed_of(B), 300, &how.tail);
    STEP(kvd_checkpoint(client, &how, &kept, NULL));
    STEP(write_on(&a, B, 300, 448));
    STEP(retain(a.sequence, B, 448, &cb));
    STEP(demote(cb, true, B, 448));
    want = want_of(ca, true, 200, 330); /* brought back as far as that */
    STEP(kvd_activate(client, &want, &a, NULL));
    STEP(write_on(&a, C, 200, 330));
    STEP(retain(a.sequence, C, 330, &cc));
    durable[B].tokens = 0; /* from here on it is on its way to become something else */
    want = want_of(cb, false, 448, 460);
    STEP(kvd_activate(client, &want, &a, NULL));
    STEP(round_of(a.sequence, KVD_UNCHANGED, 320, KVD_UNCHANGED));
    STEP(write_on(&a, D, 320, 400));
    STEP(retain(a.sequence, D, 400, &cd));
    STEP(demote(cc, false, C, 330));
    want = want_of((kvd_continuation){ 0 }, false, 0, 64);
    want.n_victims = 1; /* a recipe that demotes */
    want.victims = &(struct kvd_victim){ cd, true, 0 };
    STEP(kvd_activate(client, &want, &a, NULL));
    durable[D] = (struct durable){ cd, D, 400 };
    STEP(write_on(&a, B, 0, 64)); /* this one runs until the end */
    STEP(kvd_prefetch(client, ca, &moved, NULL));
    durable[A].tokens = 0;
    STEP(kvd_drop_replica(client, ca, KVD_TIER_HOST, &moved, NULL));
    STEP(kvd_release(client, kept.continuation, NULL));
    STEP(demote(ca, true, A, 330));
    STEP(kvd_drop_replica(client, ca, KVD_TIER_DEVICE, &moved, NULL));
    STEP(kvd_set_retention(client, ca, 7, NULL));
    durable[C].tokens = 0;
    STEP(kvd_release(client, cc, NULL));
    lending_script();
}

/* ---- what is left ------------------------------------------------------------------------------------------ */

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("    point %u: ", point);                                                                           \
            printf(__VA_ARGS__);                                                                                       \
            puts(" [" #condition "]");                                                                                 \
            bad++;                                                                                                     \
        }                                                                                                              \
    } while (0)

static unsigned bad, point;
static uint64_t compared;

/* Its bytes are those of one of the texts. */
static void reproduce(const struct kvd_continuation_info *info) {
    struct kvd_activation want = want_of(info->continuation, true, info->frontier, info->frontier + 1);
    struct kvd_activated a;
    struct kvd_error error = { 0 };
    bool same = false;
    enum kvd_status status = kvd_activate(client, &want, &a, &error);
    CHECK(status == KVD_OK, "frontier %u: %s", info->frontier, error.message);
    if (status != KVD_OK) return;
    for (int t = 0; t < TEXTS && !same; t++)
        same = e2e_check_columns(store, 0, a.pool[0].row, seed_of(t), 0, info->frontier) == 0;
    CHECK(same, "frontier %u: its bytes are of no text", info->frontier);
    compared++;
    struct kvd_finish how = { .sequence = a.sequence };
    struct kvd_finished finished;
    CHECK(kvd_finish(client, &how, &finished, NULL) == KVD_OK, "finish");
}

static void is_found(const struct durable *d) {
    uint32_t tokens[1024], n = 0;
    struct kvd_hit hits[8] = { 0 };
    kvd_chain *chain = e2e_chain(seed_of(d->text), d->tokens + 1);
    e2e_tokens(seed_of(d->text), d->tokens + 1, tokens);
    enum kvd_status status = kvd_find(client, chain, tokens, d->tokens + 1, hits, 8, &n, NULL);
    CHECK(status == KVD_OK && n && hits[0].usable == d->tokens,
          "text %d of %u tokens was demoted, and %u of it are found", d->text, d->tokens, n ? hits[0].usable : 0);
    kvd_chain_free(chain);
}

static void look_at_the_rest(void) {
    static struct kvd_audit audit;
    struct kvd_continuation_info infos[KVD_MAX_LIST];
    uint32_t cursor = 0, n = 0;
    bool up = e2e_daemon_launch(&daemon_) && connect_all();
    CHECK(up, "no daemon starts on what is left");
    if (!up) return;
    CHECK(kvd_audit(client, &audit, NULL) == KVD_OK && audit.violations == 0, "%s", audit.text);
    CHECK(kvd_list_continuations(client, NULL, &cursor, infos, KVD_MAX_LIST, &n, NULL) == KVD_OK, "list");
    struct kvd_stats stats = { 0 };
    CHECK(kvd_stats(client, &stats, NULL) == KVD_OK && stats.recovered_damaged == 0, "%u damaged records",
          stats.recovered_damaged);
    for (uint32_t i = 0; i < n; i++) reproduce(&infos[i]);
    for (int t = 0; t < TEXTS; t++)
        if (durable[t].tokens) is_found(&durable[t]);
    CHECK(kvd_audit(client, &audit, NULL) == KVD_OK && audit.violations == 0, "%s", audit.text);
    disconnect_all();
}

/* ---- the rounds ---------------------------------------------------------------------------------------------- */

static uint64_t points_passed(void) {
    char line[512];
    uint64_t n = 0;
    FILE *f = fopen(daemon_.log, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "crash points passed: ");
        if (at) n = strtoull(at + 21, NULL, 10);
    }
    if (f) fclose(f);
    return n;
}

/* A daemon that dies at `at` (0: does not). False: it did so before it was ready. */
static bool launch_to(unsigned at) {
    char text[16];
    snprintf(text, sizeof text, "%u", at);
    setenv("KVD_CRASH_AT", text, 1);
    daemon_.binary = KVD_CRASH_BINARY;
    bool ready = e2e_daemon_launch(&daemon_);
    daemon_.binary = NULL;
    unsetenv("KVD_CRASH_AT");
    return ready;
}

/* Such a daemon, its script and its orderly stop. */
static void run_to(unsigned at) {
    memset(durable, 0, sizeof durable);
    if (launch_to(at) && connect_all()) script();
    disconnect_all();
    if (daemon_.pid) (void)e2e_daemon_stop(&daemon_, SIGTERM);
}

static void forget(void) {
    char path[128];
    if (daemon_.pid) (void)e2e_daemon_stop(&daemon_, SIGKILL);
    e2e_arena_path(&daemon_, path, sizeof path);
    unlink(path);
    unlink(daemon_.log);
}

static void kill_at(unsigned at) {
    unsigned before = bad;
    point = at;
    run_to(at);
    look_at_the_rest();
    forget();
    if (bad != before) printf("    again: KVD_CRASH_ONLY=%u\n", at);
}

static void every_point(void) {
    uint32_t failures = 0;
    KVT_NEED(e2e_daemon_prepare(&daemon_, &setup));
    run_to(0);
    unsigned all = (unsigned)points_passed();
    point = 0;
    look_at_the_rest(); /* the whole script, to its end */
    forget();
    e2e_daemon_free(&daemon_);
    KVT_TRUE(whole && all > 100);
    KVT_EQ(bad, 0);
    const char *only = getenv("KVD_CRASH_ONLY");
    unsigned samples = getenv("KVD_CRASH_ALL") || all < SAMPLES ? all : SAMPLES / E2E_SLOW;
    printf("    %u points, %u of them tried\n", all, only ? 1 : samples);
    fflush(stdout);
    pid_t children[PROCESSES];
    for (unsigned p = 0; p < PROCESSES; p++) {
        char part[64];
        snprintf(part, sizeof part, "%u %u %u", p, all, samples);
        if ((children[p] = fork())) continue;
        setenv("KVD_CRASH_PART", part, 1);
        alarm(540);                                                          /* it outlives exec */
        execl("/proc/self/exe", "test_e2e_crash", "one_part", (char *)NULL); /* anew: libkvd does not fork */
        _exit(127);
    }
    for (unsigned p = 0; p < PROCESSES; p++) {
        int status = 0;
        waitpid(children[p], &status, 0);
        failures += status != 0;
    }
    KVT_EQ(failures, 0);
}

/* One process's share of the points. */
static void one_part(void) {
    const char *only = getenv("KVD_CRASH_ONLY"), *share = getenv("KVD_CRASH_PART");
    unsigned part, all, samples;
    if (!share || sscanf(share, "%u %u %u", &part, &all, &samples) != 3) return; /* every_point starts it */
    KVT_NEED(e2e_daemon_prepare(&daemon_, &setup));
    if (only && part == 0) kill_at((unsigned)strtoul(only, NULL, 10));
    for (unsigned i = part; i < samples && !only; i += PROCESSES) kill_at((unsigned)((uint64_t)i * all / samples) + 1);
    e2e_daemon_free(&daemon_);
    printf("    process %u compared %" PRIu64 " continuations\n", part, compared);
    KVT_EQ(bad, 0);
}

/* KEEP-1: the arena is laid out anew, and kvd is killed at some point of it: the one that is there then has all that
 * was demoted. The sizes of before look at it, so that the next round begins anew. */
static void keep_1_killed_while_it_is_laid_out_anew(void) {
    unsigned killed = 0, step = getenv("KVD_CRASH_ALL") ? 1 : 5 * E2E_SLOW;
    KVT_NEED(e2e_daemon_prepare(&daemon_, &setup));
    run_to(0);
    for (point = 1; KVT_TRUE(e2e_daemon_configure(&daemon_, &larger)) && !launch_to(point); point += step) {
        killed++;
        KVT_NEED(e2e_daemon_configure(&daemon_, &setup));
        look_at_the_rest();
        if (daemon_.pid) (void)e2e_daemon_stop(&daemon_, SIGKILL);
    }
    printf("    killed %u times, at the last point before %u\n", killed, point);
    KVT_TRUE(killed > 10 / E2E_SLOW);
    KVT_EQ(bad, 0);
    forget();
    e2e_daemon_free(&daemon_);
}

/* ---- the cold tier ------------------------------------------------------------------------------------------- */

/* The points of it, each of which a kill must have met. */
static const char *const cold_points[] = { "cold.write.copied", "cold.write.read", "cold.write.asked",
                                           "cold.write.sent",   "cold.load.begun", "cold.load.got",
                                           "cold.load.placed",  "cold.load.filled" };
#define COLD_POINTS (sizeof cold_points / sizeof *cold_points)
#define COLD_TOKENS 200u

static struct redis engine;
static unsigned met[COLD_POINTS];
static bool in_cold; /* the script was told that the engine has all of A, or that the arena has it to write */

static bool answers(enum kvd_status status) { return status == KVD_OK; }

/* What waits for the daemon ends with it, too. */
static bool gone;

static bool is_written(void *continuations) {
    struct kvd_cold_tier cold = { 0 };
    gone = !answers(kvd_describe_cold_tier(client, &cold, NULL));
    return gone || cold.continuations == *(const uint64_t *)continuations;
}

static bool is_given_back(void *unused) {
    struct kvd_stats stats = { 0 };
    (void)unused;
    gone = !answers(kvd_stats(client, &stats, NULL));
    return gone || stats.host_occupied == 0;
}

/* Whole, or nothing: the engine answers, however late. */
static bool ask_cold(bool load, struct kvd_cold_found *ret_found) {
    uint32_t tokens[COLD_TOKENS];
    kvd_chain *chain = e2e_chain(seed_of(A), COLD_TOKENS);
    struct kvd_cold_prompt prompt = { .chain = chain, .prompt = tokens, .until = COLD_TOKENS };
    e2e_tokens(seed_of(A), COLD_TOKENS, tokens);
    *ret_found = (struct kvd_cold_found){ 0 };
    gone = !answers(load ? kvd_load_cold(client, &prompt, ret_found, NULL)
                         : kvd_find_cold(client, &prompt, ret_found, NULL));
    kvd_chain_free(chain);
    return gone || ret_found->frontier == COLD_TOKENS;
}

static bool is_in_cold(void *found) { return ask_cold(false, found); }
static bool is_loaded(void *found) { return ask_cold(true, found); }

static bool await(bool (*is_so)(void *), void *context) {
    return e2e_until(is_so, context, 60 * E2E_SLOW, NULL) && !gone;
}

/* It is written from a copy that goes again, met when it is demoted, released, and loaded. */
static void cold_script(void) {
    struct kvd_activated a;
    kvd_continuation c;
    struct kvd_cold_found found;
    uint64_t written = 1;
    struct kvd_activation want = want_of((kvd_continuation){ 0 }, false, 0, COLD_TOKENS);
    STEP(kvd_activate(client, &want, &a, NULL));
    STEP(write_on(&a, A, 0, COLD_TOKENS));
    STEP(retain(a.sequence, A, COLD_TOKENS, &c));
    if (!await(is_written, &written)) return;
    in_cold = true;
    if (!await(is_given_back, NULL)) return;
    STEP(demote(c, false, A, COLD_TOKENS));
    written++;
    if (!await(is_written, &written)) return;
    durable[A].tokens = 0;
    STEP(kvd_release(client, c, NULL));
    if (!await(is_in_cold, &found) || !await(is_loaded, &found)) return;
    durable[A] = (struct durable){ found.continuation, A, COLD_TOKENS };
    whole = true;
}

/* The restarted kvd has right books and right bytes; so has what it then loads. */
static void look_at_the_cold_tier(void) {
    static struct kvd_audit audit;
    struct kvd_continuation_info infos[KVD_MAX_LIST];
    struct kvd_cold_found found;
    uint32_t cursor = 0, n = 0;
    look_at_the_rest();
    bool up = daemon_.pid && connect_all();
    CHECK(up, "it does not answer any more");
    if (!up) return;
    if (in_cold || durable[A].tokens) CHECK(await(is_in_cold, &found), "%u tokens are found", found.frontier);
    CHECK(kvd_list_continuations(client, NULL, &cursor, infos, KVD_MAX_LIST, &n, NULL) == KVD_OK, "list");
    for (uint32_t i = 0; i < n; i++) CHECK(kvd_release(client, infos[i].continuation, NULL) == KVD_OK, "release");
    if (in_cold || durable[A].tokens) CHECK(await(is_loaded, &found), "%u tokens are loaded", found.frontier);
    else CHECK(ask_cold(true, &found) || !gone, "load");
    cursor = n = 0;
    CHECK(kvd_list_continuations(client, NULL, &cursor, infos, KVD_MAX_LIST, &n, NULL) == KVD_OK, "list");
    CHECK(n == (found.continuation.bits != 0), "%u continuations of one load", n);
    for (uint32_t i = 0; i < n; i++) reproduce(&infos[i]);
    CHECK(kvd_audit(client, &audit, NULL) == KVD_OK && audit.violations == 0, "%s", audit.text);
    disconnect_all();
}

static void note_point(void) {
    char line[512];
    FILE *f = fopen(daemon_.log, "r");
    while (f && fgets(line, sizeof line, f))
        for (unsigned i = 0; i < COLD_POINTS; i++)
            met[i] += strstr(line, "dies at crash point") && strstr(line, cold_points[i]);
    if (f) fclose(f);
}

/* Killed at that point, 0: not at all. False: it did not come so far. */
static bool run_cold_to(unsigned at) {
    memset(durable, 0, sizeof durable);
    point = at;
    in_cold = whole = false;
    redisReply *reply = redis_ask(&engine, "FLUSHALL");
    if (reply) freeReplyObject(reply);
    if (launch_to(at) && connect_all()) cold_script();
    disconnect_all();
    bool came = !daemon_.pid || e2e_daemon_stop(&daemon_, SIGTERM) != 0;
    note_point();
    look_at_the_cold_tier();
    forget();
    return came;
}

static bool has_met_all(void) {
    unsigned n = 0;
    for (unsigned i = 0; i < COLD_POINTS; i++) n += met[i] > 0;
    return n == COLD_POINTS;
}

/* Two threads pass the points, so their numbers differ from run to run, and a point that is passed once may be left
 * out: then all of them come again. */
static void kill_at_all_points(void) {
    unsigned killed = 0, step = E2E_SLOW > 1 ? 3 : 1;
    for (unsigned pass = 0; pass < 6 && !has_met_all(); pass++)
        for (unsigned at = 1 + pass % step; run_cold_to(at); at += step) killed++;
    printf("    killed %u times\n", killed);
    for (unsigned i = 0; i < COLD_POINTS; i++)
        if (!KVT_TRUE(met[i] > 0)) printf("    never killed at %s\n", cold_points[i]);
}

static void cold_3_killed_at_every_point_of_the_cold_tier(void) {
    char more[512];
    struct e2e_setup cold = setup;
    KVT_NEED(redis_start(&engine));
    snprintf(more, sizeof more,
             "[host]\narena = 2MiB\nscrub = 0\n[limits]\ncontinuations = 64\nsessions = 8\n[cold]\naddress = unix:%s\n"
             "write = retained\nbuffer = 64KiB\ntimeout = 60s\nfind_time = 60s\nage = 1440min\n",
             engine.socket);
    cold.kv_heads = 2; /* so that a batch has one page of two objects */
    cold.head_dim = 64;
    cold.more = more;
    KVT_NEED(e2e_daemon_prepare(&daemon_, &cold));
    const char *only = getenv("KVD_CRASH_ONLY");
    KVT_TRUE(!run_cold_to(0) && whole);
    if (only) run_cold_to((unsigned)strtoul(only, NULL, 10));
    else kill_at_all_points();
    KVT_EQ(bad, 0);
    e2e_daemon_free(&daemon_);
    redis_free(&engine);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(every_point),
                                             KVT_CASE(one_part),
                                             KVT_CASE(keep_1_killed_while_it_is_laid_out_anew),
                                             KVT_CASE(cold_3_killed_at_every_point_of_the_cold_tier),
                                             { 0 } };
    return kvt_main("e2e crash", cases, argc, argv);
}
