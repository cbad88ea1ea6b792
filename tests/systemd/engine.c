/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of the boot test (check.sh): a scheduler and a worker in one process, over the installed library, which
 * cache prefixes and ask for them again. Every byte is compared, not only counts.
 *
 *     kvd_boot_engine SOCKET fill BASE N           N prefixes of streams BASE, BASE + 1, ... are computed and retained
 *     kvd_boot_engine SOCKET check BASE N PLACE    each is found and activated, its bytes are right; PLACE is where its
 *                                                  pages were: device, arena (every page restored), or none (not found)
 *     kvd_boot_engine SOCKET refused               an activation waits for who may still run on the device memory, and
 *                                                  kvd says so in words, which it prints
 *     kvd_boot_engine SOCKET stay BASE             one prefix and a running sequence; at SIGUSR1, when kvd is another
 * one, it learns so by its next call, attaches anew and has both again
 */
#include <signal.h>
#include <stdlib.h>

#include "e2e.h"

#define OUTPUT 16
#define RUNNING (2 * KVD_PAGE_TOKENS) /* tokens of the running sequence: whole pages, found without a tail's tokens */

static const char *socket_path;
static kvd_client *scheduler, *worker;
static kvd_store *store;
static struct kvd_error error;

static void say(const char *what, uint64_t number) {
    printf("%s %016llx\n", what, (unsigned long long)number);
    fflush(stdout);
}

static void need(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "engine: %s: %s\n", what, error.message);
    exit(1);
}

static void must(enum kvd_status status, const char *what) { need(status == KVD_OK, what); }

/* ---- sessions ---- */

static kvd_client *session(enum kvd_role role) {
    struct kvd_connect_options options = {
        .struct_size = sizeof options, .socket = socket_path, .role = role, .name = "engine", .timeout_ms = 5000
    };
    kvd_client *client = NULL;
    must(kvd_connect(&options, &client, &error), "connect");
    return client;
}

static void attach(void) {
    scheduler = session(KVD_ROLE_SCHEDULER);
    worker = session(KVD_ROLE_WORKER);
    must(kvd_attach(worker, 0, NULL, &store, &error), "attach");
}

static void detach(void) {
    kvd_detach(store);
    kvd_disconnect(worker);
    kvd_disconnect(scheduler);
}

/* ---- prefixes ---- */

static uint64_t stream(uint32_t base) { return e2e_stream(base, 0xFFFFFF, 0); }
static uint32_t length(uint32_t base) { return 150 + 97 * (base % 5); }
static uint32_t pages(uint32_t tokens) { return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS; }

static struct kvd_activated activate(struct kvd_activation want) {
    struct kvd_activated activated = { 0 };
    want.root = e2e_root();
    want.worker = kvd_client_session(worker);
    want.max_output_tokens = OUTPUT;
    want.ensure[0] = want.prompt_tokens;
    must(kvd_activate(scheduler, &want, &activated, &error), "activation");
    return activated;
}

static enum kvd_status commit(kvd_sequence sequence, uint32_t tokens) {
    struct kvd_round_item item = { .sequence = sequence, .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = tokens } };
    struct kvd_round_result result = { .status = KVD_UNKNOWN };
    enum kvd_status status = kvd_round(worker, &item, 1, &result, &error);
    return status == KVD_OK ? result.status : status;
}

static kvd_sequence compute(uint64_t seed, uint32_t tokens) {
    struct kvd_activated a = activate((struct kvd_activation){ .prompt_tokens = tokens });
    e2e_write_columns(store, 0, a.pool[0].row, seed, 0, tokens);
    must(commit(a.sequence, tokens), "commit");
    kvd_chain *chain = e2e_chain(seed, tokens);
    must(kvd_name_pages(scheduler, a.sequence, chain, 0, tokens / KVD_PAGE_TOKENS, &error), "naming");
    kvd_chain_free(chain);
    return a.sequence;
}

static void finish(kvd_sequence sequence, uint64_t seed, uint32_t tokens, bool retain) {
    struct kvd_finish how = { .sequence = sequence, .retain = retain };
    struct kvd_finished finished;
    if (retain) e2e_tail(seed, tokens, &how.tail);
    must(kvd_finish(scheduler, &how, &finished, &error), "finish");
}

