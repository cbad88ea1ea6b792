/* SPDX-License-Identifier: Apache-2.0
 *
 * How likely a prefix is used again, and when: a model that is learned online from the uses of prefixes.
 *
 * A use of a prefix starts a clock. The prefix either returns (a later prompt begins with it) or it does not. The model
 * has a hazard a band of ages: the chance that a prefix which has not returned by the begin of the band returns within
 * it. A use has levels of a few factors (how often its conversation was used, how far apart, how much was new, how
 * long it is). Each level multiplies the hazard (proportional hazards, Cox 1972): by what returned at this level over
 * what the model expected to return. Uses that are still young count in the bands that they have passed only, so that
 * they bias nothing (Kaplan and Meier 1958). Of those that are likely to return most have returned soon, and the ones
 * that are left are of another kind than their levels say (frailty, Vaupel 1979). So each band learns how much the
 * levels still bear on its hazard, an exponent of their product. A band of which little is known takes that of the band
 * before.
 *
 * The value of a page that holds such a prefix is its Gittins index (Gittins 1979): over all times that one may hold it
 * from now on, the best ratio of the chance of a return to the time for which it is expected to be held. What has the
 * smallest index goes first. A hazard that falls with age, which the model starts from, makes that the least recently
 * used; where prefixes return after a minute, one that is a minute old is worth more than a new one.
 *
 * A return need not reach the end of what it returns to: an answer may be dropped, a last page differ. So a
 * continuation has parts, counted from the end of its prompt: the answer, the last page, the one before, ... each twice
 * as far, and the rest. The model learns what share of the returns reaches a part, and the index of the part is that
 * share of the whole one's.
 *
 * Nothing here depends on a trace, a model or a machine: the same uses at the same times give the same indexes. Not
 * thread-safe. No function allocates.
 */
#ifndef KVD_REUSE_H
#define KVD_REUSE_H

#include <stdbool.h>
#include <stdint.h>

#define REUSE_BANDS 56u  /* of ages, up to REUSE_HORIZON_NS */
#define REUSE_RATES 33u  /* classes of the product of all factors: 2^-4 to 2^4, four to an octave */
#define REUSE_LEVELS 12u /* of a factor */
#define REUSE_HORIZON_NS (UINT64_C(86400) * 1000000000u) /* who has not returned by then has not returned */
#define REUSE_CELLS (REUSE_BANDS * REUSE_RATES)
#define REUSE_PARTS 8u /* of a continuation, from its end: the answer, the last page of the prompt, ..., the rest */
#define REUSE_ORDER (REUSE_CELLS * REUSE_PARTS)

/* What is known of a use when it happens. The levels of each factor are worked out by reuse_levels. */
struct reuse_facts {
    uint32_t uses;          /* of the conversation so far, this one too: at least 1 */
    uint64_t gap_ns;        /* typical time between them; 0 for the first */
    uint32_t prompt_tokens; /* of this use */
    uint32_t shared_pages;  /* with the use that it begins like; UINT32_MAX: it is that one's return */
    uint32_t new_tokens;    /* of them, beyond prompt and answer of the use before; not for the first */
};
enum reuse_factor { REUSE_USES, REUSE_GAP, REUSE_NEW, REUSE_SIZE, REUSE_SHARED, REUSE_FACTORS };

struct reuse_class {
    uint8_t level[REUSE_FACTORS];
    uint8_t rate; /* class of the product of the factors, when the use happened */
    float factor; /* the product */
};

/* How much the factors bear on the hazard of a band: by a regression of the surplus of returns on the logarithms of the
 * factors, each use weighted by the returns that were expected of it. */
struct reuse_bearing {
    double exponent, weight, sum; /* weight, and the sum of the logarithms */
    double surplus, spread;       /* sums of products with the distance from the mean, and of its squares */
};

struct reuse_model {
    uint64_t edge[REUSE_BANDS + 1]; /* ns: band b is from edge[b] to edge[b + 1] */
    double hazard[REUSE_BANDS], risk[REUSE_BANDS], returned[REUSE_BANDS];
    struct reuse_bearing bearing[REUSE_BANDS];
    double expected[REUSE_FACTORS][REUSE_LEVELS], observed[REUSE_FACTORS][REUSE_LEVELS];
    double factor[REUSE_FACTORS][REUSE_LEVELS];
    uint32_t learned;                           /* since reuse_refresh */
    double index[REUSE_RATES][REUSE_BANDS];     /* chance of a return a second */
    double held[REUSE_PARTS], met[REUSE_PARTS]; /* returns to a part that was there, and those that reached it */
    uint16_t order[REUSE_ORDER]; /* parts of cells by rising value: (rate * REUSE_BANDS + band) * REUSE_PARTS + part */
    uint32_t with[REUSE_PARTS];  /* the last part that is worth hardly more than this one: they go together */
    uint16_t place[REUSE_ORDER]; /* of each in the order */
};

void reuse_init(struct reuse_model *model);
/* The band of an age; the last one for all ages beyond. */
uint32_t reuse_band(const struct reuse_model *model, uint64_t age_ns);
/* Levels and rate of a use that happens now. */
struct reuse_class reuse_classify(const struct reuse_model *model, const struct reuse_facts *facts);
/* A use has passed the band without a return, or has returned in it. Each band that it reaches is told once. */
void reuse_learn(struct reuse_model *model, const struct reuse_class *class, uint32_t band, bool returned);
/* The pages that are left when the part and all behind it have gone. */
uint32_t reuse_part(uint32_t prompt_pages, uint32_t part);
/* The part that goes first of so many pages. */
uint32_t reuse_first_part(uint32_t prompt_pages, uint32_t pages);
/* A prompt shares so many pages with a continuation that has `pages`: learns how far returns reach. */
void reuse_reach(struct reuse_model *model, uint32_t prompt_pages, uint32_t pages, uint32_t shared);
/* Folds what was learned into factors and indexes, and lets old evidence fade. About every 64 uses. */
void reuse_refresh(struct reuse_model *model);

#endif
