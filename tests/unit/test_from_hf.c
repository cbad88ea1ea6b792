/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd --from-hf: the files of models that people serve come to the bytes that those models have, whatever the profile
 * and the number of devices; and what kvd does not know it names. GRP-1, GRP-7.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <unistd.h>

#include "from_hf.h"
#include "kvt.h"
#include "plan.h"

static char why[1024];

/* The sections of a file; NULL after a refusal, whose sentence is in why. */
static char *sections(const char *path, uint32_t ranks, const char *profile) {
    struct from_hf ask = { .path = path, .ranks = ranks, .profile = profile };
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    int r = from_hf_print(out, &ask, why, sizeof why);
    fclose(out);
    if (!r) return text;
    KVT_EQ(n, 0); /* nothing is printed before a refusal */
    free(text);
    return NULL;
}

struct expected {
    const char *model, *profile;
    uint32_t ranks;
    struct {
        uint32_t layers;
        uint64_t bytes; /* of a token, on each device */
    } group[2];
    uint64_t state_bytes;
    const char *says;
};

/* The numbers are those of the models' descriptions: layers x KV heads x head_dim x K and V x 2 bytes, by hand. */
static const struct expected models[] = {
    { "llama-3.1-8b", "bf16", 1, { { 32, 131072 } }, 0, "max_context = 131072" },
    { "llama-3.1-70b", "bf16", 1, { { 80, 327680 } }, 0, "" },
    { "llama-3.1-70b", "bf16", 2, { { 80, 163840 } }, 0, "device.1 = cuda:1" },
    { "qwen3-32b", "bf16", 1, { { 64, 262144 } }, 0, "" },
    { "gemma-3-27b",
      "bf16",
      1,
      { { 10, 81920 }, { 52, 425984 } },
      0,
      "a window of 1024 tokens; what is behind is given back" },
    { "gpt-oss-120b", "bf16", 1, { { 18, 36864 }, { 18, 36864 } }, 0, "a window of 128 tokens" },
    { "gpt-oss-120b", "bf16", 8, { { 18, 4608 }, { 18, 4608 } }, 0, "# Layers of the model: 1 3 5 7" },
    { "llama-4-scout", "bf16", 1, { { 12, 49152 }, { 36, 147456 } }, 0, "an aligned chunk of 8192 tokens" },
    { "deepseek-v3", "bf16", 1, { { 61, 70272 } }, 0, "multi-token prediction are not in it" },
    { "deepseek-v3", "fp8", 1, { { 61, 40016 } }, 0, "" },
    { "deepseek-v3", "bf16", 8, { { 61, 70272 } }, 0, "" }, /* a latent is whole on each */
    { "deepseek-v3.2", "bf16", 1, { { 61, 70272 }, { 61, 61 * 132 } }, 0, "groups = latent index" },
    { "deepseek-v3", "fp8-tensor", 1, { { 61, 61 * 576 } }, 0, "" },
    { "llama-3.1-8b", "fp8-tensor", 1, { { 32, 65536 } }, 0, "profile = fp8-tensor" },
    { "gpt-oss-120b", "fp8-tensor", 2, { { 18, 9216 }, { 18, 9216 } }, 0, "a window of 128 tokens" },
    { "deepseek-v3.2", "fp8", 1, { { 61, 40016 }, { 61, 61 * 132 } }, 0, "" },
    { "qwen3-next-80b-a3b", "bf16", 1, { { 12, 24576 } }, 36ull * (2097152 + 8192 * 3 * 2), "36 linear layers" },
    { "qwen3-next-80b-a3b", "bf16", 4, { { 12, 12288 } }, 9ull * (2097152 + 8192 * 3 * 2), "" }, /* 2 heads on 4 */
    { "qwen3-next-80b-a3b", "int8", 1, { { 12, 12 * 2 * 528 } }, 36ull * (2097152 + 8192 * 3 * 2), "profile = int8" },
};

/* Whose second group is a pool of its own, with a window. */
static const struct windowed {
    const char *model;
    uint32_t tokens;
    bool aligned;
} windowed[] = { { "gemma-3-27b", 1024, false }, { "gpt-oss-120b", 128, false }, { "llama-4-scout", 8192, true } };

