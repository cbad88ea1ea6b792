/* SPDX-License-Identifier: Apache-2.0 */
#include "look.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "kvd.h"

#define SECONDS_TO_REST 120 /* for what is under way to end */

static kvd_client *connect_look(struct replay *r, struct kvd_error *error) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = r->socket,
                                           .role = KVD_ROLE_SCHEDULER,
                                           .name = "replay-look",
                                           .timeout_ms = REPLAY_TIMEOUT_MS };
    kvd_client *client = NULL;
    enum kvd_status status = kvd_connect(&options, &client, error);
    if (status != KVD_OK) replay_failed(r, r->shared->next, "connect", status, error->message);
    return client;
}

static void note_finding(struct replay *r, uint32_t request, const char *what, const char *text) {
    if (!r->shared->finding[0])
        snprintf(r->shared->finding, sizeof r->shared->finding, "request %u: %s: %.500s", request, what, text);
}

static enum kvd_status audit_store(struct replay *r, kvd_client *client, struct kvd_error *error) {
    static struct kvd_audit audit;
    enum kvd_status status = kvd_audit(client, &audit, error);
    if (status != KVD_OK) return status;
    r->shared->audits++;
    r->shared->damaged += audit.violations;
    if (audit.violations) note_finding(r, r->shared->next, "audit", audit.text);
    return KVD_OK;
}

/* Without what a running sequence has named: that is not in the host. */
static enum kvd_status note_listed(struct replay *r, kvd_client *client, bool *ret_moving, struct kvd_error *error) {
    static struct kvd_continuation_info infos[KVD_MAX_LIST];
    uint32_t cursor = 0, n = 0;
    enum kvd_status status = KVD_OK;
    ledger_forget_host(&r->shared->ledger);
    while (status == KVD_OK && cursor != KVD_UNCHANGED) {
        status = kvd_list_continuations(client, NULL, &cursor, infos, KVD_MAX_LIST, &n, error);
        for (uint32_t i = 0; status == KVD_OK && i < n; i++) {
            *ret_moving |= infos[i].moving;
            if (!infos[i].live && infos[i].host_pages[0] == infos[i].pages[0])
                ledger_note_host(&r->shared->ledger, infos[i].continuation.bits);
        }
    }
    return status;
}

/* Twice the same revision with nothing under way in between: nothing has changed meanwhile. */
static enum kvd_status note_host(struct replay *r, kvd_client *client, struct kvd_error *error) {
    time_t end = time(NULL) + SECONDS_TO_REST;
    struct kvd_stats before, after;
    while (time(NULL) < end) {
        bool moving = false;
        enum kvd_status status = kvd_stats(client, &before, error);
        if (status == KVD_OK) status = note_listed(r, client, &moving, error);
        if (status == KVD_OK) status = kvd_stats(client, &after, error);
        if (status != KVD_OK || (!moving && !after.moves && before.revision == after.revision)) return status;
        poll(NULL, 0, 1);
    }
    return KVD_DEADLINE_EXCEEDED;
}

int look_at_host(struct replay *r) {
    struct kvd_error error = { .message = "" };
    kvd_client *client = connect_look(r, &error);
    if (!client) return 1;
    enum kvd_status status = note_host(r, client, &error);
    if (status != KVD_OK) replay_failed(r, r->shared->next, "what the host has", status, error.message);
    kvd_disconnect(client);
    return status != KVD_OK;
}

/* What was the engine's becomes continuations when its processes are proven dead. */
static enum kvd_status wait_for_rest(kvd_client *client, struct kvd_error *error) {
    time_t end = time(NULL) + SECONDS_TO_REST;
    while (time(NULL) < end) {
        struct kvd_stats stats;
        enum kvd_status status = kvd_stats(client, &stats, error);
        if (status != KVD_OK || (!stats.sequences && !stats.moves)) return status;
        poll(NULL, 0, 1);
    }
    snprintf(error->message, sizeof error->message, "sequences of a dead engine still run");
    return KVD_DEADLINE_EXCEEDED;
}

