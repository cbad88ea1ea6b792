/* SPDX-License-Identifier: Apache-2.0
 *
 * config: the keys of the daemon's configuration, the values in effect, and what waits for a restart.
 */
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "figures.h"

/* Without the folders of the file: they stand above the table once. */
static void put_source(cJSON *row, const char *source) {
    const char *slash = strrchr(source, '/');
    bool chosen = strncmp(source, "auto, ", 6) == 0;
    out_put_text(row, "source_text", "%s%s", chosen ? "auto, " : "", slash ? slash + 1 : source + (chosen ? 6 : 0));
}

static cJSON *setting_row(const struct kvd_setting *s) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "section", s->section);
    cJSON_AddStringToObject(row, "name", s->name);
    out_put_text(row, "key_text", "[%s] %s", s->section, s->name);
    cJSON_AddStringToObject(row, "value", s->value);
    cJSON_AddStringToObject(row, "source", s->source);
    put_source(row, s->source);
    cJSON_AddBoolToObject(row, "restart", s->restart);
    if (s->restart) cJSON_AddStringToObject(row, "pending", s->pending);
    return row;
}

static enum kvd_status load_settings(struct ctl *ctl, cJSON *rows, struct kvd_error *error) {
    struct kvd_setting settings[KVD_MAX_SETTINGS];
    enum kvd_status status = KVD_OK;
    uint32_t cursor = 0, n;
    while (status == KVD_OK && cursor != KVD_UNCHANGED) {
        status = kvd_list_settings(ctl->client, &cursor, settings, KVD_MAX_SETTINGS, &n, error);
        for (uint32_t i = 0; status == KVD_OK && i < n; i++) cJSON_AddItemToArray(rows, setting_row(&settings[i]));
    }
    return status;
}

static void say_pending(struct ctl *ctl, const cJSON *rows) {
    const cJSON *row;
    char line[640];
    bool any = false;
    cJSON_ArrayForEach(row, rows) {
        if (!cJSON_HasObjectItem(row, "pending")) continue;
        if (!any) out_print(ctl->out, OUT_PLAIN, "");
        any = true;
        snprintf(line, sizeof line, "%s: the file says \"%s\" since the last reload; that needs a restart",
                 figures_string(row, "key_text"), figures_string(row, "pending"));
        out_print(ctl->out, OUT_BAD, line);
    }
}

int cmd_config(struct ctl *ctl) {
    static const struct out_column columns[] = {
        { .key = "key_text", .heading = "KEY" },
        { .key = "value", .heading = "VALUE" },
        { .key = "source_text", .heading = "FROM" },
    };
    struct kvd_error error = { .message = "" };
    cJSON *rows = cJSON_CreateArray();
    enum kvd_status status = load_settings(ctl, rows, &error);
    if (status != KVD_OK) {
        cJSON_Delete(rows);
        return ctl_refused(ctl, status, &error);
    }
    out_table(ctl->out, "settings", columns, sizeof columns / sizeof *columns, rows);
    if (!out_is_json(ctl->out)) say_pending(ctl, rows);
    return CTL_OK;
}
