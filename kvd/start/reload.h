/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration read again, by a thread of its own: its file system, or who knows users and groups, may not answer,
 * and the main loop must.
 *
 * Threads: all functions from one thread.
 */
#ifndef KVD_RELOAD_H
#define KVD_RELOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

#define RELOAD_LATE_NS UINT64_C(3000000000)

struct reload;

enum reload_result {
    RELOAD_NONE, /* nothing has been read */
    RELOAD_GOOD, /* *ret_config */
    RELOAD_BAD,  /* *ret_why says why, valid until the next reload_begin */
};

/* There is one, and it lives as long as the process: a thread that hangs may still use it. NULL: no files. */
struct reload *reload_new(const char *path);
/* Readable when reload_take has something. */
int reload_fd(const struct reload *reload);
/* Begins to read; while it reads already, it reads once more afterwards. */
void reload_begin(struct reload *reload, uint64_t now_ns);
enum reload_result reload_take(struct reload *reload, struct config *ret_config, const char **ret_why);
/* True once for a reading that takes longer than RELOAD_LATE_NS. It may still come to its end. */
bool reload_late(struct reload *reload, uint64_t now_ns);

#endif
