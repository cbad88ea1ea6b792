/* SPDX-License-Identifier: Apache-2.0 */
#include "ui.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bundle.h"
#include "clock.h"
#include "core.h"
#include "session.h"

#define AT_ONCE 64u /* objects looked at under the lock */
#define PAGES_AT_ONCE 1024u

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

/* Room for twice as many: when it is full those that come first stay. */
struct lists {
    uint32_t n_pools, n_sequences, n_briefs, n_continuations;
    uint64_t now_ns;
    struct kvd_root meant;
    struct kvd_stats stats;
    uint64_t matching[2]; /* sequences, continuations of the domain */
    uint64_t left;        /* of the list that is being walked */
    struct sequence sequences[2 * UI_ITEMS];
    struct store_brief briefs[2 * UI_ITEMS];
    struct kvd_continuation_info continuations[UI_ITEMS];
};

static int larger_first(const void *a, const void *b) {
    const struct kvd_sequence_info *p = &((const struct sequence *)a)->info, *q = &((const struct sequence *)b)->info;
    uint32_t m = p->pool[0].membership, n = q->pool[0].membership;
    if (m != n) return m < n ? 1 : -1;
    return p->sequence.bits < q->sequence.bits ? -1 : p->sequence.bits > q->sequence.bits;
}

/* In the order in which schedulers give them up (KVD_ORDER_RETENTION_USED). */
static int goes_first(const void *a, const void *b) {
    const struct store_brief *p = a, *q = b;
    if (p->retention != q->retention) return p->retention < q->retention ? -1 : 1;
    if (p->used != q->used) return p->used < q->used ? -1 : 1;
    return p->cont.bits < q->cont.bits ? -1 : p->cont.bits > q->cont.bits;
}

static void cut_sequences(struct lists *l, uint32_t above) {
    if (l->n_sequences <= above) return;
    qsort(l->sequences, l->n_sequences, sizeof *l->sequences, larger_first);
    if (l->n_sequences > UI_ITEMS) l->n_sequences = UI_ITEMS;
}

static void cut_briefs(struct lists *l, uint32_t above) {
    if (l->n_briefs <= above) return;
    qsort(l->briefs, l->n_briefs, sizeof *l->briefs, goes_first);
    if (l->n_briefs > UI_ITEMS) l->n_briefs = UI_ITEMS;
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
        if (!store_root_is(&to->info.root, &l->meant)) continue;
        const struct bundle *b = bundle_find(s, (store_seq){ to->info.sequence.bits });
        to->ending = b && b->ending;
        to->info.age_ns = b ? clock_since(b->begun_ns, l->now_ns) : 0;
        name_of(s, b ? b->owner : (kvd_session_id){ 0 }, to->owner);
        name_of(s, b ? b->worker : (kvd_session_id){ 0 }, to->worker);
        l->matching[0]++;
        l->n_sequences++;
    }
    return true;
}

static bool take_briefs(struct service *s, struct lists *l, uint32_t *cursor) {
    for (uint32_t n = 0; n < AT_ONCE; n++, l->left--) {
        struct store_brief *to = &l->briefs[l->n_briefs];
        if (!l->left || !store_next_brief(s->store, cursor, to)) return false;
        if (!store_root_is(to->root, &l->meant)) continue;
        l->matching[1]++;
        l->n_briefs++;
    }
    return true;
}

static_assert(2 * UI_ITEMS - UI_ITEMS >= AT_ONCE, "a part fits behind those that are kept");

static void take_all_sequences(struct service *s, struct lists *l) {
    uint32_t cursor = 0;
    bool more = true;
    l->left = l->stats.sequences;
    while (more) {
        cut_sequences(l, 2 * UI_ITEMS - AT_ONCE);
        pthread_mutex_lock(&s->lock);
        more = take_sequences(s, l, &cursor);
        pthread_mutex_unlock(&s->lock);
    }
    cut_sequences(l, 0);
}

