/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast the CUDA ops are, against what the same memory gives in the same run.
 *
 * Every figure is the median over samples of the mean of the launches of a replayed CUDA Graph, between events, on
 * working sets of several times the L2. Bytes of attention are the stored bytes of the keys read (codes and scales),
 * bytes of append those read and written. Prints "BENCH name value unit" lines.
 *
 * usage: bench_ops_cuda [NAME...]     only benches whose group (decode, verify, window, shared, prefill, append) is
 *        named
 *        bench_ops_cuda --steady    decodes without end: what bench_moves runs beside moves
 * With KVD_BENCH_ONCE set every kernel is launched twice and no figure is meant: for profilers.
 */
#include <time.h>

#include <algorithm>
#include <functional>
#include <string>

#include "gpu_fixture.h"

static std::vector<std::string> wanted;

static bool selected(const char *group) {
    for (const std::string &w : wanted)
        if (w == group) return true;
    return wanted.empty();
}

static void line(const std::string &name, double value, const char *unit) {
    printf("BENCH %s %.4g %s\n", name.c_str(), value, unit);
    fflush(stdout);
}

/* ---- timing ------------------------------------------------------------------------------------ */

/* Microseconds of one call. The call is given a stream; calls are captured into a graph, so that the host's share of a
 * launch is not measured. */
static double time_us(const std::function<void(cudaStream_t)> &call, int samples = 7) {
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    call(stream), call(stream);
    CUDA_OK(cudaStreamSynchronize(stream));
    cudaEvent_t begin, end;
    CUDA_OK(cudaEventCreate(&begin));
    CUDA_OK(cudaEventCreate(&end));
    std::vector<double> us;
    int launches = 4;
    for (int turn = 0; turn < 2 && !getenv("KVD_BENCH_ONCE"); turn++) { /* first to learn how many launches fill 4 ms */
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int j = 0; j < launches; j++) call(stream);
        CUDA_OK(cudaStreamEndCapture(stream, &graph));
        CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
        us.clear();
        for (int i = 0; i < 2 + samples; i++) {
            CUDA_OK(cudaEventRecord(begin, stream));
            CUDA_OK(cudaGraphLaunch(exec, stream));
            CUDA_OK(cudaEventRecord(end, stream));
            CUDA_OK(cudaEventSynchronize(end));
            float ms = 0;
            CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
            if (i >= 2) us.push_back(1e3 * ms / launches);
        }
        std::sort(us.begin(), us.end());
        launches = std::min(100, std::max(2, (int)(4000 / us[us.size() / 2])));
        CUDA_OK(cudaGraphExecDestroy(exec));
        CUDA_OK(cudaGraphDestroy(graph));
    }
    CUDA_OK(cudaEventDestroy(begin));
    CUDA_OK(cudaEventDestroy(end));
    CUDA_OK(cudaStreamDestroy(stream));
    return us.empty() ? 1 : us[us.size() / 2];
}

/* ---- plain reading and copying: the denominators --------------------------------------------------- */

__global__ void __launch_bounds__(512) read_all(const uint4 *from, size_t n, uint32_t *sink) {
    uint32_t x = 0;
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(from + i + j * stride);
#pragma unroll
        for (int j = 0; j < 8; j++) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += stride) x ^= from[i].x;
    if (x == 0x12345678) *sink = x;
}

/* GB/s of reading `bytes` plainly, one of `copies` after the other; the best of a few grid sizes. */
static double read_rate(const uint8_t *at, size_t bytes, uint32_t copies) {
    device_array<uint32_t> sink(1);
    double best = 0;
    for (int ctas : { 2, 3, 4 }) {
        uint32_t turn = 0;
        const double us = time_us([&](cudaStream_t stream) {
            read_all<<<132 * ctas, 512, 0, stream>>>((const uint4 *)(at + bytes * (turn++ % copies)), bytes / 16,
                                                     sink.at);
        });
        best = std::max(best, (double)bytes / us / 1e3);
    }
    CUDA_OK(cudaGetLastError());
    return best;
}

/* ---- a filled pool ----------------------------------------------------------------------------------- */

__global__ void random_bf16(uint16_t *at, size_t n, uint32_t salt) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull + salt;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z ^= z >> 27;
        const float f = (float)((int32_t)(uint32_t)z) * 0x1p-31f;
        at[i] = (uint16_t)(__float_as_uint(f) >> 16);
    }
}

