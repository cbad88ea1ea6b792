/* SPDX-License-Identifier: Apache-2.0
 *
 * Names that came before: none of the last ones is forgotten, few that never came are taken for known, and memory is
 * bounded. kvd_endless_cache_tokens_total says so in its help.
 */
#include <string.h>

#include "kvt.h"
#include "named_before.h"

static kvd_digest name_of(uint64_t number) {
    kvd_digest name = { { 0 } };
    memcpy(name.bytes + 16, &number, sizeof number); /* the least that names can differ in */
    return name;
}

/* True: it came before, as the filters say. */
static bool note(struct named_before *names, uint64_t number) {
    kvd_digest name = name_of(number);
    uint64_t before = named_before_tokens(names);
    named_before_note(names, &(struct named_pages){ .names = &name, .n = 1, .prompt_tokens = 64 });
    return named_before_tokens(names) > before;
}

/* Names [first, first + n) are noted; returns how many of them had come before, as the filters say. */
static uint64_t note_all(struct named_before *names, uint64_t first, uint64_t n) {
    uint64_t known = 0;
    for (uint64_t i = 0; i < n; i++) known += note(names, first + i);
    return known;
}

static void the_last_names_are_known(void) {
    struct named_before *names = named_before_new();
    KVT_NEED(names);
    KVT_FALSE(note(names, 1));
    KVT_TRUE(note(names, 1));
    for (uint64_t turn = 1; turn < 4; turn++) {
        uint64_t first = turn * 10000000;
        (void)note_all(names, first, NAMED_BEFORE_PAGES);
        KVT_EQ(note_all(names, first, NAMED_BEFORE_PAGES), NAMED_BEFORE_PAGES);
    }
    KVT_FALSE(note(names, 1)); /* long ago: a filter that is full for ever would say yes to all */
    named_before_free(names);
}

/* A whole message: of its pages those that were not noted, and what of them was computed for the prompt. */
static void tokens_of_computed_pages_count(void) {
    struct named_before *names = named_before_new();
    kvd_digest name[20];
    KVT_NEED(names);
    for (uint64_t i = 0; i < 20; i++) name[i] = name_of(i);
    struct named_pages pages = { .names = name, .n = 20, .prompt_tokens = 20 * 64 };
    named_before_note(names, &pages);
    KVT_EQ(named_before_tokens(names), 0);
    pages.prompt_tokens = 15 * 64 + 63; /* of 15 whole pages 100 tokens were reused */
    pages.reused_tokens = 100;
    named_before_note(names, &pages);
    KVT_EQ(named_before_tokens(names), 15 * 64 - 100);
    pages.noted = 12; /* three more */
    named_before_note(names, &pages);
    KVT_EQ(named_before_tokens(names), 15 * 64 - 100 + 3 * 64);
    pages.first = 13; /* of another place only two are of the prompt */
    named_before_note(names, &pages);
    KVT_EQ(named_before_tokens(names), 15 * 64 - 100 + 3 * 64 + 2 * 64);
    named_before_free(names);
}

/* At their fullest: both filters have as many names as they take. */
static void few_new_names_are_taken_for_known(void) {
    struct named_before *names = named_before_new();
    KVT_NEED(names);
    uint64_t known = note_all(names, 0, 2 * NAMED_BEFORE_PAGES - 50000);
    uint64_t wrong = note_all(names, UINT64_C(1) << 40, 45000);
    printf("(%.2f %% of all, %.2f %% at the end) ", 100.0 * (double)known / (2.0 * NAMED_BEFORE_PAGES),
           100.0 * (double)wrong / 45000);
    KVT_TRUE(wrong < 45000 / 50);
    named_before_free(names);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(the_last_names_are_known),
                                             KVT_CASE(tokens_of_computed_pages_count),
                                             KVT_CASE(few_new_names_are_taken_for_known),
                                             { 0 } };
    return kvt_main("service_named_before", cases, argc, argv);
}
