/* SPDX-License-Identifier: Apache-2.0
 *
 * Which page names have come before, in bounded memory: what a cache that forgets nothing could have had.
 *
 * Two Bloom filters of NAMED_BEFORE_PAGES names each. When the younger one is full, the older one is forgotten and
 * takes its place. So the last NAMED_BEFORE_PAGES names are always known, and twice as many at most. Less than 2
 * percent of the names that never came are taken for known.
 *
 * It has a lock of its own, a leaf, so that nobody waits for it under the core mutex. A name costs two cache lines.
 */
#ifndef KVD_NAMED_BEFORE_H
#define KVD_NAMED_BEFORE_H

#include "kvd_types.h"

#define NAMED_BEFORE_PAGES 700000u

struct named_before;

struct named_before *named_before_new(void); /* 2 MiB, of which what is never touched takes none; NULL: no memory */
void named_before_free(struct named_before *names); /* NULL is fine */
/* Pages [first, first + n) of a sequence, with their names. Pages before `noted` were noted earlier. */
struct named_pages {
    const kvd_digest *names;
    uint32_t first, n, noted, prompt_tokens, reused_tokens;
};
/* Any thread. */
void named_before_note(struct named_before *names, const struct named_pages *pages);
/* Tokens of prompts in whole pages that were computed though the page's name had come before. Any thread. */
uint64_t named_before_tokens(struct named_before *names);

#endif
