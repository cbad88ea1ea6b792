/* SPDX-License-Identifier: Apache-2.0
 * Who gets in, how far, and what the rest costs: real users and groups, roles, tenants, floods of sessions and of idle
 * connections, junk on every port that the daemon has (SRV-2, SRV-3, CONT-2). Needs root, to be other users. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "raw.h"
#include "scene.h"

#define ANN 4711u
#define BOB 4712u
#define CREW 4720u /* a group */

static struct e2e_daemon daemon_;

/* A daemon whose socket every user of the machine can reach. */
static bool open_stage(const char *more) {
    char text[1024];
    snprintf(text, sizeof text, "[kvd]\nsocket_mode = 0666\n%s", more);
    return e2e_daemon_start(&daemon_, &(struct e2e_setup){ .more = text }) && KVT_OK(chmod(daemon_.dir, 0755));
}

static void close_stage(void) { e2e_daemon_free(&daemon_); }

static bool is_root(void) {
    if (geteuid() == 0) return true;
    printf("    skipped: only root can be other users\n");
    return false;
}

/* ---- users ------------------------------------------------------------------------------------ */

static bool start_as(struct puppet *p, uint32_t uid, uint32_t gid, uint32_t group) {
    struct puppet_call call = { .op = PUPPET_BECOME, .from = uid, .to = gid, .n = group };
    struct puppet_answer answer;
    return puppet_start(p) && KVT_TRUE(puppet_do(p, &call, &answer)) && KVT_EQ(answer.status, KVD_OK);
}

static struct puppet_answer connect_as(struct puppet *p, enum kvd_role role) {
    struct puppet_call call = { .op = PUPPET_CONNECT, .role = role, .timeout_ms = 60000 * E2E_SLOW };
    struct puppet_answer answer;
    snprintf(call.socket, sizeof call.socket, "%s", daemon_.socket);
    snprintf(call.name, sizeof call.name, "uid-puppet");
    KVT_TRUE(puppet_do(p, &call, &answer));
    return answer;
}

/* SRV-3: the configuration's users and groups, against what the kernel says; the socket's mode comes before both. */
static void srv_3_users_and_groups(void) {
    static const struct {
        uint32_t uid, gid, group, role, status;
        const char *word;
    } tries[] = {
        { ANN, 9, 0, KVD_ROLE_WORKER, KVD_OK, "" },
        { ANN, 9, 0, KVD_ROLE_SCHEDULER, KVD_PERMISSION_DENIED,
          "uid 4711 gid 9 and 0 other groups may not be scheduler" },
        { BOB, 9, 0, KVD_ROLE_WORKER, KVD_PERMISSION_DENIED, "uid 4712 gid 9 may not be worker" },
        { BOB, CREW, 0, KVD_ROLE_SCHEDULER, KVD_OK, "" }, /* primary */
        { BOB, 9, CREW, KVD_ROLE_SCHEDULER, KVD_OK, "" }, /* supplementary */
        { BOB, 9, 4721, KVD_ROLE_SCHEDULER, KVD_PERMISSION_DENIED, "and 1 other groups" },
        { BOB, 9, CREW, KVD_ROLE_ADMIN, KVD_PERMISSION_DENIED, "admin =" },
        { BOB, 9, 0, KVD_ROLE_OBSERVER, KVD_OK, "" },
    };
    if (!is_root() || !open_stage("[access]\nworker = uid:4711\nscheduler = gid:4720\n")) return;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct puppet p;
        if (!start_as(&p, tries[i].uid, tries[i].gid, tries[i].group)) break;
        struct puppet_answer answer = connect_as(&p, tries[i].role);
        KVT_EQ(answer.status, tries[i].status);
        KVT_HAS(answer.message, tries[i].word);
        if (answer.status != KVD_OK) printf("    %s\n", answer.message);
        puppet_kill(&p);
    }
    struct puppet p;
    KVT_OK(chmod(daemon_.socket, 0660));
    if (start_as(&p, ANN, 9, 0)) {
        struct puppet_answer answer = connect_as(&p, KVD_ROLE_OBSERVER);
        KVT_FALSE(answer.status == KVD_OK);
        printf("    %s\n", answer.message);
        puppet_kill(&p);
    }
    close_stage();
}

