/* SPDX-License-Identifier: Apache-2.0
 *
 * The page for people: kvd/ui/index.html, which is part of the program, and the JSON document that it polls:
 *
 *     { "time": seconds since 1970, "operations": N,
 *       "series": { "kvd_sequences": 3, "kvd_pool_pages{pool=\"main\"}": 256, ... },
 *       "arena": { "capacity": bytes, "occupied": bytes, "largest_free": bytes },
 *       "sequences": { "total": N, "items": [...] }, "continuations": { "total": N, "items": [...] } }
 *
 * "series" are those of the metrics page of the same look, buckets and refusals that never happened left out: what is
 * counted there needs no line here. Of sequences and continuations the UI_ITEMS with most pages are listed; handles,
 * sizes, and the names that sessions gave themselves. Nothing of tokens, digests, or how memory is shared. With
 * tenants = uid in section [access] none are listed: nobody knows who reads the page.
 */
#ifndef KVD_UI_H
#define KVD_UI_H

#include "service.h"

#define UI_ITEMS 200u

/* The page, and the Content-Security-Policy under which it runs: nothing from elsewhere, no script or style but its
 * own. */
extern const unsigned char ui_page[];
extern const size_t ui_page_bytes;
extern const char ui_policy[];

/* The document, from the text of metrics_page; to be freed. NULL: no memory. Any thread; takes the core mutex for
 * moments, once for each 64 objects. */
char *ui_state(struct service *service, const char *metrics, size_t *ret_bytes);

#endif