static enum kvd_status look_for(struct replay *r, kvd_client *client, uint32_t request, uint32_t *tokens,
                                struct kvd_hit *ret_hit, struct kvd_error *error) {
    static const struct kvd_domain domain = { .model = "replay", .label = "replay" };
    uint32_t n = r->shared->ledger.entries[request].tokens + 1, found = 0;
    kvd_chain *chain = NULL;
    *ret_hit = (struct kvd_hit){ .usable = 0 };
    trace_tokens(&r->trace, request, tokens);
    enum kvd_status status = kvd_chain_new(&domain, &chain);
    if (status == KVD_OK) status = kvd_chain_push(chain, tokens, n);
    if (status == KVD_OK) status = kvd_find(client, chain, tokens, n, ret_hit, 1, &found, error);
    kvd_chain_free(chain);
    return status;
}

static enum kvd_status look_for_all(struct replay *r, kvd_client *client, uint32_t *tokens, bool kvd_died,
                                    struct kvd_error *error) {
    enum kvd_status status = KVD_OK;
    for (uint32_t i = 0; status == KVD_OK && i < r->trace.n; i++) {
        struct ledger_entry *e = &r->shared->ledger.entries[i];
        struct kvd_hit hit;
        bool must = e->tokens && (!kvd_died || e->in_host);
        if (!e->tokens || (status = look_for(r, client, i, tokens, &hit, error)) != KVD_OK) continue;
        r->shared->checked += must;
        r->shared->checked_in_host += must && kvd_died;
        if (must && hit.usable < e->tokens) {
            char text[100];
            snprintf(text, sizeof text, "of %u tokens that kvd must have it has %u", e->tokens, hit.usable);
            r->shared->lost++;
            note_finding(r, i, "what is left", text);
        }
        ledger_set(&r->shared->ledger, i, hit.continuation.bits, hit.usable < e->tokens ? hit.usable : e->tokens);
    }
    return status;
}

int look_at_ledger(struct replay *r, bool kvd_died) {
    struct kvd_error error = { .message = "" };
    uint32_t *tokens = replay_tokens(r);
    kvd_client *client = tokens ? connect_look(r, &error) : NULL;
    if (!client) {
        free(tokens);
        return 1;
    }
    enum kvd_status status = wait_for_rest(client, &error);
    if (status == KVD_OK) status = audit_store(r, client, &error);
    if (status == KVD_OK) status = look_for_all(r, client, tokens, kvd_died, &error);
    if (status != KVD_OK) replay_failed(r, r->shared->next, "after a death", status, error.message);
    kvd_disconnect(client);
    free(tokens);
    return status != KVD_OK;
}

static enum kvd_status ask_figures(struct replay *r, kvd_client *client, struct kvd_error *error) {
    static struct kvd_reuse reuse;
    struct kvd_stats stats;
    struct replay_figures *f = &r->shared->figures;
    enum kvd_status status = kvd_stats(client, &stats, error);
    if (status == KVD_OK) status = kvd_describe_reuse(client, &reuse, error);
    if (status != KVD_OK) return status;
    *f = (struct replay_figures){ stats.requests, stats.demoted_bytes, stats.restored_bytes, 0, 0 };
    for (uint32_t i = 0; i < reuse.n_sizes; i++) {
        if (reuse.sizes[i].pages <= r->pool_tokens / KVD_PAGE_TOKENS) f->advise_smaller = reuse.sizes[i].found_tokens;
        f->advise_infinite = reuse.sizes[i].found_tokens;
    }
    return KVD_OK;
}

int look_at_figures(struct replay *r) {
    struct kvd_error error = { .message = "" };
    kvd_client *client = connect_look(r, &error);
    if (!client) return 1;
    enum kvd_status status = ask_figures(r, client, &error);
    if (status == KVD_OK) status = audit_store(r, client, &error);
    if (status != KVD_OK) replay_failed(r, r->shared->next, "figures", status, error.message);
    kvd_disconnect(client);
    return status != KVD_OK;
}
