/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo's engine on pages of this process: what the demo proves about kvd stands on these properties of its model.
 * Built with DEMO_CUDA the model is that of the GPU (test_demo_cuda): it must have them all.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "demo_pages.h"
#include "kvt.h"
#ifdef DEMO_CUDA
#include "model_cuda.h"
#define PROFILES KVD_STORAGE_FP8_TENSOR /* those that have kernels */
#else
#define PROFILES KVD_N_STORAGE
#endif
#include "text.h"

#define DOCUMENT "/usr/share/common-licenses/GPL-3"
#define PROMPT REPEAT(132, 160)
#define OUTPUT 40

/* Sanitizers make the model ten times slower: fewer repetitions, the same properties. */
#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
#define REPEAT(few, many) (few)
#else
#define REPEAT(few, many) (many)
#endif

static struct engine engine;
static struct demo_pages pages;
static uint8_t document[1 << 16];

static int new_model(struct model **ret_model, char *err, size_t err_bytes) {
    const uint32_t context = DEMO_PAGES_ENTRIES * KVD_PAGE_TOKENS;
#ifdef DEMO_CUDA
    return model_cuda_new(NULL, context, DOCUMENT, ret_model, err, err_bytes);
#else
    return model_new(context, DOCUMENT, ret_model, err, err_bytes);
#endif
}

static void setup(enum kvd_storage storage, uint32_t n_pools, uint32_t window, uint64_t seed) {
    char err[256] = "";
    uint8_t *bytes = NULL;
    size_t n = 0;
    if (!engine.model && new_model(&engine.model, err, sizeof err) != 0) printf("%s\n", err);
    KVT_NEED(engine.model != NULL);
    KVT_OK(text_load("/usr/share/common-licenses/Apache-2.0", &bytes, &n, err, sizeof err));
    memcpy(document, bytes, n < sizeof document ? n : sizeof document);
    free(bytes);
    demo_pages_init(&pages, storage, &engine, n_pools, window, seed);
}

static struct engine_lane *lane_open(uint32_t i, uint32_t row, uint32_t from, uint32_t n_prompt, uint32_t output,
                                     bool speculate) {
    struct engine_lane *lane = &engine.lane[i];
    memset(lane, 0, sizeof *lane);
    lane->used = true;
    lane->id = i;
    lane->row[ENGINE_MAIN] = lane->row[ENGINE_MTP] = row;
    lane->known = n_prompt;
    lane->end = n_prompt + output;
    lane->speculate = speculate;
    memcpy(lane->history, document + from, n_prompt);
    demo_pages_map(&pages, &engine, lane, n_prompt + output);
    return lane;
}

static void run_all(void) {
    char err[256] = "";
    uint32_t columns = 0;
    do {
        int r = engine_step(&engine, &columns, err, sizeof err);
        KVT_OK(r);
        if (r != 0) {
            printf("%s\n", err);
            return;
        }
    } while (columns > 0);
}

/* The text of one lane alone, in chunks of ENGINE_CHUNK. */
static void reference(uint32_t from, uint32_t n_prompt, uint32_t output, uint8_t *ret_text) {
    struct engine_lane *lane = lane_open(0, 0, from, n_prompt, output, false);
    run_all();
    KVT_EQ(lane->known, n_prompt + output);
    KVT_EQ(lane->computed[ENGINE_MAIN], n_prompt + output - 1);
    memcpy(ret_text, lane->history + n_prompt, output);
    lane->used = false;
}

static void text_is_printable_and_depends_on_the_prompt(void) {
    uint8_t a[OUTPUT], b[OUTPUT];
    setup(KVD_STORAGE_BF16, 1, 1, 1);
    reference(0, PROMPT, OUTPUT, a);
    reference(1, PROMPT, OUTPUT, b); /* another beginning, the same end but for one byte */
    for (uint32_t i = 0; i < OUTPUT; i++) KVT_TRUE(a[i] == '\n' || (a[i] >= 0x20 && a[i] < 0x7f));
    KVT_TRUE(memcmp(a, b, OUTPUT) != 0);
    printf("    %.*s\n", OUTPUT, (const char *)a);
    demo_pages_free(&pages);
}

