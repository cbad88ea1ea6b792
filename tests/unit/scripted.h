/* SPDX-License-Identifier: Apache-2.0
 *
 * A scripted kvd for tests of libkvd: a listening socket, one thread, frames by the codec. It keeps what every kvd must
 * (SRV-1): numbers without gaps, a repeated number gets the first answer and runs nothing. What a request answers, and
 * what happens to the connection, is the script's.
 */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include "codec.h"

enum script_act {
    SCRIPT_ANSWER,
    SCRIPT_HOLD,        /* executed; the answer goes out with script_let_go, or to a repeat of the number */
    SCRIPT_DROP,        /* executed; the connection closes instead of the answer */
    SCRIPT_DROP_UNRUN,  /* the connection closes, nothing was executed */
    SCRIPT_LOSE,        /* the request is lost: not executed, not answered */
    SCRIPT_JUNK_LENGTH, /* an impossible frame */
    SCRIPT_JUNK_BODY,   /* a frame of the right type that is no message */
    SCRIPT_JUNK_TYPE    /* an answer of another type */
};

struct script;
/* On the server's thread, once a request that is to be executed. reply is zeroed, type set. It may block (a kvd that
 * does not read). */
typedef enum script_act script_fn(void *user, const struct msg_request *request, struct msg_reply *reply);

struct script *script_start(script_fn *fn, void *user);
void script_stop(struct script *s);
const char *script_path(const struct script *s);

/* What Hello answers from now on. */
void script_set_epoch(struct script *s, uint64_t epoch);
void script_refuse_hello(struct script *s, uint32_t status);
void script_let_go(struct script *s); /* sends held answers, in order */
void script_disconnect(struct script *s);
void script_event(struct script *s, const struct kvd_event *event);

/* Waits (10 s at most) until so many requests, Hello not counted, were served. */
bool script_wait_requests(struct script *s, unsigned n);
unsigned script_requests(struct script *s); /* frames but Hello, repeats included */
unsigned script_executed(struct script *s); /* numbered requests that ran */
unsigned script_repeats(struct script *s);  /* numbered requests that got their first answer again */
unsigned script_hellos(struct script *s);
unsigned script_bad_numbers(struct script *s); /* gaps, or a repeated number with other content */
uint32_t script_event_mask(struct script *s);

#endif
