/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes on the daemon's socket without libkvd, for what libkvd would never send. */
#ifndef KVD_E2E_RAW_H
#define KVD_E2E_RAW_H

#include "codec.h"
#include "e2e.h"

/* Waits while the backlog is full. -1: refused. A read waits 10 s. */
int raw_connect(const char *socket);
bool raw_send(int fd, const void *bytes, size_t n);
/* true when the daemon closed the connection (and nothing was answered before). */
bool raw_closed(int fd);
bool raw_request(int fd, const struct msg_request *request, uint64_t id);
/* The next reply's status; UNKNOWN: none that can be read. What it points to lives until the next call. */
enum kvd_status raw_reply(int fd, struct msg_reply *ret_reply);
/* Connects and says Hello, checked. */
int raw_hello(const char *socket, enum kvd_role role, struct msg_reply *ret_reply);

#endif
