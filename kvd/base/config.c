/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of keys. The parser splits the file into lines and each line into section, name and value, finds the key
 * and checks the value. It collects all complaints and prints them in the order of their lines.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

enum key_type {
    KEY_PATH,
    KEY_NAME,
    KEY_NAMES,
    KEY_U32,
    KEY_U32_AUTO,
    KEY_U64_AUTO,
    KEY_BYTES,
    KEY_TIME,
    KEY_MODE,
    KEY_TOKEN,
    KEY_DEVICE,
    KEY_ACCESS,
    KEY_LISTEN,
    KEY_ADDRESS
};

struct token {
    const char *name;
    uint32_t value;
};

struct key {
    const char *section, *name;
    enum key_type type;
    size_t offset, bytes;
    uint64_t min, max;
    const char *value; /* default */
    const struct token *tokens;
    const char *doc;
};

#define FIELD(f) offsetof(struct config, f), sizeof(((struct config *)0)->f)
#define MAX32 (UINT32_MAX - 1)
#define MAX_BYTES (UINT64_C(1) << 50)
#define SECOND UINT64_C(1000000000)

static const struct token levels[] = { { "error", LOG_ERROR }, { "warning", LOG_WARNING }, { "notice", LOG_NOTICE },
                                       { "info", LOG_INFO },   { "debug", LOG_DEBUG },     { 0 } };
static const struct token group_profiles[] = { { "auto", CONFIG_AUTO32 },
                                               { "bf16", KVD_STORAGE_BF16 },
                                               { "int8", KVD_STORAGE_INT8 },
                                               { "fp8", KVD_STORAGE_FP8 },
                                               { "nvfp4", KVD_STORAGE_NVFP4 },
                                               { "k8v4", KVD_STORAGE_K8V4 },
                                               { "fp8-tensor", KVD_STORAGE_FP8_TENSOR },
                                               { 0 } };
#define PROFILES (group_profiles + 1) /* a model has one of its own */
static const struct token group_formats[] = {
    { "kv", KVD_FORMAT_KV }, { "latent", KVD_FORMAT_LATENT }, { "packed", KVD_FORMAT_PACKED }, { 0 }
};
static const struct token orders[] = { { "page-major", GEOM_PAGE_MAJOR }, { "head-major", GEOM_HEAD_MAJOR }, { 0 } };
static const struct token exports[] = { { "ipc", EXPORT_IPC }, { "vmm", EXPORT_VMM }, { 0 } };
static const struct token arrangements[] = { { "dense", GEOM_DENSE }, { "record", GEOM_RECORD }, { 0 } };
static const struct token backends[] = { { "off", GEOM_OFF }, { "mtp", GEOM_MTP }, { "dflash", GEOM_DFLASH }, { 0 } };
static const struct token tenants[] = { { "shared", TENANTS_SHARED }, { "uid", TENANTS_UID }, { 0 } };
static const struct token cold_writes[] = {
    { "off", COLD_WRITE_OFF }, { "demoted", COLD_WRITE_DEMOTED }, { "retained", COLD_WRITE_RETAINED }, { 0 }
};
static const struct token yes_no[] = { { "no", 0 }, { "yes", 1 }, { 0 } };

/* Sections of which there are several: each row of the table stands for all of them. */
static const char POOLS[] = "pool.NAME", GROUPS[] = "group.NAME";

