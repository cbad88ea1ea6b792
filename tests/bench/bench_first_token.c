/* SPDX-License-Identifier: Apache-2.0
 *
 * The first token after a hit, in the demo's engine: the time from the scheduler's Activate until the worker's first
 * token is here, where the prefix is on the device, and where it is in the host arena alone and comes back first. This
 * program is the scheduler, over the demo's wire; kvd and demo_worker are the built ones beside it. A prompt is
 * computed once, with a checkpoint one token before its end; then it is asked again and again from that checkpoint.
 * Every answer must be the undisturbed one, and the places of the checkpoint's pages are looked at before each
 * Activate. CONT-3, PAGE-7.
 *
 * Exit codes: 0 fine, 1 usage, 2 could not run, 4 a wrong token or a page in a wrong place.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "demo_process.h"
#include "engine.h"
#include "kvd.h"
#include "text.h"
#include "wire.h"

#define ANSWER 96 /* tokens that are compared; the first is timed */
#define MAX_HITS 1000
#define SILENCE_MS 60000 /* no message of the worker for so long: something hangs */
#define STOP_MS 10000
#define WRONG 4

struct bench {
    const char *device, *document, *profile;
    char bin[256]; /* folder of this program */
    char dir[64], socket[96], scheduler[96], config[96], arena[96];
    uint32_t hits, prefix;           /* tokens of the checkpoint; the prompt has one more */
    uint32_t tokens[ENGINE_CONTEXT]; /* the prompt, for chains */
    uint8_t answer[ANSWER];          /* undisturbed */
    int signals, listener, worker_fd;
    struct process kvd, worker;
    kvd_client *client;
    kvd_session_id worker_session;
    kvd_continuation kept;
    struct wire_message message; /* scratch */
};

struct times {
    double activate_ms, first_ms;
};

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int refused(const char *what, const struct kvd_error *error) {
    fprintf(stderr, "bench_first_token: %s: %s: %s\n", what, kvd_status_name(error->status), error->message);
    return 2;
}

/* ---- processes ---- */

static int configure(const struct bench *b) {
    FILE *f = fopen(b->config, "we");
    if (!f) return perror("bench_first_token: the configuration"), 2;
    uint32_t context = (b->prefix + 1 + ANSWER + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
    fprintf(f,
            "[kvd]\nsocket = %s\nstore = first-token\n[devices]\ndevice.0 = %s\nmemory = 1GiB\n[model]\nlayers = "
            "%d\nkv_heads = %d\nhead_dim = %d\n",
            b->socket, b->device, MODEL_LAYERS, MODEL_KV_HEADS, MODEL_HEAD_DIM);
    fprintf(f,
            "profile = %s\nmax_context = %u\nmax_concurrency = 4\n[capacity]\ntokens = %u\n[host]\narena = "
            "256MiB\nscrub = 0\n",
            b->profile, context, 3 * context);
    return fclose(f) == 0 ? 0 : 2;
}

/* Until the worker's socket has something. The worker's end is an end of its socket. */
static int wait_for(struct bench *b, int fd) {
    struct pollfd fds[3] = { { .fd = fd, .events = POLLIN },
                             { .fd = b->signals, .events = POLLIN },
                             { .fd = b->worker.pidfd, .events = POLLIN } };
    int n;
    while ((n = poll(fds, 3, SILENCE_MS)) < 0 && errno == EINTR) {
    }
    if (fds[0].revents) return 0;
    fprintf(stderr, "bench_first_token: %s\n",
            fds[1].revents ? "stopped"
            : n == 0       ? "the worker says nothing"
                           : "the worker has ended");
    return 2;
}

static int hear(struct bench *b) {
    int r = wait_for(b, b->worker_fd);
    if (r == 0 && wire_receive(b->worker_fd, true, &b->message) != 1) {
        fprintf(stderr, "bench_first_token: the worker has ended or says what it never should\n");
        r = 2;
    }
    return r;
}

static int say(struct bench *b, uint32_t type) {
    b->message.type = type;
    b->message.n_tokens = 0;
    if (wire_send(b->worker_fd, &b->message) == 0) return 0;
    fprintf(stderr, "bench_first_token: the worker has ended\n");
    return 2;
}

static int start_worker(struct bench *b) {
    char path[320], log[96];
    snprintf(path, sizeof path, "%s/../../client/demo/demo_worker", b->bin);
    snprintf(log, sizeof log, "%s/worker.log", b->dir);
    const char *const argv[] = {
        path, "--kvd", b->socket, "--scheduler", b->scheduler, "--document", b->document, NULL
    };
    const struct process_spec spec = { .name = "worker", .log = log, .argv = argv, .listener = -1 };
    if ((b->listener = wire_listen(b->scheduler)) < 0)
        return fprintf(stderr, "bench_first_token: cannot listen at %s\n", b->scheduler), 2;
    if (process_start(&spec, &b->worker) != 0 || wait_for(b, b->listener) != 0) return 2;
    b->worker_fd = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC);
    int r = b->worker_fd >= 0 ? hear(b) : 2;
    if (r != 0) return r;
    b->worker_session.bits = b->message.session;
    b->message.session = kvd_client_session(b->client).bits;
    return say(b, WIRE_WELCOME);
}