/* INV-15, VIEW-4: neither page ids, nor what stood in the pages before, nor batches, nor chunks change a token, in any
 * profile. */
static void text_is_exact_in_any_batch_chunk_and_page_order(void) {
    for (uint32_t storage = REPEAT(PROFILES - 1, 0); storage < PROFILES; storage++) {
        uint8_t want[3][OUTPUT];
        setup((enum kvd_storage)storage, 1, 1, 1);
        for (uint32_t i = 0; i < 3; i++) reference(i * 300, PROMPT + i * 37, OUTPUT, want[i]);
        demo_pages_free(&pages);
        setup((enum kvd_storage)storage, 1, 1, kvt_seed());
        for (uint32_t i = 0; i < 3; i++)
            lane_open(2 - i, i + 1, i * 300, PROMPT + i * 37, OUTPUT, false)->hold_at = 61 + i; /* odd chunks */
        run_all();
        for (uint32_t i = 0; i < 3; i++) engine.lane[i].hold_at = 0;
        run_all();
        for (uint32_t i = 0; i < 3; i++) KVT_EQ_MEM(engine.lane[2 - i].history + PROMPT + i * 37, want[i], OUTPUT);
        demo_pages_free(&pages);
    }
}

/* SPEC-1..3: with drafts the text is the same token for token, and some drafts are accepted, some rejected. */
static void speculation_gives_the_text_of_plain_decoding(void) {
    for (uint32_t window = REPEAT(5, 2); window <= REPEAT(5, 8); window += 3) {
        uint8_t want[2][OUTPUT];
        setup(KVD_STORAGE_INT8, 2, window, kvt_seed());
        for (uint32_t i = 0; i < 2; i++) reference(i * 500, PROMPT + i, OUTPUT, want[i]);
        uint32_t drafted = 0, accepted = 0;
        for (uint32_t i = 0; i < 2; i++) lane_open(i, i, i * 500, PROMPT + i, OUTPUT, true);
        run_all();
        for (uint32_t i = 0; i < 2; i++) {
            struct engine_lane *lane = &engine.lane[i];
            KVT_EQ_MEM(lane->history + PROMPT + i, want[i], OUTPUT);
            KVT_EQ(lane->computed[ENGINE_MAIN], PROMPT + i + OUTPUT - 1);
            KVT_EQ(lane->computed[ENGINE_MTP], lane->computed[ENGINE_MAIN]);
            drafted += lane->drafted;
            accepted += lane->accepted;
        }
        KVT_TRUE(accepted > 0 && accepted < drafted);
        printf("    window %u: %u of %u drafts accepted\n", window, accepted, drafted);
        demo_pages_free(&pages);
    }
}

/* A lane never goes past its mapping, and goes on when more is mapped. */
static void a_lane_stops_where_its_pages_end(void) {
    uint8_t want[OUTPUT];
    setup(KVD_STORAGE_BF16, 2, 4, 3);
    reference(0, PROMPT, OUTPUT, want);
    for (uint32_t speculate = 0; speculate < 2; speculate++) {
        struct engine_lane *lane = lane_open(1, 1, 0, PROMPT, OUTPUT, speculate != 0);
        demo_pages_map(&pages, &engine, lane, 128);
        run_all();
        KVT_EQ(lane->computed[ENGINE_MAIN], 128);
        KVT_EQ(engine_room(&engine, lane), 0);
        demo_pages_map(&pages, &engine, lane, PROMPT + OUTPUT);
        run_all();
        KVT_EQ_MEM(lane->history + PROMPT, want, OUTPUT);
        lane->used = false;
    }
    demo_pages_free(&pages);
}

