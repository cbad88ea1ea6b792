/* SPDX-License-Identifier: Apache-2.0 */
#include "boundary.h"

#include "core.h"
#include "tenant.h"

static void tell_bounded(struct service *s, struct bundle *b, const struct store_round_result *from) {
    if (from->bounded && !b->bounded) {
        s->metrics.bounded++;
        bundle_tell(s, b,
                    &(struct kvd_event){ .kind = KVD_EVENT_BOUNDED,
                                         .sequence.bits = b->seq.bits,
                                         .pool = from->bounded_pool,
                                         .frontier = from->bounded_frontier,
                                         .session = b->worker,
                                         .group = b->group });
    }
    b->bounded = from->bounded;
}

/* FIT-4: who went for the growth of a sequence. */
static void tell_gone(struct service *s, const struct bundle *b, const struct kvd_victim *gone, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        bundle_tell(s, b,
                    &(struct kvd_event){ .kind = KVD_EVENT_GAVE_WAY,
                                         .sequence.bits = b->seq.bits,
                                         .continuation = gone[i].continuation,
                                         .frontier = gone[i].frontier,
                                         .session = b->worker,
                                         .group = b->group });
}

/* GRP-5: whose the rolling checkpoints are, before anybody can find them. */
static void note_rolling(struct service *s, const struct bundle *b) {
    struct store_rolling own[STORE_MAX_ROLLING];
    uint32_t n = store_get_rolling(s->store, b->seq, own);
    for (uint32_t i = 0; i < n; i++) tenant_note(s, own[i].cont, b->tenant);
}

void boundary_ask(struct service *s, struct bundle *b, struct store_round_item *item, struct kvd_victim *gone,
                  struct store_round_result *ret_result) {
    const struct growth_list *list = s->config.lease_growth ? bundle_growth(s, b) : NULL;
    if (list) {
        item->growth = list->victims;
        item->n_growth = list->n;
        item->gone = gone;
    }
    store_round(s->store, item, 1, ret_result);
    tell_gone(s, b, gone, ret_result->n_gone);
    if (ret_result->n_rolled) note_rolling(s, b);
    if (ret_result->refusal.code == STORE_OK) tell_bounded(s, b, ret_result);
}
