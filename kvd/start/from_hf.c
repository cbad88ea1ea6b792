/* SPDX-License-Identifier: Apache-2.0 */
#include "from_hf.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

#define LAYERS_MOST 1024u
#define GROUPS_MOST 2u
#define FILE_MOST ((size_t)4 << 20)

/* What a layer of the model is to its cache. */
enum layer_kind { LAYER_FULL, LAYER_SLIDING, LAYER_CHUNKED, LAYER_LINEAR, LAYER_KINDS };

struct hf_group {
    const char *name;
    uint32_t layers;
    enum kvd_format format;
    uint32_t bytes;    /* latent */
    uint64_t of_kinds; /* bit i: layers of kind i are in it */
    uint32_t tokens;   /* of its window or chunk; 0: all */
    bool aligned;      /* a chunk */
};

struct hf_model {
    const struct from_hf *ask;
    const char *architecture;
    const cJSON *json; /* of the language model: the file, or its text_config */
    bool nested;
    char *err;
    size_t err_bytes;

    uint32_t n_layers, kv_heads, head_dim, max_context;
    enum layer_kind kind[LAYERS_MOST];
    uint32_t n_groups;
    struct hf_group group[GROUPS_MOST];
    uint64_t state_bytes; /* on each device */
    const char *left_out; /* a sentence on what is not in the store */
    const char *profile;
    bool profile_of_file; /* nobody asked for one */
};

