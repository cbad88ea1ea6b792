/* SPDX-License-Identifier: Apache-2.0
 *
 * Model-based test of the store: all scenarios with a seed, all rules of CONTRACT.md sections 3, 6, 8..12 and 14 after
 * every step. Usage: test_model [-n OPERATIONS a scenario] [-s SEED] [-c SCENARIO]... [-l]
 */
#include <getopt.h>
#include <stdlib.h>

#include "driver.h"
#include "kvt.h"

#ifndef MODEL_DIVISOR
#define MODEL_DIVISOR 1
#endif

static uint64_t operations_given;

static bool run_drawn(const struct scenario *s, uint64_t seed, uint64_t n) {
    struct scenario drawn = *s;
    scenario_draw(seed, &drawn.config);
    return run_scenario(&drawn, seed, n);
}

static void run_index(uint32_t i) {
    const struct scenario *s = &scenarios[i];
    uint64_t n = operations_given ? operations_given : s->operations / MODEL_DIVISOR, seed = kvt_seed();
    if (!s->drawn) KVT_TRUE(run_scenario(s, seed, n));
    else if (operations_given) KVT_TRUE(run_drawn(s, seed, n)); /* the replay of one configuration */
    else
        for (uint64_t done = 0; done < n && KVT_TRUE(run_drawn(s, seed, 10000)); done += 10000)
            seed = kvt_random(&seed);
}

#define RUN(i)                                                                                                         \
    static void run_##i(void) { run_index(i); }
/* clang-format off */
RUN(0) RUN(1) RUN(2) RUN(3) RUN(4) RUN(5) RUN(6) RUN(7) RUN(8) RUN(9) RUN(10) RUN(11)
RUN(12) RUN(13) RUN(14) RUN(15) RUN(16) RUN(17) RUN(18) RUN(19) RUN(20) RUN(21) RUN(22) RUN(23)
RUN(24) RUN(25) RUN(26) RUN(27)
    /* clang-format on */
    static void (*const runs[])(void) = { run_0,  run_1,  run_2,  run_3,  run_4,  run_5,  run_6,
                                          run_7,  run_8,  run_9,  run_10, run_11, run_12, run_13,
                                          run_14, run_15, run_16, run_17, run_18, run_19, run_20,
                                          run_21, run_22, run_23, run_24, run_25, run_26, run_27 };
#define N_RUNS (sizeof runs / sizeof *runs)

int main(int argc, char **argv) {
    struct kvt_case cases[N_RUNS + 1] = { { 0 } };
    char list[] = "-l", *args[N_RUNS + 8];
    int n_args = 0, opt;
    args[n_args++] = argv[0];
    for (uint32_t i = 0; i < n_scenarios && i < N_RUNS; i++) cases[i] = (struct kvt_case){ scenarios[i].name, runs[i] };
    if (n_scenarios != N_RUNS) return 2;
    char *names[N_RUNS];
    int n_names = 0;
    while ((opt = getopt(argc, argv, "n:s:c:l")) != -1) {
        if (opt == 'n') operations_given = strtoull(optarg, NULL, 0);
        else if (opt == 's') setenv("KVT_SEED", optarg, 1);
        else if (opt == 'c' && n_names < (int)N_RUNS) names[n_names++] = optarg;
        else if (opt == 'l') args[n_args++] = list;
        else return 2;
    }
    for (int i = 0; i < n_names; i++) args[n_args++] = names[i];
    args[n_args] = NULL;
    optind = 1;
    return kvt_main("model", cases, n_args, args);
}
