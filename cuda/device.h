/* SPDX-License-Identifier: Apache-2.0
 *
 * Device backend interface: regions of device memory that other processes can map, publication of
 * block-table rows, and page copies. Two backends: device_host (sealed shared memory, no GPU) and
 * device_cuda (only in builds that found CUDA; the driver is loaded at run time).
 *
 * A device is one GPU, or one host stand-in. The owner (kvd) opens it and allocates; a consumer
 * (libkvd in a worker) imports regions by their export record.
 *
 * Work is submitted as a batch: page copies first, then table writes. A batch completes as a whole:
 * when it is done, everything in it is visible to every consumer's later launches (ROW-4).
 *
 * Threads: a device may be used by one thread at a time (the caller serialises); different devices are
 * independent. device_import/device_unimport may be called from any thread.
 * Errors: 0, or negative errno (fatal for that call; nothing was changed unless said), with a sentence in err.
 */
#ifndef KVD_CUDA_DEVICE_H
#define KVD_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "geometry.h"

struct device;
struct device_region;

enum device_kind { DEVICE_HOST = 0, DEVICE_CUDA = 1 };

/* How a region is given to another process. 'ipc' is the 64-byte CUDA IPC handle, a bearer token: never log it. 'fd' is
 * a file descriptor that travels over a Unix socket and outlives its maker: a sealed memfd of a host device, memory of
 * cuMemCreate on a GPU. Nothing has a name that others could find, take or cut short. */
enum device_export_kind { DEVICE_EXPORT_CUDA_IPC = 1, DEVICE_EXPORT_FD = 2 };
struct device_export {
    uint32_t kind;
    int fd; /* DEVICE_EXPORT_FD: from device_region_export the region's own (dup it to keep it); for device_import the
             * caller's, who closes it after the import. Else -1 */
    uint64_t bytes;
    uint8_t ipc_handle[64];
    uint8_t uuid[16]; /* of the device that owns the memory */
    uint64_t owner_pid;
    uint64_t local_address;  /* address in the owner: used when importer and owner are one process */
    uint64_t owner_instance; /* for device_import: a number of the owner's life, so that what an earlier owner left
                              * mapped here is never taken for this one's memory; 0: not known */
};

struct device_identity {
    enum device_kind kind;
    uint32_t index;   /* as configured */
    uint8_t uuid[16]; /* CUDA UUID (MIG instance UUID under MIG); host devices: derived from machine and index */
    char name[64];
    char pci[16]; /* of a GPU, "0000:41:00.0"; "": not known, or none */
    uint64_t total_bytes;
};

struct device_config {
    enum device_kind kind;
    uint32_t index;
    uint64_t memory_bytes; /* host backend: the size it claims to have; ignored by CUDA */
    bool export_fd; /* regions are made as file descriptors (DEVICE_EXPORT_FD); those of a host device always are */
};

/* A whole-page copy between two page groups of one pool on this device (COW tails). bytes follow the pool's spec. */
struct device_page_copy {
    const struct geom_pool_spec *spec;
    uint32_t n_pages; /* of the pool */
    uint32_t rank;
    struct device_region *region;
    uint32_t src, dst; /* page-group ids */
    uint32_t columns;  /* token columns that matter, 1..64; a backend may copy the whole page */
};

/* A write of count table entries: region[offset .. offset + count*4) = values. */
struct device_table_write {
    struct device_region *region;
    uint64_t offset; /* bytes, multiple of 4 */
    uint32_t count;
    const int32_t *values; /* stable until the batch is done */
};

struct device_batch {
    const struct device_page_copy *copies;
    uint32_t n_copies;
    const struct device_table_write *writes;
    uint32_t n_writes;
};

/* True in builds with the CUDA backend whose driver could be loaded now. */
bool device_cuda_available(char *err, size_t err_bytes);

int device_open(const struct device_config *config, struct device **ret_device, char *err, size_t err_bytes);
/* Frees every region. Mappings in other processes stay valid (shared memory) or fail softly (CUDA). NULL is fine. */
void device_close(struct device *device);

void device_identify(const struct device *device, struct device_identity *ret_identity);

/* Bytes that can be allocated now. */
int device_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes);

/* label: [a-z0-9-]+, part of the name that holders of a descriptor see. Memory is committed at once, never lazily (no
 * SIGBUS later), and filled with `fill`. Host: -ENOMEM, naming need and setting. */
