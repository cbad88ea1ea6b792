/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that ask for something: audit, drain, release, fence.
 */
#include <stdio.h>
#include <string.h>

#include "ctl.h"

int cmd_audit(struct ctl *ctl) {
    struct kvd_audit audit;
    struct kvd_error error;
    enum kvd_status status = kvd_audit(ctl->client, &audit, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    out_flag(ctl->out, "clean", audit.violations == 0);
    if (audit.violations == 0) {
        out_say(ctl->out, "result", OUT_GOOD, "every invariant holds");
        return CTL_OK;
    }
    out_say(ctl->out, "result", OUT_BAD, "%u violations; this is a defect in kvd, please report it", audit.violations);
    out_say(ctl->out, "violations", OUT_PLAIN, "%s", audit.text);
    return CTL_VIOLATIONS;
}

int cmd_drain(struct ctl *ctl) {
    struct kvd_error error;
    bool on = ctl->n_args == 0;
    if (!on && strcmp(ctl->args[0], "off") != 0) {
        fprintf(stderr, "kvdctl: drain takes nothing, or \"off\", not \"%s\"\n", ctl->args[0]);
        return CTL_USAGE;
    }
    enum kvd_status status = kvd_drain(ctl->client, on, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    out_flag(ctl->out, "draining", on);
    out_say(ctl->out, "result", OUT_PLAIN,
            on ? "draining: new activations are refused, running sequences go on" : "new activations are accepted");
    return CTL_OK;
}

/* A handle that is refused does not keep the others; a daemon that is not there does. */
static int release_one(struct ctl *ctl, uint64_t bits, cJSON *released, cJSON *refused) {
    struct kvd_error error = { .message = "" };
    char buf[24];
    const char *handle = ctl_handle_text(bits, buf);
    enum kvd_status status = kvd_release(ctl->client, (kvd_continuation){ bits }, &error);
    if (status == KVD_OK) {
        cJSON_AddItemToArray(released, cJSON_CreateString(handle));
        return CTL_OK;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "continuation", handle);
    cJSON_AddStringToObject(o, "status", kvd_status_name(status));
    cJSON_AddStringToObject(o, "message", error.message);
    cJSON_AddItemToArray(refused, o);
    fprintf(stderr, "kvdctl: %s was not released: %s: %s\n", handle, kvd_status_name(status), error.message);
    return ctl_status(status);
}

/* All of the handles must be well-formed before the first is released. */
int cmd_release(struct ctl *ctl) {
    cJSON *released, *refused;
    uint64_t bits;
    int code = CTL_OK;
    for (int i = 0; i < ctl->n_args; i++)
        if (!ctl_handle(ctl->args[i], "continuation", &bits)) return CTL_USAGE;
    out_add(ctl->out, "released", released = cJSON_CreateArray());
    out_add(ctl->out, "refused", refused = cJSON_CreateArray());
    for (int i = 0; i < ctl->n_args && code != CTL_UNREACHABLE; i++) {
        ctl_handle(ctl->args[i], "continuation", &bits);
        int one = release_one(ctl, bits, released, refused);
        if (one != CTL_OK) code = one;
    }
    int n = cJSON_GetArraySize(released);
    out_say(ctl->out, "result", OUT_PLAIN, "released %d of %d continuation%s", n, ctl->n_args,
            ctl->n_args == 1 ? "" : "s");
    return code;
}

int cmd_fence(struct ctl *ctl) {
    struct kvd_error error;
    uint64_t bits;
    if (!ctl_handle(ctl->args[0], "session", &bits)) return CTL_USAGE;
    enum kvd_status status = kvd_fence(ctl->client, (kvd_session_id){ bits }, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    out_say(ctl->out, "result", OUT_PLAIN,
            "fenced: its requests are refused; its sequences stay quarantined until its process is gone");
    return CTL_OK;
}
