/* SPDX-License-Identifier: Apache-2.0
 *
 * The page for people: kvd/serve/ui/index.html, which is part of the program, and the JSON documents that it polls.
 * /ui/state.json, each second:
 *
 *     { "time": seconds since 1970, "operations": N,
 *       "series": { "kvd_sequences": 3, "kvd_pool_pages{pool=\"main\"}": 256, ... },
 *       "arena": { "capacity": bytes, "occupied": bytes, "largest_free": bytes },
 *       "maps": { "main": { "cell": pages, "cells": "r9c4....s1" }, ..., "arena": { "cell": bytes, ... } },
 *       "sequences": { "total": N, "matching": N, "items": [...] },
 *       "continuations": { "total": N, "matching": N, "items": [...] } }
 *
 * /ui/history.json, every ten seconds: a column for each figure of history.h with a number for each ten seconds of the
 * last hour, and the last events, newest first.
 *
 * "series" are those of the metrics page of the same look, buckets and refusals that never happened left out: what is
 * counted there needs no line here. A map has UI_CELLS cells at most, in the order of pages or bytes: for what most of
 * the cell's used part is (r running, c cached, s shared, h in the arena) and how much of it is used, 1 to 9. Listed
 * are the UI_ITEMS sequences with most pages and the UI_ITEMS continuations that go first (lowest retention, least
 * recently used), of one domain where the address says ?domain=LABEL or a digest: handles, sizes, ages in seconds, and
 * the names that sessions gave themselves. Nothing of tokens, digests of pages, or who shares them. With tenants = uid
 * in section [access] no object and no event is listed: nobody knows who reads the page.
 */
#ifndef KVD_UI_H
#define KVD_UI_H

#include "service.h"

#define UI_ITEMS 200u
#define UI_CELLS 512u

/* The page, and the Content-Security-Policy under which it runs: nothing from elsewhere, no script or style but its
 * own. */
extern const unsigned char ui_page[];
extern const size_t ui_page_bytes;
extern const char ui_policy[];

/* state.json, from the text of metrics_page; to be freed. domain: "" for all. NULL: no memory. Any thread; takes the
 * core mutex for moments: once for 64 objects that are walked over, for each that is listed, and for 1024 pages. */
char *ui_state(struct service *service, const char *metrics, const char *domain, size_t *ret_bytes);
/* history.json; the same. */
char *ui_history(struct service *service, size_t *ret_bytes);

#endif
