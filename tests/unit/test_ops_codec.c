/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs (GEOM-9): every conversion against an independent statement of the format in double arithmetic, published
 * golden values, ties, extremes, non-finite input.
 */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>

#include "kvt.h"
#include "ops.h"

/* ---- formats stated a second time --------------------------------------------------------- */

/* A float format: e exponent bits, m mantissa bits, bias. Value of code without its sign, all codes taken as finite. */
struct format {
    int e, m, bias;
};
static const struct format f16 = { 5, 10, 15 }, bf16 = { 8, 7, 127 }, e4m3 = { 4, 3, 7 }, e2m1 = { 2, 1, 1 };

static double value_of(struct format f, uint32_t code) {
    uint32_t exponent = code >> f.m, mantissa = code & ((1u << f.m) - 1);
    if (exponent == 0) return ldexp(mantissa, 1 - f.bias - f.m);
    return ldexp((double)mantissa + (1 << f.m), (int)exponent - f.bias - f.m);
}

/* The code in [0, top] nearest to x >= 0, ties to the even code; binary search over the monotone codes. */
static uint32_t nearest(struct format f, double x, uint32_t top) {
    uint32_t low = 0, high = top;
    if (x == 0) return 0;
    if (x >= value_of(f, top)) return top;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (value_of(f, middle) <= x) low = middle;
        else high = middle;
    }
    double down = x - value_of(f, low), up = value_of(f, high) - x;
    return down < up || (down == up && low % 2 == 0) ? low : high;
}

/* ---- scalars ------------------------------------------------------------------------------ */

static void scalar_decodes_are_exact(void) {
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t low = i & 0x7FFF;
        double sign = i & 0x8000 ? -1 : 1;
        float b = ops_bf16_to_f32((uint16_t)i), h = ops_f16_to_f32((uint16_t)i);
        if (low > 0x7F80) {
            if (!isnan(b)) KVT_TRUE(isnan(b));
        } else if ((double)b != (low == 0x7F80 ? sign * INFINITY : sign * value_of(bf16, low)))
            KVT_NEAR((double)b, sign * value_of(bf16, low), 0);
        if (low > 0x7C00) {
            if (!isnan(h)) KVT_TRUE(isnan(h));
        } else if ((double)h != (low == 0x7C00 ? sign * INFINITY : sign * value_of(f16, low)))
            KVT_NEAR((double)h, sign * value_of(f16, low), 0);
        if (!!signbit(b) != (i >> 15) || !!signbit(h) != (i >> 15)) KVT_EQ(i, 65536);
    }
    for (uint32_t i = 0; i < 256; i++) {
        float x = ops_e4m3_to_f32((uint8_t)i);
        if ((i & 0x7F) == 0x7F) {
            KVT_TRUE(isnan(x));
            continue;
        }
        KVT_NEAR((double)x, (i & 0x80 ? -1 : 1) * value_of(e4m3, i & 0x7F), 0);
        KVT_EQ(!!signbit(x), i >> 7);
    }
    for (uint8_t i = 0; i < 16; i++) {
        static const float magnitudes[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
        KVT_NEAR((double)fabsf(ops_e2m1_to_f32(i)), (double)magnitudes[i & 7], 0);
        KVT_NEAR((double)fabsf(ops_e2m1_to_f32(i)), value_of(e2m1, i & 7), 0);
        KVT_EQ(!!signbit(ops_e2m1_to_f32(i)), i >> 3);
    }
}

static uint32_t encode(int which, float x) {
    return which == 0   ? ops_f32_to_f16(x)
           : which == 1 ? ops_f32_to_bf16(x)
           : which == 2 ? ops_f32_to_e4m3(x)
                        : ops_f32_to_e2m1(x);
}

