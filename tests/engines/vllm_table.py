# SPDX-License-Identifier: Apache-2.0
"""Kills vLLM and kvd between two tokens, and prints what is computed again: table.py for kvd.vllm, with a tiny Qwen3 in
FP32 and its random weights. "equal" compares all tokens with those of a vLLM without kvd, and "computed anew" is its
time to the first token of a prompt as long. ENG-1 to ENG-4, CONT-3."""

import os
import sys
import tempfile
import time

import torch
import transformers
from engine import DEADLINE, Engine

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "python"))

import kvd
from support import Kvd, tokens, until

HEAD = ("model", "tokens of prompt", "killed", "at token", "reused", "recomputed", "equal", "first token, ms",
        "computed anew, ms")
BLOCKS, PROMPT, OUTPUT, AT, ENDED = 64, 300, 150, 100, 130
VOCABULARY = 512


def write_model(folder):
    torch.manual_seed(3)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    model.save_pretrained(folder)


def prompt(seed, n=PROMPT):
    return [2 + token % (VOCABULARY - 2) for token in tokens(seed, n)]


def run(engine, ids, n):
    last = engine.run(ids, None, n)
    return [step[0] for step in engine.tokens], last["reused"][0], last["first_ms"]


class Table:
    def __init__(self, folder):
        self.folder = folder
        os.environ["PYTHONHASHSEED"] = "random"
        with self.engine(None) as plain:
            self.expected = {seed: run(plain, prompt(seed), OUTPUT)[0] for seed in (1, 2, 3, 4)}
            self.anew = {n: run(plain, prompt(20 + n, n), 1)[2] for n in (PROMPT, PROMPT + AT, PROMPT + ENDED)}
            self.fill = {seed: run(plain, prompt(seed, 700), 5)[0] for seed in range(10, 18)}

    def run_kvd(self, more):
        self.daemon = Kvd(layers=3, kv_heads=2, head_dim=64, tokens=64 * BLOCKS, max_context=64 * BLOCKS, more=more)

    def engine(self, socket):
        arguments = [self.folder, str(BLOCKS), *([socket] if socket else [])]
        return Engine(*arguments, program="vllm_process.py")

    def start(self):
        return self.engine(self.daemon.socket)

    def row(self, killed, engine, ids, seen, expected, behind=2 * kvd.PAGE_TOKENS):
        made, reused, first = run(engine, ids + seen, len(expected) - len(seen))
        known = len(ids) + len(seen)
        assert seen + made == expected, f"{killed}: the tokens differ from those of an undisturbed run"
        assert known - reused <= behind, f"{killed}: {known - reused} tokens recomputed"
        return ("qwen3", len(ids), killed, len(seen), reused, known - reused, "yes", round(first),
                round(self.anew[known]))

    def rows(self):
        for rows, more in ((self.rows_of_an_arena, "[host]\narena = 64MiB\n"),
                           (self.rows_of_pages_that_outlive, "[devices]\nexport = vmm\n")):
            self.run_kvd(more)
            try:
                yield from rows()
                self.audit()
            finally:
                self.daemon.free()

    def rows_of_an_arena(self):
        with self.start() as a:
            for seed in (3, 4):
                assert run(a, prompt(seed), ENDED)[0] == self.expected[seed][:ENDED]
            yield self.row_of_an_end("nothing: goes on", a, 3)
            seen = self.run_until_killed(a, 1)
        self.proven()
        with self.start() as b:
            yield self.row("vLLM", b, prompt(1), seen, self.expected[1])
            yield self.row_of_an_end("vLLM, then: goes on", b, 4)
            for seed, expected in self.fill.items():  # more than there are blocks
                assert run(b, prompt(seed, 700), 5)[0] == expected, "tokens differ while blocks are evicted"
            yield self.row("nothing: evicted", b, prompt(1), [], self.expected[1])
            seen = self.run_until_killed(b, 2)
            self.audit()
            self.daemon.stop(9)
        self.daemon.start()
        with self.start() as c:
            yield self.row("kvd and vLLM, before", c, prompt(1), [], self.expected[1])
            self.go_on_without_kvd(c, 2)
            for seed, expected in self.fill.items():  # it overwrites what had names in the kvd that is gone
                assert run(c, prompt(seed, 700), 5)[0] == expected, "tokens differ while blocks are evicted"
        with self.start() as d:
            yield self.row("kvd alone, then vLLM; before", d, prompt(1), [], self.expected[1])

    def row_of_an_end(self, killed, engine, seed):
        """A request goes on where another one has ended: all that one has computed is there."""
        return self.row(killed, engine, prompt(seed), self.expected[seed][:ENDED], self.expected[seed], behind=1)

    def rows_of_pages_that_outlive(self):
        """The pages of the kvd that is gone are the next one's. There is no arena."""
        with self.start() as a:
            assert run(a, prompt(1), OUTPUT)[0] == self.expected[1]
            self.go_on_without_kvd(a, 2)
        with self.start() as b:
            yield self.row("kvd alone, then vLLM; export = vmm", b, prompt(2), self.expected[2][:AT], self.expected[2])
            yield self.row("the same, before", b, prompt(1), [], self.expected[1])

    def go_on_without_kvd(self, engine, seed):
        """kvd is killed, and started again, in the middle of a request."""
        self.run_until_killed(engine, seed)
        self.daemon.restart()
        engine.go_on()
        engine.end()
        assert [step[0] for step in engine.tokens] == self.expected[seed], "the tokens differ after the end of kvd"

    def run_until_killed(self, engine, seed):
        engine.start(prompt(seed), None, OUTPUT, hold=AT)
        seen = [step[0] for step in engine.tokens]
        assert seen == self.expected[seed][:AT]
        return seen

    def proven(self):
        with kvd.connect(self.daemon.socket, role="observer", timeout=30) as observer:
            assert until(lambda: observer.stats().sequences == 0, DEADLINE), "the dead engine's pages are still lent"

    def audit(self):
        code, text = self.daemon.ctl("audit")
        assert code == 0, text


def main():
    began = time.monotonic()
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        for row in Table(folder).rows():
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


main()
