/* SPDX-License-Identifier: Apache-2.0
 * What fits, asked before a page is touched: /dev/shm, the machine's memory, the control groups that kvd is in, the
 * limits of the process. */
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "segment_internal.h"

#define NO_LIMIT UINT64_MAX
#define PATH_BYTES 4400 /* a control group's path has up to 4095 */

/* ---- small files of the kernel ------------------------------------------------------------------------------- */

static FILE *open_under(const char *root, const char *path) {
    char whole[PATH_BYTES + 256];
    int n = snprintf(whole, sizeof whole, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof whole ? fopen(whole, "re") : NULL;
}

/* The number after `key` at the beginning of a line; "" is the first line. False: no such file or line. "max" is
 * NO_LIMIT. */
static bool read_number(const char *root, const char *path, const char *key, uint64_t *ret_number) {
    char line[256], word[32];
    bool found = false;
    FILE *file = open_under(root, path);
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key))) continue;
        if (sscanf(line + strlen(key), "%31s", word) != 1) break;
        found = !strcmp(word, "max") || sscanf(word, "%" SCNu64, ret_number) == 1;
        if (found && word[0] == 'm') *ret_number = NO_LIMIT;
    }
    fclose(file);
    return found;
}

/* ---- /dev/shm and the machine ---------------------------------------------------------------------------------- */

static uint64_t bytes_less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static int check_shm(const struct segment_need *need, char *err, size_t err_bytes) {
    char path[256];
    struct statvfs fs;
    if (!need->shm_bytes) return 0;
    snprintf(path, sizeof path, "%s/dev/shm", need->root);
    if (statvfs(path, &fs)) {
        int e = errno;
        return segment_refuse(-e, err, err_bytes,
                              "the arena is made in /dev/shm, which cannot be looked at: %s: mount a tmpfs there",
                              strerror(e));
    }
    if (!fs.f_blocks) return 0; /* a tmpfs without a limit */
    uint64_t there = (uint64_t)fs.f_bavail * fs.f_frsize + need->credit;
    if (need->shm_bytes <= there) return 0;
    return segment_refuse(-ENOSPC, err, err_bytes,
                          "%s %" PRIu64 " bytes of /dev/shm, %" PRIu64
                          " are free there: enlarge it (mount -o remount,size=%" PRIu64
                          "M /dev/shm; for a container --shm-size), or lower %s",
                          need->what, need->shm_bytes, there,
                          ((uint64_t)fs.f_blocks * fs.f_frsize + bytes_less(need->shm_bytes, there) + (1 << 20) - 1) >>
                              20,
                          need->lower);
}

/* NO_LIMIT where the machine does not say. */
static uint64_t machine_left(const char *root) {
    uint64_t kib;
    return read_number(root, "/proc/meminfo", "MemAvailable:", &kib) ? kib * 1024 : NO_LIMIT;
}

static int check_machine_memory(const struct segment_need *need, char *err, size_t err_bytes) {
    uint64_t left = machine_left(need->root);
    if (left == NO_LIMIT || need->bytes <= left + need->credit) return 0;
    return segment_refuse(-ENOMEM, err, err_bytes,
                          "%s %" PRIu64 " bytes of memory, %" PRIu64
                          " are available on this machine (MemAvailable): lower %s, or free memory",
                          need->what, need->bytes, left + need->credit, need->lower);
}

/* ---- control groups --------------------------------------------------------------------------------------------- */

struct group_files {
    const char *mount, *limit, *used, *file_1, *file_2;
};
static const struct group_files GROUPS_V2 = { "/sys/fs/cgroup", "memory.max", "memory.current", "active_file ",
                                              "inactive_file " };
static const struct group_files GROUPS_V1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                              "total_active_file ", "total_inactive_file " };

/* What a group may still take. Its page cache goes when memory is wanted, so it does not count as used. */
static uint64_t group_left(const char *root, const struct group_files *files, const char *group) {
    char path[PATH_BYTES];
    uint64_t limit = NO_LIMIT, used = 0, cache_1 = 0, cache_2 = 0;
    snprintf(path, sizeof path, "%s%s/%s", files->mount, group, files->limit);
    if (!read_number(root, path, "", &limit) || limit >= UINT64_C(1) << 62)
        return NO_LIMIT; /* v1 says "none" with a huge number */
    snprintf(path, sizeof path, "%s%s/%s", files->mount, group, files->used);
    if (!read_number(root, path, "", &used)) return NO_LIMIT;
    snprintf(path, sizeof path, "%s%s/memory.stat", files->mount, group);
    read_number(root, path, files->file_1, &cache_1);
    read_number(root, path, files->file_2, &cache_2);
    return bytes_less(limit, bytes_less(used, cache_1 + cache_2));
}

