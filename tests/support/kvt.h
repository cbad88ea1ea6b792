/* SPDX-License-Identifier: Apache-2.0
 *
 * Test support: CUnit with checks that print both values, and seeds that can be given back.
 *
 *     static void pool_6_accounting(void) { KVT_EQ(pool_available(&p), 3); }   // POOL-6
 *     int main(int argc, char **argv) {
 *         static const struct kvt_case cases[] = { KVT_CASE(pool_6_accounting), {0} };
 *         return kvt_main("pool", cases, argc, argv);
 *     }
 *
 * Name cases after the contract rule that they prove, or list the IDs in a comment on the case.
 * Usage of a runner: NAME [-l] [-s SEED] [CASE...]; KVT_SEED in the environment does the same as -s. With KVT_STOP the
 * first check that fails ends it.
 */
#ifndef KVT_H
#define KVT_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

struct kvt_case {
    const char *name;
    void (*run)(void);
};
#define KVT_CASE(fn)                                                                                                   \
    { #fn, fn }

/* Runs the cases (all, or those named on the command line), prints CUnit's summary; 0 = all passed. */
int kvt_main(const char *suite, const struct kvt_case *cases, int argc, char **argv);

/* The seed of this run, printed once; and a splitmix64 generator for it. */
uint64_t kvt_seed(void);
uint64_t kvt_random(uint64_t *state);
static inline uint32_t kvt_below(uint64_t *state, uint32_t n) { return (uint32_t)(kvt_random(state) % n); }

/* Each records one assertion; on failure prints file, line, both sides. Returns whether it held. */
bool kvt_check(bool ok, const char *file, int line, const char *text);
bool kvt_check_u64(uint64_t a, uint64_t b, const char *file, int line, const char *text);
bool kvt_check_i64(int64_t a, int64_t b, const char *file, int line, const char *text);
bool kvt_check_str(const char *a, const char *b, const char *file, int line, const char *text);
bool kvt_check_has(const char *text, const char *part, const char *file, int line);
bool kvt_check_mem(const void *a, const void *b, size_t n, const char *file, int line, const char *text);
bool kvt_check_near(double a, double b, double limit, const char *file, int line, const char *text);

#define KVT_TRUE(e) kvt_check((e), __FILE__, __LINE__, #e)
#define KVT_FALSE(e) kvt_check(!(e), __FILE__, __LINE__, "!(" #e ")")
#define KVT_EQ(a, b) kvt_check_u64((uint64_t)(a), (uint64_t)(b), __FILE__, __LINE__, #a " == " #b)
#define KVT_EQ_I(a, b) kvt_check_i64((int64_t)(a), (int64_t)(b), __FILE__, __LINE__, #a " == " #b)
#define KVT_EQ_STR(a, b) kvt_check_str((a), (b), __FILE__, __LINE__, #a " == " #b)
#define KVT_HAS(text, part) kvt_check_has((text), (part), __FILE__, __LINE__)
#define KVT_EQ_MEM(a, b, n) kvt_check_mem((a), (b), (n), __FILE__, __LINE__, #a " == " #b)
#define KVT_NEAR(a, b, limit) kvt_check_near((a), (b), (limit), __FILE__, __LINE__, #a " ~ " #b)
#define KVT_OK(e) KVT_EQ_I((e), 0)
/* Waits for a child's end, and reaps it: its exit status, or minus the signal that ended it. One that lives on for a
 * minute (ten under a sanitizer) fails the test and is killed. -1: there is no such child. */
int kvt_wait(pid_t pid);
/* Leaves the case: for what the rest of it stands on. */
#define KVT_NEED(e)                                                                                                    \
    do {                                                                                                               \
        if (!KVT_TRUE(e)) return;                                                                                      \
    } while (0)

#endif
