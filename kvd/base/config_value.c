/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "device.h"

int config_value_number(const char *text, unsigned base, uint64_t *ret_value) {
    char *end;
    if (!isxdigit((unsigned char)*text)) return 1; /* no sign, no blank, no empty value */
    errno = 0;
    unsigned long long v = strtoull(text, &end, (int)base);
    if (errno || end == text || *end) return 1;
    *ret_value = v;
    return 0;
}

struct value_unit {
    const char *name;
    uint64_t factor;
};

static const struct value_unit byte_units[] = {
    { "KiB", 1u << 10 }, { "MiB", 1u << 20 }, { "GiB", 1u << 30 }, { "TiB", UINT64_C(1) << 40 }, { 0 }
};
static const struct value_unit time_units[] = {
    { "ms", 1000000 }, { "s", 1000000000 }, { "min", UINT64_C(60000000000) }, { 0 }
};

/* Of units: whether name is one of them; all their names in ret_names. */
static bool is_unit(const struct value_unit *units, const char *name, char ret_names[64]) {
    bool is = false;
    size_t used = 0;
    for (; units->name; units++) {
        is |= strcmp(units->name, name) == 0;
        used += (size_t)snprintf(ret_names + used, 64 - used, "%s%s", used ? ", " : "", units->name);
    }
    return is;
}

/* What keeps text from being a number with one of the units (NULL: without), in words. */
static void explain_number(const char *text, const struct value_unit *units, const char *example, char *err,
                           size_t err_bytes) {
    const char *rest = text + (*text == '-');
    char names[64] = "";
    size_t digits = strspn(rest, "0123456789");
    rest += digits;
    while (*rest == ' ') rest++;
    bool is = units ? is_unit(units, rest, names) : !*rest;
    if (!*text) snprintf(err, err_bytes, "is empty; write %s", example);
    else if (!digits) snprintf(err, err_bytes, "is not a number; write %s", example);
    else if (*text == '-') snprintf(err, err_bytes, "is negative; write %s", example);
    else if (*rest == '.' || *rest == ',') snprintf(err, err_bytes, "is not a whole number; write %s", example);
    else if (is || digits > 19) snprintf(err, err_bytes, "is too large; write %s", example);
    else if (!*rest) snprintf(err, err_bytes, "has no unit; write %s", example);
    else if (!units) snprintf(err, err_bytes, "has \"%.16s\" behind its number; write %s", rest, example);
    else snprintf(err, err_bytes, "has the unit \"%.16s\", none of %s; write %s", rest, names, example);
}

int config_value_whole(const char *text, bool may_auto, uint64_t *ret_value, char *err, size_t err_bytes) {
    if (!config_value_number(text, 10, ret_value)) return 0;
    explain_number(text, NULL, may_auto ? "a whole number, or auto" : "a whole number", err, err_bytes);
    return 1;
}

/* A number with a unit of the list. */
static int with_unit(const char *text, const struct value_unit *units, bool bare, uint64_t *ret_value) {
    size_t digits = strspn(text, "0123456789");
    char number[24];
    uint64_t value, factor = 0;
    if (digits == 0 || digits >= sizeof number) return 1;
    memcpy(number, text, digits);
    number[digits] = 0;
    if (config_value_number(number, 10, &value)) return 1;
    text += digits;
    while (*text == ' ') text++;
    if (!*text && (bare || value == 0)) factor = 1;
    for (; units->name && !factor; units++)
        if (strcmp(text, units->name) == 0) factor = units->factor;
    return !factor || __builtin_mul_overflow(value, factor, ret_value);
}

int config_value_bytes(const char *text, uint64_t *ret_value, char *err, size_t err_bytes) {
    uint64_t value;
    if (with_unit(text, byte_units, true, &value)) {
        explain_number(text, byte_units, "for example 4096, 64KiB, 512MiB or 20GiB", err, err_bytes);
        return 1;
    }
    *ret_value = value;
    return 0;
}

int config_value_duration(const char *text, uint64_t *ret_ns, char *err, size_t err_bytes) {
    uint64_t value;
    if (with_unit(text, time_units, false, &value)) {
        explain_number(text, time_units, "for example 250ms, 5s or 2min", err, err_bytes);
        return 1;
    }
    *ret_ns = value;
    return 0;
}

static void print_unit(uint64_t value, const struct value_unit *units, char *text, size_t bytes) {
    const struct value_unit *largest = NULL;
    for (; units->name && value; units++)
        if (value % units->factor == 0) largest = units;
    snprintf(text, bytes, "%" PRIu64 "%s", largest ? value / largest->factor : value, largest ? largest->name : "");
}

void config_value_print_bytes(uint64_t value, char *text, size_t bytes) { print_unit(value, byte_units, text, bytes); }

void config_value_print_duration(uint64_t ns, char *text, size_t bytes) { print_unit(ns, time_units, text, bytes); }

int config_value_device(const char *text, struct config_device *ret_device, char *err, size_t err_bytes) {
    uint64_t index;
    uint32_t kind = strncmp(text, "cuda:", 5) == 0 ? DEVICE_CUDA : DEVICE_HOST;
    if ((kind == DEVICE_HOST && strncmp(text, "host:", 5) != 0) || config_value_number(text + 5, 10, &index) ||
        index > 255) {
        snprintf(err, err_bytes, "is not a device; write host:0 or cuda:0, with a number up to 255");
        return 1;
    }
    *ret_device = (struct config_device){ .kind = kind, .index = (uint32_t)index };
    return 0;
}

