/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd's figures as JSON. What /metrics also has is called as it is there, without "kvd_" (in a pool without
 * "kvd_pool_", in the arena without "kvd_arena_"): kvd_pool_available_pages{pool="main"} is "available_pages" in the
 * object of "pools" whose "pool" is "main". Keys that end in "_text" are for people.
 */
#ifndef KVDCTL_FIGURES_H
#define KVDCTL_FIGURES_H

#include <kvd.h>

#include "out.h"

/* What the configuration calls it. */
const char *figures_pool(const struct kvd_store_info *info, uint32_t pool);
uint32_t figures_other_pages(const uint32_t pages[KVD_MAX_POOLS]); /* of all pools but main */
cJSON *figures_daemon(const struct kvd_stats *stats, const struct kvd_store_info *info);
cJSON *figures_pools(const struct kvd_stats *stats, const struct kvd_store_info *info);
/* The host arena; all zero where there is none. */
cJSON *figures_arena(const struct kvd_stats *stats);
/* Differences of the counters of two objects of figures_daemon, a second: "requests_per_second" is of "requests_total".
 */
cJSON *figures_rates(const cJSON *before, const cJSON *now, double seconds);

uint32_t figures_event_mask(void); /* the kinds that have words here */
/* An event: "event" names its kind, the rest depends on it. info: for the names of pools. */
cJSON *figures_event(const struct kvd_event *event, const struct kvd_store_info *info);
/* Any object that figures_event or follow.h made, in words. */
void figures_event_text(const cJSON *event, char *text, size_t bytes);

/* Of an object: a number, also where it is written as text because a double does not hold it. 0 without one. */
double figures_number(const cJSON *object, const char *key);
const char *figures_string(const cJSON *object, const char *key); /* "" without one */
/* Seconds since 1970. */
double figures_time(void);
/* "12:34:56" of such a time, here. */
const char *figures_clock(double time, char text[16]);
void figures_duration(cJSON *object, const char *key, double seconds); /* "3 h 5 min" */

#endif