/* Tokens depend on single bytes of KV: equal text means equal pages. */
static void one_byte_of_kv_changes_what_is_said(void) {
    uint8_t want[OUTPUT];
    float before[MODEL_VOCABULARY], after[MODEL_VOCABULARY];
    char err[256] = "";
    uint32_t logits_changed = 0, text_changed = 0;
    setup(KVD_STORAGE_BF16, 1, 1, 5);
    reference(0, PROMPT, OUTPUT, want);
    uint64_t seed = kvt_seed();
    const uint32_t tries = REPEAT(6, 24);
    for (uint32_t t = 0; t < tries; t++) {
        struct engine_lane *lane = lane_open(0, 0, 0, PROMPT, OUTPUT, false);
        lane->hold_at = PROMPT - 1;
        run_all();
        uint8_t next = 0;
        struct model_segment s = {
            .first = PROMPT - 1, .n = 1, .want = 1, .history = lane->history, .next = &next, .logits = before
        };
        KVT_OK(model_step(engine.model, MODEL_MAIN, engine.main, &s, 1, err, sizeof err));
        KVT_EQ(next, want[0]);
        uint8_t *row = demo_pages_at(&pages, &engine, 0, kvt_below(&seed, MODEL_LAYERS), kvt_below(&seed, PROMPT - 1),
                                     kvt_below(&seed, MODEL_KV_HEADS), kvt_below(&seed, 2) != 0);
        row[kvt_below(&seed, MODEL_HEAD_DIM) * 2 + 1] = 0x42; /* sign and exponent of one BF16: 32 to 64 */
        s.logits = after;
        KVT_OK(model_step(engine.model, MODEL_MAIN, engine.main, &s, 1, err, sizeof err));
        logits_changed += memcmp(before, after, sizeof before) != 0;
        lane->hold_at = 0;
        run_all();
        text_changed += memcmp(lane->history + PROMPT, want, OUTPUT) != 0;
    }
    printf("    one byte changed the logits in %u of %u cases, the text in %u\n", logits_changed, tries, text_changed);
    KVT_TRUE(logits_changed >= tries * 3 / 4);
    KVT_TRUE(text_changed + REPEAT(1, 0) >= 1); /* few tries may all be harmless */
    demo_pages_free(&pages);
}

/* Keys carry their rotation, so that swapped pages would still be the same set; a page in the place of another is not.
 */
static void another_page_in_the_table_changes_the_text(void) {
    uint8_t want[OUTPUT];
    setup(KVD_STORAGE_FP8, 1, 1, 6);
    reference(0, PROMPT, OUTPUT, want);
    struct engine_lane *lane = lane_open(0, 0, 0, PROMPT, OUTPUT, false);
    lane->hold_at = PROMPT - 1;
    run_all();
    pages.table[ENGINE_MAIN][0][0] = pages.table[ENGINE_MAIN][0][1];
    lane->hold_at = 0;
    run_all();
    KVT_TRUE(memcmp(lane->history + PROMPT, want, OUTPUT) != 0);
    demo_pages_free(&pages);
}

static void a_step_that_does_not_fit_is_refused(void) {
    char err[256] = "";
    uint8_t next[4], history[8] = { 0 };
    setup(KVD_STORAGE_BF16, 1, 1, 7);
    struct model_segment s = { .first = engine.max_context - 2, .n = 3, .history = history, .next = next };
    KVT_TRUE(model_step(engine.model, MODEL_MAIN, engine.main, &s, 1, err, sizeof err) < 0);
    KVT_HAS(err, "context");
#ifndef DEMO_CUDA /* only the host can look into the tables (VIEW-3) */
    s = (struct model_segment){ .first = 0, .n = 1, .want = 1, .history = history, .next = next };
    KVT_TRUE(model_step(engine.model, MODEL_MAIN, engine.main, &s, 1, err, sizeof err) < 0); /* unmapped */
#endif
    KVT_TRUE(model_step(engine.model, MODEL_MAIN, engine.main, &s, 0, err, sizeof err) < 0);
    demo_pages_free(&pages);
}

