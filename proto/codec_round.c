/* SPDX-License-Identifier: Apache-2.0
 *
 * Round: the one message of the decode path, for a whole batch. Its numbers travel in columns (packed fixed32), one
 * entry an item, because protobuf-c copies a column with one memcpy. A column that no item uses is left out. In a
 * column, 0 means that the item does not ask for this number, and v + 1 that it asks for v.
 */
#include <string.h>

#include "codec_internal.h"
#include "kvd.pb-c.h"

struct column { /* of a message; n is 0 or the number of items */
    const char *name;
    size_t n;
    const uint32_t *values;
};

static int check_column(const struct codec_pass *pass, const char *name, size_t n, size_t items) {
    if (n == 0 || n == items) return 0;
    return codec_refuse(pass, CODEC_E_VALUE, "%s has %zu entries, it must have none or one for each of the %zu items",
                        name, n, items);
}

static int check_columns(const struct codec_pass *pass, const struct column *columns, size_t n, size_t items) {
    for (size_t k = 0; k < n; k++) {
        int r = check_column(pass, columns[k].name, columns[k].n, items);
        if (r) return r;
    }
    return 0;
}

/* Copies a column to the uint32_t at items[i] + offset. gather_column copies back. */
static void spread(const struct column *column, void *items, size_t n, size_t stride, size_t offset) {
    for (size_t i = 0; i < n; i++) *(uint32_t *)codec_at_mut(items, i * stride + offset) = column->values[i];
}

/* *ret_values stays as it is when all values are 0. */
static int gather_column(const struct codec_pass *pass, const void *items, size_t n, size_t stride, size_t offset,
                         size_t *ret_n, uint32_t **ret_values) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) any |= *(const uint32_t *)codec_at(items, i * stride + offset);
    if (any == 0) return 0;
    uint32_t *values = codec_arena_take(pass->arena, n * sizeof *values);
    if (!values) return codec_refuse_memory(pass);
    for (size_t i = 0; i < n; i++) values[i] = *(const uint32_t *)codec_at(items, i * stride + offset);
    *ret_n = n;
    *ret_values = values;
    return 0;
}

/* ---- request ------------------------------------------------------------------------------------------ */

#define ITEM_BYTES sizeof(struct kvd_round_item)
#define ITEM_AT(pool_, field)                                                                                          \
    (offsetof(struct kvd_round_item, pool) + (pool_) * sizeof(struct kvd_round_pool) +                                 \
     offsetof(struct kvd_round_pool, field))
#define POOL_ASKS (KVD_ROUND_COMMIT | KVD_ROUND_TRUNCATE | KVD_ROUND_KEEP | KVD_ROUND_ENSURE)

/* A number that an item may ask for: its bit in the mask, and the offsets of mask and value in the item. */
struct asked {
    const char *name;
    uint32_t bit;
    size_t mask_at, value_at;
};

static void load_asked(const struct column *column, const struct asked *asked, void *items) {
    for (size_t i = 0; i < column->n; i++) {
        if (column->values[i] == 0) continue;
        *(uint32_t *)codec_at_mut(items, i * ITEM_BYTES + asked->mask_at) |= asked->bit;
        *(uint32_t *)codec_at_mut(items, i * ITEM_BYTES + asked->value_at) = column->values[i] - 1;
    }
}

/* *ret_values stays as it is when no item asks for this number. */
static int store_asked(const struct codec_pass *pass, const struct kvd_round_item *items, size_t n,
                       const struct asked *asked, size_t *ret_n, uint32_t **ret_values) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) any |= *(const uint32_t *)codec_at(items, i * ITEM_BYTES + asked->mask_at);
    if (!(any & asked->bit)) return 0;
    uint32_t *values = codec_arena_take(pass->arena, n * sizeof *values);
    if (!values) return codec_refuse_memory(pass);
    for (size_t i = 0; i < n; i++) {
        uint32_t mask = *(const uint32_t *)codec_at(items, i * ITEM_BYTES + asked->mask_at);
        values[i] = mask & asked->bit ? *(const uint32_t *)codec_at(items, i * ITEM_BYTES + asked->value_at) + 1 : 0;
        if (mask & asked->bit && values[i] == 0)
            return codec_refuse(pass, CODEC_E_VALUE, "%s of item %zu is %u, which is no number of tokens", asked->name,
                                i, UINT32_MAX);
    }
    *ret_n = n;
    *ret_values = values;
    return 0;
}