struct shape {
    uint32_t b, q_heads, heads, d, context;
    std::string name() const {
        char t[80];
        snprintf(t, sizeof t, "b%u_q%u_h%u_d%u_c%u", b, q_heads, heads, d, context);
        return t;
    }
};

/* Sequences are kept in so many copies that launches which take them in turn find nothing of them in the L2. */
static uint32_t copies_of(const shape &s, int storage) {
    const double token = storage == KVD_STORAGE_BF16 ? 4.0 : 2.0; /* bytes an element of K and V, about */
    const double bytes = token * s.d * s.heads * s.context * s.b;
    return (uint32_t)std::min(16.0, std::max(1.0, 4e9 / bytes));
}

/* One layer of KV for a shape, its tables, and the inputs of attention launches. */
struct bench_pool {
    shape s;
    int storage;
    uint32_t copies, logical, pages, hint = 0; /* hint: shared_prefix of the op */
    geom_pool_spec spec;
    device_array<uint8_t> region;
    device_array<int32_t> tables, positions, rows;
    device_array<uint16_t> q, out;
    device_array<uint8_t> workspace;

    bench_pool(const shape &sh, int st, geom_arrangement arrangement, bool shuffle)
        : s(sh), storage(st), copies(copies_of(sh, st)), logical((sh.context + 63) / 64),
          pages(logical * sh.b * copies), spec(pool_spec(st, GEOM_PAGE_MAJOR, arrangement, 1, sh.heads, sh.d)),
          region(geom_region_bytes(&spec, pages)) {
        rng r = { 99 };
        std::vector<int32_t> ids = shuffled(pages, r), row_ids(s.b);
        if (!shuffle) std::sort(ids.begin(), ids.end());
        for (uint32_t i = 0; i < s.b; i++) row_ids[i] = (int32_t)i;
        tables.put(ids), rows.put(row_ids);
        fill();
    }
    PagedKVBatchLayerView view(uint32_t copy) {
        PagedKVBatchLayerView v = layer_view(spec, pages, 0, region.at);
        v.block_tables = tables.at + (size_t)copy * s.b * logical, v.n_logical = logical, v.n_rows = s.b;
        return v;
    }
    /* Through append, so that every code and scale is one that occurs. */
    void fill() {
        const uint32_t chunk = 8192;
        device_array<uint16_t> kv((size_t)chunk * s.heads * s.d);
        random_bf16<<<1024, 256>>>(kv.at, kv.n, 7);
        for (uint32_t b = 0; b < s.b * copies; b++)
            for (uint32_t t = 0; t < s.context; t += chunk) {
                std::vector<int32_t> at(std::min(chunk, s.context - t));
                for (size_t i = 0; i < at.size(); i++) at[i] = (int32_t)(t + i);
                positions.put(at);
                kvd_ops_append op = {};
                op.view = view(b / s.b), op.k = kv.at, op.v = kv.at, op.positions = positions.at;
                op.table_rows = rows.at + b % s.b;
                op.w = (uint32_t)at.size(), op.b = 1;
                char err[300];
                if (kvd_ops_append_cuda(&op, nullptr, err, sizeof err) != 0)
                    fprintf(stderr, "append: %s\n", err), exit(2);
                CUDA_OK(cudaDeviceSynchronize());
            }
    }
    /* The last w columns of every sequence ask. */
    kvd_ops_attention queries(uint32_t w) {
        std::vector<int32_t> at;
        for (uint32_t b = 0; b < s.b; b++)
            for (uint32_t i = 0; i < w; i++) at.push_back((int32_t)(s.context - w + i));
        positions.put(at);
        q.alloc((size_t)s.d * s.q_heads * w * s.b), out.alloc(q.n);
        random_bf16<<<1024, 256>>>(q.at, q.n, 3);
        kvd_ops_attention op = {};
        op.view = view(0), op.q = q.at, op.out = out.at, op.positions = positions.at, op.table_rows = rows.at;
        op.n_q_heads = s.q_heads, op.w = w, op.b = s.b, op.causal = 1, op.scale = 1.0f / sqrtf((float)s.d);
        op.shared_prefix = hint;
        workspace.alloc(kvd_ops_attention_workspace(&op, s.context));
        return op;
    }
    double attention_us(uint32_t w) {
        kvd_ops_attention op = queries(w);
        char err[300];
        uint32_t turn = 0;
        return time_us([&](cudaStream_t stream) {
            op.view = view(turn++ % copies);
            if (kvd_ops_attention_cuda(&op, s.context, workspace.at, workspace.n, stream, err, sizeof err) != 0)
                fprintf(stderr, "attention: %s\n", err), exit(2);
        });
    }
    /* Windows that end at other places of the sequences each launch, so that none of them is in the L2. */
    double window_us(uint32_t window) {
        const uint32_t turns = std::min(64u, (s.context - window) / 193);
        kvd_ops_attention op = queries(1);
        std::vector<int32_t> at;
        for (uint32_t i = 0; i < turns; i++) at.insert(at.end(), s.b, (int32_t)(s.context - 1 - 193 * i));
        positions.put(at);
        op.window = window;
        workspace.alloc(kvd_ops_attention_workspace(&op, s.context));
        char err[300];
        uint32_t turn = 0;
        return time_us([&](cudaStream_t stream) {
            op.view = view(turn % copies), op.positions = positions.at + (size_t)(turn++ % turns) * s.b;
            if (kvd_ops_attention_cuda(&op, s.context, workspace.at, workspace.n, stream, err, sizeof err) != 0)
                fprintf(stderr, "attention: %s\n", err), exit(2);
        });
    }
    double stored_bytes() const { return (double)geom_page_bytes(&spec) / 64 * s.context * s.b; }
};