/* SRV-3: a user that may be a worker does a worker's work and nothing else, whatever it asks for. */
static void srv_3_wrong_role(void) {
    struct puppet p;
    struct puppet_answer answer;
    if (!is_root() || !open_stage("[access]\nworker = uid:4711\n")) return;
    kvd_client *root = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "root");
    if (!root || !start_as(&p, ANN, 9, 0)) return;
    kvd_session_id session = connect_as(&p, KVD_ROLE_WORKER).session;
    KVT_TRUE(puppet_attach(&p, 0));
    struct kvd_stats before = scene_stats(root);
    struct puppet_call calls[] = { { .op = PUPPET_ACTIVATE, .activation = scene_want(session, 100, 10) },
                                   { .op = PUPPET_RELEASE, .continuation.bits = 0x100000000 } };
    for (int i = 0; i < 2; i++) {
        KVT_TRUE(puppet_do(&p, &calls[i], &answer));
        KVT_EQ(answer.status, KVD_PERMISSION_DENIED);
        KVT_HAS(answer.message, "role");
    }
    struct kvd_stats after = scene_stats(root);
    KVT_TRUE(e2e_same_resources(&before, &after));
    struct kvd_activated a = scene_run(root, &p, session, e2e_stream(1, 9000, 0), 100, 10); /* its own work */
    struct kvd_finish how = { .sequence = a.sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(root, &how, &finished, NULL), KVD_OK);
    puppet_kill(&p);
    kvd_disconnect(root);
    close_stage();
}

/* ---- tenants ------------------------------------------------------------------------------------ */

