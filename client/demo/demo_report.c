/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct report_turn *turn_of(const struct report *report, uint32_t conversation, uint32_t turn) {
    return &report->turn[conversation * PROMPTS_TURNS + turn];
}

int report_init(struct report *report, const struct prompts *prompts) {
    memset(report, 0, sizeof *report);
    report->prompts = prompts;
    report->turn = calloc(PROMPTS_CONVERSATIONS * PROMPTS_TURNS, sizeof *report->turn);
    if (!report->turn) return -ENOMEM;
    for (uint32_t c = 0; c < prompts->n_conversations; c++) {
        uint32_t n = prompts->n_system;
        for (uint32_t t = 0; t < prompts->conversation[c].n_turns; t++) {
            n += prompts->conversation[c].turn[t].n;
            turn_of(report, c, t)->prompt = n;
            n += prompts->conversation[c].turn[t].output;
        }
    }
    return 0;
}

void report_fini(struct report *report) {
    free(report->turn);
    report->turn = NULL;
}

/* Columns of the sequence that ends, or that was lost, count as computed from now on. */
static void settle_columns(struct report *report, uint32_t c) {
    if (report->to[c] > report->high[c]) report->high[c] = report->to[c];
    report->from[c] = report->to[c] = 0;
}

void report_restart(struct report *report) {
    for (uint32_t c = 0; c < report->prompts->n_conversations; c++) {
        settle_columns(report, c);
        for (uint32_t t = 0; t < PROMPTS_TURNS; t++) turn_of(report, c, t)->ended = false;
    }
}

void report_begin(struct report *report) {
    struct report_turn *turn = report->turn;
    *report = (struct report){ .prompts = report->prompts, .turn = turn };
    for (uint32_t i = 0; i < PROMPTS_CONVERSATIONS * PROMPTS_TURNS; i++) turn[i].n = 0;
    report_restart(report);
}

static uint32_t overlap(uint32_t from, uint32_t to, uint32_t low, uint32_t high) {
    uint32_t a = from > low ? from : low, b = to < high ? to : high;
    return b > a ? b - a : 0;
}

/* The sequence of c has computed its columns up to `to`. */
static void computed(struct report *report, uint32_t c, uint32_t turn, uint32_t to) {
    uint32_t from = report->to[c], prompt = turn_of(report, c, turn)->prompt;
    if (to <= from) return;
    uint32_t again = overlap(from, to, 0, report->high[c]);
    uint32_t in_prompt = overlap(from, to, 0, prompt < report->high[c] ? prompt : report->high[c]);
    report->recomputed += in_prompt;
    report->said_again += again - in_prompt;
    report->to[c] = to;
}

static void take_activate(struct report *report, const struct report_line *line) {
    uint32_t c = line->conversation, system = report->prompts->n_system;
    settle_columns(report, c);
    report->from[c] = report->to[c] = line->frontier;
    report->prompts_sent++;
    report->prompt_tokens += line->prompt;
    report->reused += line->frontier;
    report->restored += line->restored;
    if (report->checkpoint && line->frontier < system) report->prefix_again += system - line->frontier;
}

static int take_tokens(struct report *report, struct report_line *line, const char *hex) {
    struct report_turn *turn = turn_of(report, line->conversation, line->turn);
    size_t n = strlen(hex);
    if (n % 2 != 0 || line->index + n / 2 > REPORT_OUTPUT) return -EPROTO;
    line->n = (uint32_t)(n / 2);
    for (uint32_t i = 0; i < line->n; i++) {
        unsigned byte = 0;
        if (sscanf(hex + (size_t)2 * i, "%2x", &byte) != 1) return -EPROTO;
        uint32_t at = line->index + i;
        if (report->reference) turn->reference[at] = (uint8_t)byte;
        else if ((at >= turn->n_reference || turn->reference[at] != byte) && report->wrong++ == 0) {
            report->wrong_conversation = line->conversation;
            report->wrong_turn = line->turn;
            report->wrong_token = at;
        }
    }
    uint32_t end = line->index + line->n;
    report->produced += line->n;
    if (report->reference) turn->n_reference = end;
    else if (end > turn->n) turn->n = end;
    computed(report, line->conversation, line->turn, turn->prompt + end - 1);
    return 0;
}

