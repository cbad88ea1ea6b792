/* SPDX-License-Identifier: Apache-2.0
 *
 * Round: in one call, or started, polled and waited for.
 */
#include <string.h>

#include "client.h"

static enum kvd_status check_items(const struct kvd_round_item *items, uint32_t n, struct kvd_error *error) {
    if (items && n >= 1 && n <= KVD_MAX_ROUND) return KVD_OK;
    return client_fail(error, KVD_INVALID_ARGUMENT, "a Round of %u sequences; 1 to %d in one message: split the batch",
                       n, KVD_MAX_ROUND);
}

static void fill_request(struct msg_request *ret_request, const struct kvd_round_item *items, uint32_t n) {
    ret_request->type = FRAME_ROUND;
    ret_request->u.round.n = n;
    ret_request->u.round.items = (struct kvd_round_item *)(uintptr_t)items; /* the codec only reads a request */
}

/* n: items of the request. The results move to the caller, the call ends. */
static enum kvd_status collect_results(struct kvd_client *c, struct pending_call *call, const struct msg_reply *reply,
                                       uint32_t n, struct kvd_round_result *ret_results, struct kvd_error *error) {
    enum kvd_status status = KVD_OK;
    if (reply->u.round.n != n) {
        status =
            client_fail(error, KVD_INTERNAL, "kvd answered %u results to a Round of %u sequences", reply->u.round.n, n);
    } else {
        for (uint32_t i = 0; i < n; i++) { /* messages are long and mostly empty */
            const struct kvd_round_result *from = &reply->u.round.items[i];
            memcpy(&ret_results[i], from, from->message[0] ? sizeof *from : offsetof(struct kvd_round_result, message));
            ret_results[i].message[0] = from->message[0];
        }
    }
    call_done(c, call);
    return status;
}

enum kvd_status kvd_round(kvd_client *c, const struct kvd_round_item *items, uint32_t n,
                          struct kvd_round_result *ret_results, struct kvd_error *error) {
    struct msg_request request;
    struct msg_reply reply;
    struct pending_call *call;
    enum kvd_status status = check_items(items, n, error);
    if (status == KVD_OK && !ret_results)
        status = client_fail(error, KVD_INVALID_ARGUMENT, "kvd_round needs a place for %u results", n);
    if (status != KVD_OK) return status;
    fill_request(&request, items, n);
    status = call_run(c, &request, &call, &reply, error);
    return status == KVD_OK ? collect_results(c, call, &reply, n, ret_results, error) : status;
}

enum kvd_status kvd_round_start(kvd_client *c, const struct kvd_round_item *items, uint32_t n, kvd_ticket *ret_ticket,
                                struct kvd_error *error) {
    struct msg_request request;
    struct pending_call *call;
    enum kvd_status status = client_guard(c, error);
    if (status == KVD_OK) status = check_items(items, n, error);
    if (status == KVD_OK && !ret_ticket)
        status = client_fail(error, KVD_INVALID_ARGUMENT, "kvd_round_start needs a place for the ticket");
    if (status != KVD_OK) return status;
    fill_request(&request, items, n);
    status = call_start(c, &request, CALL_TICKET, client_deadline(c), &call, error);
    if (status == KVD_OK) ret_ticket->id = call->id;
    return status;
}

/* Takes a ticket's call over; from here on it is the caller's. With the lock held. */
static enum kvd_status claim_ticket(struct kvd_client *c, kvd_ticket ticket, uint32_t max,
                                    struct pending_call **ret_call, struct kvd_error *error) {
    struct pending_call *call = call_lookup(c, ticket.id);
    if (!call || call->keeper != CALL_TICKET) {
        return client_fail(error, KVD_NOT_FOUND,
                           "there is no open Round with ticket %llu: its answer was fetched, or its deadline passed",
                           (unsigned long long)ticket.id);
    }
    if (max < call->n_touched) {
        return client_fail(error, KVD_INVALID_ARGUMENT, "room for %u results; this Round has %u sequences", max,
                           call->n_touched);
    }
    *ret_call = call;
    return KVD_OK;
}

static void take_ticket(struct kvd_client *c, struct pending_call *call) {
    if (call->state == CALL_ANSWERED) c->n_tickets_answered--;
    call->keeper = CALL_WAITED;
    client_update_fd(c);
}

/* Finishes a claimed call. */
static enum kvd_status finish_round(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns,
                                    struct kvd_round_result *ret_results, uint32_t *ret_n, struct kvd_error *error) {
    struct msg_reply reply;
    uint32_t n = call->n_touched;
    enum kvd_status status = call_finish(c, call, deadline_ns, &reply, error);
    if (status == KVD_OK) status = collect_results(c, call, &reply, n, ret_results, error);
    if (status == KVD_OK) *ret_n = n;
    return status;
}

/* KVD_OK: fetch the answer, or end the ticket by its deadline. */
static enum kvd_status look_at_ticket(struct kvd_client *c, const struct pending_call *call, struct kvd_error *error) {
    if (call->state == CALL_ANSWERED || c->dead || clock_ns() >= call->until_ns) return KVD_OK;
    if (call->state == CALL_SENT) return client_fail(error, KVD_UNAVAILABLE, "no answer yet");
    return client_fail(error, KVD_UNAVAILABLE,
                       "no answer yet: the connection to kvd at %s is lost (%s); kvd_client_reconnect or "
                       "kvd_round_wait sends this Round again",
                       c->path, c->link->why);
}

enum kvd_status kvd_round_poll(kvd_client *c, kvd_ticket ticket, struct kvd_round_result *ret_results, uint32_t max,
                               uint32_t *ret_n, struct kvd_error *error) {
    struct pending_call *call = NULL;
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    pthread_mutex_lock(&c->lock);
    status = claim_ticket(c, ticket, max, &call, error);
    if (status == KVD_OK) status = look_at_ticket(c, call, error);
    if (status == KVD_OK) {
        call->resumed = true; /* polling connects nowhere */
        take_ticket(c, call);
    }
    pthread_mutex_unlock(&c->lock);
    return status == KVD_OK ? finish_round(c, call, 0, ret_results, ret_n, error) : status;
}

enum kvd_status kvd_round_wait(kvd_client *c, kvd_ticket ticket, struct kvd_round_result *ret_results, uint32_t max,
                               uint32_t *ret_n, struct kvd_error *error) {
    struct pending_call *call = NULL;
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    pthread_mutex_lock(&c->lock);
    status = claim_ticket(c, ticket, max, &call, error);
    if (status == KVD_OK) take_ticket(c, call);
    pthread_mutex_unlock(&c->lock);
    return status == KVD_OK ? finish_round(c, call, client_deadline(c), ret_results, ret_n, error) : status;
}