/* Every code of every format, every midpoint between neighbours, and the floats just around both. */
static void scalar_encodes_round_to_nearest_even(void) {
    static const struct {
        struct format f;
        uint32_t top, sign;
    } formats[] = { { { 5, 10, 15 }, 0x7BFF, 0x8000 },
                    { { 8, 7, 127 }, 0x7F7F, 0x8000 },
                    { { 4, 3, 7 }, 0x7E, 0x80 },
                    { { 2, 1, 1 }, 7, 8 } };
    for (int which = 0; which < 4; which++) {
        struct format f = formats[which].f;
        uint32_t sign = formats[which].sign, wrong = 0;
        for (uint32_t code = 0; code < formats[which].top; code++) {
            double a = value_of(f, code), b = value_of(f, code + 1), middle = (a + b) / 2;
            float probes[6] = { (float)a,
                                nextafterf((float)a, INFINITY),
                                (float)middle,
                                nextafterf((float)middle, 0),
                                nextafterf((float)middle, INFINITY),
                                (float)(a + (b - a) * 0.3) };
            for (int i = 0; i < 6; i++) {
                if ((i == 2 || i == 3 || i == 4) && (double)(float)middle != middle)
                    continue; /* bf16 subnormals only */
                uint32_t want = nearest(f, (double)probes[i], formats[which].top);
                wrong += encode(which, probes[i]) != want;
                wrong += encode(which, -probes[i]) != (want | sign);
            }
        }
        KVT_EQ(wrong, 0);
    }
    KVT_EQ(ops_f32_to_f16(65519.99f), 0x7BFF);
    KVT_EQ(ops_f32_to_f16(65520.0f), 0x7C00);
    KVT_EQ(ops_f32_to_f16(-INFINITY), 0xFC00);
    KVT_TRUE(isnan(ops_f16_to_f32(ops_f32_to_f16(NAN))) && isnan(ops_bf16_to_f32(ops_f32_to_bf16(NAN))));
    KVT_EQ(ops_f32_to_bf16(3.4028235e38f), 0x7F80);
    KVT_EQ(ops_f32_to_bf16(INFINITY), 0x7F80);
    uint32_t tiny = 0x7F800001; /* a NaN whose payload lies below BF16's mantissa */
    float payload;
    memcpy(&payload, &tiny, 4);
    KVT_TRUE(isnan(ops_bf16_to_f32(ops_f32_to_bf16(payload))));
    /* E4M3 and E2M1 saturate to finite; NaN counts as 0. */
    static const float big[] = { 448, 449, 463.9f, 464, 480, 1e30f, INFINITY };
    for (unsigned i = 0; i < sizeof big / sizeof *big; i++) {
        KVT_EQ(ops_f32_to_e4m3(big[i]), 0x7E);
        KVT_EQ(ops_f32_to_e4m3(-big[i]), 0xFE);
        KVT_EQ(ops_f32_to_e2m1(-big[i]), 0xF);
    }
    KVT_EQ(ops_f32_to_e4m3(NAN), 0);
    KVT_EQ(ops_f32_to_e2m1(NAN), 0);
    KVT_EQ(ops_f32_to_e4m3(-0.0f), 0x80);
    KVT_EQ(ops_f32_to_e2m1(-0.1f), 8);
    KVT_EQ(ops_f32_to_e4m3(0x1p-149f), 0);
    static const float ties[][2] = { { 0.25f, 0 }, { 0.75f, 1 }, { 1.25f, 1 }, { 1.75f, 2 },
                                     { 2.5f, 2 },  { 3.5f, 4 },  { 5, 4 } };
    for (unsigned i = 0; i < 7; i++)
        KVT_NEAR((double)ops_e2m1_to_f32(ops_f32_to_e2m1(ties[i][0])), (double)ties[i][1], 0);
    KVT_EQ(ops_f32_to_e4m3(1.0625f), 0x38);
}