int device_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                      struct device_region **ret_region, char *err, size_t err_bytes);
/* A region that an earlier process made as a file descriptor: the same bytes, nothing filled. bytes as asked for then.
 * Takes the descriptor over on success. -EINVAL: it is no such memory, of another size, or of another device; on a host
 * device also of another label. */
int device_region_adopt(struct device *device, const char *label, uint64_t bytes, int fd,
                        struct device_region **ret_region, char *err, size_t err_bytes);
void device_region_free(struct device_region *region);
void device_region_export(const struct device_region *region, struct device_export *ret_export);
void *device_region_address(const struct device_region *region); /* in this process */

/* Starts a batch: its copies in the order given, then its writes. A CUDA device makes no driver call here, nor in
 * device_poll. inline_done: true when it has already completed (host backend with little to copy), so that the caller
 * need not wait; else device_poll tells. Tickets increase by one a batch, from 1. */
int device_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                  char *err, size_t err_bytes);
/* Highest ticket such that it and all before it are complete. Never blocks. -EIO: the device is lost. */
int device_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes);
/* A non-blocking eventfd that becomes readable when a ticket completes that was not done inline. Read its 8 bytes to
 * rearm it, then device_poll. It belongs to the device; poll it from any thread. */
int device_event_fd(struct device *device);

/* ---- pages to and from the host ---------------------------------------------------------- */

/* Host memory that pages are moved to and from: known to the device from pin to unpin (registered with CUDA, portable
 * over devices; a host device only remembers it). Whole mappings, once each a device; -EEXIST for a second time. unpin
 * waits for moves in work, as freeing a region does; after it the memory may be unmapped. On a GPU that does not answer
 * they give up waiting after 2 s, and the device is lost: keep the memory mapped until the process ends where
 * device_poll_moves says -EIO. */
int device_pin(struct device *device, void *address, uint64_t bytes, char *err, size_t err_bytes);
void device_unpin(struct device *device, void *address);

enum device_direction { DEVICE_TO_HOST = 0, HOST_TO_DEVICE = 1 };

/* One page group's part on this device, and its packed form (geom_packed_bytes, HOST-2; padding is written as zeros by
 * DEVICE_TO_HOST, so that the packed bytes are a function of the page's). */
struct device_move {
    uint32_t page;
    uint8_t *host;
};
struct device_moves {
    const struct geom_pool_spec *spec;
    uint32_t n_pages; /* of the pool */
    uint32_t rank;
    struct device_region *region;
    enum device_direction direction;
    const struct device_move *moves; /* [n], copied; no page twice */
    uint32_t n;
};

/* Starts moves on the queue of their direction; -EINVAL, and nothing started, where a page lies outside the pool or a
 * packed form outside pinned memory. The two directions and device_submit run beside each other, in no order between
 * them; within a direction tickets complete in order, and increase by one from 1. Adjacent pages with adjacent host
 * forms become few wide copies (HOST-6); only forms of copies that do not wait for another process's time slice.
 * inline_done as in device_submit. The event fd tells of completions here, too. */
int device_move(struct device *device, const struct device_moves *moves, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes);
/* Highest complete ticket of a direction. Never blocks. -EIO: the device is lost. */
int device_poll_moves(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                      size_t err_bytes);
/* For metrics: copy operations that the moves of a direction came to, and their payload bytes. Any thread. */
struct device_move_stats {
    uint64_t operations, bytes;
};
void device_get_move_stats(struct device *device, enum device_direction direction, struct device_move_stats *ret_stats);

/* ---- consumer side ---------------------------------------------------------------------- */

/* One mapped region. Imports of one region in one process share a mapping (counted), but for a GPU's memory behind a
 * descriptor: that has a mapping an import. */
struct device_import;

/* Maps an exported region. expect_uuid: the device the consumer runs on, NULL to skip. CUDA: the caller's current
 * context is used, and a UUID mismatch is -ENXIO with both UUIDs in err; CUDA memory cannot be mapped read-only, and in
 * the process that owns the region an import is the region's own address and lives as long as the region. Host: the
 * segment is mapped read-write, or read-only where read_only. */
int device_import(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                  struct device_import **ret_import, char *err, size_t err_bytes);
void *device_import_address(const struct device_import *import);
void device_unimport(struct device_import *import);

#endif