static kvd_sequence tenant_runs(struct puppet *p, kvd_session_id session, uint64_t seed, uint32_t n) {
    struct puppet_call call = { .op = PUPPET_ACTIVATE, .activation = scene_want(session, n, 10) };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(p, &call, &answer));
    if (!KVT_EQ(answer.status, KVD_OK)) printf("    %s\n", answer.message);
    kvd_sequence sequence = answer.activated.sequence;
    KVT_EQ(scene_round(p, sequence, n, KVD_UNCHANGED).status, KVD_OK);
    call = (struct puppet_call){ .op = PUPPET_NAME, .sequence = sequence, .seed = seed, .n = n };
    KVT_TRUE(puppet_do(p, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    return sequence;
}

static kvd_continuation tenant_keeps(struct puppet *p, kvd_session_id session, uint64_t seed, uint32_t n) {
    struct puppet_call call = { .op = PUPPET_FINISH,
                                .finish = { .sequence = tenant_runs(p, session, seed, n), .retain = true } };
    struct puppet_answer answer;
    e2e_tail(seed, n, &call.finish.tail);
    KVT_TRUE(puppet_do(p, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    return answer.finished.continuation;
}

/* Tokens that the best hit saves; of what. */
static uint32_t tenant_finds(struct puppet *p, uint64_t seed, uint32_t n, kvd_continuation *ret_of) {
    struct puppet_call call = { .op = PUPPET_FIND, .seed = seed, .n = n };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(p, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    *ret_of = answer.hits[0].continuation;
    return answer.n ? answer.hits[0].usable : 0;
}

static uint32_t count_continuations(kvd_client *client) {
    struct kvd_continuation_info infos[8];
    uint32_t cursor = 0, n = 0, all = 0;
    while (cursor != KVD_UNCHANGED && KVT_EQ(kvd_list_continuations(client, NULL, &cursor, infos, 8, &n, NULL), KVD_OK))
        all += n;
    return all;
}

static bool two_kept(void *client) { return count_continuations(client) == 2; }

/* CONT-2: equal tokens of two users do not meet, whether the prefix was kept, is asked for by handle, or is what a
 * killed process left. */
static void cont_2_tenants_do_not_meet(void) {
    struct puppet ann, bob;
    struct puppet_answer answer;
    uint64_t seed = e2e_stream(7, 9000, 0);
    kvd_continuation of, small;
    if (!is_root() || !open_stage("[access]\nscheduler = *\ntenants = uid\n")) return;
    if (!start_as(&ann, ANN, 9, 0) || !start_as(&bob, BOB, 9, 0)) return;
    kvd_client *root = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "root");
    KVT_NEED(root);
    kvd_session_id a = connect_as(&ann, KVD_ROLE_SCHEDULER).session, b = connect_as(&bob, KVD_ROLE_SCHEDULER).session;
    kvd_continuation kept = tenant_keeps(&ann, a, seed, 300);
    KVT_EQ(tenant_finds(&ann, seed, 301, &of), 300);
    KVT_EQ(of.bits, kept.bits);
    KVT_EQ(tenant_finds(&bob, seed, 301, &of), 0);
    small = tenant_keeps(&ann, a, seed, 40); /* shorter than a page */
    KVT_EQ(tenant_finds(&bob, seed, 41, &of), 0);
    KVT_EQ(tenant_finds(&ann, seed, 41, &of), 40);
    KVT_EQ(of.bits, small.bits);
    struct puppet_call fork = { .op = PUPPET_ACTIVATE, .activation = scene_want(b, 320, 10) };
    fork.activation.from = kept;
    fork.activation.keep = true;
    fork.activation.frontier = 300;
    KVT_TRUE(puppet_do(&bob, &fork, &answer));
    KVT_EQ(answer.status, KVD_NOT_FOUND);
    printf("    %s\n", answer.message);
    struct puppet_call release = { .op = PUPPET_RELEASE, .continuation = kept };
    KVT_TRUE(puppet_do(&bob, &release, &answer));
    KVT_EQ(answer.status, KVD_NOT_FOUND);
    KVT_EQ(scene_find(root, seed, 301).usable, 0); /* root lists it, and does not find it either */
    KVT_EQ(count_continuations(root), 2);
    KVT_EQ(kvd_release(root, kept, NULL), KVD_OK);
    KVT_EQ(tenant_finds(&ann, seed, 301, &of), 40); /* its user has only the other one now */
    tenant_runs(&ann, a, seed, 300);
    puppet_kill(&ann); /* SRV-5: what it leaves is a continuation of its user's */
    KVT_TRUE(e2e_until(two_kept, root, 60, NULL));
    KVT_EQ(tenant_finds(&bob, seed, 301, &of), 0);
    if (start_as(&ann, ANN, 9, 0)) {
        KVT_EQ(connect_as(&ann, KVD_ROLE_SCHEDULER).status, KVD_OK);
        KVT_TRUE(tenant_finds(&ann, seed, 301, &of) >= 256);
        puppet_kill(&ann);
    }
    scene_audit(root);
    puppet_kill(&bob);
    kvd_disconnect(root);
    close_stage();
}

static bool moved_as(struct puppet *p, enum puppet_op op, kvd_continuation c, enum kvd_status expected) {
    struct puppet_call call = { .op = op, .continuation = c };
    struct puppet_answer answer;
    return KVT_TRUE(puppet_do(p, &call, &answer)) && KVT_EQ(answer.status, expected);
}

/* CONT-2, CONT-3: nor do they meet in the arena, and it remembers whose what is when the daemon has been killed, and
 * when it stopped. */
static void cont_2_tenants_over_a_restart(void) {
    struct puppet ann, bob;
    uint64_t seed = e2e_stream(8, 9000, 0);
    kvd_continuation of;
    if (!is_root() || !open_stage("[access]\nscheduler = *\ntenants = uid\n[host]\narena = 16MiB\n")) return;
    for (int run = 0; run < 3; run++) {
        if (!start_as(&ann, ANN, 9, 0) || !start_as(&bob, BOB, 9, 0)) return;
        kvd_client *root = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "root");
        KVT_NEED(root);
        kvd_session_id a = connect_as(&ann, KVD_ROLE_SCHEDULER).session;
        KVT_EQ(connect_as(&bob, KVD_ROLE_SCHEDULER).status, KVD_OK);
        kvd_continuation kept = run == 0 ? tenant_keeps(&ann, a, seed, 256) : (kvd_continuation){ 0 };
        KVT_EQ(tenant_finds(&ann, seed, 257, &of), 256);
        if (run == 0) KVT_EQ(of.bits, kept.bits);
        KVT_EQ(tenant_finds(&bob, seed, 257, &kept), 0);
        KVT_EQ(count_continuations(root), 1);
        moved_as(&bob, PUPPET_DEMOTE, of, KVD_NOT_FOUND);
        moved_as(&ann, PUPPET_DEMOTE, of, KVD_OK);
        moved_as(&bob, PUPPET_PREFETCH, of, KVD_NOT_FOUND);
        moved_as(&bob, PUPPET_DROP, of, KVD_NOT_FOUND);
        moved_as(&bob, PUPPET_RELEASE, of, KVD_NOT_FOUND);
        KVT_EQ(tenant_finds(&ann, seed, 257, &of), 256);
        scene_audit(root);
        puppet_kill(&ann);
        puppet_kill(&bob);
        kvd_disconnect(root);
        KVT_EQ_I(e2e_daemon_stop(&daemon_, run ? SIGTERM : SIGKILL), run ? 0 : -SIGKILL);
        if (!e2e_daemon_restart(&daemon_)) return;
    }
    close_stage();
}

/* ---- ports ---------------------------------------------------------------------------------------- */

struct ports {
    unsigned sockets, unix_listening, tcp, unknown;
    char unix_path[4][108];
    unsigned tcp_port;
};

/* Looks an inode up in a table of /proc/PID/net; the line's fields by their order. */
static bool in_table(const char *table, unsigned inode_field, unsigned long inode, char *ret_line, size_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/net/%s", (int)daemon_.pid, table);
    FILE *f = fopen(path, "r");
    bool found = false;
    while (f && !found && fgets(ret_line, (int)bytes, f)) {
        char copy[512], *save = NULL, *word = copy;
        snprintf(copy, sizeof copy, "%s", ret_line);
        word = strtok_r(copy, " \n", &save);
        for (unsigned i = 0; word && i < inode_field; i++) word = strtok_r(NULL, " \n", &save);
        found = word && strtoul(word, NULL, 10) == inode;
    }
    if (f) fclose(f);
    return found;
}

static void look_at_socket(struct ports *p, unsigned long inode) {
    char line[512], path[200] = "";
    unsigned flags = 0, address, port;
    p->sockets++;
    if (in_table("unix", 6, inode, line, sizeof line)) {
        sscanf(line, "%*s %*s %*s %x %*s %*s %*s %199s", &flags, path);
        if (flags & 0x10000 && p->unix_listening < 4) snprintf(p->unix_path[p->unix_listening++], 108, "%.107s", path);
    } else if (in_table("tcp", 9, inode, line, sizeof line)) {
        p->tcp++;
        KVT_EQ_I(sscanf(line, "%*s %x:%x", &address, &port), 2);
        KVT_EQ(address, htonl(INADDR_LOOPBACK));
        p->tcp_port = port;
    } else {
        p->unknown++; /* tcp6, udp, raw, netlink, packet, or bound to nothing yet */
    }
}

static struct ports ports_of_daemon(void) {
    struct ports p = { 0 };
    char dir[64], path[400], target[128];
    unsigned long inode;
    snprintf(dir, sizeof dir, "/proc/%d/fd", (int)daemon_.pid);
    DIR *listing = opendir(dir);
    for (struct dirent *e; listing && (e = readdir(listing));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        if (sscanf(target, "socket:[%lu]", &inode) == 1) look_at_socket(&p, inode);
    }
    if (listing) closedir(listing);
    return p;
}

static unsigned free_port(void) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KVT_OK(bind(fd, (struct sockaddr *)&a, sizeof a));
    KVT_OK(getsockname(fd, (struct sockaddr *)&a, &bytes));
    close(fd);
    return ntohs(a.sin_port);
}

/* Control is a Unix socket and nothing else; figures are on a Unix socket, on a loopback address, or nowhere. Looked at
 * from outside, with clients connected. */
static void srv_3_no_port_but_these(void) {
    char more[300];
    unsigned port = free_port();
    for (int http = 0; http < 3; http++) {
        struct ports p;
        if (!open_stage("")) return;
        if (http) { /* the path needs the folder: start again with it */
            FILE *f = fopen(daemon_.config, "a");
            if (http == 1) snprintf(more, sizeof more, "[http]\nlisten = 127.0.0.1:%u\n", port);
            else snprintf(more, sizeof more, "[http]\nlisten = unix:%s/http.sock\n", daemon_.dir);
            KVT_TRUE(f && fputs(more, f) > 0 && fclose(f) == 0);
            KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
            if (!e2e_daemon_restart(&daemon_)) return;
        }
        kvd_client *client = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "client");
        p = ports_of_daemon();
        printf("    %u sockets: %u Unix listening, %u TCP, %u of another kind\n", p.sockets, p.unix_listening, p.tcp,
               p.unknown);
        KVT_TRUE(p.sockets >= 2); /* the listener and the client's */
        KVT_EQ(p.unknown, 0);
        KVT_EQ(p.tcp, http == 1);
        if (http == 1) KVT_EQ(p.tcp_port, port);
        KVT_EQ(p.unix_listening, http == 2 ? 3 : 2); /* of clients, of descriptors, of monitoring */
        for (unsigned i = 0; i < p.unix_listening; i++)
            KVT_TRUE(strncmp(p.unix_path[i], daemon_.dir, strlen(daemon_.dir)) ==
                     0); /* in a folder, not an abstract name */
        kvd_disconnect(client);
        close_stage();
    }
}

