/* SPDX-License-Identifier: Apache-2.0
 * Device pools that outlive the daemon (export = vmm): descriptors in a holder, as systemd's store; the next kvd has
 * every device page, and waits for the processes that may still run on them. CONT-3, SRV-8, ROW-5, SRV-5. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "scene.h"

#define VMM "[devices]\nexport = vmm\n"
#define ARENA "[host]\narena = 8MiB\nscrub = 0\n"

static struct e2e_daemon daemon_;
static struct e2e_holder holder;
static kvd_client *scheduler;
static struct puppet worker;
static kvd_session_id worker_session;

static bool connect_worker(void) {
    if (!puppet_start(&worker)) return false;
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(&worker, 0);
}

static bool open_stage(const struct e2e_setup *setup) {
    memset(&holder, 0, sizeof holder);
    struct e2e_setup held = *setup;
    held.holder = &holder;
    if (!e2e_daemon_start(&daemon_, &held)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    return scheduler && connect_worker();
}

static void close_stage(void) {
    puppet_kill(&worker);
    kvd_disconnect(scheduler);
    scheduler = NULL;
    e2e_daemon_free(&daemon_);
    e2e_holder_free(&holder);
}

/* kvd goes and another one takes over; the worker lives on. */
static bool replace(int signal) {
    kvd_disconnect(scheduler);
    scheduler = NULL;
    KVT_EQ_I(e2e_daemon_stop(&daemon_, signal), signal == SIGKILL ? -SIGKILL : 0);
    if (!e2e_daemon_restart(&daemon_)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    return scheduler != NULL;
}

static kvd_continuation retained(uint64_t seed, uint32_t n) {
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, seed, n, 16);
    return scene_retain(scheduler, a.sequence, seed, n);
}

static struct kvd_activation fork_of(uint64_t seed, uint32_t n) {
    struct kvd_hit hit = scene_find(scheduler, seed, n + 1);
    struct kvd_activation want = scene_want(worker_session, n + 1, 16);
    KVT_EQ(hit.usable, n);
    KVT_EQ(hit.restore_pages, 0); /* on the device, where it was */
    want.from = hit.continuation;
    want.frontier = n;
    want.keep = true;
    return want;
}

static void reproduce(uint64_t seed, uint32_t n) {
    struct kvd_activation want = fork_of(seed, n);
    struct kvd_finished finished;
    if (!want.from.bits) return;
    struct kvd_activated a = scene_activate(scheduler, &want);
    scene_check(&worker, a.pool[0].row, seed, 0, n);
    struct kvd_finish how = { .sequence = a.sequence };
    KVT_EQ(kvd_finish(scheduler, &how, &finished, NULL), KVD_OK);
}

/* The worker learns that kvd is another one by its next call, before it launches anything (SRV-8). */
static void worker_learns(kvd_sequence sequence) {
    struct kvd_round_result r = scene_round(&worker, sequence, KVD_UNCHANGED, KVD_UNCHANGED);
    KVT_EQ(r.status, KVD_ABORTED);
}

static bool worker_reattaches(void) {
    struct puppet_call call = { .op = PUPPET_DETACH };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(&worker, 0);
}

static void pages_outlive(int signal, const char *more) {
    if (!open_stage(&(struct e2e_setup){ .more = more })) return;
    uint64_t one = e2e_stream(1, 5000, 0), two = e2e_stream(2, 5000, 0);
    retained(one, 700);
    retained(two, 130);
    struct kvd_activated running = scene_run(scheduler, &worker, worker_session, e2e_stream(3, 5000, 0), 200, 64);
    uint64_t epoch = kvd_client_epoch(scheduler);
    KVT_EQ(holder.n, 1);
    double begin = e2e_now();
    if (!replace(signal)) return;
    KVT_TRUE(e2e_now() - begin <
             7 * E2E_SLOW); /* nobody waits for the living worker: that would be a quarter of 30 s */
    KVT_TRUE(kvd_client_epoch(scheduler) != epoch);
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_EQ(stats.former_drivers, 1);
    KVT_EQ(stats.continuations, 3); /* the running one, too, at what it had committed */
    struct kvd_activation want = fork_of(one, 700);
    struct kvd_activated a;
    KVT_EQ(kvd_activate(scheduler,
                        &(struct kvd_activation){ .root = e2e_root(),
                                                  .worker = kvd_client_session(scheduler),
                                                  .prompt_tokens = 9,
                                                  .max_output_tokens = 1 },
                        &a, NULL),
           KVD_UNAVAILABLE); /* the worker may still run on its pages */
    (void)want;
    worker_learns(running.sequence);
    if (!worker_reattaches()) return;
    KVT_EQ(scene_stats(scheduler).former_drivers, 0);
    reproduce(one, 700);
    reproduce(two, 130);
    reproduce(e2e_stream(3, 5000, 0),
              192); /* 200 tokens were committed; the tail's tokens are not known, its pages are */
    scene_audit(scheduler);
    close_stage();
}

