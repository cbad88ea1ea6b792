/* SPDX-License-Identifier: Apache-2.0
 *
 * Where in a cluster a key is: slots, and what an engine says when it is elsewhere. Pure functions.
 */
#ifndef KVD_COLD_SLOTS_H
#define KVD_COLD_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

#define COLD_SLOTS 16384u

/* CRC16 (XMODEM) of what stands in the first braces of the key, or of all of it where they are missing or empty. */
uint32_t cold_slot_of(const char *key, size_t bytes);

struct cold_redirect {
    bool ask; /* for this command only; else the slot has moved */
    uint32_t slot;
    struct config_listen to; /* LISTEN_NONE: the host that was asked, with this port */
};
/* Reads "MOVED 3999 127.0.0.1:6381" or "ASK ...". False: it is another error, or names a host by no number. */
bool cold_read_redirect(const char *error, size_t bytes, struct cold_redirect *ret_redirect);
/* A numeric address, IPv6 with or without brackets. False: it is none. */
bool cold_address_of(const char *host, size_t bytes, uint64_t port, struct config_listen *ret_address);
bool cold_is_same_address(const struct config_listen *a, const struct config_listen *b);

#endif