static const struct asked asked_state = { "state_frontier", KVD_ROUND_STATE, offsetof(struct kvd_round_item, ask),
                                          offsetof(struct kvd_round_item, state_frontier) };
#define N_ASKED 4
#define ASKED_OF_POOL(pool)                                                                                            \
    {                                                                                                                  \
        { "commit", KVD_ROUND_COMMIT, ITEM_AT(pool, ask), ITEM_AT(pool, commit) },                                     \
            { "truncate", KVD_ROUND_TRUNCATE, ITEM_AT(pool, ask), ITEM_AT(pool, truncate) },                           \
            { "keep", KVD_ROUND_KEEP, ITEM_AT(pool, ask), ITEM_AT(pool, keep) },                                       \
            { "ensure", KVD_ROUND_ENSURE, ITEM_AT(pool, ask), ITEM_AT(pool, ensure) },                                 \
    }

static int load_ask(const struct codec_pass *pass, const Kvd__V1__RoundColumns *pb, struct kvd_round_item *items,
                    size_t n, size_t pool) {
    const struct column columns[N_ASKED] = { { "commit", pb->n_commit, pb->commit },
                                             { "truncate", pb->n_truncate, pb->truncate },
                                             { "keep", pb->n_keep, pb->keep },
                                             { "ensure", pb->n_ensure, pb->ensure } };
    const struct asked asked[N_ASKED] = ASKED_OF_POOL(pool);
    int r = check_columns(pass, columns, N_ASKED, n);
    for (size_t k = 0; r == 0 && k < N_ASKED; k++) load_asked(&columns[k], &asked[k], items);
    return r;
}

int codec_round_load(struct codec_pass *pass, const void *pb_, void *plain) {
    const Kvd__V1__RoundRequest *pb = pb_;
    struct msg_request *request = plain;
    size_t n = pb->n_sequence;
    if (n > KVD_MAX_ROUND) return codec_refuse_count(pass, "sequence", n, KVD_MAX_ROUND);
    if (pb->n_pool > KVD_MAX_POOLS) return codec_refuse_count(pass, "pool", pb->n_pool, KVD_MAX_POOLS);
    struct column frontier = { "state_frontier", pb->n_state_frontier, pb->state_frontier };
    int r = check_columns(pass, &frontier, 1, n);
    if (r) return r;
    struct kvd_round_item *items = n ? codec_arena_alloc(pass->arena, n * sizeof *items) : NULL;
    if (n && !items) return codec_refuse_memory(pass);
    for (size_t i = 0; i < n; i++) items[i].sequence.bits = pb->sequence[i];
    load_asked(&frontier, &asked_state, items);
    for (size_t p = 0; r == 0 && p < pb->n_pool; p++) r = load_ask(pass, pb->pool[p], items, n, p);
    if (r) return r;
    request->u.round.n = (uint32_t)n;
    request->u.round.items = items;
    return 0;
}

/* A bit that belongs to another mask, or to none, is a mistake of the caller that would go unnoticed. */
static int check_masks(const struct codec_pass *pass, const struct kvd_round_item *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t wrong = items[i].ask & ~(uint32_t)KVD_ROUND_STATE;
        for (size_t p = 0; p < KVD_MAX_POOLS; p++) wrong |= items[i].pool[p].ask & ~(uint32_t)POOL_ASKS;
        if (wrong)
            return codec_refuse(pass, CODEC_E_VALUE,
                                "item %zu asks for 0x%x where that cannot be asked for; an item takes KVD_ROUND_STATE, "
                                "its pools the other bits",
                                i, wrong);
    }
    return 0;
}

