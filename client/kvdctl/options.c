/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of options: getopt_long's arrays, the values' places and --help come from it.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"

enum kind { FLAG, NUMBER, TEXT };

static const struct option_row {
    const char *name;
    int letter; /* 0 = long only */
    enum kind kind;
    size_t at;            /* in struct ctl_options */
    const char *commands; /* that take it, "plan, why"; NULL: every one */
    const char *arg, *help;
} rows[] = {
#define AT(member) offsetof(struct ctl_options, member)
    { "socket", 's', TEXT, AT(socket), NULL, "PATH", "socket of the daemon, instead of an instance's" },
    { "instance", 'I', TEXT, AT(instance), NULL, "NAME", "kvd@NAME; not needed where one instance runs" },
    { "json", 'j', FLAG, AT(json), NULL, NULL, "JSON instead of tables" },
    { "wide", 'w', FLAG, AT(wide), NULL, NULL, "every column, however long the lines become" },
    { "timeout", 't', NUMBER, AT(timeout_ms), NULL, "MS", "for connecting and each answer; default 5000" },
    { "color", 0, TEXT, AT(color), NULL, "WHEN", "auto (a terminal, no NO_COLOR), always, never" },
    { "prompt", 'p', NUMBER, AT(prompt), "plan, why", "TOKENS", "prompt of the activation" },
    { "output", 'o', NUMBER, AT(output), "plan, why", "TOKENS", "tokens that it may generate" },
    { "from", 'f', TEXT, AT(from), "plan, why", "HANDLE", "continuation to start from" },
    { "frontier", 'F', NUMBER, AT(frontier), "plan, why, shorten", "TOKENS", "to use of it; to keep" },
    { "move", 0, FLAG, AT(move), "plan, why", NULL, "the source does not survive" },
    { "victims", 'v', TEXT, AT(victims), "plan", "HANDLES", "to release with it; HANDLE@FRONTIER: to cut" },
    { "demote", 'd', TEXT, AT(demote), "plan", "HANDLES", "to demote with it, commas between" },
    { "domain", 'D', TEXT, AT(domain), "continuations, sequences, release", "DOMAIN", "label or digest" },
    { "keep-device", 0, FLAG, AT(keep_device), "demote", NULL, "copy only; the device's pages stay" },
    { "sets", 'n', NUMBER, AT(sets), "why", "COUNT", "sets of releases to show; default 5" },
    { "follow", 0, FLAG, AT(follow), "events", NULL, "go on when the daemon is gone" },
    { "interval", 'i', NUMBER, AT(interval), "top, trace", "SECONDS", "between looks; default 1" },
    { "count", 'c', NUMBER, AT(count), "top, events", "COUNT", "looks, events; 0: no end" },
    { "seconds", 'S', NUMBER, AT(seconds), "events, trace", "SECONDS", "how long; else until the end" },
    { "help", 'h', FLAG, AT(help), NULL, NULL, "this text, or that of the command" },
    { "version", 'V', FLAG, AT(version), NULL, NULL, "versions of kvdctl and libkvd" },
#undef AT
};
#define N_ROWS (sizeof rows / sizeof *rows)

static bool set_option(const struct option_row *row, const char *value, struct ctl_options *options) {
    char *at = (char *)options + row->at, *end;
    if (row->kind == FLAG) {
        *(bool *)(void *)at = true;
    } else if (row->kind == TEXT) {
        *(const char **)(void *)at = value;
    } else {
        errno = 0;
        unsigned long long number = strtoull(value, &end, 10);
        if (errno || *end || end == value || *value == '-' || number >= KVD_UNCHANGED) {
            fprintf(stderr, "kvdctl: --%s takes a number from 0 to %u, not \"%s\"\n", row->name, KVD_UNCHANGED - 1,
                    value);
            return false;
        }
        *(uint32_t *)(void *)at = (uint32_t)number;
    }
    return true;
}

