/* SPDX-License-Identifier: Apache-2.0
 * The segment: made, adopted, refused, replaced; in the face of kills, damage and shortage. HOST-1, HOST-7, CAP-7,
 * CONT-3 (host part), SRV-8. */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kvt.h"
#include "segment_internal.h"

#define MIB (UINT64_C(1) << 20)
#if defined KVD_SANITIZE_ADDRESS || defined KVD_SANITIZE_THREAD /* their mlock does nothing */
#define MLOCK_DOES_NOTHING true
#else
#define MLOCK_DOES_NOTHING false
#endif
static char err[512];
static char test_name[64]; /* "/kvd-test-segment-PID" */

static struct segment_config config_of(uint64_t arena_bytes) {
    struct segment_config c = { .name = test_name,
                                .arena_bytes = arena_bytes,
                                .numa_node = SEGMENT_ANY_NODE,
                                .limits = { .n_pools = 2, .pages = { 100, 50 }, .continuations = 10, .sequences = 5 } };
    memset(c.geometry, 7, sizeof c.geometry);
    return c;
}

static struct segment *open_as(const struct segment_config *config, enum segment_found want) {
    struct segment *segment = NULL;
    enum segment_found found = (enum segment_found)99;
    err[0] = '\0';
    if (!KVT_OK(segment_open(config, &segment, &found, err, sizeof err))) fprintf(stderr, "%s\n", err);
    KVT_EQ(found, want);
    return segment;
}

static int refusal_of(const struct segment_config *config) {
    struct segment *segment = NULL;
    enum segment_found found;
    struct timespec begin, end;
    err[0] = '\0';
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int r = segment_open(config, &segment, &found, err, sizeof err);
    clock_gettime(CLOCK_MONOTONIC, &end);
    KVT_TRUE(segment == NULL);
    KVT_TRUE(end.tv_sec - begin.tv_sec < 6); /* touching what is refused would take far longer */
    return r;
}

static int object_fd(void) { return shm_open(test_name, O_RDWR | O_CLOEXEC, 0); }

static bool look_at(struct stat *st) {
    int fd = object_fd();
    bool there = fd >= 0 && fstat(fd, st) == 0;
    if (fd >= 0) close(fd);
    return there;
}

/* ---- records to know a segment by ------------------------------------------------------------------------------- */

static const struct segment_driver DRIVER = { 4711, 99887766 };

static void leave_records(struct segment *s) {
    directory_page_open(segment_directory(s), 1, 49, &(struct directory_base){ 3, 0, DIRECTORY_NONE, 0 });
    directory_page_host(segment_directory(s), 1, 49, &(struct directory_host){ 512, 77, 64 });
    segment_set_pools_id(s, 12345);
    KVT_OK(segment_driver_add(s, &DRIVER));
    if (segment_arena(s)) {
        memset(segment_arena(s), 0x5a, 1000);
        segment_arena(s)[segment_arena_bytes(s) - 1] = 0x77;
    }
}

static bool has_record(struct segment *s) {
    struct directory_page page;
    bool damaged;
    return directory_page_load(segment_directory(s), 1, 49, &page, &damaged) && page.has_host &&
           page.host.checksum == 77;
}

static void check_records(struct segment *s) {
    struct segment_driver driver = { 0, 0 };
    KVT_TRUE(has_record(s));
    KVT_EQ(segment_pools_id(s), 12345);
    KVT_EQ(segment_drivers(s, &driver, 1), 1);
    KVT_TRUE(driver.pid == DRIVER.pid && driver.start_time == DRIVER.start_time);
    if (!segment_arena(s)) return;
    for (int i = 0; i < 1000; i++) KVT_EQ(segment_arena(s)[i], 0x5a);
    KVT_EQ(segment_arena(s)[segment_arena_bytes(s) - 1], 0x77);
}

static void check_empty(struct segment *s, uint32_t drivers) {
    struct segment_driver driver;
    KVT_FALSE(has_record(s));
    KVT_EQ(segment_pools_id(s), 0);
    KVT_EQ(segment_drivers(s, &driver, 1), drivers);
}

static void leave_segment(const struct segment_config *config) {
    segment_destroy(test_name);
    struct segment *s = open_as(config, SEGMENT_NEW);
    leave_records(s);
    segment_close(s);
}

/* ---- made and adopted -------------------------------------------------------------------------------------------- */

