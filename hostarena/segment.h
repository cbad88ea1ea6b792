/* SPDX-License-Identifier: Apache-2.0
 *
 * The segment: one POSIX shared-memory object of fixed size that outlives the daemon. Header, directory tables, arena
 * bytes:
 *
 *     0            header: magic, version, sizes, geometry digest, directory id, pools id, drivers; with check words
 *     132 KiB ..   directory tables (directory.h)
 *     after them   arena: `arena_bytes`, at the next multiple of 2 MiB
 *
 * It is mapped whole, every page is touched before the function returns (in parallel, on the NUMA node that was asked
 * for), so that a full /dev/shm or short memory is a refusal now and never a SIGBUS later; what cannot fit is refused
 * before a page is touched. It never shrinks. The name is unlinked by segment_destroy only: who stops leaves it for the
 * next.
 *
 * Errors: 0, or negative errno with a sentence that names what is needed, what there is, and the setting. Threads: open
 * and close from one thread.
 */
#ifndef KVD_HOSTARENA_SEGMENT_H
#define KVD_HOSTARENA_SEGMENT_H

#include "directory.h"

#define SEGMENT_DRIVERS 4096
#define SEGMENT_ANY_NODE (-1)

struct segment;

struct segment_config {
    const char *name;     /* "/kvd-arena-..." */
    uint64_t arena_bytes; /* rounded up to 4 KiB by the segment; 0 = no arena, the directory may still be wanted */
    struct directory_limits limits;
    uint8_t geometry[32]; /* of everything that gives the bytes their meaning; another digest = a foreign segment */
    uint32_t mode;        /* permission bits, 0 = 0600 */
    int numa_node;        /* of the GPU, SEGMENT_ANY_NODE */
    uint32_t threads;     /* that touch; 0 = one a CPU that may run on the node, at most 16 */
    bool lock;            /* mlock: RLIMIT_MEMLOCK must allow it */
    /* Makes the memory known to the devices (pinned). May be NULL. Returns 0, or negative errno with a sentence. */
    int (*pin)(void *context, void *address, uint64_t bytes, char *err, size_t err_bytes);
    void (*unpin)(void *context, void *address, uint64_t bytes);
    void *context;
};

enum segment_found {
    SEGMENT_NEW = 0,     /* there was none, or one whose maker was killed before it was finished */
    SEGMENT_ADOPTED = 1, /* an earlier kvd's, of the same geometry and limits: its records can be read */
    SEGMENT_FOREIGN = 2, /* another geometry or version, or no memory for two: emptied (the object is replaced) */
    SEGMENT_DAMAGED = 3, /* its header does not check: emptied */
    SEGMENT_RESIZED = 4  /* of the same geometry, and of other limits or size: this one is empty and has no name before
                          * segment_replace; segment_former is what was there */
};

/* Opens or makes it. Another user's object is refused, not removed. What a refused call made is gone, what it found
 * stays (but a foreign or damaged object may have been removed for a new one that then found no room). The object is
 * locked until segment_close or the process's end; -EBUSY: another process has it, whose pid is in the sentence. Takes
 * at most a second to refuse. */
int segment_open(const struct segment_config *config, struct segment **ret_segment, enum segment_found *ret_found,
                 char *err, size_t err_bytes);
/* What is there, for reading, as segment_open would find it: nothing changes, nothing is locked, also while a kvd uses
 * it (then what is read may be a mixture). *ret_segment NULL: there is nothing that can be read. Of the configuration
 * the name, sizes, limits and geometry are looked at. */
int segment_peek(const struct segment_config *config, struct segment **ret_segment, enum segment_found *ret_found,
                 char *err, size_t err_bytes);
/* Unmaps; the object stays. NULL is fine. */
void segment_close(struct segment *segment);
/* Removes the object by name; absent is fine. */
void segment_destroy(const char *name);

/* SEGMENT_RESIZED (KEEP-1): the segment that is there under the name until segment_replace, which gives the new one the
 * name, whole, and lets the old one go. Killed before, the old one is found again. NULL: there is none. */
struct segment *segment_former(struct segment *segment);
/* SEGMENT_FOREIGN for want of memory: continuations and sequences that were there. */
uint32_t segment_lost(const struct segment *segment);
void segment_limits(const struct segment *segment, struct directory_limits *ret_limits);
int segment_replace(struct segment *segment, char *err, size_t err_bytes);

struct directory *segment_directory(struct segment *segment);
uint8_t *segment_arena(struct segment *segment); /* of segment_arena_bytes(); NULL when 0 */
uint64_t segment_arena_bytes(const struct segment *segment);

/* ---- device pools that outlive the daemon (export = vmm) ---- */

/* Identity of the device pools that device parts of pages refer to: random, set when pools are made. 0 = none. */
uint64_t segment_pools_id(const struct segment *segment);
void segment_set_pools_id(struct segment *segment, uint64_t id);

/* Processes that map device pools and may run a unit on them: what a next kvd must wait for. start_time: field 22 of
 * /proc/PID/stat, so that a reused pid is another process. Full: -ENOSPC. add before the process is told where the
 * pools are; one that is there already stays one. The table outlives an emptied directory. */
struct segment_driver {
    uint64_t pid, start_time;
};
int segment_driver_add(struct segment *segment, const struct segment_driver *driver);
void segment_driver_remove(struct segment *segment, const struct segment_driver *driver);
/* How many were written, at most max. */
uint32_t segment_drivers(const struct segment *segment, struct segment_driver *ret_drivers, uint32_t max);

/* ---- what fits ---- */

struct segment_need {
    const char *root;    /* "" or, in tests, a folder that stands for / */
    const char *what;    /* whose need it is, in sentences: "the arena with its directory needs" */
    const char *lower;   /* what to lower, in sentences: "[host] arena" */
    uint64_t bytes;      /* of memory that are not there yet */
    uint64_t shm_bytes;  /* of them in /dev/shm */
    uint64_t credit;     /* that an object which goes first gives back */
    uint64_t file_bytes; /* of the largest file that is made, for RLIMIT_FSIZE; 0: none is */
    uint64_t lock_bytes; /* to be locked, 0: nothing */
};
/* -ENOSPC (/dev/shm), -ENOMEM (machine, control group), -EFBIG, -EPERM (limits of the process), each with a sentence.
 * May raise the soft RLIMIT_MEMLOCK. */
int segment_check_need(const struct segment_need *need, char *err, size_t err_bytes);
/* Memory that this process may still take: of the machine (MemAvailable), and in its control groups. */
uint64_t segment_memory_left(const char *root);
/* Memory that the object of this name has; 0 where there is none. */
uint64_t segment_bytes_there(const char *name);

/* NUMA node of a PCI device ("0000:41:00.0"), SEGMENT_ANY_NODE where the kernel does not say. */
int segment_node_of_pci(const char *bus_id);

#endif
