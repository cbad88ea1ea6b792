/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that act on continuations, one after the other: release, shorten, demote, prefetch, drop.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "figures.h"

struct verb {
    const char *done; /* "demoted": also the key of what was done */
    enum kvd_status (*act)(struct ctl *ctl, kvd_continuation continuation, struct kvd_moved *ret_moved,
                           struct kvd_error *error);
    bool moves; /* pages are counted */
};

static void add_done(const struct verb *verb, cJSON *done, const char *handle, const struct kvd_moved *moved) {
    if (!verb->moves) {
        cJSON_AddItemToArray(done, cJSON_CreateString(handle));
        return;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "continuation", handle);
    out_put_u64(o, "pages", moved->pages[0]);
    out_put_u64(o, "backend_pages", figures_other_pages(moved->pages));
    out_put_u64(o, "bytes", moved->bytes);
    cJSON_AddItemToArray(done, o);
}

/* A handle that is refused does not keep the others; a daemon that is not there does. */
static int move_one(struct ctl *ctl, const struct verb *verb, uint64_t bits, cJSON *done, cJSON *refused,
                    struct kvd_moved *total) {
    struct kvd_error error = { .message = "" };
    struct kvd_moved moved = { 0 };
    char buf[24];
    const char *handle = ctl_handle_text(bits, buf);
    enum kvd_status status = verb->act(ctl, (kvd_continuation){ bits }, &moved, &error);
    if (status == KVD_OK) {
        add_done(verb, done, handle, &moved);
        for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) total->pages[i] += moved.pages[i];
        total->bytes += moved.bytes;
        return CTL_OK;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "continuation", handle);
    cJSON_AddStringToObject(o, "status", kvd_status_name(status));
    cJSON_AddStringToObject(o, "message", error.message);
    cJSON_AddItemToArray(refused, o);
    fprintf(stderr, "kvdctl: %s was not %s: %s: %s\n", handle, verb->done, kvd_status_name(status), error.message);
    return ctl_status(status);
}

/* All of the handles, from argument `first` on, must be well-formed before anything is done. */
static int move_each(struct ctl *ctl, const struct verb *verb, int first) {
    cJSON *done, *refused;
    struct kvd_moved total = { 0 };
    uint64_t bits;
    int code = CTL_OK, n = ctl->n_args - first;
    for (int i = first; i < ctl->n_args; i++)
        if (!ctl_handle(ctl->args[i], "continuation", &bits)) return CTL_USAGE;
    out_add(ctl->out, verb->done, done = cJSON_CreateArray());
    out_add(ctl->out, "refused", refused = cJSON_CreateArray());
    for (int i = first; i < ctl->n_args && code != CTL_UNREACHABLE; i++) {
        ctl_handle(ctl->args[i], "continuation", &bits);
        int result = move_one(ctl, verb, bits, done, refused, &total);
        if (result != CTL_OK) code = result;
    }
    char counts[96] = "";
    if (verb->moves)
        snprintf(counts, sizeof counts, ": %u pages, %.1f MiB", total.pages[0] + figures_other_pages(total.pages),
                 (double)total.bytes / 1048576);
    out_say(ctl->out, "result", OUT_PLAIN, "%s %d of %d continuation%s%s", verb->done, cJSON_GetArraySize(done), n,
            n == 1 ? "" : "s", counts);
    return code;
}

static enum kvd_status release_one(struct ctl *ctl, kvd_continuation continuation, struct kvd_moved *ret_moved,
                                   struct kvd_error *error) {
    (void)ret_moved;
    return kvd_release(ctl->client, continuation, error);
}

static enum kvd_status shorten_one(struct ctl *ctl, kvd_continuation continuation, struct kvd_moved *ret_moved,
                                   struct kvd_error *error) {
    (void)ret_moved;
    return kvd_shorten(ctl->client, continuation, ctl->options.frontier, error);
}

static enum kvd_status demote(struct ctl *ctl, kvd_continuation continuation, struct kvd_moved *ret_moved,
                              struct kvd_error *error) {
    return kvd_demote(ctl->client, continuation, ctl->options.keep_device, ret_moved, error);
}

static enum kvd_status prefetch(struct ctl *ctl, kvd_continuation continuation, struct kvd_moved *ret_moved,
                                struct kvd_error *error) {
    return kvd_prefetch(ctl->client, continuation, ret_moved, error);
}

static enum kvd_status drop_device(struct ctl *ctl, kvd_continuation continuation, struct kvd_moved *ret_moved,
                                   struct kvd_error *error) {
    return kvd_drop_replica(ctl->client, continuation, KVD_TIER_DEVICE, ret_moved, error);
}

static enum kvd_status drop_host(struct ctl *ctl, kvd_continuation continuation, struct kvd_moved *ret_moved,
                                 struct kvd_error *error) {
    return kvd_drop_replica(ctl->client, continuation, KVD_TIER_HOST, ret_moved, error);
}

/* Step by step to the end, so that nobody waits long for the store. */
static int release_domain(struct ctl *ctl) {
    struct kvd_root domain = ctl_domain(&ctl->options);
    struct kvd_domain_released step = { 0 };
    struct kvd_error error;
    uint64_t released = 0, in_use = 0;
    for (uint32_t cursor = 0; cursor != KVD_UNCHANGED; released += step.released, in_use += step.in_use) {
        enum kvd_status status = kvd_release_domain(ctl->client, &domain, &cursor, &step, &error);
        if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    }
    out_say(ctl->out, "result", in_use || step.sequences ? OUT_BAD : OUT_PLAIN,
            "released %" PRIu64 " continuations; %" PRIu64 " are in use and %u sequences run: those stay", released,
            in_use, step.sequences);
    return in_use || step.sequences ? CTL_REFUSED : CTL_OK;
}

int cmd_release(struct ctl *ctl) {
    bool domain = ctl->options.domain && *ctl->options.domain;
    if (domain == (ctl->n_args > 0)) {
        fputs("kvdctl: release takes handles, or --domain and no handle\n", stderr);
        return CTL_USAGE;
    }
    int code = ctl_connect_or_say(ctl, KVD_ROLE_ADMIN);
    if (code != CTL_OK) return code;
    return domain ? release_domain(ctl) : move_each(ctl, &(struct verb){ "released", release_one, false }, 0);
}

int cmd_shorten(struct ctl *ctl) {
    if (ctl->options.frontier == KVD_UNCHANGED) {
        fputs("kvdctl: shorten takes --frontier=TOKENS, how many to keep\n", stderr);
        return CTL_USAGE;
    }
    return move_each(ctl, &(struct verb){ "shortened", shorten_one, false }, 0);
}

int cmd_demote(struct ctl *ctl) { return move_each(ctl, &(struct verb){ "demoted", demote, true }, 0); }

int cmd_prefetch(struct ctl *ctl) { return move_each(ctl, &(struct verb){ "prefetched", prefetch, true }, 0); }

int cmd_drop(struct ctl *ctl) {
    bool host = strcmp(ctl->args[0], "host") == 0;
    if (!host && strcmp(ctl->args[0], "device") != 0) {
        fprintf(stderr, "kvdctl: drop takes \"device\" or \"host\" before the handles, not \"%s\"\n", ctl->args[0]);
        return CTL_USAGE;
    }
    return move_each(ctl, &(struct verb){ "dropped", host ? drop_host : drop_device, true }, 1);
}