static int dial_tcp(unsigned port) {
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(fd, (struct sockaddr *)&a, sizeof a)) return fd;
    close(fd);
    return -1;
}

static bool junk_is_counted(void *witness) { return scene_stats(witness).frames_bad > 0; }
static bool few_files(void *most) { return e2e_fd_count(daemon_.pid) <= *(unsigned *)most; }

/* SRV-2: random bytes, frames and HTTP, each to every port that the daemon has: it serves on, and holds what it held.
 */
static void srv_2_junk_on_every_port(void) {
    static const char http[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n";
    uint64_t seed = kvt_seed();
    uint8_t bytes[3000];
    char more[64];
    snprintf(more, sizeof more, "[http]\nlisten = 127.0.0.1:%u\n", free_port());
    if (!open_stage(more)) return;
    kvd_client *witness = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "witness");
    KVT_NEED(witness);
    struct ports p = ports_of_daemon();
    unsigned files = e2e_fd_count(daemon_.pid);
    KVT_EQ(p.tcp + p.unix_listening, 3);
    for (unsigned i = 0; i < 300 / E2E_SLOW; i++) {
        int fd = i % 2 ? dial_tcp(p.tcp_port) : raw_connect(daemon_.socket);
        size_t n = 1 + kvt_below(&seed, sizeof bytes);
        for (size_t k = 0; k < n; k++) bytes[k] = (uint8_t)kvt_random(&seed);
        if (i % 6 < 2) frame_head_write(bytes, (uint16_t)kvt_below(&seed, 70), 0, 1, n > 16 ? n - 16 : 0);
        else if (i % 6 < 4) memcpy(bytes, http, n = sizeof http - 1);
        raw_send(fd, bytes, n);
        if (i % 3 == 0) shutdown(fd, SHUT_WR);
        close(fd);
        if (i % 50 == 0) scene_stats(witness);
    }
    KVT_TRUE(e2e_until(junk_is_counted, witness, 60, NULL)); /* the witness has a ring, and may be served before it */
    KVT_TRUE(e2e_until(few_files, &files, 60, NULL));
    kvd_disconnect(witness);
    close_stage();
}