static void cont_3_pages_outlive_sigkill(void) { pages_outlive(SIGKILL, VMM ARENA); }
static void cont_3_pages_outlive_a_restart(void) { pages_outlive(SIGTERM, VMM ARENA); }
static void cont_3_pages_outlive_without_an_arena(void) { pages_outlive(SIGKILL, VMM); }

/* SRV-5: a worker that died with the old kvd is not waited for; one that dies later is let go when its exit is seen. */
static bool nobody_waited_for(void *unused) {
    (void)unused;
    return scene_stats(scheduler).former_drivers == 0;
}

static void row_5_a_dead_driver_is_not_waited_for(void) {
    if (!open_stage(&(struct e2e_setup){ .more = VMM })) return;
    uint64_t one = e2e_stream(1, 5000, 0);
    retained(one, 300);
    if (!replace(SIGKILL)) return;
    KVT_EQ(scene_stats(scheduler).former_drivers, 1);
    puppet_kill(&worker);
    KVT_TRUE(e2e_until(nobody_waited_for, NULL, 60, NULL));
    if (!connect_worker()) return;
    reproduce(one, 300);
    puppet_kill(&worker);
    if (!replace(SIGKILL)) return;
    KVT_EQ(scene_stats(scheduler).former_drivers, 0); /* it was gone before */
    if (!connect_worker()) return;
    reproduce(one, 300);
    close_stage();
}

/* Where /proc hides the worker from kvd, as ProtectProc=invisible does, its number alone names it. SRV-5 holds all the
 * same. */
static void row_5_a_hidden_driver_is_waited_for(void) {
    if (!e2e_can_be_apart() || !open_stage(&(struct e2e_setup){ .more = VMM, .apart = true })) return;
    uint64_t one = e2e_stream(1, 5000, 0);
    retained(one, 300);
    if (!replace(SIGKILL)) return;
    KVT_EQ(scene_stats(scheduler).former_drivers, 1);
    struct kvd_activation want = scene_want(kvd_client_session(scheduler), 9, 1);
    struct kvd_activated a;
    KVT_EQ(kvd_activate(scheduler, &want, &a, NULL), KVD_UNAVAILABLE);
    puppet_kill(&worker);
    KVT_TRUE(e2e_until(nobody_waited_for, NULL, 60, NULL));
    if (!connect_worker()) return;
    reproduce(one, 300);
    kvd_disconnect(scheduler);
    scheduler = NULL;
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    puppet_kill(&worker); /* with nobody to see it */
    if (!e2e_daemon_restart(&daemon_)) return;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    KVT_EQ(scene_stats(scheduler).former_drivers, 0);
    if (!connect_worker()) return;
    reproduce(one, 300);
    close_stage();
}

/* A thread of this process that has the number of a process that is gone. */
static pthread_barrier_t thread_met;
static pid_t thread_number;

static void *have_a_number(void *unused) {
    thread_number = (pid_t)syscall(SYS_gettid);
    pthread_barrier_wait(&thread_met);
    pthread_barrier_wait(&thread_met);
    return unused;
}

