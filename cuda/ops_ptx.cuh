/* SPDX-License-Identifier: Apache-2.0
 *
 * Thin names for the PTX instructions that the kernels use (sm_90): asynchronous copies, matrix fragments, tensor-core
 * products and packed conversions. Nothing here knows about pages or attention.
 */
#ifndef KVD_CUDA_OPS_PTX_CUH
#define KVD_CUDA_OPS_PTX_CUH

#include <stdint.h>

namespace ptx {

__device__ __forceinline__ uint32_t smem_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- asynchronous copies: 16 bytes a thread, past L1 ---------------------------------------- */

/* What createpolicy returns: of bytes read once (they leave the L2 first, so that tables, queries and partial results
 * stay), and of all others. */
constexpr uint64_t READ_ONCE = 0x12f0000000000000, READ_OFTEN = 0x1000000000000000;

/* Of bytes read once. The hint is a constant: it costs no instruction a copy. ptxas of CUDA 13.0 makes an illegal one
 * of a hint and an address with a part in uniform registers (tests/gpu/machine_code.py looks for it). */
__device__ __forceinline__ void copy16_once(uint32_t smem, const void *global) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(smem), "l"(global), "l"(READ_ONCE)
                 : "memory");
}

/* Programmatic dependent launch: wait for the kernels before this one in the stream; let the next one start. */
__device__ __forceinline__ void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Barrier of THREADS threads (whole warps) with its own id. */
template <int THREADS> __device__ __forceinline__ void group_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

/* ---- barriers in shared memory, and bulk copies that complete on them ------------------------------------------- */

__device__ __forceinline__ void barrier_start(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Makes barriers that were just started visible to the copy unit; a barrier of the CTA must follow. */
__device__ __forceinline__ void barriers_started() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and says that copies of `bytes` will complete on the barrier. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Waits for the end of the phase of this parity. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n\t.reg .pred p;\n\tWAIT:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n\t@p bra DONE;\n\tbra WAIT;\n\t"
                 "DONE:\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* The box of a tensor map (d, token, head, page) at these coordinates, into shared memory. map: CUtensorMap. */
__device__ __forceinline__ void copy_box(uint32_t smem, const void *map, uint32_t barrier, int d, int token, int head,
                                         int page, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(smem),
                 "l"(map), "r"(barrier), "r"(d), "r"(token), "r"(head), "r"(page), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void fetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Bytes (a multiple of 16) as they lie in global memory, into shared memory. */
__device__ __forceinline__ void copy_bulk(uint32_t smem, const void *global, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(smem),
                 "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* Registers of the warps of a warpgroup from here on. */
template <int N> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Says that a barrier of THREADS threads may pass as far as this warp goes, without waiting there. */
template <int THREADS> __device__ __forceinline__ void group_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

/* ---- shared memory reads --------------------------------------------------------------------- */

__device__ __forceinline__ uint4 load128(uint32_t smem) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(smem)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint2 load64(uint32_t smem) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(smem) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load16(uint32_t smem) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(smem) : "memory");
    return v;
}

__device__ __forceinline__ void store16(uint32_t smem, uint32_t bits) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(smem), "h"((uint16_t)bits) : "memory");
}

__device__ __forceinline__ void store32(uint32_t smem, uint32_t x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(smem), "r"(x) : "memory");
}

__device__ __forceinline__ void store64(uint32_t smem, const uint2 &x) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(smem), "r"(x.x), "r"(x.y) : "memory");
}

__device__ __forceinline__ void store128(uint32_t smem, const uint4 &x) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(smem), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

__device__ __forceinline__ uint4 matrix4(uint32_t smem) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(smem)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint4 matrix4_transposed(uint32_t smem) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(smem)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load32(uint32_t smem) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(smem) : "memory");
    return v;
}

/* Transposes an 8 x 8 matrix of 16-bit values that lies in a warp as a product leaves it: packed neighbours of row lane
 * / 4. */
__device__ __forceinline__ uint32_t transpose8(uint32_t pair) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}

/* ---- tensor cores: c[16x8] += a[16x16] * b[16x8], FP32 sums ---------------------------------- */

template <bool HALF> __device__ __forceinline__ void mma(float (&c)[4], const uint4 &a, uint32_t b0, uint32_t b1) {
    if constexpr (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* c[16x8] += a[16x32] * b[32x8] in INT8 with INT32 sums. */
__device__ __forceinline__ void mma_int8(int (&c)[4], const uint4 &a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* Makes this thread's writes to shared memory visible to the units that read it by descriptor. */
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- packed arithmetic: two 16-bit values a register, the first in the low half --------------- */

template <bool HALF> __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t r;
    if constexpr (HALF) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float half_to_float(uint32_t bits) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)bits));
    return f;
}

__device__ __forceinline__ uint32_t mul_half2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ uint32_t sub_half2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ uint32_t mul_bf162(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ uint32_t sub_bf162(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("sub.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* Two E4M3 bytes (the low half of `bytes`) to two FP16, exact. */
__device__ __forceinline__ uint32_t e4m3_to_half2(uint32_t bytes) {
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)bytes));
    return r;
}

/* Two FP16 to two E4M3 bytes, to nearest even. */
__device__ __forceinline__ uint32_t half2_to_e4m3(uint32_t two) {
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(r) : "r"(two));
    return r;
}

__device__ __forceinline__ float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

} /* namespace ptx */

#endif