/* ---- floods ------------------------------------------------------------------------------------------ */

/* A process that begins when a byte comes and writes its report when it is done; then it holds what it has until it is
 * killed. */
struct flood {
    pid_t pid;
    int go, done;
};
struct report {
    unsigned asked, granted, refused, other;
    char message[KVD_MESSAGE_BYTES];
};

/* Before the test itself has threads. */
static bool flood_start(struct flood *f, void (*run)(struct report *)) {
    int go[2], done[2];
    char byte;
    if (!KVT_OK(pipe2(go, O_CLOEXEC)) || !KVT_OK(pipe2(done, O_CLOEXEC))) return false;
    f->pid = fork();
    if (f->pid == 0) {
        struct report report = { 0 };
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (read(go[0], &byte, 1) != 1) _exit(1);
        run(&report);
        if (write(done[1], &report, sizeof report) != (ssize_t)sizeof report) _exit(1);
        for (;;) pause();
    }
    close(go[0]);
    close(done[1]);
    f->go = go[1];
    f->done = done[0];
    return KVT_TRUE(f->pid > 0);
}

static bool flood_ends(const struct flood *f, int wait_ms, struct report *ret_report) {
    struct pollfd p = { .fd = f->done, .events = POLLIN };
    if (poll(&p, 1, wait_ms) != 1) return false;
    if (read(f->done, ret_report, sizeof *ret_report) != (ssize_t)sizeof *ret_report)
        memset(ret_report, 0, sizeof *ret_report);
    return true;
}

