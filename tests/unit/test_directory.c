/* SPDX-License-Identifier: Apache-2.0
 * The directory: what is written is read, what a kill leaves is a prefix of history, what is damaged does not count.
 * CONT-1, CONT-3 (its records), SRV-2 (garbage stops nothing). */
#include "directory.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "crash.h"
#include "directory_internal.h"
#include "kvt.h"

#define PAGES 4u
#define PLACES 3u
#define ID UINT64_C(0x5eedf00d12345678)
static const struct directory_limits LIMITS = {
    .n_pools = 2, .pages = { PAGES, PAGES }, .continuations = PLACES, .sequences = PLACES
};

struct tables {
    void *memory, *handle;
    struct directory *directory;
};

static struct tables tables_at(void *memory, uint64_t id) {
    struct tables t = { .memory = memory, .handle = malloc(directory_handle_bytes()) };
    KVT_OK(directory_open(t.handle, memory, &LIMITS, id, &t.directory));
    return t;
}

static struct tables tables_new(void) {
    void *memory = aligned_alloc(4096, directory_bytes(&LIMITS));
    memset(memory, 0xa5, directory_bytes(&LIMITS));
    directory_format(memory, &LIMITS, ID);
    return tables_at(memory, ID);
}

static void tables_free(struct tables *t) {
    free(t->memory);
    free(t->handle);
}

/* ---- everything that a directory holds, comparable as bytes ------------------------------------------------- */

struct view {
    bool open[2][PAGES], there[2][PLACES];
    struct directory_page page[2][PAGES];
    struct directory_bundle bundle[2][PLACES]; /* by kind */
};

/* Padding of the records is made zero by their loads, which clear them first. Returns how much was damaged. */
static uint32_t look(const struct directory *d, struct view *ret_view) {
    uint32_t bad = 0;
    bool damaged;
    memset(ret_view, 0, sizeof *ret_view);
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < PAGES; i++) {
            ret_view->open[k][i] = directory_page_load(d, k, i, &ret_view->page[k][i], &damaged);
            KVT_EQ(directory_page_is_open(d, k, i), ret_view->open[k][i]);
            bad += damaged + (ret_view->open[k][i] ? ret_view->page[k][i].damaged_parts : 0);
        }
        for (uint32_t i = 0; i < PLACES; i++) {
            ret_view->there[k][i] =
                directory_bundle_load(d, (enum directory_kind)k, i, &ret_view->bundle[k][i], &damaged);
            KVT_EQ(directory_bundle_is_there(d, (enum directory_kind)k, i), ret_view->there[k][i]);
            bad += damaged;
        }
    }
    return bad;
}

static void random_digest(uint64_t *seed, uint8_t *digest) {
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)kvt_random(seed);
}

static struct directory_base random_base(uint64_t *seed, uint32_t page) {
    struct directory_base base = { .generation = (uint32_t)kvt_random(seed),
                                   .block = kvt_below(seed, 3),
                                   .parent = DIRECTORY_NONE };
    if (base.block)
        base.parent = (page + 1 + kvt_below(seed, PAGES - 1)) % PAGES,
        base.parent_generation = (uint32_t)kvt_random(seed);
    return base;
}

static struct directory_host random_host(uint64_t *seed) {
    struct directory_host host;
    memset(&host, 0, sizeof host);
    host.offset = kvt_random(seed), host.checksum = kvt_random(seed), host.columns = 1 + kvt_below(seed, 64);
    return host;
}

