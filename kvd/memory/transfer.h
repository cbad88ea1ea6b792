/* SPDX-License-Identifier: Apache-2.0
 *
 * Device work of the store: page copies of activations and checkpoints, and publication of block-table slices to every
 * rank (ROW-4).
 *
 * A batch is built with transfer_begin/copy/slice and handed to every device by transfer_submit. Devices complete
 * batches in the order of submission, so that a later write of a row never overtakes an earlier one: a row may be
 * reused as soon as its -1 entries have been submitted. Table entries are copied into the batch, because the store's
 * mirror moves on while a device works.
 *
 * All functions are called under the core mutex. Nothing here waits for a device: what is not done at once is found by
 * transfer_collect when a device's event fd is readable.
 */
#ifndef KVD_TRANSFER_H
#define KVD_TRANSFER_H

#include "pools.h"
#include "store.h"

struct transfer;

enum transfer_result {
    TRANSFER_DONE = 0,
    TRANSFER_PENDING = 1,
    TRANSFER_LOST = 2 /* a device is lost; see transfer_error */
};

int transfer_new(const struct pools *pools, const struct store *store, struct transfer **ret_transfer);
struct transfer *transfer_free(struct transfer *transfer);

/* Starts an empty batch. */
void transfer_begin(struct transfer *transfer);
void transfer_copy(struct transfer *transfer, const struct store_copy *copy);
/* The slice of each pool's view, as the row mirror has it now. */
void transfer_rows(struct transfer *transfer, const struct kvd_pool_view *views);
/* tag is given back by transfer_collect if the batch was PENDING. An empty batch is done at once. */
enum transfer_result transfer_submit(struct transfer *transfer, uint32_t tag);

/* A batch of these rows alone, for which nobody waits. That a device is lost is seen by transfer_lost. */
void transfer_publish(struct transfer *transfer, const struct kvd_pool_view *views);

/* Takes one finished batch: its tag and whether it was done or lost. False when there is none. */
bool transfer_collect(struct transfer *transfer, uint32_t *ret_tag, enum transfer_result *ret_result);
bool transfer_lost(const struct transfer *transfer);
/* From now on every batch, those in flight too, is lost. Also how a test breaks a device. */
void transfer_lose(struct transfer *transfer, uint32_t rank, const char *why);
const char *transfer_error(const struct transfer *transfer); /* "" or the sentence of the first device error */

#endif