/* Always false, so that what fails can return it. */
static bool refuse(const struct hf_model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(const struct hf_model *m, const char *format, ...) {
    va_list arguments;
    int n = snprintf(m->err, m->err_bytes, "%s: ", m->ask->path);
    va_start(arguments, format);
    if (n > 0 && (size_t)n < m->err_bytes) vsnprintf(m->err + n, m->err_bytes - (size_t)n, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- fields ------------------------------------------------------------------------------------ */

static const cJSON *field(const struct hf_model *m, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(m->json, name);
    return cJSON_IsNull(item) ? NULL : item;
}

static bool whole_number(const struct hf_model *m, const char *name, const cJSON *item, uint32_t *ret_value) {
    double value = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (value < 1 || value > 1u << 28 || value != (double)(uint32_t)value)
        return refuse(m, "%s is not a whole number of 1 to %u", name, 1u << 28);
    *ret_value = (uint32_t)value;
    return true;
}

static bool needed(const struct hf_model *m, const char *name, uint32_t *ret_value) {
    const cJSON *item = field(m, name);
    if (!item)
        return refuse(m, "%s%s is not there, and kvd does not know the value that %s has without it; write it there",
                      m->nested ? "text_config." : "", name, m->architecture);
    return whole_number(m, name, item, ret_value);
}

/* otherwise: where the field is not there. */
static bool optional(const struct hf_model *m, const char *name, uint32_t otherwise, uint32_t *ret_value) {
    const cJSON *item = field(m, name);
    *ret_value = otherwise;
    return !item || whole_number(m, name, item, ret_value);
}

/* ---- layers ------------------------------------------------------------------------------------ */

static bool take_layer_types(struct hf_model *m, const cJSON *types) {
    static const char *const names[LAYER_KINDS] = { "full_attention", "sliding_attention", "chunked_attention",
                                                    "linear_attention" };
    if (!cJSON_IsArray(types) || (uint32_t)cJSON_GetArraySize(types) != m->n_layers)
        return refuse(m, "layer_types has not one word for each of the %u layers", m->n_layers);
    uint32_t i = 0;
    const cJSON *type;
    cJSON_ArrayForEach(type, types) {
        const char *text = cJSON_IsString(type) ? type->valuestring : "";
        int kind = 0;
        while (kind < LAYER_KINDS && strcmp(text, names[kind]) != 0) kind++;
        if (kind == LAYER_KINDS)
            return refuse(m, "layer_types: layer %u is \"%.64s\", which kvd does not know", i, text);
        m->kind[i++] = (enum layer_kind)kind;
    }
    return true;
}

/* Without layer_types: each layer whose number, from 1, is a multiple of `every` is full. */
static void take_pattern(struct hf_model *m, uint32_t every, enum layer_kind others) {
    for (uint32_t i = 0; i < m->n_layers; i++) m->kind[i] = (i + 1) % every ? others : LAYER_FULL;
}

static bool take_layers(struct hf_model *m, const char *every_name, uint32_t every, enum layer_kind others) {
    if (!needed(m, "num_hidden_layers", &m->n_layers)) return false;
    if (m->n_layers > LAYERS_MOST) return refuse(m, "num_hidden_layers is %u; kvd reads %u", m->n_layers, LAYERS_MOST);
    if (!optional(m, "max_position_embeddings", 0, &m->max_context)) return false;
    const cJSON *types = field(m, "layer_types");
    if (types) return take_layer_types(m, types);
    if (every_name && !optional(m, every_name, every, &every)) return false;
    take_pattern(m, every, others);
    return true;
}

static uint32_t count_kinds(const struct hf_model *m, uint64_t kinds) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) n += (uint32_t)(kinds >> m->kind[i] & 1);
    return n;
}

static void add_group(struct hf_model *m, struct hf_group group) {
    group.layers = count_kinds(m, group.of_kinds);
    if (group.layers) m->group[m->n_groups++] = group;
}

/* K and V of all layers but the linear ones, those behind a window or chunk in a group of their own. */
static bool take_heads(struct hf_model *m) {
    uint32_t heads, hidden, sliding = 0, chunk = 0;
    if (!needed(m, "num_attention_heads", &heads) || !optional(m, "num_key_value_heads", heads, &m->kv_heads))
        return false;
    if (!field(m, "head_dim")) {
        if (!needed(m, "hidden_size", &hidden)) return false;
        m->head_dim = hidden / heads;
    } else if (!needed(m, "head_dim", &m->head_dim)) {
        return false;
    }
    if (count_kinds(m, 1u << LAYER_SLIDING) && !needed(m, "sliding_window", &sliding)) return false;
    if (count_kinds(m, 1u << LAYER_CHUNKED) && !needed(m, "attention_chunk_size", &chunk)) return false;
    add_group(m, (struct hf_group){ .name = "full", .of_kinds = 1u << LAYER_FULL });
    if (sliding && chunk)
        return refuse(m, "layer_types has sliding and chunked attention in one model, which kvd does not know");
    add_group(m, (struct hf_group){ .name = "window", .of_kinds = 1u << LAYER_SLIDING, .tokens = sliding });
    add_group(m,
              (struct hf_group){ .name = "chunk", .of_kinds = 1u << LAYER_CHUNKED, .tokens = chunk, .aligned = true });
    return m->n_groups || refuse(m, "no layer keeps K and V");
}

/* ---- architectures ------------------------------------------------------------------------------ */

static bool take_plain(struct hf_model *m) {
    if (cJSON_IsTrue(field(m, "use_sliding_window")) && !field(m, "layer_types"))
        return refuse(m, "use_sliding_window is true, and layer_types, which says of which layers, is not there");
    return take_layers(m, NULL, 1, LAYER_FULL) && take_heads(m);
}

static bool take_gemma3(struct hf_model *m) {
    return take_layers(m, "sliding_window_pattern", 6, LAYER_SLIDING) && take_heads(m);
}

static bool take_gpt_oss(struct hf_model *m) { return take_layers(m, NULL, 2, LAYER_SLIDING) && take_heads(m); }

static bool take_llama4(struct hf_model *m) {
    const cJSON *rotated = field(m, "no_rope_layers"), *each;
    if (!take_layers(m, "no_rope_layer_interval", 4, LAYER_CHUNKED)) return false;
    if (!field(m, "layer_types") && cJSON_GetArraySize(rotated)) {
        uint32_t i = 0;
        if ((uint32_t)cJSON_GetArraySize(rotated) != m->n_layers)
            return refuse(m, "no_rope_layers has not one number for each of the %u layers", m->n_layers);
        cJSON_ArrayForEach(each, rotated) m->kind[i++] = each->valueint ? LAYER_CHUNKED : LAYER_FULL;
    }
    return take_heads(m);
}

/* One latent of kv_lora_rank elements and a rotary part a token and layer; as the public FP8 kernels have it: codes, a
 * FP32 scale for each 128 of them, the rotary part in BF16. With a scale a layer, codes alone. */
static bool take_latent(struct hf_model *m) {
    uint32_t rank, rope;
    if (!take_layers(m, NULL, 1, LAYER_FULL) || !needed(m, "kv_lora_rank", &rank) ||
        !needed(m, "qk_rope_head_dim", &rope))
        return false;
    bool fp8 = strcmp(m->profile, "fp8") == 0, tensor = strcmp(m->profile, "fp8-tensor") == 0;
    if (!fp8 && !tensor && strcmp(m->profile, "bf16") != 0)
        return refuse(m, "asked for profile %s; the latent of %s is stored as bf16, fp8 or fp8-tensor", m->profile,
                      m->architecture);
    if (rank > 1u << 14 || rope > 1u << 12 || (fp8 && rank % 128))
        return refuse(m, "kv_lora_rank %u, qk_rope_head_dim %u: kvd does not know such a latent", rank, rope);
    m->left_out = field(m, "num_nextn_predict_layers") || field(m, "num_mtp_layers")
                      ? "Layers of multi-token prediction are not in it: kind = mtp in [backend], and a latent group "
                        "in [pool.draft], add them."
                      : NULL;
    add_group(m, (struct hf_group){ .name = "latent",
                                    .of_kinds = 1u << LAYER_FULL,
                                    .format = KVD_FORMAT_LATENT,
                                    .bytes = fp8      ? rank + rank / 128 * 4 + 2 * rope
                                             : tensor ? rank + rope
                                                      : 2 * (rank + rope) });
    return true;
}

/* Beside the latent a key of the indexer: codes of one byte and a FP32 scale. */
static bool take_indexed(struct hf_model *m) {
    uint32_t dim;
    if (!take_latent(m) || !needed(m, "index_head_dim", &dim)) return false;
    if (dim > 1u << 14) return refuse(m, "index_head_dim %u: kvd does not know such an indexer", dim);
    add_group(m, (struct hf_group){
                     .name = "index", .of_kinds = 1u << LAYER_FULL, .format = KVD_FORMAT_LATENT, .bytes = dim + 4 });
    return true;
}

/* A gated delta net has a matrix a value head in FP32, and the last inputs of its convolution in 16 bits. Heads are
 * divided over the devices. */
static bool take_qwen3_next(struct hf_model *m) {
    uint32_t key_heads, value_heads, key_dim, value_dim, kernel;
    if (!take_layers(m, "full_attention_interval", 4, LAYER_LINEAR) || !take_heads(m) ||
        !needed(m, "linear_num_key_heads", &key_heads) || !needed(m, "linear_num_value_heads", &value_heads) ||
        !needed(m, "linear_key_head_dim", &key_dim) || !needed(m, "linear_value_head_dim", &value_dim) ||
        !needed(m, "linear_conv_kernel_dim", &kernel))
        return false;
    if (key_heads > 1024 || value_heads > 1024 || key_dim > 1024 || value_dim > 1024 || kernel > 1024)
        return refuse(m, "linear_*: kvd does not know a gated delta net of that size");
    if (key_heads % m->ask->ranks || value_heads % m->ask->ranks)
        return refuse(m, "linear_num_key_heads %u and linear_num_value_heads %u cannot be divided over %u devices",
                      key_heads, value_heads, m->ask->ranks);
    uint64_t matrix = (uint64_t)value_heads * key_dim * value_dim * 4;
    uint64_t channels = 2 * (uint64_t)key_heads * key_dim + (uint64_t)value_heads * value_dim;
    m->state_bytes = count_kinds(m, 1u << LAYER_LINEAR) * (matrix + channels * (kernel - 1) * 2) / m->ask->ranks;
    return true;
}

static const struct {
    const char *name;
    bool (*take)(struct hf_model *m);
} architectures[] = {
    { "LlamaForCausalLM", take_plain },
    { "Qwen3ForCausalLM", take_plain },
    { "Gemma3ForCausalLM", take_gemma3 },
    { "Gemma3ForConditionalGeneration", take_gemma3 },
    { "GptOssForCausalLM", take_gpt_oss },
    { "Llama4ForCausalLM", take_llama4 },
    { "Llama4ForConditionalGeneration", take_llama4 },
    { "DeepseekV3ForCausalLM", take_latent },
    { "DeepseekV32ForCausalLM", take_indexed },
    { "Qwen3NextForCausalLM", take_qwen3_next },
};
#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

static bool refuse_architecture(const struct hf_model *m, const char *name) {
    char all[512] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_ARCHITECTURES; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", architectures[i].name);
    return refuse(m, "architecture \"%.64s\" is not one that kvd knows (%s); write its layers in sections [group.NAME]",
                  name, all);
}

static bool is_word(const cJSON *item, const char *word) {
    return cJSON_IsString(item) && strcmp(item->valuestring, word) == 0;
}

/* Who quantizes a model says in its file how its cache is stored; kvd knows FP8 with scales that are the layer's. */
static bool take_profile(struct hf_model *m) {
    const cJSON *quantization = field(m, "quantization_config");
    const cJSON *scheme = cJSON_GetObjectItemCaseSensitive(quantization, "kv_cache_scheme");
    const cJSON *bits = cJSON_GetObjectItemCaseSensitive(scheme, "num_bits");
    const cJSON *strategy = cJSON_GetObjectItemCaseSensitive(scheme, "strategy");
    bool of_layer = !strategy || cJSON_IsNull(strategy) || is_word(strategy, "tensor");
    m->profile = m->ask->profile ? m->ask->profile : "bf16";
    if (m->ask->profile || !scheme || cJSON_IsNull(scheme)) return true;
    if (!cJSON_IsNumber(bits) || bits->valueint != 8 ||
        !is_word(cJSON_GetObjectItemCaseSensitive(scheme, "type"), "float") || !of_layer ||
        cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(scheme, "dynamic")))
        return refuse(
            m, "quantization_config.kv_cache_scheme is not num_bits 8, type float, strategy tensor, the only one "
               "that kvd knows; say --profile and how K and V are stored");
    m->profile = "fp8-tensor";
    m->profile_of_file = true;
    return true;
}

