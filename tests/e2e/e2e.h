/* SPDX-License-Identifier: Apache-2.0
 *
 * End-to-end support: a real kvd in a directory of its own, and puppets: separate processes that speak libkvd on
 * command, so that a test can kill, stop and abandon them at exact points.
 *
 * Nothing here sleeps to synchronise: the daemon's readiness comes by its NOTIFY_SOCKET datagram, a puppet's by its
 * answer; conditions that another process brings about are polled through the protocol until a deadline (e2e_until).
 */
#ifndef KVD_E2E_H
#define KVD_E2E_H

#include <sys/types.h>

#include "kvd.h"
#include "kvt.h"

/* ---- a stand-in for systemd's store of descriptors: FDSTORE, FDSTOREREMOVE, BARRIER of sd_notify(3) ---- */

struct e2e_holder {
    uint32_t n;
    struct {
        char name[96];
        int fd;
    } item[64];
};
/* One datagram with at most one descriptor. */
void e2e_holder_take(struct e2e_holder *holder, const char *text, int fd);
/* In the child, before exec: descriptors from 3 on, and the variables that say so. */
void e2e_holder_give(const struct e2e_holder *holder);
void e2e_holder_free(struct e2e_holder *holder);

/* ---- daemon ------------------------------------------------------------------------------- */

struct e2e_daemon {
    pid_t pid;    /* 0: not running */
    char dir[96]; /* temporary; removed by e2e_daemon_free */
    char socket[128];
    char config[128];
    char log[128];
    const char *binary; /* of another build; NULL: the kvd under test */
    struct e2e_holder
        *holder; /* keeps its descriptors from one start to the next, as systemd does; NULL: nobody does */
    bool apart;  /* a user of its own, in whose /proc others' processes are hidden, as the unit has it */
};

/* What differs between tests; everything else has small defaults (BF16, 2 layers, 2 kv heads, D 64). 0 / NULL =
 * default. */
#define E2E_AUTO UINT32_MAX /* capacity_tokens: what the device allows */
struct e2e_setup {
    const char *device;  /* "host" or "cuda": ranks are :0, :1, ... */
    const char *profile; /* "bf16" */
    uint32_t layers, kv_heads, head_dim;
    bool groups;       /* the layer groups in `more` say the layers */
    const char *model; /* NULL: the fields say it; else sections with devices, model and pools */
    uint32_t max_context, max_concurrency, capacity_tokens;
    const char *backend; /* "off", "mtp" */
    uint32_t draft_window, ranks, map_ahead;
    bool lease_growth;
    uint32_t lease_window;
    const char *more;          /* lines appended to the configuration */
    struct e2e_holder *holder; /* NULL: nobody keeps descriptors */
    bool apart;                /* takes e2e_can_be_apart */
};

/* Root can, where mounting is allowed; else it says why not. */
bool e2e_can_be_apart(void);
/* Writes the configuration and starts kvd; true when it said READY. On failure prints its log. */
bool e2e_daemon_start(struct e2e_daemon *daemon, const struct e2e_setup *setup);
/* Writes the configuration and starts nothing. */
bool e2e_daemon_prepare(struct e2e_daemon *daemon, const struct e2e_setup *setup);
/* Another configuration for the next start, of the same directory and socket. */
bool e2e_daemon_configure(struct e2e_daemon *daemon, const struct e2e_setup *setup);
/* Starts it again on the same directory and configuration. launch: it may fail, which is recorded nowhere. */
bool e2e_daemon_restart(struct e2e_daemon *daemon);
bool e2e_daemon_launch(struct e2e_daemon *daemon);
/* Runs the kvd binary with the configuration to its end (no readiness): exit status, output into text. One that does
 * not end within a minute fails the test. */
int e2e_daemon_try(struct e2e_daemon *daemon, char *text, size_t bytes);
/* SIGTERM and wait: exit status; SIGKILL: -SIGKILL. One that does not end within a minute fails the test and is told to
 * abort. */
int e2e_daemon_stop(struct e2e_daemon *daemon, int signal);
int e2e_daemon_wait(struct e2e_daemon *daemon); /* without a signal */
/* Stops if needed, checks that nothing is left (shared memory, socket), removes the directory. */
void e2e_daemon_free(struct e2e_daemon *daemon);
/* The arena's file in /dev/shm; it outlives the daemon, e2e_daemon_free removes it. */
void e2e_arena_path(const struct e2e_daemon *daemon, char *path, size_t bytes);
/* Flips a bit of byte `at` of an arena of `capacity` bytes (kvd_stats.host_capacity). */
bool e2e_arena_flip(const struct e2e_daemon *daemon, uint64_t capacity, uint64_t at);
/* Of the daemon's process. */
unsigned e2e_fd_count(pid_t pid);
uint64_t e2e_rss_bytes(pid_t pid);                       /* anonymous: without the pools' shared memory */
unsigned e2e_shm_count(const struct e2e_daemon *daemon); /* shared-memory objects of this instance */

kvd_client *e2e_connect(const struct e2e_daemon *daemon, enum kvd_role role, const char *name);
/* Stats checked for equality of what must return to where it was: pages, rows, sequences, sessions. */
bool e2e_same_resources(const struct kvd_stats *a, const struct kvd_stats *b);

/* Polls check() until true or until seconds have passed. Returns the last answer; elapsed_ms may be NULL. */
bool e2e_until(bool (*check)(void *), void *argument, double seconds, double *ret_elapsed_ms);
double e2e_now(void); /* seconds, CLOCK_MONOTONIC */

/* 1, or more where a sanitizer slows everything: multiply time bounds and divide loop counts. */
#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
#define E2E_SLOW 10
#else
#define E2E_SLOW 1
#endif