/* HOST-1, CONT-3: one object, all of it there; what the next kvd opens is what was left, byte for byte. */
static void host_1_adopted_as_it_was(void) {
    struct segment_config c = config_of(40 * MIB + 1);
    struct stat st;
    struct segment *s = open_as(&c, SEGMENT_NEW);
    KVT_NEED(s);
    KVT_EQ(segment_arena_bytes(s), 40 * MIB + 4096);
    KVT_EQ((uintptr_t)segment_arena(s) % 4096, 0);
    KVT_NEED(look_at(&st));
    KVT_EQ(st.st_size, 2 * MIB + 40 * MIB + 4096);
    KVT_TRUE((uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size);
    KVT_EQ(st.st_mode & 07777, 0600);
    check_empty(s, 0);
    leave_records(s);
    segment_close(s);
    c.threads = 3, c.mode = 0640;
    s = open_as(&c, SEGMENT_ADOPTED);
    KVT_NEED(s);
    check_records(s);
    KVT_TRUE(look_at(&st) && (st.st_mode & 07777) == 0640);
    segment_empty(s); /* nothing of before counts, now and later; drivers and pools are another matter */
    KVT_FALSE(has_record(s));
    directory_page_open(segment_directory(s), 0, 0, &(struct directory_base){ 1, 0, DIRECTORY_NONE, 0 });
    segment_close(s);
    s = open_as(&c, SEGMENT_ADOPTED);
    KVT_NEED(s);
    KVT_FALSE(has_record(s));
    KVT_TRUE(directory_page_is_open(segment_directory(s), 0, 0));
    KVT_EQ(segment_pools_id(s), 12345);
    segment_close(s);
    segment_close(NULL);
    segment_destroy(test_name);
    segment_destroy(test_name);
    KVT_FALSE(look_at(&st));
}

/* HOST-7: capacity 0 is legal; the directory is there all the same. */
static void host_7_no_arena(void) {
    struct segment_config c = config_of(0);
    struct stat st;
    c.mode = 0604;
    struct segment *s = open_as(&c, SEGMENT_NEW);
    KVT_NEED(s);
    KVT_TRUE(look_at(&st) && (st.st_mode & 07777) == 0604);
    KVT_TRUE(segment_arena(s) == NULL);
    KVT_EQ(segment_arena_bytes(s), 0);
    leave_records(s);
    segment_close(s);
    s = open_as(&c, SEGMENT_ADOPTED);
    KVT_NEED(s);
    check_records(s);
    segment_close(s);
    segment_destroy(test_name);
}

static void leave_unfinished(void) {
    char next[128];
    snprintf(next, sizeof next, "%s.next", test_name);
    int fd = shm_open(next, O_CREAT | O_RDWR, 0600);
    KVT_TRUE(fd >= 0 && ftruncate(fd, 3 * MIB) == 0);
    close(fd);
}

/* SRV-8: what cannot be used is replaced, never resized or written: who maps the old object keeps its bytes. */
static void srv_8_foreign_is_replaced(void) {
    for (int what = 0; what < 8; what++) {
        struct segment_config c = config_of(3 * MIB), other = c;
        struct stat before, after;
        leave_segment(&c);
        KVT_NEED(look_at(&before));
        int fd = object_fd();
        if (what == 0) other.geometry[31]++;
        if (what == 1) other.limits.pages[0]++;
        if (what == 2) other.limits.pages[1]--;
        if (what == 3) other.limits.continuations++;
        if (what == 4) other.limits.sequences++;
        if (what == 5) other.limits.n_pools = 1;
        if (what == 6) other.arena_bytes = 2 * MIB;
        if (what == 7) other.arena_bytes = 5 * MIB;
        uint8_t *old = mmap(NULL, (size_t)before.st_size, PROT_READ, MAP_SHARED, fd, 0);
        KVT_NEED(old != MAP_FAILED);
        bool foreign = what == 0 || what == 5;
        struct segment *s = open_as(&other, foreign ? SEGMENT_FOREIGN : SEGMENT_RESIZED);
        KVT_NEED(s);
        check_empty(s, !foreign); /* the processes may still run a unit */
        if (!foreign) {           /* KEEP-1: the old one has the name until the new one is whole */
            KVT_TRUE(look_at(&after) && after.st_ino == before.st_ino && has_record(segment_former(s)));
            segment_close(s); /* or killed here */
            s = open_as(&c, SEGMENT_ADOPTED);
            KVT_NEED(s && has_record(s));
            segment_close(s);
            leave_unfinished(); /* and one that a kill has left */
            s = open_as(&other, SEGMENT_RESIZED);
            KVT_NEED(s);
            KVT_OK(segment_replace(s, err, sizeof err));
            KVT_TRUE(segment_former(s) == NULL);
        }
        KVT_TRUE(look_at(&after) && after.st_ino != before.st_ino);
        for (uint32_t i = 0; i < 1000; i++) KVT_EQ(old[2 * MIB + i], 0x5a);
        KVT_EQ(old[before.st_size - 1], 0x77);
        segment_close(s);
        s = open_as(&other, SEGMENT_ADOPTED);
        segment_close(s);
        munmap(old, (size_t)before.st_size);
        close(fd);
        segment_destroy(test_name);
    }
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static void turn(uint64_t offset, uint8_t bits) {
    uint8_t byte;
    int fd = object_fd();
    KVT_TRUE(pread(fd, &byte, 1, (off_t)offset) == 1);
    byte ^= bits;
    KVT_TRUE(pwrite(fd, &byte, 1, (off_t)offset) == 1);
    close(fd);
}

/* Each byte of the identity turned: never adopted. Of a state slot: adopted with what it said, or not at all. */
static void damaged_headers(void) {
    struct segment_config c = config_of(MIB);
    const uint64_t version = offsetof(struct segment_identity, version);
    for (uint64_t at = 0; at < sizeof(struct segment_identity); at += at < 16 ? 1 : 5) {
        leave_segment(&c);
        turn(at, 0x10);
        struct segment *s = open_as(&c, at >= version && at < version + 4 ? SEGMENT_FOREIGN : SEGMENT_DAMAGED);
        KVT_NEED(s);
        check_empty(s, 0);
        segment_close(s);
    }
    for (uint64_t at = offsetof(struct segment_header, state);
         at < offsetof(struct segment_header, state) + 2 * sizeof(struct state_slot); at += 3) {
        leave_segment(&c);
        turn(at, 0x10);
        struct segment *s = NULL;
        enum segment_found found;
        KVT_OK(segment_open(&c, &s, &found, err, sizeof err));
        KVT_TRUE(found == SEGMENT_ADOPTED || found == SEGMENT_DAMAGED);
        if (found == SEGMENT_ADOPTED) check_records(s);
        else check_empty(s, 0);
        segment_close(s);
    }
    segment_destroy(test_name);
}

/* SRV-8: a file that was cut short, at any length, is found out before it is mapped; noise is no segment. */
static void cut_short_and_noise(void) {
    uint64_t seed = kvt_seed();
    struct segment_config c = config_of(3 * MIB);
    static const uint64_t lengths[] = {
        0, 1, 100, 4095, 4096, 4097, 2 * MIB, 5 * MIB - 4096, 5 * MIB - 1, 5 * MIB + 4096
    };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        leave_segment(&c);
        int fd = object_fd();
        KVT_OK(ftruncate(fd, (off_t)lengths[i]));
        close(fd);
        struct segment *s = open_as(&c, lengths[i] ? SEGMENT_DAMAGED : SEGMENT_NEW);
        KVT_NEED(s);
        check_empty(s, 0);
        memset(segment_arena(s), 1, segment_arena_bytes(s));
        segment_close(s);
    }
    for (int round = 0; round < 20; round++) {
        leave_segment(&c);
        uint64_t noise[600];
        for (size_t i = 0; i < 600; i++) noise[i] = kvt_random(&seed);
        int fd = object_fd();
        KVT_EQ(pwrite(fd, noise, sizeof noise, 0), sizeof noise);
        close(fd);
        segment_close(open_as(&c, SEGMENT_DAMAGED));
    }
    leave_segment(&c); /* a hole where memory was: committed again, and no records in it */
    int fd = object_fd();
    KVT_OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * MIB, 3 * MIB));
    close(fd);
    struct segment *s = open_as(&c, SEGMENT_ADOPTED);
    KVT_NEED(s);
    struct stat st;
    KVT_TRUE(has_record(s) && look_at(&st) && st.st_blocks * 512 >= st.st_size);
    segment_close(s);
    segment_destroy(test_name);
}

