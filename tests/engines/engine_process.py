# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, to be killed: a model of models.py, with kvd or without.

Usage: engine_process.py MODEL [SOCKET]. Each line of stdin is a request in JSON (ids, mask, n, hold, kvd); it answers
with a line for each token of the batch, and one at the end. After token number `hold` it says so and waits for a line.
"""

import json
import sys
import time

import models
import torch
from transformers.generation.streamers import BaseStreamer

import kvd.transformers


def say(**what):
    print(json.dumps(what), flush=True)


class Tokens(BaseStreamer):
    def __init__(self, hold):
        self._hold, self._n, self.first = hold, -1, 0.0  # generate() begins with the prompt

    def put(self, value):
        self._n += 1
        if not self._n:
            return
        self.first = self.first or time.monotonic()
        say(token=value.tolist())
        if self._n == self._hold:
            say(held=self._n)
            sys.stdin.readline()

    def end(self):
        pass


def answer(model, engine, ids, mask, n, hold, use_kvd):
    ids, mask = (torch.tensor(each, device=models.DEVICE) for each in (ids, mask))
    tokens, began = Tokens(hold), time.monotonic()
    options = engine.cache(ids, n, mask) if use_kvd else {"max_new_tokens": n, "attention_mask": mask}
    reused = options.reused if use_kvd else [0] * len(ids)
    model.generate(ids, do_sample=False, streamer=tokens, **options)
    del options
    if use_kvd:
        engine.flush()
    say(end=True, reused=reused, first_ms=1e3 * (tokens.first - began))


def main():
    model = models.load(sys.argv[1])
    engine = kvd.transformers.Engine(model, socket=sys.argv[2], timeout=30) if len(sys.argv) > 2 else None
    warm = torch.full((1, 8), 3, device=models.DEVICE)
    model.generate(warm, do_sample=False, max_new_tokens=2, attention_mask=torch.ones_like(warm))
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer(model, engine, request["ids"], request["mask"], request["n"], request["hold"], request["kvd"])


main()
