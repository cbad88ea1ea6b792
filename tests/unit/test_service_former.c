/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that had the device memory of an earlier instance, and the records by which a next one finds them. ROW-5,
 * SRV-5, CONT-3.
 */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core.h"
#include "former_processes.h"
#include "segment.h"
#include "service_fixture.h"
#include "session.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }

static const struct fx_setup arena = { .more = "[host]\narena = 8MiB\nscrub = 0\n" };

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static uint32_t recorded(struct segment_driver *ret_first) {
    struct segment_driver all[SEGMENT_DRIVERS];
    uint32_t n = segment_drivers(fx.service->segment, all, SEGMENT_DRIVERS);
    if (ret_first) *ret_first = all[0];
    return n;
}

/* ROW-5: a number alone is no process: one that began at another time is another one, and is not waited for. */
static void row_5_a_number_used_again_is_another_process(void) {
    char err[256] = "";
    struct segment_driver left;
    struct kvd_activated a;
    KVT_NEED(fx_start(&fx, &arena));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *same = fx_peer_new(&fx), *other = fx_peer_new(&fx);
    uint64_t began = process_start_time((uint64_t)same->pid), later = process_start_time((uint64_t)other->pid);
    KVT_NEED(began && later && began != PROCESS_HIDDEN);
    KVT_OK(segment_driver_add(fx.service->segment, &(struct segment_driver){ (uint64_t)same->pid, began }));
    KVT_OK(segment_driver_add(fx.service->segment, &(struct segment_driver){ (uint64_t)other->pid, later - 1 }));
    fx.service->pools.adopted = true; /* as if the pools were an earlier instance's */
    KVT_OK(former_open(fx.service, err, sizeof err));
    KVT_EQ(former_waited(fx.service), 1);
    KVT_EQ(recorded(&left), 1);
    KVT_EQ(left.pid, (uint64_t)same->pid);
    KVT_EQ(fx_activate(s, s->session, 64, 1, &a), KVD_UNAVAILABLE);
    fx_kill(same);
    fx_settle(&fx, NULL);
    KVT_EQ(former_waited(fx.service), 0);
    KVT_EQ(recorded(NULL), 0);
    KVT_EQ(fx_activate(s, s->session, 64, 1, &a), KVD_OK);
    fx_peer_free(other);
    fx_peer_free(same);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* SRV-5: an orderly end takes the record of the process along, once its last session has ended: the next kvd does not
 * wait for what holds nothing. */
static void srv_5_goodbye_leaves_no_record(void) {
    KVT_NEED(fx_start(&fx, &arena));
    struct service *service = fx.service;
    struct fx_peer *p[2] = { fx_session(&fx, KVD_ROLE_WORKER, 0), NULL };
    p[1] = fx_peer_again(p[0]);
    KVT_EQ(fx_hello(p[1], KVD_ROLE_WORKER, 0), KVD_OK);
    service->pools.id = 77; /* memory that outlives this kvd */
    for (int i = 0; i < 2; i++)
        KVT_TRUE(
            process_record(service, session_find(service, p[i]->session), process_start_time((uint64_t)p[i]->pid)));
    KVT_EQ(recorded(NULL), 1);
    KVT_EQ(ask(p[0], REQUEST(FRAME_GOODBYE)), KVD_OK);
    KVT_EQ(recorded(NULL), 1); /* the process has another session */
    KVT_EQ(ask(p[1], REQUEST(FRAME_GOODBYE)), KVD_OK);
    KVT_EQ(recorded(NULL), 0);
    service->pools.id = 0;
    fx_peer_free(p[1]);
    fx_peer_free(p[0]);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(row_5_a_number_used_again_is_another_process),
                                             KVT_CASE(srv_5_goodbye_leaves_no_record),
                                             { 0 } };
    return kvt_main("service former", cases, argc, argv);
}
