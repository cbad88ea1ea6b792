/* SPDX-License-Identifier: Apache-2.0
 *
 * The storm: 64 clients, and at moments that the seed draws SIGKILL, SIGSTOP and fences for them, SIGSTOP, SIGKILL and
 * orderly stops for kvd, which comes back. Every client compares every byte that it is given; the audit holds at every
 * moment; afterwards each client still gets its work done, and everything is available again.
 *
 *     test_e2e_storm [-s SEED]       KVD_STORM_SECONDS: how long it blows, both cases together (20)
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"
#include "storm.h"

/* A sanitizer's processes are large and slow. */
#define CLIENTS (E2E_SLOW > 1 ? STORM_CLIENTS / 4 : STORM_CLIENTS)

struct member {
    pid_t pid;
    double stopped_until; /* 0: it runs */
    bool fenced;          /* its pages are quarantined as long as it lives */
};

static struct e2e_daemon daemon_;
static struct e2e_holder holder;
static struct storm_board *board;
static int board_fd;
static struct member members[STORM_CLIENTS];
static kvd_client *admin;
static uint64_t random_;

static struct { uint32_t killed, stopped, fenced, daemon_stopped, daemon_killed, daemon_replaced, audits; } done;

/* ---- clients ---------------------------------------------------------------------------------------- */

static bool start_member(uint32_t i) {
    char slot[16], seed[24];
    snprintf(slot, sizeof slot, "%u", i), snprintf(seed, sizeof seed, "%" PRIu64, kvt_random(&random_));
    atomic_store(&board->slot[i].session, 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(board_fd, STORM_BOARD_FD);
        for (int fd = STORM_BOARD_FD + 1; fd < 256; fd++) close(fd);
        execl(STORMER_BINARY, "e2e_stormer", daemon_.socket, slot, seed, (char *)NULL);
        _exit(127);
    }
    members[i] = (struct member){ .pid = pid > 0 ? pid : 0 };
    return pid > 0;
}

/* A member that could not be started has no process, and pid 0 is everybody. */
static void signal_member(uint32_t i, int signal) {
    if (members[i].pid > 0) kill(members[i].pid, signal);
}

static void kill_member(uint32_t i) {
    if (!members[i].pid) return;
    signal_member(i, SIGKILL);
    waitpid(members[i].pid, NULL, 0); /* nothing holds back SIGKILL */
    members[i] = (struct member){ 0 };
}

static void replace_member(uint32_t i) {
    kill_member(i);
    KVT_TRUE(start_member(i));
    done.killed++;
}

static void stop_member(uint32_t i) {
    if (members[i].stopped_until > 0) return;
    signal_member(i, SIGSTOP);
    members[i].stopped_until = e2e_now() + kvt_below(&random_, 500) * 1e-3;
    done.stopped++;
}

/* It may be in the middle of whatever it does, awake or not. */
static void fence_member(uint32_t i) {
    kvd_session_id session = { atomic_load(&board->slot[i].session) };
    if (!session.bits || kvd_fence(admin, session, NULL) != KVD_OK) return;
    if (members[i].stopped_until <= 0) members[i].stopped_until = e2e_now() + 0.2;
    members[i].fenced = true;
    done.fenced++;
}

/* Whose time has come goes on; who was fenced may try it for a moment before it dies. */
static void wake_members(double now) {
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct member *m = &members[i];
        if (m->stopped_until <= 0 || now < m->stopped_until) continue;
        signal_member(i, SIGCONT);
        if (m->fenced && now > m->stopped_until + 0.1) replace_member(i);
        if (!m->fenced) m->stopped_until = 0;
    }
}

static bool nobody_failed(void) {
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (atomic_load(&board->slot[i].failed)) {
            printf("    client %u: %s\n", i, board->slot[i].why);
            return false;
        }
    return true;
}

/* ---- kvd -------------------------------------------------------------------------------------------- */

static bool start_daemon(void) {
    if (!e2e_daemon_restart(&daemon_)) return false;
    admin = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "admin");
    return admin != NULL;
}

static bool replace_daemon(int signal) {
    kvd_disconnect(admin);
    admin = NULL;
    KVT_EQ_I(e2e_daemon_stop(&daemon_, signal), signal == SIGKILL ? -SIGKILL : 0);
    return start_daemon();
}

