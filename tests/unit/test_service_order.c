/* SPDX-License-Identifier: Apache-2.0
 *
 * Copy order: a million small pages go to the arena and back while their continuations are forked, released and written
 * anew, with random delays between the word to copy, the copy, and the word that it is done. A page that was reused too
 * early, copied too late or published too soon shows as a wrong byte or a wrong checksum. PAGE-7, ACT-5, INV-9.
 */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "core.h"
#include "device_host_hook.h"
#include "service_fixture.h"

#define SLOTS 14u /* continuations at once */
#define FLIGHT 6u /* requests under way */
#define ALL 1000000u

static struct fx fx;
static struct msg_reply r;
static struct fx_peer *s;
static uint64_t random_state;
static struct geom_pool_spec spec;
static uint32_t pool_pages;
static uint8_t *base;
static uint64_t wrong, forks, refused;

static uint32_t below(uint32_t n) { return kvt_below(&random_state, n); }

/* In the device's threads: each has its own numbers. */
static int delay(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step step) {
    uint64_t h = (ticket * 2 + direction) * 4 + (uint64_t)step + *(const uint64_t *)context;
    h = kvt_random(&h);
    if (h % 16 == 0) nanosleep(&(struct timespec){ .tv_nsec = (long)(h >> 32) % 20000 }, NULL);
    else if (h % 4 == 0) sched_yield();
    return 0;
}

/* ---- content: bytes of a page follow from whose text it is of, and where ------------------------------- */

struct text {
    uint64_t head, tail; /* pages [0, split) are of head, the rest of tail */
    uint32_t split, pages;
};

static uint64_t key_of(const struct text *t, uint32_t i) {
    uint64_t state = (i < t->split ? t->head : t->tail) * 1000 + i;
    return kvt_random(&state);
}

static void walk_page(uint32_t id, uint64_t key, bool write) {
    for (uint32_t i = 0; i < geom_piece_count(&spec); i++) {
        struct geom_piece piece;
        geom_piece(&spec, pool_pages, 0, id, i, &piece);
        uint64_t *words = (uint64_t *)(void *)(base + piece.region_offset);
        for (uint64_t k = 0; k < piece.bytes / 8; k++)
            if (write) words[k] = key + i * 977 + k;
            else wrong += words[k] != key + i * 977 + k;
    }
}

static void walk(const struct kvd_activated *a, const struct text *t, uint32_t from, bool write) {
    const int32_t *ids = (const int32_t *)(uintptr_t)service_info(fx.service)->pool[0].table[0].local_address +
                         (size_t)a->pool[0].row * 64;
    for (uint32_t i = from; i < t->pages; i++) {
        if (ids[i] < 0) wrong++;
        else walk_page((uint32_t)ids[i], key_of(t, i), write);
    }
}

/* ---- requests, several under way ---------------------------------------------------------------------------- */

static struct slot {
    kvd_continuation cont; /* 0: free */
    struct text text;
} slots[SLOTS];

static struct flight {
    uint64_t frame_id; /* 0: free */
    uint32_t slot;
    bool branch; /* a fork that goes on with other pages, and is kept */
    struct text text;
} flights[FLIGHT];

static uint64_t next_text;

/* Answers of those under way that came while a call waited for its own. */
static struct early {
    uint64_t frame_id;
    uint16_t type;
    struct msg_reply reply; /* none of these has pointers */
} early[FLIGHT];
static uint32_t n_early;

/* The next answer; of which frame. */
static uint64_t receive(uint16_t *ret_type) {
    struct frame_head head;
    if (!s->n) fx_settle(&fx, s);
    if (!KVT_TRUE(!frame_head_read(s->bytes, s->n, &head)) || !fx_reply(s, head.type, &r)) abort();
    *ret_type = head.type;
    return head.id;
}

static uint32_t call(struct msg_request *q) {
    q->header = (struct msg_header){ .session = s->session, .sequence = ++s->sequence };
    fx_send(s, q);
    uint64_t mine = s->frame_id, id;
    uint16_t type;
    while ((id = receive(&type)) != mine) {
        if (!KVT_TRUE(n_early < FLIGHT)) abort();
        early[n_early++] = (struct early){ id, type, r };
    }
    return r.status;
}

