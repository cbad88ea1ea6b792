# SPDX-License-Identifier: Apache-2.0
"""What a user would run instead: PyTorch's scaled_dot_product_attention on contiguous KV, every backend that takes the shape.

Prints "BENCH sdpa.<shape>.<backend>.us value us" for decode (one query a sequence) and for a prefill chunk of 2048 columns,
timed as bench_ops_cuda does: median over samples of the mean of back-to-back calls between events.
"""
import itertools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

DECODE = [(1, 16, 2, 256, 131072), (8, 16, 2, 256, 32768), (32, 16, 2, 256, 8192), (64, 32, 8, 128, 8192),
          (1, 32, 8, 128, 131072)]
PREFILL = [(1, 16, 2, 256, 32768), (1, 32, 8, 128, 32768)]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def time_us(call, samples=7):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    us, launches = [], 1
    for i in range(3 + samples):
        begin.record()
        for _ in range(launches):
            call()
        end.record()
        end.synchronize()
        ms = begin.elapsed_time(end)
        if i < 3:
            launches = min(100, max(1, int(4.0 / (ms / launches))))
        else:
            us.append(1e3 * ms / launches)
    return sorted(us)[len(us) // 2]


def show(name, call):
    try:
        print(f"BENCH {name}.us {time_us(call):.4g} us", flush=True)
    except Exception as e:  # a backend that does not take the shape is no failure of ours
        print(f"# {name}: {str(e).splitlines()[0][:100]}", flush=True)


def main():
    torch.manual_seed(1)
    for b, hq, h, d, n in DECODE:
        # As in bench_ops_cuda: so many copies in turn that nothing is found in the L2.
        copies = int(min(16, max(1, 4e9 / (4 * b * h * n * d))))
        turns = itertools.cycle([tuple(torch.rand(b, h, n, d, device="cuda", dtype=torch.bfloat16) * 2 - 1 for _ in range(2))
                                 for _ in range(copies)])
        q = torch.rand(b, hq, 1, d, device="cuda", dtype=torch.bfloat16) * 2 - 1
        for name, backend in BACKENDS.items():
            with sdpa_kernel(backend):
                show(f"sdpa.decode.b{b}_q{hq}_h{h}_d{d}_c{n}.{name}",
                     lambda: F.scaled_dot_product_attention(q, *next(turns), enable_gqa=True))
        # The queries of a group as rows of one head: the form that lets a backend read KV once.
        for name, backend in BACKENDS.items():
            if name == "efficient" and d == 256:
                continue
            with sdpa_kernel(backend):
                show(f"sdpa.decode.b{b}_q{hq}_h{h}_d{d}_c{n}.{name}_grouped",
                     lambda: F.scaled_dot_product_attention(q.view(b, h, hq // h, d), *next(turns)))
        del turns, q
    for b, hq, h, d, n in PREFILL:
        w = 2048
        k, v = (torch.rand(b, h, n, d, device="cuda", dtype=torch.bfloat16) * 2 - 1 for _ in range(2))
        q = torch.rand(b, hq, w, d, device="cuda", dtype=torch.bfloat16) * 2 - 1
        for name, backend in BACKENDS.items():
            with sdpa_kernel(backend):
                show(f"sdpa.prefill2048.b{b}_q{hq}_h{h}_d{d}_c{n}.{name}_causal",
                     lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(w, n), enable_gqa=True))
                show(f"sdpa.prefill2048.b{b}_q{hq}_h{h}_d{d}_c{n}.{name}_full",
                     lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
        del k, v, q


if __name__ == "__main__":
    main()
