# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's paged attention on the same page form as kvd's planes (HND, 64 tokens a page), shuffled page ids: the decode wrapper,
the prefill wrapper (fa2, fa3) for verify and prefill, and XQA for decode and verify, the last two also on FP8 pages without scales.

Prints "BENCH flashinfer.<what>.<storage>.<shape>.us value us # backend", timed as bench_ops_cuda and sdpa_baseline.py do. Kernels are
compiled on first use. Usage: flashinfer_baseline.py [decode] [verify] [prefill] [prefill-all]; exit 77 with a word where the
package or its compiler is not to be had.
"""
import itertools
import sys

try:
    import torch
    import flashinfer
except Exception as e:
    print(f"# flashinfer: not to be had here: {str(e).splitlines()[0][:200]}")
    sys.exit(77)

from sdpa_baseline import time_us

PAGE = 64
# batch, query heads, kv heads, head_dim, keys
DECODE = [(1, 16, 2, 256, 131072), (8, 16, 2, 256, 32768), (32, 16, 2, 256, 8192), (32, 16, 2, 256, 32768), (64, 32, 8, 128, 8192),
          (1, 32, 8, 128, 131072)]
VERIFY = [(32, 16, 2, 256, 8192), (8, 16, 2, 256, 32768), (64, 32, 8, 128, 8192)]
# Qwen3-Next, Llama-3.1-8B, gpt-oss (its full layers, without sinks)
PREFILL = [(1, 16, 2, 256, 32768), (1, 32, 8, 128, 32768), (1, 64, 8, 64, 32768)]
TYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def caches(b, h, d, n, storage, most=16):
    """As many copies of K and V, taken in turn, as let no launch find any in the L2; and shuffled page ids."""
    pages, size = b * n // PAGE, 2 if storage == "bf16" else 1
    copies = int(min(most, max(1, 4e9 / (2 * size * b * h * n * d))))

    def fresh():
        return (torch.rand(pages, h, PAGE, d, device="cuda") * 2 - 1).to(TYPES[storage])

    return itertools.cycle([(fresh(), fresh()) for _ in range(copies)]), torch.randperm(pages).to(torch.int32).cuda()


def queries(*shape):
    return (torch.rand(*shape, device="cuda") * 2 - 1).to(torch.bfloat16)


def show(what, shape, storage, backend, call):
    b, hq, h, d, n = shape
    print(f"BENCH flashinfer.{what}.{storage}.b{b}_q{hq}_h{h}_d{d}_c{n}.{backend}.us {time_us(call):.4g} us", flush=True)


def decode_wrapper(shape, storage):
    b, hq, h, d, n = shape
    turns, ids = caches(b, h, d, n, storage)
    q = queries(b, hq, d)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, kv_layout="HND", use_tensor_cores=True)
    wrapper.plan(torch.arange(0, b + 1, dtype=torch.int32) * (n // PAGE), ids, torch.full((b,), PAGE, dtype=torch.int32), hq, h, d, PAGE,
                 q_data_type=torch.bfloat16, kv_data_type=TYPES[storage])
    show("decode", shape, storage, "fa2", lambda: wrapper.run(q, next(turns)))


def prefill_wrapper(shape, storage, w, backend):
    b, hq, h, d, n = shape
    turns, ids = caches(b, h, d, n, storage, 1 if w >= 64 else 16)
    q = queries(b * w, hq, d)
    if backend == "fa3" and storage == "fp8":
        q = q.to(TYPES[storage])
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, kv_layout="HND", backend=backend)
    rows = torch.arange(0, b + 1, dtype=torch.int32)
    more = {"o_data_type": torch.bfloat16} if storage == "fp8" else {}
    wrapper.plan(rows * w, rows * (n // PAGE), ids, torch.full((b,), PAGE, dtype=torch.int32), hq, h, d, PAGE, causal=True,
                 q_data_type=q.dtype, kv_data_type=TYPES[storage], **more)
    show(f"{'prefill' if w >= 64 else 'verify'}{w}", shape, storage, backend, lambda: wrapper.run(q, next(turns)))


def xqa_kernel(shape, storage, w):
    from flashinfer.xqa import xqa
    b, hq, h, d, n = shape
    turns, ids = caches(b, h, d, n, storage)
    q = queries(b, 1, hq, d) if w == 1 else queries(b, 1, w, hq, d)
    out, table = torch.empty_like(q), ids.view(b, n // PAGE)
    keys = torch.full((b, 1), n, dtype=torch.uint32, device="cuda")
    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
    semaphores = torch.zeros(8 << 20, dtype=torch.uint32, device="cuda")
    mask = None
    if w > 1:  # bit j of word i: query i sees column j of the block
        words = torch.zeros(b, w, 2 * ((w + 31) // 32), dtype=torch.int32)
        words[:, :, 0] = torch.tensor([(1 << (i + 1)) - 1 for i in range(w)], dtype=torch.int32)
        mask = words.to(torch.uint16).cuda()

    def call():
        k, v = next(turns)
        xqa(q, k, v, table, keys, out, workspace, semaphores, h, PAGE, q_scale=1.0, kv_layout="HND", q_seq_len=w, mask=mask)

    show("decode" if w == 1 else f"verify{w}", shape, storage, "xqa", call)


def jobs(wanted):
    for storage in TYPES:
        if "decode" in wanted:
            for s in DECODE:
                yield decode_wrapper, (s, storage)
                yield xqa_kernel, (s, storage, 1)
        if "verify" in wanted:
            for s in VERIFY:
                yield prefill_wrapper, (s, storage, 8, "fa2")
                yield xqa_kernel, (s, storage, 8)
    for w in (512, 2048, 8192):
        if "prefill-all" in wanted or ("prefill" in wanted and w == 2048):
            for s in PREFILL:
                yield prefill_wrapper, (s, "bf16", w, "fa3")
    if "prefill-all" in wanted:
        yield prefill_wrapper, (PREFILL[0], "bf16", 2048, "fa2")
        yield prefill_wrapper, (PREFILL[1], "bf16", 2048, "fa2")


def main():
    torch.manual_seed(1)
    for job, args in jobs(sys.argv[1:] or ["decode", "verify", "prefill-all"]):
        try:
            job(*args)
        except Exception as e:  # what a version does not take is no failure of ours
            print(f"# flashinfer {job.__name__} {args}: {str(e).splitlines()[0][:200]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