/* Stored bytes of BF16: 0.27, 0.54, 0.54, 2.1 and 0.54 GB; the last is for the quantized profiles, whose bytes are
 * fewer. */
static const shape decode_shapes[] = {
    { 1, 16, 2, 256, 131072 }, { 8, 16, 2, 256, 32768 },  { 32, 16, 2, 256, 8192 },
    { 64, 32, 8, 128, 8192 },  { 1, 32, 8, 128, 131072 }, { 32, 16, 2, 256, 32768 }
};

/* ---- benches ------------------------------------------------------------------------------------------ */

static void decode_one(const shape &s, int storage, geom_arrangement arrangement, bool shuffle, double plain) {
    bench_pool pool(s, storage, arrangement, shuffle);
    const double us = pool.attention_us(1), rate = pool.stored_bytes() / us / 1e3;
    const std::string name = std::string("decode.") + storage_names[storage] + "." + s.name() +
                             (arrangement == GEOM_RECORD ? ".record" : ".dense") +
                             (shuffle ? ".shuffled" : ".identity");
    line(name + ".us", us, "us");
    line(name + ".rate", rate, "GB/s");
    line(name + ".of_read", rate / plain, "x");
}

static void decode() {
    for (const shape &s : decode_shapes) {
        double plain;
        {
            bench_pool pool(s, KVD_STORAGE_BF16, GEOM_DENSE, true);
            plain = read_rate(pool.region.at, (size_t)pool.stored_bytes(), pool.copies);
            line("read." + s.name(), plain, "GB/s");
        }
        decode_one(s, KVD_STORAGE_BF16, GEOM_DENSE, true, plain);
        if (&s != &decode_shapes[5]) {
            decode_one(s, KVD_STORAGE_BF16, GEOM_DENSE, false, plain);
            decode_one(s, KVD_STORAGE_BF16, GEOM_RECORD, true, plain);
        }
        for (int storage = KVD_STORAGE_INT8; storage < N_PROFILES; storage++)
            decode_one(s, storage, GEOM_DENSE, true, plain);
        if (s.b == 8)
            for (int storage = KVD_STORAGE_INT8; storage < N_PROFILES; storage++)
                decode_one(s, storage, GEOM_RECORD, true, plain);
    }
}

static void verify() {
    for (const shape &s : { decode_shapes[2], decode_shapes[3], decode_shapes[1] })
        for (int storage = 0; storage < N_PROFILES; storage++) {
            bench_pool pool(s, storage, GEOM_DENSE, true);
            const double one = pool.attention_us(1), eight = pool.attention_us(8);
            const std::string name = std::string("verify8.") + storage_names[storage] + "." + s.name();
            line(name + ".us", eight, "us");
            line(name + ".of_decode", eight / one, "x");
        }
}

