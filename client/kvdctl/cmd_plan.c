/* SPDX-License-Identifier: Apache-2.0
 *
 * plan: what an activation would need and whether it fits now.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "figures.h"

#define N(array) (sizeof(array) / sizeof *(array))

/* The frontier of a continuation, by walking the list. The exit status. */
static int find_frontier(struct ctl *ctl, kvd_continuation continuation, uint32_t *ret_frontier) {
    struct kvd_continuation_info infos[64];
    struct kvd_error error;
    char buf[24];
    uint32_t cursor = 0, n;
    while (cursor != KVD_UNCHANGED) {
        enum kvd_status status = kvd_list_continuations(ctl->client, NULL, &cursor, infos, N(infos), &n, &error);
        if (status != KVD_OK) return ctl_refused(ctl, status, &error);
        for (uint32_t i = 0; i < n; i++) {
            if (infos[i].continuation.bits != continuation.bits) continue;
            *ret_frontier = infos[i].frontier;
            return CTL_OK;
        }
    }
    snprintf(error.message, sizeof error.message, "there is no continuation %s (kvdctl continuations lists them)",
             ctl_handle_text(continuation.bits, buf));
    return ctl_refused(ctl, KVD_NOT_FOUND, &error);
}

static struct kvd_victim victims[KVD_MAX_VICTIMS]; /* of the plan that was asked for */

/* Cuts @FRONTIER off a handle; 0: there is none. */
static bool parse_cut(char *one, const char *option, bool demote, uint32_t *ret_frontier) {
    char *at = strchr(one, '@'), *end = NULL;
    *ret_frontier = 0;
    if (!at) return true;
    unsigned long frontier = strtoul(at + 1, &end, 10);
    if (demote || !at[1] || *end || frontier == 0 || frontier >= UINT32_MAX) {
        fprintf(stderr, "kvdctl: %s: %s is no HANDLE%s\n", option, one, demote ? "" : " or HANDLE@FRONTIER");
        return false;
    }
    *at = 0;
    *ret_frontier = (uint32_t)frontier;
    return true;
}

static bool parse_victims(const char *text, const char *option, bool demote, struct kvd_activation *want) {
    char one[32];
    want->victims = victims;
    while (text && *text) {
        size_t n = strcspn(text, ",");
        if (n >= sizeof one || want->n_victims == KVD_MAX_VICTIMS) {
            fprintf(stderr, "kvdctl: %s: a plan takes at most %d handles, separated by commas\n", option,
                    KVD_MAX_VICTIMS);
            return false;
        }
        memcpy(one, text, n);
        one[n] = 0;
        struct kvd_victim *victim = &victims[want->n_victims];
        if (!parse_cut(one, option, demote, &victim->frontier)) return false;
        if (!ctl_handle(one, "continuation", &victim->continuation.bits)) return false;
        victim->demote = demote;
        want->n_victims++;
        text += n + (text[n] == ',');
    }
    return true;
}

int plan_target(struct ctl *ctl, struct kvd_activation *ret_want) {
    const struct ctl_options *o = &ctl->options;
    int code;
    struct kvd_activation want = { .keep = !o->move, .prompt_tokens = o->prompt, .max_output_tokens = o->output };
    if (!o->prompt || !o->output) {
        fputs("kvdctl: say --prompt TOKENS and --output TOKENS, both at least 1\n", stderr);
        return CTL_USAGE;
    }
    want.worker = kvd_client_session(ctl->client);
    if (o->from) {
        if (!ctl_handle(o->from, "continuation", &want.from.bits)) return CTL_USAGE;
        want.frontier = o->frontier;
        if (o->frontier == KVD_UNCHANGED && (code = find_frontier(ctl, want.from, &want.frontier))) return code;
        if (o->frontier == KVD_UNCHANGED && want.frontier >= o->prompt) want.frontier = o->prompt - 1;
    } else if (o->frontier != KVD_UNCHANGED) {
        fputs("kvdctl: --frontier needs --from\n", stderr);
        return CTL_USAGE;
    }
    if (!parse_victims(o->victims, "--victims", false, &want) || !parse_victims(o->demote, "--demote", true, &want))
        return CTL_USAGE;
    *ret_want = want;
    return CTL_OK;
}

