/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA ops against the C reference: append byte for byte over the whole region (GEOM-9, so that every guard byte is
 * compared too), attention against the FP64 oracle within VIEW-6, page-id independence (VIEW-5, INV-15) to the bit, and
 * CUDA Graph replay with other tables, rows, positions and lengths.
 *
 * usage: test_ops_cuda [--small] [--seed N] [NAME...]      --small: sizes for compute-sanitizer
 * Prints PASS or FAIL a case; exit status 1 when a case failed, 77 without a GPU.
 */
#include <math.h>

#include <atomic>
#include <string>
#include <thread>

#include "gpu_fixture.h"

static bool small_sizes;
static uint64_t seed = 20240607;
static int failures;
static std::vector<std::string> wanted;

static bool selected(const std::string &name) {
    for (const std::string &w : wanted)
        if (name.find(w) == std::string::npos) return false;
    return true;
}

static void report(bool ok, const std::string &name, const std::string &note) {
    printf("%s %s%s%s\n", ok ? "PASS" : "FAIL", name.c_str(), note.empty() ? "" : "  ", note.c_str());
    fflush(stdout);
    failures += !ok;
}

static std::string format(const char *f, double a, double b) {
    char text[160];
    snprintf(text, sizeof text, f, a, b);
    return text;
}

/* ---- a pool on both sides --------------------------------------------------------------------- */

struct world {
    geom_pool_spec spec;
    uint32_t pages, layer, n_logical, n_rows;
    std::vector<uint8_t> host; /* the region */
    device_array<uint8_t> device;
    std::vector<int32_t> tables;
    device_array<int32_t> device_tables;

    world(const geom_pool_spec &s, uint32_t n_pages, uint32_t logical, uint32_t rows, uint8_t fill)
        : spec(s), pages(n_pages), layer(s.n_layers - 1), n_logical(logical), n_rows(rows),
          host(geom_region_bytes(&s, n_pages), fill), tables((size_t)logical * rows, -1) {
        device.put(host);
    }
    void upload() {
        device.put(host);
        device_tables.put(tables);
    }
    PagedKVBatchLayerView view(bool on_device) {
        PagedKVBatchLayerView v = layer_view(spec, pages, layer, on_device ? (void *)device.at : (void *)host.data());
        v.block_tables = on_device ? device_tables.at : tables.data();
        v.n_logical = n_logical, v.n_rows = n_rows;
        return v;
    }
    /* Gives row `row` pages for `tokens` tokens from the list of free ids. */
    void map(uint32_t row, uint32_t tokens, std::vector<int32_t> &free_ids) {
        for (uint32_t i = 0; i < (tokens + 63) / 64; i++) {
            tables[(size_t)row * n_logical + i] = free_ids.back();
            free_ids.pop_back();
        }
    }
};

/* ---- append -------------------------------------------------------------------------------------- */

/* Values that find the corners of the codecs among ordinary ones. */
static uint16_t odd_value(rng &r) {
    static const float ties[] = { 6.0f,    0.25f,   0.75f, 1.25f,  1.75f,     2.5f,  3.5f,  5.0f, 6.375f,
                                  3072.0f, 2688.0f, 0.0f,  -0.0f,  1e-6f,     1e-8f, 3e-6f, 5e7f, 8.4e6f,
                                  448.0f,  127.0f,  1e-3f, -0.25f, 0x1p-130f, 3e38f, -1.0f };
    static const uint16_t bits[] = { 0x7f80, 0xff80, 0x7fc1, 0xffff, 0x7f81, 0x8000, 0x0001 };
    const uint32_t kind = r.below(24);
    if (kind == 0) return bits[r.below(sizeof bits / sizeof *bits)];
    return ops_f32_to_bf16(ties[r.below(sizeof ties / sizeof *ties)]);
}

static std::vector<uint16_t> append_input(size_t rows, uint32_t d, rng &r) {
    std::vector<uint16_t> x(rows * d);
    for (size_t i = 0; i < rows; i++) {
        const uint32_t kind = r.below(8);
        const float size = kind == 1 ? 0x1p-20f : kind == 2 ? 1000.0f : kind == 3 ? 1e30f : 1.0f;
        for (uint32_t j = 0; j < d; j++) {
            const bool odd = kind == 4 || (kind == 5 && r.below(40) == 0);
            x[i * d + j] = kind == 6 ? (j & 1 ? 0x8000 : 0) : odd ? odd_value(r) : ops_f32_to_bf16(r.uniform(size));
        }
    }
    return x;
}

struct append_case {
    int storage;
    geom_order order;
    geom_arrangement arrangement;
    uint32_t heads, d, w, b;
    bool ragged;
    uint32_t dv = 0; /* of V, if it is not d */
};