static void random_bundle(uint64_t *seed, struct directory_bundle *b) {
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 2; i++) {
        b->frontier[i] = kvt_below(seed, 4) ? kvt_below(seed, INT32_MAX) : 0;
        b->last[i] = b->frontier[i] ? kvt_below(seed, PAGES) : DIRECTORY_NONE;
        b->last_generation[i] = b->frontier[i] ? (uint32_t)kvt_random(seed) : 0;
    }
    b->last[2] = b->last[3] = DIRECTORY_NONE;
    b->named = kvt_below(seed, 9), b->retention = kvt_below(seed, 5);
    b->created = kvt_random(seed), b->used = kvt_random(seed), b->tag = kvt_random(seed);
    b->state_slot = kvt_below(seed, 2) ? kvt_below(seed, 9) : DIRECTORY_NONE,
    b->state_frontier = kvt_below(seed, INT32_MAX);
    b->has_image = kvt_below(seed, 2), b->tail_named = kvt_below(seed, 2);
    if (b->has_image) b->image.offset = kvt_random(seed), b->image.checksum = kvt_random(seed);
    b->n_tail = kvt_below(seed, DIRECTORY_TAIL + 1);
    for (uint32_t i = 0; i < b->n_tail; i++) b->tail[i] = (uint32_t)kvt_random(seed);
}

/* ---- parts alone and together -------------------------------------------------------------------------------- */

/* All parts of a page, set in every combination and taken away in every combination, each leaving the others alone. */
static void parts_alone_and_together(void) {
    uint64_t seed = kvt_seed();
    struct tables t = tables_new();
    struct view v, want;
    KVT_EQ(look(t.directory, &v), 0);
    memset(&want, 0, sizeof want);
    KVT_EQ_MEM(&v, &want, sizeof v); /* format leaves nothing of what the memory held */
    for (unsigned set = 0; set < 8; set++)
        for (unsigned unset = 0; unset < 8; unset++) {
            struct directory_base base = random_base(&seed, 2);
            struct directory_page *p = &want.page[1][2];
            memset(&want, 0, sizeof want);
            want.open[1][2] = true, p->base = base, p->device = DIRECTORY_NONE;
            directory_page_open(t.directory, 1, 2, &base);
            if (set & 1)
                random_digest(&seed, p->digest), p->named = true, directory_page_name(t.directory, 1, 2, p->digest);
            if (set & 2)
                p->host = random_host(&seed), p->has_host = true, directory_page_host(t.directory, 1, 2, &p->host);
            if (set & 4) directory_page_device(t.directory, 1, 2, p->device = kvt_below(&seed, 1000));
            look(t.directory, &v);
            KVT_EQ_MEM(&v, &want, sizeof v);
            if (unset & 1) memset(p->digest, 0, 32), p->named = false, directory_page_name(t.directory, 1, 2, NULL);
            if (unset & 2)
                memset(&p->host, 0, sizeof p->host), p->has_host = false, directory_page_host(t.directory, 1, 2, NULL);
            if (unset & 4) directory_page_device(t.directory, 1, 2, p->device = DIRECTORY_NONE);
            KVT_EQ(look(t.directory, &v), 0);
            KVT_EQ_MEM(&v, &want, sizeof v);
            if (unset & 1) directory_page_close(t.directory, 1, 2); /* or the next open closes it */
        }
    directory_page_close(t.directory, 1, 2);
    directory_page_close(t.directory, 1, 2);
    KVT_EQ(look(t.directory, &v), 0);
    KVT_FALSE(v.open[1][2]);
    uint8_t digest[32] = { 1 };
    directory_page_name(t.directory, 1, 2, digest); /* nobody's */
    directory_page_open(t.directory, 1, 2, &(struct directory_base){ .generation = 1, .parent = DIRECTORY_NONE });
    look(t.directory, &v);
    KVT_FALSE(v.page[1][2].named);
    tables_free(&t);
}