/* put: out_put_u64, or out_put_bytes, which adds a text with units. */
static void add_need(cJSON *rows, const char *what, const struct kvd_need *need,
                     void put(cJSON *object, const char *key, uint64_t value), const char *remark) {
    static const char *const keys[] = { "needed", "available", "short_by" };
    const uint64_t values[] = { need->needed, need->available, need->short_by };
    char text[32];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "what", what);
    for (size_t i = 0; i < N(keys); i++) {
        put(o, keys[i], values[i]);
        snprintf(text, sizeof text, "%s_text", keys[i]);
        if (put == out_put_u64) out_put_text(o, text, "%" PRIu64, values[i]);
    }
    cJSON_AddStringToObject(o, "remark", remark);
    cJSON_AddItemToArray(rows, o);
}

static void add_pages(cJSON *rows, const struct kvd_plan *plan, uint32_t i, const char *pool) {
    char remark[160];
    int n = snprintf(remark, sizeof remark, "guarantees %u, shares %u, copies %u columns%s", plan->entitlement[i],
                     plan->shared_pages[i], plan->copied_columns[i], plan->freed_pages[i] ? ", victims included" : "");
    if (plan->restore_pages[i])
        n += snprintf(remark + n, sizeof remark - (size_t)n, ", restores %u from the host", plan->restore_pages[i]);
    if (plan->demote_pages[i]) snprintf(remark + n, sizeof remark - (size_t)n, ", demotes %u", plan->demote_pages[i]);
    char what[KVD_GROUP_NAME_BYTES + 16];
    snprintf(what, sizeof what, "pages (%s pool)", pool);
    add_need(rows, what, &plan->pages[i], out_put_u64, remark);
}

int plan_show(struct ctl *ctl, const struct kvd_plan *plan) {
    static const struct out_column columns[] = {
        { "what", "WHAT", false, 0 },
        { "needed_text", "NEEDED", true, 0 },
        { "available_text", "AVAILABLE", true, 0 },
        { "short_by_text", "SHORT BY", true, 0 },
    };
    char remarks[KVD_MAX_POOLS][160 + KVD_GROUP_NAME_BYTES + 8] = { "" };
    struct kvd_store_info info;
    struct kvd_error error;
    enum kvd_status status = kvd_describe(ctl->client, &info, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    cJSON *rows = cJSON_CreateArray();
    for (uint32_t i = 0; i < plan->n_pools && i < KVD_MAX_POOLS; i++) {
        add_pages(rows, plan, i, figures_pool(&info, i));
        const cJSON *remark = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(rows, (int)i), "remark");
        snprintf(remarks[i], sizeof remarks[i], "%s pool: %s", figures_pool(&info, i), remark->valuestring);
    }
    add_need(rows, "rows", &plan->rows, out_put_u64, "");
    add_need(rows, "sequences", &plan->sequences, out_put_u64, "");
    add_need(rows, "continuations", &plan->continuations, out_put_u64, "");
    if (plan->state_slots.needed) add_need(rows, "state slots", &plan->state_slots, out_put_u64, "");
    add_need(rows, "membership entries", &plan->membership, out_put_u64, "");
    if (plan->arena.needed) add_need(rows, "host arena", &plan->arena, out_put_bytes, "for demoted victims");
    out_table(ctl->out, "needs", columns, N(columns), rows);
    for (uint32_t i = 0; i < KVD_MAX_POOLS && !out_is_json(ctl->out); i++)
        if (*remarks[i]) out_print(ctl->out, OUT_PLAIN, remarks[i]);
    return CTL_OK;
}

int cmd_plan(struct ctl *ctl) {
    struct kvd_activation want;
    struct kvd_plan plan;
    struct kvd_error error;
    int code = plan_target(ctl, &want);
    if (code != CTL_OK) return code;
    enum kvd_status status = kvd_plan_activation(ctl->client, &want, &plan, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    code = plan_show(ctl, &plan);
    if (code != CTL_OK) return code;
    out_flag(ctl->out, "ready", plan.feasibility == KVD_READY);
    if (plan.feasibility == KVD_READY) out_say(ctl->out, "result", OUT_GOOD, "ready: it fits now");
    else if (plan.feasibility == KVD_BLOCKED)
        out_say(ctl->out, "result", OUT_BAD, "blocked: it fits after releases (kvdctl why shows which)");
    else out_say(ctl->out, "result", OUT_BAD, "infeasible: it would not fit an empty store");
    return plan.feasibility == KVD_READY ? CTL_OK : CTL_REFUSED;
}