static void run_append(const append_case &c) {
    char name[160];
    snprintf(name, sizeof name, "append/%s/%s/%s/h%u-d%u-w%u-b%u%s", storage_names[c.storage],
             c.order == GEOM_PAGE_MAJOR ? "page" : "head", c.arrangement == GEOM_DENSE ? "dense" : "record", c.heads,
             c.d, c.w, c.b, c.ragged ? "-ragged" : "");
    if (c.dv != 0) snprintf(name + strlen(name), sizeof name - strlen(name), "-dv%u", c.dv);
    if (!selected(name)) return;
    rng r = { seed ^ (c.w * 131 + c.b * 7 + c.d) };
    const uint32_t logical = c.w / 64 + 4, rows = c.b + 2, pages = logical * c.b + 5;
    world x(pool_spec(c.storage, c.order, c.arrangement, 2, c.heads, c.d, c.dv), pages, logical, rows, 0xA5);
    std::vector<int32_t> free_ids = shuffled(pages, r), positions(c.w * c.b), valid(c.b), table_rows(c.b);
    static const int32_t starts[] = { 0, 1, 31, 32, 63, 64, 65, 127, 128 };
    for (uint32_t b = 0; b < c.b; b++) {
        const int32_t start = starts[r.below(9)];
        table_rows[b] = (int32_t)(rows - 1 - b);
        valid[b] = c.ragged ? (b == 0 ? 0 : (int32_t)r.below(c.w + 1)) : (int32_t)c.w;
        for (uint32_t w = 0; w < c.w; w++) positions[b * c.w + w] = start + (int32_t)w;
        x.map((uint32_t)table_rows[b], (uint32_t)start + c.w, free_ids);
    }
    x.upload();
    const std::vector<uint16_t> k = append_input((size_t)c.w * c.b * c.heads, c.d, r);
    const std::vector<uint16_t> v = append_input((size_t)c.w * c.b * c.heads, c.dv ? c.dv : c.d, r);
    device_array<uint16_t> dk, dv;
    device_array<int32_t> dp, dl, dr;
    dk.put(k), dv.put(v), dp.put(positions), dl.put(valid), dr.put(table_rows);
    kvd_ops_append op = {};
    op.view = x.view(false), op.k = k.data(), op.v = v.data(), op.positions = positions.data();
    op.valid = c.ragged ? valid.data() : nullptr, op.table_rows = table_rows.data(), op.w = c.w, op.b = c.b;
    char err[300] = "";
    bool ok = kvd_ops_append_host(&op, err, sizeof err) == 0;
    op.view = x.view(true), op.k = dk.at, op.v = dv.at, op.positions = dp.at;
    op.valid = c.ragged ? dl.at : nullptr, op.table_rows = dr.at;
    ok = ok && kvd_ops_append_cuda(&op, nullptr, err, sizeof err) == 0;
    CUDA_OK(cudaDeviceSynchronize());
    size_t different = 0;
    const std::vector<uint8_t> got = x.device.get();
    for (size_t i = 0; i < got.size(); i++) different += got[i] != x.host[i];
    report(ok && different == 0, name,
           different || !ok ? format("%.0f bytes of %.0f differ ", (double)different, (double)got.size()) + err : "");
}

static void append_cases() {
    for (int s = 0; s < N_PROFILES; s++)
        for (int a = 0; a < 2; a++) {
            run_append({ s, GEOM_PAGE_MAJOR, (geom_arrangement)a, 4, 256, 1, 3, false });
            run_append({ s, GEOM_PAGE_MAJOR, (geom_arrangement)a, 2, 256, 16, 3, true });
            run_append({ s, GEOM_PAGE_MAJOR, (geom_arrangement)a, 1, 256, 129, 1, false });
            if (!small_sizes) run_append({ s, GEOM_PAGE_MAJOR, (geom_arrangement)a, 4, 256, 1000, 1, true });
        }
    for (int s = KVD_STORAGE_INT8; s < N_PROFILES; s++) {
        for (uint32_t d : { 64u, 96u, 128u, 192u }) {
            run_append({ s, GEOM_HEAD_MAJOR, GEOM_RECORD, 3, d, 1, 3, false });
            run_append({ s, GEOM_PAGE_MAJOR, GEOM_DENSE, 5, d, 130, 1, true });
        }
        run_append({ s, GEOM_PAGE_MAJOR, GEOM_RECORD, 3, 192, 16, 3, true, 128 });
        run_append({ s, GEOM_PAGE_MAJOR, GEOM_DENSE, 3, 64, 16, 3, true, 256 });
    }
    run_append({ KVD_STORAGE_BF16, GEOM_PAGE_MAJOR, GEOM_RECORD, 3, 192, 16, 3, true, 128 });
    for (uint32_t d : { 64u, 128u, 256u, 72u, 20u }) {
        run_append({ KVD_STORAGE_BF16, GEOM_HEAD_MAJOR, GEOM_DENSE, 8, d, 7, 4, true });
        run_append({ KVD_STORAGE_BF16, GEOM_HEAD_MAJOR, GEOM_RECORD, 8, d, 5, 2, false });
    }
}

/* An unmapped block and a position outside the table are skipped, and nothing else is touched (ROW-6). */
static void append_unmapped() {
    const char *name = "append/unmapped-is-skipped";
    if (!selected(name)) return;
    rng r = { seed };
    for (int s = 0; s < N_PROFILES; s++) {
        world x(pool_spec(s, GEOM_PAGE_MAJOR, GEOM_DENSE, 1, 2, 256), 3, 4, 2, 0x5A);
        x.tables[0] = 1;
        x.upload();
        const std::vector<uint16_t> k = append_input(4 * 2, 256, r);
        device_array<uint16_t> dk;
        device_array<int32_t> dp, dr;
        dk.put(k), dp.put({ 64, 256, -1, 70000 }), dr.put({ 0, 0, 0, 0 });
        x.n_rows = 4; /* the batch has four rows, the table of row 0 is the one in use */
        std::vector<int32_t> t(16, -1);
        t[0] = 1, x.tables = t;
        x.upload();
        kvd_ops_append op = {};
        op.view = x.view(true), op.k = dk.at, op.v = dk.at, op.positions = dp.at, op.table_rows = dr.at, op.w = 1,
        op.b = 4;
        char err[300] = "";
        const bool ok = kvd_ops_append_cuda(&op, nullptr, err, sizeof err) == 0;
        CUDA_OK(cudaDeviceSynchronize());
        report(ok && x.device.get() == x.host, std::string(name) + "/" + storage_names[s], err);
    }
}

