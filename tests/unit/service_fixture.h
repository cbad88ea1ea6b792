/* SPDX-License-Identifier: Apache-2.0
 *
 * A service without sockets: peers are child processes that do nothing (so that their death can be real), links are
 * queues of bytes.
 */
#ifndef SERVICE_FIXTURE_H
#define SERVICE_FIXTURE_H

#include <sys/types.h>

#include "codec.h"
#include "kvt.h"
#include "round_ask.h"
#include "service.h"

/* A store of 2 BF16 layers, 2 heads, D 64, S 4096, C 8, 16384 tokens on one host device; more lines may be added, and a
 * key given again in `more` is NOT replaced: use the parameters. */
struct fx_setup {
    const char *more;
    uint32_t ranks, head_dim, layers, kv_heads, context, capacity_tokens, concurrency, memory_mib;
    const char *backend, *profile;
    bool growth;
    uint32_t map_ahead;
    bool beside; /* another kvd of this process, which has an arena, too */
};
struct fx {
    struct service *service;
    uint64_t epoch;
    bool beside;
};
bool fx_start(struct fx *fx, const struct fx_setup *setup);
/* A store for benches: one tiny layer, as many sequences of as many tokens, all of them at once. */
bool fx_start_large(struct fx *fx, uint32_t context, uint32_t concurrency);
void fx_stop(struct fx *fx);

struct fx_peer {
    struct link link; /* first */
    struct fx *fx;
    pid_t pid;
    bool own_process; /* forked for this peer */
    uint8_t *bytes;
    size_t n, room;
    bool slow;                   /* refuses events */
    bool rootless;               /* sends Activate and Find as they are */
    const struct groups *groups; /* supplementary */
    uint32_t asked_groups;       /* how often the service wanted to know */
    bool closed, released;
    kvd_session_id session;
    uint64_t secret, sequence, frame_id;
    struct codec_arena *arena;
};
/* A process of its own; no Hello yet. */
struct fx_peer *fx_peer_new(struct fx *fx);
/* Another connection of the same process. */
struct fx_peer *fx_peer_again(struct fx_peer *peer);
/* Hello; the status. */
uint32_t fx_hello(struct fx_peer *peer, uint32_t role, uint32_t rank);
/* New process and Hello, checked. */
struct fx_peer *fx_session(struct fx *fx, uint32_t role, uint32_t rank);
/* Kills the process, waits until the kernel can prove it, lets the service run. */
void fx_kill(struct fx_peer *peer);
/* The connection breaks. */
void fx_cut(struct fx_peer *peer);
void fx_peer_free(struct fx_peer *peer);

/* The domain of an Activate or a Find that names none. A Find without prompt_tokens gets a prompt of 63 tokens
 * behind its pages; it has those of them that it has. */
extern const kvd_digest fx_domain;
/* Request and reply. Header fields that are 0 are filled in (session; the next sequence number where the type needs
 * one). False: no reply. */
bool fx_call(struct fx_peer *peer, struct msg_request *request, struct msg_reply *ret_reply);
/* The same without touching the header, for repeats and wrong ones. */
bool fx_call_as_is(struct fx_peer *peer, struct msg_request *request, struct msg_reply *ret_reply);
/* Sends; the reply may come later: fx_reply. */
void fx_send(struct fx_peer *peer, struct msg_request *request);
bool fx_reply(struct fx_peer *peer, uint16_t type, struct msg_reply *ret_reply);
/* The next frame as raw bytes (a copy to free), NULL when there is none. */
uint8_t *fx_frame(struct fx_peer *peer, size_t *ret_bytes);
bool fx_event(struct fx_peer *peer, struct kvd_event *ret_event);
/* service_run until the service has nothing ready for a while, or until a frame came for the peer (NULL: none awaited).
 */
void fx_settle(struct fx *fx, const struct fx_peer *peer);

/* Shorthands: status of the reply. */
uint32_t fx_activate(struct fx_peer *scheduler, kvd_session_id worker, uint32_t prompt, uint32_t output,
                     struct kvd_activated *ret_activated);
uint32_t fx_round(struct fx_peer *peer, kvd_sequence sequence, uint32_t commit, uint32_t ensure,
                  struct kvd_round_result *ret_result);
uint32_t fx_finish(struct fx_peer *peer, kvd_sequence sequence);
struct kvd_stats fx_stats(struct fx_peer *peer);
uint32_t fx_audit(struct fx *fx); /* violations */

#endif
