/* SPDX-License-Identifier: Apache-2.0
 *
 * The lives of continuations in time, as figures: when one was made and used, and why it went. The caller tells the
 * time; no decision depends on it.
 */
#include "store_internal.h"

void store_set_time(struct store *store, uint64_t now_ns) { store->now_ns = max_u64(store->now_ns, now_ns); }

const struct store_lives *store_get_lives(const struct store *store) { return &store->lives; }

void life_begin(struct store *store, struct cont *cont, bool found) {
    cont->made_ns = cont->used_ns = store->now_ns;
    if (found) store->lives.found++;
    else store->lives.made++;
}

void life_use(struct store *store, struct cont *cont) {
    histogram_add(&store->lives.reuse_gap, store->now_ns - cont->used_ns);
    cont->used_ns = store->now_ns;
}

void life_end(struct store *store, const struct cont *cont, enum store_fate fate) {
    if (!cont->published || cont->owned) return; /* it never was a continuation */
    store->lives.ended[fate]++;
    histogram_add(&store->lives.lifetime[fate], store->now_ns - cont->made_ns);
    histogram_add(&store->lives.idle[fate], store->now_ns - cont->used_ns);
}

uint64_t lives_balance(const struct store *store) {
    uint64_t living = store->lives.made + store->lives.found;
    for (int fate = 0; fate < STORE_FATES; fate++) living -= store->lives.ended[fate];
    return living;
}
