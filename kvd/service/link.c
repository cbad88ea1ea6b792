/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "events.h"
#include "session.h"

void service_link_init(struct link *link, const struct link_ops *ops, const struct peer *peer) {
    memset(link, 0, sizeof *link);
    link->ops = ops;
    link->peer = *peer;
    atomic_init(&link->refs, 1);
    atomic_init(&link->greeted, false);
}

void service_link_fini(struct link *link) {
    free(link->events);
    if (link->peer.pidfd >= 0) close(link->peer.pidfd);
}

void service_link_closed(struct service *s, struct link *link) {
    pthread_mutex_lock(&s->lock);
    for (struct link **at = &s->subscribers; link->subscribed && *at; at = &(*at)->next_subscriber)
        if (*at == link) {
            *at = link->next_subscriber;
            link->subscribed = false;
            break;
        }
    struct session *session = session_find(s, link->session);
    if (session && session->link == link) session_disconnected(s, session);
    pthread_mutex_unlock(&s->lock);
    events_flush(s, NULL);
}
