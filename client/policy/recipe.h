/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gives way for an activation, in the order of a catalogue. kvd says what is short; the recipe grows by as many
 * pages, and kvd is asked again: pages that are shared go with the last who holds them, so a recipe frees less than it
 * names at times, and never more. The last one of those that are released is only shortened, by what is needed.
 */
#ifndef KVD_POLICY_RECIPE_H
#define KVD_POLICY_RECIPE_H

#include "catalog.h"
#include "kvd.h"

struct policy_recipe {
    const struct reuse_model *model;
    kvd_client *client;
    struct kvd_activation trial;
    struct kvd_plan plan;
    struct kvd_victim *room;
    uint32_t max, n, choice, shortened;
    bool demotes, cuts;
    struct catalog_walk demoting, releasing;
    struct kvd_error *error;
};

/* The catalogue has advanced to the time of the choice. KVD_OK: recipe->plan says whether it does. */
enum kvd_status recipe_find(struct policy_recipe *recipe);

#endif
