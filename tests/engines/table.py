# SPDX-License-Identifier: Apache-2.0
"""Kills engines and kvd in the middle of generate(), and prints what is computed again. Usage: table.py MODEL...

Each engine is a process that is ended by SIGKILL between two tokens, and so is kvd, which has an arena. The prompts and
the tokens that their users have seen by then go to the next engine, or to the same one where only kvd was killed.
"equal" compares all tokens with those of transformers without kvd. "first token" is the time from the call to the next
token, and "computed anew" the same in the same process without kvd. CONT-3, CONT-2, SRV-5.

On a GPU (KVD_ENGINES_DEVICE=cuda:0) attention is kvd's, which rounds other sums than torch's: "equal" compares with an
undisturbed run on another kvd there. Processes are killed when one token is to be computed again, which is then computed
as it was. What is computed with others is rounded differently, in any engine in 16 bits.
"""

import contextlib
import os
import sys
import time

import models
import torch
from engine import DEADLINE, Engine

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "python"))

import kvd
import kvd.transformers
from support import Kvd, tokens, until

HEAD = ("model", "tokens of prompts", "killed", "at token", "reused", "recomputed", "equal", "first token, ms",
        "computed anew, ms")


ON_GPU = models.DEVICE != "cpu"


class Request:
    """Prompts, padded on the left, and the tokens that are expected."""

    def __init__(self, generate, prompts, output, at):
        self.output, self.at, self.prompts = output, at, prompts
        width = max(map(len, prompts))
        self.mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self.ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
        ids, mask = (torch.tensor(each, device=models.DEVICE) for each in (self.ids, self.mask))
        made = generate(ids, mask, output)
        self.expected = made[:, width:].T.tolist()
        assert len(self.expected) == output, "the model ended early: give it another prompt"

    def start(self, engine):
        engine.start(self.ids, self.mask, self.output, hold=self.at)

    def rest(self):
        """The request of somebody who has seen the tokens before the kill."""
        seen = [ids + [step[i] for step in self.expected[: self.at]] for i, ids in enumerate(self.ids)]
        return seen, [mask + [1] * self.at for mask in self.mask], self.output - self.at

    def known(self):
        return sum(map(len, self.prompts)) + self.at * len(self.prompts)


class Case:
    """One model and its kvd. Engine A is killed; B goes on, and sees kvd killed; then both are, and C goes on."""

    def __init__(self, name, prompts, output, at):
        model = models.load(name)
        lines = dict(line.split(" = ") for line in kvd.transformers.model_section(model).splitlines())
        self.name = name
        self.settings = {**lines, "max_context": 2048, "tokens": 8192, "device": models.DEVICE if ON_GPU else "host:0"}
        self.settings["more"] = "[host]\narena = 1GiB\n"
        with self.undisturbed(model) as generate:
            self.requests = [Request(generate, batch, output, at) for batch in prompts]

    @contextlib.contextmanager
    def undisturbed(self, model):
        if not ON_GPU:
            yield lambda ids, mask, n: model.generate(ids, attention_mask=mask, max_new_tokens=n, do_sample=False)
            return
        other = Kvd(**self.settings)
        try:
            with kvd.transformers.Engine(model, socket=other.socket, timeout=30) as engine:
                yield lambda ids, mask, n: model.generate(ids, do_sample=False, **engine.cache(ids, n, mask))
        finally:
            other.free()

    def rows(self):
        self.daemon = Kvd(**self.settings)
        try:
            yield from self._rows(*self.requests)
            code, text = self.daemon.ctl("audit")
            assert code == 0, text
        finally:
            self.daemon.free()

    def _rows(self, first, second, third):
        with Engine(self.name, self.daemon.socket) as a:
            first.start(a)
        seen = a.tokens
        self._proven()
        with Engine(self.name, self.daemon.socket) as b:
            yield self._row("engine", first, b, seen, behind=kvd.PAGE_TOKENS)
            second.start(b)
            self.daemon.restart()
            b.go_on()  # to the end, in the memory of the kvd that is gone
            b.end()
            assert b.tokens == second.expected, "tokens differ after the end of kvd"
            yield self._row("kvd", second, b, second.expected[: second.at], behind=2 * kvd.PAGE_TOKENS)
            third.start(b)
            seen = b.tokens
            self.daemon.stop(9)
        self.daemon.start()
        with Engine(self.name, self.daemon.socket) as c:
            yield self._row("both", third, c, seen, behind=2 * kvd.PAGE_TOKENS)

    def _proven(self):
        with kvd.connect(self.daemon.socket, role="observer", timeout=30) as observer:
            assert until(lambda: observer.stats().sequences == 0, DEADLINE), "the dead engine's sequences do not end"

    def _row(self, killed, request, engine, seen, behind):
        """behind: tokens of a prompt that may be computed again: kvd hears of each full page, and the arena has it then or one later."""
        ids, mask, n = request.rest()
        last = engine.run(ids, mask, n)
        equal = seen + engine.tokens == request.expected
        anew = engine.run(ids, mask, 1, kvd=False)
        reused, known = sum(last["reused"]), request.known()
        assert equal, f"{self.name}, {killed} killed: the tokens differ from those of an undisturbed run"
        assert known - reused <= behind * len(ids), f"{self.name}, {killed} killed: {known - reused} tokens recomputed"
        lengths = " + ".join(str(len(prompt)) for prompt in request.prompts)
        return (self.name, lengths, killed, request.at, reused, known - reused, "yes", round(last["first_ms"]),
                round(anew["first_ms"]))


def texts():
    """300 tokens each of a guide of ours."""
    with open(os.path.join(HERE, os.pardir, os.pardir, "client", "ENGINE-GUIDE.md")) as file:
        ids = models.smollm_tokenizer()(file.read()).input_ids
    return [[ids[at : at + 300]] for at in (0, 1500, 3000)]


def cases(names):
    for name in names:
        if name == "smollm2-135m":
            yield Case(name, texts(), 50, 40)
            continue
        drawn = [[2 + token % (models.VOCABULARY - 2) for token in tokens(seed, 700)] for seed in (1, 2, 3)]
        yield Case(name, [[prompt] for prompt in drawn], 180, 133 if ON_GPU else 150)
        if name in ("llama", "gemma3") and not ON_GPU:
            yield Case(name, [[one[:500], one[100:400], one[7:407]] for one in drawn], 120, 100)


def main():
    began = time.monotonic()
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
    for case in cases(sys.argv[1:]):
        for row in case.rows():
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


main()
