# SPDX-License-Identifier: Apache-2.0
"""What kvd.vllm keeps in mind, without vLLM: blocks that become complete, are overwritten, come back. A model engine with
a block pool of its own draws prompts, and compares every byte that it reads with what belongs there. ENG-1 to ENG-4."""

import random

import kvd
from kvd._blocks import Blocks
from support import KvdCase, until

PAGE = kvd.PAGE_TOKENS
DOMAIN = kvd.Domain("model")


def digests_of(prompt):
    chain = kvd.Chain(DOMAIN, prompt)
    return [chain.digest(i) for i in range(chain.pages)]


def value_of(digest):
    """What an engine would compute for the page."""
    return int.from_bytes(digest[:1], "little") % 200


class Engine:
    """Blocks in an order of eviction, found by their digests; the least recently used is handed out again."""

    def __init__(self, socket, reserve=8):
        self.client = kvd.connect(socket, role="scheduler", name="engine", timeout=30)
        self.store = self.client.attach()
        free = self.client.stats().pool[0].available - reserve
        self.blocks = Blocks(self.client, self.client.lend(free, domain=DOMAIN), kvd.Root(DOMAIN.root(), ""))
        self.cached = {}  # digest -> block, the least recently used first
        for digests, blocks in self.blocks.adopt():
            self.cached.update(zip(digests, blocks))
        self.adopted = len(self.cached)
        self.free = sorted(self.blocks.lent.pages - set(self.cached.values()))
        self.restored = self.wrong = 0

    def write(self, block, digest):
        for layer in range(2):
            self.store.k[layer].numpy()[block] = value_of(digest) + layer
            self.store.v[layer].numpy()[block] = value_of(digest) + layer

    def check(self, block, digest):
        for layer in range(2):
            for planes in (self.store.k, self.store.v):
                self.wrong += not (planes[layer].numpy()[block] == value_of(digest) + layer).all()

    def take(self, n, used):
        made = [self.free.pop() for _ in range(min(n, len(self.free)))]
        for digest in [each for each in self.cached if each not in used][: n - len(made)]:
            made.append(self.cached.pop(digest))
        self.blocks.reuse(made)
        return made

    def serve(self, prompt, restore=True):
        """How many pages of the prompt were there: in blocks, and from the arena."""
        digests = digests_of(prompt)
        local = next((i for i, digest in enumerate(digests) if digest not in self.cached), len(digests))
        for digest in reversed(digests[:local]):
            self.cached[digest] = self.cached.pop(digest)  # used now; the end of the chain goes first
        held, external = self.look(prompt, digests, local) if restore else (None, local)
        new = self.take(len(digests) - local, set(digests))
        if held is not None:
            for layer in range(2):
                for planes in (self.store.k, self.store.v):
                    array = planes[layer].numpy()
                    array[new[: external - local]] = array[held.pages[local:external]]
            self.blocks.let_go(held)
        for digest, block in zip(digests[external:], new[external - local :]):
            self.write(block, digest)
        for digest, block in zip(reversed(digests[local:]), reversed(new)):
            self.cached[digest] = block
        blocks = [self.cached[digest] for digest in digests]
        for digest, block in zip(digests, blocks):
            self.check(block, digest)
        self.blocks.complete(digests, blocks)
        self.restored += external - local
        return local, external - local

    def look(self, prompt, digests, local):
        hits = self.client.find(prompt + [1], domain=DOMAIN, limit=1)
        usable = min(hits[0].usable // PAGE if hits else 0, len(digests))
        held = self.blocks.hold(hits[0], usable * PAGE) if usable > local else None
        if held is not None and any(page in self.blocks.lent.pages for page in held.pages[local:]):
            self.blocks.let_go(held)
            held = None
        return held, usable if held is not None else local

    def close(self):
        self.client.close()


def prompts(draw, n):
    """Texts with common beginnings, of 1 to 6 pages."""
    return [[draw.randrange(4)] * PAGE * draw.randrange(1, 3) + [draw.randrange(9)] * PAGE * draw.randrange(0, 5) for _ in range(n)]


class Cache(KvdCase):
    settings = {"tokens": 4096, "more": "\n[host]\narena = 64MiB\n"}

    def test_eng_4_what_is_evicted_comes_back(self):
        engine, draw = Engine(self.kvd.socket), random.Random(1)
        for prompt in prompts(draw, 400):
            engine.serve(prompt)
        self.assertEqual(engine.wrong, 0)
        self.assertGreater(engine.restored, 20)
        engine.close()

    def test_eng_3_the_next_engine_has_it_and_the_next_kvd_too(self):
        text = [7] * PAGE * 3 + [8] * PAGE
        engine = Engine(self.kvd.socket)
        self.assertEqual(engine.serve(text), (0, 0))
        engine.blocks.keep(digests_of(text)[-1])
        self.assertTrue(until(lambda: sum(engine.client.continuations()[0].host_pages) == 4))
        engine.close()
        engine = Engine(self.kvd.socket)
        self.assertEqual(engine.adopted, 4)
        self.assertEqual(engine.serve(text), (4, 0))
        self.kvd.restart()
        engine = Engine(self.kvd.socket)
        self.assertEqual((engine.adopted, engine.serve(text)), (0, (0, 4)))
        self.kvd.restart()
        engine = Engine(self.kvd.socket)  # a restore leaves it in the arena
        self.assertEqual((engine.adopted, engine.serve(text)), (0, (0, 4)))
        self.assertEqual(engine.wrong, 0)
        engine.close()


class NoArena(KvdCase):
    settings = {"tokens": 4096}

    def test_eng_4_without_an_arena_what_is_evicted_is_given_up(self):
        engine, draw = Engine(self.kvd.socket), random.Random(2)
        for prompt in prompts(draw, 400):
            engine.serve(prompt)
        self.assertEqual((engine.wrong, engine.restored), (0, 0))
        engine.close()


class SmallArena(Cache):
    settings = {"tokens": 4096, "more": "\n[host]\narena = 1MiB\n"}

    def test_eng_4_what_is_evicted_comes_back(self):
        """Or not: the arena holds a few pages."""
        engine, draw = Engine(self.kvd.socket), random.Random(3)
        for prompt in prompts(draw, 300):
            engine.serve(prompt)
        self.assertEqual(engine.wrong, 0)
        engine.close()
