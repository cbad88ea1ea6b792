/* SPDX-License-Identifier: Apache-2.0
 *
 * Which continuations were demoted lately, or are to be written as those, for the cold tier. Each is a handle and a
 * time: it holds nothing.
 */
#include "store_internal.h"

static void note_cont(struct store *store, const struct cont *cont, uint64_t at_ns) {
    store->lately[store->lately_end++ % LATELY_LIMIT] = (struct demoted_lately){ cont_handle(store, cont), at_ns };
    if (store->lately_end - store->lately_first <= LATELY_LIMIT) return;
    store->lately_first++;
    store->lately_forgotten++;
}

void note_demoted(struct store *store, const struct cont *cont) { note_cont(store, cont, store->now_ns); }

void store_note_retained(struct store *store, store_cont handle, bool ages) {
    const struct cont *cont = cont_find(store, handle);
    if (store->arena && cont && cont->published) note_cont(store, cont, ages ? store->now_ns : 0);
}

bool store_is_noted(const struct store *store, store_cont cont) {
    for (uint64_t i = store->lately_first; i < store->lately_end; i++)
        if (store->lately[i % LATELY_LIMIT].cont.bits == cont.bits) return true;
    return false;
}

bool store_take_demoted(struct store *store, store_cont *ret_cont, uint64_t *ret_at_ns) {
    if (store->lately_first == store->lately_end) return false;
    const struct demoted_lately *last = &store->lately[--store->lately_end % LATELY_LIMIT];
    *ret_cont = last->cont;
    *ret_at_ns = last->at_ns;
    return true;
}

uint64_t store_demoted_waiting(const struct store *store, uint64_t *ret_forgotten) {
    *ret_forgotten = store->lately_forgotten;
    return store->lately_end - store->lately_first;
}