static const struct key keys[] = {
    { "kvd", "socket", KEY_PATH, FIELD(socket), 0, 0, "/run/kvd/kvd.sock", NULL,
      "Absolute path of the socket. PATH.lock beside it is held while the daemon runs. Under the systemd unit the\n"
      "default is /run/kvd/NAME/kvd.sock." },
    { "kvd", "store", KEY_NAME, FIELD(store), 0, 0, "main", NULL, "Name of the store, shown to clients." },
    { "kvd", "group", KEY_NAME, FIELD(group), 0, 0, "", NULL, "Group of the sockets. Empty: the daemon's own group." },
    { "kvd", "socket_mode", KEY_MODE, FIELD(socket_mode), 0, 0777, "0660", NULL, "Permissions of the socket (octal)." },
    { "kvd", "log_level", KEY_TOKEN, FIELD(log_level), 0, 0, "info", levels, "How much goes to stderr." },
    { "kvd", "ring", KEY_TOKEN, FIELD(ring), 0, 0, "yes", yes_no,
      "yes: schedulers and workers may send requests through shared memory, 260 KiB a connection, which is faster "
      "than\n"
      "the socket. no: all go over the socket." },

    { "devices", "device.0", KEY_DEVICE, FIELD(device[0]), 0, 0, "host:0", NULL,
      "Devices in rank order: device.0, device.1, ... up to device.7, each host:N (shared memory, no GPU) or cuda:N.\n"
      "Several devices hold one tensor-parallel model: every rank has kv_heads / devices heads of every layer." },
    { "devices", "memory", KEY_BYTES, FIELD(memory), 1 << 20, MAX_BYTES, "1GiB", NULL,
      "Bytes that each host device claims to have. CUDA devices know theirs." },
    { "devices", "export", KEY_TOKEN, FIELD(export), 0, 0, "ipc", exports,
      "How engines get at device memory. ipc: CUDA IPC (file descriptors for host devices); it goes with the daemon,\n"
      "what fits is demoted to the arena at an orderly stop. vmm: file descriptors, which systemd keeps over a restart "
      "or\n"
      "a crash of the daemon (FileDescriptorStoreMax= of the unit), so that the next one has every page." },

    { "model", "layers", KEY_U32, FIELD(layers), 1, 4096, "4", NULL, "Layers with full attention." },
    { "model", "kv_heads", KEY_U32, FIELD(kv_heads), 1, 4096, "2", NULL,
      "KV heads of a layer, over all devices. Where these outnumber the heads, several hold the same one." },
    { "model", "head_dim", KEY_U32, FIELD(head_dim), 1, 4096, "256", NULL,
      "Elements of a head. int8, fp8, nvfp4 and k8v4 need 64, 96, 128, 192 or 256." },
    { "model", "profile", KEY_TOKEN, FIELD(profile), 0, 0, "bf16", PROFILES,
      "How K and V are stored. fp8-tensor is FP8 without scales in the pages: the engine has one for K and one for V "
      "of\n"
      "each layer." },
    { "model", "arrangement", KEY_TOKEN, FIELD(arrangement), 0, 0, "record", arrangements,
      "dense: every plane on its own. record: the planes of a layer side by side in each page, which moves faster." },
    { "model", "max_context", KEY_U32, FIELD(max_context), 1, 1u << 28, "8192", NULL,
      "Longest sequence, in tokens (S)." },
    { "model", "max_concurrency", KEY_U32, FIELD(max_concurrency), 1, 65535, "8", NULL,
      "Active sequences at once (C)." },

    { POOLS, "groups", KEY_NAMES, FIELD(pool[0].groups), 0, 0, "", NULL,
      "NAME is main, draft, the pool of the backend, or another: of layers that see a window of the history. There "
      "are\n"
      "at most four pools. The layer groups of the pool in the order of their layers: names of sections [group.NAME]\n"
      "with blanks between. Empty: all layers are alike, as [model] or [backend] says; not of a pool of windows." },
    { POOLS, "window", KEY_U32, FIELD(pool[0].window), 0, 1u << 28, "0", NULL,
      "Tokens that these layers see at most, the one to come among them: pages behind are given back as a sequence\n"
      "grows. 0: all, as main always does." },
    { POOLS, "aligned", KEY_TOKEN, FIELD(pool[0].aligned), 0, 0, "no", yes_no,
      "yes: they see those from the last multiple of window on (chunked attention)." },
    { POOLS, "lead", KEY_U32_AUTO, FIELD(pool[0].lead), 0, 1u << 20, "auto", NULL,
      "Tokens behind the window that a running sequence keeps: as many may be truncated. At most window. auto:\n"
      "widest_verify with a backend, else 0." },
    { POOLS, "share", KEY_U32_AUTO, FIELD(pool[0].share), 1, 1000, "auto", NULL,
      "Pages of a pool of windows for each 1000 that the main pool has beyond the smallest store. More: more windows "
      "of\n"
      "continuations and checkpoints. auto: a window of a running sequence for each eighth of max_context." },

    { GROUPS, "layers", KEY_U32, FIELD(layer_group[0].layers), 0, 4096, "0", NULL,
      "Layers that store a token alike, of a pool whose layers differ. At least one." },
    { GROUPS, "format", KEY_TOKEN, FIELD(layer_group[0].format), 0, 0, "kv", group_formats,
      "kv: K and V of each head, apart. latent: one row for all heads, which every device holds whole. packed: K and V "
      "of\n"
      "a head in one row. Bytes of latent and packed rows are the engine's business." },
    { GROUPS, "kv_heads", KEY_U32_AUTO, FIELD(layer_group[0].kv_heads), 1, 4096, "auto", NULL,
      "KV heads of a layer, over all devices. auto: as the model; with latent 1." },
    { GROUPS, "head_dim", KEY_U32_AUTO, FIELD(layer_group[0].head_dim), 1, 4096, "auto", NULL,
      "kv: elements of a head of K. auto: as the model." },
    { GROUPS, "v_head_dim", KEY_U32_AUTO, FIELD(layer_group[0].v_head_dim), 1, 4096, "auto", NULL,
      "kv: elements of a head of V. auto: as head_dim." },
    { GROUPS, "profile", KEY_TOKEN, FIELD(layer_group[0].profile), 0, 0, "auto", group_profiles,
      "kv: how K and V are stored. auto: as the model." },
    { GROUPS, "order", KEY_TOKEN, FIELD(layer_group[0].order), 0, 0, "page-major", orders,
      "page-major: the heads of a page stand together. head-major: the pages of a head do." },
    { GROUPS, "bytes", KEY_U32, FIELD(layer_group[0].bytes), 0, 65536, "0", NULL,
      "latent: bytes of a token. packed: bytes of a token and head, K and V together." },

    { "backend", "kind", KEY_TOKEN, FIELD(backend), 0, 0, "off", backends,
      "Speculative backend. mtp adds a pool for the draft heads, dflash one for the draft's full-attention layers." },
    { "backend", "draft_window", KEY_U32, FIELD(draft_window), 1, 1024, "4", NULL,
      "Draft window in tokens (K); at most 15 with mtp. Unused when kind is off." },
    { "backend", "widest_verify", KEY_U32, FIELD(widest_verify), 1, 1024, "16", NULL,
      "Widest verify in tokens; part of the cushion of a growing lease." },
    { "backend", "layers", KEY_U32_AUTO, FIELD(draft_layers), 0, 4096, "auto", NULL,
      "Layers of the draft pool. auto: 1. With dflash 0 means that there is no such pool." },
    { "backend", "kv_heads", KEY_U32_AUTO, FIELD(draft_kv_heads), 1, 4096, "auto", NULL,
      "KV heads of the draft pool. auto: as the model with mtp, 8 with dflash." },
    { "backend", "head_dim", KEY_U32_AUTO, FIELD(draft_head_dim), 1, 4096, "auto", NULL,
      "Elements of a head of the draft pool. auto: as the model with mtp, 128 with dflash." },

    { "capacity", "tokens", KEY_U64_AUTO, FIELD(capacity_tokens), 1, UINT64_C(1) << 40, "auto", NULL,
      "Capacity in tokens, at least max_context; beyond all sequences it is cache. auto: what the smallest device "
      "has free." },
    { "capacity", "headroom", KEY_BYTES, FIELD(headroom), 0, MAX_BYTES, "64MiB", NULL,
      "Device memory that auto leaves alone." },
    { "capacity", "state_bytes", KEY_BYTES, FIELD(state_bytes), 0, MAX_BYTES, "0", NULL,
      "Bytes of one state image on each device, for models whose frontier is more than KV. 0: none." },
    { "capacity", "state_slots", KEY_U32_AUTO, FIELD(state_slots), 1, 1u << 20, "auto", NULL,
      "State images that a device holds, at least max_concurrency. auto: twice that." },
    { "capacity", "persistent_bytes", KEY_BYTES, FIELD(persistent_bytes), 0, MAX_BYTES, "0", NULL,
      "Other fixed state of the engine on each device: counted by auto, not allocated here." },
    { "capacity", "workspace_bytes", KEY_BYTES, FIELD(workspace_bytes), 0, MAX_BYTES, "0", NULL,
      "Workspace that the engine needs on each device: counted, not allocated here." },
    { "capacity", "graph_bytes", KEY_BYTES, FIELD(graph_bytes), 0, MAX_BYTES, "0", NULL,
      "What CUDA graphs of the engine need on each device: counted, not allocated here." },

    { "lease", "growth", KEY_TOKEN, FIELD(lease_growth), 0, 0, "no", yes_no,
      "no: an activation guarantees the whole output budget. yes: a window at a time, extended at round boundaries." },
    { "lease", "window", KEY_U32, FIELD(lease_window), 64, 1u << 28, "4096", NULL,
      "Window of a growing lease, in tokens." },
    { "lease", "prefill_chunk", KEY_U32, FIELD(prefill_chunk), 1, 1u << 28, "4096", NULL,
      "Prefill chunk of the engines, in tokens; the window is at least this." },
    { "lease", "map_ahead", KEY_U32, FIELD(map_ahead), 0, 4096, "4", NULL,
      "Pages that a round maps ahead of need, so that a decoding sequence seldom has to ask." },

    { "limits", "sessions", KEY_U32, FIELD(sessions), 1, 4096, "256", NULL,
      "Sessions at once. One of 16, and one at least, is kept for root, the daemon's own user and admins." },
    { "limits", "sessions_per_uid", KEY_U32_AUTO, FIELD(sessions_per_uid), 1, 4096, "auto", NULL,
      "Sessions that the processes of one user may have, but root, the daemon's own user and admins. auto: half of "
      "all." },
    { "limits", "connections", KEY_U32, FIELD(connections), 1, 8192, "320", NULL,
      "Connections at once. One more takes the place of the one that has waited longest without a Hello; where all\n"
      "have said it, the new one is closed." },
    { "limits", "continuations", KEY_U32_AUTO, FIELD(continuations), 2, 1u << 24, "auto", NULL,
      "Continuations that the store keeps, and those that keep its running sequences at their end: more than\n"
      "max_concurrency. auto: max_concurrency and one for each page of the main pool and each that the arena holds,\n"
      "in all at least 4096 and at most 262144." },
    { "limits", "rolling_checkpoints", KEY_U32, FIELD(rolling_checkpoints), 1, 16, "4", NULL,
      "Rolling checkpoints that one sequence has at once, where its activation asks for them: the oldest goes for a\n"
      "newer one. Each takes a continuation, the pages of its windows, and a state slot where there are state "
      "images.\n"
      "With 1 the only one goes before the newer one has its names: a death in between leaves none." },
    { "limits", "sequences_per_session", KEY_U32_AUTO, FIELD(sequences_per_session), 1, 65536, "auto", NULL,
      "Active sequences that one session may own. auto: max_concurrency." },
    { "limits", "message_queue", KEY_BYTES, FIELD(message_queue), 65536, 64u << 20, "256KiB", NULL,
      "Unsent bytes at which a connection is no longer read from. At four times that it is closed." },
    { "limits", "event_queue", KEY_U32, FIELD(event_queue), 1, 65536, "256", NULL,
      "Events kept for a subscriber that does not read; older ones are dropped and counted." },
    { "limits", "handshake_timeout", KEY_TIME, FIELD(handshake_timeout), SECOND / 100, 3600 * SECOND, "5s", NULL,
      "Time for Hello on a new connection, and for the rest of a frame once it has begun." },
    { "limits", "stall_timeout", KEY_TIME, FIELD(stall_timeout), SECOND / 100, 3600 * SECOND, "30s", NULL,
      "Time that a client may leave its answers unread." },
    { "limits", "low_water", KEY_U32, FIELD(low_water), 0, 100, "5", NULL,
      "Percent of a pool: when less is available, subscribers are told (pressure)." },
    { "limits", "high_water", KEY_U32, FIELD(high_water), 0, 100, "10", NULL,
      "Percent of a pool: when more is available again, subscribers are told that the pressure is over." },

    { "access", "observer", KEY_ACCESS, FIELD(access[0]), 0, 0, "*", NULL,
      "Who may take which role: *, uid:USER, gid:GROUP, several with blanks between. Root and the daemon's own user\n"
      "may take every role. gid: compares the group that a process runs as and its supplementary groups, as it held\n"
      "them when it connected; the group database is not asked. Observers look; they get no handle to KV." },
    { "access", "worker", KEY_ACCESS, FIELD(access[1]), 0, 0, "", NULL,
      "Workers map KV and drive the sequences leased to them." },
    { "access", "scheduler", KEY_ACCESS, FIELD(access[2]), 0, 0, "", NULL, "Schedulers activate, release and fence." },
    { "access", "admin", KEY_ACCESS, FIELD(access[3]), 0, 0, "", NULL, "Admins may do everything." },

    { "access", "tenants", KEY_TOKEN, FIELD(tenants), 0, 0, "shared", tenants,
      "Whose continuations a session may use. shared: all. uid: those of its own user: nobody finds, forks, moves or\n"
      "releases those of another, even with equal tokens. Lists show no others, and /ui shows none. Root, the "
      "daemon's\n"
      "own user and admins list and release all. A sequence is leased to workers of its own user. This keeps names\n"
      "apart, not memory: every worker maps whole pools, so users who must not read each other's KV need a daemon "
      "each." },

    { "host", "arena", KEY_BYTES, FIELD(arena_bytes), 0, MAX_BYTES, "0", NULL,
      "Bytes of the arena in shared memory that continuations are demoted to, and that outlives the daemon. 0: none." },
    { "host", "lock", KEY_TOKEN, FIELD(arena_lock), 0, 0, "no", yes_no,
      "yes: the arena is locked in memory (mlock), which needs LimitMEMLOCK. CUDA devices pin it in any case." },
    { "host", "numa", KEY_U32_AUTO, FIELD(arena_node), 0, 1023, "auto", NULL,
      "NUMA node that the arena's memory comes from. auto: the node of device.0, where the kernel tells it." },
    { "host", "threads", KEY_U32_AUTO, FIELD(arena_threads), 1, 64, "auto", NULL,
      "Threads that compute checksums of pages on their way. auto: one for two CPUs, at most 8 a device." },
    { "host", "scrub", KEY_BYTES, FIELD(scrub_rate), 0, MAX_BYTES, "64MiB", NULL,
      "Bytes a second of the arena that are read again and compared with their checksums. 0: never." },
    { "host", "stop_time", KEY_TIME, FIELD(stop_time), 0, 3600 * SECOND, "30s", NULL,
      "Time that an orderly stop may take to demote what the devices hold. systemd is asked for it as it passes,\n"
      "whatever TimeoutStopSec of the unit is." },

    { "cold", "address", KEY_ADDRESS, FIELD(cold_address), 0, 0, "none", NULL,
      "A Redis or Valkey server, or any node of a cluster, that pages are written to and read from, by this instance\n"
      "of kvd and by others, on this host and elsewhere: none, unix:PATH, or a numeric ADDRESS:PORT ([ADDRESS]:PORT\n"
      "for IPv6). Its connections are not encrypted: put a TLS tunnel between hosts. Needs [host] arena." },
    { "cold", "user", KEY_NAME, FIELD(cold_user), 0, 0, "", NULL, "User there. Empty: the default user." },
    { "cold", "password_file", KEY_PATH, FIELD(cold_password_file), 0, 0, "", NULL,
      "File with the password in its first line, of mode 0600. Read again at each connection. Empty: no password." },
    { "cold", "secret_file", KEY_PATH, FIELD(cold_secret_file), 0, 0, "", NULL,
      "File of mode 0600 with 64 hexadecimal digits in its first line, the same for all instances that share objects.\n"
      "Objects then have a MAC, and who can only write to the engine cannot make one. Empty: they have none." },
    { "cold", "write", KEY_TOKEN, FIELD(cold_write), 0, 0, "demoted", cold_writes,
      "demoted: what is demoted to the arena is then written to the cold tier, too, newest first. retained: also what\n"
      "a finished sequence leaves on the device, by a copy in the arena that goes afterwards, while half of the arena\n"
      "is free. off: nothing is." },
    { "cold", "ttl", KEY_TIME, FIELD(cold_ttl), 0, 31536000 * SECOND, "1440min", NULL,
      "Time that an object stays there after it was written, or met again, last. 0: until the engine evicts it." },
    { "cold", "buffer", KEY_BYTES, FIELD(cold_buffer), 1 << 16, MAX_BYTES, "16MiB", NULL,
      "Bytes that are on their way there at most, and as many on their way back: at least a page, over all devices." },
    { "cold", "rate", KEY_BYTES, FIELD(cold_rate), 0, MAX_BYTES, "256MiB", NULL,
      "Bytes a second that are written at most. 0: no limit." },
    { "cold", "age", KEY_TIME, FIELD(cold_age), SECOND / 10, 86400 * SECOND, "60s", NULL,
      "What was demoted longer ago than this, and still waits to be written, is not written any more." },
    { "cold", "timeout", KEY_TIME, FIELD(cold_timeout), SECOND / 100, 60 * SECOND, "2s", NULL,
      "Time for a connection, and for the answers to what the buffer holds." },
    { "cold", "find_time", KEY_TIME, FIELD(cold_find_time), SECOND / 1000, SECOND * 60, "5ms", NULL,
      "How long a lookup in the cold tier may take. What the engine has not answered by then is not found." },
    { "cold", "connections", KEY_U32, FIELD(cold_connections), 1, 16, "4", NULL,
      "Connections to each node that write, each with a thread. As many more read, and one looks up." },

    { "http", "listen", KEY_LISTEN, FIELD(http_listen), 0, 0, "none", NULL,
      "Where monitoring is served over HTTP (/metrics for Prometheus, /healthz, /readyz): none, 127.0.0.1:PORT,\n"
      "[::1]:PORT, or unix:PATH, which gets socket_mode and group. Other addresses are refused; every user of this\n"
      "machine can read what a port shows." },
    { "http", "ui", KEY_TOKEN, FIELD(http_ui), 0, 0, "yes", yes_no,
      "yes: /ui there is a page for people. It lists sequences and continuations with their sizes, and the names that\n"
      "sessions gave themselves; no tokens, no digests." },
};
#define N_KEYS (sizeof keys / sizeof *keys)
_Static_assert(N_KEYS <= CONFIG_KEYS, "a line for each key");

