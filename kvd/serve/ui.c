/* SPDX-License-Identifier: Apache-2.0 */
#include "ui.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bundle.h"
#include "core.h"
#include "session.h"

#define AT_ONCE 64u /* objects looked at under the lock */

/* ---- series ------------------------------------------------------------------------------------ */

/* Of each line "name{label="value"} number" one member. */
static bool is_wanted(const char *line, size_t n) {
    if (*line == '#' || !n) return false;
    if (memmem(line, n, "_bucket{", 8)) return false;
    bool zero = n > 2 && memcmp(line + n - 2, " 0", 2) == 0;
    return !(zero && strncmp(line, "kvd_refusals_total{", 19) == 0);
}

static void write_series(FILE *out, const char *metrics) {
    const char *before = "";
    for (const char *line = metrics; *line;) {
        size_t n = strcspn(line, "\n"), key = n;
        while (key && line[key] != ' ') key--;
        if (is_wanted(line, n)) {
            fprintf(out, "%s\n\"", before);
            before = ",";
            for (size_t i = 0; i < key; i++) fprintf(out, line[i] == '"' || line[i] == '\\' ? "\\%c" : "%c", line[i]);
            fprintf(out, "\":%.*s", (int)(n - key - 1), line + key + 1);
        }
        line += n + (line[n] == '\n');
    }
}

/* ---- lists ------------------------------------------------------------------------------------- */

struct sequence {
    struct kvd_sequence_info info;
    bool ending;
    char owner[KVD_NAME_BYTES], worker[KVD_NAME_BYTES];
};

/* Room for twice as many: when it is full the larger half stays. */
struct lists {
    uint32_t n_pools, n_sequences, n_continuations;
    struct kvd_stats stats;
    uint64_t sequences_total, continuations_total, left /* of the list that is being walked */;
    struct sequence sequences[2 * UI_ITEMS];
    struct kvd_continuation_info continuations[2 * UI_ITEMS];
};

static int fewer_pages(uint64_t a, uint64_t b, uint64_t x, uint64_t y) {
    if (a != b) return a < b ? 1 : -1;
    return x < y ? -1 : x > y;
}

static int sequences_by_pages(const void *a, const void *b) {
    const struct kvd_sequence_info *p = &((const struct sequence *)a)->info, *q = &((const struct sequence *)b)->info;
    return fewer_pages(p->pool[0].membership, q->pool[0].membership, p->sequence.bits, q->sequence.bits);
}

static int continuations_by_pages(const void *a, const void *b) {
    const struct kvd_continuation_info *p = a, *q = b;
    return fewer_pages(p->pages[0], q->pages[0], p->continuation.bits, q->continuation.bits);
}

static void cut_sequences(struct lists *l, uint32_t above) {
    if (l->n_sequences <= above) return;
    qsort(l->sequences, l->n_sequences, sizeof *l->sequences, sequences_by_pages);
    if (l->n_sequences > UI_ITEMS) l->n_sequences = UI_ITEMS;
}

static void cut_continuations(struct lists *l, uint32_t above) {
    if (l->n_continuations <= above) return;
    qsort(l->continuations, l->n_continuations, sizeof *l->continuations, continuations_by_pages);
    if (l->n_continuations > UI_ITEMS) l->n_continuations = UI_ITEMS;
}

static void name_of(struct service *s, kvd_session_id id, char name[KVD_NAME_BYTES]) {
    const struct session *session = id.bits ? session_find(s, id) : NULL;
    memcpy(name, session ? session->name : "", session ? KVD_NAME_BYTES : 1);
}

/* Under the lock: some more, `left` at most: the slots behind the last one are not searched. False: these were the
 * last. There is room for AT_ONCE. */
static bool take_sequences(struct service *s, struct lists *l, uint32_t *cursor) {
    for (uint32_t n = 0; n < AT_ONCE; n++, l->left--) {
        struct sequence *to = &l->sequences[l->n_sequences];
        if (!l->left || !store_next_seq(s->store, cursor, &to->info)) return false;
        const struct bundle *b = bundle_find(s, (store_seq){ to->info.sequence.bits });
        to->ending = b && b->ending;
        name_of(s, b ? b->owner : (kvd_session_id){ 0 }, to->owner);
        name_of(s, b ? b->worker : (kvd_session_id){ 0 }, to->worker);
        l->n_sequences++;
    }
    return true;
}

static bool take_continuations(struct service *s, struct lists *l, uint32_t *cursor) {
    for (uint32_t n = 0; n < AT_ONCE; n++, l->left--) {
        struct kvd_continuation_info *to = &l->continuations[l->n_continuations];
        if (!l->left || !store_next_cont(s->store, cursor, to)) return false;
        l->n_continuations++;
    }
    return true;
}

static_assert(2 * UI_ITEMS - UI_ITEMS >= AT_ONCE, "a part fits behind those that are kept");

static void take_all_sequences(struct service *s, struct lists *l) {
    uint32_t cursor = 0;
    bool more = true;
    l->left = l->sequences_total;
    while (more) {
        cut_sequences(l, 2 * UI_ITEMS - AT_ONCE);
        pthread_mutex_lock(&s->lock);
        more = take_sequences(s, l, &cursor);
        pthread_mutex_unlock(&s->lock);
    }
    cut_sequences(l, 0);
}

static void take_all_continuations(struct service *s, struct lists *l) {
    uint32_t cursor = 0;
    bool more = true;
    l->left = l->continuations_total;
    while (more) {
        cut_continuations(l, 2 * UI_ITEMS - AT_ONCE);
        pthread_mutex_lock(&s->lock);
        more = take_continuations(s, l, &cursor);
        pthread_mutex_unlock(&s->lock);
    }
    cut_continuations(l, 0);
}

