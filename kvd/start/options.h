/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of kvd.
 */
#ifndef KVD_OPTIONS_H
#define KVD_OPTIONS_H

#include <stdbool.h>

enum { EXIT_FINE = 0, EXIT_USAGE = 1, EXIT_START = 2, EXIT_DEVICE = 3 };

enum options_action {
    OPTIONS_RUN,
    OPTIONS_CHECK,
    OPTIONS_PLAN,
    OPTIONS_HELP_CONFIG,
    OPTIONS_FROM_HF,
    OPTIONS_HELP,
    OPTIONS_VERSION
};
struct options {
    enum options_action action;
    const char *config;
    bool json;
    const char *model, *profile; /* OPTIONS_FROM_HF: config.json of a model; NULL where none is asked for */
    unsigned devices;
};

/* 0, or 1 after saying on stderr what is wrong. */
int options_parse(int argc, char **argv, struct options *ret_options);
void options_print_help(void);

#endif
