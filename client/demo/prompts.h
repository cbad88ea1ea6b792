/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo's prompt list: a text file that takes its texts from documents of the machine.
 *
 *     system  PATH OFFSET BYTES                  the prefix that all conversations share
 *     ask     NAME PATH OFFSET BYTES OUTPUT      one turn of the conversation NAME, answered with OUTPUT tokens
 *
 * Offsets and sizes count bytes of the cleaned text (text.h). Turns of a conversation come in the order of the file.
 * '#' begins a comment.
 */
#ifndef KVD_DEMO_PROMPTS_H
#define KVD_DEMO_PROMPTS_H

#include <stddef.h>
#include <stdint.h>

#define PROMPTS_CONVERSATIONS 16
#define PROMPTS_TURNS 8

struct prompts_turn {
    uint8_t *text; /* what the user adds to the conversation */
    uint32_t n;
    uint32_t output;
};
struct prompts_conversation {
    char name[32];
    uint32_t n_turns;
    struct prompts_turn turn[PROMPTS_TURNS];
};
struct prompts {
    uint8_t *system;
    uint32_t n_system;
    uint32_t n_conversations;
    struct prompts_conversation conversation[PROMPTS_CONVERSATIONS];
};

/* 0 or -errno with a sentence that names the line. */
int prompts_load(const char *path, struct prompts *ret_prompts, char *err, size_t err_bytes);
void prompts_free(struct prompts *prompts);
/* Tokens of a conversation from its first byte to its last answer. */
uint32_t prompts_length(const struct prompts *prompts, uint32_t conversation);

#endif
