/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <getopt.h>
#include <stdio.h>

#include "kvd_types.h"

static const struct choice {
    const char *name;
    int letter, argument;
    enum options_action action;
    const char *value, *doc;
} choices[] = {
    { "config", 'c', required_argument, OPTIONS_RUN, "FILE", "configuration (default /etc/kvd/kvd.conf)" },
    { "check-config", 'k', no_argument, OPTIONS_CHECK, "", "check the configuration and exit: 0 fine, 1 not" },
    { "plan", 'p', no_argument, OPTIONS_PLAN, "", "print the capacity that the devices allow, part by part, and exit" },
    { "json", 'j', no_argument, OPTIONS_RUN, "", "with --plan: every number, as JSON" },
    { "help-config", 'H', no_argument, OPTIONS_HELP_CONFIG, "", "print a commented configuration with every default" },
    { "from-hf", 'F', required_argument, OPTIONS_FROM_HF, "FILE",
      "print sections for the model of a config.json and what they come to, and exit" },
    { "tp", 't', required_argument, OPTIONS_RUN, "N", "with --from-hf: devices of the model (default 1)" },
    { "profile", 'P', required_argument, OPTIONS_RUN, "NAME",
      "with --from-hf: how K and V are stored (default: as the file says, else bf16)" },
    { "foreground", 'f', no_argument, OPTIONS_RUN, "", "stay in the foreground (kvd always does)" },
    { "help", 'h', no_argument, OPTIONS_HELP, "", "print this" },
    { "version", 'V', no_argument, OPTIONS_VERSION, "", "print the version" },
};
#define N_CHOICES (sizeof choices / sizeof *choices)

static int take_devices(const char *text, unsigned *ret_devices) {
    unsigned n = text[0] && !text[1] ? (unsigned)(text[0] - '0') : 0;
    if (n >= 1 && n <= KVD_MAX_RANKS) {
        *ret_devices = n;
        return 0;
    }
    fprintf(stderr, "kvd: --tp \"%s\" is no number of devices; write 1 to %d\n", text, KVD_MAX_RANKS);
    return 1;
}

int options_parse(int argc, char **argv, struct options *ret_options) {
    struct option longs[N_CHOICES + 1] = { 0 };
    char shorts[2 * N_CHOICES + 1];
    size_t n = 0;
    int letter;
    struct options options = { .action = OPTIONS_RUN, .config = "/etc/kvd/kvd.conf", .devices = 1 };
    for (size_t i = 0; i < N_CHOICES; i++) {
        longs[i] = (struct option){ choices[i].name, choices[i].argument, NULL, choices[i].letter };
        shorts[n++] = (char)choices[i].letter;
        if (choices[i].argument == required_argument) shorts[n++] = ':';
    }
    shorts[n] = 0;
    optind = 1;
    while ((letter = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        const struct choice *choice = NULL;
        for (size_t i = 0; i < N_CHOICES; i++)
            if (choices[i].letter == letter) choice = &choices[i];
        if (!choice) {
            fputs("kvd --help lists the options\n", stderr);
            return 1;
        }
        if (letter == 'F') options.model = optarg;
        if (letter == 't' && take_devices(optarg, &options.devices)) return 1;
        if (letter == 'P') options.profile = optarg;
        if (letter == 'c') options.config = optarg;
        else if (letter == 'j') options.json = true;
        else if (choice->action != OPTIONS_RUN) options.action = choice->action;
    }
    if (optind < argc) {
        fprintf(stderr, "kvd: \"%s\" is no option; kvd --help lists them\n", argv[optind]);
        return 1;
    }
    *ret_options = options;
    return 0;
}

void options_print_help(void) {
    puts("kvd: owns the KV cache of LLM engines and serves it over a local socket.\n\n"
         "Usage: kvd [--config FILE] [OPTION]\n");
    for (size_t i = 0; i < N_CHOICES; i++)
        printf("  -%c, --%s%s%-*s  %s\n", choices[i].letter, choices[i].name, *choices[i].value ? " " : "",
               (int)(18 - snprintf(NULL, 0, "%s%s", choices[i].name, *choices[i].value ? " " : "")), choices[i].value,
               choices[i].doc);
    puts("\nSignals: SIGTERM and SIGINT stop in order; SIGHUP reads the configuration again (log level, access,\n"
         "time-outs, queues, low-water marks, limits of connections and of sequences a session).\n"
         "Exit status: 0 stopped in order; 1 the command line or the configuration is wrong; 2 cannot start;\n"
         "3 a device was lost.");
}
