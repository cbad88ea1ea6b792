/* SPDX-License-Identifier: Apache-2.0
 *
 * Secrets of the cold tier, in files that only kvd's user may read: the password of the engine, and the key of MACs.
 * One thread at a time for each buffer.
 */
#ifndef KVD_COLD_SECRET_H
#define KVD_COLD_SECRET_H

#include <stddef.h>
#include <stdint.h>

#include "cold_value.h"

/* The first line of a file, with a terminator. 0, or 1 with a sentence: it cannot be read, is no file, others may read
 * it, or it is longer than `bytes`, of which one is the terminator's. what: begins the sentence. */
int cold_read_private(const char *path, const char *what, char *ret_line, size_t bytes, char *why, size_t why_bytes);
/* The same for a line of 64 hexadecimal digits. */
int cold_read_secret(const char *path, uint8_t ret_secret[COLD_SECRET_BYTES], char *why, size_t why_bytes);

#endif