/* How many of a key there are, and the field of one of them. */
static uint32_t key_count(const struct key *key, const struct config *c) {
    if (key->type == KEY_DEVICE) return c->n_devices;
    if (key->section == POOLS) return 2 + c->n_window_pools;
    return key->section == GROUPS ? c->n_layer_groups : 1;
}

static size_t key_offset(const struct key *key, uint32_t i) {
    size_t each = key->type == KEY_DEVICE  ? sizeof(struct config_device)
                  : key->section == POOLS  ? sizeof(struct config_pool)
                  : key->section == GROUPS ? sizeof(struct config_layer_group)
                                           : 0;
    return key->offset + i * each;
}

static const void *key_field(const struct key *key, const struct config *c, uint32_t i) {
    return (const char *)c + key_offset(key, i);
}

static uint32_t or_auto(uint32_t value, uint32_t automatic) { return value == CONFIG_AUTO32 ? automatic : value; }

/* ---- values ------------------------------------------------------------------------------- */

static int refuse_config(char *err, size_t bytes, const char *sentence) {
    snprintf(err, bytes, "%s", sentence);
    return 1;
}

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-"

static int set_text(const struct key *key, char *field, const char *value, char *err, size_t err_bytes) {
    if (strlen(value) >= key->bytes) {
        snprintf(err, err_bytes, "is %zu characters long; at most %zu fit", strlen(value), key->bytes - 1);
        return 1;
    }
    bool may_be_empty = !*key->value;
    if (key->type == KEY_PATH && value[0] != '/' && !(may_be_empty && !*value))
        return refuse_config(err, err_bytes, "is not an absolute path; begin it with /");
    if (key->type != KEY_PATH &&
        strspn(value, key->type == KEY_NAMES ? NAME_LETTERS " \t" : NAME_LETTERS) != strlen(value))
        return refuse_config(err, err_bytes,
                             "has a character that a name may not have; use letters, digits, and . _ : -");
    memset(field, 0, key->bytes);
    memcpy(field, value, strlen(value));
    return 0;
}

static int set_token(const struct key *key, void *field, const char *value, char *err, size_t err_bytes) {
    int n = snprintf(err, err_bytes, "is none of");
    for (const struct token *t = key->tokens; t->name; t++) {
        if (strcmp(t->name, value) == 0) {
            memcpy(field, &t->value, sizeof t->value);
            return 0;
        }
        if (n > 0 && (size_t)n < err_bytes) n += snprintf(err + n, err_bytes - (size_t)n, " %s", t->name);
    }
    return 1;
}

