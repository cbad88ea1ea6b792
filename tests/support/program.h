/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs under test: run to their end, or started and read while they go on.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct run {
    int status; /* exit status; -1: by a signal, or it did not end within a minute, which fails the test */
    char out[4 << 20], err[16384];
};

/* Arguments go up to NULL. uid: as another user, where it is not 0. Returns ret_run. */
struct run *program_run(struct run *ret_run, const char *path, uid_t uid, ...);

struct live {
    pid_t pid;
    int fd; /* its standard output; with a terminal its input, too */
    size_t n, seen;
    char text[1 << 18];
};

/* On a terminal of 120 columns and 30 lines of its own, or writing into a pipe. */
void program_start(struct live *live, bool terminal, const char *path, ...);
/* Reads until the word comes behind what was waited for before. False: 20 s have passed, or the end. */
bool program_says(struct live *live, const char *word);
/* Waits for the end, which must come within a minute: the exit status; -1: by a signal. */
int program_end(struct live *live);

#endif
