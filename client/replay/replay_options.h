/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVD_REPLAY_OPTIONS_H
#define KVD_REPLAY_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define REPLAY_MOST_ACTIVE 1024u

struct replay_options {
    const char *trace, *kvd; /* NULL: one is made; the installed one */
    double pool, arena;      /* percent of the tokens of all distinct blocks */
    double speed;            /* 0: as fast as it goes */
    double kill_engine;      /* seconds of the trace's time; 0: never */
    uint32_t kill_kvd;       /* times */
    uint32_t seed, requests, active;
    bool reuse, one_copy, check, help, version;
};

/* False: it has said on stderr what is wrong. */
bool replay_parse_options(int argc, char **argv, struct replay_options *ret_options);
void replay_print_help(void);

#endif
