/* SPDX-License-Identifier: Apache-2.0
 *
 * Rolling checkpoints (GRP-5): where its activation asked for them, a sequence leaves a complete continuation at each
 * boundary that a Round passes. This is for stores in which what it leaves behind is gone: with windows, or with state
 * images. Elsewhere LIVE-1 shows all of it anyhow, and none is made.
 *
 * The Round that passes a boundary takes the checkpoint before it lets go of what lies behind the window. Its last
 * pages have no names yet; so it waits, and nobody finds it, until the sequence has named them. Until then no request
 * can name it. From then on it is a continuation as any other, which is its sequence's own in addition: the sequence
 * supersedes the oldest of its own, and a truncation takes those along that lie behind it. It is its own no more where
 * it stands for an equal one (FIT-5), or somebody gave it a retention, and when the sequence has ended.
 */
#include "store_internal.h"

static uint32_t number_of(const struct store *store, const struct seq *seq) {
    return (uint32_t)(seq - store->seqs) + 1;
}

/* NULL: that one has gone, or is its own no more. */
static struct cont *own_at(const struct store *store, const struct seq *seq, uint32_t i) {
    struct cont *cont = cont_find(store, seq->rolled[i]);
    return cont && cont->rolls_for == number_of(store, seq) ? cont : NULL;
}

/* No transition uses it. */
static bool may_go(const struct cont *cont) {
    return cont->published ? cont_may_go(cont) && !cont->moves : cont->source_slot == KVD_NONE;
}

uint32_t roll_after(const struct seq *seq, uint32_t tokens) {
    uint64_t every = seq->roll_every, next = every ? (tokens / every + 1) * every : KVD_NONE;
    if (seq->roll_prompt > tokens) next = min_u64(next, seq->roll_prompt);
    return (uint32_t)min_u64(next, KVD_NONE);
}

void roll_begin(const struct store *store, struct seq *seq, const struct store_activation *want) {
    bool on = (store->has_windows || store->config.has_state) && store->config.max_rolling;
    if (on) seq->roll_every = want->checkpoint_every;
    if (on && want->checkpoint_prompt) seq->roll_prompt = (want->prompt_tokens - 1) & ~(uint32_t)KVD_PAGE_MASK;
    seq->roll_next = roll_after(seq, want->frontier);
}

/* ---- at a Round ---- */

/* The list without those that are its own no more. Returns who goes for a newer one: the oldest that may, but the last
 * one that is found only where no other may. The newer ones may end without a name, by a death or a kill. */
static struct cont *sort_out(const struct store *store, struct seq *seq) {
    uint32_t n = 0, found = 0;
    struct cont *oldest = NULL, *waits = NULL;
    for (uint32_t i = 0; i < seq->n_rolled; i++) {
        struct cont *cont = own_at(store, seq, i);
        if (!cont) continue;
        seq->rolled[n++] = seq->rolled[i];
        found += cont->published;
        if (!may_go(cont)) continue;
        if (!oldest || MUTANT(rolling_newest_goes)) oldest = cont;
        if (!waits && !cont->published) waits = cont;
    }
    seq->n_rolled = n;
    bool last = oldest && oldest->published && found == 1;
    return last && waits && !MUTANT(last_found_one_goes) ? waits : oldest;
}

static void forget(struct seq *seq, store_cont handle) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < seq->n_rolled; i++)
        if (seq->rolled[i].bits != handle.bits) seq->rolled[n++] = seq->rolled[i];
    seq->n_rolled = n;
}

/* False: something lacks. */
static bool take_one(struct store *store, struct seq *seq, uint32_t boundary, const struct store_round_item *item,
                     struct store_round_result *result) {
    struct post_state post = { .victims = store->victims };
    struct cont *oldest = sort_out(store, seq);
    bool image = item->ask & KVD_ROUND_STATE && item->state_frontier == boundary; /* is what its slot has now */
    if (store->config.has_state && !image && !MUTANT(rolling_image_is_of_elsewhere)) return false;
    if (!windows_hold(store, seq->space, boundary)) return false;
    if (seq->n_rolled >= store->config.max_rolling + (MUTANT(one_rolling_too_many) ? 1u : 0u)) {
        if (!oldest) return false;
        post.victims[post.n++] = (struct victim){ .cont = oldest };
    }
    post_look(store, &post);
    if (checkpoint_check(store, seq, boundary, &post, NULL)) return false;
    if (post.n) {
        forget(seq, cont_handle(store, oldest));
        cont_release(store, oldest, STORE_RELEASED);
        store->lives.rolling[STORE_ROLLING_SUPERSEDED]++;
    }
    struct cont *cont = checkpoint_take(store, seq, boundary, &post);
    cont->rolls_for = number_of(store, seq);
    seq->rolled[seq->n_rolled++] = cont_handle(store, cont);
    result->n_rolled++;
    if (store->config.has_state) {
        cont->ticket = item->ticket;
        checkpoint_fly(store, cont);
        result->image = checkpoint_image(store, seq, cont);
        result->rolled = cont_handle(store, cont);
    } else if (checkpoint_is_named(store, cont)) { /* Main was ahead of the other pools */
        (void)checkpoint_show(store, cont);
    }
    return true;
}

