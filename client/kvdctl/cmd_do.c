/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that ask for something: audit, drain, fence.
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
    out_add(ctl->out, "left_out", cJSON_CreateNumber(audit.left_out));
    if (audit.violations == 0) {
        if (audit.left_out)
            out_say(ctl->out, "result", OUT_GOOD,
                    "every invariant holds; %u pages or sums changed all the while and were not compared",
                    audit.left_out);
        else out_say(ctl->out, "result", OUT_GOOD, "every invariant holds");
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
