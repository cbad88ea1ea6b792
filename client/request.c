/* SPDX-License-Identifier: Apache-2.0
 *
 * The plain requests: one message, one answer.
 */
#include <string.h>
#include <unistd.h>

#include "client.h"

/* Runs a request and copies the answer: the member of the reply's union that has so many bytes, or what it points to.
 * ret NULL: the answer's body is not needed. */
static enum kvd_status run_into(struct kvd_client *c, struct msg_request *request, bool pointed, void *ret,
                                size_t bytes, struct kvd_error *error) {
    struct msg_reply reply;
    struct pending_call *call;
    enum kvd_status status = call_run(c, request, &call, &reply, error);
    if (status != KVD_OK) return status;
    const void *from = &reply.u;
    if (pointed) memcpy(&from, &reply.u, sizeof from);
    if (ret) memcpy(ret, from, bytes);
    call_done(c, call);
    return KVD_OK;
}

/* The size says that ret has the type of what is copied: the assignment in it is compiled, never executed. */
#define RUN(c, request, member, ret, error)                                                                            \
    run_into(c, request, false, ret, sizeof(*(ret) = ((struct msg_reply *)0)->u.member), error)
#define RUN_POINTED(c, request, member, ret, error)                                                                    \
    run_into(c, request, true, ret, sizeof(*(ret) = *((struct msg_reply *)0)->u.member), error)

static enum kvd_status run_simple(struct kvd_client *c, struct msg_request *request, struct kvd_error *error) {
    return run_into(c, request, false, NULL, 0, error);
}

static enum kvd_status refuse_null(struct kvd_error *error, const char *function) {
    return client_fail(error, KVD_INVALID_ARGUMENT, "%s was given a NULL argument", function);
}

/* ---- scheduler -------------------------------------------------------------------------------------- */

static enum kvd_status check_victims(const struct kvd_victim *victims, uint32_t n, uint32_t max,
                                     struct kvd_error *error) {
    if (n <= max && (victims || !n)) return KVD_OK;
    return client_fail(error, KVD_INVALID_ARGUMENT, "%u victims at %p; there may be at most %u, and their address", n,
                       (const void *)victims, max);
}

static enum kvd_status check_want(const struct kvd_activation *want, struct kvd_error *error) {
    return check_victims(want->victims, want->n_victims, KVD_MAX_VICTIMS, error);
}

enum kvd_status kvd_plan_activation(kvd_client *c, const struct kvd_activation *want, struct kvd_plan *ret_plan,
                                    struct kvd_error *error) {
    if (!want || !ret_plan) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_PLAN, .u.activation = *want };
    request.u.activation.cold = (struct kvd_cold_source){ 0 }; /* no plan looks there */
    enum kvd_status status = check_want(want, error);
    return status == KVD_OK ? RUN(c, &request, plan, ret_plan, error) : status;
}

static struct msg_request request_of(const struct kvd_activation *want) {
    struct msg_request request = { .type = FRAME_ACTIVATE, .u.activation = *want };
    if (want->n_victims > KVD_VICTIMS_BESIDE_COLD) request.u.activation.cold = (struct kvd_cold_source){ 0 };
    return request;
}

enum kvd_status kvd_activate(kvd_client *c, const struct kvd_activation *want, struct kvd_activated *ret_activated,
                             struct kvd_error *error) {
    if (!want || !ret_activated) return refuse_null(error, __func__);
    struct msg_request request = request_of(want);
    enum kvd_status status = check_want(want, error);
    return status == KVD_OK ? RUN(c, &request, activated, ret_activated, error) : status;
}

enum kvd_status kvd_cancel(kvd_client *c, const struct kvd_activation *what, struct kvd_error *error) {
    if (!what) return refuse_null(error, __func__);
    struct msg_request activate = request_of(what);
    enum kvd_status status = check_want(what, error);
    if (status == KVD_OK) status = client_guard(c, error);
    if (status != KVD_OK) return status;
    uint64_t number = call_open_number(c, &activate);
    if (!number) return client_fail(error, KVD_NOT_FOUND, "this client has no such activation that is not answered");
    struct msg_request request = { .type = FRAME_CANCEL, .u.cancel.activate = number };
    status = run_simple(c, &request, error);
    if (status == KVD_OK) call_give_up(c, number);
    return status;
}

