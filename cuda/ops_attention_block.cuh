/* SPDX-License-Identifier: Apache-2.0
 *
 * Block form: 64 rows of packed queries a warpgroup against a page of 64 keys, by warpgroup products straight from
 * shared memory. For verify (one warpgroup, memory bound) and prefill (two warpgroups share the tiles). BF16 only.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_BLOCK_CUH
#define KVD_CUDA_OPS_ATTENTION_BLOCK_CUH

#include "ops_attention_softmax.cuh"
#include "ops_wgmma.cuh"

namespace attn {

/* What rows16 and merge_rows ask of a tile. */
template <int D> struct block_tile {
    static constexpr int NT = KVD_PAGE_TOKENS / 8, NO = D / 8;

    __device__ static __forceinline__ int key_of(int nt, int t, int e) { return nt * 8 + 2 * t + e; }
};

/* Address of the 16-byte piece of a row in an operand: pieces of [rows][128 bytes], one a 64 channels. */
template <int ROWS> __device__ __forceinline__ uint32_t operand_place(uint32_t base, int row, int chunk) {
    return base + (uint32_t)((chunk >> 3) * ROWS * 128 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

/* The same for one 16-bit element, as an index. */
template <int ROWS> __device__ __forceinline__ int operand_index(int row, int d) {
    return (d >> 6) * ROWS * 64 + row * 64 + ((((d >> 3) & 7) ^ (row & 7)) << 3) + (d & 7);
}

template <int D, int WG> struct block_form {
    using codes = attn::codes<KVD_STORAGE_BF16, D>;
    using tile = block_tile<D>;
    static constexpr bool ASYNC = true;
    static constexpr int TK = KVD_PAGE_TOKENS, RB = 64 * WG, WARPS = 4 * WG, GROUPS = 1, SUMS = 1;
    static constexpr int SLOT = TK * D * 2, Q_BYTES = RB * D * 2;
    static constexpr int PER_SM = WG == 1 && D <= 128 ? 2 : 1;
    static constexpr int FIT = ((PER_SM == 2 ? 105 : 221) * 1024 - Q_BYTES) / SLOT;
    static constexpr int NS = FIT > 8 ? 8 : FIT;
    static constexpr int Q_AT = (max_of(NS * SLOT, RB *(D + 4) * 4) + 1023) / 1024 * 1024;
    static constexpr int SMEM = Q_AT + Q_BYTES + 1024; /* to align the start */

    template <int ROW> __device__ static __forceinline__ uint32_t place(uint32_t base, int row, int chunk) {
        return operand_place<TK>(base, row, chunk);
    }
    static constexpr bool Q_SPLIT = false;
    __device__ static __forceinline__ int q_place(int row, int d) { return operand_index<RB>(row, d); }
};

template <int D, int WG> struct block_kernel {
    using C = block_form<D, WG>;
    static constexpr int HEAD_DIM = D;

    /* S = Q K^T: q at the warpgroup's first row, k a tile. */
    __device__ static __forceinline__ void scores(float (&s)[8][4], uint32_t q, uint32_t k) {
        wgmma::hold(s);
        wgmma::begin();
#pragma unroll
        for (int f = 0; f < D / 16; f++)
            wgmma::product<false>(s, wgmma::along_rows(q + (uint32_t)((f >> 2) * C::RB * 128 + (f & 3) * 32)),
                                  wgmma::along_rows(k + (uint32_t)((f >> 2) * C::TK * 128 + (f & 3) * 32)), f > 0);
        wgmma::finish();
        wgmma::hold(s);
    }

    /* O += P V. */
    __device__ static __forceinline__ void values(float (&o)[D / 8][4], const float (&p)[8][4], uint32_t v) {
        uint4 a[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = make_uint4(ptx::pack<false>(p[2 * i][0], p[2 * i][1]), ptx::pack<false>(p[2 * i][2], p[2 * i][3]),
                              ptx::pack<false>(p[2 * i + 1][0], p[2 * i + 1][1]),
                              ptx::pack<false>(p[2 * i + 1][2], p[2 * i + 1][3]));
        wgmma::hold(o);
        wgmma::begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma::product<false>(o, a[i], wgmma::across_rows(v + (uint32_t)(i * 16 * 128), C::TK * 128));
        wgmma::finish();
        wgmma::hold(o);
    }

    __device__ static __forceinline__ void run(const params &p, const segment &s, uint8_t *smem, control<C> &ctl,
                                               bool whole, uint32_t to) {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const uint32_t base = ptx::smem_address(smem), q = base + C::Q_AT + (uint32_t)(warp >> 2) * 64 * 128;
        __syncthreads(); /* the segment before is stored */
        ring<C> ring(p, base, lane, warp);
        ring.start(s, 0);
        if (threadIdx.x == 0) ctl.lowest = INT32_MAX;
        __syncthreads();
        load_queries<C, D>(p, s, (uint16_t *)(smem + C::Q_AT), ctl, warp, lane);
        ptx::fence_async();
        __syncthreads();
        rows16<C> rows;
        rows.start(ctl, warp * 16 + (lane >> 2));
        const int lowest = ctl.lowest;
        for (int tile = 0; tile < ring.n_tiles; tile++) {
            float x[8][4];
            scores(x, q, ring.take(0));
            const int key0 = (int)s.first * KVD_PAGE_TOKENS + tile * C::TK;
            rows.softmax(x, key0, key0 + C::TK > lowest, lane & 3);
            const uint32_t v = ring.take(0);
            if (key0 + C::TK > (int)s.keys) ring.clear_values(v, (int)s.keys - key0, 0);
            values(rows.o, x, v);
        }
        ptx::copy_wait<0>();
        merge_rows<C, D>(rows, ctl, (float *)smem, warp * 16);
        store_rows<C, D>(p, s, ctl, (const float *)smem, whole, to);
    }
};

template <int D, int WG>
__global__ void __launch_bounds__(128 * WG, (block_form<D, WG>::PER_SM))
    attention_block(const __grid_constant__ params p) {
    extern __shared__ uint8_t smem[];
    walk_share<block_kernel<D, WG>>(p, (uint8_t *)(((uintptr_t)smem + 1023) & ~(uintptr_t)1023));
}

template <int D, int WG> instance make_block() {
    using C = block_form<D, WG>;
    static_assert(fits<C>(), "fewer CTAs a multiprocessor than planned");
    return { (const void *)attention_block<D, WG>, C::SMEM, C::RB, C::PER_SM, 128 * WG };
}

} /* namespace attn */

#endif
