/* SPDX-License-Identifier: Apache-2.0 */
#include "crash.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Atomic uint64_t reached;
static crash_hook_fn hook;
static void *hook_context;

uint64_t crash_reached(void) { return atomic_load(&reached); }

void crash_hook(crash_hook_fn fn, void *context) {
    hook = fn;
    hook_context = context;
}

/* Read once: the environment does not change while kvd runs. */
static uint64_t crash_at(void) {
    static _Atomic uint64_t at = UINT64_MAX;
    uint64_t value = atomic_load(&at);
    if (value != UINT64_MAX) return value;
    const char *text = getenv("KVD_CRASH_AT");
    value = text ? strtoull(text, NULL, 10) : 0;
    atomic_store(&at, value);
    return value;
}

void crash_point(const char *where) {
    uint64_t number = atomic_fetch_add(&reached, 1) + 1;
    if (hook) hook(hook_context, where);
    if (number != crash_at()) return;
    char text[160];
    int n = snprintf(text, sizeof text, "kvd: dies at crash point %llu, %s\n", (unsigned long long)number, where);
    ssize_t written = write(STDERR_FILENO, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    (void)written; /* nobody is left to tell */
    kill(getpid(), SIGKILL);
    for (;;) pause(); /* the signal is on its way: nothing more happens here */
}
