/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest chain (CONT-2). The vectors were computed with another implementation of BLAKE2b from the formula in
 * chain.c.
 */
#include <stdlib.h>

#include "kvd.h"
#include "kvt.h"

static void fill_tokens(uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) tokens[i] = i * 2654435761u;
}

static void hex(const kvd_digest *digest, char *ret_text) {
    for (size_t i = 0; i < KVD_DIGEST_BYTES; i++) snprintf(ret_text + 2 * i, 3, "%02x", digest->bytes[i]);
}

static void cont_2_vectors(void) {
    static const char *const expected[] = { "ea80ce7ae09dd5228e7fb885546b21344bf16f59faa7a041c29692c17aac6ad7",
                                            "2f4c6e4e77b9b22362afcf2352a1b80b56981f10a3d51cd6d30a95529a704099",
                                            "c67082d1722ea05ed0320b22f502815f0a4e46b84ecb980e0f18531685b65477" };
    struct kvd_domain domain = { .model = "model-a", .tenant = "tenant-1", .modality = "text" };
    uint32_t tokens[192];
    char text[65];
    kvd_chain *chain = NULL;
    fill_tokens(tokens, 192);
    KVT_EQ(kvd_chain_new(&domain, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, 192), KVD_OK);
    KVT_EQ(kvd_chain_pages(chain), 3);
    for (int i = 0; i < 3; i++) {
        hex(&kvd_chain_digests(chain)[i], text);
        KVT_EQ_STR(text, expected[i]);
    }
    kvd_chain_free(chain);
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, 64), KVD_OK);
    hex(kvd_chain_digests(chain), text);
    KVT_EQ_STR(text, "ca2e4052084cde8b8ed921f9235bae837737e2c9a037cc9ea1c0e5ce801634f5");
    kvd_chain_free(chain);
}

static kvd_digest first_digest(const struct kvd_domain *domain) {
    uint32_t tokens[64];
    kvd_chain *chain = NULL;
    fill_tokens(tokens, 64);
    KVT_EQ(kvd_chain_new(domain, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, 64), KVD_OK);
    kvd_digest digest = kvd_chain_digests(chain)[0];
    kvd_chain_free(chain);
    return digest;
}

/* A hit never crosses domains: no two ways of filling the fields give one root. */
static void cont_2_domains_differ(void) {
    const struct kvd_domain domains[] = { { "ab", "", "", "", NULL }, { "a", "b", "", "", NULL },
                                          { "", "ab", "", "", NULL }, { "", "", "ab", "", NULL },
                                          { "", "", "", "ab", NULL }, { "", "", "a", "b", NULL },
                                          { "abA", "", "", "", NULL } };
    kvd_digest digests[7];
    for (int i = 0; i < 7; i++) {
        digests[i] = first_digest(&domains[i]);
        for (int k = 0; k < i; k++) KVT_TRUE(memcmp(&digests[i], &digests[k], sizeof digests[i]) != 0);
    }
}

/* However the tokens are cut into pushes, the chain is the same. */
static void any_cut_gives_the_same_chain(void) {
    uint32_t tokens[1000];
    uint64_t random = kvt_seed();
    kvd_chain *whole = NULL, *cut = NULL;
    struct kvd_tail tail;
    fill_tokens(tokens, 1000);
    KVT_EQ(kvd_chain_new(NULL, &whole), KVD_OK);
    KVT_EQ(kvd_chain_push(whole, tokens, 1000), KVD_OK);
    for (int round = 0; round < 50; round++) {
        KVT_EQ(kvd_chain_new(NULL, &cut), KVD_OK);
        for (uint32_t at = 0; at < 1000;) {
            uint32_t n = kvt_below(&random, 150);
            if (n > 1000 - at) n = 1000 - at;
            KVT_EQ(kvd_chain_push(cut, tokens + at, n), KVD_OK);
            at += n;
        }
        KVT_EQ(kvd_chain_tokens(cut), 1000);
        KVT_EQ(kvd_chain_pages(cut), 15);
        KVT_EQ_MEM(kvd_chain_digests(cut), kvd_chain_digests(whole), 15 * sizeof(kvd_digest));
        kvd_chain_tail(cut, &tail);
        KVT_EQ(tail.n, 40);
        KVT_EQ_MEM(tail.tokens, tokens + 960, 40 * sizeof *tokens);
        kvd_chain_free(cut);
    }
    kvd_chain_free(whole);
}

static void truncate_keeps_what_can_be_kept(void) {
    uint32_t tokens[200];
    kvd_chain *chain = NULL, *other = NULL;
    struct kvd_tail tail;
    fill_tokens(tokens, 200);
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, 200), KVD_OK);
    KVT_EQ(kvd_chain_truncate(chain, 201), KVD_OUT_OF_RANGE);
    KVT_EQ(kvd_chain_truncate(chain, 100), KVD_INVALID_ARGUMENT);
    KVT_EQ(kvd_chain_tokens(chain), 200);
    KVT_EQ(kvd_chain_truncate(chain, 195), KVD_OK);
    kvd_chain_tail(chain, &tail);
    KVT_EQ(tail.n, 3);
    KVT_EQ(kvd_chain_truncate(chain, 128), KVD_OK);
    KVT_EQ(kvd_chain_tokens(chain), 128);
    KVT_EQ(kvd_chain_push(chain, tokens + 128, 64), KVD_OK);
    KVT_EQ(kvd_chain_new(NULL, &other), KVD_OK);
    KVT_EQ(kvd_chain_push(other, tokens, 192), KVD_OK);
    KVT_EQ_MEM(kvd_chain_digests(chain), kvd_chain_digests(other), 3 * sizeof(kvd_digest));
    KVT_EQ(kvd_chain_truncate(chain, 0), KVD_OK);
    KVT_EQ(kvd_chain_tokens(chain), 0);
    KVT_EQ(kvd_chain_push(chain, NULL, 0), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, NULL, 1), KVD_INVALID_ARGUMENT);
    kvd_chain_free(chain);
    kvd_chain_free(other);
    kvd_chain_free(NULL);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cont_2_vectors),
                                             KVT_CASE(cont_2_domains_differ),
                                             KVT_CASE(any_cut_gives_the_same_chain),
                                             KVT_CASE(truncate_keeps_what_can_be_kept),
                                             { 0 } };
    return kvt_main("client chain", cases, argc, argv);
}
