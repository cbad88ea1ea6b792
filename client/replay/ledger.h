/* SPDX-License-Identifier: Apache-2.0
 *
 * What kvd must still have: for each request the tokens of its prompt and answer that kvd has said to have committed
 * and named, and that nobody has given up. Whoever gives something up writes it here before kvd is asked, so that a
 * death at any moment leaves no more here than kvd has.
 */
#ifndef KVD_REPLAY_LEDGER_H
#define KVD_REPLAY_LEDGER_H

#include <stdbool.h>

#include "kvd_types.h"

struct ledger_entry {
    uint64_t holder; /* handle of the continuation that holds it; 0: a running sequence does */
    uint32_t tokens; /* 0: nothing */
    bool in_host;    /* all of it, when ledger_note_host was told so last */
};
struct ledger {
    uint32_t n; /* requests */
    struct ledger_entry *entries;
};

void ledger_set(struct ledger *ledger, uint32_t request, uint64_t holder, uint32_t tokens);
/* The continuation keeps so many tokens at most. */
void ledger_cut(struct ledger *ledger, uint64_t holder, uint32_t tokens);
/* What an activation gives up: the victims of its recipe, and its source where that is moved. */
void ledger_give_up(struct ledger *ledger, const struct kvd_activation *want);
void ledger_forget_host(struct ledger *ledger);
void ledger_note_host(struct ledger *ledger, uint64_t holder);

#endif
