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
        self.client = kvd.connect(socket, role="scheduler", name="engine", timeout=60)
        self.store = self.client.attach()
        self.planes = [(layer, each[layer].numpy()) for layer in range(2) for each in (self.store.k, self.store.v)]
        self.blocks = Blocks.of_all(self.client, DOMAIN, reserve)
        self.cached = {}  # digest -> block, the least recently used first
        for digests, blocks in self.blocks.adopt():
            self.cached.update(zip(digests, blocks))
        self.adopted = len(self.cached)
        self.free = sorted(self.blocks.lent.pages - set(self.cached.values()))[1:]  # one has no name ever
        self.restored = self.wrong = 0
        self.is_alone = False

    def write(self, block, digest):
        for layer, plane in self.planes:
            plane[block] = value_of(digest) + layer

    def check(self, block, digest):
        for layer, plane in self.planes:
            self.wrong += not (plane[block] == value_of(digest) + layer).all()

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
            for _, plane in self.planes:
                plane[new[: external - local]] = plane[held.pages[local:external]]
            self.blocks.let_go(held)
        for digest, block in zip(digests[external:], new[external - local :]):
            self.write(block, digest)
        for digest, block in zip(reversed(digests[local:]), reversed(new)):
            self.cached[digest] = block
        blocks = [self.cached[digest] for digest in digests]
        for digest, block in zip(digests, blocks):
            self.check(block, digest)
        if not self.is_alone:
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

    def end(self, prompt, tail):
        """A request is over whose last tokens are in a block that the engine does not find again."""
        digests, (block,) = digests_of(prompt), self.take(1, set(digests_of(prompt)))
        self.write(block, bytes([sum(tail) % 200]))
        chain = self.blocks.end(digests, tail, block)
        self.free.insert(0, block)
        return chain

    def find_end(self, prompt, tail):
        """Tokens that are found; what is there of the tail is compared."""
        hits = self.client.find([*prompt, *tail, 1], domain=DOMAIN, limit=1)
        n = (hits[0].usable if hits else 0) - len(prompt)
        held = self.blocks.hold(hits[0], hits[0].usable) if n > 0 else None
        if held is not None:
            for layer, plane in self.planes:
                self.wrong += not (plane[held.pages[-1]][:, :n] == sum(tail) % 200 + layer).all()
            self.blocks.let_go(held)
        return n + len(prompt)

    def close(self):
        self.client.close()


def prompts(draw, n):
    """Texts with common beginnings, of 1 to 6 pages."""
    return [[draw.randrange(4)] * PAGE * draw.randrange(1, 3) + [draw.randrange(9)] * PAGE * draw.randrange(0, 5) for _ in range(n)]


class Cache(KvdCase):
    settings = {"tokens": 4096, "more": "\n[host]\narena = 64MiB\n"}
    has_room = True

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

    def test_eng_1_ends_inside_a_page(self):
        """They are found at once and later, also by the next engine, until their blocks are overwritten; then in the
        arena."""
        engine, draw, ends = Engine(self.kvd.socket), random.Random(5), []
        for prompt in prompts(draw, 150):
            engine.serve(prompt)
            tail = [draw.randrange(1, 50)] * draw.randrange(1, PAGE)
            if not draw.randrange(3):
                engine.end(prompt, tail)
                ends.append((prompt, tail))
                self.assertEqual(engine.find_end(prompt, tail), len(prompt) + len(tail))
            if ends:
                engine.find_end(*draw.choice(ends))
        engine.blocks.keep(digests_of(ends[-1][0])[-1], engine.end(ends[-1][0], [60] * 7))
        engine.close()
        engine = Engine(self.kvd.socket)
        full = len(ends[-1][0])
        self.assertIn(engine.find_end(ends[-1][0], [60] * 7), (full + 7, full + 7 if self.has_room else full))
        for prompt in prompts(draw, 50):
            engine.serve(prompt)
            engine.find_end(*draw.choice(ends))
        self.assertEqual(engine.wrong, 0)
        engine.close()

    def test_eng_4_an_engine_goes_on_without_kvd(self):
        """The pages went with kvd, but for what the engine has mapped: it overwrites what had names."""
        for returns_at_once in (False, True):
            with self.subTest(returns_at_once=returns_at_once):
                engine, draw = Engine(self.kvd.socket), random.Random(4)
                self.assertFalse(engine.client.describe().pages_outlive)
                for prompt in prompts(draw, 60):
                    engine.serve(prompt)
                self.kvd.stop(9)
                engine.is_alone = True
                with self.assertLogs("kvd", "WARNING"):
                    for start in (returns_at_once, not returns_at_once):
                        if start:
                            self.kvd.start()
                        for prompt in prompts(draw, 30):
                            engine.serve(prompt, restore=False)
                self.assertEqual(engine.wrong, 0)
                engine.close()


class Outlived(KvdCase):
    settings = {"tokens": 4096, "more": "\n[devices]\nexport = vmm\n"}

    def test_eng_4_what_the_next_kvd_may_find_is_not_overwritten(self):
        engine, draw = Engine(self.kvd.socket), random.Random(6)
        self.assertTrue(engine.client.describe().pages_outlive)
        for prompt in prompts(draw, 60):
            engine.serve(prompt)
        self.kvd.stop(9)
        engine.is_alone = True
        with self.assertRaisesRegex(kvd.Unavailable, "export = vmm.*start this engine again"):
            for prompt in prompts(draw, 60):
                engine.serve(prompt, restore=False)
        engine.close()
        self.kvd.start()
        engine = Engine(self.kvd.socket)
        self.assertGreater(engine.adopted, 0)
        for prompt in prompts(draw, 60):
            engine.serve(prompt)
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
    has_room = False

    def test_eng_4_what_is_evicted_comes_back(self):
        """Or not: the arena holds a few pages."""
        engine, draw = Engine(self.kvd.socket), random.Random(3)
        for prompt in prompts(draw, 300):
            engine.serve(prompt)
        self.assertEqual(engine.wrong, 0)
        engine.close()
