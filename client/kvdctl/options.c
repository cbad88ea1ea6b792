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
    size_t at; /* in struct ctl_options */
    const char *arg, *help;
} rows[] = {
#define AT(member) offsetof(struct ctl_options, member)
    { "socket", 's', TEXT, AT(socket), "PATH", "socket of the daemon; default $KVD_SOCKET, else /run/kvd/kvd.sock" },
    { "json", 'j', FLAG, AT(json), NULL, "one JSON document instead of tables; one a line where the command goes on" },
    { "timeout", 't', NUMBER, AT(timeout_ms), "MS", "for connecting and for each answer; default 5000" },
    { "color", 0, TEXT, AT(color), "WHEN", "auto (a terminal, no NO_COLOR), always, never" },
    { "prompt", 'p', NUMBER, AT(prompt), "TOKENS", "plan, why: prompt of the activation" },
    { "output", 'o', NUMBER, AT(output), "TOKENS", "plan, why: tokens that it may generate" },
    { "from", 'f', TEXT, AT(from), "HANDLE", "plan, why: continuation to start from; default none" },
    { "frontier", 'F', NUMBER, AT(frontier), "TOKENS",
      "plan, why: tokens of it to use; default its frontier, less one if that is the prompt; shorten: tokens to keep" },
    { "move", 0, FLAG, AT(move), NULL, "plan, why: the source does not survive" },
    { "victims", 'v', TEXT, AT(victims), "HANDLES", "plan: continuations to release with it, separated by commas" },
    { "demote", 'd', TEXT, AT(demote), "HANDLES", "plan: continuations to demote with it, separated by commas" },
    { "domain", 'D', TEXT, AT(domain), "DOMAIN",
      "continuations, sequences, release: those of this domain, by its label or its digest" },
    { "keep-device", 0, FLAG, AT(keep_device), NULL, "demote: copy only; the device's pages stay" },
    { "sets", 'n', NUMBER, AT(sets), "COUNT", "why: how many sets of releases to show at most; default 5" },
    { "follow", 0, FLAG, AT(follow), NULL, "events: go on when the daemon is gone, and with the next instance" },
    { "interval", 'i', NUMBER, AT(interval), "SECONDS", "top, trace: from one look to the next; default 1" },
    { "count", 'c', NUMBER, AT(count), "COUNT", "top: looks, events: events, and then the end; 0 is no end" },
    { "seconds", 'S', NUMBER, AT(seconds), "SECONDS", "events, trace: how long; default until interrupted" },
    { "help", 'h', FLAG, AT(help), NULL, "this text" },
    { "version", 'V', FLAG, AT(version), NULL, "version of kvdctl and libkvd" },
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

void ctl_help(const struct ctl_command *commands, size_t n_commands) {
    char left[64];
    puts("Usage: kvdctl [OPTION...] COMMAND [ARGUMENT...]\n\nLooks at a running kvd and asks it for small "
         "things.\n\nCommands:");
    for (size_t i = 0; i < n_commands; i++) {
        snprintf(left, sizeof left, "%s%s%s", commands[i].name, commands[i].args ? " " : "",
                 commands[i].args ? commands[i].args : "");
        printf("  %-27s %s\n", left, commands[i].help);
    }
    puts("\nOptions:");
    for (size_t i = 0; i < N_ROWS; i++) {
        char letter[5] = "    ";
        if (rows[i].letter) snprintf(letter, sizeof letter, "-%c, ", rows[i].letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, rows[i].name, rows[i].arg ? "=" : "",
                 rows[i].arg ? rows[i].arg : "");
        printf("  %-27s %s\n", left, rows[i].help);
    }
    puts("\nExit status: 0 done; 1 wrong usage; 2 kvd refused, or the answer is \"does not fit\"; 3 kvd cannot be "
         "reached; 4 the audit found\n"
         "violations. Handles are written 0x... as the lists show them.");
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
