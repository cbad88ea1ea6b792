/* SPDX-License-Identifier: Apache-2.0
 * What others control: limits of the process, names, a second daemon, a host that unloads the library. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"
#include "scene.h"

#define SOMEBODY 61234 /* a user with no process */

static struct e2e_daemon daemon_;

/* ---- programs with less than others -------------------------------------------------------------------------------
 */

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
    int pipes[2], program = open(argv[0], O_PATH | O_CLOEXEC); /* its folder may be closed to others */
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
    int status = kvt_wait(pid);
    return status < 0 ? -1 : status;
}

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

/* ---- pools of host devices --------------------------------------------------------------------------------------- */

/* SRV-8: whoever gets hold of a region, by whatever way, can neither cut it short nor seal it against its owner, and no
 * region has a name that others could find, take or squat. */
static void srv_8_regions_cannot_be_cut(void) {
    for (int vmm = 0; vmm < 2; vmm++) {
        char path[300], link[128];
        unsigned regions = 0;
        KVT_NEED(e2e_daemon_start(&daemon_, &(struct e2e_setup){ .more = vmm ? "[devices]\nexport = vmm" : NULL }));
        KVT_EQ(e2e_shm_count(&daemon_), vmm); /* the directory of pools that outlive kvd */
        snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon_.pid);
        DIR *files = opendir(path);
        for (struct dirent *e; files && (e = readdir(files));) {
            snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)daemon_.pid, e->d_name);
            ssize_t n = readlink(path, link, sizeof link - 1);
            if (n < 11 || strncmp(link, "/memfd:kvd-", 11) != 0) continue;
            int fd = open(path, O_RDWR | O_CLOEXEC);
            KVT_NEED(fd >= 0);
            regions++;
            KVT_TRUE(ftruncate(fd, 4096) != 0 && errno == EPERM);
            KVT_TRUE(ftruncate(fd, (off_t)1 << 40) != 0 && errno == EPERM);
            KVT_TRUE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
            close(fd);
        }
        if (files) closedir(files);
        KVT_EQ(regions, 2); /* planes and table */
        kvd_client *c = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "admin");
        scene_audit(c);
        kvd_disconnect(c);
        e2e_daemon_free(&daemon_);
    }
}

/* A store of so much on one host device, and an arena. */
static bool prepare_large(unsigned layers, unsigned concurrency, const char *memory, const char *tokens,
                          const char *arena) {
    if (!e2e_daemon_prepare(&daemon_, NULL)) return false;
    FILE *f = fopen(daemon_.config, "w");
    if (!f) return KVT_TRUE(false);
    fprintf(f,
            "[kvd]\nsocket = %s\n[devices]\nmemory = %s\n[model]\nlayers = %u\nhead_dim = 64\nmax_context = "
            "4096\nmax_concurrency = %u\n"
            "[capacity]\ntokens = %s\n[host]\narena = %s\n",
            daemon_.socket, memory, layers, concurrency, tokens, arena);
    return KVT_TRUE(fclose(f) == 0);
}

/* kvd and kvd --plan both end with 2, at once and with this sentence. */
static void both_refuse(const struct limited *how, const char *part) {
    for (int plan = 0; plan < 2; plan++) {
        char text[8192];
        const char *const argv[] = { KVD_BINARY, "--config", daemon_.config, plan ? "--plan" : NULL, NULL };
        if (!KVT_EQ_I(run_limited(how, argv, text, sizeof text), 2) || !KVT_HAS(text, part)) printf("    %s\n", text);
    }
}

/* SRV-2, CAP-2: pools of host devices that the machine's memory or the limits of the process do not allow, with the
 * arena or without it, are refused in words before a byte is taken; --plan says so, too. */
static void srv_2_pools_beyond_memory(void) {
    struct limited free = { .resource = RLIMIT_FSIZE, .value = RLIM_INFINITY }, small = free;
    small.value = 1 << 20;
    KVT_NEED(prepare_large(4096, 1024, "100TiB", "4194304", "0"));
    both_refuse(&free, "are available on this machine (MemAvailable)");
    e2e_daemon_free(&daemon_);
    KVT_NEED(prepare_large(1, 64, "64MiB", "8192", "100TiB"));
    both_refuse(&free, "bytes of /dev/shm");
    e2e_daemon_free(&daemon_);
    KVT_NEED(prepare_large(1, 64, "64MiB", "8192", "0"));
    both_refuse(&small, "RLIMIT_FSIZE allows 1048576");
    e2e_daemon_free(&daemon_);
}