static int access_id(const char *text, bool user, uint32_t *ret_id) {
    uint64_t id;
    if (!config_value_number(text, 10, &id)) {
        if (id >= UINT32_MAX) return 1;
        *ret_id = (uint32_t)id;
        return 0;
    }
    const struct passwd *p = user ? getpwnam(text) : NULL;
    const struct group *g = user ? NULL : getgrnam(text);
    if (!p && !g) return 1;
    *ret_id = p ? p->pw_uid : g->gr_gid;
    return 0;
}

int config_value_access(const char *text, struct config_access *ret_access, char *err, size_t err_bytes) {
    struct config_access access = { 0 };
    char copy[4096], *save = NULL;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) {
        snprintf(err, err_bytes, "is longer than %zu characters; use a group", sizeof copy - 1);
        return 1;
    }
    for (char *word = strtok_r(copy, " ,\t", &save); word; word = strtok_r(NULL, " ,\t", &save)) {
        bool uid = strncmp(word, "uid:", 4) == 0, gid = strncmp(word, "gid:", 4) == 0, all = strcmp(word, "*") == 0;
        uint32_t id = 0;
        if ((!uid && !gid && !all) || (!all && access_id(word + 4, uid, &id))) {
            snprintf(err, err_bytes, "has \"%.64s\", which is neither * nor uid:USER nor gid:GROUP of this machine",
                     word);
            return 1;
        }
        if (access.n == CONFIG_ACCESS_ENTRIES) {
            snprintf(err, err_bytes, "has more than %d entries; use a group", CONFIG_ACCESS_ENTRIES);
            return 1;
        }
        access.entry[access.n].kind = all ? ACCESS_ALL : uid ? ACCESS_UID : ACCESS_GID;
        access.entry[access.n++].id = id;
    }
    *ret_access = access;
    return 0;
}

static int value_of_unix_path(const char *path, struct config_listen *ret_listen, char *err, size_t err_bytes) {
    if (*path != '/') {
        snprintf(err, err_bytes, "has a path that is not absolute; write for example unix:/run/kvd/http.sock");
        return 1;
    }
    if (strlen(path) >= sizeof ret_listen->path) {
        snprintf(err, err_bytes, "has a path of %zu characters; at most %zu fit", strlen(path),
                 sizeof ret_listen->path - 1);
        return 1;
    }
    ret_listen->kind = LISTEN_UNIX;
    memcpy(ret_listen->path, path, strlen(path));
    return 0;
}

int config_value_listen(const char *text, struct config_listen *ret_listen, char *err, size_t err_bytes) {
    struct config_listen listen;
    struct in_addr four;
    uint64_t port;
    memset(&listen, 0, sizeof listen); /* its padding too: configurations are compared byte by byte */
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (strncmp(text, "unix:", 5) == 0) {
        if (value_of_unix_path(text + 5, &listen, err, err_bytes)) return 1;
    } else if (strcmp(text, "none") != 0) {
        if (n == 0 || n >= INET6_ADDRSTRLEN || config_value_number(colon + 1, 10, &port) || port == 0 || port > 65535) {
            snprintf(err, err_bytes,
                     "is neither none nor an address with a port of 1 to 65535; write for example 127.0.0.1:9464 or "
                     "unix:/run/kvd/http.sock");
            return 1;
        }
        memcpy(listen.path, text, n);
        listen.port = (uint16_t)port;
        listen.kind = strcmp(listen.path, "[::1]") == 0 ? LISTEN_TCP6 : LISTEN_TCP4;
        if (listen.kind == LISTEN_TCP4 &&
            (inet_pton(AF_INET, listen.path, &four) != 1 || ntohl(four.s_addr) >> 24 != 127)) {
            snprintf(err, err_bytes,
                     "is not a loopback address, and nothing else is listened on: what is shown is for this machine; "
                     "write 127.0.0.1:%u or [::1]:%u, and let a proxy that checks its clients carry it further",
                     (unsigned)port, (unsigned)port);
            return 1;
        }
    }
    *ret_listen = listen;
    return 0;
}

int config_value_address(const char *text, struct config_listen *ret_address, char *err, size_t err_bytes) {
    struct config_listen address;
    struct in6_addr number;
    uint64_t port;
    memset(&address, 0, sizeof address); /* as in config_value_listen */
    if (strcmp(text, "none") != 0 && strncmp(text, "unix:", 5) != 0) {
        const char *colon = strrchr(text, ':');
        bool six = *text == '[' && colon && colon > text && colon[-1] == ']';
        size_t n = colon ? (size_t)(colon - text) - (six ? 2 : 0) : 0;
        if (n > 0 && n < INET6_ADDRSTRLEN) memcpy(address.path, text + six, n);
        if (inet_pton(six ? AF_INET6 : AF_INET, address.path, &number) != 1 ||
            config_value_number(colon + 1, 10, &port) || port == 0 || port > 65535) {
            snprintf(err, err_bytes,
                     "is neither none nor a numeric address with a port of 1 to 65535; write for example "
                     "10.0.0.5:6379, [fd00::5]:6379 or unix:/run/redis/redis.sock");
            return 1;
        }
        address.port = (uint16_t)port;
        address.kind = six ? LISTEN_TCP6 : LISTEN_TCP4;
    } else if (*text == 'u' && value_of_unix_path(text + 5, &address, err, err_bytes)) return 1;
    *ret_address = address;
    return 0;
}
