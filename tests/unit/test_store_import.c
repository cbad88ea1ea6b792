/* SPDX-License-Identifier: Apache-2.0
 *
 * KEEP-1: what a directory of other limits names goes into another store, one bundle after the other, and the old
 * directory and its arena stay as they are at every moment of it.
 */
#include "directory.h"
#include "store_fixture.h"

#define STRIDE 1024u
#define OLD_ID 0x1111u
#define NEW_ID 0x2222u

/* One kvd's: store, directory, arena. */
struct side {
    struct fix fix;
    void *tables, *handle;
    struct directory *directory;
    size_t tables_bytes;
    uint8_t arena[64 * STRIDE];
    uint64_t arena_bytes;
};
static struct side old, new;
static uint32_t *maps[2];
static uint32_t window; /* of a second pool; 0: there is none */

static void side_open(struct side *side, uint32_t arena_pages, uint32_t conts, uint32_t context, uint64_t id) {
    struct store_config config = fix_config(GEOM_OFF);
    struct directory_limits limits;
    config.pool_pages[0] = 40;
    config.max_context = context;
    config.max_continuations = conts;
    config.host_bytes = side->arena_bytes = (uint64_t)arena_pages * STRIDE;
    config.host_stride[0] = STRIDE;
    config.recorded = true;
    if (window) {
        config.more_pools = 1;
        config.pool_pages[1] = 40;
        config.host_stride[1] = STRIDE;
        config.window[1].tokens = window;
    }
    fix_open(&side->fix, &config);
    store_directory_limits(side->fix.store, &limits);
    side->tables_bytes = directory_bytes(&limits);
    side->tables = aligned_alloc(4096, side->tables_bytes);
    side->handle = malloc(directory_handle_bytes());
    directory_format(side->tables, &limits, id);
    KVT_OK(directory_open(side->handle, side->tables, &limits, id, &side->directory));
    store_set_directory(side->fix.store, side->directory);
}

static void side_close(struct side *side) {
    fix_close(&side->fix);
    free(side->tables);
    free(side->handle);
}

/* Bytes of a page follow from its offset, so that one that went elsewhere shows. */
static void demote(store_cont cont) {
    struct store_copy copy;
    store_move move;
    uint64_t cursor = 0;
    KVT_OK(store_move_begin(old.fix.store, cont, STORE_PLACE_HOST, &move, &old.fix.refusal));
    while (store_next_copies(old.fix.store, (struct store_transition){ true, move.bits }, &cursor, &copy, 1)) {
        memset(old.arena + copy.host, (int)(1 + copy.host / STRIDE), STRIDE);
        store_copied_out(old.fix.store, copy.replica, 100 + copy.host / STRIDE);
    }
    KVT_OK(store_move_commit(old.fix.store, move, &old.fix.refusal));
}

static void copy_bytes(void *context, uint64_t from, uint64_t to, uint64_t bytes) {
    (void)context;
    if (!KVT_TRUE(from + bytes <= old.arena_bytes && to + bytes <= new.arena_bytes)) return;
    memcpy(new.arena + to, old.arena + from, bytes);
}

static uint32_t import(store_cont cont) {
    struct store_import from = { .directory = old.directory, .arena_bytes = old.arena_bytes, .copy = copy_bytes };
    from.map[0] = maps[0];
    from.map[1] = maps[1];
    return store_import(new.fix.store, &from, DIRECTORY_CONTINUATION, (uint32_t)cont.bits);
}

static void open_both(uint32_t arena_pages, uint32_t conts, uint32_t context) {
    side_open(&old, 40, 8, 512, OLD_ID);
    side_open(&new, arena_pages, conts, context, NEW_ID);
    for (uint32_t p = 0; p < 1 + (window > 0); p++) {
        maps[p] = malloc(old.fix.store->pool[p].descriptors * sizeof *maps[p]);
        memset(maps[p], 0xff, old.fix.store->pool[p].descriptors * sizeof *maps[p]);
    }
}

static void close_both(void) {
    free(maps[0]);
    free(maps[1]);
    maps[1] = NULL;
    side_close(&old);
    side_close(&new);
}