static bool thread_numbered(pid_t wanted, pthread_t *ret_thread) {
    pthread_barrier_init(&thread_met, NULL, 2);
    for (int i = 0; i < 1000; i++) {
        FILE *f = fopen("/proc/sys/kernel/ns_last_pid", "w");
        if (!f || fprintf(f, "%d", (int)wanted - 1) < 0 || fclose(f)) return false;
        if (pthread_create(ret_thread, NULL, have_a_number, NULL)) return false;
        pthread_barrier_wait(&thread_met);
        if (thread_number == wanted) return true;
        pthread_barrier_wait(&thread_met);
        pthread_join(*ret_thread, NULL);
    }
    return false;
}

/* The number of a driver that died unseen is a thread's by now, of which there is no pidfd: kvd starts, and waits for
 * nobody. */
static void row_5_a_number_that_is_a_threads_by_now(void) {
    pthread_t thread;
    if (!open_stage(&(struct e2e_setup){ .more = VMM })) return;
    uint64_t one = e2e_stream(1, 5000, 0);
    pid_t pid = worker.pid;
    retained(one, 300);
    kvd_disconnect(scheduler);
    scheduler = NULL;
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    puppet_kill(&worker); /* with nobody to see it */
    bool made = thread_numbered(pid, &thread);
    if (!made) printf("    no thread can be given the number %d here\n", (int)pid);
    bool started = KVT_TRUE(e2e_daemon_restart(&daemon_));
    if (made) {
        pthread_barrier_wait(&thread_met);
        pthread_join(thread, NULL);
    }
    if (!started) return;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    KVT_EQ(scene_stats(scheduler).former_drivers, 0);
    if (!connect_worker()) return;
    reproduce(one, 300);
    close_stage();
}

/* Without its descriptors a new kvd has no device page, and says so; with an arena what was demoted is there. */
static void cont_3_without_a_holder_device_pages_are_lost(void) {
    if (!open_stage(&(struct e2e_setup){ .more = VMM ARENA })) return;
    uint64_t one = e2e_stream(1, 5000, 0), two = e2e_stream(2, 5000, 0);
    struct kvd_moved moved;
    kvd_continuation kept = retained(one, 300);
    retained(two, 300);
    KVT_EQ(kvd_demote(scheduler, kept, true, &moved, NULL), KVD_OK);
    e2e_holder_free(&holder);
    if (!replace(SIGKILL)) return;
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_EQ(stats.continuations, 1);
    KVT_EQ(stats.recovered_continuations, 1);
    KVT_EQ(stats.recovered_dropped, 1);
    KVT_EQ(stats.former_drivers, 0); /* its pages are its own now */
    KVT_EQ(scene_find(scheduler, two, 301).usable, 0);
    KVT_EQ(scene_find(scheduler, one, 301).usable, 300);
    KVT_EQ(scene_find(scheduler, one, 301).restore_pages, 5);
    scene_audit(scheduler);
    close_stage();
}

/* Twice the pages from the next start on. */
static bool enlarge(void) {
    static char text[1 << 14];
    FILE *f = fopen(daemon_.config, "r+");
    if (!f) return false;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    char *at = strstr(text, "tokens = 16384");
    if (at) memcpy(at, "tokens = 32768", 14);
    rewind(f);
    bool ok = at && fwrite(text, 1, strlen(text), f) == strlen(text);
    return fclose(f) == 0 && ok;
}

/* Another configuration: what was kept is let go, nothing of it is served. */
static void srv_8_other_geometry_is_let_go(void) {
    if (!open_stage(&(struct e2e_setup){ .more = VMM })) return;
    uint64_t one = e2e_stream(1, 5000, 0);
    retained(one, 300);
    if (!KVT_TRUE(enlarge())) return;
    char before[96];
    memcpy(before, holder.item[0].name, sizeof before);
    if (!replace(SIGKILL)) return;
    KVT_EQ(scene_stats(scheduler).continuations, 0);
    KVT_EQ(holder.n, 1);
    KVT_TRUE(strcmp(before, holder.item[0].name) != 0); /* the old one was removed, the new one is there */
    scene_audit(scheduler);
    close_stage();
}

/* ---- the socket of descriptors ---- */

