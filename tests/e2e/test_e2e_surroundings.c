/* SPDX-License-Identifier: Apache-2.0
 * What others control: limits of the process, names, a second daemon, a host that unloads the library. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"
#include "scene.h"

#define SOMEBODY 61234 /* a user with no process */

static struct e2e_daemon daemon_;

/* ---- the library in a plug-in host --------------------------------------------------------------------------- */

/* SRV-6, SRV-8: nng's threads outlive every client; a host that closes the library, forks, loads it again or ends goes
 * on. */
static void srv_8_library_unloaded(void) {
    static const char *const ways[] = { "reload", "fork", "leave" };
    struct run *run = malloc(sizeof *run);
    KVT_NEED(run && e2e_daemon_start(&daemon_, NULL));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int n = 0; n < 6; n++)
            KVT_EQ_I(program_run(run, PLUGIN_HOST, 0, LIBKVD, daemon_.socket, ways[i], NULL)->status, 0);
    e2e_daemon_free(&daemon_);
    free(run);
}

/* SRV-8: the same from Python, whose ctypes closes libraries only when it is told to. */
static void srv_8_library_unloaded_by_python(void) {
    static const char program[] =
        "import ctypes, _ctypes, os, sys\n"
        "class Options(ctypes.Structure):\n"
        "    _fields_ = [('size', ctypes.c_size_t), ('socket', ctypes.c_char_p), ('role', ctypes.c_int),\n"
        "                ('name', ctypes.c_char_p), ('rank', ctypes.c_uint32), ('timeout_ms', ctypes.c_uint32)]\n"
        "for i in range(8):\n"
        "    kvd, client = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()\n"
        "    options = Options(ctypes.sizeof(Options), sys.argv[2].encode(), 1, b'python', 0, 20000)\n"
        "    status = kvd.kvd_connect(ctypes.byref(options), ctypes.byref(client), None)\n"
        "    assert status == 0, status\n"
        "    kvd.kvd_disconnect.argtypes = [ctypes.c_void_p]\n"
        "    if i < 7: kvd.kvd_disconnect(client)\n"
        "    _ctypes.dlclose(kvd._handle)\n"
        "    pid = os.fork()\n"
        "    if pid == 0: sys.exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n";
    struct run *run = malloc(sizeof *run);
    KVT_NEED(run && e2e_daemon_start(&daemon_, NULL));
    for (int n = 0; n < 4; n++) {
        program_run(run, "/usr/bin/env", 0, "python3", "-W", "ignore", "-c", program, LIBKVD, daemon_.socket, NULL);
        if (run->status == 127) break;
        if (!KVT_EQ_I(run->status, 0)) printf("%s\n", run->err);
    }
    if (run->status == 127) printf("    skipped: there is no python3\n");
    e2e_daemon_free(&daemon_);
    free(run);
}

/* ---- a second daemon ------------------------------------------------------------------------------------------- */

/* SRV-8: two daemons may have one socket's name (mount namespaces, a removed lock file) and one /dev/shm: the arena
 * belongs to the first. */
static void srv_8_second_daemon_on_the_arena(void) {
    char lock[160], arena[160], pid[32], text[4096];
    struct stat before, after;
    KVT_NEED(e2e_daemon_start(&daemon_, &(struct e2e_setup){ .more = "[host]\narena = 4MiB" }));
    kvd_client *admin = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "admin");
    e2e_arena_path(&daemon_, arena, sizeof arena);
    snprintf(lock, sizeof lock, "%s.lock", daemon_.socket);
    snprintf(pid, sizeof pid, "process %d,", (int)daemon_.pid);
    KVT_NEED(admin && stat(arena, &before) == 0 && unlink(lock) == 0);
    KVT_EQ_I(e2e_daemon_try(&daemon_, text, sizeof text), 2);
    KVT_HAS(text, "another kvd");
    KVT_HAS(text, pid);
    KVT_TRUE(stat(arena, &after) == 0 && before.st_ino == after.st_ino);
    KVT_EQ(scene_stats(admin).host_capacity, 4 << 20);
    scene_audit(admin);
    kvd_disconnect(admin);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    KVT_TRUE(e2e_daemon_restart(&daemon_)); /* the lock went with the process */
    e2e_daemon_free(&daemon_);
}

/* ---- few threads, little memory ------------------------------------------------------------------------------- */

struct limited {
    int resource;
    rlim_t value;
    uid_t uid; /* 0: as it is */
};

static void become(const struct limited *how, int output) {
    struct rlimit limit = { how->value, how->value }, none = { 0, 0 };
    dup2(output, 1);
    dup2(output, 2);
    if (setrlimit(RLIMIT_CORE, &none) || setrlimit((unsigned)how->resource, &limit)) _exit(126);
    if (how->uid && (setgid(how->uid) || setuid(how->uid))) _exit(126);
}

