/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy in the arena of what is kept on the device alone and is to be written ([cold] write = retained). One
 * continuation at a time, by a move like a client's; its copy goes when it was written. It takes no more of the arena
 * than leaves half of it free, and stays where a demotion begins meanwhile, which may count on it.
 *
 * begin, state and give_back: by the writer. Each takes the core mutex for itself.
 */
#ifndef KVD_COLD_COPY_H
#define KVD_COLD_COPY_H

#include <stdbool.h>

#include "store.h"

struct service;
struct pending;

enum cold_copy_state {
    COLD_COPY_NONE = 0, /* there is nothing to copy: it is in the arena, or gone, or in use */
    COLD_COPY_RUNNING,
    COLD_COPY_THERE,
    COLD_COPY_REFUSED /* the arena has no room for it, or the device is lost */
};
struct cold_copy {
    enum cold_copy_state state;
    store_cont cont;
    bool kept; /* it is not given back */
};

/* The state at once: RUNNING, or how it ended. */
enum cold_copy_state cold_copy_begin(struct service *service, struct cold_copy *copy, store_cont cont);
enum cold_copy_state cold_copy_state_of(struct service *service, const struct cold_copy *copy);
/* After THERE. False: not now, somebody uses it; ask again. */
bool cold_copy_give_back(struct service *service, struct cold_copy *copy);

/* Under the core mutex: the move has ended. */
void cold_copy_ended(struct cold_copy *copy, bool done);

#endif
