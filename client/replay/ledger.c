/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

void ledger_set(struct ledger *l, uint32_t request, uint64_t holder, uint32_t tokens) {
    l->entries[request].holder = holder;
    l->entries[request].tokens = tokens;
}

void ledger_cut(struct ledger *l, uint64_t holder, uint32_t tokens) {
    for (uint32_t i = 0; i < l->n; i++)
        if (l->entries[i].holder == holder && l->entries[i].tokens > tokens) l->entries[i].tokens = tokens;
}

void ledger_give_up(struct ledger *l, const struct kvd_activation *want) {
    for (uint32_t i = 0; i < want->n_victims; i++)
        if (!want->victims[i].demote) ledger_cut(l, want->victims[i].continuation.bits, want->victims[i].frontier);
    if (want->from.bits && !want->keep) ledger_cut(l, want->from.bits, 0);
}

void ledger_forget_host(struct ledger *l) {
    for (uint32_t i = 0; i < l->n; i++) l->entries[i].in_host = false;
}

void ledger_note_host(struct ledger *l, uint64_t holder) {
    for (uint32_t i = 0; i < l->n; i++)
        if (l->entries[i].tokens && l->entries[i].holder == holder) l->entries[i].in_host = true;
}