struct tightest {
    uint64_t left;
    char group[PATH_BYTES];
};

/* The group and all above it, up to the mount: in a container the path may be the host's, and only the mount is there.
 */
static void look_at_group(const char *root, const struct group_files *files, char *group, struct tightest *t) {
    for (;;) {
        uint64_t left = group_left(root, files, group);
        if (left < t->left) {
            t->left = left;
            snprintf(t->group, sizeof t->group, "%s", *group ? group : "/");
        }
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup: "0::/path" (v2), "4:memory:/path" (v1, one line a controller). */
static void find_tightest(const char *root, struct tightest *t) {
    char line[PATH_BYTES];
    t->left = NO_LIMIT;
    FILE *file = open_under(root, "/proc/self/cgroup");
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (!strcmp(group, "/")) *group = '\0';
        if (!*controllers) look_at_group(root, &GROUPS_V2, group, t);
        else if (strstr(controllers, "memory")) look_at_group(root, &GROUPS_V1, group, t);
    }
    if (file) fclose(file);
}

static int check_groups(const struct segment_need *need, char *err, size_t err_bytes) {
    struct tightest t;
    find_tightest(need->root, &t);
    if (t.left == NO_LIMIT || need->bytes <= t.left + need->credit) return 0;
    return segment_refuse(-ENOMEM, err, err_bytes,
                          "%s %" PRIu64 " bytes of memory, %" PRIu64
                          " are left in the memory limit of control group %s: raise it (MemoryMax= of the unit; for a "
                          "container --memory), or lower %s",
                          need->what, need->bytes, t.left + need->credit, t.group, need->lower);
}

uint64_t segment_memory_left(const char *root) {
    struct tightest t;
    uint64_t machine = machine_left(root);
    find_tightest(root, &t);
    return t.left < machine ? t.left : machine;
}

uint64_t segment_bytes_there(const char *name) {
    struct stat st;
    char path[256];
    snprintf(path, sizeof path, "/dev/shm%s", name);
    return !lstat(path, &st) && S_ISREG(st.st_mode) ? (uint64_t)st.st_blocks * 512 : 0;
}

/* ---- limits of the process -------------------------------------------------------------------------------------- */

static int check_file_size(const struct segment_need *need, char *err, size_t err_bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || need->file_bytes <= limit.rlim_cur)
        return 0;
    return segment_refuse(-EFBIG, err, err_bytes,
                          "%s a file of %" PRIu64 " bytes, RLIMIT_FSIZE allows %" PRIu64
                          ": set LimitFSIZE=infinity (ulimit -f unlimited), or lower %s",
                          need->what, need->file_bytes, (uint64_t)limit.rlim_cur, need->lower);
}

static bool may_lock_anything(void) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[2];
    return syscall(SYS_capget, &header, data) == 0 && (data[CAP_IPC_LOCK / 32].effective & 1u << CAP_IPC_LOCK % 32);
}

static int check_lock(const struct segment_need *need, char *err, size_t err_bytes) {
    struct rlimit limit;
    uint64_t locked = 0;
    if (!need->lock_bytes || getrlimit(RLIMIT_MEMLOCK, &limit) || may_lock_anything()) return 0;
    read_number(need->root, "/proc/self/status", "VmLck:", &locked);
    uint64_t bytes = need->lock_bytes + locked * 1024;
    if (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return 0;
    if (limit.rlim_max == RLIM_INFINITY || bytes <= limit.rlim_max) {
        struct rlimit wider = { .rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max };
        if (!setrlimit(RLIMIT_MEMLOCK, &wider)) return 0;
    }
    return segment_refuse(-EPERM, err, err_bytes,
                          "[host] lock needs %" PRIu64 " bytes of locked memory, RLIMIT_MEMLOCK allows %" PRIu64
                          ": set LimitMEMLOCK=infinity in the unit (ulimit -l unlimited), or turn [host] lock off",
                          bytes, (uint64_t)limit.rlim_max);
}

int segment_check_need(const struct segment_need *need, char *err, size_t err_bytes) {
    int r = check_file_size(need, err, err_bytes);
    if (!r) r = check_shm(need, err, err_bytes);
    if (!r) r = check_machine_memory(need, err, err_bytes);
    if (!r) r = check_groups(need, err, err_bytes);
    return r ? r : check_lock(need, err, err_bytes);
}
