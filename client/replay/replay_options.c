/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of options: getopt_long's array, the values' places and --help come from it.
 */
#include "replay_options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_kind { OPTION_FLAG, OPTION_COUNT, OPTION_REAL, OPTION_TEXT };

static const struct replay_option {
    const char *name;
    enum option_kind kind;
    size_t at; /* in struct replay_options */
    double least, most;
    const char *arg, *help;
} rows[] = {
#define AT(member) offsetof(struct replay_options, member)
    { "trace", OPTION_TEXT, AT(trace), 0, 0, "FILE", "a trace, Mooncake or agent form; else one is made" },
    { "seed", OPTION_COUNT, AT(seed), 0, UINT32_MAX, "N", "of the trace that is made; default 1" },
    { "requests", OPTION_COUNT, AT(requests), 1, UINT32_MAX, "N", "the first N of the trace; made: 2000" },
    { "pool", OPTION_REAL, AT(pool), 0.01, 1000, "PERCENT", "of the trace's distinct tokens; default 3" },
    { "arena", OPTION_REAL, AT(arena), 0, 1000, "PERCENT", "host arena, the same way; default 0: none" },
    { "policy", OPTION_TEXT, SIZE_MAX, 0, 0, "NAME", "reuse (kvd_policy_choose) or lru; default reuse" },
    { "one-copy", OPTION_FLAG, AT(one_copy), 0, 0, NULL, "what comes back from the arena leaves it" },
    { "active", OPTION_COUNT, AT(active), 1, REPLAY_MOST_ACTIVE, "N", "sequences at once; default 1" },
    { "speed", OPTION_REAL, AT(speed), 1e-3, 1e6, "FACTOR", "of the trace's time; else as fast as it goes" },
    { "kill-kvd", OPTION_COUNT, AT(kill_kvd), 1, 1000, "N", "SIGKILL kvd N times on the way" },
    { "kill-engine", OPTION_REAL, AT(kill_engine), 1, 1e6, "SECONDS", "and scheduler and worker each so often" },
    { "kvd", OPTION_TEXT, AT(kvd), 0, 0, "PROGRAM", "the daemon; else kvd of $PATH or /usr/sbin" },
    { "check", OPTION_FLAG, AT(check), 0, 0, NULL, "exit status 4 where the policy is below LRU" },
    { "help", OPTION_FLAG, AT(help), 0, 0, NULL, "this text" },
    { "version", OPTION_FLAG, AT(version), 0, 0, NULL, "version of libkvd" },
#undef AT
};
#define N_ROWS (sizeof rows / sizeof *rows)

static bool set_number(const struct replay_option *row, const char *text, char *at) {
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    bool whole = row->kind != OPTION_COUNT || strspn(text, "0123456789") == strlen(text);
    if (errno || end == text || *end || !whole || !(number >= row->least && number <= row->most)) {
        fprintf(stderr, "kvd-replay: --%s takes a %s from %g to %.10g, not \"%s\"\n", row->name,
                row->kind == OPTION_COUNT ? "whole number" : "number", row->least, row->most, text);
        return false;
    }
    if (row->kind == OPTION_COUNT) *(uint32_t *)(void *)at = (uint32_t)number;
    else *(double *)(void *)at = number;
    return true;
}

static bool set_policy(const char *text, struct replay_options *options) {
    options->reuse = strcmp(text, "reuse") == 0;
    if (options->reuse || strcmp(text, "lru") == 0) return true;
    fprintf(stderr, "kvd-replay: --policy takes reuse or lru, not \"%s\"\n", text);
    return false;
}

static bool set_row(const struct replay_option *row, const char *value, struct replay_options *options) {
    if (row->at == SIZE_MAX) return set_policy(value, options);
    char *at = (char *)options + row->at;
    if (row->kind == OPTION_FLAG) *(bool *)(void *)at = true;
    else if (row->kind == OPTION_TEXT) *(const char **)(void *)at = value;
    else return set_number(row, value, at);
    return true;
}

bool replay_parse_options(int argc, char **argv, struct replay_options *ret_options) {
    struct option longs[N_ROWS + 1] = { 0 };
    int got, which = 0;
    for (size_t i = 0; i < N_ROWS; i++)
        longs[i] = (struct option){ rows[i].name, rows[i].kind == OPTION_FLAG ? no_argument : required_argument, NULL,
                                    (int)i + 1 };
    *ret_options = (struct replay_options){ .reuse = true, .pool = 3, .seed = 1, .active = 1 };
    while ((got = getopt_long(argc, argv, "", longs, &which)) != -1)
        if (got == '?' || !set_row(&rows[got - 1], optarg, ret_options)) return false;
    if (optind == argc) return true;
    fprintf(stderr, "kvd-replay: \"%s\" is no option; kvd-replay --help lists them\n", argv[optind]);
    return false;
}

void replay_print_help(void) {
    puts("Usage: kvd-replay [OPTION...]\n\nDrives a kvd of its own with the prompts of a trace, without a model, and "
         "says what\n"
         "share of their tokens was found, beside simulated caches.\n\nOptions:");
    for (size_t i = 0; i < N_ROWS; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", rows[i].name, rows[i].arg ? "=" : "", rows[i].arg ? rows[i].arg : "");
        printf("  %-25s %s\n", left, rows[i].help);
    }
    puts("\nExit status: 0 done; 1 wrong usage, or no trace; 2 kvd could not be started, or\n"
         "something failed; 4 the audit found violations, something was lost that kvd must\n"
         "have, or --check failed.");
}