/* ---- attention ------------------------------------------------------------------------------------- */

static const double limits[] = { 2.8e-3, 3.15e-3, 1.2e-2, 1.5e-2, 1.5e-2 }; /* VIEW-6 */

struct attention_case {
    int storage;
    uint32_t q_heads, heads, d, w;
    std::vector<uint32_t> context; /* committed tokens before the block, one a sequence */
    std::vector<int32_t> valid;    /* empty: all */
    float peak;                    /* size of q: how uneven the weights are */
    geom_order order;
    geom_arrangement arrangement;
    bool causal;
    bool rising = false; /* values grow from page to page, keys shrink: scales of all sizes in one sequence */
    uint32_t window = 0;
    bool aligned = false, sinks = false;
    float soft_cap = 0;
    uint32_t dv = 0;     /* of V, if it is not d */
    uint32_t shared = 0; /* leading pages that all sequences have in common */
    uint32_t hint = 0;   /* shared_prefix of the op, tokens */

    uint32_t v_dim() const { return dv ? dv : d; }
};

/* All inputs of a case, on both sides. */
struct attention_run {
    attention_case c;
    world x;
    std::vector<int32_t> positions, valid, rows, context;
    std::vector<uint16_t> q, out;
    std::vector<float> sinks; /* one that takes most weight, one that takes next to none, others between */
    device_array<float> dsinks;
    device_array<int32_t> dp, dv, dr, dc;
    device_array<uint16_t> dq, dout;
    device_array<uint8_t> workspace;
    uint32_t b, most;

    static constexpr size_t GUARD = 64; /* elements around out */