static bool take_model(struct hf_model *m) {
    const cJSON *first = cJSON_GetArrayItem(field(m, "architectures"), 0), *text = field(m, "text_config");
    const char *name = cJSON_IsString(first) ? first->valuestring : "";
    size_t i = 0;
    if (!*name)
        return refuse(m, "architectures is not there: it is no configuration of a model that transformers wrote");
    while (i < N_ARCHITECTURES && strcmp(architectures[i].name, name) != 0) i++;
    if (i == N_ARCHITECTURES) return refuse_architecture(m, name);
    m->architecture = architectures[i].name;
    if (!take_profile(m)) return false;
    m->nested = cJSON_IsObject(text);
    if (m->nested) m->json = text;
    return architectures[i].take(m);
}

/* ---- sections ----------------------------------------------------------------------------------- */

static void print_group(FILE *out, const struct hf_model *m, const struct hf_group *g) {
    fprintf(out, "\n[group.%s]\n# Layers of the model:", g->name);
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (g->of_kinds >> m->kind[i] & 1) fprintf(out, " %u", i);
    fprintf(out, "\nlayers = %u\n", g->layers);
    if (g->format == KVD_FORMAT_LATENT) fprintf(out, "format = latent\nbytes = %u\n", g->bytes);
}

/* Its pages carry the names, so there is one in each model. */
static bool in_main(const struct hf_model *m, const struct hf_group *g) { return !g->tokens || m->n_groups == 1; }