static int start(struct bench *b) {
    const struct kvd_connect_options options = { .struct_size = sizeof options,
                                                 .socket = b->socket,
                                                 .role = KVD_ROLE_SCHEDULER,
                                                 .name = "first-token",
                                                 .timeout_ms = 20000 };
    struct kvd_error error;
    char program[320];
    snprintf(program, sizeof program, "%s/../../kvd/kvd", b->bin);
    if (configure(b) != 0 || process_start_kvd(program, b->config, b->dir, &b->kvd) != 0) return 2;
    process_arena(&b->kvd, b->arena, sizeof b->arena);
    if (kvd_connect(&options, &b->client, &error) != KVD_OK) return refused("connect", &error);
    return start_worker(b);
}

static void show_log(const struct bench *b, const char *name) {
    char path[128], line[512];
    snprintf(path, sizeof path, "%s/%s.log", b->dir, name);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) fprintf(stderr, "    %s: %s", name, line);
    if (f) fclose(f);
}

/* Ends what runs; r: what there was so far, or that the end was not in order. */
static int stop(struct bench *b, int r) {
    kvd_disconnect(b->client);
    process_signal(&b->worker, SIGTERM);
    if (process_wait(&b->worker, STOP_MS) != 0 && r == 0) r = 2;
    process_kill(&b->worker);
    process_signal(&b->kvd, SIGTERM);
    if (process_wait(&b->kvd, STOP_MS) != 0 && r == 0) r = 2;
    process_kill(&b->kvd);
    if (b->worker_fd >= 0) close(b->worker_fd);
    if (b->listener >= 0) close(b->listener);
    if (b->arena[0]) (void)unlink(b->arena);
    if (r != 0) {
        show_log(b, "kvd");
        show_log(b, "worker");
    }
    return r;
}

/* ---- one answer ---- */

static kvd_chain *chain_of(const struct bench *b, uint32_t n) {
    static const struct kvd_domain domain = { .model = MODEL_NAME, .tenant = "bench" };
    kvd_chain *chain = NULL;
    if (kvd_chain_new(&domain, &chain) == KVD_OK && kvd_chain_push(chain, b->tokens, n) == KVD_OK) return chain;
    kvd_chain_free(chain);
    fprintf(stderr, "bench_first_token: not enough memory for a chain\n");
    return NULL;
}

static struct kvd_root bench_root(const struct bench *b) {
    kvd_chain *chain = chain_of(b, 0);
    struct kvd_root root = chain ? *kvd_chain_root(chain) : (struct kvd_root){ .label = "" };
    kvd_chain_free(chain);
    return root;
}

