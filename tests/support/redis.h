/* SPDX-License-Identifier: Apache-2.0
 *
 * A real redis-server in a folder of its own, which ends with the test.
 */
#ifndef TEST_REDIS_H
#define TEST_REDIS_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct redis {
    pid_t pid; /* 0: it does not run */
    char dir[64], socket[96];
    uint16_t port;              /* of a node of a cluster; 0: it listens on the socket alone */
    const char *const *options; /* up to NULL: words of its command line; NULL: none */
};

/* Starts it, again where it ran before, and waits until it answers. False: it does not, which fails the test. */
bool redis_start(struct redis *redis);
/* SIGSTOP: from its return on it answers nothing, until it is sent SIGCONT. */
void redis_stop(const struct redis *redis);
/* SIGKILL. */
void redis_kill(struct redis *redis);
/* Kills it and removes its folder. */
void redis_free(struct redis *redis);
/* A command over a connection of its own, as the default user: printf's format as redisCommand has it. The caller frees
 * the reply. NULL: no answer. */
redisReply *redis_ask(const struct redis *redis, const char *format, ...);
/* The same for an answer that is a number; -1: it is none. */
long long redis_number(const struct redis *redis, const char *format, ...);

/* Checks that the answer is a status, as OK, and frees it. */
void redis_must(redisReply *reply);

/* Asks every few milliseconds; false: it did not become true within 20 s (of which sanitizers make 200). */
bool redis_until(bool (*is_so)(void *), void *context);

#endif