static void flood_kill(struct flood *f) {
    kill(f->pid, SIGKILL);
    waitpid(f->pid, NULL, 0);
    close(f->go);
    close(f->done);
}

static void flood_sessions(struct report *report) {
    struct msg_request hello = {
        .type = FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_OBSERVER, .name = "flood" }
    };
    struct msg_reply reply;
    if (setgid(9) || setuid(ANN)) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (; report->asked < 200; report->asked++) {
        int fd = raw_connect(daemon_.socket); /* stays open */
        enum kvd_status status = raw_request(fd, &hello, 1) ? raw_reply(fd, &reply) : KVD_UNKNOWN;
        if (status == KVD_OK) report->granted++;
        else if (status != KVD_RESOURCE_EXHAUSTED) report->other++;
        else if (report->refused++ == 0) memcpy(report->message, reply.message, sizeof report->message);
    }
}

static bool one_session(void *client) { return scene_stats(client).sessions == 1; }

/* One user's processes get their share of the sessions and words for the rest; another user is let in meanwhile. */
static void srv_2_flood_of_sessions(void) {
    struct flood flood;
    struct report report = { 0 };
    if (!is_root() || !open_stage("[limits]\nsessions = 8\nsessions_per_uid = 4\n")) return;
    if (!flood_start(&flood, flood_sessions)) return;
    kvd_client *witness = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "witness");
    KVT_NEED(witness);
    KVT_EQ_I(write(flood.go, "", 1), 1);
    KVT_TRUE(flood_ends(&flood, 20000 * E2E_SLOW, &report));
    KVT_EQ(report.asked, 200);
    KVT_EQ(report.granted, 4);
    KVT_EQ(report.refused, 196);
    KVT_HAS(report.message, "uid 4711 has 4 sessions");
    printf("    %s\n", report.message);
    kvd_client *newcomer = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "newcomer");
    KVT_EQ(scene_stats(witness).sessions, 6);
    kvd_disconnect(newcomer);
    flood_kill(&flood);
    KVT_TRUE(e2e_until(one_session, witness, 60, NULL));
    kvd_disconnect(witness);
    close_stage();
}

#define IDLE (10000 / E2E_SLOW)
#define CONNECTIONS 320u /* the default */

static void flood_idle(struct report *report) {
    static struct pollfd fds[IDLE];
    struct rlimit limit = { IDLE + 100, IDLE + 100 };
    if (setrlimit(RLIMIT_NOFILE, &limit)) return;
    for (; report->asked < IDLE; report->asked++) {
        fds[report->asked] = (struct pollfd){ .fd = raw_connect(daemon_.socket), .events = POLLIN };
        if (fds[report->asked].fd < 0) return;
    }
    /* All but as many as the daemon lets wait are closed by it. */
    while (report->asked - report->refused > CONNECTIONS) {
        report->refused = 0;
        if (poll(fds, IDLE, 10000) < 1) return;
        for (unsigned i = 0; i < IDLE; i++) report->refused += fds[i].revents != 0;
    }
}

struct served {
    unsigned n;
    double worst_ms, sum_ms;
};