/* Random floats over the whole range, against the same statement. */
static void scalar_encodes_random(void) {
    uint64_t seed = kvt_seed();
    uint32_t wrong = 0;
    for (int i = 0; i < 400000; i++) {
        uint32_t bits = (uint32_t)kvt_random(&seed) & 0x7FFFFFFF;
        if (i & 1) bits = 0x38000000 + bits % 0x10000000; /* where the narrow formats live */
        float x;
        memcpy(&x, &bits, 4);
        if (!isfinite(x)) continue;
        wrong += ops_f32_to_f16(x) != (x >= 65520.0f ? 0x7C00 : nearest(f16, (double)x, 0x7BFF));
        wrong += ops_f32_to_e4m3(x) != nearest(e4m3, (double)x, 0x7E);
        wrong += ops_f32_to_e2m1(x) != nearest(e2m1, (double)x, 7);
    }
    KVT_EQ(wrong, 0);
}

/* ---- rows --------------------------------------------------------------------------------- */

static void fill(uint16_t *x, float first, float rest) {
    for (int i = 0; i < 256; i++) x[i] = ops_f32_to_bf16(rest);
    x[0] = ops_f32_to_bf16(first);
}

/* Magnitudes that BF16 holds exactly are given as such; 3e-6, 1e-6, 1e-8, 5e7 are rounded to it first, which keeps the
 * published codes. */
static void golden_int8(void) {
    static const struct {
        float a;
        uint16_t scale;
        int code;
        double decoded;
    } golden[] = { { 1, 0x2008, 127, 0.999938965 },
                   { 0.25f, 0x1808, 127, 0.25 * 0.999938965 },
                   { 3, 0x260C, 127, 2.99981689 },
                   { 127, 0x3C00, 127, 127 },
                   { 0x1p-20f, 0, 0, 0 },
                   { 3e-6f, 0, 0, 0 },
                   { 0, 0, 0, 0 } };
    for (unsigned i = 0; i < sizeof golden / sizeof *golden; i++) {
        uint16_t x[256], scales[4];
        int8_t codes[256];
        float back[256];
        fill(x, golden[i].a, -golden[i].a / 2);
        ops_encode_int8(x, 256, codes, scales);
        ops_decode_int8(codes, scales, 256, back);
        KVT_EQ(scales[0], golden[i].scale);
        KVT_EQ_I(codes[0], golden[i].code);
        KVT_NEAR((double)back[0], golden[i].decoded, 1e-7 * golden[i].decoded);
        if (golden[i].a == 1) KVT_EQ_I(codes[1], -64);
    }
}

static void golden_fp8(void) {
    static const struct {
        float a;
        uint16_t scale;
        uint8_t code;
        double decoded;
    } golden[] = { { 1, 0x1892, 0x7E, 0.999755859 }, { 448, 0x3C00, 0x7E, 448 }, { 3, 0x1EDB, 0x7E, 0 },
                   { 1e-6f, 0x0001, 0x58, 0 },       { 1e-8f, 0x0001, 0x23, 0 }, { 5e7f, 0x7BFF, 0x7E, 2.9345792e7 } };
    for (unsigned i = 0; i < sizeof golden / sizeof *golden; i++) {
        uint16_t x[256], scale[1];
        uint8_t codes[256];
        float back[256];
        fill(x, golden[i].a, golden[i].a / 3);
        ops_encode_fp8(x, 256, codes, scale);
        ops_decode_fp8(codes, scale, 256, back);
        KVT_EQ(scale[0], golden[i].scale);
        KVT_EQ(codes[0], golden[i].code);
        if (golden[i].decoded > 0) KVT_NEAR((double)back[0], golden[i].decoded, 1e-8 * golden[i].decoded);
        if (golden[i].a == 1) KVT_EQ(codes[1], 0x71);
    }
    uint16_t zeros[256], scale[1] = { 7 };
    uint8_t codes[256];
    fill(zeros, 0, -0.0f);
    memset(codes, 9, sizeof codes);
    ops_encode_fp8(zeros, 256, codes, scale);
    KVT_EQ(scale[0], 0);
    for (int i = 0; i < 256; i++) KVT_EQ(codes[i], 0); /* also for -0: the whole row is +0 */
}