static void print_window(FILE *out, const struct hf_group *g) {
    fprintf(out, "\n[pool.%s]\n# These layers see %s of %u tokens; what is behind is given back.\n", g->name,
            g->aligned ? "an aligned chunk" : "a window", g->tokens);
    fprintf(out, "groups = %s\nwindow = %u\n", g->name, g->tokens);
    if (g->aligned) fputs("aligned = yes\n", out);
}

/* Pools, and the groups in them. */
static void print_pools(FILE *out, const struct hf_model *m) {
    fputs("\n[pool.main]\n", out);
    if (m->group[0].tokens && m->n_groups == 1)
        fprintf(out, "# All layers see %u tokens. Pages of main carry the names, so it keeps all.\n",
                m->group[0].tokens);
    fputs("groups =", out);
    for (uint32_t g = 0; g < m->n_groups; g++)
        if (in_main(m, &m->group[g])) fprintf(out, " %s", m->group[g].name);
    fputc('\n', out);
    for (uint32_t g = 0; g < m->n_groups; g++)
        if (!in_main(m, &m->group[g])) print_window(out, &m->group[g]);
    for (uint32_t g = 0; g < m->n_groups; g++) print_group(out, m, &m->group[g]);
}

static void print_sections(FILE *out, const struct hf_model *m) {
    bool plain = m->n_groups == 1 && m->group[0].format == KVD_FORMAT_KV && !m->group[0].tokens;
    fprintf(out, "# %s, %u layers. Made by kvd --from-hf; [kvd] and the other sections are yours.\n", m->architecture,
            m->n_layers);
    if (m->left_out) fprintf(out, "# %s\n", m->left_out);
    if (m->profile_of_file)
        fputs("# FP8 with a scale a layer: quantization_config.kv_cache_scheme of the file says so.\n", out);
    fputs("[devices]\n", out);
    for (uint32_t i = 0; i < m->ask->ranks; i++) fprintf(out, "device.%u = cuda:%u\n", i, i);
    fputs("\n[model]\n", out);
    if (plain) fprintf(out, "layers = %u\n", m->group[0].layers);
    if (m->kv_heads) fprintf(out, "kv_heads = %u\nhead_dim = %u\nprofile = %s\n", m->kv_heads, m->head_dim, m->profile);
    if (m->max_context) fprintf(out, "max_context = %u\n", m->max_context);
    else
        fputs("# max_position_embeddings is not there: write max_context = and the longest sequence in tokens.\n", out);
    if (!plain) print_pools(out, m);
    if (m->state_bytes)
        fprintf(out, "\n[capacity]\n# The state of %u linear layers.\nstate_bytes = %" PRIu64 "\n",
                count_kinds(m, 1u << LAYER_LINEAR), m->state_bytes);
}

