/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks that do not depend on a backend: a batch and a list of moves that pass them touch only memory of their
 * regions and pinned memory.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "device_backend.h"

void device_uuid_text(const uint8_t uuid[16], char text[33]) {
    for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", uuid[i]);
}

/* ---- batches ------------------------------------------------------------------------------ */

static int check_copy(const struct device *device, const struct device_page_copy *copy, uint32_t i, char *err,
                      size_t err_bytes) {
    char why[160];
    if (!copy->spec || !copy->region || copy->region->device != device)
        return refuse_with(-EINVAL, err, err_bytes, "copy %u has no spec, or a region of another device", i);
    if (geom_pool_check(copy->spec, why, sizeof why))
        return refuse_with(-EINVAL, err, err_bytes, "copy %u: %s", i, why);
    if (copy->rank >= copy->spec->n_ranks || copy->n_pages == 0 || copy->src >= copy->n_pages ||
        copy->dst >= copy->n_pages)
        return refuse_with(-EINVAL, err, err_bytes,
                           "copy %u of page %u to %u, rank %u: the pool has %u pages, %u ranks", i, copy->src,
                           copy->dst, copy->rank, copy->n_pages, copy->spec->n_ranks);
    if (copy->columns == 0 || copy->columns > KVD_PAGE_TOKENS)
        return refuse_with(-EINVAL, err, err_bytes, "copy %u of %u columns: a page has 1..%d", i, copy->columns,
                           KVD_PAGE_TOKENS);
    uint64_t need = geom_region_bytes(copy->spec, copy->n_pages);
    if (need > copy->region->bytes)
        return refuse_with(-EINVAL, err, err_bytes, "copy %u: a pool of %" PRIu64 " bytes in a region of %" PRIu64, i,
                           need, copy->region->bytes);
    return 0;
}

static int check_write(const struct device *device, const struct device_table_write *write, uint32_t i, char *err,
                       size_t err_bytes) {
    if (!write->region || write->region->device != device || (write->count && !write->values))
        return refuse_with(-EINVAL, err, err_bytes, "table write %u has no values, or a region of another device", i);
    uint64_t bytes = (uint64_t)write->count * sizeof(int32_t);
    if (write->offset % sizeof(int32_t) || write->offset > write->region->bytes ||
        bytes > write->region->bytes - write->offset)
        return refuse_with(-EINVAL, err, err_bytes,
                           "table write %u of %u entries at byte %" PRIu64 ": the region has %" PRIu64
                           " bytes, entries start at multiples of 4",
                           i, write->count, write->offset, write->region->bytes);
    return 0;
}

int device_check_batch(const struct device *device, const struct device_batch *batch, char *err, size_t err_bytes) {
    int r = 0;
    if ((batch->n_copies && !batch->copies) || (batch->n_writes && !batch->writes))
        return refuse_with(-EINVAL, err, err_bytes, "the batch counts copies or writes that it does not hold");
    for (uint32_t i = 0; !r && i < batch->n_copies; i++) r = check_copy(device, &batch->copies[i], i, err, err_bytes);
    for (uint32_t i = 0; !r && i < batch->n_writes; i++) r = check_write(device, &batch->writes[i], i, err, err_bytes);
    return r;
}

/* ---- moves -------------------------------------------------------------------------------- */

static bool is_pinned(const struct device *device, const void *address, uint64_t bytes) {
    uintptr_t begin = (uintptr_t)address;
    for (uint32_t i = 0; i < device->n_pins; i++) {
        const struct device_pinned *pin = &device->pins[i];
        uintptr_t first = (uintptr_t)pin->address;
        if (begin >= first && bytes <= pin->bytes && begin - first <= pin->bytes - bytes) return true;
    }
    return false;
}

static int check_moved_pool(const struct device *device, const struct device_moves *moves, char *err,
                            size_t err_bytes) {
    char why[160];
    if (!moves->spec || !moves->region || moves->region->device != device || (moves->n && !moves->moves))
        return refuse_with(-EINVAL, err, err_bytes,
                           "moves have no spec, no list, or a region of another device: name all three");
    if (geom_pool_check(moves->spec, why, sizeof why)) return refuse_with(-EINVAL, err, err_bytes, "moves: %s", why);
    if ((unsigned)moves->direction > HOST_TO_DEVICE || moves->rank >= moves->spec->n_ranks || moves->n_pages == 0)
        return refuse_with(-EINVAL, err, err_bytes,
                           "moves of rank %u in direction %u of a pool of %u pages: the pool has %u ranks, there are "
                           "2 directions",
                           moves->rank, (unsigned)moves->direction, moves->n_pages, moves->spec->n_ranks);
    uint64_t need = geom_region_bytes(moves->spec, moves->n_pages);
    if (need > moves->region->bytes)
        return refuse_with(-EINVAL, err, err_bytes, "moves of a pool of %" PRIu64 " bytes in a region of %" PRIu64,
                           need, moves->region->bytes);
    return 0;
}

int device_check_moves(const struct device *device, const struct device_moves *moves, char *err, size_t err_bytes) {
    int r = check_moved_pool(device, moves, err, err_bytes);
    if (r) return r;
    uint64_t packed = geom_packed_bytes(moves->spec);
    for (uint32_t i = 0; i < moves->n; i++) {
        const struct device_move *move = &moves->moves[i];
        if (move->page >= moves->n_pages)
            return refuse_with(-EINVAL, err, err_bytes, "move %u of page %u: the pool has %u pages", i, move->page,
                               moves->n_pages);
        if (!is_pinned(device, move->host, packed))
            return refuse_with(-EINVAL, err, err_bytes,
                               "move %u of page %u: its packed form of %" PRIu64
                               " bytes does not lie in pinned memory: pin the whole mapping first",
                               i, move->page, packed);
    }
    return 0;
}