static void golden_nvfp4(void) {
    static const struct {
        float a;
        uint8_t scale, code;
        double decoded;
    } golden[] = { { 1, 0x23, 7, 1.03125 },
                   { 6, 0x38, 7, 6 },
                   { 0.25f, 0x13, 7, 6 * 0.04296875 },
                   { 0x1.8p-7f, 0x01, 7, 6 * 0x1p-9 },
                   { 1e-3f, 0x01, 1, 0x1p-10 },
                   { 2688, 0x7E, 7, 2688 },
                   { 3072, 0x7E, 7, 2688 },
                   { 6.375f, 0x38, 7, 6 } };
    for (unsigned i = 0; i < sizeof golden / sizeof *golden; i++) {
        uint16_t x[256];
        uint8_t codes[128], scales[16];
        float back[256];
        fill(x, golden[i].a, 0);
        x[1] = ops_f32_to_bf16(golden[i].a / 2);
        x[17] = ops_f32_to_bf16(-0.0f);
        x[18] = ops_f32_to_bf16(-golden[i].a);
        x[19] = ops_f32_to_bf16(-golden[i].a / 1024); /* rounds to zero and keeps its sign */
        ops_encode_nvfp4(x, 256, codes, scales);
        ops_decode_nvfp4(codes, scales, 256, back);
        KVT_EQ(scales[0], golden[i].scale);
        KVT_EQ(codes[0] & 15, golden[i].code); /* even element: low nibble */
        KVT_NEAR((double)back[0], golden[i].decoded, 0);
        if (golden[i].a == 1) KVT_EQ(codes[0] >> 4, 5);
        KVT_EQ(codes[8] >> 4, 8);
        KVT_EQ(codes[9] & 15, golden[i].code | 8);
        KVT_EQ(codes[9] >> 4, 8);
        for (int g = 2; g < 16; g++) KVT_TRUE(scales[g] == 0 && codes[8 * g] == 0);
    }
}

/* ---- rows against a second statement of the arithmetic ------------------------------------ */

/* FP32 operations done in double and rounded once: for +, *, / of floats that is the correctly rounded FP32 result. */
static float quotient(float a, float b) { return (float)((double)a / (double)b); }
static float product(float a, float b) { return (float)((double)a * (double)b); }
static float cleaned(uint16_t x) {
    float value = ops_bf16_to_f32(x);
    return isnan(value) ? 0 : value;
}
static float largest(const uint16_t *x, int n) {
    float most = 0;
    for (int i = 0; i < n; i++) most = fabsf(cleaned(x[i])) > most ? fabsf(cleaned(x[i])) : most;
    return most;
}
static uint32_t f16_clamped(float x) { return nearest(f16, (double)x, 0x7BFF); }
static uint32_t with_sign(float x, uint32_t code, uint32_t sign) { return signbit(x) ? code | sign : code; }

static void want_int8(const uint16_t *x, int n, int8_t *codes, uint16_t *scales) {
    for (int g = 0; 64 * g < n; g++) {
        int end = 64 * g + 64 < n ? 64 * g + 64 : n;
        scales[g] = (uint16_t)f16_clamped(quotient(largest(x + 64 * g, end - 64 * g), 127));
        float s = (float)value_of(f16, scales[g]);
        for (int i = 64 * g; i < end; i++) {
            double code = s > 0 ? rint((double)product(cleaned(x[i]), quotient(1, s))) : 0;
            codes[i] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
        }
    }
}

static void want_fp8(const uint16_t *x, int n, uint8_t *codes, uint16_t *scale) {
    float most = largest(x, n), raw = quotient(most, 448);
    *scale = most > 0 ? (uint16_t)f16_clamped(raw < 0x1p-24f ? 0x1p-24f : raw) : 0;
    for (int i = 0; i < n; i++) {
        float y = most > 0 ? product(cleaned(x[i]), quotient(1, (float)value_of(f16, *scale))) : 0;
        codes[i] = (uint8_t)with_sign(y, nearest(e4m3, fabs((double)y), 0x7E), 0x80);
    }
}

