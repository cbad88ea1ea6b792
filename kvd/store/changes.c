/* SPDX-License-Identifier: Apache-2.0
 *
 * Which continuations changed (FEED-1): each change takes the next number and puts its continuation's handle into a
 * ring. The ring says of which one something changed, not what: who reads it looks at what the continuation is by then.
 * So an entry that a later one of the same continuation follows tells nothing, a change that is read twice does no
 * harm, and what is gone is a handle that finds nothing any more. Reading is looking: look.c.
 */
#include "store_internal.h"

void note_change(struct store *store, struct cont *cont) {
    store->changes[store->n_changes++ % store->change_limit] = cont_handle(store, cont);
    cont->change = store->n_changes;
}

uint64_t store_changes_end(const struct store *store) { return store->n_changes; }

uint64_t store_changes_begin(const struct store *store) {
    return store->n_changes > store->change_limit ? store->n_changes - store->change_limit : 0;
}
