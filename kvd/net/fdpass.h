/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket of descriptors: what an nng stream cannot carry. SOCK_SEQPACKET at PATH.fd beside the control socket, with
 * its group and mode. A request is 16 bytes, little-endian: u64 token, u32 fd_index, u32 0. The answer is u32 status
 * (enum kvd_status), u32 fd_index, and with OK the descriptor (SCM_RIGHTS), else a sentence. The token of DescribeStore
 * is good for one connection of the process that asked, and ends with its first request there; later requests carry 0.
 *
 * Main thread only. No call blocks.
 */
#ifndef KVD_FDPASS_H
#define KVD_FDPASS_H

#include "service.h"

struct fdpass;

/* 0, or 1 with a sentence. The caller holds the instance's lock: what an earlier one left at the path is replaced. */
int fdpass_open(struct service *service, const struct config *config, struct fdpass **ret_fdpass, char *err,
                size_t err_bytes);
/* Readable: call fdpass_run. */
int fdpass_fd(const struct fdpass *fdpass);
void fdpass_run(struct fdpass *fdpass);
/* Closes connections that have not asked for a while. */
void fdpass_tick(struct fdpass *fdpass, uint64_t now_ns);
/* Removes the socket. NULL is fine; returns NULL. */
struct fdpass *fdpass_close(struct fdpass *fdpass);

#endif
