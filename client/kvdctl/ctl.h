/* SPDX-License-Identifier: Apache-2.0
 *
 * kvdctl: looks at a running kvd and asks it for small things. It uses libkvd's public interface alone.
 */
#ifndef KVDCTL_H
#define KVDCTL_H

#include <kvd.h>

#include "out.h"

enum ctl_exit {
    CTL_OK = 0,
    CTL_USAGE = 1,
    CTL_REFUSED = 2,     /* kvd refused, or the answer is "does not fit" */
    CTL_UNREACHABLE = 3, /* no connection, or no answer in time */
    CTL_VIOLATIONS = 4   /* the audit found some */
};

struct ctl_options {
    const char *socket, *instance, *color, *from, *victims, *demote, *domain;
    uint32_t timeout_ms, prompt, output, frontier, sets, interval, count, seconds;
    bool json, wide, keep_device, move, follow, help, version;
};

struct ctl {
    struct ctl_options options;
    struct out *out;
    kvd_client *client;
    char **args; /* of the command */
    int n_args;
};

/* One row of the table in main.c: --help, the completion of the shells and the connection come from it. args is what
 * the usage says: words in it are offered as they are, HANDLE is a continuation, SESSION a session, FILE a file. */
struct ctl_command {
    const char *name, *args, *help;
    const char *more;   /* for its own help, lines of 80 characters; NULL: help says it all */
    enum kvd_role role; /* 0: the command connects itself, if at all (follow.h) */
    int min_args, max_args;
    int (*run)(struct ctl *ctl);
};

/* options.c. Fills ret_options from argv; positional arguments stay from optind on. CTL_OK, or CTL_USAGE after a
 * sentence on stderr. */
int ctl_parse(int argc, char **argv, struct ctl_options *ret_options);
void ctl_help(const struct ctl_command *commands, size_t n_commands);
void ctl_command_help(const struct ctl_command *command);
/* "0x2a", "42". Zero and rubbish are refused with a sentence. */
bool ctl_handle(const char *text, const char *what, uint64_t *ret_bits);

/* --domain as the lists' filter: 64 hexadecimal digits are a digest, anything else is a label; without the option it is
 * empty, which means every domain. */
struct kvd_root ctl_domain(const struct ctl_options *options);
void ctl_put_domain(cJSON *object, const struct kvd_root *root);

/* ctl.c. Connects as ctl->client; says nothing. */
enum kvd_status ctl_connect(struct ctl *ctl, enum kvd_role role, struct kvd_error *error);
/* The same, after the instance has been found; with a sentence on stderr (and in JSON): the exit status. */
int ctl_connect_or_say(struct ctl *ctl, enum kvd_role role);
/* Reports a refused call on stderr (and in JSON) and gives the exit status for it. */
int ctl_refused(struct ctl *ctl, enum kvd_status status, const struct kvd_error *error);
int ctl_status(enum kvd_status status);                   /* the exit status alone */
const char *ctl_handle_text(uint64_t bits, char buf[24]); /* "0x...", "-" for none */

int cmd_status(struct ctl *ctl);
int cmd_instances(struct ctl *ctl);
int cmd_config(struct ctl *ctl);
int cmd_cold(struct ctl *ctl);
int cmd_stores(struct ctl *ctl);
int cmd_sequences(struct ctl *ctl);
int cmd_continuations(struct ctl *ctl);
int cmd_sessions(struct ctl *ctl);
int cmd_audit(struct ctl *ctl);
int cmd_drain(struct ctl *ctl);
int cmd_release(struct ctl *ctl);
int cmd_shorten(struct ctl *ctl);
int cmd_demote(struct ctl *ctl);
int cmd_prefetch(struct ctl *ctl);
int cmd_drop(struct ctl *ctl);
int cmd_fence(struct ctl *ctl);
int cmd_plan(struct ctl *ctl);
int cmd_why(struct ctl *ctl);
int cmd_advise(struct ctl *ctl);
int cmd_top(struct ctl *ctl);
int cmd_events(struct ctl *ctl);
int cmd_trace(struct ctl *ctl);

/* cmd_look.c, also for top: all sequences as rows. */
enum kvd_status look_sequences(struct ctl *ctl, cJSON *rows, struct kvd_error *error);

/* cmd_plan.c, also for why: the activation that the options describe, and what is short, as a table. Exit statuses. */
int plan_target(struct ctl *ctl, struct kvd_activation *ret_want);
int plan_show(struct ctl *ctl, const struct kvd_plan *plan);

#endif
