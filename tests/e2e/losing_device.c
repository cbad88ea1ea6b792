/* SPDX-License-Identifier: Apache-2.0
 *
 * Linked with the daemon's start: a kvd whose device is lost when the first page is copied to the arena.
 */
#include "device_host_hook.h"

static int lose(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step step) {
    (void)context, (void)ticket;
    return direction == DEVICE_TO_HOST && step == DEVICE_HOST_BEFORE_COPY ? -5 : 0;
}

__attribute__((constructor)) static void set_hook(void) {
    static const struct device_host_hook hook = { lose, 0 };
    device_host_set_hook(&hook);
}
