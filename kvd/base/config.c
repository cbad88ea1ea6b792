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
    KEY_U32,
    KEY_U32_AUTO,
    KEY_U64_AUTO,
    KEY_BYTES,
    KEY_TIME,
    KEY_MODE,
    KEY_TOKEN,
    KEY_DEVICE,
    KEY_ACCESS,
    KEY_LISTEN
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
static const struct token profiles[] = { { "bf16", KVD_STORAGE_BF16 }, { "int8", KVD_STORAGE_INT8 },
                                         { "fp8", KVD_STORAGE_FP8 },   { "nvfp4", KVD_STORAGE_NVFP4 },
                                         { "k8v4", KVD_STORAGE_K8V4 }, { 0 } };
static const struct token exports[] = { { "ipc", EXPORT_IPC }, { "vmm", EXPORT_VMM }, { 0 } };
static const struct token arrangements[] = { { "dense", GEOM_DENSE }, { "record", GEOM_RECORD }, { 0 } };
static const struct token backends[] = { { "off", GEOM_OFF }, { "mtp", GEOM_MTP }, { "dflash", GEOM_DFLASH }, { 0 } };
static const struct token tenants[] = { { "shared", TENANTS_SHARED }, { "uid", TENANTS_UID }, { 0 } };
static const struct token yes_no[] = { { "no", 0 }, { "yes", 1 }, { 0 } };

