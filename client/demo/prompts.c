/* SPDX-License-Identifier: Apache-2.0 */
#include "prompts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

/* Cuts [offset, offset + bytes) out of a document and puts words before and after it. */
static int excerpt(const char *path, unsigned offset, unsigned bytes, const char *before, const char *after,
                   uint8_t **ret_text, uint32_t *ret_n, char *err, size_t err_bytes) {
    uint8_t *document = NULL;
    size_t n = 0;
    int r = text_load(path, &document, &n, err, err_bytes);
    if (r != 0) return r;
    size_t head = strlen(before), tail = strlen(after);
    uint8_t *text = bytes <= 65536 ? malloc(head + bytes + tail + 1) : NULL;
    if (offset > n || bytes > n - offset || bytes == 0 || !text) {
        snprintf(err, err_bytes, "%s has %zu bytes of text: bytes %u to %u of it were asked for", path, n, offset,
                 offset + bytes);
        free(document);
        free(text);
        return -ERANGE;
    }
    memcpy(text, before, head);
    memcpy(text + head, document + offset, bytes);
    memcpy(text + head + bytes, after, tail);
    free(document);
    *ret_text = text;
    *ret_n = (uint32_t)(head + bytes + tail);
    return 0;
}

static struct prompts_conversation *conversation_of(struct prompts *prompts, const char *name) {
    for (uint32_t i = 0; i < prompts->n_conversations; i++)
        if (strcmp(prompts->conversation[i].name, name) == 0) return &prompts->conversation[i];
    if (prompts->n_conversations == PROMPTS_CONVERSATIONS) return NULL;
    struct prompts_conversation *c = &prompts->conversation[prompts->n_conversations++];
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

static int prompts_line(struct prompts *prompts, const char *line, char *err, size_t err_bytes) {
    char name[32], path[256], rest[2];
    unsigned offset = 0, bytes = 0, output = 0;
    if (sscanf(line, " system %255s %u %u %1s", path, &offset, &bytes, rest) == 3 && !prompts->system)
        return excerpt(path, offset, bytes, "System: answer in the words of the documents.\n", "\n", &prompts->system,
                       &prompts->n_system, err, err_bytes);
    if (sscanf(line, " ask %31s %255s %u %u %u %1s", name, path, &offset, &bytes, &output, rest) != 5 || output == 0 ||
        output > 4096) {
        snprintf(
            err, err_bytes,
            "expected 'system PATH OFFSET BYTES' once or 'ask NAME PATH OFFSET BYTES OUTPUT' with 1 to 4096 tokens");
        return -EINVAL;
    }
    struct prompts_conversation *c = conversation_of(prompts, name);
    if (!c || c->n_turns == PROMPTS_TURNS) {
        snprintf(err, err_bytes, "at most %d conversations of %d turns", PROMPTS_CONVERSATIONS, PROMPTS_TURNS);
        return -E2BIG;
    }
    struct prompts_turn *turn = &c->turn[c->n_turns];
    int r = excerpt(path, offset, bytes, c->n_turns > 0 ? "\nUser: " : "User: ", "\nAnswer: ", &turn->text, &turn->n,
                    err, err_bytes);
    if (r == 0) {
        turn->output = output;
        c->n_turns++;
    }
    return r;
}

int prompts_load(const char *path, struct prompts *ret_prompts, char *err, size_t err_bytes) {
    FILE *file = fopen(path, "re");
    if (!file) {
        int e = errno;
        snprintf(err, err_bytes, "cannot open the prompt list %s: %s", path, strerror(e));
        return -e;
    }
    struct prompts prompts = { 0 };
    char line[512], reason[320] = "";
    unsigned number = 0;
    int r = 0;
    while (r == 0 && fgets(line, sizeof line, file)) {
        number++;
        line[strcspn(line, "#\n")] = '\0';
        if (line[strspn(line, " \t")] != '\0') r = prompts_line(&prompts, line, reason, sizeof reason);
    }
    fclose(file);
    if (r != 0) snprintf(err, err_bytes, "%s:%u: %s", path, number, reason);
    else if (!prompts.system || prompts.n_conversations == 0) {
        snprintf(err, err_bytes, "%s: a prompt list needs one 'system' line and at least one 'ask' line", path);
        r = -EINVAL;
    }
    if (r != 0) {
        prompts_free(&prompts);
        return r;
    }
    *ret_prompts = prompts;
    return 0;
}

void prompts_free(struct prompts *prompts) {
    free(prompts->system);
    for (uint32_t i = 0; i < prompts->n_conversations; i++)
        for (uint32_t t = 0; t < prompts->conversation[i].n_turns; t++) free(prompts->conversation[i].turn[t].text);
    memset(prompts, 0, sizeof *prompts);
}

uint32_t prompts_length(const struct prompts *prompts, uint32_t conversation) {
    uint32_t n = prompts->n_system;
    const struct prompts_conversation *c = &prompts->conversation[conversation];
    for (uint32_t t = 0; t < c->n_turns; t++) n += c->turn[t].n + c->turn[t].output;
    return n;
}