static struct windowed window_of(const char *model) {
    for (size_t i = 0; i < sizeof windowed / sizeof *windowed; i++)
        if (strcmp(model, windowed[i].model) == 0) return windowed[i];
    return (struct windowed){ .tokens = 0 };
}

static void check_model(const struct expected *e) {
    char path[512];
    struct config config;
    struct geom_store_spec spec;
    struct geom_group_shape shape;
    snprintf(path, sizeof path, "%s/%s.json", KVD_MODELS, e->model);
    char *text = sections(path, e->ranks, e->profile);
    if (!KVT_TRUE(text)) {
        printf("    %s\n", why);
        return;
    }
    KVT_HAS(text, e->says);
    if (!KVT_EQ_I(config_parse("sections", text, &config, why, sizeof why), 0)) printf("    %s\n", why);
    else if (KVT_EQ_I(plan_spec(&config, &spec, why, sizeof why), 0)) {
        KVT_EQ(spec.main.n_ranks, e->ranks);
        KVT_EQ(spec.state_bytes, e->state_bytes);
        struct windowed pool = window_of(e->model);
        bool window = pool.tokens > 0;
        KVT_EQ(spec.n_more, window);
        KVT_EQ(geom_group_count(&spec.main), 1 + (!window && e->group[1].layers > 0));
        KVT_EQ(spec.more[0].window.tokens, pool.tokens);
        KVT_EQ(spec.more[0].window.aligned, pool.aligned);
        for (uint32_t g = 0; g < 2 && e->group[g].layers; g++) {
            if (g && window) geom_group_shape(&spec.more[0], 0, &shape);
            else geom_group_shape(&spec.main, g, &shape);
            KVT_EQ(shape.layers, e->group[g].layers);
            KVT_EQ(shape.rank_page_bytes, e->group[g].bytes * 64);
        }
        char token[64]; /* and the plan behind the sections says so */
        snprintf(token, sizeof token, "A token takes %llu bytes of main on each device",
                 (unsigned long long)(e->group[0].bytes + (window ? 0 : e->group[1].bytes)));
        KVT_HAS(text, token);
        snprintf(token, sizeof token, " %llu bytes a token on each device", (unsigned long long)e->group[1].bytes);
        if (window) KVT_HAS(text, token);
    }
    free(text);
}

static void grp_1_bytes_of_every_model(void) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) check_model(&models[i]);
}

/* A file of its own with this text. */
static void refused(const char *text, const char *profile, uint32_t ranks, const char *says) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/kvd-from-hf-%d.json", (int)getpid());
    FILE *f = fopen(path, "w");
    KVT_TRUE(f && fputs(text, f) >= 0 && fclose(f) == 0);
    char *made = sections(path, ranks, profile);
    if (KVT_TRUE(!made)) {
        KVT_HAS(why, path);
        KVT_HAS(why, says);
    }
    free(made);
    unlink(path);
}

#define LLAMA "{\"architectures\": [\"LlamaForCausalLM\"], \"num_attention_heads\": 8, \"num_hidden_layers\": 4, "
#define SCOUT "{\"architectures\": [\"Llama4ForCausalLM\"], \"num_attention_heads\": 8, \"num_hidden_layers\": 4, "