/* ---- what is not ours -------------------------------------------------------------------------------------------- */

static void names_and_strangers(void) {
    struct segment_config c = config_of(MIB);
    static const char *const bad[] = { NULL, "", "/", "kvd", "/a/b", "/../tmp/x", "/..", "/." };
    char path[128], other[160];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        c.name = bad[i];
        KVT_EQ_I(refusal_of(&c), -EINVAL);
        KVT_HAS(err, "slash");
    }
    c.name = test_name;
    snprintf(path, sizeof path, "/dev/shm%s", test_name), snprintf(other, sizeof other, "%s-target", path);
    int fd = open(other, O_CREAT | O_RDWR, 0600);
    KVT_TRUE(write(fd, "mine", 4) == 4);
    close(fd);
    KVT_OK(symlink(other, path));
    KVT_EQ_I(refusal_of(&c), -ELOOP);
    KVT_HAS(err, "symbolic link");
    struct stat st;
    KVT_TRUE(stat(other, &st) == 0 && st.st_size == 4);
    unlink(path), unlink(other);
    KVT_OK(mkfifo(path, 0600));
    KVT_TRUE(refusal_of(&c) < 0);
    KVT_HAS(err, "remove");
    unlink(path);
    KVT_OK(mkdir(path, 0700));
    KVT_TRUE(refusal_of(&c) < 0);
    rmdir(path);
    if (geteuid()) {
        printf("SKIP another user's object: only root can make one\n");
        return;
    }
    leave_segment(&c);
    KVT_OK(chown(path, 12345, 12345));
    KVT_EQ_I(refusal_of(&c), -EPERM);
    KVT_HAS(err, "12345");
    KVT_TRUE(look_at(&st) && st.st_uid == 12345); /* neither used nor removed */
    segment_destroy(test_name);
}

/* SRV-8: as long as one process maps it, nobody else gets it or replaces it, whatever its configuration says; the
 * sentence names the process. When that is gone, in whatever way, it is there as it was. */
