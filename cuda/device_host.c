/* SPDX-License-Identifier: Apache-2.0
 *
 * Host backend: device memory is shared memory. It is the embedded default and what the tests run on. See
 * device_host_internal.h for the files.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "device_host_internal.h"

/* ---- identity ----------------------------------------------------------------------------- */

/* What names this machine: the machine id, or the host name where a container has none. */
static size_t machine_name(char *name, size_t bytes) {
    static const char *const files[] = { "/etc/machine-id", "/var/lib/dbus/machine-id" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t n = read(fd, name, bytes);
        close(fd);
        if (n >= 32) return 32;
    }
    struct utsname system;
    if (uname(&system)) return 0;
    size_t n = strnlen(system.nodename, bytes);
    memcpy(name, system.nodename, n);
    return n;
}

/* The machine id itself is not shown (machine-id(5)): only its hash with our domain and the index is. */
static void derive_uuid(uint32_t index, uint8_t uuid[16]) {
    static const unsigned char domain[] = "kvd host device";
    char machine[64];
    size_t n = machine_name(machine, sizeof machine);
    unsigned char number[4] = { (unsigned char)index, (unsigned char)(index >> 8), (unsigned char)(index >> 16),
                                (unsigned char)(index >> 24) };
    crypto_generichash_state hash;
    crypto_generichash_init(&hash, NULL, 0, 16);
    crypto_generichash_update(&hash, domain, sizeof domain);
    crypto_generichash_update(&hash, (const unsigned char *)machine, n);
    crypto_generichash_update(&hash, number, sizeof number);
    crypto_generichash_final(&hash, uuid, 16);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x80); /* RFC 9562: version 8, custom */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

static bool host_available(char *err, size_t err_bytes) {
    (void)err, (void)err_bytes;
    return true;
}

static int host_event_fd(struct device *device) { return host_of(device)->event_fd; }

static void host_identify(const struct device *device, struct device_identity *ret_identity) {
    *ret_identity = ((const struct host_device *)device)->identity;
}

/* ---- open and close ----------------------------------------------------------------------- */

static int start_threads(struct host_device *d) {
    int e = host_batches_start(d);
    if (e) return e;
    e = host_movers_start(d);
    if (e) host_batches_stop(d);
    return e;
}

static int host_open(const struct device_config *config, struct device **ret_device, char *err, size_t err_bytes) {
    if (config->memory_bytes == 0)
        return refuse_with(-EINVAL, err, err_bytes, "host device %u has memory_bytes 0: say how much it may use",
                           config->index);
    struct host_device *d = calloc(1, sizeof *d);
    if (!d) return refuse_with(-ENOMEM, err, err_bytes, "no memory to open host device %u", config->index);
    d->base.backend = &device_host_backend;
    d->identity =
        (struct device_identity){ .kind = DEVICE_HOST, .index = config->index, .total_bytes = config->memory_bytes };
    snprintf(d->identity.name, sizeof d->identity.name, "host memory %u", config->index);
    derive_uuid(config->index, d->identity.uuid);
    d->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int e = d->event_fd < 0 ? errno : start_threads(d);
    if (e) {
        if (d->event_fd >= 0) close(d->event_fd);
        free(d);
        return refuse_with(-e, err, err_bytes, "host device %u has no event fd or thread: %s", config->index,
                           strerror(e));
    }
    *ret_device = &d->base;
    return 0;
}

static void host_close(struct device *device) {
    struct host_device *d = host_of(device);
    while (d->regions) host_region_free(&d->regions->base);
    host_batches_stop(d);
    host_movers_stop(d);
    close(d->event_fd);
    free(d);
}

const struct device_backend device_host_backend = {
    .available = host_available,
    .open = host_open,
    .close = host_close,
    .identify = host_identify,
    .free_bytes = host_free_bytes,
    .region_new = host_region_new,
    .region_adopt = host_region_adopt,
    .region_free = host_region_free,
    .region_export = host_region_export,
    .region_address = host_region_address,
    .submit = host_submit,
    .poll = host_poll,
    .event_fd = host_event_fd,
    .pin = host_pin,
    .unpin = host_unpin,
    .move = host_move,
    .poll_moves = host_poll_moves,
    .import = host_import,
    .import_address = host_import_address,
    .unimport = host_unimport,
};
