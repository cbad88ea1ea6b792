/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's socket: an nng byte-stream listener and its connections. (Why streams and not nng's SP sockets: an SP
 * listener of nng 1.5.2 dies for good when a peer connects and closes at once.)
 *
 * Opening binds a private name beside the public one, sets permissions and group, and renames it into place. So nobody
 * connects to a socket that is not ready, and a stale public name is replaced. The caller holds the instance's lock.
 *
 * Threads: one thread calls listener_run, listener_tick and listener_close. Any thread may close a connection. Only
 * listener_run frees one, when nothing refers to it, so that no callback runs on freed memory.
 */
#ifndef KVD_LISTENER_H
#define KVD_LISTENER_H

#include "service.h"

struct listener;

/* File descriptors that the daemon may need for this many connections: a socket, a pidfd and a passed descriptor each,
 * two for a ring and two for the board of its session, and those of the daemon itself. */
static inline uint32_t listener_files(uint32_t connections, uint32_t rings) {
    return 3 * connections + 4 * rings + 128;
}

/* Returns 0, or 1 with a sentence in err. */
int listener_open(struct service *service, const struct config *config, struct listener **ret_listener, char *err,
                  size_t err_bytes);
/* Stops accepting, closes every connection, waits for their callbacks, unlinks the socket. Accepts NULL. */
struct listener *listener_close(struct listener *listener);
/* Readable when listener_run has connections to free, or to read from again after a pause. */
int listener_fd(const struct listener *listener);
void listener_run(struct listener *listener);
/* Closes connections that exceed a time-out: no Hello, half a frame, unread answers. Call it about once a second, or
 * four times in the shortest time-out. */
void listener_tick(struct listener *listener, uint64_t now_ns);
/* Takes over time-outs, queue and connection limits after a reload. */
void listener_configure(struct listener *listener, const struct config *config);
uint32_t listener_connections(struct listener *listener);
uint64_t listener_accepted(const struct listener *listener); /* connections accepted since the start */

#endif