int ctl_parse(int argc, char **argv, struct ctl_options *ret_options) {
    struct option longs[N_ROWS + 1] = { 0 };
    char letters[2 * N_ROWS + 1];
    size_t n = 0;
    int got, which = 0;
    for (size_t i = 0; i < N_ROWS; i++) {
        longs[i] =
            (struct option){ rows[i].name, rows[i].kind == FLAG ? no_argument : required_argument, &which, (int)i + 1 };
        if (!rows[i].letter) continue;
        letters[n++] = (char)rows[i].letter;
        if (rows[i].kind != FLAG) letters[n++] = ':';
    }
    letters[n] = 0;
    *ret_options = (struct ctl_options){ .frontier = KVD_UNCHANGED, .sets = 5, .interval = 1, .count = KVD_UNCHANGED };
    while ((got = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        const struct option_row *row = NULL;
        if (got == '?') return CTL_USAGE;
        for (size_t i = 0; i < N_ROWS; i++)
            if (got ? rows[i].letter == got : which == (int)i + 1) row = &rows[i];
        if (!row || !set_option(row, optarg, ret_options)) return CTL_USAGE;
    }
    if (!ret_options->interval) {
        fputs("kvdctl: --interval takes at least 1 second\n", stderr);
        return CTL_USAGE;
    }
    if (ret_options->color && strcmp(ret_options->color, "auto") && strcmp(ret_options->color, "always") &&
        strcmp(ret_options->color, "never")) {
        fprintf(stderr, "kvdctl: --color takes auto, always or never, not \"%s\"\n", ret_options->color);
        return CTL_USAGE;
    }
    return CTL_OK;
}

static void print_usage(const char *left, const char *before, const char *help) {
    printf("  %-27s %s%s%s\n", left, before ? before : "", before ? ": " : "", help);
}

static void print_option(const struct option_row *row, bool with_commands) {
    char letter[5] = "    ", left[64];
    if (row->letter) snprintf(letter, sizeof letter, "-%c, ", row->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, row->name, row->arg ? "=" : "", row->arg ? row->arg : "");
    print_usage(left, with_commands ? row->commands : NULL, row->help);
}

void ctl_help(const struct ctl_command *commands, size_t n_commands) {
    char left[64];
    puts("Usage: kvdctl [OPTION...] COMMAND [ARGUMENT...]\n\nLooks at a running kvd and asks it for small things.\n"
         "kvdctl COMMAND --help says more of one.\n\nCommands:");
    for (size_t i = 0; i < n_commands; i++) {
        snprintf(left, sizeof left, "%s%s%s", commands[i].name, commands[i].args ? " " : "",
                 commands[i].args ? commands[i].args : "");
        print_usage(left, NULL, commands[i].help);
    }
    puts("\nOptions:");
    for (size_t i = 0; i < N_ROWS; i++) print_option(&rows[i], true);
    puts("\nExit status: 0 done; 1 wrong usage; 2 kvd refused, or the answer is \"does not\n"
         "fit\"; 3 kvd cannot be reached; 4 the audit found violations. Handles are written\n"
         "0x... as the lists show them.");
}

/* Whether a command is one of those in "plan, why". */
static bool is_listed(const char *commands, const char *name) {
    size_t n = strlen(name);
    for (const char *at = commands; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || !at[n])) return true;
    return false;
}

void ctl_command_help(const struct ctl_command *command) {
    bool own = false;
    printf("Usage: kvdctl [OPTION...] %s%s%s\n\n%s: %s.\n", command->name, command->args ? " " : "",
           command->args ? command->args : "", command->name, command->help);
    if (command->more) puts(command->more);
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!is_listed(rows[i].commands, command->name)) continue;
        if (!own) printf("\nOptions of %s:\n", command->name);
        own = true;
        print_option(&rows[i], false);
    }
    puts("\nOptions of every command:");
    for (size_t i = 0; i < N_ROWS; i++)
        if (!rows[i].commands) print_option(&rows[i], false);
}

struct kvd_root ctl_domain(const struct ctl_options *options) {
    const char *text = options->domain ? options->domain : "";
    struct kvd_root root = { .label = "" };
    bool is_digest = strlen(text) == 2 * sizeof root.digest && strspn(text, "0123456789abcdefABCDEF") == strlen(text);
    for (size_t i = 0; is_digest && i < sizeof root.digest; i++) {
        char byte[3] = { text[2 * i], text[2 * i + 1], 0 };
        root.digest.bytes[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    if (!is_digest) snprintf(root.label, sizeof root.label, "%s", text);
    return root;
}

void ctl_put_domain(cJSON *object, const struct kvd_root *root) {
    char digest[2 * KVD_DIGEST_BYTES + 1];
    for (size_t i = 0; i < KVD_DIGEST_BYTES; i++) snprintf(digest + 2 * i, 3, "%02x", root->digest.bytes[i]);
    cJSON_AddStringToObject(object, "domain", digest);
    cJSON_AddStringToObject(object, "label", root->label);
    digest[12] = 0; /* enough to tell domains apart at a glance */
    cJSON_AddStringToObject(object, "domain_text", root->label[0] ? root->label : digest);
}

bool ctl_handle(const char *text, const char *what, uint64_t *ret_bits) {
    char *end;
    errno = 0;
    unsigned long long bits = strtoull(text, &end, 0);
    if (errno || end == text || *end || !bits || *text == '-') {
        fprintf(stderr, "kvdctl: \"%s\" is no handle of a %s: copy it from the list, 0x...\n", text, what);
        return false;
    }
    *ret_bits = bits;
    return true;
}
