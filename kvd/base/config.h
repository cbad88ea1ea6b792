/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration: an INI file. One table describes every key; it drives parsing, checking and `kvd --help-config`.
 *
 * Errors are sentences "file:line: what is wrong; what to change". All of them come at once, so that a user can mend a
 * file in one go.
 */
#ifndef KVD_CONFIG_H
#define KVD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "geometry.h"
#include "kvd_types.h"
#include "log.h"

#define CONFIG_AUTO32 UINT32_MAX
#define CONFIG_AUTO64 UINT64_MAX
#define CONFIG_ACCESS_ENTRIES 16
#define CONFIG_KEYS 90u /* at most */
#define CONFIG_GROUPS 8u
#define CONFIG_POOLS 5u /* main, draft, and three with windows, of which KVD_MAX_POOLS go together */

/* Who may take a role: a peer that matches any entry. The daemon's own user and root always may. */
struct config_access {
    uint32_t n;
    struct {
        enum { ACCESS_ALL, ACCESS_UID, ACCESS_GID } kind;
        uint32_t id;
    } entry[CONFIG_ACCESS_ENTRIES];
};

enum config_tenants { TENANTS_SHARED = 0, TENANTS_UID };

/* What is written into the cold tier. */
enum config_cold_write { COLD_WRITE_OFF = 0, COLD_WRITE_DEMOTED, COLD_WRITE_RETAINED };

/* How device memory is shared. IPC: by handles of this process; the memory ends with the process. VMM: by file
 * descriptors, which systemd keeps for the next instance. */
enum config_export { EXPORT_IPC = 0, EXPORT_VMM = 1 };

struct config {
    /* Not in the file. The first generation of every handle, so that handles of an earlier instance are invalid. 0 = 1.
     */
    uint32_t first_generation;
    /* [kvd] */
    char socket[96]; /* leaves room for a private name beside it in sun_path */
    char store[KVD_NAME_BYTES];
    char group[KVD_NAME_BYTES]; /* "": leave the group as it is */
    uint32_t socket_mode;
    uint32_t log_level; /* enum log_level */
    uint32_t ring;      /* 0, 1 */
    /* [devices] */
    uint32_t n_devices;
    struct config_device {
        uint32_t kind /* enum device_kind */, index;
    } device[KVD_MAX_RANKS];
    uint64_t memory; /* bytes that a host device claims to have */
    uint32_t export; /* enum config_export */
    /* [model] */
    uint32_t layers, kv_heads, head_dim, profile /* enum kvd_storage */, arrangement /* enum geom_arrangement */;
    uint32_t max_context, max_concurrency;
    /* [pool.NAME]: main, draft, those with windows in the order of the file; the last is the example's, which is read
     * and forgotten */
    uint32_t n_window_pools;
    struct config_pool {
        char name[KVD_GROUP_NAME_BYTES];
        uint32_t window, aligned /* 0, 1 */;
        uint32_t lead, share; /* CONFIG_AUTO32 */
        char groups[CONFIG_GROUPS * KVD_GROUP_NAME_BYTES];
        uint32_t n_groups, group[CONFIG_GROUPS]; /* numbers of layer_group; 0: the pool is of one shape */
    } pool[CONFIG_POOLS + 1];
    /* [group.NAME], in the order of the file; the last is the example's */
    uint32_t n_layer_groups;
    struct config_layer_group {
        char name[KVD_GROUP_NAME_BYTES];
        uint32_t layers, format /* enum kvd_format */, order /* enum geom_order */;
        uint32_t kv_heads, head_dim, v_head_dim, profile; /* CONFIG_AUTO32: as the model */
        uint32_t bytes;
    } layer_group[CONFIG_GROUPS + 1];
    /* [backend] */
    uint32_t backend /* enum geom_backend */, draft_window, widest_verify;
    uint32_t draft_layers, draft_kv_heads, draft_head_dim; /* CONFIG_AUTO32: what the backend implies */
    /* [capacity] */
    uint64_t capacity_tokens; /* CONFIG_AUTO64 */
    uint64_t headroom, state_bytes, persistent_bytes, workspace_bytes, graph_bytes;
    uint32_t state_slots; /* CONFIG_AUTO32 */
    /* [lease] */
    uint32_t lease_growth; /* 0, 1 */
    uint32_t lease_window, prefill_chunk, map_ahead;
    /* [limits] */
    uint32_t sessions, connections, continuations /* CONFIG_AUTO32 */, event_queue;
    uint32_t rolling_checkpoints;
    uint32_t sessions_per_uid, sequences_per_session; /* CONFIG_AUTO32 */
    uint64_t message_queue;
    uint64_t handshake_timeout, stall_timeout; /* ns */
    uint32_t low_water, high_water;            /* percent of a pool that is available */
    /* [access], by enum kvd_role - 1 */
    struct config_access access[4];
    uint32_t tenants; /* enum config_tenants */
    /* [host] */
    uint64_t arena_bytes;               /* 0: there is no host tier */
    uint32_t arena_lock;                /* 0, 1 */
    uint32_t arena_node, arena_threads; /* CONFIG_AUTO32 */
    uint64_t scrub_rate;                /* bytes a second, 0: never */
    uint64_t stop_time;                 /* ns */
    /* [cold] */
    struct config_listen {
        enum { LISTEN_NONE = 0, LISTEN_TCP4, LISTEN_TCP6, LISTEN_UNIX } kind;
        uint16_t port;
        char
            path[96]; /* of the Unix socket, or the address: a loopback one of [http], any without brackets of [cold] */
    } cold_address;   /* LISTEN_NONE: there is no cold tier */
    char cold_user[64], cold_password_file[128];     /* "": none */
    char cold_secret_file[128];                      /* "": objects have no MAC */
    uint32_t cold_write;                             /* enum config_cold_write */
    uint64_t cold_ttl;                               /* ns; 0: for good */
    uint64_t cold_buffer, cold_rate;                 /* bytes; bytes a second, 0: without limit */
    uint64_t cold_age, cold_timeout, cold_find_time; /* ns */
    uint32_t cold_connections;
    /* [http] */
    struct config_listen http_listen;
    uint32_t http_ui; /* 0, 1 */
    struct config_origin {
        char file[72]; /* its name, or the end of it */
        /* Where each key stands in it, by device, pool or group where there are several; 0: it has its default. */
        uint32_t line[CONFIG_KEYS][CONFIG_GROUPS + 1];
        uint32_t group_line[CONFIG_GROUPS + 1], pool_line[CONFIG_POOLS + 1]; /* where its section begins */
    } origin;
};