/* The prefix stands complete and the worker waits: it becomes the continuation that all hits fork. */
static int checkpoint(struct bench *b, kvd_sequence sequence) {
    struct kvd_checkpoint what = { .sequence = sequence };
    struct kvd_checkpointed done;
    struct kvd_error error;
    kvd_chain *chain = chain_of(b, b->prefix);
    if (!chain) return 2;
    kvd_chain_tail(chain, &what.tail);
    enum kvd_status status = kvd_name_pages(b->client, sequence, chain, 0, (uint32_t)kvd_chain_pages(chain), &error);
    kvd_chain_free(chain);
    if (status == KVD_OK) status = kvd_checkpoint(b->client, &what, &done, &error);
    if (status != KVD_OK) return refused("checkpoint", &error);
    b->kept = done.continuation;
    return say(b, WIRE_CONTINUE);
}

static int start_sequence(struct bench *b, const struct kvd_activation *want, const struct kvd_activated *a) {
    struct wire_message *m = &b->message;
    memset(m, 0, offsetof(struct wire_message, tokens));
    *m = (struct wire_message){ .type = WIRE_START,
                                .sequence = a->sequence.bits,
                                .n_pools = a->n_pools,
                                .frontier = want->frontier,
                                .budget = want->max_output_tokens,
                                .hold_at = want->from.bits ? 0 : b->prefix,
                                .n_tokens = want->prompt_tokens };
    m->row[0] = a->pool[0].row;
    m->mapped[0] = a->pool[0].membership * KVD_PAGE_TOKENS;
    for (uint32_t i = 0; i < want->prompt_tokens; i++) m->tokens[i] = (uint8_t)b->tokens[i];
    if (wire_send(b->worker_fd, m) == 0) return 0;
    fprintf(stderr, "bench_first_token: the worker has ended\n");
    return 2;
}

/* Hears the worker until it is done. ret_answer: ANSWER tokens; *ret_first: when the first of them came. */
static int hear_answer(struct bench *b, kvd_sequence sequence, bool root, uint8_t *ret_answer, double *ret_first) {
    const struct wire_message *m = &b->message;
    for (uint32_t n = 0;;) {
        int r = hear(b);
        if (r == 0 && m->type == WIRE_TOKENS && m->first == b->prefix + 1 + n && m->n_tokens <= ANSWER - n) {
            if (n == 0) *ret_first = now_ms();
            memcpy(ret_answer + n, m->tokens, m->n_tokens);
            n += m->n_tokens;
        } else if (r == 0 && m->type == WIRE_COMMITTED) {
            if (root && m->held && !b->kept.bits) r = checkpoint(b, sequence);
        } else if (r == 0 && m->type == WIRE_DONE && n == ANSWER) {
            return 0;
        } else if (r == 0) {
            fprintf(stderr, "bench_first_token: the worker sent message %u after %u tokens: %.*s\n", m->type, n,
                    m->type == WIRE_FAILED ? (int)m->n_tokens : 0, (const char *)m->tokens);
            r = 2;
        }
        if (r != 0) return r;
    }
}

/* The prompt once, from its first token or from the checkpoint. *ret_restored: pages that came from the host. */
static int run_prompt(struct bench *b, bool root, uint8_t *ret_answer, struct times *ret_times,
                      uint32_t *ret_restored) {
    struct kvd_activation want = {
        .root = bench_root(b), .worker = b->worker_session, .prompt_tokens = b->prefix + 1, .max_output_tokens = ANSWER
    };
    struct kvd_activated a;
    struct kvd_finished finished;
    struct kvd_error error;
    want.ensure[0] = want.prompt_tokens + ANSWER - 1;
    if (!root) {
        want.from = b->kept;
        want.keep = true;
        want.frontier = b->prefix;
    }
    double begin = now_ms(), first = 0;
    if (kvd_activate(b->client, &want, &a, &error) != KVD_OK) return refused("activate", &error);
    double active = now_ms();
    int r = start_sequence(b, &want, &a);
    if (r == 0) r = hear_answer(b, a.sequence, root, ret_answer, &first);
    if (r != 0) return r;
    if (kvd_finish(b->client, &(struct kvd_finish){ .sequence = a.sequence }, &finished, &error) != KVD_OK)
        return refused("finish", &error);
    *ret_times = (struct times){ active - begin, first - begin };
    *ret_restored = a.restored[0];
    return say(b, WIRE_FINISHED);
}

