/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* ---- reading ---- */

static double number_of(const cJSON *line, const char *name) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(line, name);
    return cJSON_IsNumber(value) && value->valuedouble >= 0 && value->valuedouble < 1e15 ? value->valuedouble : 0;
}

static bool add_block(struct trace_request *r, uint32_t *space, uint64_t block) {
    if (r->n_blocks == *space) {
        *space = *space ? 2 * *space : 64;
        uint64_t *grown = realloc(r->blocks, *space * sizeof *grown);
        if (!grown) return false;
        r->blocks = grown;
    }
    r->blocks[r->n_blocks++] = block;
    return true;
}

static bool read_mooncake(const cJSON *line, struct trace_request *r) {
    const cJSON *id;
    uint32_t space = 0;
    r->at_ns = (uint64_t)(number_of(line, "timestamp") * 1e6);
    r->prompt_tokens = (uint32_t)number_of(line, "input_length");
    r->output_tokens = (uint32_t)number_of(line, "output_length");
    cJSON_ArrayForEach(id, cJSON_GetObjectItemCaseSensitive(line, "hash_ids")) {
        if (!cJSON_IsNumber(id) || !add_block(r, &space, mix((uint64_t)id->valuedouble))) return false;
    }
    return true;
}

static bool read_agent(const cJSON *line, struct trace_request *r) {
    const cJSON *run;
    uint32_t space = 0;
    uint64_t session = mix((uint64_t)number_of(line, "session"));
    r->at_ns = (uint64_t)(number_of(line, "t") * 1e9);
    r->prompt_tokens = (uint32_t)number_of(line, "in");
    r->output_tokens = (uint32_t)number_of(line, "out");
    cJSON_ArrayForEach(run, cJSON_GetObjectItemCaseSensitive(line, "ids")) {
        const cJSON *first = cJSON_GetArrayItem(run, 0), *count = cJSON_GetArrayItem(run, 1);
        if (!cJSON_IsNumber(first) || !cJSON_IsNumber(count) || count->valuedouble > 1e6) return false;
        for (uint64_t k = 0; k < (uint64_t)count->valuedouble; k++)
            if (!add_block(r, &space, mix(session + (uint64_t)first->valuedouble + k))) return false;
    }
    return true;
}

static bool read_line(const char *text, struct trace *t, struct trace_request *r) {
    cJSON *line = cJSON_Parse(text);
    bool agent = cJSON_HasObjectItem(line, "session");
    *r = (struct trace_request){ 0 };
    t->block_tokens = agent ? 64 : 512;
    bool fine = line && (agent ? read_agent(line, r) : read_mooncake(line, r));
    cJSON_Delete(line);
    if (r->prompt_tokens < 1) r->prompt_tokens = 1;
    if (r->output_tokens < 1) r->output_tokens = 1;
    return fine;
}

static int compare_numbers(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int count_all(struct trace *t) {
    uint64_t n = 0, *all;
    for (uint32_t i = 0; i < t->n; i++) n += t->requests[i].n_blocks;
    if (!(all = malloc((n + 1) * sizeof *all))) return 1;
    n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        memcpy(all + n, t->requests[i].blocks, t->requests[i].n_blocks * sizeof *all);
        n += t->requests[i].n_blocks;
        t->prompt_tokens += t->requests[i].prompt_tokens;
    }
    qsort(all, n, sizeof *all, compare_numbers);
    for (uint64_t i = 0; i < n; i++) t->distinct_blocks += i == 0 || all[i] != all[i - 1];
    free(all);
    return 0;
}

static struct trace_request *add_request(struct trace *t, uint32_t *space) {
    if (t->n == *space) {
        *space = *space ? 2 * *space : 1024;
        struct trace_request *grown = realloc(t->requests, *space * sizeof *grown);
        if (!grown) return NULL;
        t->requests = grown;
    }
    return &t->requests[t->n++];
}

