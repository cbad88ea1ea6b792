/* SPDX-License-Identifier: Apache-2.0
 *
 * Echo peers for bench_rpc: a message of `ask` bytes is answered by one of `answer` bytes. Each peer is a process of
 * its own; start them before anything in this process uses nng or threads.
 */
#ifndef BENCH_ECHO_H
#define BENCH_ECHO_H

#include <stddef.h>
#include <sys/types.h>

#define ECHO_LIMIT 65536u

struct echo_sizes {
    size_t ask, answer;
};

/* One server process; it reads sizes from the first 8 bytes of each message (u32 ask, u32 answer). */
pid_t echo_raw_start(const char *path);
pid_t echo_nng_start(const char *path);

/* Clients: connect, then ping (aborts the bench with a sentence on errors). */
struct echo_raw {
    int fd;
};
void echo_raw_connect(struct echo_raw *e, const char *path);
void echo_raw_ping(struct echo_raw *e, struct echo_sizes sizes);

struct echo_nng;
struct echo_nng *echo_nng_connect(const char *path);
void echo_nng_ping(struct echo_nng *e, struct echo_sizes sizes);

void bench_die(const char *what) __attribute__((noreturn));

#endif
