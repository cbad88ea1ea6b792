/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena: a bump allocator with a hard cap. What a small frame can make protobuf-c allocate is bounded by the cap,
 * and a connection in steady state does not malloc, because blocks are kept over resets.
 */
#include <stdlib.h>
#include <string.h>

#include "codec_internal.h"

#define ALIGN 16u

/* Under AddressSanitizer what lies behind an allocation is as forbidden as behind a malloc. */
#ifdef KVD_SANITIZE_ADDRESS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

static size_t block_bytes(const struct codec_arena *arena, uint32_t k) {
    return arena->fixed ? arena->limit : (size_t)ARENA_FIRST << k;
}

static void *pb_alloc(void *arena, size_t bytes) { return codec_arena_take(arena, bytes); }
static void pb_free(void *arena, void *p) { (void)arena, (void)p; }

static void arena_init(struct codec_arena *arena, size_t limit) {
    *arena = (struct codec_arena){ .limit = limit, .pb = { pb_alloc, pb_free, arena } };
}

struct codec_arena *codec_arena_new(void) {
    struct codec_arena *arena = malloc(sizeof *arena);
    if (arena) arena_init(arena, CODEC_ARENA_LIMIT);
    return arena;
}

void codec_arena_fixed(struct codec_arena *arena, void *memory, size_t bytes) {
    arena_init(arena, bytes);
    arena->fixed = true;
    arena->block[0] = memory;
}

void codec_arena_set_limit(struct codec_arena *arena, size_t bytes) {
    if (!arena->fixed && bytes <= CODEC_ARENA_LIMIT) arena->limit = bytes;
}

void codec_arena_reset(struct codec_arena *arena) {
    for (uint32_t k = 0; !arena->fixed && k < ARENA_BLOCKS; k++)
        if (arena->block[k]) ASAN_POISON_MEMORY_REGION(arena->block[k], block_bytes(arena, k));
    arena->current = 0;
    arena->fill = arena->taken = 0;
    arena->refused = false;
}

struct codec_arena *codec_arena_free(struct codec_arena *arena) {
    if (!arena) return NULL;
    for (uint32_t k = 0; k < ARENA_BLOCKS; k++) {
        if (!arena->block[k]) continue;
        ASAN_UNPOISON_MEMORY_REGION(arena->block[k], block_bytes(arena, k));
        free(arena->block[k]);
    }
    free(arena);
    return NULL;
}

/* Moves to the first block from the current one on with `bytes` free, making blocks on the way. */
static bool arena_find_room(struct codec_arena *arena, size_t bytes) {
    uint32_t n_blocks = arena->fixed ? 1 : ARENA_BLOCKS, k = arena->current;
    size_t fill = arena->fill;
    while (fill + bytes > block_bytes(arena, k)) {
        if (++k == n_blocks) return false;
        fill = 0;
    }
    if (!arena->block[k]) {
        arena->block[k] = malloc(block_bytes(arena, k));
        if (!arena->block[k]) return false;
        ASAN_POISON_MEMORY_REGION(arena->block[k], block_bytes(arena, k));
    }
    arena->current = k;
    arena->fill = fill;
    return true;
}

void *codec_arena_take(struct codec_arena *arena, size_t bytes) {
    size_t rounded = bytes > arena->limit ? SIZE_MAX : (bytes + (bytes == 0) + ALIGN - 1) / ALIGN * ALIGN;
    if (arena->taken > arena->limit || rounded > arena->limit - arena->taken || !arena_find_room(arena, rounded)) {
        arena->refused = true;
        return NULL;
    }
    void *p = arena->block[arena->current] + arena->fill;
    arena->fill += rounded;
    arena->taken += rounded;
    if (!arena->fixed) ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    return p;
}

void *codec_arena_alloc(struct codec_arena *arena, size_t bytes) {
    void *p = codec_arena_take(arena, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}
