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
    enum kvd_status status = client_guard(c, error);
    if (status == KVD_OK) status = check_items(items, n, error);
    if (status == KVD_OK && !ret_ticket)
        status = client_fail(error, KVD_INVALID_ARGUMENT, "kvd_round_start needs a place for the ticket");
    if (status != KVD_OK) return status;
    fill_request(&request, items, n);
    return ticket_start(c, &request, ret_ticket, error);
}

static enum kvd_status end_round(struct kvd_client *c, kvd_ticket ticket, bool wait,
                                 struct kvd_round_result *ret_results, uint32_t max, uint32_t *ret_n,
                                 struct kvd_error *error) {
    struct msg_reply reply;
    struct pending_call *call;
    enum kvd_status status = ticket_finish(c, ticket, TICKET_OF(FRAME_ROUND), max, wait, &call, &reply, error);
    if (status != KVD_OK) return status;
    uint32_t n = call->n_touched;
    status = collect_results(c, call, &reply, n, ret_results, error);
    if (status == KVD_OK) *ret_n = n;
    return status;
}

enum kvd_status kvd_round_poll(kvd_client *c, kvd_ticket ticket, struct kvd_round_result *ret_results, uint32_t max,
                               uint32_t *ret_n, struct kvd_error *error) {
    return end_round(c, ticket, false, ret_results, max, ret_n, error);
}

enum kvd_status kvd_round_wait(kvd_client *c, kvd_ticket ticket, struct kvd_round_result *ret_results, uint32_t max,
                               uint32_t *ret_n, struct kvd_error *error) {
    return end_round(c, ticket, true, ret_results, max, ret_n, error);
}
