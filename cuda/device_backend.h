/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device backend implements; device.c dispatches to it. Only the files of this folder include this header.
 *
 * A backend embeds struct device, device_region and device_import as the first member of its own structs and sets
 * their backend pointer; device.c passes them through. device.c has checked pointers, the label, sizes of zero, every
 * copy and table write of a batch (device_check_batch) and every move (device_check_moves) before a backend sees them.
 */
#ifndef KVD_CUDA_DEVICE_BACKEND_H
#define KVD_CUDA_DEVICE_BACKEND_H

#include "device.h"
#include "refuse.h"

#define DEVICE_MAX_PINS 16

struct device_pinned {
    void *address;
    uint64_t bytes;
};

struct device {
    const struct device_backend *backend;
    struct device_pinned pins[DEVICE_MAX_PINS]; /* device.c: what device_move accepts */
    uint32_t n_pins;
    struct {
        _Atomic uint64_t operations, bytes;
    } moved[2]; /* by direction; the backend counts (device_count_moved) */
};

struct device_region {
    struct device *device;
    uint64_t bytes; /* as asked for: bounds of table writes and copies */
};

struct device_import {
    const struct device_backend *backend;
};

/* Each member is the function of device.h with the same name, for one kind. */
struct device_backend {
    bool (*available)(char *err, size_t err_bytes);
    int (*open)(const struct device_config *config, struct device **ret_device, char *err, size_t err_bytes);
    void (*close)(struct device *device);
    void (*identify)(const struct device *device, struct device_identity *ret_identity);
    int (*free_bytes)(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes);
    int (*region_new)(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                      struct device_region **ret_region, char *err, size_t err_bytes);
    int (*region_adopt)(struct device *device, const char *label, uint64_t bytes, int fd,
                        struct device_region **ret_region, char *err, size_t err_bytes);
    void (*region_free)(struct device_region *region);
    void (*region_export)(const struct device_region *region, struct device_export *ret_export);
    void *(*region_address)(const struct device_region *region);
    int (*submit)(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                  char *err, size_t err_bytes);
    int (*poll)(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes);
    int (*event_fd)(struct device *device);
    /* device.c keeps the list; these make the memory known to the driver, and unpin waits for moves in work. */
    int (*pin)(struct device *device, void *address, uint64_t bytes, char *err, size_t err_bytes);
    void (*unpin)(struct device *device, void *address);
    int (*move)(struct device *device, const struct device_moves *moves, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes);
    int (*poll_moves)(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                      size_t err_bytes);
    int (*import)(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                  struct device_import **ret_import, char *err, size_t err_bytes);
    void *(*import_address)(const struct device_import *import);
    void (*unimport)(struct device_import *import);
};

extern const struct device_backend device_host_backend;
/* Defined in builds with KVD_HAVE_CUDA_BACKEND. */
extern const struct device_backend device_cuda_backend;

/* 32 hexadecimal digits. */
void device_uuid_text(const uint8_t uuid[16], char text[33]);

/* For the owner's metrics: copies that were issued, and their payload. */
void device_count_moved(struct device *device, enum device_direction direction, uint64_t operations, uint64_t bytes);

/* 0 or -EINVAL: every copy and write lies within its region, and every region belongs to the device. */
int device_check_batch(const struct device *device, const struct device_batch *batch, char *err, size_t err_bytes);

/* 0 or -EINVAL: every page lies in its region, and every host form in pinned memory. */
int device_check_moves(const struct device *device, const struct device_moves *moves, char *err, size_t err_bytes);

#endif