/* A window of 128 tokens at a long context, over a context of 128 tokens. */
static void window() {
    for (const shape &s :
         { shape{ 32, 32, 8, 128, 32768 }, shape{ 32, 64, 8, 64, 32768 }, shape{ 8, 16, 2, 256, 32768 } }) {
        shape small = s;
        small.context = 128;
        double us[2];
        {
            bench_pool pool(small, KVD_STORAGE_BF16, GEOM_DENSE, true);
            us[0] = pool.attention_us(1);
        }
        {
            bench_pool pool(s, KVD_STORAGE_BF16, GEOM_DENSE, true);
            us[1] = pool.window_us(128);
        }
        line("window128.bf16." + small.name() + ".us", us[0], "us");
        line("window128.bf16." + s.name() + ".us", us[1], "us");
        line("window128.bf16." + s.name() + ".of_short", us[1] / us[0], "x");
    }
}

/* Decode of forks of one prompt that have 512 tokens of their own: each with pages apart, all with the same ones, and
 * the same with the hint that they are (cascade). */
static void shared() {
    const uint32_t prefix = 32768;
    for (const shape &s : { shape{ 32, 16, 2, 256, prefix + 512 }, shape{ 32, 32, 8, 128, prefix + 512 } })
        for (int storage = 0; storage < (s.d == 256 ? N_PROFILES : 1); storage++) {
            bench_pool pool(s, storage, GEOM_DENSE, true);
            const std::string name = std::string("shared32768.") + storage_names[storage] + "." + s.name();
            const double apart = pool.attention_us(1);
            std::vector<int32_t> tables = pool.tables.get();
            for (uint32_t row = 0; row < s.b * pool.copies; row++)
                std::copy_n(tables.begin() + row / s.b * s.b * pool.logical, prefix / 64,
                            tables.begin() + row * pool.logical);
            pool.tables.put(tables);
            const double same = pool.attention_us(1);
            pool.hint = prefix;
            const double once = pool.attention_us(1);
            line(name + ".apart.us", apart, "us");
            line(name + ".same_pages.us", same, "us");
            line(name + ".hint.us", once, "us");
            line(name + ".apart_over_hint", apart / once, "x");
        }
}

static void prefill_one(bench_pool &pool, uint32_t w) {
    const shape &s = pool.s;
    const double us = pool.attention_us(w), keys = s.context - w / 2;
    const std::string name = "prefill" + std::to_string(w) + "." + storage_names[pool.storage] + "." + s.name();
    line(name + ".us", us, "us");
    line(name + ".tflops", 4.0 * w * keys * s.q_heads * s.d / us / 1e6, "TFLOP/s");
}

static void prefill() {
    const shape shapes[] = { { 1, 16, 2, 256, 32768 }, { 1, 32, 8, 128, 32768 }, { 1, 64, 8, 64, 32768 } };
    for (const shape &s : shapes)
        for (int storage = 0; storage < N_PROFILES; storage++) {
            bench_pool pool(s, storage, GEOM_DENSE, true);
            for (const uint32_t w : { 512u, 2048u, 8192u })
                if (storage == KVD_STORAGE_BF16 || w == 2048) prefill_one(pool, w);
        }
    for (const shape &s : { shape{ 1, 16, 2, 256, 4096 }, shape{ 1, 32, 8, 128, 4096 } }) { /* all of a prompt */
        bench_pool pool(s, KVD_STORAGE_BF16, GEOM_DENSE, true);
        prefill_one(pool, 4096);
    }
}

__global__ void __launch_bounds__(512) copy_all(const uint4 *from, uint4 *to, size_t n) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = from[i + j * stride];
#pragma unroll
        for (int j = 0; j < 4; j++) to[i + j * stride] = v[j];
    }
    for (; i < n; i += stride) to[i] = from[i];
}

/* GB/s read and written of copying `bytes`, over as many buffers in turn as pass the L2 several times. */
static double copy_rate(size_t bytes) {
    const size_t n = bytes / 16, turns = bytes > ((size_t)1 << 28) ? 1 : ((size_t)1 << 29) / bytes + 1;
    device_array<uint4> a(n * turns), b(n * turns);
    double best = 0;
    for (int ctas : { 2, 4 }) {
        size_t turn = 0;
        const double us = time_us([&](cudaStream_t stream) {
            copy_all<<<132 * ctas, 512, 0, stream>>>(a.at + turn * n, b.at + turn * n, n);
            turn = (turn + 1) % turns;
        });
        best = std::max(best, 2.0 * (double)bytes / us / 1e3);
    }
    CUDA_OK(cudaGetLastError());
    return best;
}