/* ---- puppets ------------------------------------------------------------------------------- */

enum puppet_op {
    PUPPET_CONNECT = 1, /* role, rank, name, timeout_ms -> session */
    PUPPET_ATTACH,      /* rank */
    PUPPET_DETACH,      /* and disconnects */
    PUPPET_ACTIVATE,
    PUPPET_PLAN,
    PUPPET_ROUND,
    PUPPET_CHECKPOINT,
    PUPPET_FINISH,
    PUPPET_RELEASE,
    PUPPET_YIELD,
    PUPPET_NAME,        /* tokens [0, n) of stream `seed` as the chain; names full pages [first, n/64) */
    PUPPET_FIND,        /* chain of stream `seed`, n tokens */
    PUPPET_WRITE,       /* writes the bytes of columns [from, to) of `seed`'s content into `row` of pool */
    PUPPET_CHECK,       /* compares them: status OK or DATA_LOSS */
    PUPPET_STATE_WRITE, /* writes the image of `seed` at frontier n into state slot `row` */
    PUPPET_STATE_CHECK, /* compares: status OK or DATA_LOSS */
    PUPPET_STATE_COPY,  /* slot `from` to slot `to`, as a fork's worker does */
    PUPPET_STATS,
    PUPPET_SUBSCRIBE,
    PUPPET_EVENT,
    PUPPET_RECONNECT,
    PUPPET_DISCONNECT,
    PUPPET_BECOME, /* another user: uid `from`, gid `to`, supplementary group `n` if not 0; before it connects */
    PUPPET_DEMOTE, /* continuation; n: keep_device -> moved */
    PUPPET_PREFETCH,
    PUPPET_DROP /* continuation; n: tier */,
    PUPPET_DECODE /* frontier: from its commit to token `to` of `seed`, by kvd_advance alone -> frontier */,
    PUPPET_FORK /* forks; the child tries Stats, Round and disconnect on the parent's client: its status */
};

struct puppet_call {
    enum puppet_op op;
    uint32_t role, rank, timeout_ms, pool, row, from, to, n, first, mask;
    uint64_t seed;
    char socket[128], name[KVD_NAME_BYTES];
    struct kvd_activation activation;
    struct kvd_round_item items[4];
    struct kvd_checkpoint checkpoint;
    struct kvd_finish finish;
    kvd_continuation continuation;
    kvd_sequence sequence;
    struct kvd_frontier frontier;
};
struct puppet_answer {
    enum kvd_status status;
    char message[KVD_MESSAGE_BYTES];
    kvd_session_id session;
    uint64_t epoch;
    struct kvd_activated activated;
    struct kvd_plan plan;
    struct kvd_round_result results[4];
    struct kvd_checkpointed checkpointed;
    struct kvd_finished finished;
    struct kvd_hit hits[8];
    struct kvd_stats stats;
    struct kvd_event event;
    struct kvd_moved moved;
    struct kvd_frontier frontier;
    uint32_t n;
};

struct puppet {
    pid_t pid;
    int fd;
};

bool puppet_start(struct puppet *puppet);
/* One call, one answer. false when the puppet died. */
bool puppet_do(struct puppet *puppet, const struct puppet_call *call, struct puppet_answer *ret_answer);
/* The halves, for calls that hang on purpose. receive waits up to seconds. */
bool puppet_send(struct puppet *puppet, const struct puppet_call *call);
bool puppet_receive(struct puppet *puppet, struct puppet_answer *ret_answer, double seconds);
/* SIGKILL and reap. */
void puppet_kill(struct puppet *puppet);

/* Conveniences: they check that the call succeeded (a failed check is recorded) and return the interesting part. */
kvd_session_id puppet_connect(struct puppet *puppet, const struct e2e_daemon *daemon, enum kvd_role role,
                              uint32_t rank);
bool puppet_attach(struct puppet *puppet, uint32_t rank);

/* ---- content --------------------------------------------------------------------------------- */

/* Token i of a stream: infinite and deterministic. */
uint32_t e2e_token(uint64_t seed, uint32_t i);
/* A stream that equals `base` up to token `fork` and differs from there. */
uint64_t e2e_stream(uint32_t base, uint32_t fork, uint16_t branch);
/* Pushes tokens [0, n) of the stream on a new chain. */
kvd_chain *e2e_chain(uint64_t seed, uint32_t n);
struct kvd_root e2e_root(void); /* of those chains */
void e2e_tokens(uint64_t seed, uint32_t n, uint32_t *ret_tokens);
void e2e_tail(uint64_t seed, uint32_t n, struct kvd_tail *ret_tail);
/* The KV bytes of a position depend on every token up to it, so that wrong sharing shows. Writes or compares columns
 * [from, to) of one row in all layers and planes of a pool. check: number of wrong bytes. */
void e2e_write_columns(const kvd_store *store, uint32_t pool, uint32_t row, uint64_t seed, uint32_t from, uint32_t to);
uint64_t e2e_check_columns(const kvd_store *store, uint32_t pool, uint32_t row, uint64_t seed, uint32_t from,
                           uint32_t to);
/* The state image of a stream at a frontier differs in every rank. check: number of wrong bytes in *ret_wrong. */
enum kvd_status e2e_write_state(const kvd_store *store, uint32_t rank, uint32_t slot, uint64_t seed, uint32_t frontier,
                                struct kvd_error *error);
enum kvd_status e2e_check_state(const kvd_store *store, uint32_t rank, uint32_t slot, uint64_t seed, uint32_t frontier,
                                uint64_t *ret_wrong, struct kvd_error *error);

#endif