    attention_run(const attention_case &cc, uint32_t logical, rng &r)
        : c(cc), x(pool_spec(cc.storage, cc.order, cc.arrangement, 2, cc.heads, cc.d, cc.dv),
                   logical * (uint32_t)cc.context.size() + 3, logical, (uint32_t)cc.context.size() + 3, 0xFF),
          b((uint32_t)cc.context.size()), most(0) {
        fill(r);
    }
    /* Fresh tables, rows, positions and contents; shapes stay (the same graph must serve). */
    void fill(rng &r) {
        std::vector<int32_t> free_ids = shuffled(x.pages, r), row_ids = shuffled(x.n_rows, r);
        std::fill(x.tables.begin(), x.tables.end(), -1);
        positions.assign((size_t)c.w * b, 0), valid = c.valid, rows.assign(b, 0), context.assign(b, 0);
        if (valid.empty()) valid.assign(b, (int32_t)c.w);
        for (uint32_t i = 0; i < b; i++) {
            rows[i] = row_ids[i], context[i] = (int32_t)c.context[i];
            for (uint32_t w = 0; w < c.w; w++) positions[i * c.w + w] = (int32_t)(c.context[i] + w);
            x.map((uint32_t)rows[i], c.context[i] + c.w, free_ids);
            most = c.context[i] + c.w > most ? c.context[i] + c.w : most;
        }
        share_pages();
        write_pages(r);
        q.resize((size_t)c.d * c.q_heads * c.w * b);
        for (uint16_t &e : q) e = ops_f32_to_bf16(r.uniform(c.peak));
        sinks.clear();
        for (uint32_t h = 0; c.sinks && h < c.q_heads; h++)
            sinks.push_back(h % 4 == 1 ? 12.0f : h % 4 == 2 ? -200.0f : r.uniform(6.0f));
        out.assign((size_t)c.v_dim() * c.q_heads * c.w * b, 0x7fc1);
        upload();
    }
    /* As far as the first sequence has pages. */
    void share_pages() {
        for (uint32_t i = 1; i < b; i++)
            for (uint32_t j = 0; j < c.shared; j++)
                if (const int32_t id = x.tables[(size_t)rows[0] * x.n_logical + j]; id >= 0)
                    x.tables[(size_t)rows[i] * x.n_logical + j] = id;
    }
    /* Keys within +-0.25, values within +-1, up to the last valid column; what lies after stays NaN or garbage. */
    void write_pages(rng &r) {
        std::fill(x.host.begin(), x.host.end(), 0xFF);
        for (uint32_t i = 0; i < b; i++) {
            const uint32_t n = c.context[i] + (uint32_t)valid[i];
            std::vector<uint16_t> k((size_t)n * c.heads * c.d), v((size_t)n * c.heads * c.v_dim());
            for (size_t e = 0; e < k.size(); e++) {
                const int page = c.rising ? (int)(e / c.d / c.heads / 64) : 0;
                k[e] = ops_f32_to_bf16(r.uniform(ldexpf(0.25f, -(page % 5))));
            }
            for (size_t e = 0; e < v.size(); e++) {
                const int page = c.rising ? (int)(e / c.v_dim() / c.heads / 64) : 0;
                v[e] = ops_f32_to_bf16(r.uniform(ldexpf(1.0f, c.rising ? 2 * (page % 12) - 14 : 0)));
            }
            std::vector<int32_t> at(n);
            for (uint32_t e = 0; e < n; e++) at[e] = (int32_t)e;
            kvd_ops_append op = {};
            op.view = x.view(false), op.k = k.data(), op.v = v.data(), op.positions = at.data();
            op.table_rows = &rows[i], op.w = n, op.b = 1;
            char err[300];
            if (n > 0 && kvd_ops_append_host(&op, err, sizeof err) != 0) {
                fprintf(stderr, "filling pages: %s\n", err);
                exit(2);
            }
        }
    }
    /* Blocks that are wholly behind the windows of a sequence leave its row. */
    void forget_passed() {
        for (uint32_t i = 0; c.window && i < b; i++) {
            const uint32_t at = c.context[i], first = c.aligned           ? at - at % c.window
                                                      : at + 1 > c.window ? at + 1 - c.window
                                                                          : 0;
            std::fill_n(x.tables.begin() + (size_t)rows[i] * x.n_logical, first / 64, -1);
        }
    }
    void upload() {
        forget_passed();
        x.upload();
        dsinks.put(sinks);
        dp.put(positions), dv.put(valid), dr.put(rows), dc.put(context), dq.put(q);
        std::vector<uint16_t> guarded(out.size() + 2 * GUARD, 0x7fc1);
        dout.put(guarded);
    }
    kvd_ops_attention op(bool on_device) {
        kvd_ops_attention o = {};
        o.view = x.view(on_device);
        o.q = on_device ? dq.at : q.data(), o.out = on_device ? dout.at + GUARD : out.data();
        o.positions = on_device ? dp.at : positions.data();
        o.valid = c.valid.empty() ? nullptr : on_device ? dv.at : valid.data();
        o.table_rows = on_device ? dr.at : rows.data(), o.context = on_device ? dc.at : context.data();
        o.n_q_heads = c.q_heads, o.w = c.w, o.b = b, o.causal = c.causal, o.scale = 1.0f / sqrtf((float)c.d);
        o.window = c.window, o.aligned = c.aligned, o.soft_cap = c.soft_cap;
        o.sinks = !c.sinks ? nullptr : on_device ? dsinks.at : sinks.data();
        o.shared_prefix = c.hint;
        return o;
    }
    bool launch(cudaStream_t stream, std::string &note, uint32_t envelope) {
        const kvd_ops_attention o = op(true);
        const size_t bytes = kvd_ops_attention_workspace(&o, envelope);
        if (workspace.n != bytes) {
            workspace.alloc(bytes);
            workspace.fill(0xFF);
        }
        char err[300] = "";
        const int rc = kvd_ops_attention_cuda(&o, envelope, workspace.at, bytes, stream, err, sizeof err);
        note = err;
        return rc == 0;
    }
    std::vector<uint16_t> result(bool *ret_guards) {
        CUDA_OK(cudaDeviceSynchronize());
        const std::vector<uint16_t> all = dout.get();
        *ret_guards = true;
        for (size_t i = 0; i < GUARD; i++)
            *ret_guards = *ret_guards && all[i] == 0x7fc1 && all[all.size() - 1 - i] == 0x7fc1;
        return std::vector<uint16_t>(all.begin() + GUARD, all.end() - GUARD);
    }
};

/* The oracle over all processors: every few columns of a sequence are an op of their own, with the same keys. */
static bool oracle(attention_run &a, std::string &note) {
    struct piece {
        uint32_t b, w, n;
    };
    std::vector<piece> pieces;
    for (uint32_t b = 0; b < a.b; b++)
        for (uint32_t w = 0; w < a.c.w; w += 4) pieces.push_back({ b, w, a.c.w - w < 4 ? a.c.w - w : 4 });
    std::atomic<size_t> next{ 0 };
    std::atomic<bool> ok{ true };
    const auto work = [&] {
        for (size_t i; (i = next++) < pieces.size();) {
            const piece x = pieces[i];
            const size_t at = ((size_t)x.b * a.c.w + x.w) * a.c.q_heads;
            const int32_t left = a.valid[x.b] - (int32_t)x.w, valid = left < 0              ? 0
                                                                      : left > (int32_t)x.n ? (int32_t)x.n
                                                                                            : left;
            const int32_t context = a.context[x.b] + a.valid[x.b] - valid; /* draft: all see [0, context + valid) */
            kvd_ops_attention o = a.op(false);
            o.q += at * a.c.d, o.out += at * a.c.v_dim(), o.positions += (size_t)x.b * a.c.w + x.w, o.table_rows += x.b;
            o.valid = &valid, o.context = &context, o.w = x.n, o.b = 1;
            char err[300] = "";
            if (kvd_ops_attention_oracle(&o, err, sizeof err) != 0 && ok.exchange(false))
                fprintf(stderr, "oracle: %s\n", err);
        }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); i++) threads.emplace_back(work);
    for (std::thread &t : threads) t.join();
    if (!ok) note += " the oracle refused";
    return ok;
}

