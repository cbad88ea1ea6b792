/* SPDX-License-Identifier: Apache-2.0
 *
 * The model's part of a configuration out of the model's own file: config.json, as transformers writes it. It knows the
 * architectures of its table. What it does not know it names, and prints nothing.
 */
#ifndef KVD_FROM_HF_H
#define KVD_FROM_HF_H

#include <stdint.h>
#include <stdio.h>

struct from_hf {
    const char *path;    /* of config.json */
    uint32_t ranks;      /* devices of the model, 1..KVD_MAX_RANKS */
    const char *profile; /* of K and V, as in section [model]; a latent is bf16, fp8 or fp8-tensor. NULL: the file's */
};

/* Prints sections that a configuration can begin with, and what they come to as comments. 0, or 1 with a sentence and
 * nothing printed. */
int from_hf_print(FILE *out, const struct from_hf *ask, char *err, size_t err_bytes);

#endif