/* CAP-2: what is taken automatically fits into the memory limit of the control group, beside the arena; what is asked
 * for beyond it is refused. */
static void cap_2_pools_in_a_control_group(void) {
    char group[128] = "/sys/fs/cgroup/memory/kvd-e2e", path[192], text[8192];
    if (access("/sys/fs/cgroup/memory", W_OK)) snprintf(group, sizeof group, "/sys/fs/cgroup/kvd-e2e");
    bool v1 = strstr(group, "/memory/") != NULL;
    snprintf(path, sizeof path, "%s/%s", group, v1 ? "memory.limit_in_bytes" : "memory.max");
    rmdir(group);
    FILE *f = mkdir(group, 0755) ? NULL : fopen(path, "w");
    if (!f || fputs("104857600", f) < 0 || fclose(f)) {
        printf("    skipped: no control group can be made\n");
        rmdir(group);
        return;
    }
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    for (int plan = 0; plan < 3; plan++) {
        KVT_NEED(prepare_large(2, 64, "256MiB", plan < 2 ? "200000" : "auto", "16MiB"));
        const char *const argv[] = { "/bin/sh",  "-c",           "echo $$ >\"$1\" && shift && exec \"$@\"",
                                     "sh",       path,           KVD_BINARY,
                                     "--config", daemon_.config, plan == 1 ? "--plan" : NULL,
                                     NULL };
        struct limited free = { .resource = RLIMIT_FSIZE, .value = RLIM_INFINITY };
        if (!KVT_EQ_I(run_limited(&free, argv, text, sizeof text), plan < 2 ? 2 : 0)) printf("    %s\n", text);
        if (plan < 2) KVT_HAS(text, "are left in the memory limit of control group");
        e2e_daemon_free(&daemon_);
    }
    rmdir(group);
}

/* ---- names of sockets ------------------------------------------------------------------------------------------ */

static bool has_text(const char *path, const char *text) {
    char there[64] = "";
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(there, 1, sizeof there - 1, f) : 0;
    if (f) fclose(f);
    return n == strlen(text) && memcmp(there, text, n) == 0;
}

static void put_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    KVT_TRUE(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

#define PRECIOUS "what somebody has written here, and wants to keep"

static bool log_has(const char *part);

/* Of the sockets that kvd needs it says so and does not start; monitoring is left off, and the cache is served. */
static void start_beside(const char *path, bool needed) {
    char text[4096];
    put_text(path, PRECIOUS);
    if (needed) {
        KVT_EQ_I(e2e_daemon_try(&daemon_, text, sizeof text), 2);
        KVT_HAS(text, "kvd cannot start: ");
        KVT_HAS(text, path);
        KVT_HAS(text, "remove it");
    } else {
        KVT_TRUE(e2e_daemon_restart(&daemon_));
        KVT_TRUE(log_has("there is no monitoring") && log_has(path));
        KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    }
    if (!KVT_TRUE(has_text(path, PRECIOUS))) printf("    %s\n", path);
    unlink(path);
}

/* SRV-2: a file at any name that kvd uses is refused, and never removed or written to. */
static void srv_2_file_at_a_name_of_kvd(void) {
    static const char *const names[] = { "", ".new", ".lock", ".fd", ".fd.new", ".http", ".http.new" };
    char path[192];
    KVT_NEED(e2e_daemon_prepare(&daemon_, NULL));
    FILE *f = fopen(daemon_.config, "a");
    KVT_NEED(f);
    fprintf(f, "[devices]\nexport = vmm\n[http]\nlisten = unix:%s.http\n", daemon_.socket);
    fclose(f);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s%s", daemon_.socket, names[i]);
        start_beside(path, !strstr(names[i], ".http"));
    }
    KVT_TRUE(e2e_daemon_restart(&daemon_)); /* without them it starts */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s%s", daemon_.socket, names[i]);
        unlink(path);
        put_text(path, PRECIOUS);
    }
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s%s", daemon_.socket, names[i]);
        if (!strcmp(names[i], ".new")) continue; /* nng's, to its end */
        if (!KVT_TRUE(has_text(path, PRECIOUS))) printf("    %s\n", path);
    }
    e2e_daemon_free(&daemon_);
}