static uint32_t name_pages(kvd_sequence sequence, const struct text *t, uint32_t from) {
    kvd_digest digests[64] = { 0 };
    for (uint32_t i = from; i < t->pages; i++) {
        struct text upto = *t;
        uint64_t key = key_of(&upto, i) ^ (i < t->split ? t->head : t->head * 31 + t->tail);
        memcpy(digests[i].bytes, &key, sizeof key);
        digests[i].bytes[9] = (uint8_t)i;
        digests[i].bytes[10] = 1;
    }
    struct msg_request q = { .type = FRAME_NAME_PAGES, .u.names = { sequence, from, t->pages - from, digests + from } };
    return call(&q);
}

static uint32_t round_to(kvd_sequence sequence, uint32_t commit) {
    struct kvd_round_item item = { .sequence = sequence };
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++)
        item.pool[i] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = commit };
    struct msg_request q = { .type = FRAME_ROUND, .u.round = { 1, &item } };
    return call(&q) == KVD_OK ? r.u.round.items[0].status : UINT32_MAX;
}

static void keep(const struct kvd_activated *a, struct text text, uint32_t from) {
    walk(a, &text, from, true);
    if (round_to(a->sequence, text.pages * 64) != KVD_OK) wrong++;
    if (name_pages(a->sequence, &text, from) != KVD_OK) wrong++;
    struct msg_request q = { .type = FRAME_FINISH, .u.finish = { .sequence = a->sequence, .retain = true } };
    if (call(&q) != KVD_OK) wrong++;
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (slots[i].cont.bits) continue;
        slots[i] = (struct slot){ r.u.finished.continuation, text };
        return;
    }
    q = (struct msg_request){ .type = FRAME_RELEASE, .u.continuation.continuation = r.u.finished.continuation };
    (void)call(&q);
}

static void send(struct msg_request *q, uint32_t slot, bool branch) {
    uint32_t i = 0;
    while (flights[i].frame_id) i++;
    q->header = (struct msg_header){ .session = s->session, .sequence = ++s->sequence };
    fx_send(s, q);
    flights[i] = (struct flight){ s->frame_id, slot, branch, slots[slot].text };
}

static void fork_ended(const struct flight *f) {
    struct kvd_activated a = r.u.activated;
    struct text text = f->text;
    forks++;
    if (!f->branch) {
        walk(&a, &text, 0, false);
        struct msg_request q = { .type = FRAME_FINISH, .u.finish = { .sequence = a.sequence } };
        if (call(&q) != KVD_OK) wrong++;
        return;
    }
    text.pages = text.pages / 2;
    walk(&a, &text, 0, false);
    if (text.split > text.pages) text.split = text.pages;
    /* Only a text whose head is still all of it can be branched from: two origins are told apart. */
    struct text whole = { text.head, ++next_text, text.pages, f->text.pages };
    keep(&a, whole, text.pages);
}

static void take(uint64_t id, uint16_t type) {
    uint32_t i = 0;
    while (i < FLIGHT && flights[i].frame_id != id) i++;
    if (!KVT_TRUE(i < FLIGHT)) abort();
    struct flight f = flights[i];
    flights[i].frame_id = 0;
    if (r.status == KVD_DATA_LOSS || r.status == KVD_INTERNAL || r.status == KVD_INVALID_ARGUMENT) {
        KVT_EQ_STR(r.message, "");
        wrong++;
    }
    refused += r.status != KVD_OK;
    if (type == FRAME_ACTIVATE && r.status == KVD_OK) fork_ended(&f);
}

static uint32_t under_way(void) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < FLIGHT; i++) n += flights[i].frame_id != 0;
    return n;
}

/* Answers that are there; and, until at most `most` are under way, those that are still to come. */
static void take_answers(uint32_t most) {
    for (;;) {
        uint16_t type;
        if (n_early) {
            struct early e = early[0];
            memmove(early, early + 1, --n_early * sizeof *early);
            r = e.reply;
            take(e.frame_id, e.type);
            continue;
        }
        if (!s->n) fx_settle(&fx, NULL);
        if (!s->n && under_way() <= most) return;
        uint64_t id = receive(&type);
        take(id, type);
    }
}