/* Bundles of random content, overwritten and dropped; what is loaded is what was put, nothing else moves. */
static void bundles_come_back(void) {
    uint64_t seed = kvt_seed();
    struct tables t = tables_new();
    struct view v, want;
    memset(&want, 0, sizeof want);
    for (int i = 0; i < 500; i++) {
        uint32_t kind = kvt_below(&seed, 2), place = kvt_below(&seed, PLACES);
        struct directory_bundle *b = &want.bundle[kind][place];
        want.there[kind][place] = kvt_below(&seed, 4) != 0;
        memset(b, 0, sizeof *b);
        if (want.there[kind][place]) {
            random_bundle(&seed, b);
            directory_bundle_put(t.directory, (enum directory_kind)kind, place, b);
        } else directory_bundle_drop(t.directory, (enum directory_kind)kind, place);
        KVT_EQ(look(t.directory, &v), 0);
        KVT_EQ_MEM(&v, &want, sizeof v);
    }
    tables_free(&t);
}

/* A kill between the mark of the new copy and the end of the old one leaves both: the newer counts, wherever it stands,
 * and both go with a drop. */
static void the_newer_of_two_copies(void) {
    for (unsigned puts = 1; puts < 4; puts++) {
        struct tables t = tables_new();
        struct bundle_copy *copies = &t.directory->bundles[DIRECTORY_CONTINUATION][2], old[2];
        struct directory_bundle b = { .last = { DIRECTORY_NONE, DIRECTORY_NONE, DIRECTORY_NONE, DIRECTORY_NONE } },
                                back;
        bool damaged;
        for (b.tag = 1; b.tag <= puts; b.tag++) directory_bundle_put(t.directory, DIRECTORY_CONTINUATION, 1, &b);
        memcpy(old, copies, sizeof old);
        directory_bundle_put(t.directory, DIRECTORY_CONTINUATION, 1, &b);
        for (int i = 0; i < 2; i++)
            if (!copies[i].check) memcpy(&copies[i], &old[i], sizeof old[i]);
        KVT_TRUE(copies[0].check && copies[1].check);
        KVT_TRUE(directory_bundle_load(t.directory, DIRECTORY_CONTINUATION, 1, &back, &damaged));
        KVT_EQ(back.tag, puts + 1);
        directory_bundle_drop(t.directory, DIRECTORY_CONTINUATION, 1);
        KVT_FALSE(directory_bundle_load(t.directory, DIRECTORY_CONTINUATION, 1, &back, &damaged) || damaged);
        tables_free(&t);
    }
}

/* Records are bound to their directory, table, place, copy and base: moved bytes never count. */
static void records_are_bound_to_their_place(void) {
    uint64_t seed = kvt_seed();
    struct tables t = tables_new();
    struct view v;
    struct directory_bundle b;
    struct directory_host host = random_host(&seed);
    struct directory_base base = { 7, 0, DIRECTORY_NONE, 0 };
    uint8_t digest[32];
    random_digest(&seed, digest), random_bundle(&seed, &b);
    directory_page_open(t.directory, 0, 1, &base);
    directory_page_name(t.directory, 0, 1, digest);
    directory_page_host(t.directory, 0, 1, &host);
    directory_page_device(t.directory, 0, 1, 3);
    directory_bundle_put(t.directory, DIRECTORY_CONTINUATION, 0, &b);
    struct tables other = tables_at(t.memory, ID + 1);
    KVT_EQ(look(other.directory, &v), 2); /* another id: there, and nobody's */
    KVT_FALSE(v.open[0][1] || v.there[0][0]);
    struct directory *d = t.directory;
    memcpy(&d->pages[0][2], &d->pages[0][1], sizeof(struct page_record));
    memcpy(&d->pages[1][1], &d->pages[0][1], sizeof(struct page_record));
    memcpy(&d->bundles[0][3], &d->bundles[0][0], sizeof(struct bundle_copy)); /* the other copy of place 1 */
    memcpy(&d->bundles[0][4], &d->bundles[0][0], sizeof(struct bundle_copy));
    memcpy(&d->bundles[1][0], &d->bundles[0][0], sizeof(struct bundle_copy));
    KVT_EQ(look(d, &v), 5);
    KVT_TRUE(v.open[0][1] && v.there[0][0]);
    KVT_FALSE(v.open[0][2] || v.open[1][1] || v.there[0][1] || v.there[0][2] || v.there[1][0]);
    struct page_record old = d->pages[0][1]; /* parts of the page before, under a new base */
    base.generation++;
    directory_page_open(d, 0, 1, &base);
    memcpy(&d->pages[0][1].name, &old.name, sizeof old.name);
    memcpy(&d->pages[0][1].host, &old.host, sizeof old.host + sizeof old.device);
    look(d, &v);
    KVT_EQ(v.page[0][1].damaged_parts, 3);
    KVT_FALSE(v.page[0][1].named || v.page[0][1].has_host || v.page[0][1].device != DIRECTORY_NONE);
    free(other.handle);
    tables_free(&t);
}