/* SRV-2: a socket that another program serves is not taken from it. */
static void srv_2_socket_of_another_program(void) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    char text[4096];
    KVT_NEED(e2e_daemon_prepare(&daemon_, NULL));
    snprintf(at.sun_path, sizeof at.sun_path, "%.100s", daemon_.socket);
    for (int type = 0; type < 2; type++) {
        int fd = socket(AF_UNIX, (type ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC, 0);
        KVT_NEED(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 4) == 0);
        KVT_EQ_I(e2e_daemon_try(&daemon_, text, sizeof text), 2);
        KVT_HAS(text, "another program listens there");
        int client = socket(AF_UNIX, (type ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC, 0);
        KVT_OK(connect(client, (struct sockaddr *)&at, sizeof at));
        close(client);
        close(fd);
        unlink(at.sun_path);
    }
    e2e_daemon_free(&daemon_);
}

/* ---- the configuration while kvd runs --------------------------------------------------------------------------- */

static bool log_has(const char *part) {
    char line[1024];
    bool found = false;
    FILE *f = fopen(daemon_.log, "r");
    while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, part) != NULL;
    if (f) fclose(f);
    return found;
}

static bool log_has_argument(void *part) { return log_has(part); }

static bool alone(void *c) { return scene_stats(c).sessions == 1; }

