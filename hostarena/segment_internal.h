/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the four files of the segment: segment.c (open, adopt, make), segment_header.c (what stands in the first
 * 132 KiB), segment_need.c (what fits) and segment_touch.c (making every page there).
 *
 * Layout of the first 132 KiB, numbers in this machine's byte order:
 *        0  identity: written once, when everything else is there; check word over all before it
 *      512  state, slot 0
 *      576  state, slot 1. The new state is written beside the old one and marked, then the old one is cleared. Where
 *           both check, the higher serial counts
 *     4096  drivers, SEGMENT_DRIVERS records of 32 bytes, each under its own mark
 */
#ifndef KVD_HOSTARENA_SEGMENT_INTERNAL_H
#define KVD_HOSTARENA_SEGMENT_INTERNAL_H

#include <assert.h>

#include "mark.h"
#include "segment.h"

#define SEGMENT_MAGIC UINT64_C(0x316765732d64766b) /* "kvd-seg1" */
#define SEGMENT_VERSION 3u                         /* of everything in the segment: header, directory */
#define SEGMENT_PAGE UINT64_C(4096)
#define SEGMENT_LARGE (UINT64_C(2) << 20)

struct segment_identity {
    uint64_t magic;
    uint32_t version, n_pools;
    uint64_t total_bytes, tables_bytes, arena_offset, arena_bytes;
    uint32_t pages[DIRECTORY_MAX_POOLS], continuations, sequences;
    uint8_t geometry[32];
    uint64_t segment_id; /* random: ties state and drivers to this segment */
    check_word check;    /* 0: not finished */
};

struct state_body {
    uint64_t serial, directory_id, formatted, pools_id;
}; /* formatted: the tables were emptied for directory_id */
struct state_slot {
    struct state_body body;
    check_word check;
    uint64_t spare[3];
};
struct driver_body {
    uint64_t pid, start_time;
};
struct driver_slot {
    struct driver_body body;
    check_word check;
    uint64_t spare;
};

struct segment_header {
    struct segment_identity identity;
    uint8_t unused_1[512 - sizeof(struct segment_identity)];
    struct state_slot state[2];
    uint8_t unused_2[SEGMENT_PAGE - 512 - 2 * sizeof(struct state_slot)];
    struct driver_slot drivers[SEGMENT_DRIVERS];
};
static_assert(offsetof(struct segment_header, drivers) == SEGMENT_PAGE, "drivers begin at the second page");
#define SEGMENT_TABLES sizeof(struct segment_header) /* where the directory's tables begin */
static_assert(SEGMENT_TABLES % SEGMENT_PAGE == 0, "tables begin at a page");

#define SEGMENT_OWNER 704 /* where the pid of the process that has it locked is written: in unused_2 */
static_assert(SEGMENT_OWNER >= 512 + 2 * sizeof(struct state_slot) && SEGMENT_OWNER + 8 <= SEGMENT_PAGE,
              "the owner's pid lies beside the state");

struct segment {
    struct segment_header *header; /* where it is mapped */
    int fd;                        /* of the object, locked as long as it is mapped */
    struct segment_identity identity;
    struct state_body state;
    uint32_t slot; /* of state; 2: none yet */
    void *handle;
    struct directory *directory;
    struct segment *former; /* the object that this one is to replace */
    uint32_t lost;          /* bundles of an object of the same geometry that had to go first */
    char *next;             /* and the name of this one until then */
    bool pinned;
    void (*unpin)(void *context, void *address, uint64_t bytes);
    void *context;
};

int segment_refuse(int r, char *err, size_t err_bytes, const char *format, ...) __attribute__((format(printf, 4, 5)));
uint64_t segment_random(void); /* not 0 */

/* ---- segment_header.c ---- */

/* What the configuration asks for, but segment_id and check. -EINVAL or -EFBIG with a sentence. */
int segment_describe(const struct segment_config *config, struct segment_identity *ret_identity, char *err,
                     size_t err_bytes);
/* Judges an object by its size and first page, which may be shorter than a page. SEGMENT_NEW: its maker did not finish.
 * ADOPTED: *ret_identity is complete. */
enum segment_found segment_judge(const struct segment_identity *want, uint64_t object_bytes, const void *page,
                                 size_t page_bytes, struct segment_identity *ret_identity);
/* Empties the directory under a new id, or finishes that; opens it. */
void segment_empty(struct segment *segment);
void segment_resume(struct segment *segment);
/* The last step of making one. */
void segment_sign(struct segment *segment);

/* ---- segment_touch.c ---- */

struct segment_touch {
    int fd;
    uint8_t *address;
    uint64_t bytes;
    int node;
    uint32_t threads;                                  /* 0: one a CPU, at most 16 */
    bool by_hand;                                      /* as on kernels before 5.14, which cannot populate a range */
    int (*populate)(uint8_t *address, uint64_t bytes); /* in tests; NULL: the kernel does. 0, -EHWPOISON: a page there
                                                          is out of use, or another negative errno */
};
/* Every page there and mapped. Its bytes stay, but those of pages whose memory is out of use: they are 0. */
int segment_touch_all(const struct segment_touch *touch, char *err, size_t err_bytes);

#endif