static int find_names(const struct report *report, const char *name, struct report_line *line) {
    for (uint32_t c = 0; c < report->prompts->n_conversations; c++)
        if (strcmp(report->prompts->conversation[c].name, name) == 0) {
            line->conversation = c;
            return line->turn < report->prompts->conversation[c].n_turns ? 0 : -EPROTO;
        }
    return -EPROTO;
}

static int take_end(struct report *report, const struct report_line *line, uint32_t output, uint32_t drafted,
                    uint32_t accepted) {
    struct report_turn *turn = turn_of(report, line->conversation, line->turn);
    turn->ended = output == report->prompts->conversation[line->conversation].turn[line->turn].output;
    report->drafted += drafted;
    report->accepted += accepted;
    return 0;
}

static void take_checkpoint(struct report *report, uint32_t conversation) {
    computed(report, conversation, 0, report->prompts->n_system);
    report->checkpoint = true;
    for (uint32_t c = 0; c < report->prompts->n_conversations; c++)
        if (report->high[c] < report->prompts->n_system) report->high[c] = report->prompts->n_system;
}

int report_line(struct report *report, const char *text, struct report_line *ret_line) {
    struct report_line line = { .kind = REPORT_OTHER };
    char name[32] = "", how[8] = "", hex[2 * REPORT_OUTPUT + 1] = "";
    uint32_t a = 0, b = 0, c = 0;
    int r = 0;
    if (sscanf(text, "activate %31s %u %u %u %7s %u %u", name, &line.turn, &line.prompt, &line.frontier, how, &line.pid,
               &line.restored) == 7) {
        line.kind = REPORT_ACTIVATE;
        if ((r = find_names(report, name, &line)) == 0) take_activate(report, &line);
    } else if (sscanf(text, "tokens %31s %u %u %u %8192s", name, &line.turn, &line.pid, &line.index, hex) == 5) {
        line.kind = REPORT_TOKENS;
        if ((r = find_names(report, name, &line)) == 0) r = take_tokens(report, &line, hex);
    } else if (sscanf(text, "end %31s %u %u %u %u", name, &line.turn, &a, &b, &c) == 5) {
        line.kind = REPORT_END;
        if ((r = find_names(report, name, &line)) == 0) r = take_end(report, &line, a, b, c);
    } else if (sscanf(text, "adopt %31s %u %u", name, &line.turn, &line.frontier) == 3) {
        line.kind = REPORT_ADOPT;
        r = find_names(report, name, &line);
    } else if (sscanf(text, "checkpoint %31s %u", name, &line.frontier) == 2) {
        line.kind = REPORT_CHECKPOINT;
        if ((r = find_names(report, name, &line)) == 0) take_checkpoint(report, line.conversation);
    } else if (sscanf(text, "pause %u", &line.turn) == 1) {
        line.kind = REPORT_PAUSE;
    } else if (strncmp(text, "instance ", 9) == 0) {
        line.kind = REPORT_INSTANCE;
    } else if (strncmp(text, "worker ", 7) != 0 && strncmp(text, "lost ", 5) != 0) {
        return -EPROTO;
    }
    if (r == 0) *ret_line = line;
    return r;
}

bool report_exact(const struct report *report) {
    bool exact = report->wrong == 0;
    for (uint32_t c = 0; c < report->prompts->n_conversations; c++)
        for (uint32_t t = 0; t < report->prompts->conversation[c].n_turns; t++) {
            const struct report_turn *turn = turn_of(report, c, t);
            uint32_t output = report->prompts->conversation[c].turn[t].output;
            exact = exact && turn->ended && turn->n_reference == output && turn->n == output;
        }
    return exact;
}
