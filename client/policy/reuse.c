/* SPDX-License-Identifier: Apache-2.0 */
#include "reuse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHORTEST_NS 1000000000.0 /* the first band: a second */
#define PRIOR 8.0                /* weight of what is assumed before anything is known: so many uses */
#define ASSUMED_RETURN 0.2       /* hazard of a band that is as long as a minute and its begin together */
#define ASSUMED_PAUSE_NS 60e9
#define MOST_HAZARD 0.95
#define FADE 0.97 /* of the evidence, a refresh: about 2,000 uses count */
#define LEAST_FACTOR 0.125
#define MOST_FACTOR 8.0
#define RATES_AN_OCTAVE 4.0

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

/* Chance of a return in the band at factor 1. The prior falls with age: then the least recently used goes first. */
static double base_hazard(const struct reuse_model *m, uint32_t b) {
    double width = (double)(m->edge[b + 1] - m->edge[b]);
    double assumed = ASSUMED_RETURN * width / ((double)m->edge[b + 1] + ASSUMED_PAUSE_NS);
    return fmin(MOST_HAZARD, (m->returned[b] + 2 * PRIOR * assumed) / (m->risk[b] + 2 * PRIOR));
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

void reuse_learn(struct reuse_model *m, const struct reuse_class *class, uint32_t band, bool returned) {
    double chance = 1 - pow(1 - base_hazard(m, band), class->factor);
    for (uint32_t f = 0; f < REUSE_FACTORS; f++) {
        m->expected[f][class->level[f]] += chance;
        m->observed[f][class->level[f]] += returned;
    }
    m->risk[band] += class->factor;
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

/* ---- indexes ---- */

static void find_indexes(struct reuse_model *m, uint32_t rate, const double *hazard) {
    double factor = exp2((rate - (REUSE_RATES - 1) / 2.0) / RATES_AN_OCTAVE), alive[REUSE_BANDS + 1] = { 1 };
    for (uint32_t b = 0; b < REUSE_BANDS; b++) alive[b + 1] = alive[b] * pow(1 - hazard[b], factor);
    for (uint32_t age = 0; age < REUSE_BANDS; age++) {
        double best = 0, held = 0;
        for (uint32_t b = age; b < REUSE_BANDS; b++) {
            held += (alive[b] + alive[b + 1]) / 2 * (double)(m->edge[b + 1] - m->edge[b]) / 1e9;
            best = fmax(best, (alive[age] - alive[b + 1]) / held);
        }
        m->index[rate][age] = best;
    }
}

static int compare_cells(const void *a_, const void *b_, void *index_) {
    const uint16_t a = *(const uint16_t *)a_, b = *(const uint16_t *)b_;
    const double *index = index_;
    if (index[a] != index[b]) return index[a] < index[b] ? -1 : 1;
    return a % REUSE_BANDS != b % REUSE_BANDS ? (int)(b % REUSE_BANDS) - (int)(a % REUSE_BANDS) : (int)a - (int)b;
}

void reuse_refresh(struct reuse_model *m) {
    double hazard[REUSE_BANDS];
    fold_evidence(m);
    for (uint32_t b = 0; b < REUSE_BANDS; b++) hazard[b] = base_hazard(m, b);
    for (uint32_t r = 0; r < REUSE_RATES; r++) find_indexes(m, r, hazard);
    for (uint32_t i = 0; i < REUSE_CELLS; i++) m->order[i] = (uint16_t)i;
    qsort_r(m->order, REUSE_CELLS, sizeof *m->order, compare_cells, m->index);
    m->learned = 0;
}
