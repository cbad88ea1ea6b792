/* SPDX-License-Identifier: Apache-2.0 */
#include "reuse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHORTEST_NS 1000000000.0 /* the first band: a second */
#define PRIOR 8.0                /* weight of what is assumed before anything is known: so many uses */
#define BEARING_PRIOR 8.0        /* the same for the bearing of a band */
#define MOST_BEARING 1.5
#define SMOOTH 320.0       /* the same for the hazard of a band, against that of the band before */
#define ASSUMED_RETURN 0.2 /* hazard of a band that is as long as a minute and its begin together */
#define MOST_LEVEL 0.4     /* of such hazards, beyond what is known */
#define ASSUMED_PAUSE_NS 60e9
#define MOST_HAZARD 0.95
#define FADE 0.97 /* of the evidence, a refresh: about 2,000 uses count */
#define LEAST_FACTOR 0.125
#define MOST_FACTOR 8.0
#define RATES_AN_OCTAVE 4.0
#define HARDLY_MORE 1.1

void reuse_init(struct reuse_model *m) {
    memset(m, 0, sizeof *m);
    for (uint32_t b = 1; b <= REUSE_BANDS; b++)
        m->edge[b] = (uint64_t)(SHORTEST_NS * pow((double)REUSE_HORIZON_NS / SHORTEST_NS,
                                                  (double)(b - 1) / (double)(REUSE_BANDS - 1)));
    for (uint32_t f = 0; f < REUSE_FACTORS; f++)
        for (uint32_t l = 0; l < REUSE_LEVELS; l++) {
            m->expected[f][l] = m->observed[f][l] = PRIOR;
            m->factor[f][l] = 1;
        }
    for (uint32_t b = 0; b < REUSE_BANDS; b++) m->bearing[b].exponent = 1;
    reuse_refresh(m);
}

