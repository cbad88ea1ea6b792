/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests: a say in the moves of host devices, to delay them anywhere between the decision to copy, the copy and the
 * word that it is done, or to let the device be lost there.
 */
#ifndef KVD_CUDA_DEVICE_HOST_HOOK_H
#define KVD_CUDA_DEVICE_HOST_HOOK_H

#include "device.h"

enum device_host_step {
    DEVICE_HOST_BEFORE_COPY, /* one of the copies of a ticket is next */
    DEVICE_HOST_BEFORE_DONE  /* all of them are made, nobody knows */
};

/* Called by the direction's own thread, which may sleep in it: with a hook no move is done inline. Anything but 0 loses
 * the device, as a copy that fails loses a GPU. */
struct device_host_hook {
    int (*step)(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step step);
    void *context;
};

/* For every host device of this process; NULL: none, as at the start. The hook must stay until devices with queued
 * moves are closed. Any thread. */
void device_host_set_hook(const struct device_host_hook *hook);

#endif