/* Fills *ret_pb. *ret_used says whether any item uses this pool. */
static int store_ask(const struct codec_pass *pass, const struct kvd_round_item *items, size_t n, size_t pool,
                     Kvd__V1__RoundColumns **ret_pb, bool *ret_used) {
    Kvd__V1__RoundColumns *pb = codec_message_new(pass, &kvd__v1__round_columns__descriptor);
    if (!pb) return codec_refuse_memory(pass);
    const struct asked asked[N_ASKED] = ASKED_OF_POOL(pool);
    struct {
        size_t *n;
        uint32_t **values;
    } columns[N_ASKED] = { { &pb->n_commit, &pb->commit },
                           { &pb->n_truncate, &pb->truncate },
                           { &pb->n_keep, &pb->keep },
                           { &pb->n_ensure, &pb->ensure } };
    for (size_t k = 0; k < N_ASKED; k++) {
        int r = store_asked(pass, items, n, &asked[k], columns[k].n, columns[k].values);
        if (r) return r;
        *ret_used |= *columns[k].n != 0;
    }
    *ret_pb = pb;
    return 0;
}

int codec_round_store(struct codec_pass *pass, void *pb_, const void *plain) {
    Kvd__V1__RoundRequest *pb = pb_;
    const struct msg_request *request = plain;
    size_t n = request->u.round.n;
    const struct kvd_round_item *items = request->u.round.items;
    if (n > KVD_MAX_ROUND) return codec_refuse_count(pass, "sequence", n, KVD_MAX_ROUND);
    if (n == 0) return 0;
    if (!items) return codec_refuse(pass, CODEC_E_VALUE, "round has %zu items and no address", n);
    pb->sequence = codec_arena_take(pass->arena, n * sizeof *pb->sequence);
    pb->pool = codec_arena_take(pass->arena, KVD_MAX_POOLS * sizeof *pb->pool);
    if (!pb->sequence || !pb->pool) return codec_refuse_memory(pass);
    pb->n_sequence = n;
    for (size_t i = 0; i < n; i++) pb->sequence[i] = items[i].sequence.bits;
    int r = check_masks(pass, items, n);
    if (r == 0) r = store_asked(pass, items, n, &asked_state, &pb->n_state_frontier, &pb->state_frontier);
    for (size_t p = 0; r == 0 && p < KVD_MAX_POOLS; p++) {
        bool used = false;
        r = store_ask(pass, items, n, p, &pb->pool[p], &used);
        if (used) pb->n_pool = p + 1;
    }
    return r;
}

/* ---- reply: numbers -------------------------------------------------------------------------------------- */

#define RESULT_BYTES sizeof(struct kvd_round_result)
#define VIEW_AT(pool_, k)                                                                                              \
    (offsetof(struct kvd_round_result, pool) + (pool_) * sizeof(struct kvd_pool_view) + (k) * sizeof(uint32_t))
#define N_PLACE (sizeof(struct kvd_pool_view) / sizeof(uint32_t))
_Static_assert(N_PLACE == 8 && offsetof(struct kvd_pool_view, first) == 7 * sizeof(uint32_t), "columns of a view");

static int load_views(const struct codec_pass *pass, const Kvd__V1__ViewColumns *pb, struct kvd_round_result *results,
                      size_t n, size_t pool) {
    const struct column columns[N_PLACE] = {
        { "row", pb->n_row, pb->row },
        { "membership", pb->n_membership, pb->membership },
        { "entitlement", pb->n_entitlement, pb->entitlement },
        { "committed", pb->n_committed, pb->committed },
        { "protected_frontier", pb->n_protected_frontier, pb->protected_frontier },
        { "slice_begin", pb->n_slice_begin, pb->slice_begin },
        { "slice_count", pb->n_slice_count, pb->slice_count },
        { "first", pb->n_first, pb->first },
    };
    int r = check_columns(pass, columns, N_PLACE, n);
    for (size_t k = 0; r == 0 && k < N_PLACE; k++)
        if (columns[k].n) spread(&columns[k], results, n, RESULT_BYTES, VIEW_AT(pool, k));
    for (size_t i = 0; r == 0 && i < n; i++)
        if (pool >= results[i].n_pools) results[i].pool[pool] = (struct kvd_pool_view){ 0 };
    return r;
}

/* A view counts only below the n_pools of its item: what lies beyond does not travel. */
static uint32_t view_value(const struct kvd_round_result *result, size_t pool, size_t k) {
    return pool < result->n_pools ? *(const uint32_t *)codec_at(result, VIEW_AT(pool, k)) : 0;
}

