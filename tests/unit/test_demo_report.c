/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo's verdict: what its table says must follow from what the schedulers said.
 */
#include <errno.h>
#include <stdio.h>

#include "demo_report.h"
#include "kvt.h"

static uint8_t words[8];
static struct prompts prompts = { /* system 100; a: 20 + 4, then 10 + 2; b: 30 + 4 */
                                  .system = words,
                                  .n_system = 100,
                                  .n_conversations = 2,
                                  .conversation = { { .name = "a",
                                                      .n_turns = 2,
                                                      .turn = { { .text = words, .n = 20, .output = 4 },
                                                                { .text = words, .n = 10, .output = 2 } } },
                                                    { .name = "b",
                                                      .n_turns = 1,
                                                      .turn = { { .text = words, .n = 30, .output = 4 } } } }
};
static struct report report;

static void hear(const char *text) {
    struct report_line line;
    KVT_OK(report_line(&report, text, &line));
}

static void hear_reference(void) {
    KVT_OK(report_init(&report, &prompts));
    report.reference = true;
    hear("worker 7");
    hear("activate a 0 120 0 root 7 0");
    hear("activate b 0 130 0 root 7 0");
    hear("tokens a 0 7 0 6162");
    hear("tokens a 0 7 2 6364");
    hear("tokens b 0 7 0 71727374");
    hear("end a 0 4 0 0");
    hear("end b 0 4 0 0");
    hear("activate a 1 134 0 root 7 0");
    hear("tokens a 1 7 0 7778");
    hear("end a 1 2 0 0");
    struct report_turn *turn = report.turn;
    report = (struct report){ .prompts = &prompts, .turn = turn };
    report_restart(&report);
}

static void hear_first_turn(const char *b) {
    hear("activate a 0 120 0 root 7 0");
    hear("checkpoint a 100");
    hear("activate b 0 130 100 fork 8 0");
    hear("tokens a 0 7 0 6162");
    hear(b);
    hear("tokens a 0 7 2 6364");
    hear("end a 0 4 3 2");
    hear("end b 0 4 0 0");
}

static void an_undisturbed_run_is_exact_and_repeats_nothing(void) {
    hear_reference();
    hear_first_turn("tokens b 0 8 0 71727374");
    KVT_FALSE(report_exact(&report)); /* one answer is missing */
    hear("activate a 1 134 123 move 7 0");
    hear("tokens a 1 7 0 7778");
    hear("end a 1 2 0 0");
    KVT_TRUE(report_exact(&report));
    KVT_EQ(report.prompts_sent, 3);
    KVT_EQ(report.prompt_tokens, 120 + 130 + 134);
    KVT_EQ(report.reused, 100 + 123);
    KVT_EQ(report.recomputed, 0);
    KVT_EQ(report.said_again, 0);
    KVT_EQ(report.prefix_again, 0);
    KVT_EQ(report.accepted, 2);
    report_fini(&report);
}

static void one_wrong_token_is_not_exact(void) {
    hear_reference();
    hear_first_turn("tokens b 0 8 0 71727375");
    hear("activate a 1 134 123 move 7 0");
    hear("tokens a 1 7 0 7778");
    hear("end a 1 2 0 0");
    KVT_EQ(report.wrong, 1);
    KVT_FALSE(report_exact(&report));
    report_fini(&report);
}

static void what_is_computed_twice_is_counted(void) {
    hear_reference();
    hear_first_turn("tokens b 0 8 0 7172"); /* b is cut off after two tokens: columns up to 131 */
    report_restart(&report);
    hear("activate a 0 120 64 fork 7 0"); /* 36 of the shared prefix, 20 of the prompt, 3 of the answer again */
    hear("tokens a 0 7 0 61626364");
    hear("end a 0 4 0 0");
    KVT_EQ(report.prefix_again, 36);
    KVT_EQ(report.recomputed, 56);
    KVT_EQ(report.said_again, 3);
    hear("activate b 0 130 128 fork 7 0"); /* 2 of the prompt, 1 of the answer again; the rest is new */
    hear("tokens b 0 7 0 71727374");
    KVT_EQ(report.recomputed, 58);
    KVT_EQ(report.said_again, 4);
    KVT_FALSE(report_exact(&report)); /* turns of the killed run do not count as ended */
    report_fini(&report);
}

static void a_strange_line_is_refused(void) {
    static const char *const bad[] = { "",
                                       "tokens",
                                       "tokens a 0 7 0 616",
                                       "tokens z 0 7 0 61",
                                       "tokens b 1 7 0 61",
                                       "tokens a 0 7 0 zz",
                                       "tokens a 0 7 4096 61",
                                       "activate a 0 120 0 root",
                                       "end a 9 4 0 0" };
    hear_reference();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct report_line line;
        KVT_EQ_I(report_line(&report, bad[i], &line), -EPROTO);
    }
    report_fini(&report);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(an_undisturbed_run_is_exact_and_repeats_nothing),
                                             KVT_CASE(one_wrong_token_is_not_exact),
                                             KVT_CASE(what_is_computed_twice_is_counted),
                                             KVT_CASE(a_strange_line_is_refused),
                                             { 0 } };
    return kvt_main("demo_report", cases, argc, argv);
}