static void pause_storm(uint32_t ms) {
    struct pollfd nothing = { .fd = -1 };
    poll(&nothing, 0, (int)ms);
}

static void stop_daemon_for_a_while(void) {
    if (!KVT_TRUE(daemon_.pid > 0)) return;
    kill(daemon_.pid, SIGSTOP);
    pause_storm(kvt_below(&random_, 300));
    kill(daemon_.pid, SIGCONT);
    done.daemon_stopped++;
}

static void audit_now(void) {
    scene_audit(admin);
    done.audits++;
}

/* ---- the storm -------------------------------------------------------------------------------------- */

static bool strike(void) {
    uint32_t what = kvt_below(&random_, 100), whom = kvt_below(&random_, CLIENTS);
    if (what < 45) replace_member(whom);
    else if (what < 70) stop_member(whom);
    else if (what < 76) fence_member(whom);
    else if (what < 82) stop_daemon_for_a_while();
    else if (what < 86) return done.daemon_killed++, replace_daemon(SIGKILL);
    else if (what < 88) return done.daemon_replaced++, replace_daemon(SIGTERM);
    else audit_now();
    return true;
}

static bool rage(double seconds) {
    double end = e2e_now() + seconds;
    while (e2e_now() < end) {
        pause_storm(1 + kvt_below(&random_, 40));
        wake_members(e2e_now());
        if (!strike() || !KVT_TRUE(nobody_failed())) return false;
    }
    return true;
}

static uint64_t wanted_requests[STORM_CLIENTS];
static bool each_has_more(void *unused) {
    (void)unused;
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (atomic_load(&board->slot[i].requests) < wanted_requests[i]) return !nobody_failed();
    return true;
}

/* Everybody is awake, and gets something done. */
static bool calm_down(void) {
    for (uint32_t i = 0; i < CLIENTS; i++) {
        signal_member(i, SIGCONT);
        if (members[i].fenced) replace_member(i);
        wanted_requests[i] = atomic_load(&board->slot[i].requests) + 1;
    }
    if (!KVT_TRUE(e2e_until(each_has_more, NULL, 120, NULL))) {
        for (uint32_t i = 0; i < CLIENTS; i++)
            if (atomic_load(&board->slot[i].requests) < wanted_requests[i])
                printf("    client %u waits; its last call, %s: %s\n", i, board->slot[i].call,
                       kvd_status_name((enum kvd_status)atomic_load(&board->slot[i].status)));
        return false;
    }
    return KVT_TRUE(nobody_failed());
}

/* ---- afterwards ------------------------------------------------------------------------------------- */

static bool nothing_runs(void *unused) {
    struct kvd_stats s = scene_stats(admin);
    (void)unused;
    return s.sequences == 0 && s.sessions == 1 && s.former_drivers == 0 && s.moves == 0;
}

/* What is left over is what it is called, byte for byte. */
static uint32_t check_text(kvd_store *store, uint64_t text) {
    struct kvd_hit hit = scene_find(admin, text, STORM_LONGEST);
    struct kvd_activation want = scene_want(kvd_client_session(admin), hit.usable, 1);
    struct kvd_victim victims[64];
    struct kvd_finished finished;
    if (!hit.usable) return 0;
    want.from = hit.continuation, want.frontier = hit.usable, want.keep = true;
    KVT_EQ(kvd_choose_victims(admin, &want, victims, 64, NULL), KVD_OK);
    struct kvd_activated a = scene_activate(admin, &want);
    KVT_EQ(e2e_check_columns(store, 0, a.pool[0].row, text, 0, hit.usable), 0);
    struct kvd_finish how = { .sequence = a.sequence };
    KVT_EQ(kvd_finish(admin, &how, &finished, NULL), KVD_OK);
    return hit.usable;
}

static void release_everything(void) {
    struct kvd_continuation_info left[KVD_MAX_LIST];
    for (uint32_t n = 1; n;) {
        uint32_t cursor = 0;
        KVT_NEED(kvd_list_continuations(admin, NULL, &cursor, left, KVD_MAX_LIST, &n, NULL) == KVD_OK);
        for (uint32_t i = 0; i < n; i++) KVT_NEED(kvd_release(admin, left[i].continuation, NULL) == KVD_OK);
    }
}