/* A directory whose file system never answers; closing the descriptor ends it. -1: it cannot be had. */
static int mount_silence(const char *dir) {
    char options[96];
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    if (fd >= 0 && mount("silence", dir, "fuse", MS_NOSUID | MS_NODEV, options) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* SRV-7, SRV-5: whatever stands at the configuration's path at a SIGHUP, and be it a file system that hangs, kvd
 * serves, notices deaths and stops. */
static void srv_7_reload_waits_for_nobody(void) {
    struct puppet victim;
    char silent[160], kept[160];
    KVT_NEED(e2e_daemon_start(&daemon_, NULL));
    kvd_client *c = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "observer");
    snprintf(silent, sizeof silent, "%s/silent", daemon_.dir), snprintf(kept, sizeof kept, "%s/kept", daemon_.dir);
    KVT_NEED(c && rename(daemon_.config, kept) == 0 && mkfifo(daemon_.config, 0600) == 0);
    kill(daemon_.pid, SIGHUP);
    KVT_TRUE(e2e_until(log_has_argument, (char[]){ "this is no file, but a FIFO" }, 60, NULL));
    scene_stats(c);
    unlink(daemon_.config);
    KVT_OK(mkdir(silent, 0700));
    int fuse = mount_silence(silent);
    if (fuse < 0) printf("    skipped in part: no file system can be mounted that hangs\n");
    if (fuse >= 0) {
        char there[192];
        snprintf(there, sizeof there, "%s/kvd.conf", silent);
        KVT_OK(symlink(there, daemon_.config));
        KVT_NEED(puppet_start(&victim));
        puppet_connect(&victim, &daemon_, KVD_ROLE_WORKER, 0);
        kill(daemon_.pid, SIGHUP);
        scene_stats(c);
        kill(daemon_.pid, SIGHUP); /* once more meanwhile */
        puppet_kill(&victim);
        KVT_TRUE(e2e_until(alone, c, 60, NULL));
        KVT_TRUE(e2e_until(log_has_argument, (char[]){ "does not answer; kvd goes on" }, 60, NULL));
        close(fuse); /* now it fails, and is told so; then the file is read that stands there */
        umount2(silent, MNT_DETACH);
        KVT_TRUE(e2e_until(log_has_argument, (char[]){ "the configuration was not reloaded" }, 60, NULL));
        unlink(daemon_.config);
        fuse = mount_silence(silent);
        KVT_TRUE(fuse >= 0 && symlink(there, daemon_.config) == 0);
        kill(daemon_.pid, SIGHUP); /* one that never ends */
    }
    kvd_disconnect(c);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    if (fuse >= 0) close(fuse);
    umount2(silent, MNT_DETACH);
    rmdir(silent);
    e2e_daemon_free(&daemon_);
}

/* SRV-2: the sentence that a good file is reloaded comes after all of that, too. */
static void reload_of_a_good_file(void) {
    KVT_NEED(e2e_daemon_start(&daemon_, NULL));
    for (int i = 0; i < 5; i++) kill(daemon_.pid, SIGHUP);
    KVT_TRUE(e2e_until(log_has_argument, (char[]){ "configuration reloaded" }, 60, NULL));
    e2e_daemon_free(&daemon_);
}

/* ---- what a parent leaves ------------------------------------------------------------------------------------- */

static bool serves_now(void *unused) {
    (void)unused;
    struct kvd_connect_options o = { .struct_size = sizeof o, .socket = daemon_.socket, .role = KVD_ROLE_OBSERVER };
    kvd_client *c = NULL;
    bool ok = kvd_connect(&o, &c, NULL) == KVD_OK;
    kvd_disconnect(c);
    return ok;
}

/* SRV-2, SRV-8: without standard files, with signals ignored and a umask that forbids all: nothing is written into what
 * kvd opens, its files can be opened again, and it hears SIGTERM. */
static void srv_2_hostile_parent(void) {
    char lock[160], want[32];
    struct stat st;
    KVT_NEED(e2e_daemon_prepare(&daemon_, NULL));
    FILE *f = fopen(daemon_.config, "a");
    KVT_NEED(f && fputs("[host]\narena = 1MiB\n", f) >= 0 && fclose(f) == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        for (int fd = 0; fd < 64; fd++) close(fd);
        umask(0777);
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        execl(KVD_BINARY, "kvd", "--config", daemon_.config, (char *)NULL);
        _exit(127);
    }
    KVT_TRUE(e2e_until(serves_now, NULL, 60, NULL));
    kill(pid, SIGHUP);
    KVT_TRUE(serves_now(NULL));
    snprintf(lock, sizeof lock, "%s.lock", daemon_.socket), snprintf(want, sizeof want, "%d\n", (int)pid);
    KVT_TRUE(has_text(lock, want));
    KVT_TRUE(stat(lock, &st) == 0 && (st.st_mode & 0777) == 0600);
    e2e_arena_path(&daemon_, lock, sizeof lock);
    KVT_TRUE(stat(lock, &st) == 0 && (st.st_mode & 0777) == 0600);
    kill(pid, SIGTERM);
    KVT_EQ_I(kvt_wait(pid), 0);
    KVT_TRUE(e2e_daemon_restart(&daemon_));
    e2e_daemon_free(&daemon_);
}

/* SRV-7: whoever should read kvd's notices, and does not, stops nothing. */
static void srv_7_notices_that_nobody_reads(void) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    KVT_NEED(e2e_daemon_prepare(&daemon_, NULL));
    snprintf(at.sun_path, sizeof at.sun_path, "%s/deaf", daemon_.dir);
    int deaf = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), full = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    KVT_NEED(bind(deaf, (struct sockaddr *)&at, sizeof at) == 0);
    while (sendto(full, "x", 1, MSG_DONTWAIT, (struct sockaddr *)&at, sizeof at) == 1) continue;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("NOTIFY_SOCKET", at.sun_path, 1);
        execl(KVD_BINARY, "kvd", "--config", daemon_.config, (char *)NULL);
        _exit(127);
    }
    KVT_TRUE(e2e_until(serves_now, NULL, 60, NULL));
    for (int i = 0; i < 10; i++) kill(pid, SIGHUP);
    KVT_TRUE(serves_now(NULL));
    kill(pid, SIGTERM);
    KVT_EQ_I(kvt_wait(pid), 0);
    close(deaf);
    close(full);
    e2e_daemon_free(&daemon_);
}

/* ---- few threads, little memory ------------------------------------------------------------------------------- */

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
#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
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
    static const struct kvt_case cases[] = { KVT_CASE(srv_8_library_unloaded),
                                             KVT_CASE(srv_8_library_unloaded_by_python),
                                             KVT_CASE(srv_8_second_daemon_on_the_arena),
                                             KVT_CASE(srv_8_regions_cannot_be_cut),
                                             KVT_CASE(srv_2_pools_beyond_memory),
                                             KVT_CASE(cap_2_pools_in_a_control_group),
                                             KVT_CASE(srv_2_file_at_a_name_of_kvd),
                                             KVT_CASE(srv_2_socket_of_another_program),
                                             KVT_CASE(srv_7_reload_waits_for_nobody),
                                             KVT_CASE(reload_of_a_good_file),
                                             KVT_CASE(srv_2_hostile_parent),
                                             KVT_CASE(srv_7_notices_that_nobody_reads),
                                             KVT_CASE(srv_2_few_threads),
                                             KVT_CASE(srv_2_little_address_space),
                                             { 0 } };
    return kvt_main("surroundings", cases, argc, argv);
}
