/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ctl.h"

extern int optind;

static const struct ctl_command commands[] = {
    { "status", NULL, "how full the store is, and how the daemon does", NULL, KVD_ROLE_OBSERVER, 0, 0, cmd_status },
    { "instances", NULL, "kvd's instances here, their sockets and arenas",
      "An instance is a folder in /run/kvd, a file in /etc/kvd, or both. An arena in\n"
      "/dev/shm whose instance is not known was left by one that is gone.",
      0, 0, 0, cmd_instances },
    { "config", NULL, "the configuration in effect; where it comes from",
      "auto: kvd has chosen the value. What the file says since the last reload and what\n"
      "needs a restart is named below the table.",
      KVD_ROLE_OBSERVER, 0, 0, cmd_config },
    { "cold", "[ping|verify]", "the cold tier: its engine, what was written",
      "ping: how long a question to the engine takes. verify: the same, and 256 of the\n"
      "objects written last are read back and compared; wrong ones are deleted there.\n"
      "Both need the role admin. Exit status 2: it does not answer, or some were wrong.",
      0, 0, 1, cmd_cold },
    { "stores", NULL, "the store's pools and their geometry", NULL, KVD_ROLE_OBSERVER, 0, 0, cmd_stores },
    { "sequences", NULL, "active sequences: owners, frontiers, pages", NULL, KVD_ROLE_OBSERVER, 0, 0, cmd_sequences },
    { "continuations", NULL, "cached prefixes, and what releases would free", NULL, KVD_ROLE_OBSERVER, 0, 0,
      cmd_continuations },
    { "sessions", NULL, "connected processes and their roles", NULL, KVD_ROLE_OBSERVER, 0, 0, cmd_sessions },
    { "top", NULL, "all that again and again, with rates; q ends it",
      "Any other key looks at once. Where the output is no terminal it prints once,\n"
      "or as often as --count says.",
      0, 0, 0, cmd_top },
    { "events", NULL, "what happens: pressure, lost sessions, ends",
      "A line each. It ends when the daemon is gone; with --follow it waits for it.", 0, 0, 0, cmd_events },
    { "trace", "record|show FILE", "events and figures of a while, kept in a file",
      "record writes a new file until it is interrupted; show prints one and needs no\n"
      "daemon. The file - is standard output or input.",
      0, 2, 2, cmd_trace },
    { "plan", NULL, "what an activation would need; whether it fits",
      "It takes --prompt and --output. Nothing is activated. Exit status 2: not now.", KVD_ROLE_OBSERVER, 0, 0,
      cmd_plan },
    { "why", NULL, "what it lacks, and the releases that would do",
      "The same as plan, and the smallest sets of continuations whose release would\n"
      "make it fit, those that lose least first. Nothing is released.",
      KVD_ROLE_OBSERVER, 0, 0, cmd_why },
    { "advise", NULL, "what more memory would find; who uses what",
      "Of the prompts that came since kvd's start: the share of their tokens that caches of\n"
      "other sizes find. It is computed for the least recently used page that goes first; a\n"
      "better policy finds more. What runs has found what stands in the line \"found\".",
      KVD_ROLE_OBSERVER, 0, 0, cmd_advise },
    { "audit", NULL, "recompute every invariant; 4 if any is broken", NULL, KVD_ROLE_ADMIN, 0, 0, cmd_audit },
    { "drain", "[off]", "refuse new activations, or accept them again", NULL, KVD_ROLE_ADMIN, 0, 1, cmd_drain },
    { "release", "HANDLE...", "drop continuations, or all of a --domain",
      "Where a handle is not well-formed, nothing is dropped. Otherwise each is tried, and\n"
      "those that are refused are named.",
      0, 0, 1024, cmd_release },
    { "shorten", "HANDLE...", "cut continuations to --frontier tokens",
      "A multiple of 64, or a place in the last page.", KVD_ROLE_ADMIN, 1, 1024, cmd_shorten },
    { "demote", "HANDLE...", "copy to the arena, free the device's pages",
      "They are found as before, and an activation brings them back.", KVD_ROLE_ADMIN, 1, 1024, cmd_demote },
    { "prefetch", "HANDLE...", "bring demoted continuations back to the device", NULL, KVD_ROLE_ADMIN, 1, 1024,
      cmd_prefetch },
    { "drop", "device|host HANDLE...", "drop the copies there that the other has, too", "An only copy is not dropped.",
      KVD_ROLE_ADMIN, 2, 1024, cmd_drop },
    { "fence", "SESSION", "refuse a session's requests from now on",
      "Its sequences stay quarantined until its process is gone.", KVD_ROLE_ADMIN, 1, 1, cmd_fence },
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static bool want_colour(const struct ctl_options *options) {
    if (options->color && strcmp(options->color, "auto") != 0) return strcmp(options->color, "always") == 0;
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

/* Of a line: the terminal's, else what COLUMNS says, else 80. */
static unsigned output_width(const struct ctl_options *options) {
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    unsigned long n = columns ? strtoul(columns, NULL, 10) : 0;
    if (options->wide) return 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col) return size.ws_col;
    return n >= 20 && n < 10000 ? (unsigned)n : 80;
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
    ctl->out = out_new(ctl->options.json, want_colour(&ctl->options), output_width(&ctl->options));
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

static const struct ctl_command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    fprintf(stderr, "kvdctl: there is no command \"%s\"; kvdctl --help lists them\n", name);
    return NULL;
}

int main(int argc, char **argv) {
    struct ctl ctl = { 0 };
    if (ctl_parse(argc, argv, &ctl.options) != CTL_OK) return CTL_USAGE;
    if (ctl.options.version) {
        printf("kvdctl %d.%d.%d, libkvd %s\n", KVD_VERSION_MAJOR, KVD_VERSION_MINOR, KVD_VERSION_PATCH, kvd_version());
        return check_output(CTL_OK);
    }
    if (optind == argc && ctl.options.help) {
        ctl_help(commands, N_COMMANDS);
        return check_output(CTL_OK);
    }
    if (optind == argc) {
        fputs("kvdctl: no command; kvdctl --help lists them\n", stderr);
        return CTL_USAGE;
    }
    const struct ctl_command *command = find_command(argv[optind]);
    if (!command) return CTL_USAGE;
    if (ctl.options.help) {
        ctl_command_help(command);
        return check_output(CTL_OK);
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
