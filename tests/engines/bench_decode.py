# SPDX-License-Identifier: Apache-2.0
"""Decode on kvd's pages beside transformers' DynamicCache: tokens a second of generate() by the median step, and the
time to the first token.

Usage: bench_decode.py MODEL PROMPTS TOKENS [STEPS [TURNS]]. The two take turns (3). The first time kvd computes the
prompts, too; then it finds them. KVD_ENGINES_DEVICE=cuda:0 is meant; on a CPU it runs in BF16 as well.
"""

import os
import statistics
import sys
import time

import models
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

import kvd.transformers
from support import Kvd

WARM = 8  # tokens that are not timed


class Clock(StoppingCriteria):
    def __init__(self):
        self.at = []

    def __call__(self, ids, scores, **_):
        if ids.is_cuda:
            torch.cuda.synchronize()
        self.at.append(time.monotonic())
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def timed(model, ids, arguments):
    clock, began = Clock(), time.monotonic()
    made = model.generate(ids, do_sample=False, stopping_criteria=StoppingCriteriaList([clock]), **arguments())
    steps = [after - before for before, after in zip(clock.at[WARM:], clock.at[WARM + 1 :])]
    return made, clock.at[0] - began, len(ids) / statistics.median(steps)


def main():
    name, rows, tokens, steps, turns = sys.argv[1], *map(int, sys.argv[2:] + ["64", "3"][len(sys.argv) - 4 :])
    model = models.load(name).to(torch.bfloat16)
    lines = dict(line.split(" = ") for line in kvd.transformers.model_section(model).splitlines())
    context = -(-(tokens + steps + WARM + 65) // 64) * 64
    daemon = Kvd(
        **lines,
        max_context=context,
        max_concurrency=rows + 1,
        tokens=(rows + 2) * context,
        device="host:0" if models.DEVICE == "cpu" else models.DEVICE,
    )
    torch.manual_seed(7)
    ids = torch.randint(2, model.config.vocab_size, (rows, tokens), device=models.DEVICE)
    mask, n = torch.ones_like(ids), steps + WARM + 1
    print(f"| {name}, {rows} x {tokens} tokens | first token, ms | decode, tokens/s | over DynamicCache |")
    print("|---|---|---|---|")
    try:
        with kvd.transformers.Engine(model, socket=daemon.socket, timeout=30, attention="pages") as engine:
            for _ in range(turns):
                plain = timed(model, ids, lambda: {"max_new_tokens": n, "attention_mask": mask})
                ours = timed(model, ids, lambda: engine.cache(ids, n, mask))
                print(f"| DynamicCache | {1e3 * plain[1]:.0f} | {plain[2]:.1f} | |")
                same = (plain[0] == ours[0])[:, tokens:].float().mean()
                figures = f"{1e3 * ours[1]:.0f} | {ours[2]:.1f} | {ours[2] / plain[2]:.2f}"
                print(f"| kvd, {same:.0%} of tokens equal | {figures} |", flush=True)
    finally:
        daemon.free()


main()
