/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the arena's pages again and again, slowly, and compares them with their checksums: what memory did to a page
 * that nobody has asked for in a while is found before somebody does. One thread, which takes the core mutex to choose
 * a page and to say what it found, and reads it without.
 */
#ifndef KVD_SCRUB_H
#define KVD_SCRUB_H

#include <stdint.h>

struct scrub;
struct service;

/* rate: bytes a second. 0, or 1: no memory or no thread. */
int scrub_new(struct service *service, const uint8_t *arena, uint64_t rate, struct scrub **ret_scrub);
/* Not under the core mutex. NULL is fine; returns NULL. */
struct scrub *scrub_free(struct scrub *scrub);
/* Under the core mutex: what was read since the start. NULL: nothing. */
void scrub_get(const struct scrub *scrub, uint64_t *ret_pages, uint64_t *ret_bytes);

/* The arena's bytes did not match; the store has released `lost` continuations for it so far. Any thread. */
void damage_found(uint32_t lost);

#endif