static bool all_available(void *unused) {
    struct kvd_stats s = scene_stats(admin);
    const struct kvd_pool_stats *p = &s.pool[0];
    (void)unused;
    return p->available == p->capacity && p->rows_used == 0 && p->quarantined == 0 && s.membership_used == 0 &&
           s.continuations == 0 && s.host_occupied == 0;
}

static void look_at_what_is_left(void) {
    kvd_store *store = NULL;
    uint64_t columns = 0;
    for (uint32_t i = 0; i < CLIENTS; i++) kill_member(i);
    KVT_TRUE(e2e_until(nothing_runs, NULL, 60, NULL));
    audit_now();
    KVT_NEED(kvd_attach(admin, 0, NULL, &store, NULL) == KVD_OK);
    for (uint32_t i = 0; i < STORM_TEXTS; i++) columns += check_text(store, storm_text(i));
    kvd_detach(store);
    printf("  %" PRIu64 " columns are left and right\n", columns);
    KVT_TRUE(columns > 0);
    KVT_EQ(scene_stats(admin).damaged_replicas, 0);
    release_everything();
    KVT_TRUE(e2e_until(all_available, NULL, 60, NULL));
    audit_now();
}

static void report(void) {
    uint64_t requests = 0, hits = 0, compared = 0, losses = 0;
    for (uint32_t i = 0; i < STORM_CLIENTS; i++) {
        struct storm_slot *slot = &board->slot[i];
        requests += atomic_load(&slot->requests), hits += atomic_load(&slot->hits);
        compared += atomic_load(&slot->compared), losses += atomic_load(&slot->losses);
    }
    printf("  clients: %u killed, %u stopped, %u fenced; kvd: %u stopped, %u killed, %u replaced; %u audits\n",
           done.killed, done.stopped, done.fenced, done.daemon_stopped, done.daemon_killed, done.daemon_replaced,
           done.audits);
    printf("  %" PRIu64 " requests, %" PRIu64 " from a prefix, %" PRIu64 " columns compared, %" PRIu64
           " sessions lost\n",
           requests, hits, compared, losses);
    KVT_TRUE(requests > 0 && hits > 0);
}

static double storm_seconds(void) {
    const char *given = getenv("KVD_STORM_SECONDS");
    return (given ? strtod(given, NULL) : 20) / 2;
}

static bool open_board(void) {
    board_fd = memfd_create("storm", 0);
    if (board_fd < 0 || ftruncate(board_fd, sizeof *board)) return false;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
    return board != MAP_FAILED;
}

static void storm(const char *more, bool kept) {
    struct e2e_setup setup = { .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 16,
                               .max_context = 1024,
                               .max_concurrency = 16,
                               .capacity_tokens = 16384,
                               .more = more,
                               .holder = kept ? &holder : NULL };
    random_ = kvt_seed();
    memset(&done, 0, sizeof done);
    memset(&holder, 0, sizeof holder);
    KVT_NEED(open_board() && e2e_daemon_prepare(&daemon_, &setup) && start_daemon());
    for (uint32_t i = 0; i < CLIENTS; i++) KVT_NEED(start_member(i));
    if (rage(storm_seconds()) && calm_down()) look_at_what_is_left();
    for (uint32_t i = 0; i < CLIENTS; i++) kill_member(i);
    report();
    kvd_disconnect(admin);
    e2e_daemon_free(&daemon_);
    e2e_holder_free(&holder);
    munmap(board, sizeof *board);
    close(board_fd);
}

#define ARENA "[limits]\nsessions = 160\n[host]\narena = 1MiB\nstop_time = 2s\n"

/* SRV-2, SRV-5, SRV-6, SRV-8, CONT-3, PAGE-7, INV-1 to INV-17: what only the devices hold goes with kvd. */
static void srv_5_storm(void) { storm(ARENA, false); }
/* ROW-5, CONT-3, SRV-8: the pages outlive kvd, and so do processes that may still write into them. */
static void cont_3_storm_over_kept_pools(void) { storm("[devices]\nexport = vmm\n" ARENA, true); }

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_5_storm), KVT_CASE(cont_3_storm_over_kept_pools), { 0 } };
    return kvt_main("e2e storm", cases, argc, argv);
}
