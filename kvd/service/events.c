/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: queued under the core mutex in a bounded ring a link, posted without it. A reader that does not read loses
 * the oldest ones and is told how many.
 */
#include <string.h>

#include "core.h"
#include "events.h"
#include "log.h"
#include "request.h"
#include "session.h"
#include "tenant.h"

static void put_event(struct service *s, struct link *link, const struct kvd_event *event) {
    struct event_ring *ring = link->events;
    if (ring->n == ring->limit) {
        ring->first = (ring->first + 1) % ring->limit;
        ring->n--;
        ring->dropped++;
        s->events_dropped++;
    }
    ring->items[(ring->first + ring->n++) % ring->limit] = *event;
    if (link->dirty) return;
    link->dirty = true;
    link->next_dirty = s->dirty;
    s->dirty = link_ref(link);
}

void events_add(struct service *s, const struct kvd_event *event,
                bool (*concerned)(struct service *, struct session *, const void *), const void *with) {
    struct kvd_event e = *event;
    e.epoch = s->epoch;
    history_note_event(s, &e);
    for (struct link *link = s->subscribers; link; link = link->next_subscriber) {
        struct session *session = session_find(s, link->session);
        if (!session || !(link->event_mask & KVD_EVENT_MASK(event->kind))) continue;
        if (!concerned || concerned(s, session, with)) put_event(s, link, &e);
    }
}

/* After every request that changes something: it looks at two counters, and never walks. */
void events_pressure(struct service *s) {
    uint64_t revision = store_revision(s->store);
    if (!s->subscribers || revision == s->pressure_revision) return;
    s->pressure_revision = revision;
    for (uint32_t p = 0; p < s->pools.n_pools; p++) {
        uint32_t available = store_available(s->store, p);
        uint64_t percent = (uint64_t)available * 100, capacity = s->pools.pages[p];
        bool now =
            s->pressed[p] ? percent <= capacity * s->config.high_water : percent < capacity * s->config.low_water;
        if (now == s->pressed[p]) continue;
        s->pressed[p] = now;
        events_add(s, &(struct kvd_event){ .kind = KVD_EVENT_PRESSURE, .pool = p, .available = available }, NULL, NULL);
    }
}

/* The table of tenants knows it still; if another one has its slot by now, operators alone are told. */
static bool may_see_lost(struct service *s, struct session *with, const void *lost) {
    return tenant_sees(s, with, tenant_of(s, *(const store_cont *)lost));
}

void events_lost(struct service *s) {
    struct store_loss loss;
    while (store_take_loss(s->store, &loss)) {
        struct kvd_event event = { .kind = loss.frontier ? KVD_EVENT_SHORTENED : KVD_EVENT_LOST,
                                   .continuation.bits = loss.cont.bits,
                                   .frontier = loss.frontier };
        events_add(s, &event, may_see_lost, &loss.cont);
    }
}

/* Takes the next event of a link; false, and the link is clean, when there is none. While it is dirty, one thread
 * posts. */
static bool next_event(struct service *s, struct link *link, struct kvd_event *ret_event) {
    bool some = false;
    pthread_mutex_lock(&s->lock);
    struct event_ring *ring = link->events;
    if (ring && ring->n) {
        *ret_event = ring->items[ring->first];
        ret_event->dropped = ring->dropped;
        ring->dropped = 0;
        ring->first = (ring->first + 1) % ring->limit;
        ring->n--;
        some = true;
    }
    if (!some) link->dirty = false;
    pthread_mutex_unlock(&s->lock);
    return some;
}

/* Refused by the link: it comes first again, unless the ring has filled up meanwhile. True: try again now. */
static bool put_event_back(struct service *s, struct link *link, const struct kvd_event *event) {
    pthread_mutex_lock(&s->lock);
    struct event_ring *ring = link->events;
    bool again = link->drained;
    if (ring && ring->n < ring->limit) {
        ring->first = (ring->first + ring->limit - 1) % ring->limit;
        ring->items[ring->first] = *event;
        ring->n++;
        ring->dropped += event->dropped;
    } else if (ring) {
        ring->dropped += event->dropped + 1;
        s->events_dropped++;
    }
    link->drained = false;
    if (!again) link->dirty = false;
    pthread_mutex_unlock(&s->lock);
    return again;
}

static void post_events(struct service *s, struct link *link, struct scratch *scratch) {
    struct kvd_event event;
    char why[128];
    size_t bytes;
    while (next_event(s, link, &event)) {
        if (codec_encode_event(&event, scratch->frame + FRAME_HEADER, FRAME_LIMIT - FRAME_HEADER, &bytes, why,
                               sizeof why)) {
            LOG(LOG_ERROR, "an event cannot be encoded: %s", why);
            continue;
        }
        frame_head_write(scratch->frame, FRAME_EVENT, FRAME_F_EVENT, 0, bytes);
        if (link->ops->post(link, scratch->frame, FRAME_HEADER + bytes, true)) continue;
        if (!put_event_back(s, link, &event)) return;
    }
}

void service_link_drained(struct service *s, struct link *link) {
    bool flush = false;
    pthread_mutex_lock(&s->lock);
    if (link->dirty) {
        link->drained = true; /* somebody is posting, and may have been refused just now */
    } else if (link->events && link->events->n) {
        link->dirty = flush = true;
        link->next_dirty = s->dirty;
        s->dirty = link_ref(link);
    }
    pthread_mutex_unlock(&s->lock);
    if (flush) events_flush(s, NULL);
}

void events_flush(struct service *s, struct scratch *given) {
    struct scratch *scratch = given ? given : scratch_take(s);
    while (scratch) {
        pthread_mutex_lock(&s->lock);
        struct link *link = s->dirty;
        if (link) s->dirty = link->next_dirty;
        pthread_mutex_unlock(&s->lock);
        if (!link) break;
        post_events(s, link, scratch);
        link_unref(link);
    }
    if (scratch && !given) scratch_give(s, scratch);
}