static void serve_once(struct served *s, double begin) {
    double ms = (e2e_now() - begin) * 1e3;
    s->n++;
    s->sum_ms += ms;
    if (ms > s->worst_ms) s->worst_ms = ms;
}

static void newcomer(struct served *s) {
    double begin = e2e_now();
    kvd_client *c = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "newcomer");
    if (c) scene_stats(c);
    serve_once(s, begin);
    kvd_disconnect(c);
}

/* SRV-2: 10,000 connections that say nothing and stay. As many as are allowed are held, the rest are closed; whoever
 * speaks is served, also who comes while every place is taken; memory and descriptors are bounded, and come back. */
static void srv_2_ten_thousand_idle(void) {
    struct flood flood;
    struct report report = { 0 };
    struct served old = { 0 }, new = { 0 };
    if (!is_root() || !open_stage("[limits]\nhandshake_timeout = 60s\n")) return;
    if (!flood_start(&flood, flood_idle)) return;
    kvd_client *witness = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "witness");
    KVT_NEED(witness);
    scene_stats(witness);
    unsigned files = e2e_fd_count(daemon_.pid), peak = 0, now;
    uint64_t rss = e2e_rss_bytes(daemon_.pid);
    double begin = e2e_now();
    KVT_EQ_I(write(flood.go, "", 1), 1);
    while (!flood_ends(&flood, 0, &report) && KVT_TRUE(e2e_now() < begin + 60 * E2E_SLOW)) {
        double at = e2e_now();
        scene_stats(witness);
        serve_once(&old, at);
        if (old.n % 16 == 0) newcomer(&new);
        if ((now = e2e_fd_count(daemon_.pid)) > peak) peak = now;
    }
    KVT_EQ(report.asked, IDLE);
    KVT_TRUE(report.refused >= IDLE - CONNECTIONS);
    unsigned most = files + 2 * (CONNECTIONS + 32) + 8; /* a socket and a pidfd each; listener.c closes some late */
    uint64_t during = e2e_rss_bytes(daemon_.pid);
    KVT_TRUE(peak <= 3 * CONNECTIONS + 128); /* what the daemon raises its limit for (main.c) */
    KVT_TRUE(e2e_until(few_files, &most, 60, NULL));
    KVT_TRUE(e2e_fd_count(daemon_.pid) > files + CONNECTIONS); /* they are all there */
    KVT_TRUE(E2E_SLOW > 1 || during < rss + (16 << 20));
    newcomer(&new); /* every place is taken by one that is silent */
    printf("    %u connections in %.1f s, %u closed by kvd, %u files at most; meanwhile %u requests, %.2f ms on "
           "average, %.1f ms at "
           "worst, and %u newcomers, %.2f and %.1f ms\n",
           report.asked, e2e_now() - begin, report.refused, peak, old.n, old.sum_ms / old.n, old.worst_ms, new.n,
           new.sum_ms / new.n, new.worst_ms);
    KVT_TRUE(old.worst_ms < 10000 * E2E_SLOW && new.worst_ms < 10000 * E2E_SLOW);
    flood_kill(&flood);
    KVT_TRUE(e2e_until(few_files, &files, 60, NULL));
    printf("    anonymous memory %.1f MiB, %.1f with them, %.1f after them\n", (double)rss / 1048576,
           (double)during / 1048576, (double)e2e_rss_bytes(daemon_.pid) / 1048576);
    KVT_TRUE(E2E_SLOW > 1 || e2e_rss_bytes(daemon_.pid) < rss + (8 << 20));
    kvd_disconnect(witness);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_3_users_and_groups),
                                             KVT_CASE(srv_3_wrong_role),
                                             KVT_CASE(cont_2_tenants_do_not_meet),
                                             KVT_CASE(cont_2_tenants_over_a_restart),
                                             KVT_CASE(srv_3_no_port_but_these),
                                             KVT_CASE(srv_2_junk_on_every_port),
                                             KVT_CASE(srv_2_flood_of_sessions),
                                             KVT_CASE(srv_2_ten_thousand_idle),
                                             { 0 } };
    signal(SIGPIPE, SIG_IGN);
    return kvt_main("e2e access", cases, argc, argv);
}