static void want_fp8_tensor(const uint16_t *x, int n, float scale, uint8_t *codes) {
    for (int i = 0; i < n; i++) {
        float y = quotient(cleaned(x[i]), scale);
        codes[i] = (uint8_t)with_sign(y, nearest(e4m3, fabs((double)y), 0x7E), 0x80);
    }
}

static void want_nvfp4(const uint16_t *x, int n, uint8_t *codes, uint8_t *scales) {
    for (int g = 0; g < n / 16; g++) {
        float most = largest(x + 16 * g, 16), raw = quotient(most, 6);
        scales[g] = most > 0 ? (uint8_t)nearest(e4m3, (double)(raw < 0x1p-9f ? 0x1p-9f : raw), 0x7E) : 0;
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            float y = most > 0 ? quotient(cleaned(x[i]), (float)value_of(e4m3, scales[g])) : 0;
            uint32_t code = with_sign(y, nearest(e2m1, fabs((double)y), 7), 8);
            codes[i / 2] = (uint8_t)(i % 2 ? (codes[i / 2] & 15) | code << 4 : code);
        }
    }
}

static void random_row(uint16_t *x, int kind, uint64_t *seed) {
    for (int i = 0; i < 256; i++) {
        float unit = (float)(int32_t)kvt_random(seed) * 0x1p-31f;
        switch (kind % 6) {
        case 0: x[i] = ops_f32_to_bf16(unit); break;
        case 1: x[i] = ops_f32_to_bf16(unit * ldexpf(1, (int)kvt_below(seed, 60) - 40)); break; /* outliers */
        case 2: x[i] = (uint16_t)kvt_random(seed); break;                                       /* any bits at all */
        case 3: x[i] = kvt_below(seed, 8) ? 0 : (uint16_t)(kvt_random(seed) & 0x807F); break; /* zeros and subnormals */
        case 4: x[i] = ops_f32_to_bf16((float)((int)kvt_below(seed, 33) - 16) * 0.125f); break; /* many ties */
        default: x[i] = ops_f32_to_bf16(unit * 3e38f); break;                                   /* scales clamp */
        }
    }
}

static void geom_9_rows_bit_exact(void) {
    uint64_t seed = kvt_seed();
    for (int round = 0; round < 3000; round++) {
        uint16_t x[256], scales16[4], want16[4];
        int8_t codes8[256], wanted8[256];
        uint8_t codes[256], wanted[256], scales[16], wanted_scales[16];
        float back[256];
        static const uint32_t dims[] = { 64, 96, 128, 192, 256 };
        uint32_t n = dims[round / 6 % 5]; /* what stands behind a row is not touched */
        random_row(x, round, &seed);
        memset(codes8, 9, 256), memset(codes, 9, 256), memset(scales, 9, 16), memset(scales16, 9, 8);
        memset(wanted8, 9, 256), memset(wanted, 9, 256), memset(wanted_scales, 9, 16), memset(want16, 9, 8);
        ops_encode_int8(x, n, codes8, scales16);
        want_int8(x, (int)n, wanted8, want16);
        KVT_EQ_MEM(codes8, wanted8, 256);
        KVT_EQ_MEM(scales16, want16, 8);
        ops_decode_int8(codes8, scales16, n, back);
        uint32_t wrong = 0;
        for (uint32_t i = 0; i < n; i++)
            wrong += (double)back[i] != codes8[i] * value_of(f16, scales16[i / 64]) || codes8[i] == -128;
        ops_encode_fp8(x, n, codes, scales16);
        want_fp8(x, (int)n, wanted, want16);
        KVT_EQ_MEM(codes, wanted, 256);
        KVT_EQ_MEM(scales16, want16, 2);
        ops_decode_fp8(codes, scales16, n, back);
        for (uint32_t i = 0; i < n; i++)
            wrong += (double)back[i] !=
                     (codes[i] & 0x80 ? -1 : 1) * value_of(e4m3, codes[i] & 0x7F) * value_of(f16, scales16[0]);
        float scale = ldexpf(1 + (float)kvt_below(&seed, 1000) / 1000, (int)kvt_below(&seed, 40) - 30);
        ops_encode_fp8_tensor(x, n, scale, codes);
        want_fp8_tensor(x, (int)n, scale, wanted);
        KVT_EQ_MEM(codes, wanted, 256);
        ops_decode_fp8_tensor(codes, scale, n, back);
        for (uint32_t i = 0; i < n; i++)
            wrong += back[i] != product((codes[i] & 0x80 ? -1 : 1) * (float)value_of(e4m3, codes[i] & 0x7F), scale);
        ops_encode_nvfp4(x, n, codes, scales);
        want_nvfp4(x, (int)n, wanted, wanted_scales);
        KVT_EQ_MEM(codes, wanted, 256);
        KVT_EQ_MEM(scales, wanted_scales, 16);
        ops_decode_nvfp4(codes, scales, n, back);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t code = codes[i / 2] >> (i % 2 * 4) & 15;
            wrong += (double)back[i] != (code & 8 ? -1 : 1) * value_of(e2m1, code & 7) * value_of(e4m3, scales[i / 16]);
        }
        KVT_EQ(wrong, 0);
    }
}