enum kvd_status kvd_name_pages(kvd_client *c, kvd_sequence sequence, const kvd_chain *chain, uint32_t first_page,
                               uint32_t n_pages, struct kvd_error *error) {
    if (!chain) return refuse_null(error, __func__);
    size_t have = kvd_chain_pages(chain);
    if (first_page > have || n_pages > have - first_page) {
        return client_fail(error, KVD_OUT_OF_RANGE,
                           "asked to name pages %u to %llu; the chain has %zu full pages: push the tokens first",
                           first_page, (unsigned long long)first_page + n_pages, have);
    }
    for (uint32_t done = 0; done < n_pages;) {
        uint32_t n = n_pages - done < KVD_MAX_DIGESTS ? n_pages - done : KVD_MAX_DIGESTS;
        struct msg_request request = { .type = FRAME_NAME_PAGES,
                                       .u.names = { .sequence = sequence,
                                                    .first = first_page + done,
                                                    .n = n,
                                                    .digests = kvd_chain_digests(chain) + first_page + done } };
        enum kvd_status status = run_simple(c, &request, error);
        if (status != KVD_OK) return status;
        done += n;
    }
    return client_guard(c, error);
}

enum kvd_status kvd_lend_pages(kvd_client *c, const struct kvd_lend *how, struct kvd_lent *ret_lent,
                               struct kvd_error *error) {
    if (!how || !ret_lent) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_LEND_PAGES, .u.lend = *how };
    return RUN(c, &request, lent, ret_lent, error);
}

static enum kvd_status check_lent(const struct kvd_lent_page *pages, uint32_t n, struct kvd_error *error) {
    if (n <= KVD_MAX_LENT && (pages || !n)) return KVD_OK;
    return client_fail(error, KVD_INVALID_ARGUMENT, "%u pages at %p; a message has at most %d, and their address", n,
                       (const void *)pages, KVD_MAX_LENT);
}

enum kvd_status kvd_name_lent(kvd_client *c, const struct kvd_lent_names *names, struct kvd_lent_named *ret_named,
                              struct kvd_error *error) {
    if (!names || !ret_named) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_NAME_LENT, .u.lent_names = *names };
    enum kvd_status status = check_lent(names->pages, names->n, error);
    return status == KVD_OK ? RUN(c, &request, lent_named, ret_named, error) : status;
}

enum kvd_status kvd_return_lent(kvd_client *c, const struct kvd_lent_return *what, struct kvd_error *error) {
    if (!what) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_RETURN_LENT, .u.lent_return = *what };
    enum kvd_status status = check_lent(what->pages, what->n, error);
    return status == KVD_OK ? run_simple(c, &request, error) : status;
}

enum kvd_status kvd_read_chain(kvd_client *c, kvd_continuation continuation, uint32_t first,
                               struct kvd_lent_page *ret_pages, uint32_t *ret_n, struct kvd_error *error) {
    struct msg_reply reply;
    struct pending_call *call;
    if (!ret_pages || !ret_n) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_READ_CHAIN, .u.read_chain = { continuation, first } };
    enum kvd_status status = call_run(c, &request, &call, &reply, error);
    if (status != KVD_OK) return status;
    *ret_n = reply.u.chain.n;
    if (reply.u.chain.n) memcpy(ret_pages, reply.u.chain.pages, reply.u.chain.n * sizeof *ret_pages);
    call_done(c, call);
    return KVD_OK;
}

enum kvd_status kvd_checkpoint(kvd_client *c, const struct kvd_checkpoint *what,
                               struct kvd_checkpointed *ret_checkpointed, struct kvd_error *error) {
    if (!what || !ret_checkpointed) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_CHECKPOINT, .u.checkpoint = *what };
    enum kvd_status status = check_victims(what->victims, what->n_victims, KVD_MAX_VICTIMS, error);
    return status == KVD_OK ? RUN(c, &request, checkpointed, ret_checkpointed, error) : status;
}

enum kvd_status kvd_finish(kvd_client *c, const struct kvd_finish *how, struct kvd_finished *ret_finished,
                           struct kvd_error *error) {
    if (!how || !ret_finished) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_FINISH, .u.finish = *how };
    return RUN(c, &request, finished, ret_finished, error);
}