static void srv_8_locked_as_long_as_it_is_mapped(void) {
    char pid[32];
    struct segment_config c = config_of(MIB), other = c;
    struct stat before, after;
    other.geometry[0]++;
    leave_segment(&c);
    struct segment *s = open_as(&c, SEGMENT_ADOPTED);
    KVT_NEED(s && look_at(&before));
    snprintf(pid, sizeof pid, "process %d,", (int)getpid());
    for (int i = 0; i < 2; i++) {
        KVT_EQ_I(refusal_of(i ? &other : &c), -EBUSY);
        KVT_HAS(err, pid);
        KVT_HAS(err, "stop it");
    }
    KVT_TRUE(look_at(&after) && after.st_ino == before.st_ino && has_record(s));
    segment_close(s);
    s = open_as(&other, SEGMENT_FOREIGN); /* the new one is locked as the old one was */
    KVT_NEED(s);
    KVT_EQ_I(refusal_of(&c), -EBUSY);
    KVT_HAS(err, pid);
    segment_close(s);
    segment_destroy(test_name);
}

/* ---- drivers ----------------------------------------------------------------------------------------------------- */

static void drivers_are_kept(void) {
    static struct segment_driver all[SEGMENT_DRIVERS];
    struct segment_config c = config_of(0);
    struct segment *s = open_as(&c, SEGMENT_NEW);
    KVT_NEED(s);
    for (uint64_t i = 0; i < SEGMENT_DRIVERS; i++)
        KVT_OK(segment_driver_add(s, &(struct segment_driver){ i % 2000, i }));
    KVT_EQ_I(segment_driver_add(s, &(struct segment_driver){ 1, 1 << 20 }), -ENOSPC);
    KVT_OK(segment_driver_add(s, &(struct segment_driver){ 5, 5 })); /* there: the message came twice */
    segment_driver_remove(s, &(struct segment_driver){ 6, 2006 });
    segment_driver_remove(s, &(struct segment_driver){ 6, 2006 });
    segment_driver_remove(s, &(struct segment_driver){ 7, 2006 }); /* a reused pid is another process */
    KVT_EQ(segment_drivers(s, all, 10), 10);
    KVT_EQ(segment_drivers(s, all, SEGMENT_DRIVERS), SEGMENT_DRIVERS - 1);
    segment_close(s);
    turn(offsetof(struct segment_header, drivers) + 9 * sizeof(struct driver_slot), 1);
    s = open_as(&c, SEGMENT_ADOPTED);
    KVT_NEED(s);
    KVT_EQ(segment_drivers(s, all, SEGMENT_DRIVERS), SEGMENT_DRIVERS - 2);
    for (uint32_t i = 0; i < SEGMENT_DRIVERS - 2; i++)
        KVT_TRUE(all[i].pid == all[i].start_time % 2000 && all[i].start_time != 2006 && all[i].start_time != 9);
    KVT_OK(segment_driver_add(s, &(struct segment_driver){ 1, 1 << 20 }));
    KVT_OK(segment_driver_add(s, &(struct segment_driver){ 1, 2 << 20 }));
    KVT_EQ_I(segment_driver_add(s, &(struct segment_driver){ 1, 3 << 20 }), -ENOSPC);
    segment_close(s);
    segment_destroy(test_name);
}

/* ---- pinning ----------------------------------------------------------------------------------------------------- */

struct pinning {
    int answer;
    unsigned pins, unpins;
    void *address;
    uint64_t bytes;
};

static int pin(void *context, void *address, uint64_t bytes, char *text, size_t text_bytes) {
    struct pinning *p = context;
    p->pins++, p->address = address, p->bytes = bytes;
    if (p->answer) snprintf(text, text_bytes, "the device will not have it");
    return p->answer;
}

static void unpin(void *context, void *address, uint64_t bytes) {
    struct pinning *p = context;
    p->unpins++;
    KVT_TRUE(address == p->address && bytes == p->bytes);
}

/* HOST-1: the arena is pinned as a whole; a refusal is passed on, removes what was made and keeps what was found. */
static void host_1_pinned_or_refused(void) {
    struct pinning p = { .answer = -EIO };
    struct segment_config c = config_of(MIB);
    struct stat st;
    c.pin = pin, c.unpin = unpin, c.context = &p;
    KVT_EQ_I(refusal_of(&c), -EIO);
    KVT_EQ_STR(err, "the device will not have it");
    KVT_FALSE(look_at(&st));
    p.answer = 0;
    struct segment *s = open_as(&c, SEGMENT_NEW);
    KVT_NEED(s);
    KVT_TRUE(p.address == segment_arena(s) && p.bytes == MIB);
    leave_records(s);
    segment_close(s);
    KVT_TRUE(p.pins == 2 && p.unpins == 1);
    p.answer = -EIO;
    KVT_EQ_I(refusal_of(&c), -EIO);
    KVT_EQ(p.unpins, 1);
    p.answer = 0;
    s = open_as(&c, SEGMENT_ADOPTED);
    KVT_NEED(s);
    check_records(s);
    segment_close(s);
    c = config_of(0);
    c.pin = pin, c.unpin = unpin, c.context = &p;
    s = open_as(&c, SEGMENT_RESIZED);
    segment_close(s);
    KVT_TRUE(p.pins == 4 && p.unpins == 2); /* nothing to pin */
    segment_destroy(test_name);
}

/* ---- shortage ---------------------------------------------------------------------------------------------------- */