/* ---- kills --------------------------------------------------------------------------------------------------- */

/* What an operation may leave, in order: each thing that a kill leaves is one of them, and none comes back. */
struct history {
    struct tables *tables;
    void *copy, *pick; /* pick: what a kill at a point chosen by lot left */
    uint64_t *seed;
    struct view states[3];
    uint32_t n, at, picked, points;
};

static void look_as_after_a_kill(void *context, const char *where) {
    struct history *h = context;
    struct view v;
    size_t bytes = directory_bytes(&LIMITS);
    memcpy(h->copy, h->tables->memory, bytes);
    struct tables next = tables_at(h->copy, ID);
    KVT_EQ(look(next.directory, &v), 0);
    while (h->at < h->n && memcmp(&v, &h->states[h->at], sizeof v)) h->at++;
    if (!KVT_TRUE(h->at < h->n)) fprintf(stderr, "%s left no state of the history\n", where), h->at = 0;
    if (kvt_below(h->seed, ++h->points) == 0) memcpy(h->pick, h->copy, bytes), h->picked = h->at;
    free(next.handle);
}

static void page_step(struct history *h, struct directory *d) {
    uint32_t pool = kvt_below(h->seed, 2), i = kvt_below(h->seed, PAGES), what = kvt_below(h->seed, 8);
    struct view *gone = &h->states[1], *done = &h->states[2];
    struct directory_page *p = &done->page[pool][i];
    bool open = done->open[pool][i];
    uint8_t digest[32];
    if (what < 2) { /* open, over an open page too: gone, then there */
        struct directory_base base = random_base(h->seed, i);
        gone->open[pool][i] = false, memset(&gone->page[pool][i], 0, sizeof *p);
        memset(p, 0, sizeof *p), p->base = base, p->device = DIRECTORY_NONE, done->open[pool][i] = true;
        directory_page_open(d, pool, i, &base);
    } else if (what == 2) {
        gone->open[pool][i] = false, memset(&gone->page[pool][i], 0, sizeof *p);
        h->n = 2;
        directory_page_close(d, pool, i);
    } else if (what < 5) {
        bool set = kvt_below(h->seed, 3);
        random_digest(h->seed, digest);
        if (open)
            gone->page[pool][i].named = false, memset(gone->page[pool][i].digest, 0, 32), *p = gone->page[pool][i];
        if (open && set) p->named = true, memcpy(p->digest, digest, 32);
        directory_page_name(d, pool, i, set ? digest : NULL);
    } else if (what < 7) {
        bool set = kvt_below(h->seed, 3);
        struct directory_host host = random_host(h->seed);
        if (open)
            gone->page[pool][i].has_host = false, memset(&gone->page[pool][i].host, 0, sizeof host),
            *p = gone->page[pool][i];
        if (open && set) p->has_host = true, memcpy(&p->host, &host, sizeof host);
        directory_page_host(d, pool, i, set ? &host : NULL);
    } else {
        uint32_t device = kvt_below(h->seed, 3) ? kvt_below(h->seed, 99) : DIRECTORY_NONE;
        if (open) gone->page[pool][i].device = DIRECTORY_NONE, p->device = device;
        directory_page_device(d, pool, i, device);
    }
}

