/* SPDX-License-Identifier: Apache-2.0 */
#include "process_figures.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

static uint64_t clock_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static uint64_t count_files(void) {
    DIR *folder = opendir("/proc/self/fd");
    uint64_t n = 0;
    if (!folder) return 0;
    while (readdir(folder)) n++;
    closedir(folder);
    return n > 3 ? n - 3 : 0; /* ".", ".." and the folder's own */
}

/* Fields 14, 15, 20, 22, 23 and 24 of proc(5). The name in field 2 may hold anything but ends with the last ')'. */
static void read_stat(struct process_figures *f) {
    char text[1024] = "";
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file) return;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *end = strrchr(text, ')');
    uint64_t user = 0, kernel = 0, threads = 0, started = 0, bytes = 0, pages = 0;
    uint64_t tick_ns = SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK);
    if (!end || sscanf(end + 1,
                       " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64 " %*d %*d %*d %*d %" SCNu64
                       " %*d %" SCNu64 " %" SCNu64 " %" SCNu64,
                       &user, &kernel, &threads, &started, &bytes, &pages) != 6)
        return;
    f->cpu_ns = (user + kernel) * tick_ns;
    f->threads = threads;
    f->virtual_bytes = bytes;
    f->resident_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    f->started_ns = clock_of(CLOCK_REALTIME) - clock_of(CLOCK_BOOTTIME) + started * tick_ns;
}

void process_figures_read(struct process_figures *ret_figures) {
    struct rlimit limit;
    *ret_figures = (struct process_figures){ .open_files = count_files() };
    read_stat(ret_figures);
    if (!getrlimit(RLIMIT_NOFILE, &limit)) ret_figures->most_files = limit.rlim_cur;
}