/* Layer group number i, with what it takes from the model. */
struct geom_group config_group(const struct config *config, uint32_t i);
/* Fills in the defaults of the table. */
void config_defaults(struct config *ret_config);
/* Reads a file on top of the defaults. Returns 0, or 1 with all complaints in err, one a line. */
int config_load(const char *path, struct config *ret_config, char *err, size_t err_bytes);
/* The same from a string; name stands for the file in complaints. */
int config_parse(const char *name, const char *text, struct config *ret_config, char *err, size_t err_bytes);
/* Key number i, as the configuration would have it: what is in effect, and what file, which was read last, has instead.
 * False: there are not so many. */
bool config_setting(const struct config *config, const struct config *file, uint32_t i,
                    struct kvd_setting *ret_setting);
/* Takes over the values that a running daemon may change. ret_rest names the other keys that differ ("[model] layers,
 * ..."); they need a restart. */
void config_reload(struct config *config, const struct config *from, char *ret_rest, size_t bytes);
/* The commented default configuration, from the table. */
void config_print_help(FILE *out);

/* config_value.c: parsers of the table's types. Each returns 0, or 1 with a sentence that says what is wrong with the
 * text and what to write. */
int config_value_whole(const char *text, bool may_auto, uint64_t *ret_value, char *err, size_t err_bytes);
int config_value_bytes(const char *text, uint64_t *ret_value, char *err,
                       size_t err_bytes); /* 4096, 64KiB, 2MiB, 1GiB */
int config_value_duration(const char *text, uint64_t *ret_ns, char *err, size_t err_bytes); /* 250ms, 5s, 1min */
int config_value_device(const char *text, struct config_device *ret_device, char *err, size_t err_bytes);
int config_value_access(const char *text, struct config_access *ret_access, char *err, size_t err_bytes);
/* none, a loopback address with its port, or unix:PATH; anything else is refused. */
int config_value_listen(const char *text, struct config_listen *ret_listen, char *err, size_t err_bytes);
/* none, a numeric address of any host with its port, or unix:PATH. */
int config_value_address(const char *text, struct config_listen *ret_address, char *err, size_t err_bytes);
/* The other way: in the largest unit that leaves nothing over. */
void config_value_print_bytes(uint64_t value, char *text, size_t bytes);
void config_value_print_duration(uint64_t ns, char *text, size_t bytes);
int config_value_number(const char *text, unsigned base, uint64_t *ret_value); /* 0, 1 = not a number that fits */

#endif