/* The old one or the new one, never neither. */
static void bundle_step(struct history *h, struct directory *d) {
    uint32_t kind = kvt_below(h->seed, 2), place = kvt_below(h->seed, PLACES);
    bool put = kvt_below(h->seed, 4);
    struct directory_bundle *b = &h->states[1].bundle[kind][place];
    h->n = 2;
    h->states[1].there[kind][place] = put;
    memset(b, 0, sizeof *b);
    if (put) {
        random_bundle(h->seed, b);
        directory_bundle_put(d, (enum directory_kind)kind, place, b);
    } else directory_bundle_drop(d, (enum directory_kind)kind, place);
}

/* CONT-1, CONT-3: at each point of each operation, a kill leaves a prefix of history; the next directory goes on from
 * there, and is killed again. */
static void a_kill_leaves_a_prefix(void) {
    uint64_t seed = kvt_seed();
    struct tables t = tables_new();
    size_t bytes = directory_bytes(&LIMITS);
    struct history *h = calloc(1, sizeof *h);
    *h = (struct history){
        .tables = &t, .copy = aligned_alloc(4096, bytes), .pick = aligned_alloc(4096, bytes), .seed = &seed
    };
    for (unsigned step = 0; step < 4000; step++) {
        h->at = h->points = 0, h->n = 3;
        look(t.directory, &h->states[0]);
        h->states[1] = h->states[2] = h->states[0];
        crash_hook(look_as_after_a_kill, h);
        if (kvt_below(&seed, 3)) page_step(h, t.directory);
        else bundle_step(h, t.directory);
        crash_hook(NULL, NULL);
        struct view v;
        KVT_EQ(look(t.directory, &v), 0);
        KVT_EQ_MEM(&v, &h->states[h->n - 1], sizeof v);
        if (h->points && kvt_below(&seed, 2)) memcpy(t.memory, h->pick, bytes);
    }
    free(h->copy), free(h->pick), free(h);
    tables_free(&t);
}

#define SCRIPT 6
/* One operation after another on one bundle and one page; the child runs it and is killed on its way. */
static void script(struct directory *d, uint32_t steps) {
    struct directory_bundle b = { .last = { DIRECTORY_NONE, DIRECTORY_NONE, DIRECTORY_NONE, DIRECTORY_NONE },
                                  .state_slot = DIRECTORY_NONE };
    for (uint32_t i = 1; i <= steps; i++) {
        b.tag = i;
        if (i % 3) directory_bundle_put(d, DIRECTORY_CONTINUATION, 1, &b);
        else directory_bundle_drop(d, DIRECTORY_CONTINUATION, 1);
    }
}

/* The same with real deaths: another process dies by SIGKILL at $KVD_CRASH_AT, and what it leaves in shared memory is
 * one of the script's states, none earlier than the death before. */
