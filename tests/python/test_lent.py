# SPDX-License-Identifier: Apache-2.0
"""ENG-1 to ENG-4 against a real kvd: an engine that hands out pages itself is killed in the middle, and so is kvd; the
next engine adopts what has a name, byte for byte."""

import os
import signal
import subprocess
import sys

import kvd
import kvd.errors
from support import KvdCase, tokens, until

PAGE = kvd.PAGE_TOKENS
ARENA = "\n[host]\narena = 16MiB\n"


def chain_of(seed, pages):
    chain = kvd.Chain("engine", tokens(seed, pages * PAGE))
    return [chain.digest(i) for i in range(pages)]


def write(store, page, value):
    """The same bytes in every plane of the page."""
    for layer in range(2):
        store.k[layer].numpy()[page] = value + layer
        store.v[layer].numpy()[page] = value + layer + 100


def read(store, page):
    """The value that write() wrote into all of the page, or None."""
    value = int(store.k[0].numpy()[page].flat[0])
    same = all(
        (store.k[layer].numpy()[page] == value + layer).all() and (store.v[layer].numpy()[page] == value + layer + 100).all()
        for layer in range(2)
    )
    return value if same else None


def engine():
    """The engine that is killed: names a chain of four, one that branches off, and one that is in the arena; then it
    writes into blank pages for ever."""
    client = kvd.connect(sys.argv[2], role="scheduler", name="engine")
    store = client.attach()
    lent = client.lend(24, domain="engine")
    pages = sorted(lent.pages)
    for i, page in enumerate(pages):
        write(store, page, i + 1)
    first, _ = lent.name(pages[:4], chain_of(1, 4), "engine")
    lent.name(pages[4:6], chain_of(2, 6)[4:], source=first, first=2)  # its own digests: it branches off behind page 1
    tail = tokens(1, 5 * PAGE)[4 * PAGE :]
    written, _ = lent.name(pages[9:10], [], source=first, first=4, tail=tail[:7])
    lent.name(pages[9:10], [], source=written, first=4, tail=tail[:9])  # it goes on in place
    other, _ = lent.name(pages[6:9], chain_of(3, 3), "engine")
    client.demote(other, keep_device=True)
    client.demote(first, keep_device=True)
    print(first, *pages, flush=True)
    while True:
        write(store, pages[-1], 77)


