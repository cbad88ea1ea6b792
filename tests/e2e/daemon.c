/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "e2e.h"

#ifndef KVD_BINARY
#error "KVD_BINARY names the daemon under test"
#endif

double e2e_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool e2e_until(bool (*check)(void *), void *argument, double seconds, double *ret_elapsed_ms) {
    double begin = e2e_now();
    bool ok;
    while (!(ok = check(argument)) && e2e_now() - begin < seconds * E2E_SLOW) sched_yield();
    if (ret_elapsed_ms) *ret_elapsed_ms = (e2e_now() - begin) * 1e3;
    return ok;
}

static uint32_t or (uint32_t value, uint32_t otherwise) { return value ? value : otherwise; }

static void write_model(FILE *f, const struct e2e_setup *s) {
    for (uint32_t r = 0; r < or (s->ranks, 1); r++)
        fprintf(f, "device.%u = %s:%u\n", r, s->device ? s->device : "host", r);
    fprintf(f, "\n[model]\n");
    if (!s->groups) fprintf(f, "layers = %u\n", or (s->layers, 2));
    fprintf(f, "kv_heads = %u\nhead_dim = %u\nprofile = %s\nmax_context = %u\n", or (s->kv_heads, 2),
            or (s->head_dim, 64), s->profile ? s->profile : "bf16", or (s->max_context, 4096));
}

static bool write_config(const struct e2e_daemon *d, const struct e2e_setup *s) {
    FILE *f = fopen(d->config, "w");
    if (!f) return false;
    fprintf(f, "[kvd]\nsocket = %s\nstore = e2e\nlog_level = info\n\n[devices]\nmemory = 1GiB\n", d->socket);
    if (s->model) fputs(s->model, f);
    else write_model(f, s);
    fprintf(f, "\n[model]\nmax_concurrency = %u\n\n[backend]\nkind = %s\n", or (s->max_concurrency, 8),
            s->backend ? s->backend : "off");
    if (s->draft_window) fprintf(f, "draft_window = %u\n", s->draft_window);
    if (s->capacity_tokens == E2E_AUTO) fprintf(f, "\n[capacity]\ntokens = auto\n");
    else fprintf(f, "\n[capacity]\ntokens = %u\n", or (s->capacity_tokens, 16384));
    fprintf(f, "\n[lease]\ngrowth = %s\nmap_ahead = %u\n", s->lease_growth ? "yes" : "no", s->map_ahead);
    if (s->lease_window) fprintf(f, "window = %u\n", s->lease_window);
    if (s->more) fprintf(f, "\n%s\n", s->more);
    return fclose(f) == 0;
}

#define APART 65534 /* user and group */

static bool go_apart(void) {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2") == 0 &&
           setgroups(0, NULL) == 0 && setgid(APART) == 0 && setuid(APART) == 0 &&
           prctl(PR_SET_PDEATHSIG, SIGKILL) == 0; /* it went with the user */
}

bool e2e_can_be_apart(void) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) _exit(go_apart() ? 0 : 1);
    if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0) return true;
    printf("    skipped: only root can be other users, and mount a /proc\n");
    return false;
}

static pid_t spawn_daemon(const struct e2e_daemon *d, int notify, const char *notify_path, int output) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves no daemon behind */
    if (notify >= 0) setenv("NOTIFY_SOCKET", notify_path, 1);
    else unsetenv("NOTIFY_SOCKET");
    dup2(output, 1);
    dup2(output, 2);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    if (d->holder) e2e_holder_give(d->holder);
    else
        for (int fd = 3; fd < 256; fd++) close(fd);
    const char *moved = getenv("KVD_BINARY"), *built = moved ? moved : KVD_BINARY; /* moved: see tests/gpu/first.sh */
    int program = open(d->binary ? d->binary : built, O_PATH | O_CLOEXEC); /* its folder may be closed to others */
    if (d->apart && !go_apart()) _exit(126);
    char *arguments[] = { (char[]){ "kvd" }, (char[]){ "--config" }, (char *)(uintptr_t)d->config, NULL };
    fexecve(program, arguments, environ);
    _exit(127);
}

static void show_log(const struct e2e_daemon *d) {
    char line[512];
    FILE *f = fopen(d->log, "r");
    while (f && fgets(line, sizeof line, f)) printf("    kvd: %s", line);
    if (f) fclose(f);
}