/* ---- rows that numpy encoded (tests/python/codes.py) -------------------------------------------- */

static const struct golden {
    uint32_t n;
    const char *x, *int8, *int8_scales, *fp8, *fp8_scale, *nvfp4, *nvfp4_scales, *fp8_tensor; /* bytes in hexadecimal */
} golden_rows[] = {
#include "golden_codes.inc"
};

static uint32_t parse_hex(const char *text, void *ret_bytes) {
    uint32_t n = (uint32_t)strlen(text) / 2;
    for (uint32_t i = 0; i < n; i++) {
        char digits[3] = { text[2 * i], text[2 * i + 1], 0 };
        ((uint8_t *)ret_bytes)[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return n;
}

static void expect_hex(const void *bytes, const char *text) {
    uint8_t want[512];
    uint32_t n = parse_hex(text, want);
    KVT_EQ_MEM(bytes, want, n);
}

static void geom_9_golden_rows(void) {
    for (unsigned i = 0; i < sizeof golden_rows / sizeof *golden_rows; i++) {
        const struct golden *row = &golden_rows[i];
        uint16_t x[256], scales16[4];
        int8_t codes8[256];
        uint8_t codes[256], scales[16];
        KVT_EQ(parse_hex(row->x, x), 2 * row->n);
        ops_encode_int8(x, row->n, codes8, scales16);
        expect_hex(codes8, row->int8);
        expect_hex(scales16, row->int8_scales);
        ops_encode_fp8(x, row->n, codes, scales16);
        expect_hex(codes, row->fp8);
        expect_hex(scales16, row->fp8_scale);
        ops_encode_nvfp4(x, row->n, codes, scales);
        expect_hex(codes, row->nvfp4);
        expect_hex(scales, row->nvfp4_scales);
        ops_encode_fp8_tensor(x, row->n, 0.37f, codes);
        expect_hex(codes, row->fp8_tensor);
    }
}

/* Every BF16 magnitude as the largest of its row, group of 64 and group of 16, with its half and a third beside it. */
static void geom_9_every_magnitude(void) {
    uint32_t wrong = 0;
    for (uint32_t a = 0; a < 0x7F80; a++) {
        uint16_t x[256] = { (uint16_t)a }, scales16[4], want16[4];
        int8_t codes8[256], wanted8[256];
        uint8_t codes[256], wanted[256], scales[16], wanted_scales[16];
        x[1] = ops_f32_to_bf16(-ops_bf16_to_f32((uint16_t)a) / 2);
        x[2] = ops_f32_to_bf16(ops_bf16_to_f32((uint16_t)a) / 3);
        ops_encode_int8(x, 256, codes8, scales16);
        want_int8(x, 256, wanted8, want16);
        wrong += memcmp(codes8, wanted8, 256) || memcmp(scales16, want16, 8);
        ops_encode_fp8(x, 256, codes, scales16);
        want_fp8(x, 256, wanted, want16);
        wrong += memcmp(codes, wanted, 256) || memcmp(scales16, want16, 2);
        ops_encode_nvfp4(x, 256, codes, scales);
        want_nvfp4(x, 256, wanted, wanted_scales);
        wrong += memcmp(codes, wanted, 128) || memcmp(scales, wanted_scales, 16);
        ops_encode_fp8_tensor(x, 3, 0.37f, codes);
        want_fp8_tensor(x, 3, 0.37f, wanted);
        wrong += memcmp(codes, wanted, 3) != 0;
    }
    KVT_EQ(wrong, 0);
}

/* GEOM-9 (+): no NaN or Inf code or scale comes out of any quantized profile; BF16 copies bits. */
static void geom_9_non_finite(void) {
    uint16_t x[256], scales16[4], copy[256];
    int8_t codes8[256];
    uint8_t codes[256], scales[16];
    fill(x, 1, 0.5f);
    x[3] = 0x7FC1;
    x[4] = 0xFFFF;
    ops_encode_int8(x, 256, codes8, scales16);
    KVT_EQ(scales16[0], 0x2008); /* NaN does not count for the scale either */
    KVT_TRUE(codes8[3] == 0 && codes8[4] == 0 && codes8[0] == 127);
    ops_encode_fp8(x, 256, codes, scales16);
    KVT_EQ(scales16[0], 0x1892);
    KVT_TRUE(codes[3] == 0 && codes[4] == 0);
    ops_encode_nvfp4(x, 256, codes, scales);
    KVT_TRUE(scales[0] == 0x23 && codes[1] >> 4 == 0 && (codes[2] & 15) == 0);
    x[5] = 0x7F80;
    x[6] = 0xFF80;
    ops_encode_int8(x, 256, codes8, scales16);
    KVT_EQ(scales16[0], 0x7BFF);
    KVT_EQ(scales16[1], 0x1C08); /* the next group of 0.5 is its own */
    KVT_TRUE(codes8[5] == 127 && codes8[6] == -127 && codes8[0] == 0 && codes8[3] == 0);
    ops_encode_fp8(x, 256, codes, scales16);
    KVT_TRUE(scales16[0] == 0x7BFF && codes[5] == 0x7E && codes[6] == 0xFE && codes[3] == 0);
    ops_encode_nvfp4(x, 256, codes, scales);
    KVT_TRUE(scales[0] == 0x7E && codes[2] >> 4 == 7 && (codes[3] & 15) == 15);
    ops_encode_fp8_tensor(x, 256, 1, codes);
    KVT_TRUE(codes[3] == 0 && codes[4] == 0 && codes[5] == 0x7E && codes[6] == 0xFE && codes[0] == 0x38);
    ops_encode_bf16(x, 256, copy);
    KVT_EQ_MEM(copy, x, sizeof x);
    for (int i = 0; i < 256; i++) x[i] = 0x7FFF;
    ops_encode_int8(x, 256, codes8, scales16);
    ops_encode_nvfp4(x, 256, codes, scales);
    for (int i = 0; i < 256; i++) KVT_EQ(codes8[i], 0);
    KVT_TRUE(scales16[3] == 0 && scales[15] == 0);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(scalar_decodes_are_exact),
        KVT_CASE(scalar_encodes_round_to_nearest_even),
        KVT_CASE(scalar_encodes_random),
        KVT_CASE(golden_int8),
        KVT_CASE(golden_fp8),
        KVT_CASE(golden_nvfp4),
        KVT_CASE(geom_9_rows_bit_exact),
        KVT_CASE(geom_9_golden_rows),
        KVT_CASE(geom_9_every_magnitude),
        KVT_CASE(geom_9_non_finite),
        { 0 },
    };
    return kvt_main("ops_codec", cases, argc, argv);
}