class Lent(KvdCase):
    settings = {"more": ARENA}

    def start_engine(self):
        process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "engine", self.kvd.socket],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], os.path.dirname(__file__)])},
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        line = process.stdout.readline().split()
        self.assertTrue(line, self.kvd.log())
        return process, int(line[0]), [int(page) for page in line[1:]]

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait(20)

    def connect(self):
        client = kvd.connect(self.kvd.socket, role="scheduler", name="next")
        self.addCleanup(client.close)
        return client

    def test_eng_2_3_the_next_engine_adopts(self):
        process, first, pages = self.start_engine()
        client = self.connect()
        self.assertEqual(client.stats().pool[0].lent, 24)
        self.assertEqual([each.lends for each in client.sequences()], [True])
        store = client.attach()
        with client.lend(2, domain="engine") as mine:  # the other one lives: nothing of it is adopted
            self.assertEqual(mine.adopted, set())
        self.kill(process)
        self.assertTrue(until(lambda: client.stats().pool[0].lent == 0))
        self.assertEqual(client.stats().pool[0].allocated, 10)
        with client.lend(4, domain="engine") as lent:
            self.assertEqual(lent.adopted, set(pages[:9]))
            self.assertEqual(len(lent.pages), 13)
            seen = {}
            for info in client.continuations():
                ids, digests = client.read_chain(info.continuation)
                seen.update(zip(digests, ids))
            self.assertEqual([seen[digest] for digest in chain_of(1, 4)], pages[:4])
            self.assertEqual([seen[digest] for digest in chain_of(2, 6)[4:]], pages[4:6])
            for i, page in enumerate(pages[:9]):
                self.assertEqual(read(store, page), i + 1)
            hits = client.find(tokens(1, 4 * PAGE) + [1], domain="engine")
            self.assertEqual(hits[0].usable, 4 * PAGE)
            with self.assertRaises(kvd.FailedPrecondition):
                lent.blank(pages[:1])
            lent.give_back(pages[6:9])
            self.assertEqual(client.stats().pool[0].lent, 10)
        self.assertEqual(client.stats().pool[0].allocated, 10)
        prompt = tokens(1, 5 * PAGE)
        with client.activate(prompt, 8, domain="engine") as sequence:  # what was written of the last page, and no more
            self.assertEqual(sequence.cached, 4 * PAGE + 9)
            table = [int(page) for page in sequence.block_table(store)[:5]]
            self.assertEqual(table[:4], pages[:4])
            self.assertNotEqual(table[4], pages[9])
            for layer in range(2):
                self.assertTrue((store.k[layer].numpy()[table[4]][:, :9] == 10 + layer).all())
                self.assertTrue((store.v[layer].numpy()[table[4]][:, :9] == 110 + layer).all())

    def test_eng_2_quarantined_until_the_exit_is_proven(self):
        process, first, pages = self.start_engine()
        client = self.connect()
        process.send_signal(signal.SIGSTOP)
        session = next(each.session for each in client.sessions() if each.name == "engine")
        client.fence(session)
        self.assertEqual(client.stats().pool[0].lent, 24)
        client.attach()
        with client.lend(1, domain="engine") as lent:
            self.assertEqual(lent.adopted, set())
        self.kill(process)
        self.assertTrue(until(lambda: client.stats().pool[0].lent == 0))
        with client.lend(1, domain="engine") as lent:
            self.assertEqual(lent.adopted, set(pages[:9]))

    def test_eng_2_kvd_is_killed_and_the_engine_too(self):
        process, first, pages = self.start_engine()
        self.kvd.restart()
        self.kill(process)
        client = self.connect()
        store = client.attach()
        hits = client.find(tokens(1, 4 * PAGE) + [1], domain="engine")
        self.assertEqual(hits[0].usable, 4 * PAGE)
        with client.activate(tokens(1, 4 * PAGE) + [1], 8, domain="engine") as sequence:  # restores it
            self.assertEqual(sequence.cached, 4 * PAGE)
            table = [int(page) for page in sequence.block_table(store)[:4]]
            self.assertEqual([read(store, page) for page in table], [1, 2, 3, 4])
        self.assertEqual(client.find(tokens(3, 3 * PAGE) + [1], domain="engine")[0].usable, 3 * PAGE)

    def test_eng_4_evicts_to_the_arena_and_restores_by_a_fork(self):
        client = self.connect()
        store = client.attach()
        with client.lend(8, domain="engine") as lent:
            pages = sorted(lent.pages)
            for i, page in enumerate(pages):
                write(store, page, i + 1)
            chain, stood = lent.name(pages[:3], chain_of(1, 3), "engine")
            self.assertFalse(stood)
            self.assertEqual(lent.name(pages[3:6], chain_of(1, 3), "engine"), (chain, True))  # an equal one
            client.demote(chain)
            lent.blank(pages[:3])
            for page in pages[:3]:
                write(store, page, 50)
            prompt = tokens(1, 3 * PAGE) + [1]
            hit = client.find(prompt, domain="engine")[0]
            self.assertEqual((hit.usable, hit.restore_pages), (3 * PAGE, 3))
            with client.activate(prompt, 1, hit=hit, domain="engine") as sequence:
                for to, page in zip(pages[5:8], sequence.block_table(store)[:3]):
                    for layer in range(2):
                        store.k[layer].numpy()[to] = store.k[layer].numpy()[page]
                        store.v[layer].numpy()[to] = store.v[layer].numpy()[page]
            self.assertEqual([read(store, page) for page in pages[5:8]], [1, 2, 3])

    def test_eng_1_refusals_in_words(self):
        client = self.connect()
        client.attach()
        with client.lend(4, domain="engine") as lent:
            pages = sorted(lent.pages)
            with self.assertRaisesRegex(kvd.InvalidArgument, "not lent"):
                lent.name([pages[-1] + 1], chain_of(1, 1), "engine")
            with self.assertRaisesRegex(kvd.InvalidArgument, "twice"):
                lent.blank([pages[0], pages[0]])
            with self.assertRaisesRegex(kvd.InvalidArgument, "32 bytes"):
                lent.name(pages[:1], [b"short"], "engine")
            lent.name(pages[:1], chain_of(1, 1), "engine")
            with self.assertRaisesRegex(kvd.InvalidArgument, "complete"):
                lent.name(pages[:1], chain_of(2, 1), "engine")
            with self.assertRaisesRegex(kvd.NotFound, "names nothing"):
                lent.name(pages[1:2], chain_of(2, 1), source=99, first=1)
            with self.assertRaisesRegex(kvd.NotFound, "names nothing"):
                client.read_chain(99)
            with self.assertRaisesRegex(kvd.FailedPrecondition, "nothing else"):
                refused = client.round([kvd.RoundItem(lent.sequence, ensure=64)])[0]
                raise kvd.errors.error_of(refused.status, refused.message)
        self.assertEqual(client.stats().pool[0].lent, 0)


if __name__ == "__main__":
    engine()