/* A datagram of sd_notify; what comes along is the holder's. */
static void receive(struct e2e_daemon *d, int notify, char *text, size_t bytes) {
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = { .iov_base = text, .iov_len = bytes - 1 };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    int fd = -1;
    ssize_t n = recvmsg(notify, &message, MSG_CMSG_CLOEXEC);
    text[n > 0 ? n : 0] = 0;
    for (struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&message) : NULL; h; h = CMSG_NXTHDR(&message, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(h), sizeof fd);
    if (d->holder) e2e_holder_take(d->holder, text, fd);
    else if (fd >= 0) close(fd);
}

/* Waits for READY=1, or for the daemon to exit. */
static bool wait_ready(struct e2e_daemon *d, int notify) {
    double end = e2e_now() + 60 * E2E_SLOW;
    char text[256];
    while (e2e_now() < end) {
        struct pollfd p = { .fd = notify, .events = POLLIN };
        if (poll(&p, 1, 50) == 1) {
            receive(d, notify, text, sizeof text);
            if (strstr(text, "READY=1")) return true;
        }
        if (waitpid(d->pid, NULL, WNOHANG) == d->pid) {
            d->pid = 0;
            return false;
        }
    }
    return false;
}

bool e2e_daemon_launch(struct e2e_daemon *d) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *path = address.sun_path;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", d->dir);
    unlink(path);
    int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    bool ok = notify >= 0 && log >= 0 && bind(notify, (struct sockaddr *)&address, sizeof address) == 0 &&
              (!d->apart || chmod(path, 0777) == 0);
    if (ok) {
        d->pid = spawn_daemon(d, notify, path, log);
        ok = d->pid > 0 && wait_ready(d, notify);
    }
    if (log >= 0) close(log);
    if (notify >= 0) close(notify);
    unlink(path);
    return ok;
}

bool e2e_daemon_restart(struct e2e_daemon *d) {
    bool ok = e2e_daemon_launch(d);
    if (!ok) show_log(d);
    return KVT_TRUE(ok);
}

bool e2e_daemon_prepare(struct e2e_daemon *d, const struct e2e_setup *setup) {
    static const struct e2e_setup none;
    memset(d, 0, sizeof *d);
    snprintf(d->dir, sizeof d->dir, "/tmp/kvd-e2e-XXXXXX");
    if (!mkdtemp(d->dir)) return KVT_TRUE(false);
    snprintf(d->socket, sizeof d->socket, "%s/kvd.sock", d->dir);
    snprintf(d->config, sizeof d->config, "%s/kvd.conf", d->dir);
    snprintf(d->log, sizeof d->log, "%s/log", d->dir);
    if (setup) d->holder = setup->holder;
    d->apart = setup && setup->apart;
    if (d->apart && (chown(d->dir, APART, APART) || chmod(d->dir, 0777))) return KVT_TRUE(false);
    return KVT_TRUE(write_config(d, setup ? setup : &none));
}

bool e2e_daemon_configure(struct e2e_daemon *d, const struct e2e_setup *setup) {
    return KVT_TRUE(write_config(d, setup));
}

bool e2e_daemon_start(struct e2e_daemon *d, const struct e2e_setup *setup) {
    return e2e_daemon_prepare(d, setup) && e2e_daemon_restart(d);
}

/* What comes until the end of the file, at most a minute. */
static void read_to_end(int fd, char *text, size_t bytes) {
    double end = e2e_now() + 60 * E2E_SLOW;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    ssize_t got = 1;
    size_t n = 0;
    while (got > 0 && n + 1 < bytes && e2e_now() < end) {
        if (poll(&p, 1, 1000) != 1) continue;
        if ((got = read(fd, text + n, bytes - 1 - n)) > 0) n += (size_t)got;
    }
    text[n] = 0;
}

int e2e_daemon_try(struct e2e_daemon *d, char *text, size_t bytes) {
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC)) return -1;
    pid_t pid = spawn_daemon(d, -1, NULL, pipes[1]);
    close(pipes[1]);
    read_to_end(pipes[0], text, bytes);
    close(pipes[0]);
    return kvt_wait(pid);
}

