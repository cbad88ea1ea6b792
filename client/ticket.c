/* SPDX-License-Identifier: Apache-2.0
 *
 * Tickets: requests that are started, and whose answers are polled or waited for.
 */
#include "client.h"

enum kvd_status ticket_start(struct kvd_client *c, struct msg_request *request, kvd_ticket *ret_ticket,
                             struct kvd_error *error) {
    struct pending_call *call;
    enum kvd_status status = client_guard(c, error);
    if (status == KVD_OK) status = call_start(c, request, CALL_TICKET, client_deadline(c), &call, error);
    if (status == KVD_OK) ret_ticket->id = call->id;
    return status;
}

/* The ticket's call, for who collects requests of these types. With the lock held. */
static enum kvd_status find_ticket(struct kvd_client *c, kvd_ticket ticket, uint64_t types, uint32_t max,
                                   struct pending_call **ret_call, struct kvd_error *error) {
    struct pending_call *call = call_lookup(c, ticket.id);
    if (!call || call->keeper != CALL_TICKET || !(types >> call->type & 1)) {
        return client_fail(error, KVD_NOT_FOUND,
                           "there is no open request with ticket %llu that this call collects: its answer was fetched, "
                           "or its deadline passed",
                           (unsigned long long)ticket.id);
    }
    if (max < call->n_touched) {
        return client_fail(error, KVD_INVALID_ARGUMENT, "room for %u results; this Round has %u sequences", max,
                           call->n_touched);
    }
    *ret_call = call;
    return KVD_OK;
}

/* KVD_OK: fetch the answer, or end the ticket by its deadline. */
static enum kvd_status look_at_ticket(struct kvd_client *c, const struct pending_call *call, struct kvd_error *error) {
    if (call->state == CALL_ANSWERED || c->dead || clock_ns() >= call->until_ns) return KVD_OK;
    if (call->state == CALL_SENT) return client_fail(error, KVD_UNAVAILABLE, "no answer yet");
    return client_fail(error, KVD_UNAVAILABLE,
                       "no answer yet: the connection to kvd at %s is lost (%s); kvd_client_reconnect, or waiting for "
                       "the ticket, sends this %s again",
                       c->path, c->link->why, frame_type_name(call->type));
}

/* From here on the call is the caller's. */
static void take_ticket(struct kvd_client *c, struct pending_call *call) {
    if (call->state == CALL_ANSWERED) c->n_tickets_answered--;
    call->keeper = CALL_WAITED;
    client_update_fd(c);
}

enum kvd_status ticket_finish(struct kvd_client *c, kvd_ticket ticket, uint64_t types, uint32_t max, bool wait,
                              struct pending_call **ret_call, struct msg_reply *ret_reply, struct kvd_error *error) {
    struct pending_call *call = NULL;
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    pthread_mutex_lock(&c->lock);
    status = find_ticket(c, ticket, types, max, &call, error);
    if (status == KVD_OK && !wait) status = look_at_ticket(c, call, error);
    if (status == KVD_OK) {
        call->resumed |= !wait; /* polling connects nowhere */
        take_ticket(c, call);
    }
    pthread_mutex_unlock(&c->lock);
    if (status != KVD_OK) return status;
    *ret_call = call;
    return call_finish(c, call, wait ? client_deadline(c) : 0, ret_reply, error);
}
