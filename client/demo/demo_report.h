/* SPDX-License-Identifier: Apache-2.0
 *
 * What the demo's schedulers reported, line by line (demo_scheduler.c lists the lines), compared with the reference run
 * and counted.
 */
#ifndef KVD_DEMO_REPORT_H
#define KVD_DEMO_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "prompts.h"

#define REPORT_OUTPUT 4096

struct report_turn {
    uint32_t prompt;         /* tokens before the answer */
    uint32_t n_reference, n; /* answer in the reference run; longest answer of the other runs */
    uint8_t reference[REPORT_OUTPUT];
    bool ended; /* to the last token, in the current run */
};

struct report {
    const struct prompts *prompts;
    bool reference;           /* lines are of the reference run */
    struct report_turn *turn; /* [conversation][PROMPTS_TURNS] */
    /* A conversation: the sequence that it has now began at `from` and has computed its columns up to `to`; earlier
     * ones of this conversation had computed up to `high`. */
    uint32_t from[PROMPTS_CONVERSATIONS], to[PROMPTS_CONVERSATIONS], high[PROMPTS_CONVERSATIONS];
    uint32_t prompts_sent;  /* activations */
    uint64_t prompt_tokens; /* of their prompts */
    uint64_t reused;        /* of those, taken from pages that kvd had */
    uint64_t restored;      /* of those, out of the host arena */
    uint64_t recomputed;    /* prompt columns that had been computed before */
    uint64_t said_again;    /* answer columns, the same */
    uint64_t prefix_again;  /* columns of the shared prefix computed after its checkpoint */
    uint64_t produced, wrong;
    uint32_t wrong_conversation, wrong_turn, wrong_token; /* the first */
    uint64_t drafted, accepted;
    bool checkpoint;
};

/* One line of a scheduler, as far as demo_run acts on it. */
struct report_line {
    enum {
        REPORT_OTHER,
        REPORT_ACTIVATE,
        REPORT_TOKENS,
        REPORT_ADOPT,
        REPORT_END,
        REPORT_CHECKPOINT,
        REPORT_PAUSE,
        REPORT_INSTANCE
    } kind;
    uint32_t conversation, turn; /* PAUSE: turn, turns that all have had */
    uint32_t pid;                /* TOKENS, ACTIVATE: of the worker */
    uint32_t index, n;           /* TOKENS: place in the answer */
    uint32_t prompt, frontier;   /* ACTIVATE; ADOPT: frontier */
    uint32_t restored;           /* ACTIVATE */
};

int report_init(struct report *report, const struct prompts *prompts); /* 0 or -ENOMEM */
void report_fini(struct report *report);
/* Another run is compared with the same reference: counts and answers begin anew. */
void report_begin(struct report *report);
/* A new scheduler process begins from nothing. */
void report_restart(struct report *report);
/* 0, or -EPROTO: not a line of a scheduler. */
int report_line(struct report *report, const char *line, struct report_line *ret_line);
/* Every answer is complete in the current run and equal to the reference. */
bool report_exact(const struct report *report);

#endif