static void take_lists(struct service *s, struct lists *l) {
    pthread_mutex_lock(&s->lock);
    store_get_stats(s->store, &l->stats);
    l->n_pools = s->pools.n_pools;
    pthread_mutex_unlock(&s->lock);
    l->sequences_total = l->stats.sequences;
    l->continuations_total = l->stats.continuations;
    if (s->tenancy) return; /* totals only; it is constant, and read without the lock */
    take_all_sequences(s, l);
    take_all_continuations(s, l);
}

/* ---- text ----------------------------------------------------------------------------------------- */

static void write_numbers(FILE *out, const char *key, const uint32_t *numbers, uint32_t n) {
    fprintf(out, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++) fprintf(out, "%s%u", i ? "," : "", numbers[i]);
    fputc(']', out);
}

/* A label has no character that JSON would have to escape. */
static void write_root(FILE *out, const struct kvd_root *root) {
    fputs(",\"domain\":\"", out);
    for (uint32_t i = 0; i < KVD_DIGEST_BYTES; i++) fprintf(out, "%02x", root->digest.bytes[i]);
    fprintf(out, "\",\"label\":\"%s\"", root->label);
}

static void write_slot(FILE *out, uint32_t slot) {
    if (slot == KVD_NONE) fputs(",\"state_slot\":null", out);
    else fprintf(out, ",\"state_slot\":%u", slot);
}

static void write_sequence(FILE *out, const struct sequence *from, uint32_t n_pools) {
    static const char *const states[] = { "activating", "active", "quarantined" };
    const struct kvd_sequence_info *i = &from->info;
    uint32_t pages[KVD_MAX_POOLS], entitled[KVD_MAX_POOLS];
    for (uint32_t p = 0; p < n_pools; p++) pages[p] = i->pool[p].membership, entitled[p] = i->pool[p].entitlement;
    fprintf(out, "{\"sequence\":\"0x%" PRIx64 "\",\"state\":\"%s\",\"ending\":%s,\"owner\":\"%s\",\"worker\":\"%s\"",
            i->sequence.bits, states[i->state], from->ending ? "true" : "false", from->owner, from->worker);
    fprintf(out, ",\"row\":%u,\"prompt_tokens\":%u,\"committed\":%u,\"ceiling_tokens\":%u", i->pool[0].row,
            i->prompt_tokens, i->pool[0].committed, i->ceiling_tokens);
    write_numbers(out, "pages", pages, n_pools);
    write_numbers(out, "entitled_pages", entitled, n_pools);
    write_slot(out, i->state_slot);
    write_root(out, &i->root);
    fputc('}', out);
}

static void write_continuation(FILE *out, const struct kvd_continuation_info *i, uint32_t n_pools) {
    fprintf(out, "{\"continuation\":\"0x%" PRIx64 "\",\"frontier\":%u,\"retention\":%u,\"sharers\":%u,\"claimed\":%s",
            i->continuation.bits, i->frontier, i->retention, i->sharers, i->claimed ? "true" : "false");
    fprintf(out, ",\"created\":%" PRIu64 ",\"used\":%" PRIu64, i->created, i->used);
    write_numbers(out, "pages", i->pages, n_pools);
    write_numbers(out, "exclusive_pages", i->exclusive_pages, n_pools);
    write_numbers(out, "device_pages", i->device_pages, n_pools);
    write_numbers(out, "host_pages", i->host_pages, n_pools);
    fprintf(out, ",\"demoted\":%s,\"moving\":%s", i->demoted ? "true" : "false", i->moving ? "true" : "false");
    write_slot(out, i->state_slot);
    write_root(out, &i->root);
    fputc('}', out);
}

static void write_lists(FILE *out, const struct lists *l) {
    fprintf(out, ",\n\"sequences\":{\"total\":%" PRIu64 ",\"items\":[", l->sequences_total);
    for (uint32_t i = 0; i < l->n_sequences; i++) {
        fputs(i ? ",\n" : "\n", out);
        write_sequence(out, &l->sequences[i], l->n_pools);
    }
    fprintf(out, "]},\n\"continuations\":{\"total\":%" PRIu64 ",\"items\":[", l->continuations_total);
    for (uint32_t i = 0; i < l->n_continuations; i++) {
        fputs(i ? ",\n" : "\n", out);
        write_continuation(out, &l->continuations[i], l->n_pools);
    }
    fputs("]}", out);
}

static void write_arena(FILE *out, const struct kvd_stats *stats) {
    fprintf(out, ",\n\"arena\":{\"capacity\":%" PRIu64 ",\"occupied\":%" PRIu64 ",\"largest_free\":%" PRIu64 "}",
            stats->host_capacity, stats->host_occupied, stats->host_largest_free);
}

char *ui_state(struct service *s, const char *metrics, size_t *ret_bytes) {
    struct lists *lists = calloc(1, sizeof *lists);
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = lists ? open_memstream(&text, &bytes) : NULL;
    if (!out) {
        free(lists);
        return NULL;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    take_lists(s, lists);
    fprintf(out, "{\"time\":%lld.%03ld,\"operations\":%" PRIu64 ",\n\"series\":{", (long long)now.tv_sec,
            now.tv_nsec / 1000000, lists->stats.operations);
    write_series(out, metrics);
    fputs("}", out);
    write_arena(out, &lists->stats);
    write_lists(out, lists);
    fputs("}\n", out);
    free(lists);
    if (fclose(out)) {
        free(text);
        return NULL;
    }
    *ret_bytes = bytes;
    return text;
}
