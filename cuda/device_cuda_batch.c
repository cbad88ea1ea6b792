/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of a CUDA device. The device's thread takes them in order, a group at a time: one batch, and the following
 * ones as long as they copy no pages, which lets a publication share the completion of those before it and never wait
 * for the copies of a later one. One group is in flight at a time, so that mirrors and bounce buffer are never changed
 * under a copy engine.
 *
 * Completion: the thread asks the event for a little while without sleeping, since a publication takes about 10 us.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda_internal.h"

#define SPIN_NS 200000u /* asking an event without a pause */

/* ---- submit ------------------------------------------------------------------------------- */

static struct cuda_batch *batch_copy(const struct device_batch *from) {
    size_t values = 0;
    for (uint32_t i = 0; i < from->n_writes; i++) values += from->writes[i].count;
    size_t copies_bytes = from->n_copies * sizeof(struct cuda_copy),
           writes_bytes = from->n_writes * sizeof(struct cuda_write);
    struct cuda_batch *b = malloc(sizeof *b + copies_bytes + writes_bytes + values * sizeof(int32_t));
    if (!b) return NULL;
    *b = (struct cuda_batch){ .n_copies = from->n_copies, .n_writes = from->n_writes, .copies = (void *)(b + 1) };
    b->writes = (void *)(b->copies + from->n_copies);
    int32_t *at = (void *)(b->writes + from->n_writes);
    for (uint32_t i = 0; i < from->n_copies; i++) {
        const struct device_page_copy *c = &from->copies[i];
        b->copies[i] = (struct cuda_copy){ .spec = *c->spec,
                                           .region = (struct cuda_region *)c->region,
                                           .n_pages = c->n_pages,
                                           .rank = c->rank,
                                           .src = c->src,
                                           .dst = c->dst };
    }
    for (uint32_t i = 0; i < from->n_writes; i++) {
        const struct device_table_write *w = &from->writes[i];
        b->writes[i] = (struct cuda_write){
            .region = (struct cuda_region *)w->region, .offset = w->offset, .count = w->count, .values = at
        };
        if (w->count) memcpy(at, w->values, w->count * sizeof *at);
        at += w->count;
    }
    return b;
}

int cuda_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    int r = cuda_check_lost(d, err, err_bytes);
    if (r) return r;
    struct cuda_batch *b = batch_copy(batch);
    if (!b)
        return refuse_with(-ENOMEM, err, err_bytes, "no memory to queue a batch of %u copies and %u table writes",
                           batch->n_copies, batch->n_writes);
    *ret_ticket = d->batches.last_ticket + 1;
    *ret_inline_done = false;
    cuda_queue_put(&d->batches, &b->item);
    return 0;
}

int cuda_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes) {
    return cuda_queue_poll(&cuda_of(device)->batches, ret_done, err, err_bytes);
}

/* ---- the thread --------------------------------------------------------------------------- */

static const struct cuda_batch *batch_of(const struct cuda_item *item) { return (const struct cuda_batch *)item; }

static bool goes_along(const struct cuda_item *item) { return batch_of(item)->n_copies == 0; }

/* Puts a group on the stream: the copies of its first batch, then all writes. */
static int enqueue_group(struct cuda_device *d, const struct cuda_item *group, char *err, size_t err_bytes) {
    size_t n_windows = 0;
    int r = 0;
    for (const struct cuda_item *item = group; item; item = item->next) {
        const struct cuda_batch *b = batch_of(item);
        for (uint32_t i = 0; !r && i < b->n_copies; i++) r = cuda_enqueue_copy(d, &b->copies[i], err, err_bytes);
        for (uint32_t i = 0; !r && i < b->n_writes; i++) {
            if (!b->writes[i].count) continue;
            r = cuda_apply_write(d, &b->writes[i], n_windows, err, err_bytes);
            n_windows += !r;
        }
    }
    if (!r) r = cuda_enqueue_windows(d, n_windows, err, err_bytes);
    if (!r) r = CUDA_CALL(err, err_bytes, cuEventRecord, d->event, d->stream);
    return r;
}

static uint64_t last_ticket(const struct cuda_item *group) {
    while (group->next) group = group->next;
    return group->ticket;
}

/* 0: done. -ETIMEDOUT: given up, the device is being closed. */
static int run_group(struct cuda_device *d, const struct cuda_item *group) {
    char why[sizeof d->why] = "";
    int r = cuda_check_lost(d, NULL, 0);
    if (r) return r;
    r = enqueue_group(d, group, why, sizeof why);
    if (!r) r = cuda_await(d, d->event, SPIN_NS, why, sizeof why);
    if (!r) return 0;
    cuda_lose(d, why);
    return r == -ETIMEDOUT || cuda_drain(d, d->stream) ? -ETIMEDOUT : -EIO;
}

void cuda_batch_thread(struct cuda_queue *q) {
    struct cuda_device *d = q->device;
    for (struct cuda_item *group; (group = cuda_queue_take(q, goes_along));) {
        int r = run_group(d, group);
        if (!r) {
            atomic_store_explicit(&q->done, last_ticket(group), memory_order_release);
            cuda_tell(d);
        }
        cuda_items_free(group);
        if (r == -ETIMEDOUT) {
            atomic_store(&d->abandoned, true);
            break;
        }
    }
}