static void fill(uint32_t base) { finish(compute(stream(base), length(base)), stream(base), length(base), true); }

static struct kvd_hit find(uint64_t seed, uint32_t tokens) {
    struct kvd_hit hit = { 0 };
    uint32_t prompt[2048], n = 0;
    need(tokens < 2048, "the prompt is too long");
    kvd_chain *chain = e2e_chain(seed, tokens + 1);
    e2e_tokens(seed, tokens + 1, prompt);
    must(kvd_find(scheduler, chain, prompt, tokens + 1, &hit, 1, &n, &error), "find");
    kvd_chain_free(chain);
    return hit;
}

static void check(uint64_t seed, uint32_t tokens, const char *place) {
    struct kvd_hit hit = find(seed, tokens);
    uint32_t usable = strcmp(place, "none") == 0 ? 0 : tokens;
    uint32_t restore = strcmp(place, "arena") == 0 ? pages(tokens) : 0;
    snprintf(error.message, sizeof error.message, "%u of %u tokens, %u pages to restore; expected: %s", hit.usable,
             tokens, hit.restore_pages, place);
    need(hit.usable == usable && hit.restore_pages == restore, "a prefix is not where it should be");
    if (!usable) return;
    struct kvd_activated a = activate((struct kvd_activation){
        .prompt_tokens = tokens + 1, .from = hit.continuation, .keep = true, .frontier = tokens });
    uint64_t wrong = e2e_check_columns(store, 0, a.pool[0].row, seed, 0, tokens);
    snprintf(error.message, sizeof error.message, "%llu wrong bytes", (unsigned long long)wrong);
    need(wrong == 0, "a prefix has not its bytes");
    finish(a.sequence, seed, tokens, false);
}

/* ---- what it is asked ---- */

static void refused(void) {
    struct kvd_activated activated;
    scheduler = session(KVD_ROLE_SCHEDULER);
    worker = session(KVD_ROLE_WORKER);
    struct kvd_activation want = {
        .root = e2e_root(), .worker = kvd_client_session(worker), .prompt_tokens = 9, .max_output_tokens = OUTPUT
    };
    need(kvd_activate(scheduler, &want, &activated, &error) == KVD_UNAVAILABLE, "an activation is not refused");
    puts(error.message);
    kvd_disconnect(worker);
    kvd_disconnect(scheduler);
}

/* Until it is killed. */
static void stay(uint32_t base) {
    sigset_t word;
    int got;
    sigemptyset(&word);
    sigaddset(&word, SIGUSR1);
    sigprocmask(SIG_BLOCK, &word, NULL);
    attach();
    fill(base);
    for (uint64_t epoch;;) {
        kvd_sequence running = compute(stream(base + 1), RUNNING);
        say("runs under", epoch = kvd_client_epoch(worker));
        sigwait(&word, &got);
        need(commit(running, RUNNING) == KVD_ABORTED, "it does not learn that kvd is another one");
        detach();
        attach();
        need(kvd_client_epoch(worker) != epoch, "it attached to the same kvd");
        check(stream(base), length(base), "device");
        check(stream(base + 1), RUNNING, "device"); /* what was committed of the sequence that ran */
        say("attached anew under", kvd_client_epoch(worker));
    }
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[2] : "";
    uint32_t base = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    uint32_t end = argc > 4 ? base + (uint32_t)strtoul(argv[4], NULL, 10) : base;
    bool fills = strcmp(what, "fill") == 0 && argc == 5;
    socket_path = argv[1];
    if (strcmp(what, "refused") == 0) {
        refused();
    } else if (strcmp(what, "stay") == 0 && argc == 4) {
        stay(base);
    } else {
        need(fills || (strcmp(what, "check") == 0 && argc == 6), "it is asked for something that it does not know");
        attach();
        for (uint32_t i = base; i < end; i++) {
            if (fills) fill(i);
            else check(stream(i), length(i), argv[5]);
        }
        detach();
    }
    return 0;
}
