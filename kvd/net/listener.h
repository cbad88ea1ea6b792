/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's socket: an nng byte-stream listener and its connections. (Why streams and not nng's SP sockets: an SP
 * listener of nng 1.5.2 dies for good when a peer connects and closes at once.)
 *
 * Opening binds a private name beside the public one, sets permissions and group, and renames it into place: nobody
 * ever connects to a socket that is not ready, and a stale public name is simply replaced. The caller holds the
 * instance's lock.
 *
 * Threads: listener_run, listener_tick and listener_close from one thread. Connections are closed from any thread, and
 * freed in listener_run alone, when nothing refers to them: no callback ever runs on freed memory.
 */
#ifndef KVD_LISTENER_H
#define KVD_LISTENER_H

#include "service.h"

struct listener;

/* Files that the daemon may have open with so many connections: a socket and a pidfd each, and what else there is. */
static inline uint32_t listener_files(uint32_t connections) { return 3 * connections + 128; }

/* 0, or 1 with a sentence. */
int listener_open(struct service *service, const struct config *config, struct listener **ret_listener, char *err,
                  size_t err_bytes);
/* Stops accepting, closes every connection, waits for their callbacks, unlinks the socket. NULL is fine. */
struct listener *listener_close(struct listener *listener);
/* Readable when connections are to be freed. */
int listener_fd(const struct listener *listener);
void listener_run(struct listener *listener);
/* Closes what has outlived its time: no Hello, half a frame, unread answers. About once a second, or four times in the
 * shortest time-out. */
void listener_tick(struct listener *listener, uint64_t now_ns);
/* After a reload: time-outs, queues, connection limit. */
void listener_configure(struct listener *listener, const struct config *config);
uint32_t listener_connections(struct listener *listener);
uint64_t listener_accepted(const struct listener *listener); /* connections so far */

#endif