int trace_read(const char *path, uint32_t most, struct trace *ret_trace, char *err, size_t err_bytes) {
    struct trace t = { 0 };
    char *text = NULL;
    size_t bytes = 0;
    uint32_t space = 0;
    FILE *file = fopen(path, "re");
    bool fine = file != NULL;
    while (fine && (!most || t.n < most) && getline(&text, &bytes, file) > 0) {
        struct trace_request *r = add_request(&t, &space);
        fine = r && read_line(text, &t, r);
    }
    if (!file) snprintf(err, err_bytes, "%s: %s", path, strerror(errno));
    else if (!fine) snprintf(err, err_bytes, "%s:%u: neither a Mooncake line nor an agent line", path, t.n);
    else if ((fine = count_all(&t) == 0 && t.n)) *ret_trace = t;
    else snprintf(err, err_bytes, "%s: no requests, or no memory", path);
    if (!fine) trace_free(&t);
    if (file) fclose(file);
    free(text);
    return !fine;
}

void trace_free(struct trace *t) {
    for (uint32_t i = 0; i < t->n; i++) free(t->requests[i].blocks);
    free(t->requests);
    *t = (struct trace){ 0 };
}

/* ---- a trace of its own ---- */

enum { TALKS = 64, TURN_TOKENS = 700, DOCUMENT_TOKENS = 24000, SYSTEM_BLOCKS = 2 };

static bool fill_blocks(struct trace_request *r, uint64_t talk, uint32_t tokens) {
    uint32_t space = 0;
    r->prompt_tokens = tokens;
    for (uint32_t b = 0; b * 512 < tokens; b++)
        if (!add_block(r, &space, b < SYSTEM_BLOCKS ? mix(b) : mix((talk << 20) + b))) return false;
    return true;
}

/* Half of all requests are turns of conversations, of which every eighth ends; the others come once. */
int trace_generate(uint64_t seed, uint32_t requests, struct trace *ret_trace) {
    struct trace t = { .block_tokens = 512 };
    struct talk {
        uint64_t id, due_ns;
        uint32_t tokens;
    } talks[TALKS] = { { 0, 0, 0 } };
    uint64_t random = seed, at_ns = 0, next = 1;
    uint32_t space = 0;
    bool fine = true;
    for (uint32_t i = 0; fine && i < requests; i++) {
        struct talk *talk = &talks[(random = mix(random)) % TALKS];
        struct trace_request *r = add_request(&t, &space);
        if (!(fine = r != NULL)) break;
        at_ns += (random >> 32) % 600000000u;
        *r = (struct trace_request){ .at_ns = at_ns, .output_tokens = 64 };
        if (random & 1 << 20) {
            fine = fill_blocks(r, next++, 2048 + (uint32_t)(random >> 40) % DOCUMENT_TOKENS);
            continue;
        }
        if (!talk->id || (random >> 21 & 7) == 0) *talk = (struct talk){ .id = next++, .tokens = 2048 };
        talk->tokens += TURN_TOKENS;
        fine = fill_blocks(r, talk->id, talk->tokens);
    }
    if (!fine || count_all(&t)) {
        trace_free(&t);
        return 1;
    }
    *ret_trace = t;
    return 0;
}

void trace_tokens(const struct trace *t, uint32_t i, uint32_t *ret_tokens) {
    const struct trace_request *r = &t->requests[i];
    for (uint32_t k = 0; k < r->prompt_tokens; k++) {
        uint32_t block = k / t->block_tokens;
        uint64_t id = block < r->n_blocks ? r->blocks[block] : mix(UINT64_C(1) << 60 | i);
        ret_tokens[k] = (uint32_t)(mix(id + k % t->block_tokens) >> 33);
    }
    for (uint32_t k = 0; k < r->output_tokens; k++)
        ret_tokens[r->prompt_tokens + k] = (uint32_t)(mix((UINT64_C(1) << 61) + ((uint64_t)i << 24) + k) >> 33);
}