static const struct key keys[] = {
    { "kvd", "socket", KEY_PATH, FIELD(socket), 0, 0, "/run/kvd/kvd.sock", NULL,
      "Absolute path of the socket. PATH.lock beside it is held while the daemon runs. Under the systemd unit the\n"
      "default is /run/kvd/NAME/kvd.sock." },
    { "kvd", "store", KEY_NAME, FIELD(store), 0, 0, "main", NULL, "Name of the store, shown to clients." },
    { "kvd", "group", KEY_NAME, FIELD(group), 0, 0, "", NULL, "Group of the sockets. Empty: the daemon's own group." },
    { "kvd", "socket_mode", KEY_MODE, FIELD(socket_mode), 0, 0777, "0660", NULL, "Permissions of the socket (octal)." },
    { "kvd", "log_level", KEY_TOKEN, FIELD(log_level), 0, 0, "info", levels, "How much goes to stderr." },

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
    { "model", "kv_heads", KEY_U32, FIELD(kv_heads), 1, 4096, "2", NULL, "KV heads of a layer, over all devices." },
    { "model", "head_dim", KEY_U32, FIELD(head_dim), 1, 4096, "256", NULL,
      "Elements of a head. Quantized profiles need 256." },
    { "model", "profile", KEY_TOKEN, FIELD(profile), 0, 0, "bf16", profiles, "How K and V are stored." },
    { "model", "arrangement", KEY_TOKEN, FIELD(arrangement), 0, 0, "record", arrangements,
      "dense: every plane on its own. record: the planes of a layer side by side in each page, which moves faster." },
    { "model", "max_context", KEY_U32, FIELD(max_context), 1, 1u << 28, "8192", NULL,
      "Longest sequence, in tokens (S)." },
    { "model", "max_concurrency", KEY_U32, FIELD(max_concurrency), 1, 65535, "8", NULL,
      "Active sequences at once (C)." },

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

/* ---- values ------------------------------------------------------------------------------- */

static int refuse_config(char *err, size_t bytes, const char *sentence) {
    snprintf(err, bytes, "%s", sentence);
    return 1;
}

static int set_text(const struct key *key, char *field, const char *value, char *err, size_t err_bytes) {
    if (strlen(value) >= key->bytes) {
        snprintf(err, err_bytes, "is %zu characters long; at most %zu fit", strlen(value), key->bytes - 1);
        return 1;
    }
    if (key->type == KEY_PATH && value[0] != '/')
        return refuse_config(err, err_bytes, "is not an absolute path; begin it with /");
    if (key->type == KEY_NAME &&
        strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-") != strlen(value))
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

static int set_value(const struct key *key, struct config *config, const char *value, char *err, size_t err_bytes) {
    void *field = (char *)config + key->offset;
    struct config_device device;
    struct config_access access;
    struct config_listen listen;
    switch (key->type) {
    case KEY_PATH:
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
    for (size_t i = 0; i < N_KEYS; i++) (void)set_value(&keys[i], ret_config, keys[i].value, err, sizeof err);
    take_runtime_folder(ret_config);
    ret_config->n_devices = 1;
}

/* ---- the file ------------------------------------------------------------------------------ */

#define COMPLAINTS 64

struct parse {
    const char *name; /* of the file */
    uint32_t line;
    char section[64];
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

static void complain_section(struct parse *p) {
    const char *best = NULL;
    unsigned least = 3;
    for (size_t i = 0; i < N_KEYS; i++) {
        unsigned d = edit_distance(p->section, keys[i].section);
        if (d >= least) continue;
        least = d;
        best = keys[i].section;
    }
    if (best) complain_line(p, p->line, "there is no section [%s]; did you mean [%s]?", p->section, best);
    else complain_line(p, p->line, "there is no section [%s]; kvd --help-config lists all", p->section);
}

/* The same name in another section is a better guess than a similar name. */
static void complain_key(struct parse *p, const char *name) {
    const struct key *best = NULL;
    unsigned least = 6;
    for (size_t i = 0; i < N_KEYS; i++) {
        bool here = strcmp(keys[i].section, p->section) == 0;
        unsigned d = edit_distance(name, keys[i].name);
        d = d > 2 ? 6 : 2 * d + !here;
        if (d >= least) continue;
        least = d;
        best = &keys[i];
    }
    if (best)
        complain_line(p, p->line, "section [%s] has no key \"%.64s\"; did you mean %s in section [%s]?", p->section,
                      name, best->name, best->section);
    else complain_line(p, p->line, "section [%s] has no key \"%.64s\"; kvd --help-config lists all", p->section, name);
}

static const struct key *find_key(const char *section, const char *name, bool *ret_section) {
    *ret_section = false;
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strcmp(keys[i].section, section) != 0) continue;
        *ret_section = true;
        if (strcmp(keys[i].name, name) == 0) return &keys[i];
    }
    return NULL;
}

static void take_device_key(struct parse *p, const char *name, const char *value) {
    char err[256];
    unsigned rank = (unsigned)(name[7] - '0');
    if (rank >= KVD_MAX_RANKS || name[8]) {
        complain_line(p, p->line, "%s: there are at most %d devices, device.0 to device.%d", name, KVD_MAX_RANKS,
                      KVD_MAX_RANKS - 1);
        return;
    }
    uint32_t *seen = &p->config->origin.device_line[rank];
    if (*seen) complain_line(p, p->line, "%s is given twice, first in line %u; keep one", name, *seen);
    else if (config_value_device(value, &p->config->device[rank], err, sizeof err))
        complain_line(p, p->line, "%s: \"%s\" %s", name, value, err);
    *seen = p->line;
}

static void take_key(struct parse *p, const char *name, const char *value) {
    char err[384];
    bool known;
    if (strcmp(p->section, "devices") == 0 && strncmp(name, "device.", 7) == 0) {
        take_device_key(p, name, value);
        return;
    }
    const struct key *key = find_key(p->section, name, &known);
    if (!key) {
        if (!*p->section)
            complain_line(p, p->line, "\"%.64s\" stands before any section; put a line such as [kvd] before it", name);
        else if (known) complain_key(p, name);
        return; /* there is a complaint about the section already */
    }
    uint32_t *seen = &p->config->origin.line[key - keys];
    if (*seen) complain_line(p, p->line, "%s is given twice, first in line %u; keep one", name, *seen);
    else if (set_value(key, p->config, value, err, sizeof err))
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
    bool known;
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
        (void)find_key(p->section, "", &known);
        if (!known) complain_section(p);
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
    bool known;
    const struct key *key = find_key(section, name, &known);
    return key ? p->config->origin.line[key - keys] : 0;
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
                complain_line(p, c->origin.device_line[i], "device.%u is the same as device.%u; name another one", i,
                              j);
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

/* Checks values against each other. The line is 0 where the culprit is a default. */
static void check_together(struct parse *p) {
    struct config *c = p->config;
    uint32_t n = 0;
    while (n < KVD_MAX_RANKS && c->origin.device_line[n]) n++;
    for (uint32_t i = n; i < KVD_MAX_RANKS; i++)
        if (c->origin.device_line[i]) {
            complain_line(p, c->origin.device_line[i],
                          "device.%u is given, but device.%u is not; number them from 0 without holes", i, n);
            break;
        }
    c->n_devices = n ? n : 1;
    if (c->kv_heads % c->n_devices)
        complain_line(p, line_of(p, "model", "kv_heads"),
                      "kv_heads: %u heads cannot be divided over %u devices; use a divisor", c->kv_heads, c->n_devices);
    if (c->profile != KVD_STORAGE_BF16 && c->head_dim != 256)
        complain_line(p, line_of(p, "model", "head_dim"),
                      "head_dim: profile %s is defined for 256 only, not %u; use bf16 or 256",
                      geom_storage_name((enum kvd_storage)c->profile), c->head_dim);
    if (c->backend == GEOM_MTP && c->draft_window > 15)
        complain_line(p, line_of(p, "backend", "draft_window"), "draft_window: mtp allows 1 to 15, not %u",
                      c->draft_window);
    if (c->backend == GEOM_MTP && c->draft_layers == 0)
        complain_line(p, line_of(p, "backend", "layers"),
                      "layers: an mtp pool has at least one layer; use kind = off for none");
    check_devices(p);
    check_socket(p);
    check_names(p);
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
    if (listen->kind == LISTEN_NONE) snprintf(text, bytes, "none");
    else if (listen->kind == LISTEN_UNIX) snprintf(text, bytes, "unix:%s", listen->path);
    else snprintf(text, bytes, "%s:%u", listen->path, listen->port);
}

static uint64_t number_in(const struct key *key, const void *field) {
    uint64_t wide;
    uint32_t narrow;
    memcpy(key->bytes == 8 ? (void *)&wide : &narrow, field, key->bytes);
    return key->bytes == 8 ? wide : narrow;
}

/* What set_value would make the field of. */
static void print_value(const struct key *key, const struct config *c, uint32_t rank, char *text, size_t bytes) {
    const void *field = (const char *)c + key->offset;
    text[0] = 0;
    switch (key->type) {
    case KEY_PATH:
    case KEY_NAME: snprintf(text, bytes, "%s", (const char *)field); return;
    case KEY_DEVICE:
        if (rank < c->n_devices)
            snprintf(text, bytes, "%s:%u", c->device[rank].kind == DEVICE_CUDA ? "cuda" : "host",
                     c->device[rank].index);
        return;
    case KEY_ACCESS: print_access(field, text, bytes); return;
    case KEY_LISTEN: print_listen(field, text, bytes); return;
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

/* Each device has a number of its own. */
static const struct key *numbered_key(uint32_t devices, uint32_t i, uint32_t *ret_rank) {
    for (size_t k = 0; k < N_KEYS; k++) {
        uint32_t n = keys[k].type == KEY_DEVICE ? devices : 1;
        *ret_rank = i;
        if (i < n) return &keys[k];
        i -= n;
    }
    return NULL;
}

bool config_setting(const struct config *c, const struct config *file, uint32_t i, struct kvd_setting *ret_setting) {
    struct kvd_setting s = { .restart = false };
    uint32_t rank;
    const struct key *key = numbered_key(c->n_devices > file->n_devices ? c->n_devices : file->n_devices, i, &rank);
    if (!key) return false;
    bool device = key->type == KEY_DEVICE;
    uint32_t line = device ? c->origin.device_line[rank] : c->origin.line[key - keys];
    snprintf(s.section, sizeof s.section, "%s", key->section);
    if (device) snprintf(s.name, sizeof s.name, "device.%u", rank);
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

void config_reload(struct config *config, const struct config *from, char *ret_rest, size_t bytes) {
    size_t used = 0;
    ret_rest[0] = 0;
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *key = &keys[i];
        bool devices = key->type == KEY_DEVICE; /* one row of the table for all of them */
        size_t n = devices ? sizeof config->device : key->bytes;
        void *field = (char *)config + key->offset;
        const void *wanted = (const char *)from + key->offset;
        bool same = !memcmp(field, wanted, n) && (!devices || config->n_devices == from->n_devices);
        if (is_live(key)) memcpy(field, wanted, n);
        if (same || is_live(key)) {
            config->origin.line[i] = from->origin.line[i];
            if (devices)
                memcpy(config->origin.device_line, from->origin.device_line, sizeof config->origin.device_line);
        } else if (used < bytes)
            used += (size_t)snprintf(ret_rest + used, bytes - used, "%s[%s] %s", used ? ", " : "", key->section,
                                     devices ? "device.N" : key->name);
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