static int gather_views(const struct codec_pass *pass, const struct kvd_round_result *results, size_t n, size_t pool,
                        size_t k, size_t *ret_n, uint32_t **ret_values) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) any |= view_value(&results[i], pool, k);
    if (any == 0) return 0;
    uint32_t *values = codec_arena_take(pass->arena, n * sizeof *values);
    if (!values) return codec_refuse_memory(pass);
    for (size_t i = 0; i < n; i++) values[i] = view_value(&results[i], pool, k);
    *ret_n = n;
    *ret_values = values;
    return 0;
}

static int store_views(const struct codec_pass *pass, const struct kvd_round_result *results, size_t n, size_t pool,
                       Kvd__V1__ViewColumns **ret_pb) {
    Kvd__V1__ViewColumns *pb = codec_message_new(pass, &kvd__v1__view_columns__descriptor);
    if (!pb) return codec_refuse_memory(pass);
    struct {
        size_t *n;
        uint32_t **values;
    } columns[N_PLACE] = {
        { &pb->n_row, &pb->row },
        { &pb->n_membership, &pb->membership },
        { &pb->n_entitlement, &pb->entitlement },
        { &pb->n_committed, &pb->committed },
        { &pb->n_protected_frontier, &pb->protected_frontier },
        { &pb->n_slice_begin, &pb->slice_begin },
        { &pb->n_slice_count, &pb->slice_count },
        { &pb->n_first, &pb->first },
    };
    for (size_t k = 0; k < N_PLACE; k++) {
        int r = gather_views(pass, results, n, pool, k, columns[k].n, columns[k].values);
        if (r) return r;
    }
    *ret_pb = pb;
    return 0;
}

static int load_statuses(const struct codec_pass *pass, const Kvd__V1__RoundReply *pb, struct kvd_round_result *results,
                         size_t n) {
    int r = check_column(pass, "status", pb->n_status, n);
    if (r == 0) r = check_column(pass, "n_pools", pb->n_n_pools, n);
    for (size_t i = 0; r == 0 && i < n; i++) {
        uint32_t status = pb->n_status ? (uint32_t)pb->status[i] : KVD_OK;
        uint32_t n_pools = pb->n_n_pools ? pb->n_pools[i] : (uint32_t)pb->n_pool;
        if (status > KVD_UNAUTHENTICATED)
            return codec_refuse(pass, CODEC_E_VALUE, "status of item %zu is %u, it must be from 0 to %d", i, status,
                                KVD_UNAUTHENTICATED);
        if (n_pools > pb->n_pool)
            return codec_refuse(pass, CODEC_E_VALUE, "n_pools of item %zu is %u, the reply has %zu", i, n_pools,
                                pb->n_pool);
        results[i].status = status;
        results[i].n_pools = n_pools;
    }
    return r;
}

static int store_statuses(const struct codec_pass *pass, Kvd__V1__RoundReply *pb,
                          const struct kvd_round_result *results, size_t n) {
    bool refused = false, uneven = false;
    uint32_t n_pool = 0;
    for (size_t i = 0; i < n; i++) {
        if (results[i].status > KVD_UNAUTHENTICATED)
            return codec_refuse(pass, CODEC_E_VALUE, "status of item %zu is %u, it must be from 0 to %d", i,
                                results[i].status, KVD_UNAUTHENTICATED);
        if (results[i].n_pools > KVD_MAX_POOLS)
            return codec_refuse_count(pass, "n_pools", results[i].n_pools, KVD_MAX_POOLS);
        refused |= results[i].status != KVD_OK;
        uneven |= results[i].n_pools != results[0].n_pools;
        if (results[i].n_pools > n_pool) n_pool = results[i].n_pools;
    }
    if (refused) {
        pb->status = codec_arena_take(pass->arena, n * sizeof *pb->status);
        if (!pb->status) return codec_refuse_memory(pass);
        for (size_t i = 0; i < n; i++) pb->status[i] = (Kvd__V1__Status)results[i].status;
        pb->n_status = n;
    }
    pb->n_pool = n_pool;
    return uneven ? gather_column(pass, results, n, RESULT_BYTES, offsetof(struct kvd_round_result, n_pools),
                                  &pb->n_n_pools, &pb->n_pools)
                  : 0;
}

/* ---- reply: what few items have ----------------------------------------------------------------------------- */

