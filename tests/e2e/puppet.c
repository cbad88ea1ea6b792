/* SPDX-License-Identifier: Apache-2.0
 * A process that speaks libkvd on command (fd 3), for tests that kill and stop it. */
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e.h"
#include "round_ask.h"

static kvd_client *client;
static kvd_store *store;

static bool read_all(void *bytes, size_t n) {
    char *at = bytes;
    while (n) {
        ssize_t got = read(3, at, n);
        if (got <= 0) return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static enum kvd_status do_connect(const struct puppet_call *call, struct puppet_answer *a, struct kvd_error *error) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = call->socket,
                                           .role = (enum kvd_role)call->role,
                                           .name = call->name,
                                           .rank = call->rank,
                                           .timeout_ms = call->timeout_ms };
    enum kvd_status status = kvd_connect(&options, &client, error);
    if (status == KVD_OK) {
        a->session = kvd_client_session(client);
        a->epoch = kvd_client_epoch(client);
    }
    return status;
}

static enum kvd_status do_round(const struct puppet_call *call, struct puppet_answer *a, struct kvd_error *error) {
    struct kvd_round_item items[sizeof call->items / sizeof *call->items];
    memcpy(items, call->items, sizeof items);
    for (uint32_t i = 0; i < call->n; i++) ROUND_ASK(&items[i]);
    return kvd_round(client, items, call->n, a->results, error);
}

static enum kvd_status do_name(const struct puppet_call *call, struct kvd_error *error) {
    kvd_chain *chain = e2e_chain(call->seed, call->n);
    enum kvd_status status = kvd_name_pages(client, call->sequence, chain, call->first,
                                            (uint32_t)kvd_chain_pages(chain) - call->first, error);
    kvd_chain_free(chain);
    return status;
}

static enum kvd_status do_find(const struct puppet_call *call, struct puppet_answer *a, struct kvd_error *error) {
    uint32_t *tokens = malloc((call->n + 1) * sizeof *tokens);
    kvd_chain *chain = e2e_chain(call->seed, call->n);
    e2e_tokens(call->seed, call->n, tokens);
    enum kvd_status status = kvd_find(client, chain, tokens, call->n, a->hits, 8, &a->n, error);
    kvd_chain_free(chain);
    free(tokens);
    return status;
}

static enum kvd_status do_check(const struct puppet_call *call, struct kvd_error *error) {
    uint64_t wrong = e2e_check_columns(store, call->pool, call->row, call->seed, call->from, call->to);
    if (!wrong) return KVD_OK;
    snprintf(error->message, sizeof error->message, "%llu wrong bytes in columns %u..%u of row %u",
             (unsigned long long)wrong, call->from, call->to, call->row);
    return KVD_DATA_LOSS;
}

static enum kvd_status do_state_check(const struct puppet_call *call, struct kvd_error *error) {
    uint64_t wrong = 0;
    enum kvd_status status = e2e_check_state(store, call->rank, call->row, call->seed, call->n, &wrong, error);
    if (status != KVD_OK || !wrong) return status;
    snprintf(error->message, sizeof error->message, "%llu wrong bytes in state slot %u", (unsigned long long)wrong,
             call->row);
    return KVD_DATA_LOSS;
}

static enum kvd_status do_state_copy(const struct puppet_call *call, struct kvd_error *error) {
    void *from, *to;
    uint64_t bytes;
    enum kvd_status status = kvd_store_state(store, call->from, &from, &bytes, error);
    if (status == KVD_OK) status = kvd_store_state(store, call->to, &to, &bytes, error);
    if (status == KVD_OK) memcpy(to, from, bytes);
    return status;
}

/* A child must not use the parent's client: it reports what it was told. */
static enum kvd_status do_fork(struct kvd_error *error) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct kvd_stats stats;
        struct kvd_round_item item = { 0 };
        struct kvd_round_result result;
        enum kvd_status a = kvd_stats(client, &stats, NULL), b = kvd_round(client, &item, 1, &result, NULL);
        kvd_disconnect(client);
        _exit(a == b ? (int)a : 99);
    }
    waitpid(pid, &status, 0);
    snprintf(error->message, sizeof error->message, "child: exit %d signal %d", WEXITSTATUS(status),
             WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    return WIFEXITED(status) ? (enum kvd_status)WEXITSTATUS(status) : KVD_UNKNOWN;
}

