# SPDX-License-Identifier: Apache-2.0
"""The Python of the engine author's guide, as it stands there, against a real kvd with a worker that is killed."""

import os
import re
import subprocess
import sys
import types
import unittest

import numpy as np

import kvd
from support import KvdCase, tokens

GUIDE = os.path.join(os.environ["KVD_SOURCE"], "client", "ENGINE-GUIDE.md")
DOMAIN = "guide"


def guide():
    with open(GUIDE) as file:
        blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
    made = types.ModuleType("guide")
    exec(compile("\n".join(blocks), GUIDE, "exec"), made.__dict__)
    return made


def model_run(store, sequence, begin, end):
    """Writes each token to its place, and sums what is at all places before."""
    planes = [plane.numpy() for layers in (store.k, store.v) for plane in layers]
    slots = sequence.slot_mapping(begin, end, store)
    for plane in planes:
        plane[slots // 64, :, slots % 64] = np.array(sequence.tokens[begin:end], np.uint16)[:, None, None]
    seen = sequence.slot_mapping(0, end, store)
    return int(planes[0][seen // 64, 0, seen % 64, 0].sum()) % 50000


def expected(prompt, n):
    known = list(prompt)
    for _ in range(n):
        known.append(sum(known) % 50000)
    return known


KILLED = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import test_guide
guide = test_guide.guide()
client, store = guide.worker_open(sys.argv[2])
print(client.session, flush=True)
lease, prompt = pickle.load(sys.stdin.buffer)
[sequence] = guide.worker_generate(client, store, [(lease, prompt)], test_guide.DOMAIN, test_guide.model_run)
print(sequence.committed, flush=True)
sys.stdin.read()
"""


class EngineGuide(KvdCase):
    def setUp(self):
        super().setUp()
        self.guide = guide()
        self.scheduler = self.guide.scheduler_open(self.kvd.socket)
        self.addCleanup(self.scheduler.close)

    def generate(self, worker, store, prompts, n):
        leases = [self.guide.request_begin(self.scheduler, p, n, DOMAIN, worker.session) for p in prompts]
        batch = self.guide.worker_generate(worker, store, list(zip(leases, prompts)), DOMAIN, model_run)
        for lease, prompt, each in zip(leases, prompts, batch):
            self.assertEqual(list(each.tokens), expected(prompt, n))
            self.assertEqual(each.committed, len(prompt) + n - 1)
            made = self.guide.request_checkpoint(self.scheduler, lease, each.tokens, each.committed, DOMAIN, 3)
            self.assertEqual(made.frontier, each.committed)
            self.assertTrue(self.guide.request_finish(self.scheduler, lease, each.tokens, each.committed, DOMAIN))
        return [lease.cached for lease in leases]

    def test_requests_one_after_the_other(self):
        """CONT-2, CKPT-1: the second turn begins where the first ended, to the token."""
        worker, store = self.guide.worker_open(self.kvd.socket)
        self.addCleanup(worker.close)
        prompts = [tokens(1, 300), tokens(2, 70)]
        self.assertEqual(self.generate(worker, store, prompts, 400), [0, 0])
        turns = [expected(prompt, 400) for prompt in prompts]
        self.assertEqual(self.generate(worker, store, turns, 10), [699, 469])
        self.assertEqual(self.guide.worker_events(worker), 0)
        self.kvd.restart()
        again, store = self.guide.worker_again(worker, store, self.kvd.socket)
        self.addCleanup(again.close)
        self.assertNotEqual(again.epoch, worker.epoch)
        self.scheduler = self.guide.scheduler_open(self.kvd.socket)
        self.addCleanup(self.scheduler.close)
        self.assertEqual(self.generate(again, store, prompts, 10), [0, 0])
        self.assertEqual(self.guide.worker_again(again, store, self.kvd.socket), (again, store))

    def test_append_and_attention(self):
        """VIEW-1: the mean of the values where all keys are equal, through the pages of a sequence."""
        worker, store = self.guide.worker_open(self.kvd.socket)
        self.addCleanup(worker.close)
        k = np.full((1, 3, 2, 64), 0x3F80, np.uint16)
        v = np.array([0x3F80, 0x4000, 0x4040], np.uint16)[None, :, None, None].repeat(2, 2).repeat(64, 3)
        with self.scheduler.activate([1, 2, 3], max_new_tokens=1, domain=DOMAIN) as sequence:
            out = self.guide.attend(store, sequence, 1, k, v, k.repeat(2, 2), 0, 3)
        np.testing.assert_array_equal(out[0, :, 3, 7], [0x3F80, 0x3FC0, 0x4000])

    def test_a_killed_worker(self):
        """CONT-3, SRV-5: what it had committed and named is in the event, and found by the next worker."""
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, os.path.dirname(__file__), self.kvd.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.stdout.close)
        import pickle

        prompt = tokens(1, 300)
        lease = self.guide.request_begin(self.scheduler, prompt, 100, DOMAIN, int(process.stdout.readline()))
        pickle.dump((lease, prompt), process.stdin)
        process.stdin.flush()
        self.assertEqual(int(process.stdout.readline()), 399)
        process.kill()
        left = self.guide.request_ended(self.scheduler, lease)
        [info] = [each for each in self.scheduler.continuations() if each.continuation == left]
        self.assertEqual(info.frontier // 64, 399 // 64)
        worker, store = self.guide.worker_open(self.kvd.socket)
        self.addCleanup(worker.close)
        self.assertEqual(self.generate(worker, store, [expected(prompt, 100)], 5), [384])

    def test_a_group(self):
        worker, _ = self.guide.worker_open(self.kvd.socket)
        self.addCleanup(worker.close)
        group = self.guide.lease_to_ranks(self.scheduler, [worker.session])
        with self.scheduler.activate([1] * 10, 10, group=group) as sequence:
            self.assertEqual([each.group for each in self.scheduler.sequences()], [group])
            sequence.finish(retain=False)


if __name__ == "__main__":
    unittest.main()
