/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of pending calls: their objects, their frames, and what an answer or a lost connection does to them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

bool call_mutates(uint16_t type) {
    const struct frame_info *info = frame_info(type);
    return info && info->numbering >= FRAME_CHANGE;
}

/* ---- objects ---------------------------------------------------------------------------------------- */

void call_destroy(struct pending_call *call) {
    if (!call) return;
    codec_arena_free(call->arena);
    free(call->frame);
    free(call->body);
    free(call);
}

static struct pending_call *call_make(void) {
    struct pending_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->arena = codec_arena_new();
    call->frame = malloc(FRAME_LIMIT);
    call->body = malloc(FRAME_LIMIT);
    if (call->arena && call->frame && call->body && client_init_cond(&call->changed)) return call;
    call_destroy(call);
    return NULL;
}

struct pending_call *call_new(struct kvd_client *c) {
    struct pending_call *call = c->free_calls;
    if (call) c->free_calls = call->next;
    else call = call_make();
    if (!call) return NULL;
    call->next = NULL;
    call->id = c->next_id++;
    call->state = CALL_SENT;
    call->keeper = CALL_WAITED;
    call->resumed = call->waiting = call->pinned = call->stale = call->adopted = false;
    call->n_touched = 0;
    call->moved.bits = 0;
    call->frame_bytes = call->body_bytes = 0;
    memset(&call->header, 0, sizeof call->header);
    return call;
}

void call_insert(struct kvd_client *c, struct pending_call *call) {
    struct pending_call **bucket = &c->pending[call->id % CLIENT_BUCKETS];
    call->next = *bucket;
    *bucket = call;
    c->n_pending++;
}

struct pending_call *call_lookup(struct kvd_client *c, uint64_t id) {
    struct pending_call *call = c->pending[id % CLIENT_BUCKETS];
    while (call && call->id != id) call = call->next;
    return call;
}

void call_free(struct kvd_client *c, struct pending_call *call) {
    struct pending_call **at = &c->pending[call->id % CLIENT_BUCKETS];
    while (*at && *at != call) at = &(*at)->next;
    if (*at) {
        *at = call->next;
        c->n_pending--;
        if (call->keeper == CALL_LEFT) c->n_left--;
        if (call->keeper == CALL_TICKET && call->state == CALL_ANSWERED) c->n_tickets_answered--;
        client_update_fd(c);
        pthread_cond_broadcast(&c->turn);
    }
    call->next = c->free_calls;
    c->free_calls = call;
}

void call_done(struct kvd_client *c, struct pending_call *call) {
    pthread_mutex_lock(&c->lock);
    call_free(c, call);
    pthread_mutex_unlock(&c->lock);
}

void call_leave(struct kvd_client *c, struct pending_call *call) {
    if (!call_mutates(call->type) && !call->pinned) {
        call_free(c, call);
        return;
    }
    if (call->keeper == CALL_TICKET && call->state == CALL_ANSWERED) c->n_tickets_answered--;
    call->keeper = CALL_LEFT;
    c->n_left++;
    client_watch(c, false); /* its answer may still come */
}

/* 0: its caller has gone, and nobody knows how many. */
static void give_room(struct kvd_client *c, size_t bytes) {
    c->room_frames -= c->room_frames > 0;
    c->room_bytes -= bytes < c->room_bytes ? bytes : c->room_bytes;
    if (!c->room_frames) c->room_bytes = 0;
}

void call_give_room(struct kvd_client *c, const struct pending_call *call) { give_room(c, call->frame_bytes); }

struct pending_call *call_arrived(struct kvd_client *c, const struct frame_head *head, const uint8_t *body) {
    struct pending_call *call = call_lookup(c, head->id);
    if (!call || call->state == CALL_ANSWERED) {
        c->stray_frames++;
        if (!call) give_room(c, 0);
        return NULL;
    }
    call->body_type = head->type;
    call->body_bytes = head->length + 4 - FRAME_HEADER;
    memcpy(call->body, body, call->body_bytes);
    call->state = CALL_ANSWERED;
    give_room(c, call->frame_bytes);
    if (call->keeper == CALL_TICKET) {
        c->n_tickets_answered++;
        client_update_fd(c);
    }
    return call;
}

/* ---- frames --------------------------------------------------------------------------------------------- */

enum kvd_status call_encode(struct pending_call *call, struct msg_request *request, struct kvd_error *error) {
    char why[KVD_MESSAGE_BYTES] = "";
    size_t bytes;
    request->header = call->header;
    call->type = request->type;
    codec_arena_reset(call->arena);
    int rc = codec_encode_request(request, call->arena, call->frame + FRAME_HEADER, FRAME_LIMIT - FRAME_HEADER, &bytes,
                                  why, sizeof why);
    if (rc != 0) {
        return client_fail(error, rc < 0 ? KVD_INTERNAL : KVD_INVALID_ARGUMENT, "%s cannot be put into a message: %s",
                           frame_type_name(request->type), why);
    }
    frame_head_write(call->frame, request->type, 0, call->id, bytes);
    call->frame_bytes = FRAME_HEADER + bytes;
    return KVD_OK;
}

int call_transmit(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns, bool room, size_t *ret_sent) {
    return transport_send(c->link->transport, call->frame, call->frame_bytes, room ? TRANSPORT_NEVER : deadline_ns,
                          ret_sent);
}

/* ---- the end of a connection ------------------------------------------------------------------------------- */

void client_lost(struct kvd_client *c, const char *why) {
    if (!c->link->lost) {
        c->link->lost = true;
        snprintf(c->link->why, sizeof c->link->why, "%s", why);
    }
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++) {
        for (struct pending_call *call = c->pending[i]; call; call = call->next) {
            if (call->state != CALL_SENT) continue;
            call->state = CALL_BROKEN;
            pthread_cond_signal(&call->changed);
        }
    }
    if (c->reader == c->link->number || c->sending) transport_interrupt(c->link->transport);
    pthread_cond_broadcast(&c->turn);
    pthread_cond_broadcast(&c->event_came);
    client_update_fd(c);
}
