/* SPDX-License-Identifier: Apache-2.0
 *
 * What every command uses: the connection, and how a refusal is reported.
 */
#include "instances.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *ctl_handle_text(uint64_t bits, char buf[24]) {
    if (!bits) return "-";
    snprintf(buf, 24, "0x%" PRIx64, bits);
    return buf;
}

int ctl_refused(struct ctl *ctl, enum kvd_status status, const struct kvd_error *error) {
    fprintf(stderr, "kvdctl: %s\n", error->message);
    if (ctl->out && ctl->options.json) {
        cJSON *refusal = cJSON_CreateObject();
        cJSON_AddStringToObject(refusal, "status", kvd_status_name(status));
        cJSON_AddStringToObject(refusal, "message", error->message);
        out_facts(ctl->out, "error", NULL, 0, refusal);
    }
    return ctl_status(status);
}

int ctl_status(enum kvd_status status) {
    if (status == KVD_OK) return CTL_OK;
    return status == KVD_UNAVAILABLE || status == KVD_DEADLINE_EXCEEDED ? CTL_UNREACHABLE : CTL_REFUSED;
}

enum kvd_status ctl_connect(struct ctl *ctl, enum kvd_role role, struct kvd_error *error) {
    struct kvd_connect_options o = { .struct_size = sizeof o,
                                     .socket = ctl->options.socket,
                                     .role = role,
                                     .name = "kvdctl",
                                     .timeout_ms = ctl->options.timeout_ms };
    return kvd_connect(&o, &ctl->client, error);
}

int ctl_connect_or_say(struct ctl *ctl, enum kvd_role role) {
    struct kvd_error error = { .message = "" };
    int code = instance_choose(&ctl->options);
    if (code != CTL_OK) return code;
    enum kvd_status status = ctl_connect(ctl, role, &error);
    if (status == KVD_OK) return CTL_OK;
    code = ctl_refused(ctl, status, &error);
    /* No right to the socket is no connection; no right to the role is a refusal. */
    return strncmp(error.message, "cannot connect", 14) == 0 ? CTL_UNREACHABLE : code;
}