/* Logits of the last n columns of a prompt on row `row`, which the lane has computed up to there. */
static void logits_of(struct model *model, const struct engine_lane *lane, uint32_t n, float *ret_logits) {
    char err[256] = "";
    uint8_t next[4];
    const struct model_segment s = { .row = lane->row[ENGINE_MAIN],
                                     .first = PROMPT - n,
                                     .n = n,
                                     .want = n,
                                     .history = lane->history,
                                     .next = next,
                                     .logits = ret_logits };
    KVT_OK(model_step(model, MODEL_MAIN, engine.main, &s, 1, err, sizeof err));
}

/* A column alone has the logits that it has among others. On a GPU one column is a captured graph, replayed for other
 * rows and positions, and several are launches (VIEW-5). */
static void a_column_alone_is_the_column_in_a_chunk(void) {
    for (uint32_t storage = 0; storage < PROFILES; storage++) {
        float chunk[4][MODEL_VOCABULARY], alone[MODEL_VOCABULARY];
        setup((enum kvd_storage)storage, 1, 1, 8);
        for (uint32_t row = 0; row < 2; row++) {
            struct engine_lane *lane = lane_open(0, row, row * 100, PROMPT, 1, false);
            run_all();
            logits_of(engine.model, lane, 4, chunk[0]);
            for (uint32_t times = 0; times < 3; times++) {
                logits_of(engine.model, lane, 1, alone);
                KVT_EQ_MEM(alone, chunk[3], sizeof alone);
            }
        }
        demo_pages_free(&pages);
    }
}

#ifdef DEMO_CUDA
/* The same prompt through the model of the host: not the same bits, but the same model. */
static void the_host_says_nearly_the_same(void) {
    struct model *gpu = engine.model, *host = NULL;
    char err[256] = "";
    KVT_OK(model_new(DEMO_PAGES_ENTRIES * KVD_PAGE_TOKENS, DOCUMENT, &host, err, sizeof err));
    for (uint32_t storage = 0; host && storage < PROFILES; storage++) {
        float logits[2][4][MODEL_VOCABULARY];
        double differs = 0, sum = 0;
        setup((enum kvd_storage)storage, 1, 1, 9);
        for (uint32_t i = 0; i < 2; i++) {
            engine.model = i == 0 ? gpu : host;
            const struct engine_lane *lane = lane_open(0, i, 0, PROMPT, 1, false);
            run_all();
            logits_of(engine.model, lane, 4, logits[i][0]);
        }
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t j = 0; j < MODEL_VOCABULARY; j++) {
                const double a = logits[0][i][j], b = logits[1][i][j];
                differs += (a - b) * (a - b);
                sum += b * b;
            }
        printf("    storage %u: the logits differ by %.4f of their size\n", storage, sqrt(differs / sum));
        KVT_TRUE(sqrt(differs / sum) < 0.25); /* of unrelated ones: 1.4 */
        demo_pages_free(&pages);
    }
    engine.model = gpu;
    model_free(host);
}
#endif

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(text_is_printable_and_depends_on_the_prompt),
                                             KVT_CASE(text_is_exact_in_any_batch_chunk_and_page_order),
                                             KVT_CASE(speculation_gives_the_text_of_plain_decoding),
                                             KVT_CASE(a_lane_stops_where_its_pages_end),
                                             KVT_CASE(one_byte_of_kv_changes_what_is_said),
                                             KVT_CASE(another_page_in_the_table_changes_the_text),
                                             KVT_CASE(a_step_that_does_not_fit_is_refused),
                                             KVT_CASE(a_column_alone_is_the_column_in_a_chunk),
#ifdef DEMO_CUDA
                                             KVT_CASE(the_host_says_nearly_the_same),
#endif
                                             { 0 } };
#ifdef DEMO_CUDA
    char err[256] = "";
    int none = new_model(&engine.model, err, sizeof err);
    if (none == -ENODEV) return printf("skipped: %s\n", err), 77;
#endif
    int r = kvt_main("demo_model", cases, argc, argv);
    model_free(engine.model);
    return r;
}
