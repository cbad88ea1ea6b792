/* SPDX-License-Identifier: Apache-2.0 */
#include "nng_start.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_THREADS 2048u
#define FILES 8u                  /* nng's two, and the first connections */
#define MEMORY ((size_t)16 << 20) /* that must be left when the threads stand */

/* nng 1.5 on n CPUs: two task threads for a CPU up to 16, one that expires for a CPU, and seven more. */
static uint32_t count_threads(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t cpus = online > 0 ? (uint32_t)online : 1, tasks = cpus < 8 ? 2 * cpus : 16;
    uint32_t n = tasks + cpus + 7;
    return n < MOST_THREADS ? n : MOST_THREADS;
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* held while threads are made: they stand until then */

static void *stand(void *argument) {
    (void)argument;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return NULL;
}

static int try_memory(char *err, size_t err_bytes) {
    void *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) return munmap(memory, MEMORY);
    snprintf(err, err_bytes,
             "this process has too little address space for nng's %u threads and %zu MiB beside them; raise RLIMIT_AS "
             "(ulimit -v)",
             count_threads(), MEMORY >> 20);
    return 1;
}

static int try_threads(char *err, size_t err_bytes) {
    pthread_t threads[MOST_THREADS];
    uint32_t want = count_threads(), n = 0;
    sigset_t all, before;
    int e = 0, bad = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&gate);
    while (n < want && !(e = pthread_create(&threads[n], NULL, stand, NULL))) n++;
    if (n < want) {
        bad = 1;
        snprintf(err, err_bytes,
                 "this process can have %u more threads, nng needs %u: %s; raise RLIMIT_NPROC (ulimit -u), the pids "
                 "limit of its control group (TasksMax=), or RLIMIT_AS (ulimit -v)",
                 n, want, strerror(e));
    } else bad = try_memory(err, err_bytes);
    pthread_mutex_unlock(&gate);
    for (uint32_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return bad;
}

static int try_files(char *err, size_t err_bytes) {
    int fds[FILES];
    uint32_t n = 0;
    while (n < FILES && (fds[n] = n ? fcntl(fds[0], F_DUPFD_CLOEXEC, 0) : eventfd(0, EFD_CLOEXEC)) >= 0) n++;
    int e = errno;
    for (uint32_t i = 0; i < n; i++) close(fds[i]);
    if (n == FILES) return 0;
    snprintf(err, err_bytes,
             "this process can open %u more files, nng and a connection need %u: %s; raise RLIMIT_NOFILE "
             "(ulimit -n)",
             n, FILES, strerror(e));
    return 1;
}

int nng_start_check(char *err, size_t err_bytes) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool good;
    pthread_mutex_lock(&lock);
    if (!good) good = !try_files(err, err_bytes) && !try_threads(err, err_bytes);
    bool bad = !good;
    pthread_mutex_unlock(&lock);
    return bad;
}