/* The only continuation of the new store: its bytes are those of the old pages, in order. */
static struct kvd_continuation_info only_one(void) {
    struct kvd_continuation_info info = { .frontier = 0 };
    uint32_t cursor = 0, n = 0;
    while (store_next_cont(new.fix.store, &cursor, &info)) n++;
    KVT_EQ(n, 1);
    return info;
}

static void same_bytes(store_cont was, store_cont is, uint32_t pages) {
    const struct cont *a = cont_find(old.fix.store, was), *b = cont_find(new.fix.store, is);
    for (uint32_t i = 0; i < pages; i++) {
        const struct page *x = &old.fix.store->pool[0].pages[space_entry(old.fix.store, &a->space[0], i)];
        uint32_t d = space_entry(new.fix.store, &b->space[0], i);
        const struct page *y = &new.fix.store->pool[0].pages[d];
        uint64_t from = extent_offset(old.fix.store->arena, x->host), to = extent_offset(new.fix.store->arena, y->host);
        KVT_EQ_MEM(new.arena + to, old.arena + from, STRIDE);
        KVT_EQ(new.fix.store->pool[0].tier[d].checksum, 100 + from / STRIDE);
    }
}

static void keep_1_other_limits(void) {
    open_both(50, 3, 1280);
    store_cont cont = fix_cont(&old.fix, 420, 1);
    KVT_OK(store_set_retention(old.fix.store, cont, 6, &old.fix.refusal));
    demote(cont);
    uint8_t *before = malloc(old.tables_bytes);
    memcpy(before, old.tables, old.tables_bytes);
    KVT_EQ(import(cont), 420);
    KVT_EQ_MEM(old.tables, before, old.tables_bytes); /* a kill now finds it whole */
    free(before);
    struct kvd_continuation_info info = only_one();
    KVT_EQ(info.frontier, 420);
    KVT_EQ(info.retention, 6);
    KVT_EQ(info.named_pages, 6);
    KVT_TRUE(info.demoted && info.tail_named);
    same_bytes(cont, store_cont_of(info.continuation), 7);
    KVT_TRUE(fix_audit(&new.fix));
    close_both();
}

/* GRP-6: of a window pool the window comes along. A cut that begins in the same block serves, a shorter one does not.
 */
static void keep_1_a_window_comes_along(void) {
    static const struct {
        uint32_t room, frontier, pages, of_window;
    } cases[] = { { 10, 420, 7, 3 }, { 9, 384, 6, 2 }, { 7, 0, 0, 0 } };
    window = 128;
    for (uint32_t i = 0; i < 3; i++) {
        open_both(cases[i].room, 8, 512);
        store_cont cont = fix_cont(&old.fix, 420, 1);
        demote(cont);
        KVT_EQ(import(cont), cases[i].frontier);
        KVT_EQ(new.fix.store->pool[0].host_pages, cases[i].pages);
        KVT_EQ(new.fix.store->pool[1].host_pages, cases[i].of_window);
        KVT_TRUE(fix_audit(&new.fix));
        close_both();
    }
    window = 0;
}

/* What does not fit is cut, and what went with the cut is copied anew for the next one. */
static void keep_1_cut_to_what_fits(void) {
    open_both(6, 8, 512);
    store_cont trunk = fix_cont(&old.fix, 500, 1);
    demote(trunk);
    KVT_EQ(import(trunk), 384);
    KVT_EQ(only_one().frontier, 384);
    KVT_TRUE(fix_audit(&new.fix));
    KVT_OK(store_release(new.fix.store, store_cont_of(only_one().continuation), &new.fix.refusal));
    close_both();
    open_both(4, 8, 128); /* more than the new limit of context */
    trunk = fix_cont(&old.fix, 500, 1);
    demote(trunk);
    KVT_EQ(import(trunk), 128);
    KVT_TRUE(fix_audit(&new.fix));
    close_both();
}