static int check_index(const struct codec_pass *pass, const char *name, uint32_t index, size_t *next, size_t items) {
    if (index >= items || index < *next)
        return codec_refuse(pass, CODEC_E_VALUE,
                            "index %u of %s is not after the one before it and below the %zu items", index, name,
                            items);
    *next = (size_t)index + 1;
    return 0;
}

static int load_bounds(const struct codec_pass *pass, const Kvd__V1__RoundReply *pb, struct kvd_round_result *results,
                       size_t n) {
    size_t next = 0;
    for (size_t k = 0; k < pb->n_bounded; k++) {
        const Kvd__V1__RoundBound *bound = pb->bounded[k];
        int r = check_index(pass, "bounded", bound->index, &next, n);
        if (r) return r;
        if (bound->pool >= KVD_MAX_POOLS)
            return codec_refuse(pass, CODEC_E_VALUE, "pool of bounded is %u, it must be below %d", bound->pool,
                                KVD_MAX_POOLS);
        results[bound->index].bounded = true;
        results[bound->index].bounded_pool = bound->pool;
        results[bound->index].bounded_frontier = bound->frontier;
    }
    return 0;
}

static int store_bounds(const struct codec_pass *pass, Kvd__V1__RoundReply *pb, const struct kvd_round_result *results,
                        size_t n) {
    size_t many = 0;
    for (size_t i = 0; i < n; i++) many += results[i].bounded;
    if (many == 0) return 0;
    pb->bounded = codec_arena_take(pass->arena, many * sizeof *pb->bounded);
    if (!pb->bounded) return codec_refuse_memory(pass);
    for (size_t i = 0; i < n; i++) {
        if (!results[i].bounded) continue;
        if (results[i].bounded_pool >= KVD_MAX_POOLS)
            return codec_refuse(pass, CODEC_E_VALUE, "bounded_pool of item %zu is %u, it must be below %d", i,
                                results[i].bounded_pool, KVD_MAX_POOLS);
        Kvd__V1__RoundBound *bound = codec_message_new(pass, &kvd__v1__round_bound__descriptor);
        if (!bound) return codec_refuse_memory(pass);
        bound->index = (uint32_t)i;
        bound->pool = results[i].bounded_pool;
        bound->frontier = results[i].bounded_frontier;
        pb->bounded[pb->n_bounded++] = bound;
    }
    return 0;
}

static bool printable(uint8_t c) { return c >= 0x20 && c < 0x7f; }

static int load_messages(const struct codec_pass *pass, const Kvd__V1__RoundReply *pb, struct kvd_round_result *results,
                         size_t n) {
    size_t next = 0;
    for (size_t k = 0; k < pb->n_messages; k++) {
        const Kvd__V1__RoundMessage *message = pb->messages[k];
        int r = check_index(pass, "messages", message->index, &next, n);
        if (r) return r;
        size_t length = message->message.len;
        if (length >= KVD_MESSAGE_BYTES)
            return codec_refuse(pass, CODEC_E_LIMIT, "message of item %u has %zu characters, the limit is %d",
                                message->index, length, KVD_MESSAGE_BYTES - 1);
        for (size_t i = 0; i < length; i++)
            if (!printable(message->message.data[i]))
                return codec_refuse(pass, CODEC_E_VALUE,
                                    "message of item %u has the byte 0x%02x at %zu; use only printable ASCII",
                                    message->index, message->message.data[i], i);
        char *to = results[message->index].message;
        memset(to + length, 0, KVD_MESSAGE_BYTES - length);
        if (length) memcpy(to, message->message.data, length);
    }
    return 0;
}

/* Around a sentence: tag and length of the entry, tag and value of the index, tag and length of the text. */
#define MESSAGE_OVERHEAD (1 + 2 + 1 + 2 + 1 + 2)

/* Characters that each of `many` sentences may have, so that the reply fits: the round has been done, its answer must
 * not fail. */
static size_t message_share(const struct codec_pass *pass, const Kvd__V1__RoundReply *pb, size_t many) {
    size_t used = protobuf_c_message_get_packed_size(&pb->base);
    size_t share = used < pass->space ? (pass->space - used) / many : 0;
    share = share > MESSAGE_OVERHEAD ? share - MESSAGE_OVERHEAD : 0;
    return share < KVD_MESSAGE_BYTES ? share : KVD_MESSAGE_BYTES - 1;
}