/* A daemon that has not ended by then is told to abort, so that a test fails and never hangs. */
int e2e_daemon_wait(struct e2e_daemon *d) {
    int status = 0;
    if (!d->pid) return -1;
    int fd = (int)syscall(SYS_pidfd_open, d->pid, 0);
    struct pollfd exit = { .fd = fd, .events = POLLIN };
    if (!KVT_EQ_I(poll(&exit, 1, 60000 * E2E_SLOW), 1)) {
        show_log(d);
        kill(d->pid, SIGABRT);
    }
    close(fd);
    waitpid(d->pid, &status, 0);
    d->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int e2e_daemon_stop(struct e2e_daemon *d, int signal) {
    if (d->pid) kill(d->pid, signal);
    return e2e_daemon_wait(d);
}

static unsigned count_entries(const char *dir, const char *prefix) {
    DIR *listing = opendir(dir);
    unsigned n = 0;
    for (struct dirent *e; listing && (e = readdir(listing));)
        if (e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0) n++;
    if (listing) closedir(listing);
    return n;
}

unsigned e2e_fd_count(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    return count_entries(path, "");
}

uint64_t e2e_rss_bytes(pid_t pid) {
    char path[64], line[128];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lu", &kib) == 1) break;
    if (f) fclose(f);
    return (uint64_t)kib * 1024;
}

/* Whatever carries the instance's number in its name. */
unsigned e2e_shm_count(const struct e2e_daemon *d) {
    char number[24];
    unsigned n = 0;
    snprintf(number, sizeof number, "%016" PRIx64, (uint64_t)XXH3_64bits(d->socket, strlen(d->socket)));
    DIR *listing = opendir("/dev/shm");
    for (struct dirent *e; listing && (e = readdir(listing));) n += strstr(e->d_name, number) != NULL;
    if (listing) closedir(listing);
    return n;
}

static void remove_dir(const char *dir) {
    char path[400];
    DIR *listing = opendir(dir);
    for (struct dirent *e; listing && (e = readdir(listing));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (listing) closedir(listing);
    rmdir(dir);
}

void e2e_arena_path(const struct e2e_daemon *d, char *path, size_t bytes) {
    snprintf(path, bytes, "/dev/shm/kvd-arena-%016" PRIx64, (uint64_t)XXH3_64bits(d->socket, strlen(d->socket)));
}

bool e2e_arena_flip(const struct e2e_daemon *d, uint64_t capacity, uint64_t at) {
    char path[128];
    uint8_t byte = 0;
    struct stat file = { 0 };
    e2e_arena_path(d, path, sizeof path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool ok = fd >= 0 && fstat(fd, &file) == 0;
    off_t place = file.st_size - (off_t)capacity + (off_t)at; /* the arena is the last part of the file */
    ok = ok && pread(fd, &byte, 1, place) == 1;
    byte ^= 0x10;
    ok = ok && pwrite(fd, &byte, 1, place) == 1;
    if (fd >= 0) close(fd);
    return KVT_TRUE(ok);
}

void e2e_daemon_free(struct e2e_daemon *d) {
    if (d->pid) {
        KVT_EQ_I(e2e_daemon_stop(d, SIGTERM), 0);
        KVT_FALSE(access(d->socket, F_OK) == 0);
    }
    char arena[128];
    e2e_arena_path(d, arena, sizeof arena);
    unlink(arena);
    if (d->dir[0]) remove_dir(d->dir);
}

kvd_client *e2e_connect(const struct e2e_daemon *d, enum kvd_role role, const char *name) {
    struct kvd_connect_options options = {
        .struct_size = sizeof options, .socket = d->socket, .role = role, .name = name, .timeout_ms = 60000 * E2E_SLOW
    };
    struct kvd_error error = { 0 };
    kvd_client *client = NULL;
    if (!KVT_EQ(kvd_connect(&options, &client, &error), KVD_OK)) printf("    %s\n", error.message);
    return client;
}

bool e2e_same_resources(const struct kvd_stats *a, const struct kvd_stats *b) {
    bool same = a->sequences == b->sequences && a->continuations == b->continuations && a->groups == b->groups &&
                a->state_slots_used == b->state_slots_used && a->membership_used == b->membership_used;
    for (uint32_t i = 0; i < a->n_pools; i++) same = same && memcmp(&a->pool[i], &b->pool[i], sizeof a->pool[i]) == 0;
    return same;
}