uint32_t reuse_band(const struct reuse_model *m, uint64_t age_ns) {
    uint32_t low = 0, high = REUSE_BANDS - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (age_ns >= m->edge[middle]) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Chance of a return in a band at factor 1. What is not known of a band yet is assumed to go on from the band before,
 * falling with age: then the least recently used goes first. Where all come back soon nothing is known of later bands,
 * and it must not go on as high: once all texts change, the old ones would stay. */
static void find_hazards(struct reuse_model *m) {
    double level = ASSUMED_RETURN; /* hazard of a band that is as long as its end and a minute together */
    for (uint32_t b = 0; b < REUSE_BANDS; b++) {
        double share = (double)(m->edge[b + 1] - m->edge[b]) / ((double)m->edge[b + 1] + ASSUMED_PAUSE_NS);
        m->hazard[b] = fmin(MOST_HAZARD, (m->returned[b] + SMOOTH * level * share) / (m->risk[b] + SMOOTH));
        level = fmin(MOST_LEVEL, m->hazard[b] / share);
    }
}

/* ---- classes ---- */

static uint8_t level_of(double x) { return (uint8_t)fmin(REUSE_LEVELS - 1, fmax(0, floor(x))); }

static void find_levels(const struct reuse_facts *facts, uint8_t *ret_level) {
    bool first = facts->uses <= 1;
    ret_level[REUSE_USES] = level_of(2 * log2((double)facts->uses) + 0.5);
    ret_level[REUSE_GAP] = first ? 0 : level_of(2 + log2(fmax(1e-9, (double)facts->gap_ns / 30e9)));
    if (!first && ret_level[REUSE_GAP] == 0) ret_level[REUSE_GAP] = 1;
    /* 0: none; then up to 16, 64, 256, ... tokens */
    ret_level[REUSE_NEW] = first               ? 0
                           : facts->new_tokens ? level_of(2 + fmax(0, log2(facts->new_tokens / 64.0) + 2) / 2)
                                               : 1;
    uint8_t size = level_of(log2(facts->prompt_tokens / 1024.0 + 1));
    ret_level[REUSE_SHARED] = level_of(log2((double)facts->shared_pages + 1));
    uint8_t half = REUSE_LEVELS / 2;
    ret_level[REUSE_SIZE] = (uint8_t)((size < half ? size : half - 1) + (first ? 0 : half));
}

struct reuse_class reuse_classify(const struct reuse_model *m, const struct reuse_facts *facts) {
    struct reuse_class class;
    double product = 1;
    find_levels(facts, class.level);
    for (uint32_t f = 0; f < REUSE_FACTORS; f++) product *= m->factor[f][class.level[f]];
    double half = (REUSE_RATES - 1) / 2.0, rate = half + RATES_AN_OCTAVE * log2(product);
    rate = fmin(REUSE_RATES - 1, fmax(0, rate));
    class.rate = (uint8_t)lround(rate);
    class.factor = (float)exp2((rate - half) / RATES_AN_OCTAVE);
    return class;
}

/* ---- learning ---- */

static void learn_bearing(struct reuse_bearing *b, double logarithm, double chance, bool returned) {
    b->weight += chance;
    b->sum += chance * logarithm;
    double distance = logarithm - b->sum / b->weight;
    b->surplus += (returned - chance + b->exponent * chance * distance) * distance;
    b->spread += chance * distance * distance;
}

void reuse_learn(struct reuse_model *m, const struct reuse_class *class, uint32_t band, bool returned) {
    double factor = pow((double)class->factor, m->bearing[band].exponent);
    double chance = 1 - pow(1 - m->hazard[band], factor);
    learn_bearing(&m->bearing[band], log((double)class->factor), chance, returned);
    for (uint32_t f = 0; f < REUSE_FACTORS; f++) {
        m->expected[f][class->level[f]] += chance;
        m->observed[f][class->level[f]] += returned;
    }
    m->risk[band] += factor;
    m->returned[band] += returned;
    m->learned++;
}

/* The evidence is taken into the factor: what was expected is expected of the new one from here on. */
static void fold_evidence(struct reuse_model *m) {
    for (uint32_t f = 0; f < REUSE_FACTORS; f++)
        for (uint32_t l = 0; l < REUSE_LEVELS; l++) {
            double *factor = &m->factor[f][l], before = *factor;
            *factor *= pow(m->observed[f][l] / m->expected[f][l], 1.0 / REUSE_FACTORS);
            *factor = fmin(MOST_FACTOR, fmax(LEAST_FACTOR, *factor));
            m->expected[f][l] *= *factor / before;
            m->observed[f][l] = PRIOR + FADE * (m->observed[f][l] - PRIOR);
            m->expected[f][l] = PRIOR + FADE * (m->expected[f][l] - PRIOR);
        }
    for (uint32_t b = 0; b < REUSE_BANDS; b++) {
        m->risk[b] *= FADE;
        m->returned[b] *= FADE;
    }
}

static void find_bearings(struct reuse_model *m) {
    double before = 1;
    for (uint32_t i = 0; i < REUSE_BANDS; i++) {
        struct reuse_bearing *b = &m->bearing[i];
        before = fmin(MOST_BEARING, fmax(0, (b->surplus + BEARING_PRIOR * before) / (b->spread + BEARING_PRIOR)));
        *b = (struct reuse_bearing){ before, FADE * b->weight, FADE * b->sum, FADE * b->surplus, FADE * b->spread };
    }
}

/* ---- indexes ---- */

static void find_indexes(struct reuse_model *m, uint32_t rate) {
    const double *hazard = m->hazard;
    double factor = exp2((rate - (REUSE_RATES - 1) / 2.0) / RATES_AN_OCTAVE), alive[REUSE_BANDS + 1] = { 1 };
    for (uint32_t b = 0; b < REUSE_BANDS; b++)
        alive[b + 1] = alive[b] * pow(1 - hazard[b], pow(factor, m->bearing[b].exponent));
    for (uint32_t age = 0; age < REUSE_BANDS; age++) {
        double best = 0, held = 0;
        for (uint32_t b = age; b < REUSE_BANDS; b++) {
            held += (alive[b] + alive[b + 1]) / 2 * (double)(m->edge[b + 1] - m->edge[b]) / 1e9;
            best = fmax(best, (alive[age] - alive[b + 1]) / held);
        }
        m->index[rate][age] = best;
    }
}

/* ---- how far returns reach ---- */

uint32_t reuse_part(uint32_t prompt_pages, uint32_t part) {
    static const uint32_t from_end[REUSE_PARTS] = { 0, 1, 2, 4, 8, 16, 64, UINT32_MAX };
    return prompt_pages > from_end[part] ? prompt_pages - from_end[part] : 0;
}

uint32_t reuse_first_part(uint32_t prompt_pages, uint32_t pages) {
    uint32_t part = 0;
    while (part < REUSE_PARTS - 1 && reuse_part(prompt_pages, part) >= pages) part++;
    return part;
}

void reuse_reach(struct reuse_model *m, uint32_t prompt_pages, uint32_t pages, uint32_t shared) {
    uint32_t end = pages;
    if ((uint64_t)shared * 2 < prompt_pages) return; /* both begin alike, that is all */
    for (uint32_t part = 0; part < REUSE_PARTS; part++) {
        uint32_t begin = reuse_part(prompt_pages, part);
        if (begin >= end) continue;
        m->held[part]++;
        m->met[part] += 2 * shared > begin + end;
        end = begin;
    }
}

/* The first parts are not reached more often than those before them. */
static void find_reach(struct reuse_model *m, double *ret_reach) {
    double least = 0;
    for (uint32_t part = 0; part < REUSE_PARTS; part++) {
        least = fmax(least, (m->met[part] + PRIOR) / (m->held[part] + PRIOR));
        ret_reach[part] = least;
        m->held[part] *= FADE;
        m->met[part] *= FADE;
        m->with[part] = part;
        for (uint32_t p = 0; p < part; p++)
            if (ret_reach[part] <= ret_reach[p] * HARDLY_MORE) m->with[p] = part;
    }
}

struct reuse_values {
    double of[REUSE_ORDER];
};

static int compare_parts(const void *a_, const void *b_, void *values_) {
    const uint16_t a = *(const uint16_t *)a_, b = *(const uint16_t *)b_;
    const struct reuse_values *values = values_;
    if (values->of[a] != values->of[b]) return values->of[a] < values->of[b] ? -1 : 1;
    uint32_t band_a = a / REUSE_PARTS % REUSE_BANDS, band_b = b / REUSE_PARTS % REUSE_BANDS;
    return band_a != band_b ? (int)band_b - (int)band_a : (int)a - (int)b;
}

void reuse_refresh(struct reuse_model *m) {
    struct reuse_values values;
    double reach[REUSE_PARTS];
    fold_evidence(m);
    find_bearings(m);
    find_reach(m, reach);
    find_hazards(m);
    for (uint32_t r = 0; r < REUSE_RATES; r++) find_indexes(m, r);
    for (uint32_t i = 0; i < REUSE_ORDER; i++) {
        uint32_t cell = i / REUSE_PARTS;
        values.of[i] = m->index[cell / REUSE_BANDS][cell % REUSE_BANDS] * reach[i % REUSE_PARTS];
        m->order[i] = (uint16_t)i;
    }
    qsort_r(m->order, REUSE_ORDER, sizeof *m->order, compare_parts, &values);
    for (uint32_t i = 0; i < REUSE_ORDER; i++) m->place[m->order[i]] = (uint16_t)i;
    m->learned = 0;
}