/* Within the last page it waits for the next window, to prove that that comes. */
static enum kvd_status do_decode(const struct puppet_call *call, struct puppet_answer *a, struct kvd_error *error) {
    struct kvd_frontier *f = &a->frontier;
    uint32_t due;
    *f = call->frontier;
    for (uint32_t at = f->commit[0]; at < call->to; at++) {
        double end = e2e_now() + 15 * E2E_SLOW;
        f->commit[0] = at;
        f->ensure[0] = at + 1;
        do {
            enum kvd_status status = kvd_advance(store, f, 1, &due, error);
            if (status != KVD_OK) return status;
            if (f->due != (due == 1)) return KVD_INTERNAL;
        } while (f->ensure[0] + 64 > f->mapped[0] && call->to + 64 > f->mapped[0] && e2e_now() < end);
        if (due) return KVD_UNAVAILABLE;
        e2e_write_columns(store, 0, f->row, call->seed, at, at + 1);
    }
    return KVD_OK;
}

static enum kvd_status do_become(const struct puppet_call *call) {
    gid_t group = call->n;
    if (setgroups(call->n ? 1 : 0, &group) || setgid(call->to) || setuid(call->from)) return KVD_PERMISSION_DENIED;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it went with the old user */
    return KVD_OK;
}

static enum kvd_status serve(const struct puppet_call *call, struct puppet_answer *a, struct kvd_error *error) {
    switch (call->op) {
    case PUPPET_CONNECT: return do_connect(call, a, error);
    case PUPPET_ATTACH: return kvd_attach(client, call->rank, NULL, &store, error);
    case PUPPET_ACTIVATE: return kvd_activate(client, &call->activation, &a->activated, error);
    case PUPPET_PLAN: return kvd_plan_activation(client, &call->activation, &a->plan, error);
    case PUPPET_ROUND: return do_round(call, a, error);
    case PUPPET_CHECKPOINT: return kvd_checkpoint(client, &call->checkpoint, &a->checkpointed, error);
    case PUPPET_FINISH: return kvd_finish(client, &call->finish, &a->finished, error);
    case PUPPET_RELEASE: return kvd_release(client, call->continuation, error);
    case PUPPET_YIELD: return kvd_yield(client, &a->n, error);
    case PUPPET_NAME: return do_name(call, error);
    case PUPPET_FIND: return do_find(call, a, error);
    case PUPPET_WRITE: e2e_write_columns(store, call->pool, call->row, call->seed, call->from, call->to); return KVD_OK;
    case PUPPET_CHECK: return do_check(call, error);
    case PUPPET_STATE_WRITE: return e2e_write_state(store, call->rank, call->row, call->seed, call->n, error);
    case PUPPET_STATE_CHECK: return do_state_check(call, error);
    case PUPPET_STATE_COPY: return do_state_copy(call, error);
    case PUPPET_STATS: return kvd_stats(client, &a->stats, error);
    case PUPPET_SUBSCRIBE: return kvd_subscribe(client, call->mask, error);
    case PUPPET_EVENT: return kvd_next_event(client, call->timeout_ms, &a->event, error);
    case PUPPET_RECONNECT: return kvd_client_reconnect(client, error);
    case PUPPET_DETACH:
        kvd_detach(store);
        kvd_disconnect(client);
        store = NULL;
        client = NULL;
        return KVD_OK;
    case PUPPET_DISCONNECT:
        kvd_disconnect(client);
        client = NULL;
        return KVD_OK;
    case PUPPET_BECOME: return do_become(call);
    case PUPPET_DEMOTE: return kvd_demote(client, call->continuation, call->n != 0, &a->moved, error);
    case PUPPET_PREFETCH: return kvd_prefetch(client, call->continuation, &a->moved, error);
    case PUPPET_DROP: return kvd_drop_replica(client, call->continuation, (enum kvd_tier)call->n, &a->moved, error);
    case PUPPET_DECODE: return do_decode(call, a, error);
    case PUPPET_FORK: return do_fork(error);
    default: return KVD_UNIMPLEMENTED;
    }
}

int main(void) {
    static struct puppet_call call;
    static struct puppet_answer answer;
    while (read_all(&call, sizeof call)) {
        struct kvd_error error = { 0 };
        memset(&answer, 0, sizeof answer);
        answer.status = serve(&call, &answer, &error);
        memcpy(answer.message, error.message, sizeof answer.message);
        if (send(3, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) break;
    }
    return 0;
}