static void what_it_does_not_know_it_names(void) {
    refused("{", "bf16", 1, "it is not JSON");
    refused("[]", "bf16", 1, "no object");
    refused("{}", "bf16", 1, "architectures is not there");
    refused("{\"architectures\": [\"MambaForCausalLM\"]}", "bf16", 1, "\"MambaForCausalLM\" is not one that kvd knows");
    refused("{\"architectures\": [\"MambaForCausalLM\"]}", "bf16", 1, "DeepseekV3ForCausalLM");
    refused("{\"architectures\": [\"LlamaForCausalLM\"]}", "bf16", 1, "num_hidden_layers is not there");
    refused("{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"text_config\": {}}", "bf16", 1,
            "text_config.num_hidden_layers is not there");
    refused(LLAMA "\"num_key_value_heads\": 0}", "bf16", 1, "num_key_value_heads is not a whole number");
    refused(LLAMA "\"num_key_value_heads\": 2.5}", "bf16", 1, "num_key_value_heads is not a whole number");
    refused(LLAMA "\"num_key_value_heads\": \"4\"}", "bf16", 1, "num_key_value_heads is not a whole number");
    refused(LLAMA "\"num_key_value_heads\": 4}", "bf16", 1, "hidden_size is not there");
    refused(LLAMA "\"layer_types\": [\"full_attention\"]}", "bf16", 1, "layer_types has not one word");
    refused(LLAMA "\"layer_types\": [\"full_attention\", \"conv\", \"conv\", \"conv\"]}", "bf16", 1,
            "layer 1 is \"conv\", which kvd does not know");
    refused(LLAMA "\"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\", "
                  "\"linear_attention\"], \"head_dim\": 64}",
            "bf16", 1, "no layer keeps K and V");
    refused(LLAMA "\"use_sliding_window\": true}", "bf16", 1, "layer_types, which says of which layers, is not there");
    refused(LLAMA "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
                  "\"full_attention\"], \"head_dim\": 64}",
            "bf16", 1, "sliding_window is not there");
    refused(LLAMA "\"head_dim\": 80}", "int8", 1, "kvd cannot store this model so");
    refused(LLAMA "\"head_dim\": 64}", "int9", 1, "int9");
    refused(LLAMA "\"head_dim\": 64}", "bf16", 3, "3 devices");
    refused(SCOUT "\"head_dim\": 64, \"attention_chunk_size\": 64, \"no_rope_layers\": [1]}", "bf16", 1,
            "no_rope_layers has not one number");
    refused("{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"num_hidden_layers\": 2, \"kv_lora_rank\": 512, "
            "\"qk_rope_head_dim\": 64}",
            "int8", 1, "the latent of DeepseekV3ForCausalLM is stored as bf16, fp8 or fp8-tensor");
    refused("{\"architectures\": [\"DeepseekV32ForCausalLM\"], \"num_hidden_layers\": 2, \"kv_lora_rank\": 512, "
            "\"qk_rope_head_dim\": 64}",
            "bf16", 1, "index_head_dim is not there");
    KVT_TRUE(sections("/nonexistent/config.json", 1, "bf16") == NULL);
    KVT_HAS(why, "/nonexistent/config.json: No such file");
    KVT_TRUE(sections("/tmp", 1, "bf16") == NULL);
    KVT_HAS(why, "/tmp: Is a directory");
}

#define SCHEME(fields) LLAMA "\"head_dim\": 64, \"quantization_config\": {\"kv_cache_scheme\": " fields "}}"

/* Whoever quantized the model says how its cache is stored, unless --profile does. GRP-1 */
static void grp_1_profile_of_the_file(void) {
    static const struct {
        const char *text, *asked, *says;
    } cases[] = {
        { SCHEME("{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor\", \"dynamic\": false}"), NULL,
          "profile = fp8-tensor\n" },
        { SCHEME("{\"num_bits\": 8, \"type\": \"float\"}"), NULL, "kv_cache_scheme of the file says so" },
        { SCHEME("{\"num_bits\": 8, \"type\": \"float\"}"), "int8", "profile = int8\n" },
        { SCHEME("null"), NULL, "profile = bf16\n" },
        { LLAMA "\"head_dim\": 64, \"quantization_config\": {\"quant_method\": \"fp8\"}}", NULL, "profile = bf16\n" },
    };
    char path[64];
    snprintf(path, sizeof path, "/tmp/kvd-from-hf-%d.json", (int)getpid());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(path, "w");
        KVT_TRUE(f && fputs(cases[i].text, f) >= 0 && fclose(f) == 0);
        char *text = sections(path, 1, cases[i].asked);
        if (KVT_TRUE(text)) KVT_HAS(text, cases[i].says);
        else printf("    %s\n", why);
        free(text);
    }
    unlink(path);
    refused(SCHEME("{\"num_bits\": 4, \"type\": \"float\"}"), NULL, 1, "say --profile");
    refused(SCHEME("{\"num_bits\": 8, \"type\": \"int\"}"), NULL, 1, "kv_cache_scheme is not");
    refused(SCHEME("{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"attn_head\"}"), NULL, 1, "say --profile");
    refused(SCHEME("{\"num_bits\": 8, \"type\": \"float\", \"dynamic\": true}"), NULL, 1, "say --profile");
    refused(SCHEME("\"static\""), NULL, 1, "say --profile");
}