static int number_of(const struct key *key, const char *value, uint64_t *ret_number, char *err, size_t err_bytes) {
    if (key->type == KEY_BYTES) return config_value_bytes(value, ret_number, err, err_bytes);
    if (key->type == KEY_TIME) return config_value_duration(value, ret_number, err, err_bytes);
    if (key->type == KEY_MODE)
        return config_value_number(value, 8, ret_number)
                   ? refuse_config(err, err_bytes, "is not an octal mode such as 0660")
                   : 0;
    return config_value_whole(value, key->type != KEY_U32, ret_number, err, err_bytes);
}

static int set_number(const struct key *key, void *field, const char *value, char *err, size_t err_bytes) {
    uint64_t number;
    bool may_auto = key->type == KEY_U32_AUTO || key->type == KEY_U64_AUTO;
    if (may_auto && strcmp(value, "auto") == 0) {
        memset(field, 0xff, key->bytes);
        return 0;
    }
    if (number_of(key, value, &number, err, err_bytes)) return 1;
    if (number < key->min || number > key->max) {
        if (key->type == KEY_MODE)
            snprintf(err, err_bytes, "is outside %04o to %04o", (unsigned)key->min, (unsigned)key->max);
        else if (key->type == KEY_TIME)
            snprintf(err, err_bytes, "is outside %" PRIu64 "ms to %" PRIu64 "ms", key->min / 1000000,
                     key->max / 1000000);
        else if (key->type == KEY_BYTES)
            snprintf(err, err_bytes, "is outside %" PRIu64 " to %" PRIu64 "TiB", key->min, key->max >> 40);
        else snprintf(err, err_bytes, "is outside %" PRIu64 " to %" PRIu64, key->min, key->max);
        return 1;
    }
    uint32_t narrow = (uint32_t)number;
    memcpy(field, key->bytes == 8 ? (const void *)&number : &narrow, key->bytes);
    return 0;
}

static int set_value(const struct key *key, struct config *config, uint32_t i, const char *value, char *err,
                     size_t err_bytes) {
    void *field = (char *)config + key_offset(key, i);
    struct config_device device;
    struct config_access access;
    struct config_listen listen;
    switch (key->type) {
    case KEY_PATH:
    case KEY_NAMES:
    case KEY_NAME: return set_text(key, field, value, err, err_bytes);
    case KEY_TOKEN: return set_token(key, field, value, err, err_bytes);
    case KEY_DEVICE:
        if (config_value_device(value, &device, err, err_bytes)) return 1;
        memcpy(field, &device, sizeof device);
        return 0;
    case KEY_ACCESS:
        if (config_value_access(value, &access, err, err_bytes)) return 1;
        memcpy(field, &access, sizeof access);
        return 0;
    case KEY_LISTEN:
        if (config_value_listen(value, &listen, err, err_bytes)) return 1;
        memcpy(field, &listen, sizeof listen);
        return 0;
    case KEY_ADDRESS:
        if (config_value_address(value, &listen, err, err_bytes)) return 1;
        memcpy(field, &listen, sizeof listen);
        return 0;
    case KEY_U32:
    case KEY_U32_AUTO:
    case KEY_U64_AUTO:
    case KEY_BYTES:
    case KEY_TIME:
    case KEY_MODE: break;
    }
    return set_number(key, field, value, err, err_bytes);
}

/* The unit gives each instance a folder for its socket. A list of folders is none that could be meant. */
static void take_runtime_folder(struct config *config) {
    char path[sizeof config->socket];
    const char *folder = getenv("RUNTIME_DIRECTORY");
    if (!folder || *folder != '/' || strchr(folder, ':')) return;
    memset(path, 0, sizeof path);
    if ((size_t)snprintf(path, sizeof path, "%s/kvd.sock", folder) < sizeof path)
        memcpy(config->socket, path, sizeof path);
}

void config_defaults(struct config *ret_config) {
    char err[256];
    memset(ret_config, 0, sizeof *ret_config);
    for (size_t k = 0; k < N_KEYS; k++) {
        uint32_t n = keys[k].section == POOLS ? CONFIG_POOLS + 1 : keys[k].section == GROUPS ? CONFIG_GROUPS + 1 : 1;
        for (uint32_t i = 0; i < n; i++) (void)set_value(&keys[k], ret_config, i, keys[k].value, err, sizeof err);
    }
    memcpy(ret_config->pool[0].name, "main", sizeof "main");
    memcpy(ret_config->pool[1].name, "draft", sizeof "draft");
    take_runtime_folder(ret_config);
    ret_config->n_devices = 1;
}

/* ---- the file ------------------------------------------------------------------------------ */

#define COMPLAINTS 64

struct parse {
    const char *name; /* of the file */
    uint32_t line;
    char section[64];
    const char *family;    /* what the table calls the section; NULL: there is none such */
    uint32_t instance;     /* of several */
    struct config *config; /* its lines say which keys were there */
    struct complaint {
        uint32_t line; /* 0: no line */
        char text[512];
    } * complaint;
    uint32_t n; /* complaints, also those beyond the space for their text */
};

static void complain_line(struct parse *p, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void complain_line(struct parse *p, uint32_t line, const char *format, ...) {
    va_list arguments;
    uint32_t at = p->n++;
    if (at >= COMPLAINTS) return;
    while (at > 0 && p->complaint[at - 1].line > line) {
        p->complaint[at] = p->complaint[at - 1];
        at--;
    }
    p->complaint[at].line = line;
    va_start(arguments, format);
    vsnprintf(p->complaint[at].text, sizeof p->complaint[at].text, format, arguments);
    va_end(arguments);
}

static void write_complaints(const struct parse *p, char *err, size_t bytes) {
    size_t used = 0;
    for (uint32_t i = 0; i < p->n && i < COMPLAINTS && used < bytes; i++) {
        const struct complaint *one = &p->complaint[i];
        char line[16] = "";
        if (one->line) snprintf(line, sizeof line, ":%u", one->line);
        used += (size_t)snprintf(err + used, bytes - used, "%s%s%s: %s", i ? "\n" : "", p->name, line, one->text);
    }
    if (p->n > COMPLAINTS && used < bytes)
        snprintf(err + used, bytes - used, "\n%s: %u more", p->name, p->n - COMPLAINTS);
}

/* ---- names that are nearly right ----- */

/* Edit distance: letters to insert, leave out, change or swap with the next. */
static unsigned edit_distance(const char *a, const char *b) {
    unsigned row[3][40];
    size_t n = strlen(b);
    if (n >= 40 || strlen(a) >= 40) return UINT_MAX;
    for (size_t j = 0; j <= n; j++) row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= strlen(a); i++) {
        unsigned *now = row[i % 3], *before = row[(i + 2) % 3], *earlier = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned least = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < least) least = before[j] + 1;
            if (now[j - 1] + 1 < least) least = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && earlier[j - 2] + 1 < least)
                least = earlier[j - 2] + 1;
            now[j] = least;
        }
    }
    return row[strlen(a) % 3][n];
}

/* Up to the dot, where there is one. */
static size_t head_of(const char *section) { return strcspn(section, "."); }

static void complain_section(struct parse *p) {
    const char *best = NULL, *rest = p->section + head_of(p->section);
    unsigned least = 3;
    for (size_t i = 0; i < N_KEYS; i++) {
        char mine[sizeof p->section], its[sizeof p->section];
        size_t n = head_of(keys[i].section);
        snprintf(mine, sizeof mine, "%.*s", (int)head_of(p->section), p->section);
        snprintf(its, sizeof its, "%.*s", (int)n, keys[i].section);
        unsigned d = edit_distance(mine, its);
        if (d >= least || (*rest == '.') != (keys[i].section[n] == '.')) continue;
        least = d;
        best = keys[i].section;
    }
    if (best)
        complain_line(p, p->line, "there is no section [%s]; did you mean [%.*s%s]?", p->section, (int)head_of(best),
                      best, rest);
    else complain_line(p, p->line, "there is no section [%s]; kvd --help-config lists all", p->section);
}

