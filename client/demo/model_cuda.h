/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo's model on a GPU, for views of a CUDA store.
 */
#ifndef KVD_DEMO_MODEL_CUDA_H
#define KVD_DEMO_MODEL_CUDA_H

#include "model.h"

/* device_uuid: 16 bytes; NULL = the first GPU. The GPU becomes the current one of the calling thread, which alone may
 * use the model. 0, -ENODEV: no such GPU here, or -errno; with a sentence. */
int model_cuda_new(const uint8_t *device_uuid, uint32_t max_context, const char *document, struct model **ret_model,
                   char *err, size_t err_bytes);

#endif