static int ask(const char *path, uint64_t token, uint32_t index, uint32_t *ret_status) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct {
        uint64_t token;
        uint32_t index, zero;
    } request = { token, index, 0 };
    struct {
        uint32_t status, index;
        char text[400];
    } answer = { 99, 0, "" };
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    struct timeval patience = { .tv_sec = 20 * E2E_SLOW };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
              send(fd, &request, sizeof request, MSG_NOSIGNAL) > 0 && recv(fd, &answer, sizeof answer, 0) >= 8;
    *ret_status = answer.status;
    if (fd >= 0) close(fd);
    return ok ? 0 : -1;
}

static void srv_3_tokens_are_good_once_and_for_one_process(void) {
    static struct kvd_store_info info;
    uint32_t status = 0;
    if (!open_stage(&(struct e2e_setup){ .more = VMM })) return;
    kvd_client *observer = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "observer");
    KVT_EQ(kvd_describe(observer, &info, NULL), KVD_OK);
    KVT_TRUE(info.pages_outlive);
    KVT_EQ(info.fd_token, 0);
    KVT_EQ(info.fd_socket[0], 0);
    KVT_EQ(kvd_describe(scheduler, &info, NULL), KVD_OK);
    KVT_TRUE(info.fd_token != 0);
    KVT_EQ_I(ask(info.fd_socket, info.fd_token + 1, 0, &status), 0);
    KVT_EQ(status, KVD_PERMISSION_DENIED);
    KVT_EQ_I(ask(info.fd_socket, 0, 0, &status), 0);
    KVT_EQ(status, KVD_PERMISSION_DENIED);
    pid_t child = fork(); /* has the token, is another process */
    if (child == 0)
        _exit(ask(info.fd_socket, info.fd_token, 0, &status) == 0 && status == KVD_PERMISSION_DENIED ? 0 : 1);
    KVT_EQ_I(kvt_wait(child), 0);
    KVT_EQ_I(ask(info.fd_socket, info.fd_token, 77, &status), 0);
    KVT_EQ(status, KVD_OUT_OF_RANGE);
    KVT_EQ_I(ask(info.fd_socket, info.fd_token, 0, &status), 0);
    KVT_EQ(status, KVD_PERMISSION_DENIED); /* used */
    kvd_disconnect(observer);
    close_stage();
}

static void srv_2_junk_on_the_socket_of_descriptors(void) {
    static struct kvd_store_info info;
    if (!open_stage(&(struct e2e_setup){ .more = VMM })) return;
    KVT_EQ(kvd_describe(scheduler, &info, NULL), KVD_OK);
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    snprintf(to.sun_path, sizeof to.sun_path, "%s", info.fd_socket);
    int fds[200];
    for (int i = 0; i < 200; i++) { /* more than it has places for: idle ones give way */
        char junk[64];
        memset(junk, i, sizeof junk);
        fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(fds[i], (struct sockaddr *)&to, sizeof to) == 0 && i % 2)
            (void)!send(fds[i], junk, (size_t)(i % 64), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    puppet_kill(&worker);
    KVT_TRUE(connect_worker());
    for (int i = 0; i < 200; i++) close(fds[i]);
    uint64_t one = e2e_stream(1, 5000, 0);
    retained(one, 100);
    reproduce(one, 100);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cont_3_pages_outlive_sigkill),
                                             KVT_CASE(cont_3_pages_outlive_a_restart),
                                             KVT_CASE(cont_3_pages_outlive_without_an_arena),
                                             KVT_CASE(row_5_a_dead_driver_is_not_waited_for),
                                             KVT_CASE(row_5_a_hidden_driver_is_waited_for),
                                             KVT_CASE(row_5_a_number_that_is_a_threads_by_now),
                                             KVT_CASE(cont_3_without_a_holder_device_pages_are_lost),
                                             KVT_CASE(srv_8_other_geometry_is_let_go),
                                             KVT_CASE(srv_3_tokens_are_good_once_and_for_one_process),
                                             KVT_CASE(srv_2_junk_on_the_socket_of_descriptors),
                                             { 0 } };
    return kvt_main("e2e vmm", cases, argc, argv);
}