/* Which layers are full follows from the file's list, else from the model's rule. */
static void grp_1_kinds_of_layers(void) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/kvd-from-hf-%d.json", (int)getpid());
    static const struct {
        const char *text, *full;
    } cases[] = {
        { SCOUT "\"head_dim\": 64, \"attention_chunk_size\": 64}", "model: 3\n" },
        { SCOUT "\"head_dim\": 64, \"attention_chunk_size\": 64, \"no_rope_layer_interval\": 2}", "model: 1 3\n" },
        { SCOUT "\"head_dim\": 64, \"attention_chunk_size\": 64, \"no_rope_layers\": [0, 1, 1, 1]}", "model: 0\n" },
        { SCOUT "\"head_dim\": 64, \"attention_chunk_size\": 64, \"layer_types\": [\"chunked_attention\", "
                "\"full_attention\", \"full_attention\", \"chunked_attention\"]}",
          "model: 1 2\n" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(path, "w");
        KVT_TRUE(f && fputs(cases[i].text, f) >= 0 && fclose(f) == 0);
        char *text = sections(path, 1, "bf16");
        if (KVT_TRUE(text)) KVT_HAS(text, cases[i].full);
        else printf("    %s\n", why);
        free(text);
    }
    unlink(path);
}

/* GRP-7: kvd --plan lists each group with its bytes, in words and as JSON. */
static void grp_7_the_plan_lists_groups(void) {
    struct config config;
    struct plan plan;
    char *text = sections(KVD_MODELS "/gpt-oss-120b.json", 2, "bf16"), *more = NULL, *json = NULL, *words = NULL;
    size_t n = 0, n_json = 0, n_words = 0;
    KVT_NEED(text);
    FILE *out = open_memstream(&more, &n), *as_json = open_memstream(&json, &n_json),
         *as_words = open_memstream(&words, &n_words);
    fprintf(out, "%s[capacity]\ntokens = 131072\n", text);
    fclose(out);
    KVT_EQ_I(config_parse("sections", more, &config, why, sizeof why), 0);
    KVT_NEED(plan_sizes(&config, &plan));
    plan_print(as_json, &config, &plan, NULL, true);
    plan_print(as_words, &config, &plan, NULL, false);
    fclose(as_json);
    fclose(as_words);
    cJSON *all = cJSON_Parse(json), *groups = cJSON_GetObjectItem(all, "layer_groups"), *one;
    KVT_EQ(cJSON_GetArraySize(groups), 1); /* a pool of one plain group is of one shape */
    cJSON_ArrayForEach(one, groups) {
        KVT_EQ(cJSON_GetObjectItem(one, "layers")->valuedouble, 18);
        KVT_EQ(cJSON_GetObjectItem(one, "token_bytes_each_device")->valuedouble, 18432);
    }
    KVT_EQ_STR(cJSON_GetObjectItem(cJSON_GetArrayItem(groups, 0), "group")->valuestring, "window");
    const cJSON *pool = cJSON_GetArrayItem(cJSON_GetObjectItem(all, "pools"), 1);
    KVT_EQ_STR(cJSON_GetObjectItem(pool, "pool")->valuestring, "window");
    KVT_EQ(cJSON_GetObjectItem(pool, "window")->valuedouble, 128);
    KVT_EQ(cJSON_GetObjectItem(pool, "page_bytes_each_device")->valuedouble, 18432 * 64);
    KVT_EQ(cJSON_GetObjectItem(all, "page_bytes")->valuedouble, 36864 * 64);
    KVT_HAS(words, "Store main: 36 layers in 2 pools, on 2 devices\n");
    KVT_HAS(words, "  main pool: 18 layers, bf16, 8 KV heads, head_dim 64: 18432 bytes a token on each device\n");
    KVT_HAS(words, "  window pool: a window of 128 tokens; ");
    KVT_HAS(words, "group window: 18 layers, bf16, 8 KV heads, head_dim 64: 18432 bytes a token on each device\n");
    cJSON_Delete(all);
    free(words);
    free(json);
    free(more);
    free(text);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(grp_1_bytes_of_every_model), KVT_CASE(what_it_does_not_know_it_names), KVT_CASE(grp_1_kinds_of_layers),
        KVT_CASE(grp_1_profile_of_the_file),  KVT_CASE(grp_7_the_plan_lists_groups),    { 0 }
    };
    return kvt_main("from hf", cases, argc, argv);
}