/* Runs in a child: 0 = all held, 77 = not possible here. */
static int in_child(int (*run)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(run());
    return kvt_wait(pid);
}
#define EXPECT(e)                                                                                                      \
    do {                                                                                                               \
        if (!(e)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s  [%s]\n", __FILE__, __LINE__, #e, err);                                         \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int try_open(const struct segment_config *c, enum segment_found *ret_found) {
    struct segment *s = NULL;
    err[0] = '\0';
    int r = segment_open(c, &s, ret_found, err, sizeof err);
    if (!r && segment_arena(s)) memset(segment_arena(s), 3, segment_arena_bytes(s)); /* SIGBUS, were it not all there */
    segment_close(s);
    return r;
}

static bool write_map(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return written;
}

/* A mount namespace; who is not root makes it in a user namespace, where it is itself. */
static bool own_mounts(void) {
    char user[64], group[64];
    if (geteuid() == 0) return unshare(CLONE_NEWNS) == 0;
    snprintf(user, sizeof user, "%u %u 1", geteuid(), geteuid()),
        snprintf(group, sizeof group, "%u %u 1", getegid(), getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_map("/proc/self/setgroups", "deny") &&
           write_map("/proc/self/uid_map", user) && write_map("/proc/self/gid_map", group);
}

/* A /dev/shm of 8 MiB of our own. */
static int small_shm(void) {
    if (!own_mounts() || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=8m"))
        return 77;
    struct segment_config c = config_of(64 * MIB);
    enum segment_found found;
    struct stat st;
    EXPECT(try_open(&c, &found) == -ENOSPC);
    EXPECT(strstr(err, "69206016") && strstr(err, "8388608 are free") && strstr(err, "remount,size=66M") &&
           strstr(err, "--shm-size") && strstr(err, "[host] arena"));
    EXPECT(!look_at(&st));
    c.arena_bytes = 4 * MIB;
    EXPECT(try_open(&c, &found) == 0 && found == SEGMENT_NEW);
    EXPECT(try_open(&c, &found) == 0 && found == SEGMENT_ADOPTED);
    c.geometry[0]++; /* fits only in the place of the old one */
    EXPECT(try_open(&c, &found) == 0 && found == SEGMENT_FOREIGN);
    c.arena_bytes = 3 * MIB; /* there is no memory for two of them */
    EXPECT(try_open(&c, &found) == 0 && found == SEGMENT_FOREIGN);
    c.arena_bytes = 4 * MIB;
    EXPECT(try_open(&c, &found) == 0 && found == SEGMENT_FOREIGN);
    c.arena_bytes = 7 * MIB; /* would not fit even there: the old one stays */
    EXPECT(try_open(&c, &found) == -ENOSPC);
    c.arena_bytes = 4 * MIB;
    EXPECT(try_open(&c, &found) == 0 && found == SEGMENT_ADOPTED);
    int held = object_fd(); /* somebody else has the old one still: its memory does not come back */
    c.geometry[0]++;
    EXPECT(try_open(&c, &found) == -ENOSPC && strstr(err, "2097152 are free"));
    close(held);
    EXPECT(try_open(&c, &found) == 0 && found == SEGMENT_NEW);
    segment_destroy(test_name);
    for (int by_hand = 0; by_hand < 2;
         by_hand++) { /* asked first, and taken by another meanwhile: a refusal, no SIGBUS */
        int fd = shm_open("/kvd-test-touch", O_CREAT | O_RDWR, 0600);
        EXPECT(fd >= 0 && ftruncate(fd, 100 * MIB) == 0);
        uint8_t *base = mmap(NULL, 100 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        struct segment_touch touch = {
            .fd = fd, .address = base, .bytes = 100 * MIB, .node = SEGMENT_ANY_NODE, .threads = 2, .by_hand = by_hand
        };
        EXPECT(base != MAP_FAILED && segment_touch_all(&touch, err, sizeof err) == -ENOSPC);
        EXPECT(strstr(err, "104857600") && strstr(err, "[host] arena"));
        munmap(base, 100 * MIB), close(fd), shm_unlink("/kvd-test-touch");
    }
    return 0;
}

static void shm_too_small(void) {
    int r = in_child(small_shm);
    if (r == 77) printf("SKIP /dev/shm too small: no mount namespace can be made here\n");
    else KVT_EQ_I(r, 0);
}

static int short_memlock(void) {
    struct rlimit limit = { 65536, 65536 };
    struct segment_config c = config_of(MIB);
    enum segment_found found;
    struct stat st;
    if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
        return 77;
    c.lock = true;
    if (setrlimit(RLIMIT_MEMLOCK, &limit)) return 77;
    EXPECT(try_open(&c, &found) == -EPERM);
    EXPECT(strstr(err, "3145728") && strstr(err, "65536") && strstr(err, "LimitMEMLOCK") && strstr(err, "[host] lock"));
    EXPECT(!look_at(&st));
    c.lock = false;
    EXPECT(try_open(&c, &found) == 0);
    c.lock = true; /* an adopted one needs no less */
    EXPECT(try_open(&c, &found) == -EPERM && look_at(&st));
    segment_destroy(test_name);
    limit.rlim_cur = limit.rlim_max = 100000;
    c.lock = false;
    if (setrlimit(RLIMIT_FSIZE, &limit)) return 77;
    EXPECT(try_open(&c, &found) == -EFBIG && strstr(err, "100000") && strstr(err, "LimitFSIZE"));
    return 0;
}

/* The soft limit is raised to the hard one; then everything is locked. */
static int soft_memlock(void) {
    struct rlimit limit;
    struct segment_config c = config_of(MIB);
    struct segment *s = NULL;
    enum segment_found found;
    char line[128];
    unsigned long locked = 0;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) || (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < 4 * MIB && geteuid()))
        return 77;
    if (geteuid() == 0) {
        limit.rlim_max = 4 * MIB;
        if (setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 65536, 4 * MIB }) || setgroups(0, NULL) ||
            setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
            return 77;
    } else if (setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 65536, limit.rlim_max })) return 77;
    c.lock = true;
    EXPECT(segment_open(&c, &s, &found, err, sizeof err) == 0);
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "VmLck: %lu", &locked);
    if (file) fclose(file);
    segment_close(s);
    segment_destroy(test_name);
    EXPECT(locked * 1024 >= 3 * MIB || MLOCK_DOES_NOTHING);
    return 0;
}