enum kvd_status kvd_release(kvd_client *c, kvd_continuation continuation, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_RELEASE, .u.continuation = { .continuation = continuation } };
    return run_simple(c, &request, error);
}

enum kvd_status kvd_shorten(kvd_client *c, kvd_continuation continuation, uint32_t frontier, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_SHORTEN, .u.shorten = { continuation, frontier } };
    return run_simple(c, &request, error);
}

enum kvd_status kvd_release_domain(kvd_client *c, const struct kvd_root *domain, uint32_t *cursor,
                                   struct kvd_domain_released *ret_released, struct kvd_error *error) {
    if (!domain || !cursor || !ret_released) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_RELEASE_DOMAIN, .u.release_domain = { *domain, *cursor } };
    enum kvd_status status = RUN(c, &request, domain_released, ret_released, error);
    if (status == KVD_OK) *cursor = ret_released->next_cursor;
    return status;
}

enum kvd_status kvd_set_retention(kvd_client *c, kvd_continuation continuation, uint32_t retention,
                                  struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_SET_RETENTION,
                                   .u.continuation = { .continuation = continuation, .retention = retention } };
    return run_simple(c, &request, error);
}

enum kvd_status kvd_demote(kvd_client *c, kvd_continuation continuation, bool keep_device, struct kvd_moved *ret_moved,
                           struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_DEMOTE, .u.demote = { continuation, keep_device } };
    return RUN(c, &request, moved, ret_moved, error);
}

enum kvd_status kvd_prefetch(kvd_client *c, kvd_continuation continuation, struct kvd_moved *ret_moved,
                             struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_PREFETCH, .u.prefetch = continuation };
    return RUN(c, &request, moved, ret_moved, error);
}

enum kvd_status kvd_drop_replica(kvd_client *c, kvd_continuation continuation, enum kvd_tier tier,
                                 struct kvd_moved *ret_moved, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_DROP, .u.drop = { continuation, (uint32_t)tier } };
    return RUN(c, &request, moved, ret_moved, error);
}

enum kvd_status kvd_set_growth_victims(kvd_client *c, const struct kvd_growth_victims *list, struct kvd_error *error) {
    if (!list) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_SET_GROWTH_VICTIMS, .u.growth = *list };
    enum kvd_status status = check_victims(list->victims, list->n_victims, KVD_MAX_GROWTH, error);
    return status == KVD_OK ? run_simple(c, &request, error) : status;
}

enum kvd_status kvd_open_group(kvd_client *c, const struct kvd_group *group, kvd_group_id *ret_group,
                               struct kvd_error *error) {
    if (!group || !ret_group) return refuse_null(error, __func__);
    if (group->n == 0 || group->n > KVD_MAX_RANKS)
        return client_fail(error, KVD_INVALID_ARGUMENT, "a group of %u members; 1 to %d, one a rank", group->n,
                           KVD_MAX_RANKS);
    struct msg_request request = { .type = FRAME_OPEN_GROUP, .u.group = *group };
    return RUN(c, &request, group, ret_group, error);
}

enum kvd_status kvd_close_group(kvd_client *c, kvd_group_id group, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_CLOSE_GROUP, .u.group_id = group };
    return run_simple(c, &request, error);
}

enum kvd_status kvd_fence(kvd_client *c, kvd_session_id session, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_FENCE, .u.session = session };
    return run_simple(c, &request, error);
}

enum kvd_status kvd_yield(kvd_client *c, uint32_t *ret_yielded, struct kvd_error *error) {
    if (!ret_yielded) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_YIELD };
    return RUN(c, &request, yielded, ret_yielded, error);
}

/* ---- operators ------------------------------------------------------------------------------------------- */

enum kvd_status kvd_describe(kvd_client *c, struct kvd_store_info *ret_info, struct kvd_error *error) {
    if (!ret_info) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_DESCRIBE_STORE };
    return RUN_POINTED(c, &request, store, ret_info, error);
}