/* Relative L2 over the whole output; negative where a column past valid is not exactly zero or a number is not finite.
 */
static double distance(const std::vector<uint16_t> &got, const std::vector<uint16_t> &want, const attention_run &a) {
    double num = 0, den = 0;
    const size_t column = (size_t)a.c.v_dim() * a.c.q_heads;
    for (size_t i = 0; i < got.size(); i++) {
        const size_t b = i / column / a.c.w, w = i / column % a.c.w;
        if ((int32_t)w >= a.valid[b]) {
            if (got[i] != 0) return -1;
            continue;
        }
        const double x = ops_bf16_to_f32(got[i]), y = ops_bf16_to_f32(want[i]);
        if (!isfinite(x)) return -2;
        num += (x - y) * (x - y), den += y * y;
    }
    return den > 0 ? sqrt(num / den) : num > 0 ? 1 : 0;
}

static std::string attention_name(const attention_case &c, const char *what) {
    char name[200], hint[40] = "";
    uint32_t most = 0;
    for (uint32_t n : c.context) most = n > most ? n : most;
    if (c.hint > 0) snprintf(hint, sizeof hint, "-shared%u-hint%u", c.shared, c.hint);
    snprintf(name, sizeof name, "attention/%s/%s%s/q%u-h%u-d%u-w%u-b%zu-c%u%s%s%s-p%g", what, storage_names[c.storage],
             c.causal ? "" : "/draft", c.q_heads, c.heads, c.d, c.w, c.context.size(), most,
             c.arrangement == GEOM_RECORD ? "-record" : "", c.valid.empty() ? "" : "-ragged", c.rising ? "-rising" : "",
             c.peak);
    std::string logits = hint;
    if (c.window) logits += (c.aligned ? "-chunk" : "-window") + std::to_string(c.window);
    if (c.dv) logits += "-dv" + std::to_string(c.dv);
    if (c.sinks) logits += "-sinks";
    if (c.soft_cap > 0) logits += "-cap";
    return name + logits;
}

static uint32_t logical_of(const attention_case &c) {
    uint32_t most = 0;
    for (uint32_t n : c.context) most = n > most ? n : most;
    return (most + c.w + 63) / 64 + 1;
}

/* VIEW-6 against the oracle; then the same sequences on other page ids and table rows must give the same bits. */
static void run_attention(const attention_case &c) {
    const std::string name = attention_name(c, "view-6");
    if (!selected(name)) return;
    rng r = { seed ^ (c.w * 977 + c.q_heads * 31 + c.context[0]) }, again = r;
    attention_run a(c, logical_of(c), r);
    std::string note, err;
    bool guards = false;
    bool ok = oracle(a, err) && a.launch(nullptr, note, a.most);
    const std::vector<uint16_t> got = a.result(&guards);
    const double d = distance(got, a.out, a);
    ok = ok && guards && d >= 0 && d <= limits[c.storage];
    /* Identity order instead of the shuffled one, the pool filled with other garbage. */
    std::vector<uint8_t> old = a.x.host;
    std::vector<int32_t> old_tables = a.x.tables;
    std::fill(a.x.tables.begin(), a.x.tables.end(), -1);
    std::vector<int32_t> identity;
    for (uint32_t i = a.x.pages; i > 0; i--) identity.push_back((int32_t)i - 1);
    for (uint32_t i = 0; i < a.b; i++) {
        a.rows[i] = (int32_t)i;
        a.x.map(i, c.context[i] + c.w, identity);
    }
    a.share_pages();
    rng contents = again;
    shuffled(a.x.pages, contents), shuffled(a.x.n_rows, contents); /* the draws before the contents */
    const std::vector<uint16_t> q = a.q;
    a.write_pages(contents);
    a.q = q;
    a.upload();
    ok = ok && a.launch(nullptr, note, a.most);
    bool guards2 = false;
    const bool same = a.result(&guards2) == got;
    report(ok && same && guards2, name,
           format("relative L2 %.2e of %.2e", d, limits[c.storage]) + (same ? "" : ", differs with other page ids") +
               (guards && guards2 ? "" : ", guard bytes changed") + note + err);
}

/* VIEW-5: a captured graph serves other tables, rows, positions, lengths and contents. */
static void run_graph(attention_case c, const std::vector<uint32_t> &other_context,
                      const std::vector<int32_t> &other_valid) {
    const std::string name = attention_name(c, "view-5-graph");
    if (!selected(name)) return;
    rng r = { seed + c.w };
    attention_case longest = c;
    for (size_t i = 0; i < c.context.size(); i++)
        longest.context[i] = c.context[i] > other_context[i] ? c.context[i] : other_context[i];
    const uint32_t envelope = logical_of(longest) * 64;
    attention_run a(c, logical_of(longest), r);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    std::string note;
    CUDA_OK(cudaStreamCreate(&stream));
    a.launch(stream, note, envelope); /* loads the kernels and sizes the workspace */
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    bool ok = a.launch(stream, note, envelope);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    double worst = 0;
    for (int turn = 0; turn < 3; turn++) {
        a.c.context = turn == 1 ? other_context : c.context;
        a.c.valid = turn == 1 ? other_valid : c.valid;
        a.fill(r);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        bool guards;
        const std::vector<uint16_t> got = a.result(&guards);
        ok = ok && guards && oracle(a, note);
        const double d = distance(got, a.out, a);
        worst = d < 0 ? d : worst < 0 ? worst : d > worst ? d : worst;
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaStreamDestroy(stream));
    report(ok && worst >= 0 && worst <= limits[c.storage], name,
           format("relative L2 %.2e of %.2e", worst, limits[c.storage]) + note);
}