static void limits_of_the_process(void) {
    int r = in_child(short_memlock), soft = in_child(soft_memlock);
    if (r == 77 || soft == 77) printf("SKIP limits of the process: they cannot be set here\n");
    KVT_TRUE(r == 0 || r == 77);
    KVT_TRUE(soft == 0 || soft == 77);
}

static void too_large_by_far(void) {
    struct segment_config c = config_of(UINT64_C(1) << 50);
    struct stat st;
    KVT_EQ_I(refusal_of(&c), -ENOSPC);
    KVT_HAS(err, "1125899908939776"); /* 2^50 and what stands before */
    c.arena_bytes = UINT64_MAX;
    KVT_EQ_I(refusal_of(&c), -EFBIG);
    KVT_HAS(err, "[host] arena");
    c = config_of(MIB);
    c.limits.n_pools = 0;
    KVT_EQ_I(refusal_of(&c), -EINVAL);
    c = config_of(MIB);
    c.numa_node = 1000;
    KVT_EQ_I(refusal_of(&c), -EINVAL);
    KVT_HAS(err, "NUMA node 1000");
    c.numa_node = 100000;
    KVT_EQ_I(refusal_of(&c), -EINVAL);
    KVT_FALSE(look_at(&st));
    c.numa_node = 0;
    segment_close(open_as(&c, SEGMENT_NEW));
    segment_destroy(test_name);
    KVT_EQ_I(segment_node_of_pci("nonsense"), SEGMENT_ANY_NODE);
    KVT_EQ_I(segment_node_of_pci("ffff:ff:1f.7"), SEGMENT_ANY_NODE);
}

/* ---- memory and control groups, from a folder that stands for / ----------------------------------------------------
 */

static char root[128];

static void put_file(const char *path, const char *text) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    if (!KVT_TRUE(file != NULL)) return;
    fputs(text, file);
    fclose(file);
}

static int room_for(uint64_t bytes, uint64_t credit) {
    struct segment_need need = { .root = root,
                                 .what = "the arena with its directory needs",
                                 .lower = "[host] arena",
                                 .bytes = bytes,
                                 .shm_bytes = bytes,
                                 .credit = credit };
    err[0] = '\0';
    return segment_check_need(&need, err, sizeof err);
}

static void memory_and_groups(void) {
    char command[256];
    snprintf(root, sizeof root, "/tmp/kvd-test-room-XXXXXX");
    KVT_NEED(mkdtemp(root));
    put_file("/dev/shm/x", "");
    KVT_OK(room_for(1000, 0)); /* nothing is known */
    put_file("/proc/meminfo", "MemTotal:       2048 kB\nMemFree:        1 kB\nMemAvailable:   10 kB\n");
    KVT_OK(room_for(10240, 0));
    KVT_EQ_I(room_for(10241, 0), -ENOMEM);
    KVT_HAS(err, "10241"), KVT_HAS(err, "10240 are available"), KVT_HAS(err, "[host] arena");
    KVT_OK(room_for(10241, 1));
    put_file("/proc/meminfo", "MemAvailable:   1000 kB\n");
    put_file("/proc/self/cgroup", "0::/a/b\n"); /* v2: the group above has the limit, its page cache can go */
    put_file("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put_file("/sys/fs/cgroup/a/b/memory.current", "5\n");
    KVT_OK(room_for(90000, 0));
    put_file("/sys/fs/cgroup/a/memory.max", "8000\n");
    put_file("/sys/fs/cgroup/a/memory.current", "5000\n");
    KVT_EQ_I(room_for(3001, 0), -ENOMEM);
    KVT_HAS(err, "control group /a:"), KVT_HAS(err, "3000 are left"), KVT_HAS(err, "MemoryMax=");
    KVT_OK(room_for(3000, 0));
    put_file("/sys/fs/cgroup/a/memory.stat", "anon 7\nfile 4000\ninactive_file 300\nactive_file 200\n");
    KVT_OK(room_for(3500, 0));
    KVT_EQ_I(room_for(3501, 0), -ENOMEM);
    put_file("/proc/self/cgroup",
             "1:cpu:/q\n4:memory:/not/here\n0::/\n"); /* v1 in a container: only the mount is there */
    put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
    KVT_OK(room_for(90000, 0));
    put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "700\n");
    put_file("/sys/fs/cgroup/memory/memory.stat", "active_file 1\ntotal_active_file 10\ntotal_inactive_file 20\n");
    KVT_OK(room_for(630, 0));
    KVT_EQ_I(room_for(631, 0), -ENOMEM);
    KVT_HAS(err, "control group /:");
    snprintf(command, sizeof command, "rm -r %s", root);
    KVT_OK(system(command));
}

