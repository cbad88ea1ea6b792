/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes every page of the segment there, in parallel, on the node that was asked for. A range is populated by the
 * kernel (MADV_POPULATE_WRITE), which says so where memory ends; older kernels are asked to allocate the range in the
 * file first, and only then is it touched. So no access can end in SIGBUS.
 *
 * An object of before may have pages in memory that the machine has taken out of use since (a failed DIMM). The kernel
 * says that, too; each of them is cut out of the object, and an empty one takes its place: a record that stood there is
 * none, packed bytes do not match their checksum.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "segment_internal.h"

#define CHUNK (UINT64_C(32) << 20) /* that a thread takes at a time */
#define AUTO_THREADS 16u
#define MAX_THREADS 256u
#define MAX_NODES 1024
#define NODES "/sys/devices/system/node"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define POLICY_PREFERRED 1 /* MPOL_PREFERRED of numaif.h, which comes with libnuma */

struct work {
    const struct segment_touch *touch;
    _Atomic uint64_t next;
    _Atomic int error;
};

/* ---- a range --------------------------------------------------------------------------------------------------- */

static int populate_pages(uint8_t *address, uint64_t bytes) {
    while (madvise(address, bytes, MADV_POPULATE_WRITE))
        if (errno != EINTR && errno != EAGAIN)
            return errno == EFAULT ? -ENOSPC : -errno; /* EFAULT: an access would be SIGBUS */
    return 0;
}

static int populate_range(const struct segment_touch *t, uint64_t at, uint64_t bytes) {
    return t->populate ? t->populate(t->address + at, bytes) : populate_pages(t->address + at, bytes);
}

/* Page by page. The header is not replaced: who still maps device pools stands in it, and that must not be forgotten.
 */
static int replace_bad(const struct segment_touch *t, uint64_t at, uint64_t bytes) {
    for (uint64_t end = at + bytes; at < end; at += SEGMENT_PAGE) {
        int r = populate_range(t, at, SEGMENT_PAGE);
        if (r == -EHWPOISON && at >= SEGMENT_TABLES) {
            if (fallocate(t->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)SEGMENT_PAGE))
                return -errno;
            r = populate_range(t, at, SEGMENT_PAGE);
        }
        if (r) return r;
    }
    return 0;
}

static int touch_by_hand(int fd, uint8_t *address, uint64_t offset, uint64_t bytes) {
    int e;
    do e = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    while (e == EINTR);
    if (e) return -e;
    for (uint64_t at = 0; at < bytes; at += SEGMENT_PAGE)
        atomic_fetch_or((_Atomic uint8_t *)(address + at), 0); /* a write that changes nothing, whoever looks on */
    return 0;
}

static void *touch_chunks(void *argument) {
    struct work *w = argument;
    const struct segment_touch *t = w->touch;
    while (!atomic_load(&w->error)) {
        uint64_t at = atomic_fetch_add(&w->next, CHUNK);
        if (at >= t->bytes) break;
        uint64_t bytes = t->bytes - at < CHUNK ? t->bytes - at : CHUNK;
        int r = t->by_hand ? -EINVAL : populate_range(t, at, bytes);
        if (r == -EHWPOISON) r = replace_bad(t, at, bytes);
        if (r == -EINVAL) r = touch_by_hand(t->fd, t->address + at, at, bytes);
        if (r) atomic_store(&w->error, r);
    }
    return NULL;
}

/* ---- the node -------------------------------------------------------------------------------------------------- */

/* Adds "0-3,8" to the set. */
static void read_cpus(FILE *file, cpu_set_t *cpus) {
    unsigned first, last;
    int n;
    while ((n = fscanf(file, "%u-%u", &first, &last)) >= 1) {
        if (n == 1) last = first;
        for (; first <= last && first < CPU_SETSIZE; first++) CPU_SET(first, cpus);
        if (fgetc(file) != ',') break;
    }
}

/* The CPUs that the threads may run on: this process's, of the node where it has some there. */
static void choose_cpus(int node, cpu_set_t *ret_cpus) {
    cpu_set_t of_node, both;
    char path[64];
    CPU_ZERO(ret_cpus);
    if (sched_getaffinity(0, sizeof *ret_cpus, ret_cpus)) return; /* more than CPU_SETSIZE: not chosen, one thread */
    if (node < 0) return;
    snprintf(path, sizeof path, NODES "/node%d/cpulist", node);
    FILE *file = fopen(path, "re");
    if (!file) return;
    CPU_ZERO(&of_node);
    read_cpus(file, &of_node);
    fclose(file);
    CPU_AND(&both, &of_node, ret_cpus);
    if (CPU_COUNT(&both)) *ret_cpus = both;
}

