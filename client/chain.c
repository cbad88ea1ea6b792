/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of prefixes: a BLAKE2b-256 chain over pages of tokens (CONT-2).
 *
 *     root      = H("kvd.chain.1" 'M' len(model) model 'A' len(adapter) adapter 'T' len(tenant) tenant 'X'
 * len(modality) modality) digest[0] = H(root, tokens of page 0) digest[i] = H(digest[i-1], tokens of page i)
 *
 * H is unkeyed BLAKE2b with 32 bytes of output; len is u32, tokens are 64 u32, both little-endian; strings have no
 * terminator. Tags and lengths keep two domains from running into one byte string.
 */
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct kvd_chain {
    struct kvd_root root;
    kvd_digest *digests; /* [pages] */
    size_t pages, space;
    uint32_t n_tail;
    uint32_t tail[KVD_PAGE_TOKENS];
};

static void put_u32(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(value >> (8 * i));
}

static void hash_field(crypto_generichash_state *state, uint8_t tag, const char *text) {
    uint8_t head[5] = { tag };
    size_t bytes = text ? strlen(text) : 0;
    put_u32(head + 1, (uint32_t)bytes);
    crypto_generichash_update(state, head, sizeof head);
    if (bytes) crypto_generichash_update(state, (const uint8_t *)text, bytes);
}

static void hash_root(const struct kvd_domain *domain, kvd_digest *ret_root) {
    static const uint8_t label[] = { 'k', 'v', 'd', '.', 'c', 'h', 'a', 'i', 'n', '.', '1' };
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, KVD_DIGEST_BYTES);
    crypto_generichash_update(&state, label, sizeof label);
    hash_field(&state, 'M', domain->model);
    hash_field(&state, 'A', domain->adapter);
    hash_field(&state, 'T', domain->tenant);
    hash_field(&state, 'X', domain->modality);
    crypto_generichash_final(&state, ret_root->bytes, KVD_DIGEST_BYTES);
}

static void hash_page(const kvd_digest *before, const uint32_t *tokens, kvd_digest *ret_digest) {
    uint8_t bytes[KVD_DIGEST_BYTES + 4 * KVD_PAGE_TOKENS];
    memcpy(bytes, before->bytes, KVD_DIGEST_BYTES);
    for (size_t i = 0; i < KVD_PAGE_TOKENS; i++) put_u32(bytes + KVD_DIGEST_BYTES + 4 * i, tokens[i]);
    crypto_generichash(ret_digest->bytes, KVD_DIGEST_BYTES, bytes, sizeof bytes, NULL, 0);
}

enum kvd_status kvd_chain_new(const struct kvd_domain *domain, kvd_chain **ret_chain) {
    static const struct kvd_domain nowhere = { NULL, NULL, NULL, NULL, NULL };
    if (!ret_chain || (domain && domain->label && strlen(domain->label) >= KVD_LABEL_BYTES))
        return KVD_INVALID_ARGUMENT;
    if (sodium_init() < 0) return KVD_INTERNAL;
    struct kvd_chain *chain = calloc(1, sizeof *chain);
    if (!chain) return KVD_RESOURCE_EXHAUSTED;
    if (!domain) domain = &nowhere;
    hash_root(domain, &chain->root.digest);
    snprintf(chain->root.label, sizeof chain->root.label, "%s", domain->label ? domain->label : "");
    *ret_chain = chain;
    return KVD_OK;
}

/* Room for `more` further pages, so that a push is all or nothing. */
static bool make_space(struct kvd_chain *chain, size_t more) {
    if (more <= chain->space - chain->pages) return true;
    size_t space = chain->space ? chain->space : 16;
    while (space - chain->pages < more) {
        if (space > SIZE_MAX / 2 / sizeof *chain->digests) return false;
        space *= 2;
    }
    kvd_digest *digests = realloc(chain->digests, space * sizeof *digests);
    if (!digests) return false;
    chain->digests = digests;
    chain->space = space;
    return true;
}

static void close_page(struct kvd_chain *chain, const uint32_t *tokens) {
    const kvd_digest *before = chain->pages ? &chain->digests[chain->pages - 1] : &chain->root.digest;
    hash_page(before, tokens, &chain->digests[chain->pages]);
    chain->pages++;
}

enum kvd_status kvd_chain_push(kvd_chain *chain, const uint32_t *tokens, size_t n) {
    if (!chain || (!tokens && n)) return KVD_INVALID_ARGUMENT;
    if (n > SIZE_MAX - KVD_PAGE_TOKENS || !make_space(chain, (chain->n_tail + n) / KVD_PAGE_TOKENS))
        return KVD_RESOURCE_EXHAUSTED;
    while (n) {
        if (chain->n_tail == 0 && n >= KVD_PAGE_TOKENS) {
            close_page(chain, tokens);
            tokens += KVD_PAGE_TOKENS;
            n -= KVD_PAGE_TOKENS;
            continue;
        }
        size_t take = KVD_PAGE_TOKENS - chain->n_tail < n ? KVD_PAGE_TOKENS - chain->n_tail : n;
        memcpy(chain->tail + chain->n_tail, tokens, take * sizeof *tokens);
        chain->n_tail += (uint32_t)take;
        tokens += take;
        n -= take;
        if (chain->n_tail == KVD_PAGE_TOKENS) {
            close_page(chain, chain->tail);
            chain->n_tail = 0;
        }
    }
    return KVD_OK;
}

enum kvd_status kvd_chain_truncate(kvd_chain *chain, size_t tokens) {
    if (!chain) return KVD_INVALID_ARGUMENT;
    size_t boundary = chain->pages * KVD_PAGE_TOKENS;
    if (tokens > boundary + chain->n_tail) return KVD_OUT_OF_RANGE;
    if (tokens >= boundary) {
        chain->n_tail = (uint32_t)(tokens - boundary);
        return KVD_OK;
    }
    if (tokens % KVD_PAGE_TOKENS) return KVD_INVALID_ARGUMENT; /* the tokens of full pages are not kept */
    chain->pages = tokens / KVD_PAGE_TOKENS;
    chain->n_tail = 0;
    return KVD_OK;
}

const struct kvd_root *kvd_chain_root(const kvd_chain *chain) { return chain ? &chain->root : NULL; }

size_t kvd_chain_tokens(const kvd_chain *chain) { return chain ? chain->pages * KVD_PAGE_TOKENS + chain->n_tail : 0; }

size_t kvd_chain_pages(const kvd_chain *chain) { return chain ? chain->pages : 0; }

const kvd_digest *kvd_chain_digests(const kvd_chain *chain) { return chain ? chain->digests : NULL; }

void kvd_chain_tail(const kvd_chain *chain, struct kvd_tail *ret_tail) {
    memset(ret_tail, 0, sizeof *ret_tail);
    if (!chain) return;
    ret_tail->n = chain->n_tail;
    memcpy(ret_tail->tokens, chain->tail, chain->n_tail * sizeof *chain->tail);
}

void kvd_chain_free(kvd_chain *chain) {
    if (!chain) return;
    free(chain->digests);
    free(chain);
}