/* Two share their first pages in the old one, and do in the new one; a page that is partial is nobody else's. */
static void keep_1_what_was_shared_is_shared(void) {
    open_both(40, 8, 512);
    store_seq seq = fix_activate(&old.fix, fix_root(448, 64, 0), NULL);
    KVT_TRUE(fix_fill(&old.fix, seq, 320, 1));
    store_cont shorter = fix_checkpoint(&old.fix, seq, 320);
    KVT_TRUE(fix_fill(&old.fix, seq, 420, 1));
    store_cont longer = fix_retain(&old.fix, seq, 420);
    demote(shorter);
    demote(longer);
    KVT_EQ(import(longer), 420);
    KVT_EQ(import(shorter), 320);
    KVT_EQ(new.fix.store->pool[0].host_pages, 7);
    KVT_EQ(new.fix.store->pool[0].shared, 5);
    KVT_TRUE(fix_audit(&new.fix));
    close_both();
}

/* A kill in the middle of a cut leaves two records of one page, partial in one and full in the other: the second one is
 * cut before it. */
static void keep_1_a_partial_page_is_not_shared(void) {
    struct directory_bundle bundle;
    bool damaged;
    open_both(40, 8, 512);
    store_cont cont = fix_cont(&old.fix, 420, 1);
    demote(cont);
    KVT_TRUE(directory_bundle_load(old.directory, DIRECTORY_CONTINUATION, (uint32_t)cont.bits, &bundle, &damaged));
    bundle.tail_named = true;
    directory_bundle_put(old.directory, DIRECTORY_CONTINUATION, 7, &bundle);
    KVT_EQ(import(cont), 420);
    KVT_EQ(import((store_cont){ 7 }), 384);
    KVT_TRUE(fix_audit(&new.fix));
    close_both();
}

/* A record is believed as far as it fits: a replica of too few columns, or past the end of the arena, is none. */
static void keep_1_records_are_checked(void) {
    struct directory_host host;
    struct directory_page page;
    bool damaged;
    for (int how = 0; how < 2; how++) {
        open_both(40, 8, 512);
        store_cont cont = fix_cont(&old.fix, 420, 1);
        demote(cont);
        uint32_t d = space_entry(old.fix.store, &cont_find(old.fix.store, cont)->space[0], 3);
        KVT_TRUE(directory_page_load(old.directory, 0, d, &page, &damaged));
        host = page.host;
        if (how) host.offset = old.arena_bytes - STRIDE + 256;
        else host.columns = 63;
        directory_page_host(old.directory, 0, d, &host);
        KVT_EQ(import(cont), 192);
        KVT_TRUE(fix_audit(&new.fix));
        close_both();
    }
}

/* A cut that gave pages back forgets what they became: another bundle copies them again. */
static void keep_1_what_went_is_copied_again(void) {
    struct directory_bundle bundle;
    bool damaged;
    open_both(40, 8, 512);
    store_cont cont = fix_cont(&old.fix, 192, 1);
    demote(cont);
    KVT_TRUE(directory_bundle_load(old.directory, DIRECTORY_CONTINUATION, (uint32_t)cont.bits, &bundle, &damaged));
    struct directory_bundle nameless = bundle;
    uint32_t d = space_entry(old.fix.store, &cont_find(old.fix.store, cont)->space[0], 1);
    directory_page_name(old.directory, 0, d, NULL); /* what nobody can find is not kept (SRV-5) */
    KVT_EQ(import(cont), 64);
    uint8_t digest[32];
    fix_digest(1, 1, digest);
    directory_page_name(old.directory, 0, d, digest);
    directory_bundle_put(old.directory, DIRECTORY_CONTINUATION, 7, &nameless);
    KVT_EQ(import((store_cont){ 7 }), 192);
    KVT_EQ(new.fix.store->pool[0].host_pages, 3);
    KVT_TRUE(fix_audit(&new.fix));
    close_both();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(keep_1_other_limits),
                                             KVT_CASE(keep_1_a_window_comes_along),
                                             KVT_CASE(keep_1_cut_to_what_fits),
                                             KVT_CASE(keep_1_what_was_shared_is_shared),
                                             KVT_CASE(keep_1_a_partial_page_is_not_shared),
                                             KVT_CASE(keep_1_records_are_checked),
                                             KVT_CASE(keep_1_what_went_is_copied_again),
                                             { 0 } };
    return kvt_main("store import", cases, argc, argv);
}