/* All are looked at briefly, and those that are shown closely, if they are still there. */
static void take_all_continuations(struct service *s, struct lists *l) {
    uint32_t cursor = 0;
    bool more = true;
    l->left = l->stats.continuations;
    while (more) {
        cut_briefs(l, 2 * UI_ITEMS - AT_ONCE);
        pthread_mutex_lock(&s->lock);
        more = take_briefs(s, l, &cursor);
        pthread_mutex_unlock(&s->lock);
    }
    cut_briefs(l, 0);
    for (uint32_t i = 0; i < l->n_briefs; i++) {
        pthread_mutex_lock(&s->lock);
        store_set_time(s->store, l->now_ns);
        bool there = !store_cont_look(s->store, l->briefs[i].cont, &l->continuations[l->n_continuations], NULL);
        pthread_mutex_unlock(&s->lock);
        l->n_continuations += there;
    }
}

/* domain: a label, or a digest in hexadecimal digits. */
static void mean_domain(const char *domain, struct kvd_root *ret_meant) {
    size_t n = strlen(domain);
    bool digest = n == 2 * KVD_DIGEST_BYTES && strspn(domain, "0123456789abcdef") == n;
    for (uint32_t i = 0; digest && i < KVD_DIGEST_BYTES; i++) {
        char byte[3] = { domain[2 * i], domain[2 * i + 1], 0 };
        ret_meant->digest.bytes[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    if (digest) return;
    /* What is too long for a label is nobody's. */
    snprintf(ret_meant->label, sizeof ret_meant->label, "%s", n < sizeof ret_meant->label ? domain : "?");
}

static void take_lists(struct service *s, const char *domain, struct lists *l) {
    l->now_ns = clock_ns();
    mean_domain(domain, &l->meant);
    pthread_mutex_lock(&s->lock);
    store_get_stats(s->store, &l->stats);
    l->n_pools = s->pools.n_pools;
    pthread_mutex_unlock(&s->lock);
    if (s->tenancy) return; /* totals only; it is constant, and read without the lock */
    take_all_sequences(s, l);
    take_all_continuations(s, l);
}

/* ---- maps -------------------------------------------------------------------------------------- */

/* A cell is a letter for what most of its used part is, and a digit for how much of it is used, 1 to 9; or "..". */
struct map {
    uint64_t cell; /* pages, or bytes */
    uint32_t n;
    char text[2 * UI_CELLS + 1];
};

static void put_cell(struct map *map, char letter, uint64_t used, uint64_t of) {
    char *to = map->text + 2 * (size_t)map->n++;
    to[0] = used ? letter : '.';
    to[1] = (char)(used ? '1' + 8 * (used < of ? used : of) / of : '.');
}

static void map_pool(struct service *s, uint32_t pool, struct map *map) {
    static const char letters[STORE_USES] = { '.', 'r', 'c', 's' };
    uint32_t capacity = s->pools.pages[pool], step = (capacity + UI_CELLS - 1) / UI_CELLS;
    map->cell = step;
    for (uint32_t first = 0; first < capacity; first += step) {
        uint32_t counts[STORE_USES] = { 0 }, most = STORE_RUNNING, n = 0, some = 1;
        for (; n < step && some; n += some) { /* none holds the lock for long */
            uint32_t want = step - n < PAGES_AT_ONCE ? step - n : PAGES_AT_ONCE;
            pthread_mutex_lock(&s->lock);
            some = store_count_uses(s->store, pool, first + n, want, counts);
            pthread_mutex_unlock(&s->lock);
        }
        for (uint32_t use = most + 1; use < STORE_USES; use++)
            if (counts[use] > counts[most]) most = use;
        put_cell(map, letters[most], n - counts[STORE_FREE], n);
    }
}

static void map_arena(struct service *s, const struct kvd_stats *stats, struct map *map) {
    uint64_t used[UI_CELLS] = { 0 }, step = (stats->host_capacity + UI_CELLS - 1) / UI_CELLS, sum = 0, offset, bytes;
    uint32_t cursor = 0;
    bool more = stats->host_occupied > 0;
    while (more) {
        pthread_mutex_lock(&s->lock);
        for (uint32_t i = 0; i < PAGES_AT_ONCE && more; i++) {
            more = sum < stats->host_occupied && store_next_extent(s->store, &cursor, &offset, &bytes);
            for (uint64_t some; more && bytes; offset += some, bytes -= some) {
                uint64_t rest = step - offset % step;
                some = bytes < rest ? bytes : rest;
                used[offset / step] += some;
                sum += some;
            }
        }
        pthread_mutex_unlock(&s->lock);
    }
    map->cell = step;
    for (uint64_t at = 0; at < stats->host_capacity; at += step) {
        uint64_t rest = stats->host_capacity - at;
        put_cell(map, 'h', used[at / step], rest < step ? rest : step);
    }
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
    fprintf(out, ",\"age\":%" PRIu64, i->age_ns / 1000000000u);
    write_slot(out, i->state_slot);
    write_root(out, &i->root);
    fputc('}', out);
}

static void write_continuation(FILE *out, const struct kvd_continuation_info *i, uint32_t n_pools) {
    fprintf(out, "{\"continuation\":\"0x%" PRIx64 "\",\"frontier\":%u,\"retention\":%u,\"sharers\":%u,\"claimed\":%s",
            i->continuation.bits, i->frontier, i->retention, i->sharers, i->claimed ? "true" : "false");
    fprintf(out, ",\"age\":%" PRIu64 ",\"idle\":%" PRIu64, i->age_ns / 1000000000u, i->idle_ns / 1000000000u);
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
    fprintf(out, ",\n\"sequences\":{\"total\":%u,\"matching\":%" PRIu64 ",\"items\":[", l->stats.sequences,
            l->matching[0]);
    for (uint32_t i = 0; i < l->n_sequences; i++) {
        fputs(i ? ",\n" : "\n", out);
        write_sequence(out, &l->sequences[i], l->n_pools);
    }
    fprintf(out, "]},\n\"continuations\":{\"total\":%u,\"matching\":%" PRIu64 ",\"items\":[", l->stats.continuations,
            l->matching[1]);
    for (uint32_t i = 0; i < l->n_continuations; i++) {
        fputs(i ? ",\n" : "\n", out);
        write_continuation(out, &l->continuations[i], l->n_pools);
    }
    fputs("]}", out);
}

static void write_map(FILE *out, const char *name, const struct map *map) {
    fprintf(out, "\"%s\":{\"cell\":%" PRIu64 ",\"cells\":\"%s\"}", name, map->cell, map->text);
}

static void write_arena(FILE *out, const struct kvd_stats *stats) {
    fprintf(out, ",\n\"arena\":{\"capacity\":%" PRIu64 ",\"occupied\":%" PRIu64 ",\"largest_free\":%" PRIu64 "}",
            stats->host_capacity, stats->host_occupied, stats->host_largest_free);
}

static void write_maps(struct service *s, FILE *out, const struct lists *l) {
    fputs(",\n\"maps\":{", out);
    for (uint32_t p = 0; p < l->n_pools; p++) {
        struct map map = { .n = 0 };
        map_pool(s, p, &map);
        write_map(out, s->pools.info.pool[p].name, &map);
        fputs(",\n", out);
    }
    struct map map = { .n = 0 };
    map_arena(s, &l->stats, &map);
    write_map(out, "arena", &map);
    fputc('}', out);
}

static char *close_text(FILE *out, char **text) {
    if (!fclose(out)) return *text;
    free(*text);
    return NULL;
}

char *ui_state(struct service *s, const char *metrics, const char *domain, size_t *ret_bytes) {
    struct lists *lists = calloc(1, sizeof *lists);
    char *text = NULL;
    FILE *out = lists ? open_memstream(&text, ret_bytes) : NULL;
    if (!out) {
        free(lists);
        return NULL;
    }
    uint64_t now = history_time_ms();
    take_lists(s, domain, lists);
    fprintf(out, "{\"time\":%" PRIu64 ".%03u,\"operations\":%" PRIu64 ",\n\"series\":{", now / 1000,
            (unsigned)(now % 1000), lists->stats.operations);
    write_series(out, metrics);
    fputs("}", out);
    write_arena(out, &lists->stats);
    write_maps(s, out, lists);
    write_lists(out, lists);
    fputs("}\n", out);
    free(lists);
    return close_text(out, &text);
}

/* ---- the last hour ----------------------------------------------------------------------------- */

#define SAMPLE(name) #name, offsetof(struct history_sample, name), sizeof(((struct history_sample *)0)->name)
static const struct history_column {
    const char *name;
    size_t offset, bytes;
} columns[] = { { SAMPLE(time_ms) },        { SAMPLE(tokens) },        { SAMPLE(requests) },
                { SAMPLE(refusals) },       { SAMPLE(prompt_tokens) }, { SAMPLE(reused_tokens) },
                { SAMPLE(endless_tokens) }, { SAMPLE(moved_bytes) },   { SAMPLE(occupied_bytes) },
                { SAMPLE(sequences) },      { SAMPLE(continuations) }, { SAMPLE(available[0]) },
                { SAMPLE(available[1]) } };
#undef SAMPLE

static void write_column(FILE *out, const struct history *h, const struct history_column *column) {
    uint64_t first = h->samples < HISTORY_SAMPLES ? 0 : h->samples - HISTORY_SAMPLES;
    fprintf(out, "\"%s\":[", column->name);
    for (uint64_t i = first; i < h->samples; i++) {
        const char *at = (const char *)&h->sample[i % HISTORY_SAMPLES] + column->offset;
        uint64_t wide = 0;
        uint32_t narrow = 0;
        memcpy(column->bytes == sizeof wide ? (void *)&wide : &narrow, at, column->bytes);
        fprintf(out, "%s%" PRIu64, i > first ? "," : "", wide + narrow);
    }
    fputs("],\n", out);
}

static void write_event(FILE *out, const struct history_event *from) {
    static const char *const kinds[] = {
        [KVD_EVENT_PRESSURE] = "pressure",    [KVD_EVENT_BOUNDED] = "bounded",   [KVD_EVENT_SESSION_LOST] = "session",
        [KVD_EVENT_SEQUENCE_ENDED] = "ended", [KVD_EVENT_DRAINING] = "draining", [KVD_EVENT_LOST] = "lost",
        [KVD_EVENT_SHORTENED] = "shortened",  [KVD_EVENT_GAVE_WAY] = "gave_way",
    };
    const struct kvd_event *e = &from->event;
    const char *kind = e->kind < sizeof kinds / sizeof *kinds ? kinds[e->kind] : NULL;
    fprintf(out,
            "{\"time_ms\":%" PRIu64 ",\"kind\":\"%s\",\"pool\":%u,\"frontier\":%u,\"available\":%u,"
            "\"sequence\":\"0x%" PRIx64 "\",\"continuation\":\"0x%" PRIx64 "\",\"session\":\"%s\"}",
            from->time_ms, kind ? kind : "unknown", e->pool, e->frontier, e->available, e->sequence.bits,
            e->continuation.bits, from->session);
}

static void write_events(FILE *out, const struct history *h) {
    uint64_t n = h->events < HISTORY_EVENTS ? h->events : HISTORY_EVENTS;
    fprintf(out, "\"events_so_far\":%" PRIu64 ",\n\"events\":[", h->events);
    for (uint64_t i = 0; i < n; i++) {
        fputs(i ? ",\n" : "", out);
        write_event(out, &h->event[(h->events - 1 - i) % HISTORY_EVENTS]);
    }
    fputs("]}\n", out);
}

char *ui_history(struct service *s, size_t *ret_bytes) {
    struct history *history = malloc(sizeof *history);
    char *text = NULL;
    FILE *out = history ? open_memstream(&text, ret_bytes) : NULL;
    if (!out) {
        free(history);
        return NULL;
    }
    pthread_mutex_lock(&s->lock);
    memcpy(history, &s->history, sizeof *history);
    pthread_mutex_unlock(&s->lock);
    if (s->tenancy) history->events = 0; /* nobody knows who reads the page */
    fputs("{", out);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) write_column(out, history, &columns[i]);
    write_events(out, history);
    free(history);
    return close_text(out, &text);
}
