# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's paged decode on the same page form as kvd's BF16 planes (HND, 64 tokens a page), random page ids.

Prints "BENCH flashinfer.decode.<shape>.us value us", timed as bench_ops_cuda and sdpa_baseline.py do. It compiles its kernels on first
use; exit 77 with a word where the package or its compiler is not to be had.
"""
import itertools
import sys

try:
    import torch
    import flashinfer
except Exception as e:
    print(f"# flashinfer: not to be had here: {str(e).splitlines()[0][:200]}")
    sys.exit(77)

from sdpa_baseline import DECODE, time_us

PAGE = 64


def decode(b, hq, h, d, n):
    per_sequence = n // PAGE
    pages = b * per_sequence
    copies = int(min(16, max(1, 4e9 / (4 * b * h * n * d))))
    caches = [tuple(torch.rand(pages, h, PAGE, d, device="cuda", dtype=torch.bfloat16) * 2 - 1 for _ in range(2)) for _ in range(copies)]
    turns = itertools.cycle(caches)
    q = torch.rand(b, hq, d, device="cuda", dtype=torch.bfloat16) * 2 - 1
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, kv_layout="HND", use_tensor_cores=True)
    indptr = torch.arange(0, pages + 1, per_sequence, dtype=torch.int32)
    wrapper.plan(indptr, torch.randperm(pages).to(torch.int32).cuda(), torch.full((b,), PAGE, dtype=torch.int32), hq, h, d, PAGE,
                 q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    us = time_us(lambda: wrapper.run(q, next(turns)))
    print(f"BENCH flashinfer.decode.b{b}_q{hq}_h{h}_d{d}_c{n}.us {us:.4g} us", flush=True)


def main():
    for shape in sorted(DECODE, key=lambda s: s[3]):
        try:
            decode(*shape)
        except Exception as e:
            print(f"# flashinfer {shape}: {str(e).splitlines()[0][:300]}", flush=True)


if __name__ == "__main__":
    main()