/* ---- touching ---------------------------------------------------------------------------------------------------- */

/* Both ways, with more threads than chunks and fewer: every page has memory, no byte changes. */
static void touch_keeps_bytes(void) {
    for (uint32_t way = 0; way < 6; way++) {
        uint64_t bytes = way % 3 == 2 ? 4096 : 70 * MIB;
        struct stat st;
        int fd = memfd_create("touch", 0);
        KVT_NEED(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
        KVT_EQ(pwrite(fd, "here", 4, (off_t)bytes - 4096), 4);
        uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        KVT_NEED(base != MAP_FAILED);
        struct segment_touch touch = { .fd = fd,
                                       .address = base,
                                       .bytes = bytes,
                                       .node = SEGMENT_ANY_NODE,
                                       .threads = way % 3 * 2,
                                       .by_hand = way >= 3 };
        KVT_OK(segment_touch_all(&touch, err, sizeof err));
        KVT_TRUE(fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512 >= bytes);
        KVT_EQ_MEM(base + bytes - 4096, "here\0", 5);
        munmap(base, bytes);
        close(fd);
    }
}

/* Pages that begin with 0xbd are in bad memory. */
static int populate_with_bad(uint8_t *address, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += 4096)
        if (address[at] == 0xbd) return -EHWPOISON;
    return madvise(address, bytes, 23 /* MADV_POPULATE_WRITE */) ? -errno : 0;
}

/* HOST-1: memory that a failed DIMM took from an object of before costs the pages that lay there, and nothing else; not
 * the header, without which kvd does not start. */
static void bad_memory_is_replaced(void) {
    static const uint64_t bad[] = { SEGMENT_TABLES, 31 * MIB,        32 * MIB - 4096,      32 * MIB,
                                    69 * MIB,       70 * MIB - 4096, SEGMENT_TABLES - 4096 };
    for (uint32_t header = 0; header < 2; header++) {
        uint64_t bytes = 70 * MIB;
        uint32_t n = 6 + header, wrong = 0;
        int fd = memfd_create("touch", 0);
        KVT_NEED(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
        uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        KVT_NEED(base != MAP_FAILED);
        memset(base, 0x31, bytes);
        for (uint32_t i = 0; i < n; i++) memset(base + bad[i], 0xbd, 4096);
        struct segment_touch touch = { .fd = fd,
                                       .address = base,
                                       .bytes = bytes,
                                       .node = SEGMENT_ANY_NODE,
                                       .threads = 2,
                                       .populate = populate_with_bad };
        KVT_EQ(segment_touch_all(&touch, err, sizeof err), header ? -EHWPOISON : 0);
        if (header) KVT_HAS(err, "out of use");
        for (uint64_t at = 0; at < bytes && !header; at += 4096) {
            bool was_bad = false;
            for (uint32_t i = 0; i < n; i++) was_bad |= bad[i] == at;
            for (uint64_t k = 0; k < 4096; k++) wrong += base[at + k] != (was_bad ? 0 : 0x31);
        }
        KVT_EQ(wrong, 0);
        munmap(base, bytes);
        close(fd);
    }
}

/* ---- kills ------------------------------------------------------------------------------------------------------- */

/* What the child does when it is started with --child WHAT: */
enum { CHILD_OPEN, CHILD_OPEN_OTHER, CHILD_FORGET, CHILD_STATE };

static int child(const char *what, const char *name) {
    struct segment_config c = config_of(MIB);
    struct segment *s = NULL;
    enum segment_found found;
    int action = atoi(what);
    snprintf(test_name, sizeof test_name, "%s", name);
    if (action == CHILD_OPEN_OTHER) c.geometry[0]++;
    if (segment_open(&c, &s, &found, err, sizeof err)) return 2;
    if (action == CHILD_FORGET) segment_empty(s);
    if (action == CHILD_STATE) {
        segment_set_pools_id(s, 777);
        if (segment_driver_add(s, &(struct segment_driver){ 1, 2 })) return 2;
        segment_driver_remove(s, &DRIVER);
    }
    segment_close(s);
    return 0;
}

/* Kills a child at point n; false when it came to its end. */
static bool killed_at(int action, unsigned n) {
    char number[16], what[16];
    snprintf(number, sizeof number, "%u", n), snprintf(what, sizeof what, "%d", action);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("KVD_CRASH_AT", number, 1);
        if (!freopen("/dev/null", "w", stderr)) _exit(126);
        execl("/proc/self/exe", "test_segment", "--child", what, test_name, (char *)NULL);
        _exit(127);
    }
    int end = kvt_wait(pid);
    KVT_TRUE(end == 0 || end == -SIGKILL);
    return end != 0;
}