bool roll_pass(struct store *store, struct seq *seq, uint32_t committed, const struct store_round_item *item,
               struct store_round_result *result) {
    uint64_t every = seq->roll_every, last = every ? committed / every * every : 0,
             far = every * (store->config.max_rolling - 1);
    uint32_t boundary = seq->roll_next;
    bool took = false;
    if (last > far) boundary = max_u32(boundary, (uint32_t)(last - far)); /* those before would be superseded at once */
    for (; boundary <= committed && !MUTANT(boundary_is_passed_by); boundary = roll_after(seq, boundary)) {
        if (take_one(store, seq, boundary, item, result)) took = true;
        else store->lives.rolling[STORE_ROLLING_SKIPPED]++;
    }
    seq->roll_next = roll_after(seq, committed);
    return took;
}

void store_rolling_copied(struct store *store, uint64_t ticket, bool ok) {
    for (uint32_t at = store->in_flight, next; at != KVD_NONE; at = next) {
        struct cont *cont = &store->conts[at];
        next = cont->next_victim;
        if (ticket == 0 || cont->ticket != ticket) continue;
        if (ok) (void)store_checkpoint_commit(store, cont_handle(store, cont), NULL, NULL);
        else (void)store_checkpoint_abort(store, cont_handle(store, cont), NULL);
    }
}

bool roll_cut(struct store *store, struct seq *seq, uint32_t frontier) {
    bool some = false;
    for (uint32_t i = 0; i < seq->n_rolled && !MUTANT(rolling_one_is_cut_into); i++) {
        struct cont *cont = own_at(store, seq, i);
        if (!cont || cont->frontier <= frontier || !may_go(cont)) continue;
        cont_release(store, cont, STORE_RELEASED);
        some = true;
    }
    seq->roll_next = min_u32(seq->roll_next, roll_after(seq, frontier));
    return some;
}

/* ---- what they protect: nothing from their own sequence ---- */

static bool is_of_others(const struct store *store, const struct seq *seq, uint32_t p, uint32_t block) {
    uint32_t entry = space_entry(store, &seq->space[p], block), own = 0;
    if (entry & PROMISED) return false;
    for (uint32_t i = 0; i < seq->n_rolled; i++) {
        const struct cont *cont = own_at(store, seq, i);
        own += cont && may_go(cont) && block >= cont->space[p].base && block < cont->space[p].count;
    }
    return store->pool[p].pages[entry].references > 1 + own;
}

uint32_t roll_protected(const struct store *store, const struct seq *seq, uint32_t p) {
    const struct space *space = &seq->space[p];
    uint32_t low = space->base, end = min_u32(space->count, pages_of(space->committed)), high = end;
    if (store->window_pages[p]) {
        while (high > low && !is_of_others(store, seq, p, high - 1)) high--;
        low = high;
    }
    while (low < high) { /* references never rise along a full pool's space, whoever's they are */
        uint32_t mid = low + (high - low) / 2;
        if (is_of_others(store, seq, p, mid)) low = mid + 1;
        else high = mid;
    }
    for (uint32_t i = end; store->in_flight != KVD_NONE && i-- > low;) {
        uint32_t pinned = store->pool[p].pages[space_entry(store, space, i)].pinned;
        if (pinned) return i * KVD_PAGE_TOKENS + pinned;
    }
    return low > space->base ? low * KVD_PAGE_TOKENS : 0;
}

/* ---- names, copies, end ---- */

bool roll_named(struct store *store, struct seq *seq) {
    bool some = false;
    for (uint32_t i = 0; i < seq->n_rolled; i++) {
        struct cont *cont = own_at(store, seq, i);
        if (!cont || cont->published || cont->source_slot != KVD_NONE || !checkpoint_is_named(store, cont)) continue;
        (void)checkpoint_show(store, cont);
        some = true;
    }
    return some;
}

uint32_t roll_unnamed(const struct store *store, const struct seq *seq, uint32_t block) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < seq->n_rolled; i++) {
        const struct cont *cont = own_at(store, seq, i);
        n += cont && !cont->published && block < cont->space[0].count;
    }
    return n;
}

void roll_end(struct store *store, struct seq *seq) {
    for (uint32_t i = 0; i < seq->n_rolled; i++) {
        struct cont *cont = own_at(store, seq, i);
        if (!cont) continue;
        cont_touch(store, cont);
        cont->rolls_for = 0;
        if (!cont->published && may_go(cont) && !MUTANT(unnamed_one_outlives_its_sequence))
            cont_release(store, cont, STORE_RELEASED);
    }
    seq->n_rolled = 0;
}

uint32_t store_get_rolling(const struct store *store, store_seq handle,
                           struct store_rolling ret_rolling[STORE_MAX_ROLLING]) {
    const struct seq *seq = seq_find(store, handle);
    uint32_t n = 0;
    for (uint32_t i = 0; seq && i < seq->n_rolled; i++) {
        const struct cont *cont = own_at(store, seq, i);
        if (cont) ret_rolling[n++] = (struct store_rolling){ seq->rolled[i], cont->frontier, cont->published };
    }
    return n;
}