/* 4096 columns of one sequence at 4 kv heads, at positions that cross pages. The inputs and the pages rotate over
 * several copies, so that nothing is read from or left in the L2. */
static void append() {
    const uint32_t rows = 4096, copies = 16;
    line("copy.1GiB", copy_rate((size_t)1 << 30), "GB/s");
    for (int storage = 0; storage < N_PROFILES; storage++) {
        const shape s = { copies, 4, 4, 256, rows + 64 };
        bench_pool pool(s, storage, GEOM_DENSE, true);
        device_array<uint16_t> kv((size_t)copies * 2 * rows * s.heads * s.d);
        random_bf16<<<1024, 256>>>(kv.at, kv.n, 5);
        std::vector<int32_t> at(rows);
        for (uint32_t i = 0; i < rows; i++) at[i] = (int32_t)(i + 37);
        pool.positions.put(at);
        uint32_t turn = 0;
        const double us = time_us([&](cudaStream_t stream) {
            const uint16_t *k = kv.at + (size_t)(turn % copies) * 2 * rows * s.heads * s.d;
            kvd_ops_append op = {};
            op.view = pool.view(0), op.k = k, op.v = k + (size_t)rows * s.heads * s.d, op.positions = pool.positions.at;
            op.table_rows = pool.rows.at + turn % copies, op.w = rows, op.b = 1;
            char err[300];
            if (kvd_ops_append_cuda(&op, stream, err, sizeof err) != 0) fprintf(stderr, "append: %s\n", err), exit(2);
            turn++;
        });
        const double stored = (double)geom_page_bytes(&pool.spec) / 64 * rows, read = 4.0 * rows * s.heads * s.d;
        const double same = copy_rate((size_t)((stored + read) / 2) / 16 * 16);
        const std::string name = std::string("append4096.") + storage_names[storage];
        line(name + ".us", us, "us");
        line(name + ".stored", stored / us / 1e3, "GB/s");
        line(name + ".moved", (stored + read) / us / 1e3, "GB/s");
        line(name + ".of_copy_same_bytes", (stored + read) / us / 1e3 / same, "x");
    }
}

/* A worker that decodes without end, for benches of what runs beside it: prints the time (CLOCK_MONOTONIC, seconds) and
 * the microseconds of a step, a line for every 16 steps. */
static int steady() {
    const shape s = decode_shapes[1];
    bench_pool pool(s, KVD_STORAGE_BF16, GEOM_RECORD, true);
    kvd_ops_attention op = pool.queries(1);
    char err[300];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    CUDA_OK(cudaStreamCreate(&stream));
    CUDA_OK(cudaEventCreate(&begin));
    CUDA_OK(cudaEventCreate(&end));
    for (uint32_t i = 0; i < 17; i++) { /* the first one outside the graph */
        if (i == 1) CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        op.view = pool.view(i % pool.copies);
        if (kvd_ops_attention_cuda(&op, s.context, pool.workspace.at, pool.workspace.n, stream, err, sizeof err) != 0)
            return fprintf(stderr, "attention: %s\n", err), 2;
    }
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (;;) {
        struct timespec now;
        float ms = 0;
        CUDA_OK(cudaEventRecord(begin, stream));
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaEventRecord(end, stream));
        CUDA_OK(cudaEventSynchronize(end));
        CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
        clock_gettime(CLOCK_MONOTONIC, &now);
        printf("\n%.6f %.3f", (double)now.tv_sec + (double)now.tv_nsec * 1e-9, 1e3 * ms / 16);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--steady") == 0) return steady();
    for (int i = 1; i < argc; i++) wanted.push_back(argv[i]);
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no GPU here: skipped\n");
        return 77;
    }
    if (selected("append")) append();
    if (selected("decode")) decode();
    if (selected("verify")) verify();
    if (selected("window")) window();
    if (selected("shared")) shared();
    if (selected("prefill")) prefill();
    return 0;
}