enum kvd_status kvd_describe_planes(kvd_client *c, const struct kvd_planes_request *which,
                                    struct kvd_plane_info *ret_planes, uint32_t max, uint32_t *ret_n,
                                    uint32_t *ret_total, struct kvd_error *error) {
    if (!which || !ret_planes || !ret_n || !ret_total) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_DESCRIBE_PLANES, .u.planes = *which };
    struct msg_reply reply;
    struct pending_call *call;
    enum kvd_status status = call_run(c, &request, &call, &reply, error);
    if (status != KVD_OK) return status;
    uint32_t n = reply.u.planes.n < max ? reply.u.planes.n : max;
    if (n) memcpy(ret_planes, reply.u.planes.items, n * sizeof *ret_planes);
    *ret_n = n;
    *ret_total = reply.u.planes.total;
    call_done(c, call);
    return KVD_OK;
}

enum kvd_status kvd_stats(kvd_client *c, struct kvd_stats *ret_stats, struct kvd_error *error) {
    if (!ret_stats) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_STATS };
    return RUN(c, &request, stats, ret_stats, error);
}

enum kvd_status kvd_describe_reuse(kvd_client *c, struct kvd_reuse *ret_reuse, struct kvd_error *error) {
    if (!ret_reuse) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_DESCRIBE_REUSE };
    return RUN_POINTED(c, &request, reuse, ret_reuse, error);
}

enum kvd_status kvd_audit(kvd_client *c, struct kvd_audit *ret_audit, struct kvd_error *error) {
    if (!ret_audit) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_AUDIT };
    return RUN_POINTED(c, &request, audit, ret_audit, error);
}

enum kvd_status kvd_drain(kvd_client *c, bool on, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_DRAIN, .u.drain = on };
    return run_simple(c, &request, error);
}

enum kvd_status kvd_describe_cold_tier(kvd_client *c, struct kvd_cold_tier *ret_cold, struct kvd_error *error) {
    if (!ret_cold) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_DESCRIBE_COLD_TIER };
    return RUN(c, &request, cold_tier, ret_cold, error);
}

enum kvd_status kvd_check_cold_tier(kvd_client *c, uint32_t objects, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_CHECK_COLD_TIER, .u.check_cold = objects };
    return run_simple(c, &request, error);
}

/* ---- lists -------------------------------------------------------------------------------------------------- */

static enum kvd_status run_list(struct kvd_client *c, uint16_t type, const struct kvd_root *domain,
                                const uint32_t *cursor, const void *infos, uint32_t max, const uint32_t *ret_n,
                                struct pending_call **ret_call, struct msg_reply *ret_reply, struct kvd_error *error) {
    if (!cursor || !infos || !ret_n || !max) {
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "%s needs a cursor, a place for at least one object and one for their number",
                           frame_type_name(type));
    }
    struct msg_request request = { .type = type,
                                   .u.list = { .cursor = *cursor, .max = max < KVD_MAX_LIST ? max : KVD_MAX_LIST } };
    if (domain) request.u.list.root = *domain;
    return call_run(c, &request, ret_call, ret_reply, error);
}

/* The body of a list: asks for a part of it, of one domain or of all (NULL), and copies that. */
#define RUN_LIST(frame, domain, member)                                                                                \
    struct msg_reply reply;                                                                                            \
    struct pending_call *call;                                                                                         \
    enum kvd_status status = run_list(c, frame, domain, cursor, ret_infos, max, ret_n, &call, &reply, error);          \
    if (status != KVD_OK) return status;                                                                               \
    uint32_t n = reply.u.member.n < max ? reply.u.member.n : max;                                                      \
    if (n) memcpy(ret_infos, reply.u.member.items, n * sizeof *ret_infos);                                             \
    *ret_n = n;                                                                                                        \
    *cursor = reply.u.member.next_cursor;                                                                              \
    call_done(c, call);                                                                                                \
    return KVD_OK

enum kvd_status kvd_list_continuations(kvd_client *c, const struct kvd_root *domain, uint32_t *cursor,
                                       struct kvd_continuation_info *ret_infos, uint32_t max, uint32_t *ret_n,
                                       struct kvd_error *error) {
    RUN_LIST(FRAME_LIST_CONTINUATIONS, domain, continuations);
}