/* Killed at any point of making one: the next makes it anew, or finds it finished and empty. */
static void killed_while_it_is_made(void) {
    struct segment_config c = config_of(MIB);
    unsigned n = 1, adopted = 0;
    for (; n < 60; n++) {
        segment_destroy(test_name);
        if (!killed_at(CHILD_OPEN, n)) break;
        struct segment *s = NULL;
        enum segment_found found;
        KVT_OK(segment_open(&c, &s, &found, err, sizeof err));
        KVT_TRUE(found == SEGMENT_NEW || found == SEGMENT_ADOPTED);
        adopted += found == SEGMENT_ADOPTED;
        KVT_NEED(s);
        check_empty(s, 0);
        segment_close(s);
        segment_close(open_as(&c, SEGMENT_ADOPTED));
    }
    KVT_TRUE(n > 8 && n < 60);
    KVT_EQ(adopted, 1); /* after the last mark only */
    segment_destroy(test_name);
}

/* Killed while a foreign one is replaced: it is there as it was, or it is gone, and never half of it. */
static void killed_while_it_is_replaced(void) {
    struct segment_config c = config_of(MIB);
    unsigned n = 1;
    for (; n < 60; n++) {
        leave_segment(&c);
        if (!killed_at(CHILD_OPEN_OTHER, n)) break;
        struct segment *s = NULL;
        enum segment_found found;
        KVT_OK(segment_open(&c, &s, &found, err, sizeof err));
        KVT_NEED(s);
        if (found == SEGMENT_ADOPTED) check_records(s);
        else check_empty(s, 0);
        segment_close(s);
    }
    KVT_TRUE(n > 8 && n < 60);
    segment_destroy(test_name);
}

/* CONT-3: killed while it is adopted: nothing is lost. Killed while it forgets: all is there or nothing is. Killed
 * while state and drivers change: old or new. */
static void killed_while_it_is_used(void) {
    struct segment_config c = config_of(MIB);
    for (int action = CHILD_OPEN; action <= CHILD_STATE; action++) {
        unsigned n = 1;
        for (; action != CHILD_OPEN_OTHER && n < 60; n++) {
            struct segment_driver drivers[3];
            leave_segment(&c);
            if (!killed_at(action, n)) break;
            struct segment *s = open_as(&c, SEGMENT_ADOPTED);
            KVT_NEED(s);
            if (action == CHILD_OPEN) check_records(s);
            KVT_TRUE(has_record(s) || action == CHILD_FORGET);
            KVT_TRUE(segment_pools_id(s) == 12345 || (action == CHILD_STATE && segment_pools_id(s) == 777));
            uint32_t many = segment_drivers(s, drivers, 3);
            KVT_TRUE(many == 1 || (action == CHILD_STATE && many == 2)); /* added before the other goes: never none */
            struct directory_page page;
            bool damaged;
            for (uint32_t i = 0; i < 50; i++)
                if (!directory_page_load(segment_directory(s), 1, i, &page, &damaged))
                    KVT_FALSE(damaged); /* an unfinished forget is finished */
            segment_close(s);
        }
        KVT_TRUE(n < 60 && n > (action == CHILD_OPEN ? 1 : 4) * (action != CHILD_OPEN_OTHER));
    }
    segment_destroy(test_name);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(host_1_adopted_as_it_was),
                                             KVT_CASE(host_7_no_arena),
                                             KVT_CASE(srv_8_foreign_is_replaced),
                                             KVT_CASE(damaged_headers),
                                             KVT_CASE(cut_short_and_noise),
                                             KVT_CASE(names_and_strangers),
                                             KVT_CASE(srv_8_locked_as_long_as_it_is_mapped),
                                             KVT_CASE(drivers_are_kept),
                                             KVT_CASE(host_1_pinned_or_refused),
                                             KVT_CASE(shm_too_small),
                                             KVT_CASE(limits_of_the_process),
                                             KVT_CASE(too_large_by_far),
                                             KVT_CASE(memory_and_groups),
                                             KVT_CASE(touch_keeps_bytes),
                                             KVT_CASE(bad_memory_is_replaced),
                                             KVT_CASE(killed_while_it_is_made),
                                             KVT_CASE(killed_while_it_is_replaced),
                                             KVT_CASE(killed_while_it_is_used),
                                             { 0 } };
    if (argc == 4 && !strcmp(argv[1], "--child")) return child(argv[2], argv[3]);
    snprintf(test_name, sizeof test_name, "/kvd-test-segment-%d", (int)getpid());
    int r = kvt_main("segment", cases, argc, argv);
    segment_destroy(test_name);
    return r;
}