/* The same name in another section is a better guess than a similar name. */
static void complain_key(struct parse *p, const char *name) {
    const struct key *best = NULL;
    unsigned least = 6;
    for (size_t i = 0; i < N_KEYS; i++) {
        bool here = keys[i].section == p->family;
        unsigned d = edit_distance(name, keys[i].name);
        d = d > 2 ? 6 : 2 * d + !here;
        if (d >= least) continue;
        least = d;
        best = &keys[i];
    }
    if (best)
        complain_line(p, p->line, "section [%s] has no key \"%.64s\"; did you mean %s in section [%s]?", p->section,
                      name, best->name, best->section == p->family ? p->section : best->section);
    else complain_line(p, p->line, "section [%s] has no key \"%.64s\"; kvd --help-config lists all", p->section, name);
}

/* section: as the table has it. */
static const struct key *find_key(const char *section, const char *name) {
    for (size_t i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

static const struct key *device_key(void) { return find_key("devices", "device.0"); }

/* Names one more of a family. False: it is no name. */
static bool name_instance(struct parse *p, const char *what, const char *name, char to[KVD_GROUP_NAME_BYTES]) {
    if (!*name || strlen(name) >= KVD_GROUP_NAME_BYTES || strspn(name, NAME_LETTERS) != strlen(name)) {
        complain_line(p, p->line, "\"%s\" is no name of a %s; write 1 to %d letters, digits, and . _ : -", name, what,
                      KVD_GROUP_NAME_BYTES - 1);
        return false;
    }
    memcpy(to, name, strlen(name));
    return true;
}

/* A section of a pool: one that is there already, or one more, which has a window. */
static void enter_pool(struct parse *p, const char *name) {
    struct config *c = p->config;
    uint32_t i = 0, n = 2 + c->n_window_pools;
    if (strcmp(name, "NAME") == 0) i = CONFIG_POOLS; /* the example */
    else
        while (i < n && strcmp(c->pool[i].name, name) != 0) i++;
    if (strcmp(name, "arena") == 0) {
        complain_line(p, p->line, "[%s]: lists of pools have the arena beside them; write another name", p->section);
    } else if (i == n && i < CONFIG_POOLS) {
        if (!name_instance(p, "pool", name, c->pool[i].name)) return;
        c->n_window_pools++;
    } else if (i == CONFIG_POOLS && strcmp(name, "NAME") != 0) {
        complain_line(p, p->line,
                      "[%s] is one pool more than %d, which is all there can be; join pools whose windows "
                      "are alike",
                      p->section, KVD_MAX_POOLS);
        return;
    }
    if (!c->origin.pool_line[i]) c->origin.pool_line[i] = p->line;
    p->family = POOLS;
    p->instance = i;
}

/* A section of a layer group: one that is there already, or one more. */
static void enter_group(struct parse *p, const char *name) {
    struct config *c = p->config;
    uint32_t i = 0;
    if (strcmp(name, "NAME") == 0) i = CONFIG_GROUPS; /* the example */
    else
        while (i < c->n_layer_groups && strcmp(c->layer_group[i].name, name) != 0) i++;
    if (i == c->n_layer_groups && i < CONFIG_GROUPS) {
        if (!name_instance(p, "group", name, c->layer_group[i].name)) return;
        c->origin.group_line[i] = p->line;
        c->n_layer_groups++;
    } else if (i == CONFIG_GROUPS && strcmp(name, "NAME") != 0) {
        complain_line(p, p->line,
                      "[%s] is one group more than %u, which is all there can be; put layers that store a token "
                      "alike into one",
                      p->section, CONFIG_GROUPS);
        return;
    }
    p->family = GROUPS;
    p->instance = i;
}

static void enter_section(struct parse *p) {
    p->family = NULL;
    p->instance = 0;
    if (strncmp(p->section, "pool.", 5) == 0) enter_pool(p, p->section + 5);
    else if (strncmp(p->section, "group.", 6) == 0) enter_group(p, p->section + 6);
    else
        for (size_t i = 0; i < N_KEYS && !p->family; i++)
            if (strcmp(keys[i].section, p->section) == 0) p->family = keys[i].section;
    if (!p->family && strncmp(p->section, "pool.", 5) != 0 && strncmp(p->section, "group.", 6) != 0)
        complain_section(p);
}

static void take_device_key(struct parse *p, const char *name, const char *value) {
    char err[256];
    unsigned rank = (unsigned)(name[7] - '0');
    if (rank >= KVD_MAX_RANKS || name[8]) {
        complain_line(p, p->line, "%s: there are at most %d devices, device.0 to device.%d", name, KVD_MAX_RANKS,
                      KVD_MAX_RANKS - 1);
        return;
    }
    uint32_t *seen = &p->config->origin.line[device_key() - keys][rank];
    if (*seen) complain_line(p, p->line, "%s is given twice, first in line %u; keep one", name, *seen);
    else if (config_value_device(value, &p->config->device[rank], err, sizeof err))
        complain_line(p, p->line, "%s: \"%s\" %s", name, value, err);
    *seen = p->line;
}

static void take_key(struct parse *p, const char *name, const char *value) {
    char err[384];
    if (strcmp(p->section, "devices") == 0 && strncmp(name, "device.", 7) == 0) {
        take_device_key(p, name, value);
        return;
    }
    const struct key *key = p->family ? find_key(p->family, name) : NULL;
    if (!key) {
        if (!*p->section)
            complain_line(p, p->line, "\"%.64s\" stands before any section; put a line such as [kvd] before it", name);
        else if (p->family) complain_key(p, name);
        return; /* there is a complaint about the section already */
    }
    uint32_t *seen = &p->config->origin.line[key - keys][p->instance];
    if (*seen) complain_line(p, p->line, "%s is given twice, first in line %u; keep one", name, *seen);
    else if (set_value(key, p->config, p->instance, value, err, sizeof err))
        complain_line(p, p->line, "%s: \"%.64s\" %s", name, value, err);
    *seen = p->line;
}

/* Cuts blanks off both ends, in place. */
static char *trim(char *text) {
    text += strspn(text, " \t\r");
    size_t n = strlen(text);
    while (n && strchr(" \t\r", text[n - 1])) text[--n] = 0;
    return text;
}

static void cut_comment(char *text) {
    for (char *at = text; (at = strchr(at, ';')); at++) {
        if (at != text && at[-1] != ' ' && at[-1] != '\t') continue;
        *at = 0;
        return;
    }
}

static void take_line(struct parse *p, char *line) {
    line = trim(line);
    if (!*line || *line == '#' || *line == ';') return;
    char *end = *line == '[' ? strchr(line, ']') : strchr(line, '=');
    if (!end || end == line || (*line == '[' && end - line >= (ptrdiff_t)sizeof p->section)) {
        complain_line(p, p->line, "is neither a [section], a name = value, nor a comment");
        return;
    }
    *end++ = 0;
    if (*line == '[') {
        snprintf(p->section, sizeof p->section, "%s", line + 1);
        enter_section(p);
        return;
    }
    cut_comment(end);
    take_key(p, trim(line), trim(end));
}

/* Changes text. */
static void take_lines(struct parse *p, char *text) {
    for (char *next; text; text = next) {
        next = strchr(text, '\n');
        if (next) *next++ = 0;
        p->line++;
        take_line(p, text);
    }
}

static uint32_t line_of(const struct parse *p, const char *section, const char *name) {
    const struct key *key = find_key(section, name);
    return key ? p->config->origin.line[key - keys][0] : 0;
}

static uint32_t device_line(const struct parse *p, uint32_t rank) {
    return p->config->origin.line[device_key() - keys][rank];
}

static const char *name_in(const char *path) { return strrchr(path, '/') + 1; } /* paths are absolute */

/* True when both paths name one directory entry, whichever path leads to the directory. */
static bool is_same_entry(const char *a, const char *b) {
    char dir_a[PATH_MAX], dir_b[PATH_MAX];
    struct stat st_a, st_b;
    if (strcmp(name_in(a), name_in(b)) != 0) return false;
    snprintf(dir_a, sizeof dir_a, "%.*s", (int)(name_in(a) - a), a);
    snprintf(dir_b, sizeof dir_b, "%.*s", (int)(name_in(b) - b), b);
    if (strcmp(dir_a, dir_b) == 0) return true;
    return !stat(dir_a, &st_a) && !stat(dir_b, &st_b) && st_a.st_dev == st_b.st_dev && st_a.st_ino == st_b.st_ino;
}

/* kvd makes files and sockets beside its socket. The socket of monitoring must not be one of them, nor the private name
 * that it is bound to first. */
static void check_names(struct parse *p) {
    static const char *const suffixes[] = { "", ".new", ".lock", ".fd", ".fd.new" };
    const struct config *c = p->config;
    if (c->http_listen.kind != LISTEN_UNIX) return;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        for (int bound = 0; bound < 2; bound++) {
            char own[sizeof c->socket + 16], theirs[sizeof c->http_listen.path + 16];
            snprintf(own, sizeof own, "%s%s", c->socket, suffixes[i]);
            snprintf(theirs, sizeof theirs, "%s%s", c->http_listen.path, bound ? ".new" : "");
            if (!is_same_entry(own, theirs)) continue;
            complain_line(p, line_of(p, "http", "listen"), "listen: %s is %s; choose another path", theirs,
                          *suffixes[i] ? "a name that kvd uses beside its socket" : "the socket of the clients");
            return;
        }
}

static void check_devices(struct parse *p) {
    const struct config *c = p->config;
    for (uint32_t i = 1; i < c->n_devices; i++)
        for (uint32_t j = 0; j < i; j++)
            if (c->device[i].kind == c->device[j].kind && c->device[i].index == c->device[j].index)
                complain_line(p, device_line(p, i), "device.%u is the same as device.%u; name another one", i, j);
}

static bool is_for_all(const struct config_access *access) {
    for (uint32_t i = 0; i < access->n; i++)
        if (access->entry[i].kind == ACCESS_ALL) return true;
    return false;
}

/* Checks who can reach the socket. */
static void check_socket(struct parse *p) {
    const struct config *c = p->config;
    if (*c->group && !getgrnam(c->group))
        complain_line(p, line_of(p, "kvd", "group"),
                      "group: there is no group \"%s\" on this machine; create it, or name another", c->group);
    if (!(c->socket_mode & 0222))
        complain_line(p, line_of(p, "kvd", "socket_mode"), "socket_mode: %04o lets nobody connect; use 0660",
                      c->socket_mode);
    if ((c->socket_mode & 0002) && is_for_all(&c->access[KVD_ROLE_ADMIN - 1]))
        complain_line(p, line_of(p, "kvd", "socket_mode"),
                      "socket_mode: %04o lets every user of this machine in, and admin = * makes each an admin; use "
                      "0660, or name the admins",
                      c->socket_mode);
}

/* ---- pools and their groups ----- */

/* Of a group's key, or of its section. */
static uint32_t group_line(const struct parse *p, uint32_t g, const char *name) {
    const struct config_origin *o = &p->config->origin;
    uint32_t line = *name ? o->line[find_key(GROUPS, name) - keys][g] : 0;
    return line ? line : o->group_line[g];
}

/* A key that says nothing in this format must not look as if it did. Its default says nothing in any. */
static void refuse_key(struct parse *p, uint32_t g, const char *name, const char *instead) {
    const struct config_layer_group *group = &p->config->layer_group[g];
    const struct key *key = find_key(GROUPS, name);
    uint32_t line = p->config->origin.line[key - keys][g];
    if (!memcmp(key_field(key, p->config, g), key_field(key, p->config, CONFIG_GROUPS), key->bytes)) return;
    complain_line(p, line, "%s: group %s is %s, of which %s; remove this line", name, group->name,
                  geom_format_name((enum kvd_format)group->format), instead);
}

static void check_group(struct parse *p, uint32_t g) {
    static const char opaque[] = "kvd knows bytes only";
    const struct config *c = p->config;
    const struct config_layer_group *group = &c->layer_group[g];
    struct geom_group spec = config_group(c, g);
    bool kv = group->format == KVD_FORMAT_KV;
    uint32_t before = p->n;
    char why[256];
    if (!group->layers)
        complain_line(p, group_line(p, g, "layers"), "group %s has no layers; write layers = and how many it has",
                      group->name);
    if (!kv && !group->bytes)
        complain_line(p, group_line(p, g, "bytes"),
                      "group %s is %s, and its rows have no bytes; write bytes =", group->name,
                      geom_format_name(spec.format));
    if (kv) refuse_key(p, g, "bytes", "head_dim and profile say it");
    if (!kv) refuse_key(p, g, "head_dim", opaque);
    if (!kv) refuse_key(p, g, "v_head_dim", opaque);
    if (!kv) refuse_key(p, g, "profile", opaque);
    if (p->n == before && geom_group_check(&spec, c->n_devices, why, sizeof why))
        complain_line(p, group_line(p, g, kv ? spec.storage ? "head_dim" : "kv_heads" : "kv_heads"), "group %s: %s",
                      group->name, why);
}

/* Adds the group of this name to pool i. */
static void add_group(struct parse *p, uint32_t i, const char *name, uint32_t uses[CONFIG_GROUPS]) {
    struct config *c = p->config;
    struct config_pool *pool = &c->pool[i];
    uint32_t line = c->origin.line[find_key(POOLS, "groups") - keys][i], g = 0, least = 3;
    const char *best = NULL;
    while (g < c->n_layer_groups && strcmp(c->layer_group[g].name, name) != 0) g++;
    for (uint32_t k = 0; g == c->n_layer_groups && k < c->n_layer_groups; k++) {
        unsigned d = edit_distance(name, c->layer_group[k].name);
        if (d >= least) continue;
        least = d;
        best = c->layer_group[k].name;
    }
    if (g == c->n_layer_groups)
        complain_line(p, line, "groups: there is no section [group.%.31s]; %s%s%s", name,
                      best ? "did you mean " : "write it", best ? best : "", best ? "?" : "");
    else if (uses[g]++) complain_line(p, line, "groups: %s is named twice; a group is in one pool, once", name);
    else pool->group[pool->n_groups++] = g;
}

/* What the groups of a pool say is not said again. */
static void refuse_shape(struct parse *p, const char *pool, const char *section, const char *name) {
    if (line_of(p, section, name))
        complain_line(p, line_of(p, section, name), "%s: the groups of [pool.%s] say it; remove this line", name, pool);
}

/* Of a pool's key, or of its section. */
static uint32_t pool_line(const struct parse *p, uint32_t i, const char *name) {
    const struct config_origin *o = &p->config->origin;
    uint32_t line = o->line[find_key(POOLS, name) - keys][i];
    return line ? line : o->pool_line[i];
}

static void check_window(struct parse *p, uint32_t i) {
    const struct config_pool *pool = &p->config->pool[i];
    bool lead = pool->lead != CONFIG_AUTO32 && pool->lead > pool->window;
    if (i == 0 && pool->window)
        complain_line(p, pool_line(p, i, "window"),
                      "window: the pages of main carry the names, so it has none; put layers with a window into "
                      "another section, such as [pool.window]");
    if (i > 1 && !pool->window)
        complain_line(p, pool_line(p, i, "window"),
                      "pool %s has no window; write window =, or put its groups into [pool.main]", pool->name);
    if (i > 1 && !pool->n_groups)
        complain_line(p, pool_line(p, i, "groups"), "pool %s has no groups; write groups = and the names of some",
                      pool->name);
    if (pool->window && lead)
        complain_line(p, pool_line(p, i, "lead"), "lead: %u tokens are more than window = %u; lower it", pool->lead,
                      pool->window);
    if (pool->window || i > 1) return;
    if (pool->aligned || lead || pool->share != CONFIG_AUTO32)
        complain_line(p,
                      pool_line(p, i,
                                pool->aligned ? "aligned"
                                : lead        ? "lead"
                                              : "share"),
                      "pool %s has no window, of which this line speaks; remove it", pool->name);
}

static void check_draft_pool(struct parse *p) {
    const struct config *c = p->config;
    bool none = c->backend == GEOM_OFF || (c->backend == GEOM_DFLASH && !c->draft_layers && !c->pool[1].n_groups);
    if (c->backend == GEOM_OFF && (c->pool[1].n_groups || c->pool[1].window))
        complain_line(p, pool_line(p, 1, c->pool[1].n_groups ? "groups" : "window"),
                      "%s: there is no draft pool without a backend; write kind = in section [backend]",
                      c->pool[1].n_groups ? "groups" : "window");
    if (2 - none + c->n_window_pools > KVD_MAX_POOLS)
        complain_line(p, c->origin.pool_line[1 + c->n_window_pools],
                      "pool %s is one more than %d with that of the backend; join pools whose windows are alike",
                      c->pool[1 + c->n_window_pools].name, KVD_MAX_POOLS);
    if (!c->pool[1].n_groups) return;
    refuse_shape(p, "draft", "backend", "layers");
    refuse_shape(p, "draft", "backend", "kv_heads");
    refuse_shape(p, "draft", "backend", "head_dim");
}

static void take_pools(struct parse *p) {
    struct config *c = p->config;
    uint32_t uses[CONFIG_GROUPS] = { 0 };
    for (uint32_t i = 0; i < 2 + c->n_window_pools; i++) {
        char words[sizeof c->pool[i].groups], *save = NULL;
        memcpy(words, c->pool[i].groups, sizeof words);
        for (char *w = strtok_r(words, " \t", &save); w; w = strtok_r(NULL, " \t", &save)) add_group(p, i, w, uses);
        check_window(p, i);
    }
    for (uint32_t g = 0; g < c->n_layer_groups; g++) {
        check_group(p, g);
        if (!uses[g])
            complain_line(p, c->origin.group_line[g],
                          "group %s is in no pool; write groups = %s in section [pool.main]", c->layer_group[g].name,
                          c->layer_group[g].name);
    }
    if (c->pool[0].n_groups) refuse_shape(p, "main", "model", "layers");
    check_draft_pool(p);
}

static void check_shape(struct parse *p) {
    const struct config *c = p->config;
    struct geom_schema schema;
    char why[160];
    if (c->kv_heads % c->n_devices && c->n_devices % c->kv_heads)
        complain_line(p, line_of(p, "model", "kv_heads"),
                      "kv_heads: %u heads cannot be divided over %u devices; use a divisor", c->kv_heads, c->n_devices);
    if (geom_schema((enum kvd_storage)c->profile, c->head_dim, &schema, why, sizeof why))
        complain_line(p, line_of(p, "model", "head_dim"), "head_dim: %s", why);
}

static void check_backend(struct parse *p) {
    const struct config *c = p->config;
    if (c->backend == GEOM_MTP && c->draft_window > 15)
        complain_line(p, line_of(p, "backend", "draft_window"), "draft_window: mtp allows 1 to 15, not %u",
                      c->draft_window);
    if (c->backend == GEOM_MTP && c->draft_layers == 0)
        complain_line(p, line_of(p, "backend", "layers"),
                      "layers: an mtp pool has at least one layer; use kind = off for none");
}

struct geom_group config_group(const struct config *c, uint32_t i) {
    const struct config_layer_group *g = &c->layer_group[i];
    bool kv = g->format == KVD_FORMAT_KV;
    uint32_t heads = g->format == KVD_FORMAT_LATENT ? 1 : c->kv_heads, dim = or_auto(g->head_dim, c->head_dim);
    return (struct geom_group){ .format = (enum kvd_format)g->format,
                                .storage = (enum kvd_storage)(kv ? or_auto(g->profile, c->profile) : 0),
                                .order = (enum geom_order)g->order,
                                .n_layers = g->layers,
                                .n_kv_heads = or_auto(g->kv_heads, heads),
                                .head_dim = kv ? dim : 0,
                                .v_head_dim = kv ? or_auto(g->v_head_dim, dim) : 0,
                                .row_bytes = kv ? 0 : g->bytes };
}

/* Checks values against each other. The line is 0 where the culprit is a default. */
static void check_together(struct parse *p) {
    struct config *c = p->config;
    uint32_t n = 0;
    while (n < KVD_MAX_RANKS && device_line(p, n)) n++;
    for (uint32_t i = n; i < KVD_MAX_RANKS; i++)
        if (device_line(p, i)) {
            complain_line(p, device_line(p, i),
                          "device.%u is given, but device.%u is not; number them from 0 without holes", i, n);
            break;
        }
    c->n_devices = n ? n : 1;
    take_pools(p);
    if (!c->pool[0].n_groups) check_shape(p);
    check_backend(p);
    check_devices(p);
    check_socket(p);
    check_names(p);
    if (c->cold_address.kind != LISTEN_NONE && !c->arena_bytes)
        complain_line(p, line_of(p, "cold", "address"),
                      "address: the cold tier is written from the arena, and there is none; set arena = in section "
                      "[host], or address = none");
    if (c->low_water > c->high_water)
        complain_line(p, line_of(p, "limits", "low_water"), "low_water: %u percent is above high_water = %u; lower it",
                      c->low_water, c->high_water);
    if (c->capacity_tokens != CONFIG_AUTO64 && c->capacity_tokens < c->max_context)
        complain_line(p, line_of(p, "capacity", "tokens"),
                      "tokens: %" PRIu64 " are fewer than max_context = %u; raise it", c->capacity_tokens,
                      c->max_context);
    if (c->state_slots != CONFIG_AUTO32 && c->state_slots < c->max_concurrency)
        complain_line(p, line_of(p, "capacity", "state_slots"),
                      "state_slots: %u are fewer than max_concurrency = %u; raise it", c->state_slots,
                      c->max_concurrency);
    if (c->continuations != CONFIG_AUTO32 && c->continuations <= c->max_concurrency)
        complain_line(p, line_of(p, "limits", "continuations"),
                      "continuations: %u are not more than max_concurrency = %u, and each running sequence owns one; "
                      "raise it",
                      c->continuations, c->max_concurrency);
}

int config_parse(const char *name, const char *text, struct config *ret_config, char *err, size_t err_bytes) {
    struct config config;
    struct parse p = { .name = name, .config = &config };
    char *copy = strdup(text);
    p.complaint = calloc(COMPLAINTS, sizeof *p.complaint);
    config_defaults(&config);
    size_t n = strlen(name);
    snprintf(config.origin.file, sizeof config.origin.file, "%s",
             n < sizeof config.origin.file ? name : name + n + 1 - sizeof config.origin.file);
    if (copy && p.complaint) {
        take_lines(&p, copy);
        if (!p.n) check_together(&p);
        write_complaints(&p, err, err_bytes);
    } else {
        p.n = 1;
        snprintf(err, err_bytes, "%s: no memory to read it", name);
    }
    free(p.complaint);
    free(copy);
    if (!p.n) *ret_config = config;
    return p.n > 0;
}

#define FILE_MOST ((size_t)1 << 20)

/* Opening must not wait for a FIFO's writer, and only a regular file is read: a device would never end. */
static int open_file(const char *path, char *err, size_t err_bytes) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        snprintf(err, err_bytes, "%s: %s; %sname the configuration with --config FILE", path, strerror(errno),
                 errno == ENOENT ? "cp /usr/share/doc/kvd/examples/example.conf there makes one to begin with, or "
                                 : "");
    else if (!S_ISREG(st.st_mode))
        snprintf(err, err_bytes, "%s: this is no file, but %s; name the configuration with --config FILE", path,
                 S_ISDIR(st.st_mode)    ? "a directory"
                 : S_ISFIFO(st.st_mode) ? "a FIFO"
                                        : "a device");
    else return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Text that ends with 0. The caller frees it. */
static char *read_file(const char *path, char *err, size_t err_bytes) {
    int fd = open_file(path, err, err_bytes);
    char *text = fd >= 0 ? malloc(FILE_MOST + 2) : NULL;
    size_t n = 0;
    ssize_t got = 1;
    while (text && n <= FILE_MOST && (got = read(fd, text + n, FILE_MOST + 1 - n)) != 0) {
        if (got > 0) n += (size_t)got;
        else if (errno != EINTR) break;
    }
    int e = errno;
    if (fd < 0) return NULL;
    close(fd);
    if (text) text[n] = 0;
    if (text && got == 0 && strlen(text) == n) return text;
    snprintf(err, err_bytes, "%s: %s", path,
             !text           ? "no memory for it"
             : got < 0       ? strerror(e)
             : n > FILE_MOST ? "it is larger than a MiB, which no configuration is"
                             : "it has a zero byte, which no text has");
    free(text);
    return NULL;
}

int config_load(const char *path, struct config *ret_config, char *err, size_t err_bytes) {
    char *text = read_file(path, err, err_bytes);
    int r = text ? config_parse(path, text, ret_config, err, err_bytes) : 1;
    free(text);
    return r;
}

/* ---- what is in effect ------------------------------------------------------------------------ */

static void print_access(const struct config_access *access, char *text, size_t bytes) {
    size_t used = 0;
    for (uint32_t i = 0; i < access->n && used < bytes; i++) {
        const char *blank = i ? " " : "";
        if (access->entry[i].kind == ACCESS_ALL) used += (size_t)snprintf(text + used, bytes - used, "%s*", blank);
        else
            used += (size_t)snprintf(text + used, bytes - used, "%s%s:%u", blank,
                                     access->entry[i].kind == ACCESS_UID ? "uid" : "gid", access->entry[i].id);
    }
}

static void print_listen(const struct config_listen *listen, char *text, size_t bytes) {
    bool bare = listen->kind == LISTEN_TCP6 && listen->path[0] != '[';
    if (listen->kind == LISTEN_NONE) snprintf(text, bytes, "none");
    else if (listen->kind == LISTEN_UNIX) snprintf(text, bytes, "unix:%s", listen->path);
    else if (bare) snprintf(text, bytes, "[%s]:%u", listen->path, listen->port);
    else snprintf(text, bytes, "%s:%u", listen->path, listen->port);
}

static uint64_t number_in(const struct key *key, const void *field) {
    uint64_t wide;
    uint32_t narrow;
    memcpy(key->bytes == 8 ? (void *)&wide : &narrow, field, key->bytes);
    return key->bytes == 8 ? wide : narrow;
}

/* What set_value would make the field of. */
static void print_value(const struct key *key, const struct config *c, uint32_t i, char *text, size_t bytes) {
    const void *field = key_field(key, c, i);
    text[0] = 0;
    if (i >= key_count(key, c)) return;
    switch (key->type) {
    case KEY_PATH:
    case KEY_NAMES:
    case KEY_NAME: snprintf(text, bytes, "%s", (const char *)field); return;
    case KEY_DEVICE:
        snprintf(text, bytes, "%s:%u", c->device[i].kind == DEVICE_CUDA ? "cuda" : "host", c->device[i].index);
        return;
    case KEY_ACCESS: print_access(field, text, bytes); return;
    case KEY_LISTEN:
    case KEY_ADDRESS: print_listen(field, text, bytes); return;
    case KEY_BYTES: config_value_print_bytes(number_in(key, field), text, bytes); return;
    case KEY_TIME: config_value_print_duration(number_in(key, field), text, bytes); return;
    case KEY_MODE: snprintf(text, bytes, "%04o", (unsigned)number_in(key, field)); return;
    case KEY_TOKEN:
        for (const struct token *t = key->tokens; t->name; t++)
            if (t->value == number_in(key, field)) snprintf(text, bytes, "%s", t->name);
        return;
    case KEY_U32_AUTO:
    case KEY_U64_AUTO:
        if (number_in(key, field) != (key->bytes == 8 ? CONFIG_AUTO64 : CONFIG_AUTO32)) break;
        snprintf(text, bytes, "auto");
        return;
    case KEY_U32: break;
    }
    snprintf(text, bytes, "%" PRIu64, number_in(key, field));
}

/* Each device has a number of its own, and so has each key of each pool and group, section by section. */
static const struct key *numbered_key(const struct config *c, const struct config *file, uint32_t i,
                                      uint32_t *ret_instance) {
    for (size_t k = 0, keys_of = 1; k < N_KEYS; k += keys_of, keys_of = 1) {
        bool several = keys[k].section == POOLS || keys[k].section == GROUPS;
        while (several && k + keys_of < N_KEYS && keys[k + keys_of].section == keys[k].section) keys_of++;
        uint32_t a = key_count(&keys[k], c), b = key_count(&keys[k], file), n = (a > b ? a : b) * (uint32_t)keys_of;
        *ret_instance = i / (uint32_t)keys_of;
        if (i < n) return &keys[k + i % keys_of];
        i -= n;
    }
    return NULL;
}

static void print_section(const struct key *key, const struct config *c, uint32_t i, char *text, size_t bytes) {
    if (key->section == POOLS) snprintf(text, bytes, "pool.%s", c->pool[i].name);
    else if (key->section == GROUPS) snprintf(text, bytes, "group.%s", c->layer_group[i].name);
    else snprintf(text, bytes, "%s", key->section);
}

bool config_setting(const struct config *c, const struct config *file, uint32_t i, struct kvd_setting *ret_setting) {
    struct kvd_setting s = { .restart = false };
    uint32_t rank;
    const struct key *key = numbered_key(c, file, i, &rank);
    if (!key) return false;
    uint32_t line = c->origin.line[key - keys][rank];
    print_section(key, rank < key_count(key, c) ? c : file, rank, s.section, sizeof s.section);
    if (key->type == KEY_DEVICE) snprintf(s.name, sizeof s.name, "device.%u", rank);
    else snprintf(s.name, sizeof s.name, "%s", key->name);
    print_value(key, c, rank, s.value, sizeof s.value);
    print_value(key, file, rank, s.pending, sizeof s.pending);
    if (line) snprintf(s.source, sizeof s.source, "%s:%u", c->origin.file, line);
    else snprintf(s.source, sizeof s.source, "default");
    s.restart = strcmp(s.value, s.pending) != 0;
    if (!s.restart) s.pending[0] = 0;
    *ret_setting = s;
    return true;
}

/* ---- reload -------------------------------------------------------------------------------- */

static bool is_live(const struct key *key) {
    static const char *const live[] = { "log_level",
                                        "sessions_per_uid",
                                        "sequences_per_session",
                                        "connections",
                                        "message_queue",
                                        "event_queue",
                                        "handshake_timeout",
                                        "stall_timeout",
                                        "low_water",
                                        "high_water",
                                        "observer",
                                        "worker",
                                        "scheduler",
                                        "admin" };
    for (size_t i = 0; i < sizeof live / sizeof *live; i++)
        if (strcmp(key->name, live[i]) == 0) return true;
    return false;
}

/* Of all devices, pools or groups. */
static bool is_same(const struct key *key, const struct config *a, const struct config *b) {
    uint32_t n = key_count(key, a);
    bool same = n == key_count(key, b);
    for (uint32_t i = 0; same && i < n; i++) {
        same = !memcmp(key_field(key, a, i), key_field(key, b, i), key->bytes);
        if (key->section == GROUPS) same = same && !strcmp(a->layer_group[i].name, b->layer_group[i].name);
        if (key->section == POOLS) same = same && !strcmp(a->pool[i].name, b->pool[i].name);
    }
    return same;
}

void config_reload(struct config *config, const struct config *from, char *ret_rest, size_t bytes) {
    size_t used = 0;
    ret_rest[0] = 0;
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *key = &keys[i];
        if (is_live(key)) memcpy((char *)config + key->offset, (const char *)from + key->offset, key->bytes);
        if (is_same(key, config, from))
            memcpy(config->origin.line[i], from->origin.line[i], sizeof config->origin.line[i]);
        else if (used < bytes)
            used += (size_t)snprintf(ret_rest + used, bytes - used, "%s[%s] %s", used ? ", " : "", key->section,
                                     key->type == KEY_DEVICE ? "device.N" : key->name);
    }
}

/* ---- help ---------------------------------------------------------------------------------- */

static void print_doc(FILE *out, const struct key *key) {
    fputs("# ", out);
    for (const char *c = key->doc; *c; c++) fputs(*c == '\n' ? "\n# " : (char[]){ *c, 0 }, out);
    if (key->type == KEY_TOKEN) {
        fputs("\n# One of:", out);
        for (const struct token *t = key->tokens; t->name; t++) fprintf(out, " %s", t->name);
    } else if (key->type == KEY_U32 || key->type == KEY_U32_AUTO || key->type == KEY_U64_AUTO) {
        fprintf(out, "\n# %s%" PRIu64 " to %" PRIu64, key->type == KEY_U32 ? "" : "auto, or ", key->min, key->max);
    }
    fputc('\n', out);
}

void config_print_help(FILE *out) {
    const char *section = "";
    fputs("# Configuration of kvd. Every key is shown with its default; a line that begins with # or ; is a comment.\n"
          "# Bytes take KiB, MiB, GiB and TiB; times take ms, s and min.\n",
          out);
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strcmp(section, keys[i].section) != 0) fprintf(out, "\n[%s]\n", keys[i].section);
        section = keys[i].section;
        print_doc(out, &keys[i]);
        fprintf(out, "#%s =%s%s\n", keys[i].name, *keys[i].value ? " " : "", keys[i].value);
    }
}