static void one_action(void) {
    uint32_t i = below(SLOTS), what = below(100);
    struct slot *slot = &slots[i];
    struct msg_request q = { 0 };
    if (!slot->cont.bits) {
        struct kvd_activated a;
        struct text text = { ++next_text, 0, 64, 8 + below(56) };
        q = (struct msg_request){ .type = FRAME_ACTIVATE,
                                  .u.activation = { .worker = s->session,
                                                    .prompt_tokens = text.pages * 64,
                                                    .max_output_tokens = 1,
                                                    .ensure = { text.pages * 64 } } };
        if (call(&q) != KVD_OK) return;
        a = r.u.activated;
        keep(&a, text, 0);
    } else if (what < 40) {
        q = (struct msg_request){ .type = FRAME_DEMOTE, .u.demote = { slot->cont, what < 4 } };
        send(&q, i, false);
    } else if (what < 52) {
        q = (struct msg_request){ .type = FRAME_PREFETCH, .u.prefetch = slot->cont };
        send(&q, i, false);
    } else if (what < 72) {
        bool branch = what >= 67 && slot->text.split == 64 && slot->text.pages > 1;
        uint32_t pages = branch ? slot->text.pages / 2 : slot->text.pages;
        q = (struct msg_request){ .type = FRAME_ACTIVATE,
                                  .u.activation = { .worker = s->session,
                                                    .from = slot->cont,
                                                    .keep = true,
                                                    .frontier = pages * 64,
                                                    .prompt_tokens = slot->text.pages * 64,
                                                    .max_output_tokens = 1,
                                                    .ensure = { slot->text.pages * 64 } } };
        send(&q, i, branch);
    } else if (what < 93) {
        q = (struct msg_request){ .type = FRAME_DROP, .u.drop = { slot->cont, below(8) != 0 } };
        send(&q, i, false);
    } else {
        q = (struct msg_request){ .type = FRAME_RELEASE, .u.continuation.continuation = slot->cont };
        if (call(&q) == KVD_OK) slot->cont.bits = 0;
    }
}

static void a_million_pages(void) {
    static uint64_t seed;
    random_state = seed = kvt_seed();
    const struct device_host_hook hook = { delay, &seed };
    device_host_set_hook(&hook);
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .layers = 1,
                                               .head_dim = 4,
                                               .capacity_tokens = 512 * 64,
                                               .more = "[host]\narena = 3MiB\nscrub = 1GiB\n" }));
    spec = fx.service->plan.spec.main;
    pool_pages = service_info(fx.service)->pool[0].pages;
    base = (uint8_t *)(uintptr_t)service_info(fx.service)->pool[0].planes[0].local_address;
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_stats stats = fx_stats(s);
    uint32_t limit = ALL;
#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
    limit = ALL / 20;
#endif
    for (uint64_t actions = 1; stats.demoted_pages + stats.restored_pages < limit && !wrong; actions++) {
        take_answers(below(FLIGHT));
        one_action();
        if (actions % 1000) continue;
        take_answers(0);
        stats = fx_stats(s);
    }
    take_answers(0);
    stats = fx_stats(s);
    printf("    %" PRIu64 " pages out, %" PRIu64 " in, %" PRIu64 " forks compared, %" PRIu64
           " requests refused, %" PRIu64 " pages scrubbed; seed %" PRIu64 "\n",
           stats.demoted_pages, stats.restored_pages, forks, refused, stats.scrubbed_pages, seed);
    KVT_EQ(wrong, 0);
    KVT_EQ(stats.damaged_replicas, 0);
    KVT_EQ(stats.moves, 0);
    KVT_TRUE(forks > limit / 1000);
    fx_peer_free(s);
    fx_stop(&fx);
    device_host_set_hook(NULL);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(a_million_pages), { 0 } };
    return kvt_main("service_order", cases, argc, argv);
}
