/* SPDX-License-Identifier: Apache-2.0 */
#include "again.h"
#include "clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

#define BACK_MS 30000 /* a kvd with a large arena takes its time to stop and to start */
#define RETRY_MS 50

static bool stopped(int signals) {
    struct pollfd fd = { .fd = signals, .events = POLLIN };
    int n;
    while ((n = poll(&fd, 1, RETRY_MS)) < 0 && errno == EINTR)
        ;
    return n > 0;
}

enum again kvd_again(kvd_client **client, const struct kvd_connect_options *options, int signals) {
    struct kvd_error error = { .status = KVD_OK };
    uint64_t end = clock_ms() + BACK_MS;
    kvd_client *other = NULL;
    enum kvd_status status;
    do {
        status = kvd_client_reconnect(*client, &error);
        if (status == KVD_OK) return AGAIN_SAME;
        if (status == KVD_ABORTED && (status = kvd_connect(options, &other, &error)) == KVD_OK) {
            kvd_disconnect(*client);
            *client = other;
            return AGAIN_OTHER;
        }
        if (!kvd_status_retryable(status)) break;
        if (stopped(signals)) return AGAIN_STOP;
    } while (clock_ms() < end);
    fprintf(stderr, "%s: kvd does not come back: %s: %s\n", options->name, kvd_status_name(status), error.message);
    return AGAIN_GONE;
}
