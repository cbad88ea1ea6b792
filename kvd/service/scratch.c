/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"
#include "request.h"

struct scratch *scratch_take(struct service *s) {
    pthread_mutex_lock(&s->scratch_lock);
    struct scratch *scratch = s->scratch;
    if (scratch) s->scratch = scratch->next;
    pthread_mutex_unlock(&s->scratch_lock);
    if (scratch) return scratch;
    scratch = malloc(sizeof *scratch);
    if (!scratch) return NULL;
    scratch->arena = codec_arena_new();
    if (scratch->arena) return scratch;
    free(scratch);
    return NULL;
}

void scratch_give(struct service *s, struct scratch *scratch) {
    codec_arena_reset(scratch->arena);
    pthread_mutex_lock(&s->scratch_lock);
    scratch->next = s->scratch;
    s->scratch = scratch;
    pthread_mutex_unlock(&s->scratch_lock);
}

void scratch_free_all(struct service *s) {
    for (struct scratch *scratch = s->scratch, *next; scratch; scratch = next) {
        next = scratch->next;
        codec_arena_free(scratch->arena);
        free(scratch);
    }
}
