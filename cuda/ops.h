/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands behind kvd_ops.h and is no part of the library: codecs of rows, conversions of numbers, and the checks
 * that the host and the CUDA wrappers share. Tests and the demo use them, too. Pure functions, any thread.
 */
#ifndef KVD_CUDA_OPS_H
#define KVD_CUDA_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kvd_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codecs of one row (reference-exact; GEOM-9) ------------------------------------------- */

/* Encodes one row of n BF16 elements. codes/scales: as the schema says for the slot. n is a head_dim that it allows. */
void ops_encode_bf16(const uint16_t *x, uint32_t n, uint16_t *codes);
void ops_encode_int8(const uint16_t *x, uint32_t n, int8_t *codes, uint16_t *scales);
void ops_encode_fp8(const uint16_t *x, uint32_t n, uint8_t *codes, uint16_t *scale);
void ops_encode_nvfp4(const uint16_t *x, uint32_t n, uint8_t *codes, uint8_t *scales);
void ops_encode_fp8_tensor(const uint16_t *x, uint32_t n, float scale, uint8_t *codes);
/* Decodes one stored row to FP32 (exact products as the reference defines them). */
void ops_decode_int8(const int8_t *codes, const uint16_t *scales, uint32_t n, float *x);
void ops_decode_fp8(const uint8_t *codes, const uint16_t *scale, uint32_t n, float *x);
void ops_decode_nvfp4(const uint8_t *codes, const uint8_t *scales, uint32_t n, float *x);
void ops_decode_fp8_tensor(const uint8_t *codes, float scale, uint32_t n, float *x);

/* Scalar conversions, exposed for tests and for the demo model. RNE everywhere; E4M3FN saturates to finite. */
float ops_bf16_to_f32(uint16_t bits);
uint16_t ops_f32_to_bf16(float x);
float ops_f16_to_f32(uint16_t bits);
uint16_t ops_f32_to_f16(float x);
float ops_e4m3_to_f32(uint8_t bits);
uint8_t ops_f32_to_e4m3(float x);
uint8_t ops_f32_to_e2m1(float x); /* 4 bits */
float ops_e2m1_to_f32(uint8_t nibble);

/* ---- checks -------------------------------------------------------------------------------- */

/* The checks of VIEW-3: everything that needs no device data. 0 or KVD_OPS_INVALID with a sentence. */
int ops_append_check(const struct kvd_ops_append *op, char *err, size_t err_bytes);
int ops_attention_check(const struct kvd_ops_attention *op, char *err, size_t err_bytes);

/* 0, or KVD_OPS_UNIMPLEMENTED with a sentence for a view that no kernel on GPUs reads or writes: FP8_TENSOR. */
int ops_cuda_check(const PagedKVBatchLayerView *view, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