static void attention_profile_cases(int s, uint32_t d) {
    const geom_order page = GEOM_PAGE_MAJOR;
    const auto one = [&](uint32_t q, uint32_t h, uint32_t w, std::vector<uint32_t> context, std::vector<int32_t> valid,
                         float peak, geom_arrangement a) {
        run_attention({ s, q, h, d, w, context, valid, peak, page, a, true });
    };
    one(8, 2, 1, { 0 }, {}, 1, GEOM_DENSE);                        /* the first token */
    one(16, 2, 1, { 17, 63, 64, 200 }, {}, 4, GEOM_RECORD);        /* decode, page edges */
    one(4, 4, 1, { 130, 5 }, { 1, 0 }, 8, GEOM_DENSE);             /* no grouping; an idle row */
    one(16, 1, 6, { 6, 61, 700 }, { 6, 0, 3 }, 2, GEOM_DENSE);     /* verify, ragged, 96 rows */
    one(16, 1, 1, { 40, 129 }, {}, 4, GEOM_DENSE);                 /* sixteen rows */
    one(10, 2, 2, { 63, 320 }, { 2, 1 }, 8, GEOM_RECORD);          /* group of five, ten rows, ragged */
    one(6, 2, 7, { 65, 17 }, {}, 16, GEOM_RECORD);                 /* group of three, 21 rows */
    one(8, 4, 16, { 1000, 128, 64 }, { 16, 1, 9 }, 8, GEOM_DENSE); /* 32 rows */
    if (s != KVD_STORAGE_BF16) { /* the powers of two that scales are brought to, in the line and in pieces */
        run_attention({ s, 16, 2, d, 7, { 700, 300 }, { 7, 5 }, 3, page, GEOM_DENSE, true, true });
        run_attention({ s, 8, 1, d, 9, { 800 }, {}, 3, page, GEOM_RECORD, true, true });
    }
    if (small_sizes) return;
    one(8, 2, 1, { 5000 }, {}, 1, GEOM_DENSE);  /* cut into many shares */
    one(8, 2, 1, { 5000 }, {}, 40, GEOM_DENSE); /* peaked weights */
    one(32, 8, 1, { 3000, 1, 64, 900, 0, 2047, 511, 4000 }, {}, 3, GEOM_DENSE);
    one(16, 1, 1, { 4000 }, {}, 6, GEOM_DENSE);      /* sixteen rows, cut */
    one(16, 2, 24, { 9000 }, { 21 }, 4, GEOM_DENSE); /* many pieces a pair */
    one(16, 2, 66, { 63 }, {}, 4, GEOM_DENSE);       /* prefill chunks */
    one(4, 2, 300, { 1000 }, { 250 }, 4, GEOM_RECORD);
    one(4, 1, 1500, { 0 }, {}, 4, GEOM_DENSE);
    one(24, 4, 65, { 900 }, {}, 2, GEOM_DENSE);
}

/* Windows (also aligned ones), sinks and soft caps, alone and together; what lies behind a window is not mapped. */
static void attention_logit_cases(int s, uint32_t d) {
    const auto one = [&](uint32_t q, uint32_t h, uint32_t w, std::vector<uint32_t> context, std::vector<int32_t> valid,
                         uint32_t window, bool aligned, bool sinks, float soft_cap) {
        run_attention({ s, q, h, d, w, context, valid, 8, GEOM_PAGE_MAJOR, GEOM_RECORD, true, false, window, aligned,
                        sinks, soft_cap });
    };
    one(16, 2, 1, { 17, 63, 64, 200, 1000 }, {}, 128, false, false, 0);
    one(8, 1, 1, { 700, 0, 64 }, { 1, 1, 0 }, 1, false, true, 0);         /* itself alone, and a sink */
    one(16, 2, 1, { 127, 128, 129, 700 }, {}, 128, true, true, 1);        /* chunks: their ends */
    one(16, 1, 6, { 6, 61, 700 }, { 6, 0, 3 }, 65, false, false, 2);      /* verify, 96 rows */
    one(10, 2, 2, { 63, 320 }, { 2, 1 }, 100000, false, true, 0);         /* a window that nothing leaves */
    one(8, 4, 16, { 1000, 128, 64 }, { 16, 1, 9 }, 70, true, true, 0.5f); /* 32 rows over the end of a chunk */
    one(16, 2, 7, { 700, 300 }, { 7, 5 }, 0, false, true, 3);
    if (small_sizes) return;
    one(8, 2, 1, { 5000 }, {}, 0, false, true, 3);    /* cut into many shares: a sink counts once */
    one(8, 2, 1, { 5000 }, {}, 3000, false, true, 0); /* the same behind a window */
    one(16, 2, 24, { 9000 }, { 21 }, 4000, true, true, 2);
    one(4, 2, 300, { 1000 }, { 250 }, 100, false, true, 2); /* prefill chunks, long and short windows */
    one(4, 1, 1500, { 0 }, {}, 333, false, false, 0);
    one(16, 2, 200, { 700 }, {}, 256, true, true, 0);
}