enum kvd_status kvd_list_changes(kvd_client *c, uint64_t *cursor, struct kvd_continuation_info *ret_infos, uint32_t max,
                                 uint32_t *ret_n, bool *ret_more, struct kvd_error *error) {
    struct msg_reply reply;
    struct pending_call *call;
    if (!cursor || !ret_infos || !max || !ret_n || !ret_more) return refuse_null(error, __func__);
    struct msg_request request = { .type = FRAME_LIST_CHANGES,
                                   .u.changes = { *cursor, max < KVD_MAX_LIST ? max : KVD_MAX_LIST } };
    enum kvd_status status = call_run(c, &request, &call, &reply, error);
    if (status != KVD_OK) return status;
    if (reply.u.changes.n > max)
        status = client_fail(error, KVD_INTERNAL, "kvd answered %u changes, of %u", reply.u.changes.n, max);
    else {
        if (reply.u.changes.n) memcpy(ret_infos, reply.u.changes.items, reply.u.changes.n * sizeof *ret_infos);
        *ret_n = reply.u.changes.n;
        *ret_more = reply.u.changes.more;
        *cursor = reply.u.changes.cursor;
    }
    call_done(c, call);
    return status;
}

enum kvd_status kvd_list_sequences(kvd_client *c, const struct kvd_root *domain, uint32_t *cursor,
                                   struct kvd_sequence_info *ret_infos, uint32_t max, uint32_t *ret_n,
                                   struct kvd_error *error) {
    RUN_LIST(FRAME_LIST_SEQUENCES, domain, sequences);
}

enum kvd_status kvd_list_sessions(kvd_client *c, uint32_t *cursor, struct kvd_session_info *ret_infos, uint32_t max,
                                  uint32_t *ret_n, struct kvd_error *error) {
    RUN_LIST(FRAME_LIST_SESSIONS, NULL, sessions);
}

enum kvd_status kvd_list_settings(kvd_client *c, uint32_t *cursor, struct kvd_setting *ret_infos, uint32_t max,
                                  uint32_t *ret_n, struct kvd_error *error) {
    RUN_LIST(FRAME_LIST_SETTINGS, NULL, settings);
}
#undef RUN_LIST

/* ---- events --------------------------------------------------------------------------------------------------- */

enum kvd_status kvd_subscribe(kvd_client *c, uint32_t mask, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_SUBSCRIBE, .u.event_mask = mask };
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    pthread_mutex_lock(&c->lock);
    client_watch_events(c);
    pthread_mutex_unlock(&c->lock);
    status = run_simple(c, &request, error);
    if (status != KVD_OK) return status;
    pthread_mutex_lock(&c->lock);
    c->event_mask = mask;
    pthread_mutex_unlock(&c->lock);
    return KVD_OK;
}

static enum kvd_status take_event(struct kvd_client *c, uint64_t deadline_ns, struct kvd_event *ret_event,
                                  struct kvd_error *error) {
    client_watch_events(c);
    while (c->event_count == 0) {
        if (c->dead) return client_fail(error, KVD_ABORTED, "%s", c->why_dead);
        if (c->link->lost) {
            return client_fail(error, KVD_UNAVAILABLE,
                               "the connection to kvd at %s is lost (%s): call kvd_client_reconnect", c->path,
                               c->link->why);
        }
        if (!client_wait(c, &c->event_came, deadline_ns) && c->event_count == 0)
            return client_fail(error, KVD_DEADLINE_EXCEEDED, "no event came");
    }
    *ret_event = c->events[c->event_first];
    c->event_first = (c->event_first + 1) % CLIENT_EVENTS;
    c->event_count--;
    client_update_fd(c);
    return KVD_OK;
}

enum kvd_status kvd_next_event(kvd_client *c, uint32_t timeout_ms, struct kvd_event *ret_event,
                               struct kvd_error *error) {
    if (!ret_event) return refuse_null(error, __func__);
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    uint64_t deadline_ns = clock_ns() + (uint64_t)timeout_ms * 1000000u;
    pthread_mutex_lock(&c->lock);
    status = take_event(c, deadline_ns, ret_event, error);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- the end ------------------------------------------------------------------------------------------------ */

void kvd_disconnect(kvd_client *c) {
    if (!c) return;
    if (c->pid == getpid() && !c->dead) {
        struct msg_request request = { .type = FRAME_GOODBYE };
        if (c->timeout_ms > CLIENT_GOODBYE_MS) c->timeout_ms = CLIENT_GOODBYE_MS;
        (void)run_simple(c, &request, NULL);
    }
    client_free(c);
}