/* ---- all of it ---------------------------------------------------------------------------------- */

/* Text that ends with 0. The caller frees it. */
static char *read_text(const struct hf_model *m) {
    FILE *in = fopen(m->ask->path, "re");
    char *text = in ? malloc(FILE_MOST + 1) : NULL;
    size_t n = text ? fread(text, 1, FILE_MOST + 1, in) : 0;
    bool ok = text && !ferror(in) && n <= FILE_MOST;
    if (!in) refuse(m, "%s", strerror(errno));
    else if (n > FILE_MOST) refuse(m, "it is larger than %zu MiB, which no model's configuration is", FILE_MOST >> 20);
    else if (!ok) refuse(m, "%s", text ? strerror(errno) : "no memory for it");
    if (in) fclose(in);
    if (ok) text[n] = 0;
    else free(text);
    return ok ? text : NULL;
}

/* What was made is read as any configuration is, and planned. */
static bool check_sections(const struct hf_model *m, const char *sections, struct config *ret_config,
                           struct plan *ret_plan) {
    char why[1024];
    memset(ret_plan, 0, sizeof *ret_plan);
    if (config_parse("sections", sections, ret_config, why, sizeof why) ||
        plan_spec(ret_config, &ret_plan->spec, why, sizeof why) ||
        geom_curve(&ret_plan->spec, &ret_plan->capacity.curve, why, sizeof why) ||
        geom_layout(&ret_plan->spec, ret_plan->capacity.curve.m_min, &ret_plan->capacity.layout, why, sizeof why))
        return refuse(m, "kvd cannot store this model so: %.700s", why);
    ret_plan->n_devices = ret_config->n_devices;
    return true;
}

static bool print_model(FILE *out, const struct hf_model *m) {
    char *sections = NULL;
    size_t n = 0;
    struct config config;
    struct plan plan;
    FILE *to = open_memstream(&sections, &n);
    if (!to) return refuse(m, "no memory for its sections");
    print_sections(to, m);
    bool ok = fclose(to) == 0 && sections && check_sections(m, sections, &config, &plan);
    if (ok) {
        fputs(sections, out);
        plan_print_least(out, &config, &plan);
    }
    free(sections);
    return ok;
}

int from_hf_print(FILE *out, const struct from_hf *ask, char *err, size_t err_bytes) {
    struct hf_model *m = calloc(1, sizeof *m);
    char *text = NULL;
    cJSON *json = NULL;
    bool ok = false;
    if (!m) {
        snprintf(err, err_bytes, "%s: no memory to read it", ask->path);
        return 1;
    }
    *m = (struct hf_model){ .ask = ask, .err = err, .err_bytes = err_bytes };
    if ((text = read_text(m)) != NULL) {
        m->json = json = cJSON_Parse(text);
        ok = cJSON_IsObject(json) ? take_model(m) && print_model(out, m)
                                  : refuse(m, "it is not JSON, or no object: name the config.json of the model");
    }
    cJSON_Delete(json);
    free(text);
    free(m);
    return !ok;
}