/* Shapes that only the plain form has. */
static void attention_plain_cases(int s, uint32_t d, uint32_t dv) {
    const auto one = [&](uint32_t q, uint32_t h, uint32_t w, std::vector<uint32_t> context, std::vector<int32_t> valid,
                         uint32_t window, bool sinks, float soft_cap, bool causal) {
        run_attention({ s, q, h, d, w, context, valid, 4, GEOM_PAGE_MAJOR, GEOM_RECORD, causal, false, window, false,
                        sinks, soft_cap, dv });
    };
    one(8, 2, 1, { 0, 17, 63, 64, 200 }, {}, 0, false, 0, true);
    one(6, 2, 7, { 65, 17, 300 }, { 7, 0, 3 }, 0, true, 2, true);
    one(16, 2, 3, { 300, 129 }, { 3, 2 }, 70, true, 0, true);
    one(4, 4, 9, { 130, 5 }, { 9, 1 }, 0, false, 0, false);
    if (!small_sizes) one(4, 2, 130, { 500 }, { 121 }, 0, false, 0, true);
}

/* A prefix that sequences share is read once for all: within VIEW-6 whether the hint is what they share, more, or less,
 * and whatever each has beyond it. */
static void shared_cases(int s, uint32_t d) {
    const auto one = [&](uint32_t q, uint32_t h, uint32_t w, std::vector<uint32_t> context, std::vector<int32_t> valid,
                         uint32_t shared, uint32_t hint, bool causal = true) {
        const float peak = 1024.0f / (float)d; /* weights that are uneven for few channels, too */
        attention_case c = { s, q, h, d, w, context, valid, peak, GEOM_PAGE_MAJOR, GEOM_DENSE, causal };
        c.shared = shared, c.hint = hint;
        c.sinks = w > 1, c.soft_cap = w > 2 ? 2 : 0; /* a sink counts once in the end */
        run_attention(c);
    };
    one(8, 2, 1, { 191, 192, 300 }, {}, 3, 192);                     /* nothing left, one key left, more */
    one(8, 2, 1, { 200, 700, 64, 350 }, { 1, 0, 1, 1 }, 1, 640);     /* an idle sequence; a hint that is too large */
    one(4, 2, 5, { 140, 500 }, { 5, 3 }, 2, 64);                     /* verify; a hint that is too small */
    one(16, 1, 2, { 256, 270, 380 }, { 2, 1, 2 }, 4, 100000, false); /* 96 rows, draft context */
    one(8, 2, 1, { 100, 100 }, {}, 0, 128);                          /* nothing in common */
    one(8, 2, 2, { 130, 130 }, { 0, 0 }, 2, 128);                    /* no sequence counts */
    if (small_sizes) return;
    one(16, 2, 1, std::vector<uint32_t>(33, 2200), {}, 34, 2176); /* blocks of rows of several sequences, many pieces */
    one(32, 8, 4, { 3000, 2100, 2111, 2049, 2500 }, { 4, 4, 1, 0, 2 }, 32, 2048);
    if (d != 64) return;
    std::vector<uint32_t> many(700); /* more entries than the line takes */
    for (uint32_t i = 0; i < many.size(); i++) many[i] = 128 + i % 70;
    one(4, 1, 1, many, {}, 2, 128);
}

static void attention_cases() {
    attention_profile_cases(KVD_STORAGE_BF16, 128);
    for (int s = 0; s < N_PROFILES; s++) attention_profile_cases(s, 256), shared_cases(s, 256);
    for (const uint32_t d : { 64u, 128u }) shared_cases(KVD_STORAGE_BF16, d);
    attention_profile_cases(KVD_STORAGE_BF16, 64);
    for (const uint32_t d : { 64u, 128u, 256u }) attention_logit_cases(KVD_STORAGE_BF16, d);
    for (int s = KVD_STORAGE_INT8; s < N_PROFILES; s++) {
        for (const uint32_t d : { 64u, 128u }) attention_profile_cases(s, d);
        for (const uint32_t d : { 64u, 128u, 256u }) attention_logit_cases(s, d);
    }
    for (int s = 0; s < N_PROFILES; s++) {
        attention_plain_cases(s, 96, 0);
        attention_plain_cases(s, 192, 128);
    }
    attention_plain_cases(KVD_STORAGE_BF16, 576, 512);
    attention_plain_cases(KVD_STORAGE_BF16, 20, 0);
    /* Draft context: not causal, head-major pages. */
    for (int a = 0; a < 2; a++) {
        run_attention({ KVD_STORAGE_BF16,
                        32,
                        8,
                        128,
                        8,
                        { 100, 0, 63 },
                        { 8, 5, 0 },
                        4,
                        GEOM_HEAD_MAJOR,
                        (geom_arrangement)a,
                        false });
        run_attention(
            { KVD_STORAGE_BF16, 32, 8, 128, 1, { 1000 }, {}, 4, GEOM_HEAD_MAJOR, (geom_arrangement)a, false });
        if (!small_sizes)
            run_attention({ KVD_STORAGE_BF16,
                            32,
                            8,
                            128,
                            200,
                            { 1900 },
                            { 190 },
                            4,
                            GEOM_HEAD_MAJOR,
                            (geom_arrangement)a,
                            false });
    }
    run_graph({ KVD_STORAGE_BF16, 16, 2, 256, 1, { 300, 70 }, { 1, 1 }, 4, GEOM_PAGE_MAJOR, GEOM_DENSE, true },
              { 10, 700 }, { 1, 0 });
    run_graph({ KVD_STORAGE_NVFP4, 16, 2, 256, 8, { 300, 70 }, { 8, 3 }, 4, GEOM_PAGE_MAJOR, GEOM_RECORD, true },
              { 0, 520 }, { 2, 8 });
    run_graph({ KVD_STORAGE_BF16,
                16,
                2,
                64,
                1,
                { 3000, 70 },
                { 1, 1 },
                4,
                GEOM_PAGE_MAJOR,
                GEOM_DENSE,
                true,
                false,
                128,
                false,
                true,
                2 },
              { 10, 700 }, { 1, 1 });
    attention_case shared = { KVD_STORAGE_BF16, 16,         2,   256, 1, { 400, 300 }, { 1, 1 }, 4,
                              GEOM_PAGE_MAJOR,  GEOM_DENSE, true };
    shared.shared = 4, shared.hint = 400;
    run_graph(shared, { 70, 500 }, { 1, 1 }); /* of four pages that are the same one is before both positions */
    run_graph({ KVD_STORAGE_BF16, 8, 2, 128, 100, { 300 }, { 100 }, 4, GEOM_PAGE_MAJOR, GEOM_DENSE, true }, { 40 },
              { 77 });
}