static void a_process_dies_at_a_point(void) {
    size_t bytes = directory_bytes(&LIMITS);
    int fd = memfd_create("directory", 0), end = -1;
    KVT_NEED(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    KVT_NEED(shared != MAP_FAILED);
    uint32_t deaths = 0, reached = 0;
    for (unsigned n = 1; n < 100; n++) {
        directory_format(shared, &LIMITS, ID);
        pid_t pid = fork();
        if (pid == 0) {
            char number[16], text[16];
            snprintf(number, sizeof number, "%u", n), snprintf(text, sizeof text, "%d", fd);
            setenv("KVD_CRASH_AT", number, 1);
            if (!freopen("/dev/null", "w", stderr)) _exit(126);
            execl("/proc/self/exe", "test_directory", "--script", text, (char *)NULL);
            _exit(127);
        }
        end = kvt_wait(pid);
        if (end >= 0) break;
        KVT_NEED(end == -SIGKILL);
        deaths++;
        struct tables left = tables_at(shared, ID);
        struct view v, want;
        KVT_EQ(look(left.directory, &v), 0);
        bool matched = false;
        for (uint32_t at = reached; at <= SCRIPT && !matched; at++) {
            struct tables model = tables_new();
            script(model.directory, at);
            look(model.directory, &want);
            tables_free(&model);
            if ((matched = !memcmp(&v, &want, sizeof v))) reached = at;
        }
        KVT_TRUE(matched);
        free(left.handle);
    }
    KVT_OK(end);
    KVT_EQ(deaths, 16); /* twice: a put on an empty place 1 mark, a put over it 2, a drop 1; 2 points a mark */
    KVT_EQ(reached, SCRIPT);
    munmap(shared, bytes);
    close(fd);
}

static int run_script(int fd) {
    void *shared = mmap(NULL, directory_bytes(&LIMITS), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct directory *directory, memory;
    if (shared == MAP_FAILED || directory_open(&memory, shared, &LIMITS, ID, &directory)) return 2;
    script(directory, SCRIPT);
    return 0;
}

/* ---- damage -------------------------------------------------------------------------------------------------- */

static void check_damaged_page(const struct directory_page *whole, const struct directory *d) {
    struct directory_page p;
    bool damaged;
    if (!directory_page_load(d, 0, 1, &p, &damaged)) {
        KVT_TRUE(damaged);
        return;
    }
    KVT_FALSE(damaged);
    KVT_EQ_MEM(&p.base, &whole->base, sizeof p.base);
    KVT_EQ(p.damaged_parts, !p.named + !p.has_host + (p.device == DIRECTORY_NONE));
    if (p.named) KVT_EQ_MEM(p.digest, whole->digest, 32);
    if (p.has_host) KVT_EQ_MEM(&p.host, &whole->host, sizeof p.host);
    KVT_TRUE(p.device == DIRECTORY_NONE || p.device == whole->device);
}

/* Each bit of a page record turned: the part is dropped and counted, or means what it meant. */
static void every_bit_of_a_page(void) {
    uint64_t seed = kvt_seed();
    struct tables t = tables_new();
    struct directory_page whole, p;
    memset(&whole, 0, sizeof whole);
    bool damaged;
    random_digest(&seed, whole.digest);
    whole.host = random_host(&seed), whole.device = 17;
    whole.base = (struct directory_base){ 3, 2, 2, 9 };
    directory_page_open(t.directory, 0, 1, &whole.base);
    directory_page_name(t.directory, 0, 1, whole.digest);
    directory_page_host(t.directory, 0, 1, &whole.host);
    directory_page_device(t.directory, 0, 1, whole.device);
    uint8_t *record = (uint8_t *)&t.directory->pages[0][1];
    uint32_t gone = 0, parts = 0;
    for (uint32_t bit = 0; bit < sizeof(struct page_record) * 8; bit++) {
        record[bit / 8] ^= (uint8_t)(1u << bit % 8);
        check_damaged_page(&whole, t.directory);
        if (directory_page_load(t.directory, 0, 1, &p, &damaged)) parts += p.damaged_parts;
        else gone++;
        record[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    KVT_EQ(gone, 24 * 8);
    KVT_EQ(parts, (40 + 32 + 16) * 8);
    tables_free(&t);
}

/* Each bit of both copies of a bundle turned. */
static void every_bit_of_a_bundle(void) {
    uint64_t seed = kvt_seed();
    struct tables t = tables_new();
    struct directory_bundle whole, b;
    random_bundle(&seed, &whole);
    whole.n_tail = 5;
    memset(whole.tail, 0, sizeof whole.tail);
    directory_bundle_put(t.directory, DIRECTORY_SEQUENCE, 2, &whole);
    uint8_t *record = (uint8_t *)&t.directory->bundles[DIRECTORY_SEQUENCE][4];
    uint32_t gone = 0;
    for (uint32_t bit = 0; bit < 2 * sizeof(struct bundle_copy) * 8; bit++) {
        bool damaged;
        record[bit / 8] ^= (uint8_t)(1u << bit % 8);
        bool there = directory_bundle_load(t.directory, DIRECTORY_SEQUENCE, 2, &b, &damaged);
        KVT_EQ(damaged, !there);
        if (there) KVT_EQ_MEM(&b, &whole, sizeof b);
        gone += !there;
        record[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    KVT_EQ(gone, (8 + offsetof(struct bundle_body, tail) + 5 * 4) * 8);
    tables_free(&t);
}

static void check_in_range(const struct view *v) {
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < PAGES; i++) {
            const struct directory_page *p = &v->page[k][i];
            if (!v->open[k][i]) continue;
            KVT_TRUE(p->base.block < 1u << 25 &&
                     (p->base.parent == DIRECTORY_NONE || (p->base.block && p->base.parent < PAGES)));
            if (p->has_host) KVT_TRUE(p->host.columns >= 1 && p->host.columns <= 64);
        }
        for (uint32_t i = 0; i < PLACES; i++) {
            const struct directory_bundle *b = &v->bundle[k][i];
            if (!v->there[k][i]) continue;
            KVT_TRUE(b->n_tail <= DIRECTORY_TAIL && b->frontier[0] <= INT32_MAX && b->frontier[1] <= INT32_MAX &&
                     b->state_frontier <= INT32_MAX);
            for (int pool = 0; pool < 2; pool++)
                KVT_TRUE(b->last[pool] == DIRECTORY_NONE ? b->frontier[pool] % 64 == 0 : b->last[pool] < PAGES);
        }
    }
}

/* SRV-2: tables of noise hold nothing; noise whose check words are right still gives no value out of range; and both
 * can be written over. */
static void garbage(void) {
    uint64_t seed = kvt_seed();
    struct tables t = tables_new();
    struct view v;
    struct directory *d = t.directory;
    uint32_t forged = 0;
    for (int round = 0; round < 3000; round++) {
        bool forge = round % 2;
        uint64_t *words = t.memory;
        for (size_t i = 0; i < directory_bytes(&LIMITS) / 8; i++) {
            words[i] = kvt_random(&seed);
            if (kvt_below(&seed, 3) == 0)
                words[i] &= UINT64_C(0x0000004f00000003); /* small numbers are the likelier to pass */
        }
        for (uint32_t k = 0; forge && k < 2; k++) {
            for (uint32_t i = 0; i < PAGES; i++) {
                struct page_record *r = &d->pages[k][i];
                if (kvt_below(&seed, 2))
                    r->base.body.block = 0, r->base.body.parent = DIRECTORY_NONE, r->base.body.parent_generation = 0;
                uint64_t base = base_check(d, k, i, &r->base.body);
                r->base.check = base;
                r->host.check = check_of(&r->host.body, sizeof r->host.body, base + PART_HOST);
            }
            for (uint32_t i = 0; i < 2 * PLACES; i++) {
                struct bundle_copy *c = &d->bundles[k][i];
                c->body.n_tail %= DIRECTORY_TAIL + 1;
                c->check = bundle_check(d, (enum directory_kind)k, i / 2, i % 2, &c->body);
            }
        }
        look(d, &v);
        check_in_range(&v);
        for (uint32_t i = 0; i < PAGES; i++) forged += v.open[0][i];
        if (!forge)
            for (uint32_t i = 0; i < PAGES; i++) KVT_FALSE(v.open[0][i] || v.open[1][i]);
        struct directory_bundle b, back;
        bool damaged;
        random_bundle(&seed, &b);
        directory_bundle_put(d, DIRECTORY_CONTINUATION, 0, &b);
        KVT_TRUE(directory_bundle_load(d, DIRECTORY_CONTINUATION, 0, &back, &damaged));
        KVT_EQ_MEM(&b, &back, sizeof b);
        directory_bundle_drop(d, DIRECTORY_CONTINUATION, 0);
        KVT_FALSE(directory_bundle_load(d, DIRECTORY_CONTINUATION, 0, &back, &damaged) || damaged);
        directory_page_open(d, 0, 0, &(struct directory_base){ 1, 0, DIRECTORY_NONE, 0 });
        look(d, &v);
        KVT_TRUE(v.open[0][0] && !v.page[0][0].damaged_parts && !v.page[0][0].has_host);
    }
    KVT_TRUE(forged > 1000);
    tables_free(&t);
}

static void limits_and_arguments(void) {
    struct directory_limits none = { 0 }, five = { .n_pools = 5, .pages = { 1, 1, 1, 1 } },
                            empty = { .n_pools = 2, .pages = { 1, 0 } },
                            all = { .n_pools = 1, .pages = { UINT32_MAX } },
                            most = { .n_pools = 1, .pages = { UINT32_MAX - 1 } };
    KVT_EQ(directory_bytes(&none), 0);
    KVT_EQ(directory_bytes(&five), 0);
    KVT_EQ(directory_bytes(&empty), 0);
    KVT_EQ(directory_bytes(&all), 0);
    KVT_EQ(directory_bytes(&most), (UINT64_C(128) * (UINT32_MAX - 1) + 4095) / 4096 * 4096);
    KVT_EQ(directory_bytes(&LIMITS) % 4096, 0);
    struct tables t = tables_new();
    struct directory *d;
    struct view v, before;
    KVT_TRUE(directory_open(t.handle, t.memory, &none, ID, &d) < 0);
    KVT_TRUE(directory_open(t.handle, (char *)t.memory + 8, &LIMITS, ID, &d) < 0);
    KVT_OK(directory_open(t.handle, t.memory, &LIMITS, ID, &d));
    look(d, &before);
    struct directory_bundle b = { .last = { DIRECTORY_NONE, DIRECTORY_NONE, DIRECTORY_NONE, DIRECTORY_NONE },
                                  .n_tail = DIRECTORY_TAIL },
                            out;
    struct directory_page page;
    bool damaged;
    directory_page_open(d, 2, 0, &(struct directory_base){ 0 }); /* outside: nothing is written, nothing is there */
    directory_page_open(d, 0, PAGES, &(struct directory_base){ 0 });
    directory_bundle_put(d, DIRECTORY_SEQUENCE, PLACES, &b);
    directory_page_close(d, 9, 9);
    directory_bundle_drop(d, DIRECTORY_CONTINUATION, DIRECTORY_NONE);
    KVT_FALSE(directory_page_load(d, 2, 0, &page, &damaged) || damaged || directory_page_is_open(d, 0, PAGES));
    KVT_FALSE(directory_bundle_load(d, DIRECTORY_SEQUENCE, PLACES, &out, &damaged) || damaged ||
              directory_bundle_is_there(d, DIRECTORY_SEQUENCE, PLACES));
    look(d, &v);
    KVT_EQ_MEM(&v, &before, sizeof v);
    tables_free(&t);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(parts_alone_and_together),
                                             KVT_CASE(bundles_come_back),
                                             KVT_CASE(the_newer_of_two_copies),
                                             KVT_CASE(records_are_bound_to_their_place),
                                             KVT_CASE(a_kill_leaves_a_prefix),
                                             KVT_CASE(a_process_dies_at_a_point),
                                             KVT_CASE(every_bit_of_a_page),
                                             KVT_CASE(every_bit_of_a_bundle),
                                             KVT_CASE(garbage),
                                             KVT_CASE(limits_and_arguments),
                                             { 0 } };
    if (argc == 3 && !strcmp(argv[1], "--script")) return run_script(atoi(argv[2]));
    return kvt_main("directory", cases, argc, argv);
}
