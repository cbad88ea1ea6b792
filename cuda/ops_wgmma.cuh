/* SPDX-License-Identifier: Apache-2.0
 *
 * Warpgroup products (sm_90a): c[64, N] = (add ? c : 0) + a[64, 16] b[16, N] in BF16 or FP16 (HALF) with FP32 sums, by
 * four warps together. b, and a where it is not in registers, are read from shared memory by descriptors.
 *
 * Operands lie there in pieces of [rows][128 bytes], each row's eight 16-byte pieces at c ^ (row & 7), pieces aligned
 * to 1024: "128-byte swizzle" in the PTX ISA (matrix descriptor format). Warp w holds rows 16w..16w+15 of c and a, in
 * the layout that mma.m16n8k16 has.
 */
#ifndef KVD_CUDA_OPS_WGMMA_CUH
#define KVD_CUDA_OPS_WGMMA_CUH

#include <stdint.h>

namespace wgmma {

/* The rows run along M or N, 64 elements of the contraction side by side: groups of eight rows are 1024 bytes apart. */
__device__ __forceinline__ uint64_t along_rows(uint32_t smem) {
    return (uint64_t)(smem >> 4 | 1u << 16) | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The rows run along the contraction, 64 elements of N side by side: the next 64 are `next` bytes away, the next eight
 * rows 1024. */
__device__ __forceinline__ uint64_t across_rows(uint32_t smem, uint32_t next) {
    return (uint64_t)(smem >> 4 | (next >> 4) << 16) | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same operand `bytes` further on: one addition, where describing it anew takes four instructions. */
__device__ __forceinline__ uint64_t further(uint64_t operand, uint32_t bytes) {
    return operand & 0xffffffff00000000ull | (uint64_t)((uint32_t)operand + (bytes >> 4));
}

/* Before the first product, and after registers of one were written. */
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/* Closes the products issued since the last close. */
__device__ __forceinline__ void close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Waits until at most PENDING closed groups are not done. */
template <int PENDING> __device__ __forceinline__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving uses of accumulators across begin() and wait(). */
template <int N> __device__ __forceinline__ void hold(float (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}

/* ---- the instruction, for N = 64, 128 and 256: its sums are operands %0 to %(N / 2 - 1) ------------------------- */

#define WGMMA_C4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define WGMMA_C16(i) WGMMA_C4(i), WGMMA_C4(i + 1), WGMMA_C4(i + 2), WGMMA_C4(i + 3)
#define WGMMA_SUMS_64 WGMMA_C16(0), WGMMA_C16(4)
#define WGMMA_SUMS_128 WGMMA_SUMS_64, WGMMA_C16(8), WGMMA_C16(12)
#define WGMMA_SUMS_256 WGMMA_SUMS_128, WGMMA_C16(16), WGMMA_C16(20), WGMMA_C16(24), WGMMA_C16(28)
#define WGMMA_NAMES_64                                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "   \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_128                                                                                                \
    WGMMA_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
                   "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_256                                                                                                \
    WGMMA_NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "     \
                    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, " \
                    "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, " \
                    "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* `turn`: b lies across rows. last: the operand after the sums. */
#define WGMMA_SHARED(n, type, turn, a_at, b_at, add_at)                                                                \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" add_at ", 0;\n\t"                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" WGMMA_NAMES_##n                  \
                 "}, %" a_at ", %" b_at ", p, 1, 1, 0, " turn ";\n\t}"                                                 \
                 : WGMMA_SUMS_##n                                                                                      \
                 : "l"(a), "l"(b), "r"((int)add))
#define WGMMA_REGISTERS(n, type, turn, a0, a1, a2, a3, b_at, add_at)                                                   \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" add_at ", 0;\n\t"                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" WGMMA_NAMES_##n                  \
                 "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b_at ", p, 1, 1, " turn ";\n\t}"                         \
                 : WGMMA_SUMS_##n                                                                                      \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add))

/* a in shared memory, the contraction side by side; b too. */
template <bool HALF> __device__ __forceinline__ void product(float (&c)[8][4], uint64_t a, uint64_t b, bool add) {
    if constexpr (HALF) WGMMA_SHARED(64, "f16", "0", "32", "33", "34");
    else WGMMA_SHARED(64, "bf16", "0", "32", "33", "34");
}

template <bool HALF> __device__ __forceinline__ void product(float (&c)[16][4], uint64_t a, uint64_t b, bool add) {
    if constexpr (HALF) WGMMA_SHARED(128, "f16", "0", "64", "65", "66");
    else WGMMA_SHARED(128, "bf16", "0", "64", "65", "66");
}

/* c[64, 64] = (add ? c : 0) + a[64, 32] b[32, 64] in E4M3: 128 bytes of a row are 128 elements of the contraction. */
__device__ __forceinline__ void product_e4m3(float (&c)[8][4], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" WGMMA_NAMES_64 "}, %32, %33, p, 1, 1;\n\t}"
                 : WGMMA_SUMS_64
                 : "l"(a), "l"(b), "r"((int)add));
}

/* a in registers, b along rows. */
template <bool HALF>
__device__ __forceinline__ void product_along(float (&c)[8][4], const uint4 &a, uint64_t b, bool add) {
    if constexpr (HALF) WGMMA_REGISTERS(64, "f16", "0", "32", "33", "34", "35", "36", "37");
    else WGMMA_REGISTERS(64, "bf16", "0", "32", "33", "34", "35", "36", "37");
}

template <bool HALF>
__device__ __forceinline__ void product_along(float (&c)[16][4], const uint4 &a, uint64_t b, bool add) {
    if constexpr (HALF) WGMMA_REGISTERS(128, "f16", "0", "64", "65", "66", "67", "68", "69");
    else WGMMA_REGISTERS(128, "bf16", "0", "64", "65", "66", "67", "68", "69");
}

/* a in registers, b across rows. */
template <bool HALF>
__device__ __forceinline__ void product(float (&c)[8][4], const uint4 &a, uint64_t b, bool add = true) {
    if constexpr (HALF) WGMMA_REGISTERS(64, "f16", "1", "32", "33", "34", "35", "36", "37");
    else WGMMA_REGISTERS(64, "bf16", "1", "32", "33", "34", "35", "36", "37");
}

template <bool HALF>
__device__ __forceinline__ void product(float (&c)[16][4], const uint4 &a, uint64_t b, bool add = true) {
    if constexpr (HALF) WGMMA_REGISTERS(128, "f16", "1", "64", "65", "66", "67", "68", "69");
    else WGMMA_REGISTERS(128, "bf16", "1", "64", "65", "66", "67", "68", "69");
}

template <bool HALF>
__device__ __forceinline__ void product(float (&c)[32][4], const uint4 &a, uint64_t b, bool add = true) {
    if constexpr (HALF) WGMMA_REGISTERS(256, "f16", "1", "128", "129", "130", "131", "132", "133");
    else WGMMA_REGISTERS(256, "bf16", "1", "128", "129", "130", "131", "132", "133");
}

} /* namespace wgmma */

#endif