/* ---- refusals (VIEW-3): a sentence, and nothing is launched ---------------------------------------------- */

static void refusals() {
    const char *name = "view-3-refusals";
    if (!selected(name)) return;
    rng r = { seed };
    const attention_case c = { KVD_STORAGE_BF16, 8, 2, 128, 1, { 70 }, {}, 1, GEOM_PAGE_MAJOR, GEOM_DENSE, true };
    attention_run a(c, logical_of(c), r);
    char err[300] = "";
    const auto refused = [&](kvd_ops_attention o, size_t bytes, const char *what) {
        err[0] = 0;
        const int rc = kvd_ops_attention_cuda(&o, 71, a.workspace.at, bytes, nullptr, err, sizeof err);
        report(rc == KVD_OPS_INVALID && err[0] != 0, std::string(name) + "/" + what, err);
    };
    kvd_ops_attention o = a.op(true);
    a.workspace.alloc(kvd_ops_attention_workspace(&o, 71));
    refused(o, 16, "small workspace");
    o.n_q_heads = 7;
    refused(o, a.workspace.n, "heads");
    o = a.op(true), o.out = (uint16_t *)((uintptr_t)o.out + 2);
    refused(o, a.workspace.n, "unaligned out");
    o = a.op(true), o.view.storage = KVD_STORAGE_INT8;
    refused(o, a.workspace.n, "storage");
    o = a.op(true), o.positions = nullptr;
    refused(o, a.workspace.n, "no positions");
    CUDA_OK(cudaDeviceSynchronize());
    bool guards;
    bool untouched = true;
    for (uint16_t x : a.result(&guards)) untouched = untouched && x == 0x7fc1;
    report(untouched && guards, std::string(name) + "/nothing written", "");
}

/* A launch that CUDA refuses is no fault of the arguments: it has a code of its own, and CUDA's words. */
static void launch_failures() {
    const char *name = "refused-launch";
    if (!selected(name)) return;
    rng r = { seed };
    const attention_case c = { KVD_STORAGE_BF16, 8, 2, 128, 1, { 70 }, {}, 1, GEOM_PAGE_MAJOR, GEOM_DENSE, true };
    attention_run a(c, logical_of(c), r);
    const kvd_ops_attention o = a.op(true);
    a.workspace.alloc(kvd_ops_attention_workspace(&o, 71));
    kvd_ops_append append = {};
    append.view = o.view, append.k = append.v = a.dq.at, append.positions = a.dp.at, append.table_rows = a.dr.at;
    append.w = append.b = 1;
    cudaStream_t stream;
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamCreate(&stream));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const bool spoilt =
        cudaStreamSynchronize(stream) != cudaSuccess; /* not allowed there: the capture is invalid now */
    char err[300] = "";
    int rc = kvd_ops_attention_cuda(&o, 71, a.workspace.at, a.workspace.n, stream, err, sizeof err);
    report(spoilt && rc == KVD_OPS_LAUNCH && err[0] != 0, std::string(name) + "/attention", err);
    (void)cudaGetLastError();
    err[0] = 0;
    rc = kvd_ops_append_cuda(&append, stream, err, sizeof err);
    report(spoilt && rc == KVD_OPS_LAUNCH && err[0] != 0, std::string(name) + "/append", err);
    (void)cudaStreamEndCapture(stream, &graph);
    (void)cudaGetLastError();
    CUDA_OK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) small_sizes = true;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) seed = strtoull(argv[++i], nullptr, 0);
        else wanted.push_back(argv[i]);
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no GPU here: skipped\n");
        return 77;
    }
    append_cases();
    append_unmapped();
    attention_cases();
    refusals();
    launch_failures();
    printf("%s: %d failed\n", failures ? "FAIL" : "PASS", failures);
    return failures ? 1 : 0;
}
