/* SPDX-License-Identifier: Apache-2.0
 *
 * Codecs of the profiles (GEOM-9). Everything is IEEE FP32, round to nearest even; this file is built without
 * contraction and without fast-math, and the order of operations below is part of the format.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "ops.h"
#include "ops_internal.h"

#define ROW_MAX 256
#define F16_MAX 65504.0f
#define F16_MIN 0x1p-24f
#define E4M3_MAX 448.0f
#define E4M3_MIN 0x1p-9f
#define E2M1_MAX 6.0f

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* mantissa / 2^shift, to nearest, ties to even; shift >= 1. */
static uint32_t shift_rne(uint32_t mantissa, uint32_t shift) {
    if (shift > 31) return 0;
    uint32_t low = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1), whole = mantissa >> shift;
    return whole + (low > half || (low == half && (whole & 1)));
}

/* ---- scalars ------------------------------------------------------------------------------ */

float ops_bf16_to_f32(uint16_t bits) { return float_of((uint32_t)bits << 16); }

uint16_t ops_f32_to_bf16(float x) {
    uint32_t bits = bits_of(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

float ops_f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 0x3FFu;
    if (exponent == 31) return float_of(sign | 0x7F800000u | mantissa << 13);
    if (exponent == 0) {
        float magnitude = (float)mantissa * F16_MIN;
        return float_of(sign | bits_of(magnitude));
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t ops_f32_to_f16(float x) {
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu, exponent = magnitude >> 23;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* 65520 and more */
    if (exponent >= 113) return (uint16_t)(sign | (shift_rne(magnitude, 13) - (112u << 10)));
    if (exponent < 102) return (uint16_t)sign;
    return (uint16_t)(sign | shift_rne((magnitude & 0x7FFFFFu) | 0x800000u, 126 - exponent));
}

/* Exponent and mantissa moved to FP32's places; a subnormal comes out with the hidden one, which is taken off. */
static inline float e4m3_magnitude(uint32_t code) {
    float normal = float_of((code << 20) + (120u << 23));
    float subnormal = 2.0f * normal - 0x1p-6f;
    float x = code < 8 ? subnormal : normal;
    return code == 0x7F ? NAN : x;
}

float ops_e4m3_to_f32(uint8_t bits) {
    return float_of(bits_of(e4m3_magnitude(bits & 0x7Fu)) | (uint32_t)(bits & 0x80u) << 24);
}

uint8_t ops_f32_to_e4m3(float x) {
    uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu, exponent = magnitude >> 23;
    if (magnitude > 0x7F800000u) return 0;
    if (magnitude >= 0x43E00000u) return (uint8_t)(sign | 0x7Eu); /* 448 and more */
    if (exponent >= 121) return (uint8_t)(sign | (shift_rne(magnitude, 20) - (120u << 3)));
    if (exponent < 117) return (uint8_t)sign;
    return (uint8_t)(sign | shift_rne((magnitude & 0x7FFFFFu) | 0x800000u, 141 - exponent));
}

static inline float e2m1_magnitude(uint32_t code) {
    float normal = float_of((code << 22) + (126u << 23));
    float subnormal = 2.0f * normal - 1.0f;
    return code < 2 ? subnormal : normal;
}

float ops_e2m1_to_f32(uint8_t nibble) {
    return float_of(bits_of(e2m1_magnitude(nibble & 7u)) | (uint32_t)(nibble & 8u) << 28);
}

/* Halfway points of {0, .5, 1, 1.5, 2, 3, 4, 6}; each goes to the even code. */
uint8_t ops_f32_to_e2m1(float x) {
    float a = fabsf(x);
    uint32_t sign = bits_of(x) >> 28 & 8u;
    if (isnan(x)) return 0;
    uint32_t code =
        (uint32_t)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(sign | code);
}

/* ---- rows --------------------------------------------------------------------------------- */

/* A quantized profile counts NaN as 0 (GEOM-9). Returns the largest magnitude; Inf comes through and saturates later.
 */
static float load_row(const uint16_t *x, uint32_t n, float *row) {
    float most = 0;
    for (uint32_t i = 0; i < n; i++) {
        float value = ops_bf16_to_f32(x[i]);
        row[i] = isnan(value) ? 0.0f : value;
        most = fmaxf(most, fabsf(row[i]));
    }
    return most;
}

void ops_encode_bf16(const uint16_t *x, uint32_t n, uint16_t *codes) { memcpy(codes, x, n * sizeof *codes); }

static void encode_int8_group(const float *x, uint32_t n, float most, int8_t *codes, uint16_t *scale) {
    *scale = ops_f32_to_f16(fminf(most / 127.0f, F16_MAX));
    float s = ops_f16_to_f32(*scale); /* the represented scale, so that decoding inverts what was encoded */
    float inverse = s == 0 ? 0.0f : 1.0f / s;
    for (uint32_t i = 0; i < n; i++) {
        float code = s == 0 ? 0.0f : nearbyintf(x[i] * inverse);
        codes[i] = (int8_t)fmaxf(-127.0f, fminf(127.0f, code));
    }
}

void ops_encode_int8(const uint16_t *x, uint32_t n, int8_t *codes, uint16_t *scales) {
    float row[64];
    for (uint32_t i = 0; i < n; i += 64) {
        uint32_t count = n - i < 64 ? n - i : 64;
        float most = load_row(x + i, count, row);
        encode_int8_group(row, count, most, codes + i, &scales[i / 64]);
    }
}

void ops_encode_fp8(const uint16_t *x, uint32_t n, uint8_t *codes, uint16_t *scale) {
    float row[ROW_MAX], most = load_row(x, n, row);
    if (most == 0) {
        memset(codes, 0, n);
        scale[0] = 0;
        return;
    }
    scale[0] = ops_f32_to_f16(fminf(fmaxf(most / E4M3_MAX, F16_MIN), F16_MAX));
    float inverse = 1.0f / ops_f16_to_f32(scale[0]);
    for (uint32_t i = 0; i < n; i++) codes[i] = ops_f32_to_e4m3(row[i] * inverse);
}

/* A true division, as engines that store FP8 so have it. */
void ops_encode_fp8_tensor(const uint16_t *x, uint32_t n, float scale, uint8_t *codes) {
    for (uint32_t i = 0; i < n; i++) codes[i] = ops_f32_to_e4m3(ops_bf16_to_f32(x[i]) / scale);
}

void ops_encode_nvfp4(const uint16_t *x, uint32_t n, uint8_t *codes, uint8_t *scales) {
    float row[16];
    for (uint32_t g = 0; g < n / 16; g++) {
        float most = load_row(x + 16 * g, 16, row);
        if (most == 0) {
            memset(codes + 8 * g, 0, 8);
            scales[g] = 0;
            continue;
        }
        scales[g] = ops_f32_to_e4m3(fminf(fmaxf(most / E2M1_MAX, E4M3_MIN), E4M3_MAX));
        float s = ops_e4m3_to_f32(scales[g]);
        for (uint32_t i = 0; i < 8; i++)
            codes[8 * g + i] = (uint8_t)(ops_f32_to_e2m1(row[2 * i] / s) | ops_f32_to_e2m1(row[2 * i + 1] / s) << 4);
    }
}

OPS_CLONES void ops_decode_int8(const int8_t *codes, const uint16_t *scales, uint32_t n, float *x) {
    for (uint32_t begin = 0; begin < n; begin += 32) { /* half a group: the last one may have no more */
        float s = ops_f16_to_f32(scales[begin / 64]);
        for (uint32_t i = begin; i < begin + 32; i++) x[i] = (float)codes[i] * s;
    }
}

static inline __attribute__((always_inline)) void decode_e4m3(const uint8_t *codes, float s, uint32_t n, float *x) {
    for (uint32_t i = 0; i < n; i++) {
        float magnitude = e4m3_magnitude(codes[i] & 0x7Fu);
        x[i] = float_of(bits_of(magnitude) | (uint32_t)(codes[i] & 0x80u) << 24) * s;
    }
}

OPS_CLONES void ops_decode_fp8(const uint8_t *codes, const uint16_t *scale, uint32_t n, float *x) {
    decode_e4m3(codes, ops_f16_to_f32(scale[0]), n, x);
}

OPS_CLONES void ops_decode_fp8_tensor(const uint8_t *codes, float scale, uint32_t n, float *x) {
    decode_e4m3(codes, scale, n, x);
}

/* Nibbles first, one a byte: both loops then run in vectors. */
OPS_CLONES void ops_decode_nvfp4(const uint8_t *codes, const uint8_t *scales, uint32_t n, float *x) {
    uint8_t nibbles[ROW_MAX];
    for (uint32_t i = 0; i < n / 2; i++) {
        nibbles[2 * i] = codes[i] & 15u;
        nibbles[2 * i + 1] = codes[i] >> 4;
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] = float_of(bits_of(e2m1_magnitude(nibbles[i] & 7u)) | (nibbles[i] & 8u) << 28);
    for (uint32_t g = 0; g < n / 16; g++) {
        float s = ops_e4m3_to_f32(scales[g]);
        for (uint32_t i = 16 * g; i < 16 * g + 16; i++) x[i] *= s;
    }
}