/* ---- hits ---- */

static int check_places(const struct bench *b, bool host) {
    static struct kvd_continuation_info infos[KVD_MAX_LIST];
    const uint32_t pages = (b->prefix + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    struct kvd_error error;
    uint32_t cursor = 0, n = 0;
    while (cursor != KVD_UNCHANGED) {
        if (kvd_list_continuations(b->client, NULL, &cursor, infos, KVD_MAX_LIST, &n, &error) != KVD_OK)
            return refused("list", &error);
        for (uint32_t i = 0; i < n; i++) {
            const struct kvd_continuation_info *c = &infos[i];
            if (c->continuation.bits != b->kept.bits) continue;
            if (c->device_pages[0] == (host ? 0 : pages) && c->host_pages[0] == (host ? pages : 0)) return 0;
            fprintf(stderr,
                    "bench_first_token: of %u pages %u are on the device and %u in the host, where all should be in "
                    "the %s\n",
                    pages, c->device_pages[0], c->host_pages[0], host ? "host" : "device");
            return WRONG;
        }
    }
    fprintf(stderr, "bench_first_token: the continuation is gone\n");
    return WRONG;
}

static int check_answer(const struct bench *b, const uint8_t *answer, uint32_t restored, bool host) {
    const uint32_t pages = (b->prefix + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    for (uint32_t i = 0; i < ANSWER; i++)
        if (answer[i] != b->answer[i]) {
            fprintf(stderr, "bench_first_token: %s, %s hit: token %u of the answer is %u, the undisturbed one is %u\n",
                    b->profile, host ? "host" : "device", i, answer[i], b->answer[i]);
            return WRONG;
        }
    if (restored == (host ? pages : 0)) return 0;
    fprintf(stderr, "bench_first_token: %u pages came from the host, not %u\n", restored, host ? pages : 0);
    return WRONG;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Medians over the hits of one kind. */
static int run_hits(struct bench *b, bool host, struct times *ret_medians) {
    double activate[MAX_HITS], first[MAX_HITS];
    uint8_t answer[ANSWER];
    struct times times;
    struct kvd_error error;
    uint32_t restored = 0;
    for (uint32_t i = 0; i < b->hits; i++) {
        if (host && kvd_demote(b->client, b->kept, false, NULL, &error) != KVD_OK) return refused("demote", &error);
        int r = check_places(b, host);
        if (r == 0) r = run_prompt(b, false, answer, &times, &restored);
        if (r == 0) r = check_answer(b, answer, restored, host);
        if (r != 0) return r;
        activate[i] = times.activate_ms;
        first[i] = times.first_ms;
    }
    *ret_medians = (struct times){ median(activate, b->hits), median(first, b->hits) };
    return 0;
}

static int run_profile(struct bench *b) {
    struct times root, device, host;
    uint32_t restored;
    b->kvd = b->worker = (struct process){ .pidfd = -1 };
    b->client = NULL;
    b->kept.bits = 0;
    b->listener = b->worker_fd = -1;
    b->arena[0] = '\0';
    int r = start(b);
    if (r == 0) r = run_prompt(b, true, b->answer, &root, &restored);
    if (r == 0) r = run_hits(b, false, &device);
    if (r == 0) r = run_hits(b, true, &host);
    if (r == 0) {
        const char *p = b->profile;
        printf("BENCH first_token.%s.computed_ms %.3f ms\n", p, root.first_ms);
        printf("BENCH first_token.%s.device_ms %.3f ms\nBENCH first_token.%s.host_ms %.3f ms\n", p, device.first_ms, p,
               host.first_ms);
        printf("BENCH first_token.%s.ratio %.3f x\n", p, host.first_ms / device.first_ms);
        printf("BENCH first_token.%s.device_activate_ms %.3f ms\nBENCH first_token.%s.host_activate_ms %.3f ms\n", p,
               device.activate_ms, p, host.activate_ms);
        fflush(stdout);
    }
    return stop(b, r);
}

/* ---- options ---- */

static int read_prompt(struct bench *b) {
    char err[256];
    uint8_t *text = NULL;
    size_t n = 0;
    if (text_load(b->document, &text, &n, err, sizeof err) != 0)
        return fprintf(stderr, "bench_first_token: %s\n", err), 2;
    for (uint32_t i = 0; n > 0 && i < b->prefix + 1; i++) b->tokens[i] = text[i % n];
    free(text);
    return n > 0 ? 0 : (fprintf(stderr, "bench_first_token: the document %s is empty\n", b->document), 2);
}

static int make_places(struct bench *b) {
    ssize_t n = readlink("/proc/self/exe", b->bin, sizeof b->bin - 1);
    b->bin[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(b->bin, '/');
    if (slash) *slash = '\0';
    snprintf(b->dir, sizeof b->dir, "/tmp/kvd-first-token.XXXXXX");
    if (!mkdtemp(b->dir)) return perror("bench_first_token: a folder in /tmp"), 2;
    snprintf(b->socket, sizeof b->socket, "%s/kvd.sock", b->dir);
    snprintf(b->scheduler, sizeof b->scheduler, "%s/scheduler.sock", b->dir);
    snprintf(b->config, sizeof b->config, "%s/kvd.conf", b->dir);
    return 0;
}

static void remove_places(const struct bench *b) {
    static const char *const names[] = { "kvd.sock", "kvd.sock.lock", "scheduler.sock", "kvd.conf",
                                         "kvd.log",  "worker.log",    "notify" };
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", b->dir, names[i]);
        (void)unlink(path);
    }
    if (rmdir(b->dir) != 0) fprintf(stderr, "bench_first_token: %s stays: %s\n", b->dir, strerror(errno));
}

static int block_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

static const char usage[] =
    "Usage: bench_first_token [--device D] [--tokens N] [--hits N] [--profile P]... [--document FILE]\n"
    "  --device D       host:0 (default; slow) or cuda:N\n"
    "  --tokens N       of the prefix that is hit (default 10000)\n"
    "  --hits N         of each kind, 1 to 1000 (default 10)\n"
    "  --profile P      default bf16, int8, nvfp4\n"
    "  --document FILE  the text that the prompt repeats (default /usr/share/common-licenses/GPL-3)\n";

int main(int argc, char **argv) {
    static const struct option options[] = { { "device", required_argument, NULL, 'd' },
                                             { "tokens", required_argument, NULL, 't' },
                                             { "hits", required_argument, NULL, 'n' },
                                             { "profile", required_argument, NULL, 'p' },
                                             { "document", required_argument, NULL, 'f' },
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    static struct bench b = { .device = "host:0", .document = "/usr/share/common-licenses/GPL-3" };
    const char *profiles[8] = { "bf16", "int8", "nvfp4" };
    uint32_t named = 0, n_profiles = 3;
    unsigned long tokens = 10000, hits = 10;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'd') b.device = optarg;
        else if (o == 't') tokens = strtoul(optarg, NULL, 10);
        else if (o == 'n') hits = strtoul(optarg, NULL, 10);
        else if (o == 'f') b.document = optarg;
        else if (o == 'p' && named < 8) n_profiles = named + 1, profiles[named++] = optarg;
        else return fputs(usage, o == 'h' ? stdout : stderr), o == 'h' ? 0 : 1;
    }
    if (optind != argc || tokens < 1 || tokens > ENGINE_CONTEXT - ANSWER - 1 - KVD_PAGE_TOKENS || hits < 1 ||
        hits > MAX_HITS)
        return fputs(usage, stderr), 1;
    b.prefix = (uint32_t)tokens;
    b.hits = (uint32_t)hits;
    b.signals = block_signals();
    int r = b.signals < 0 ? 2 : read_prompt(&b);
    if (r == 0) r = make_places(&b);
    if (r != 0) return r;
    for (uint32_t i = 0; r == 0 && i < n_profiles; i++) {
        b.profile = profiles[i];
        r = run_profile(&b);
    }
    remove_places(&b);
    return r;
}
