/* SPDX-License-Identifier: Apache-2.0
 *
 * From the configuration to numbers: the geometry of the store, its capacity on the devices that there are (CAP-*), and
 * the report of `kvd --plan`. All arithmetic is that of cuda/geometry; nothing here knows a dimension formula.
 */
#ifndef KVD_PLAN_H
#define KVD_PLAN_H

#include <stdio.h>

#include "config.h"
#include "device.h"
#include "geometry.h"
#include "store.h"
#include "systemd.h"

struct plan {
    struct geom_store_spec spec;
    struct geom_capacity capacity; /* on the device with the least free memory */
    uint32_t n_devices;
    struct device_identity identity[KVD_MAX_RANKS];
    uint64_t free_bytes[KVD_MAX_RANKS];
    uint64_t arena_bytes;                 /* whole memory pages */
    uint64_t host_stride[GEOM_MAX_POOLS]; /* a packed page of all ranks */
    uint64_t host_state_stride;           /* a packed state image of all ranks; 0: there are none */
};

/* Geometry alone; 0, or 1 with a sentence. */
int plan_spec(const struct config *config, struct geom_store_spec *ret_spec, char *err, size_t err_bytes);
/* What the configuration says of pool number `pool` of the store. */
const struct config_pool *plan_pool(const struct config *config, const struct geom_store_spec *spec, uint32_t pool);
/* Geometry and capacity on opened devices. stored: regions of an earlier instance (NULL: none): their memory counts as
 * free, and an automatic capacity stays what it was. arena: its name (NULL: none); what an earlier instance left there
 * is not needed again. Refused, before a byte is taken, where the machine, the control groups or the limits of this
 * process do not allow the regions of host devices and the arena together. 0, or 1 with a sentence. */
int plan_make(const struct config *config, struct device *const *devices, const struct stored_regions *stored,
              const char *arena, struct plan *ret_plan, char *err, size_t err_bytes);
/* The sizes alone, without a look at a device: where tokens are given. False: they are not, or do not go. */
bool plan_sizes(const struct config *config, struct plan *ret_plan);
/* What the store is to be told. */
void plan_store_config(const struct config *config, const struct plan *plan, struct store_config *ret_store);
/* plan_report.c. In words and units, or as one JSON object of exact numbers. */
/* What a start would keep of the arena that is there (arena_import.h). */
struct arena_cost {
    bool there, foreign; /* foreign: of another geometry or format, or damaged: it is emptied, whatever it has */
    uint32_t continuations, kept, shortened;
};
/* In a sentence; what costs nothing is not said unless `all`. False: there is nothing to say. */
bool plan_cost_text(const struct arena_cost *cost, bool all, char *text, size_t bytes);
/* As comments of a configuration, without a look at a device: what of the plan are spec, the capacity's curve and the
 * layout of the smallest store. */
void plan_print_least(FILE *out, const struct config *config, const struct plan *plan);
/* cost NULL: it is not known. */
void plan_print(FILE *out, const struct config *config, const struct plan *plan, const struct arena_cost *cost,
                bool json);

/* Name of the arena's shared memory: "/kvd-0123456789abcdef-" -> "/kvd-arena-0123456789abcdef". */
void plan_arena_name(const char *prefix, char *name, size_t bytes);
/* Opens the devices of the configuration. 0, or 1 with a sentence and nothing open. */
int plan_open_devices(const struct config *config, struct device **ret_devices, char *err, size_t err_bytes);

#endif