static int store_message(const struct codec_pass *pass, Kvd__V1__RoundReply *pb, const char *text, uint32_t index,
                         size_t share) {
    size_t length = strnlen(text, share);
    Kvd__V1__RoundMessage *message = codec_message_new(pass, &kvd__v1__round_message__descriptor);
    uint8_t *copy = codec_arena_take(pass->arena, length);
    if (!message || !copy) return codec_refuse_memory(pass);
    for (size_t i = 0; i < length; i++) copy[i] = printable((uint8_t)text[i]) ? (uint8_t)text[i] : (uint8_t)'?';
    message->index = index;
    message->message = (ProtobufCBinaryData){ .len = length, .data = copy };
    pb->messages[pb->n_messages++] = message;
    return 0;
}

static int store_messages(const struct codec_pass *pass, Kvd__V1__RoundReply *pb,
                          const struct kvd_round_result *results, size_t n) {
    size_t many = 0;
    for (size_t i = 0; i < n; i++) many += results[i].message[0] != '\0';
    size_t share = many ? message_share(pass, pb, many) : 0;
    if (share == 0) return 0;
    pb->messages = codec_arena_take(pass->arena, many * sizeof *pb->messages);
    if (!pb->messages) return codec_refuse_memory(pass);
    for (size_t i = 0; i < n; i++) {
        if (results[i].message[0] == '\0') continue;
        int r = store_message(pass, pb, results[i].message, (uint32_t)i, share);
        if (r) return r;
    }
    return 0;
}

/* ---- reply ------------------------------------------------------------------------------------------------------ */

struct kvd_round_result *codec_arena_results(struct codec_arena *arena, size_t n) {
    struct kvd_round_result *results = codec_arena_take(arena, n * sizeof *results);
    for (size_t i = 0; results && i < n; i++) {
        memset(&results[i], 0, offsetof(struct kvd_round_result, message));
        results[i].message[0] = '\0';
    }
    return results;
}

int codec_round_reply_load(struct codec_pass *pass, const void *pb_, void *plain) {
    const Kvd__V1__RoundReply *pb = pb_;
    struct msg_reply *reply = plain;
    size_t n = pb->n;
    if (n > KVD_MAX_ROUND) return codec_refuse_count(pass, "n", n, KVD_MAX_ROUND);
    if (pb->n_pool > KVD_MAX_POOLS) return codec_refuse_count(pass, "pool", pb->n_pool, KVD_MAX_POOLS);
    struct kvd_round_result *results = n ? codec_arena_results(pass->arena, n) : NULL;
    if (n && !results) return codec_refuse_memory(pass);
    int r = load_statuses(pass, pb, results, n);
    for (size_t p = 0; r == 0 && p < pb->n_pool; p++) r = load_views(pass, pb->pool[p], results, n, p);
    if (r == 0) r = load_bounds(pass, pb, results, n);
    if (r == 0) r = load_messages(pass, pb, results, n);
    if (r) return r;
    reply->u.round.n = (uint32_t)n;
    reply->u.round.items = results;
    return 0;
}

int codec_round_reply_store(struct codec_pass *pass, void *pb_, const void *plain) {
    Kvd__V1__RoundReply *pb = pb_;
    const struct msg_reply *reply = plain;
    size_t n = reply->u.round.n;
    const struct kvd_round_result *results = reply->u.round.items;
    if (n > KVD_MAX_ROUND) return codec_refuse_count(pass, "n", n, KVD_MAX_ROUND);
    if (n == 0) return 0;
    if (!results) return codec_refuse(pass, CODEC_E_VALUE, "round has %zu results and no address", n);
    pb->n = (uint32_t)n;
    pb->pool = codec_arena_take(pass->arena, KVD_MAX_POOLS * sizeof *pb->pool);
    if (!pb->pool) return codec_refuse_memory(pass);
    int r = store_statuses(pass, pb, results, n);
    for (size_t p = 0; r == 0 && p < pb->n_pool; p++) r = store_views(pass, results, n, p, &pb->pool[p]);
    if (r == 0) r = store_bounds(pass, pb, results, n);
    if (r == 0) r = store_messages(pass, pb, results, n);
    return r;
}
