/* SPDX-License-Identifier: Apache-2.0 */
#include "remainder.h"

#include <stdlib.h>

#include "core.h"
#include "session.h"

struct remainder {
    store_cont cont; /* with its generation: of another one it says nothing */
    kvd_session_id owner;
};

int remainders_open(struct service *s) {
    s->remainders = calloc(store_get_config(s->store)->max_continuations, sizeof *s->remainders);
    return s->remainders == NULL;
}

void remainders_close(struct service *s) { free(s->remainders); }

store_cont remainder_note(struct service *s, store_cont cont, kvd_session_id owner) {
    if (!cont.bits || store_can_be_found(s->store, cont)) return cont;
    if (!session_find(s, owner) && !store_release(s->store, cont, NULL)) return (store_cont){ 0 };
    struct remainder *entry = &s->remainders[(uint32_t)cont.bits];
    s->n_remainders += !entry->cont.bits;
    *entry = (struct remainder){ cont, owner };
    s->remainders_wait |= !session_find(s, owner);
    return cont;
}

/* It has gone, or has a name by now and needs nobody, or is released. */
static bool is_settled(struct service *s, const struct remainder *entry) {
    struct store_refusal refusal;
    if (store_can_be_found(s->store, entry->cont)) return true;
    if (session_find(s, entry->owner)) return false;
    if (!store_release(s->store, entry->cont, &refusal) || refusal.code == STORE_E_STALE) return true;
    s->remainders_wait = true; /* an activation in flight uses it */
    return false;
}

void remainders_release(struct service *s) {
    uint32_t left = s->n_remainders;
    s->remainders_wait = false;
    for (uint32_t i = 0; left; i++) {
        struct remainder *entry = &s->remainders[i];
        if (!entry->cont.bits) continue;
        left--;
        if (!is_settled(s, entry)) continue;
        entry->cont.bits = 0;
        s->n_remainders--;
    }
}