/* Its output into text; kvd is told to stop when it is ready. Its status, or -1 where a signal ended it or it had to be
 * killed. */
static int run_limited(const struct limited *how, const char *const *argv, char *text, size_t bytes) {
    int pipes[2], status = -1, program = open(argv[0], O_PATH | O_CLOEXEC); /* its folder may be closed to others */
    KVT_OK(pipe2(pipes, O_CLOEXEC));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        become(how, pipes[1]);
        fexecve(program, (char **)(uintptr_t)argv, environ);
        _exit(127);
    }
    close(pipes[1]);
    close(program);
    size_t n = 0;
    ssize_t got = 1;
    double end = e2e_now() + 15;
    while (got > 0 && n + 1 < bytes && e2e_now() < end) {
        struct pollfd p = { .fd = pipes[0], .events = POLLIN };
        if (poll(&p, 1, 1000) != 1) continue;
        if ((got = read(pipes[0], text + n, bytes - 1 - n)) > 0) n += (size_t)got;
        text[n] = 0;
        if (strstr(text, "tokens in")) kill(pid, SIGTERM); /* the line that says that the store is served */
    }
    text[n] = 0;
    close(pipes[0]);
    if (got > 0) kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* From where nothing goes to where all does: each step is a sentence or success. */
static void climb(struct limited how, rlim_t from, rlim_t to, rlim_t step, const char *const *argv, int refused,
                  const char *part) {
    char text[8192];
    uint32_t refusals = 0, successes = 0;
    for (how.value = from; how.value <= to; how.value += step) {
        int status = run_limited(&how, argv, text, sizeof text);
        if (status == 0) {
            successes++;
            continue;
        }
        if (!KVT_EQ_I(status, refused)) printf("    at %ju: %s\n", (uintmax_t)how.value, text);
        if (strstr(text, part)) refusals++;
    }
    KVT_TRUE(refusals > 0 && successes > 0);
    printf("    %s: %u refused because of \"%s\", %u served\n", argv[0], refusals, part, successes);
}

/* SRV-2: nng ends or hangs where it cannot have its threads; it is never started then. */
static void srv_2_few_threads(void) {
    rlim_t all = 40 + 3 * (rlim_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (geteuid() != 0) {
        printf("    skipped: only root can be another user\n");
        return;
    }
    KVT_NEED(e2e_daemon_start(&daemon_, NULL));
    KVT_OK(chmod(daemon_.dir, 0755));
    KVT_OK(chmod(daemon_.socket, 0666));
    const char *const ctl[] = { KVDCTL, "--socket", daemon_.socket, "status", NULL };
    struct limited how = { .resource = RLIMIT_NPROC, .uid = SOMEBODY };
    climb(how, 1, all, 1 + all / 24, ctl, 3, "more threads");
    e2e_daemon_free(&daemon_);
    KVT_NEED(e2e_daemon_prepare(&daemon_, NULL));
    KVT_OK(chown(daemon_.dir, SOMEBODY, SOMEBODY));
    KVT_OK(chmod(daemon_.config, 0644));
    const char *const kvd[] = { KVD_BINARY, "--config", daemon_.config, NULL };
    climb(how, 1, all, 1 + all / 24, kvd, 2, "more threads");
    e2e_daemon_free(&daemon_);
}

/* SRV-2: the same for address space. */
static void srv_2_little_address_space(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("    skipped: a sanitizer takes terabytes of address space\n");
#else
    rlim_t all = ((rlim_t)600 << 20) + ((rlim_t)32 << 20) * (rlim_t)sysconf(_SC_NPROCESSORS_ONLN);
    KVT_NEED(e2e_daemon_start(&daemon_, NULL));
    const char *const ctl[] = { KVDCTL, "--socket", daemon_.socket, "status", NULL };
    struct limited how = { .resource = RLIMIT_AS };
    climb(how, 16 << 20, all, all / 40, ctl, 3, "more threads");
    e2e_daemon_free(&daemon_);
    KVT_NEED(e2e_daemon_prepare(&daemon_, NULL));
    const char *const kvd[] = { KVD_BINARY, "--config", daemon_.config, NULL };
    climb(how, 16 << 20, all, all / 40, kvd, 2, "more threads");
    e2e_daemon_free(&daemon_);
#endif
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(srv_8_library_unloaded),           KVT_CASE(srv_8_library_unloaded_by_python),
        KVT_CASE(srv_8_second_daemon_on_the_arena), KVT_CASE(srv_2_few_threads),
        KVT_CASE(srv_2_little_address_space),       { 0 }
    };
    return kvt_main("surroundings", cases, argc, argv);
}
