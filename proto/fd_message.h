/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket of descriptors (PROTOCOL.md): one SOCK_SEQPACKET message a request, one an answer, little-endian. With
 * KVD_OK the descriptor travels beside the answer (SCM_RIGHTS) and the message ends before `message`; with another
 * status a sentence follows, without its NUL.
 */
#ifndef KVD_PROTO_FD_MESSAGE_H
#define KVD_PROTO_FD_MESSAGE_H

#include <sys/socket.h>

#include "kvd_types.h"

struct fd_request {
    uint64_t token;
    uint32_t fd_index, zero;
};

struct fd_answer {
    uint32_t status, fd_index;
    char message[KVD_MESSAGE_BYTES];
};

/* Ancillary data with room for one descriptor. */
union fd_control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

#endif
