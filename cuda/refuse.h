/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVD_CUDA_REFUSE_H
#define KVD_CUDA_REFUSE_H

#include <stddef.h>

/* Writes the sentence into err (NULL or 0 bytes: nowhere), cut to err_bytes, and returns code, so that a refusal is one
 * statement. Any thread. */
__attribute__((format(printf, 4, 5))) int refuse_with(int code, char *err, size_t err_bytes, const char *format, ...);

#endif
