/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"

extern int optind;

static const struct ctl_command commands[] = {
    { "status", NULL, "how full the store is, and how the daemon does", KVD_ROLE_OBSERVER, 0, 0, cmd_status },
    { "stores", NULL, "the store's pools and their geometry", KVD_ROLE_OBSERVER, 0, 0, cmd_stores },
    { "sequences", NULL, "active sequences: owners, frontiers, pages", KVD_ROLE_OBSERVER, 0, 0, cmd_sequences },
    { "continuations", NULL, "cached prefixes: frontiers, retention, what a release would free", KVD_ROLE_OBSERVER, 0,
      0, cmd_continuations },
    { "sessions", NULL, "connected processes and their roles", KVD_ROLE_OBSERVER, 0, 0, cmd_sessions },
    { "top", NULL, "all that again and again, with rates; q ends it", 0, 0, 0, cmd_top },
    { "events", NULL, "what happens: pressure, lost sessions, ended sequences", 0, 0, 0, cmd_events },
    { "trace", "record|show FILE", "events and figures of a while, kept in a file", 0, 2, 2, cmd_trace },
    { "plan", NULL, "what an activation (--prompt, --output) would need, and whether it fits", KVD_ROLE_OBSERVER, 0, 0,
      cmd_plan },
    { "why", NULL, "what it lacks, and the smallest sets of releases that would do", KVD_ROLE_OBSERVER, 0, 0, cmd_why },
    { "audit", NULL, "recomputes every invariant of the store; 4 if any is broken", KVD_ROLE_ADMIN, 0, 0, cmd_audit },
    { "drain", "[off]", "refuse new activations, or accept them again", KVD_ROLE_ADMIN, 0, 1, cmd_drain },
    { "release", "HANDLE...", "drop continuations, these or all of a --domain", 0, 0, 1024, cmd_release },
    { "shorten", "HANDLE...", "cut continuations to --frontier tokens", KVD_ROLE_ADMIN, 1, 1024, cmd_shorten },
    { "demote", "HANDLE...", "copy continuations to the host arena and free their device pages", KVD_ROLE_ADMIN, 1,
      1024, cmd_demote },
    { "prefetch", "HANDLE...", "bring demoted continuations back to the device", KVD_ROLE_ADMIN, 1, 1024,
      cmd_prefetch },
    { "drop", "device|host HANDLE...", "drop the copies there that the other place has, too", KVD_ROLE_ADMIN, 2, 1024,
      cmd_drop },
    { "fence", "SESSION", "refuse a session's requests from now on", KVD_ROLE_ADMIN, 1, 1, cmd_fence },
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static bool want_colour(const struct ctl_options *options) {
    if (options->color && strcmp(options->color, "auto") != 0) return strcmp(options->color, "always") == 0;
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

/* What could not be written, now or before, is no success. */
static int check_output(int code) {
    bool bad = fflush(stdout) != 0;
    if (!bad && !ferror(stdout)) return code;
    fprintf(stderr, "kvdctl: standard output cannot be written%s%s\n", bad ? ": " : "", bad ? strerror(errno) : "");
    return CTL_REFUSED;
}

static int run_command(struct ctl *ctl, const struct ctl_command *command) {
    int code = CTL_OK;
    ctl->out = out_new(ctl->options.json, want_colour(&ctl->options));
    if (!ctl->out) {
        fputs("kvdctl: out of memory\n", stderr);
        return CTL_REFUSED;
    }
    if (command->role) code = ctl_connect_or_say(ctl, command->role);
    if (code == CTL_OK) code = command->run(ctl);
    kvd_disconnect(ctl->client);
    out_end(ctl->out);
    out_free(ctl->out);
    return check_output(code);
}

int main(int argc, char **argv) {
    struct ctl ctl = { 0 };
    const struct ctl_command *command = NULL;
    if (ctl_parse(argc, argv, &ctl.options) != CTL_OK) return CTL_USAGE;
    if (ctl.options.help) {
        ctl_help(commands, N_COMMANDS);
        return check_output(CTL_OK);
    }
    if (ctl.options.version) {
        printf("kvdctl %d.%d.%d, libkvd %s\n", KVD_VERSION_MAJOR, KVD_VERSION_MINOR, KVD_VERSION_PATCH, kvd_version());
        return check_output(CTL_OK);
    }
    if (optind == argc) {
        fputs("kvdctl: no command; kvdctl --help lists them\n", stderr);
        return CTL_USAGE;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[optind], commands[i].name) == 0) command = &commands[i];
    if (!command) {
        fprintf(stderr, "kvdctl: there is no command \"%s\"; kvdctl --help lists them\n", argv[optind]);
        return CTL_USAGE;
    }
    ctl.args = argv + optind + 1;
    ctl.n_args = argc - optind - 1;
    if (ctl.n_args < command->min_args || ctl.n_args > command->max_args) {
        fprintf(stderr, "kvdctl: usage: kvdctl %s%s%s\n", command->name, command->args ? " " : "",
                command->args ? command->args : "");
        return CTL_USAGE;
    }
    return run_command(&ctl, command);
}