/* Pages are wanted on the node, and taken elsewhere rather than refused: a full node is slower, not wrong. */
static int prefer_node(const struct segment_touch *t, char *err, size_t err_bytes) {
    unsigned long mask[MAX_NODES / (sizeof(unsigned long) * CHAR_BIT)] = { 0 };
    size_t word = sizeof(unsigned long) * CHAR_BIT;
    if (t->node < 0) return 0;
    if (t->node < MAX_NODES) {
        mask[(size_t)t->node / word] |= 1ul << (size_t)t->node % word;
        if (!syscall(SYS_mbind, t->address, t->bytes, POLICY_PREFERRED, mask, (unsigned long)MAX_NODES + 1, 0u))
            return 0;
        if (errno == ENOSYS || errno == EPERM) return 0; /* no nodes in this kernel, or a sandbox that hides them */
    } else errno = EINVAL;
    int e = errno;
    return segment_refuse(-e, err, err_bytes,
                          "the arena cannot be put on NUMA node %d: %s: give [host] numa a node of " NODES
                          "/online, or leave it to kvd",
                          t->node, strerror(e));
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

static uint32_t count_threads(const struct segment_touch *t, const cpu_set_t *cpus) {
    uint64_t chunks = (t->bytes + CHUNK - 1) / CHUNK;
    uint32_t n = t->threads, there = (uint32_t)CPU_COUNT(cpus);
    if (!n) n = there < AUTO_THREADS ? there : AUTO_THREADS;
    if (n > MAX_THREADS) n = MAX_THREADS;
    if (n > chunks) n = (uint32_t)chunks;
    return n ? n : 1;
}

/* This thread works too, so those that cannot be made are only missed. They take no signal: the process's own threads
 * do. */
static void run_threads(struct work *w, uint32_t n, const cpu_set_t *cpus) {
    pthread_t threads[MAX_THREADS];
    pthread_attr_t attributes;
    sigset_t all, before;
    uint32_t made = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_attr_init(&attributes)) {
        if (CPU_COUNT(cpus)) pthread_attr_setaffinity_np(&attributes, sizeof *cpus, cpus);
        while (made + 1 < n && !pthread_create(&threads[made], &attributes, touch_chunks, w)) made++;
        pthread_attr_destroy(&attributes);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    touch_chunks(w);
    while (made) pthread_join(threads[--made], NULL);
}

int segment_touch_all(const struct segment_touch *t, char *err, size_t err_bytes) {
    struct work w = { .touch = t };
    cpu_set_t cpus;
    int r = prefer_node(t, err, err_bytes);
    if (r) return r;
    madvise(t->address, t->bytes, MADV_HUGEPAGE); /* where /dev/shm allows it; no matter else */
    choose_cpus(t->node, &cpus);
    run_threads(&w, count_threads(t, &cpus), &cpus);
    r = atomic_load(&w.error);
    if (!r) return 0;
    if (r == -EHWPOISON)
        return segment_refuse(r, err, err_bytes,
                              "the segment's first %zu bytes lie in memory that this machine has taken out of use: "
                              "remove the object from /dev/shm, and let the engines of before end",
                              SEGMENT_TABLES);
    return segment_refuse(r, err, err_bytes,
                          "memory for the %" PRIu64 " bytes of the arena's segment ended after %" PRIu64
                          ": %s: others took it meanwhile; free some, or lower [host] arena",
                          t->bytes, atomic_load(&w.next) < t->bytes ? atomic_load(&w.next) : t->bytes, strerror(-r));
}

/* ---- where a device is ----------------------------------------------------------------------------------------- */

int segment_node_of_pci(const char *bus_id) {
    unsigned domain, bus, device, function;
    char path[96];
    int node = SEGMENT_ANY_NODE;
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return SEGMENT_ANY_NODE;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%04x:%02x:%02x.%x/numa_node", domain, bus, device, function);
    FILE *file = fopen(path, "re");
    if (!file) return SEGMENT_ANY_NODE;
    if (fscanf(file, "%d", &node) != 1 || node < 0) node = SEGMENT_ANY_NODE;
    fclose(file);
    return node;
}
