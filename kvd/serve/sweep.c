/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker writes what it likes, whenever it likes. What it wrote is copied once, counts under the turn of its sequence
 * only, and is an item of a Round then, which the store checks as any other: what cannot be is refused, counted, and
 * harms nobody. The worker sees that nothing more is mapped, and sends a Round, whose answer says why.
 */
#include "sweep.h"

#include "boards.h"
#include "boundary.h"
#include "clock.h"
#include "core.h"
#include "events.h"
#include "mutant.h"
#include "pending.h"
#include "request.h"
#include "session.h"
#include "transfer.h"

#define AT_ONCE 64u /* boundaries in one hold of the lock, refused ones too */

/* What its worker wishes, as an item. False: nothing, or the window has more than its last page left. */
static bool read_item(struct service *s, const struct bundle *b, struct store_round_item *item) {
    const struct board_slot *slot = board_slot_of(s, b);
    struct board_wish wishes[KVD_MAX_POOLS];
    bool last_page = false;
    if (!slot) return false;
    uint64_t turn = MUTANT(wishes_of_any_turn) ? slot->worker_turn : b->on_board.turn;
    if (!board_read_wishes(slot, turn, wishes)) return false;
    *item = (struct store_round_item){ .seq = b->seq, .lease = b->lease, .ahead = true };
    for (uint32_t p = 0; p < s->pools.n_pools; p++) {
        struct kvd_round_pool *pool = &item->pool[p];
        *pool = (struct kvd_round_pool){ .commit = wishes[p].commit, .ensure = wishes[p].ensure };
        if (pool->commit) pool->ask |= KVD_ROUND_COMMIT;
        if (!pool->ensure) continue;
        pool->ask |= KVD_ROUND_ENSURE;
        last_page |= (uint64_t)pool->ensure + KVD_PAGE_TOKENS > b->on_board.mapped[p];
    }
    return last_page;
}

/* What is mapped for it is in device memory, so the store has nothing mapped that its worker cannot see. */
static bool may_be_swept(const struct bundle *b, kvd_session_id me) {
    return b->used && b->on_board.turn && !b->on_board.tag && b->launcher.bits == me.bits && !b->ending;
}

/* True: the store was asked. */
static bool sweep_bundle(struct service *s, struct bundle *b, uint32_t tag) {
    struct store_round_item item;
    struct store_round_result result;
    struct kvd_victim gone[KVD_MAX_GROWTH];
    if (!read_item(s, b, &item)) return false;
    item.ticket = tag;
    boundary_ask(s, b, &item, gone, &result);
    if (result.refusal.code != STORE_OK) {
        s->metrics.board_refusals++;
        return true;
    }
    s->metrics.board_boundaries++;
    transfer_rows(s->transfer, result.pool);
    board_expect_more(s, b, result.pool, tag);
    return true;
}

/* Of a board that is due: some sequences. */
static void sweep_some(struct service *s, struct board *board) {
    const struct session *session = board->session;
    kvd_session_id me = session_id(s, session);
    struct pending *op = pending_for_board(s, me);
    board->busy = !op; /* a batch of the session before in this slot; its end makes this board go on */
    if (!op) return;
    uint32_t tag = pending_tag(s, op), n = 0, end = session->link && !session->fenced ? s->config.max_concurrency : 0;
    transfer_begin(s->transfer);
    for (; board->at < end && n < AT_ONCE; board->at++) {
        struct bundle *b = &s->bundles[board->at];
        n += may_be_swept(b, me) && sweep_bundle(s, b, tag);
    }
    board->due = board->at < end;
    enum transfer_result result = n ? transfer_submit(s->transfer, tag) : TRANSFER_DONE;
    board->busy = result == TRANSFER_PENDING;
    if (!board->busy) {
        store_rolling_copied(s->store, tag, result == TRANSFER_DONE);
        boards_published(s, tag, result == TRANSFER_DONE);
        pending_free(s, op);
    }
    board_go_on(s, board);
}

void sweep_boards(struct service *s) {
    uint64_t now_ns = clock_ns();
    struct board *board;
    bool some = false;
    pthread_mutex_lock(&s->lock);
    if (s->deaf_boards) boards_listen(s, now_ns);
    while ((board = boards_take_due(s))) {
        some = true;
        store_set_time(s->store, now_ns);
        sweep_some(s, board);
        events_pressure(s);
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    struct scratch *scratch = some ? scratch_take(s) : NULL;
    if (!scratch) return; /* no memory: events wait for the next wake-up */
    events_flush(s, scratch);
    scratch_give(s, scratch);
}
