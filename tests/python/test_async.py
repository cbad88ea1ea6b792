# SPDX-License-Identifier: Apache-2.0
"""The client in an event loop, and what waits for an engine behind kvd: the cold tier, with and without a loop."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import kvd
from proxy import Proxy
from support import KvdCase, freeze, tokens, until


class Async(KvdCase):
    def run_in_loop(self, make, **options):
        async def main():
            async with kvd.connect(self.kvd.socket, timeout=20, **options) as client:
                await make(client)

        asyncio.run(main())

    def test_many_at_once(self):
        async def request(client, seed):
            prompt = tokens(seed, 150)
            async with await client.activate_async(prompt, 100, hit=None) as sequence:
                for _ in range(3):
                    await sequence.step_async([seed] * 30)
                results = await client.round_async([sequence.boundary()])
                sequence.take(results[0])
                await sequence.checkpoint_async(1)
            return (await client.find_async(prompt + [1]))[0].usable  # its page 2 goes on with what was generated

        async def all_of_them(client):
            self.assertEqual(await asyncio.gather(*(request(client, seed) for seed in range(8))), [128] * 8)
            self.assertEqual((client.stats().sequences, client.stats().continuations), (0, 8), "a checkpoint at the end is the end's")

        self.run_in_loop(all_of_them)

    def test_the_loop_goes_on_while_calls_wait(self):
        async def beside(client):
            self.kvd.freeze()
            waiting = asyncio.ensure_future(client.find_async([1, 2, 3]))
            for _ in range(20):
                await asyncio.sleep(0)
            self.assertFalse(waiting.done())
            self.kvd.thaw()
            self.assertEqual(await waiting, [])

        self.run_in_loop(beside)

    def test_events(self):
        async def listen(client):
            client.subscribe(kvd.EventKind.DRAINING)
            self.assertIsNone(await client.next_event_async(0.01))
            event = asyncio.ensure_future(client.next_event_async(20))
            await asyncio.sleep(0)
            with kvd.connect(self.kvd.socket, role="admin") as admin:
                admin.drain()
            self.assertEqual((await event).kind, kvd.EventKind.DRAINING)

        self.run_in_loop(listen)

    def test_a_cancelled_activation_leaves_nothing(self):
        async def cancel(client):
            client.describe()
            self.kvd.freeze()
            waiting = asyncio.ensure_future(client.activate_async([1] * 100, 10, hit=None))
            while not client._session._pending:
                await asyncio.sleep(0)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            self.kvd.thaw()
            del waiting
            gc.collect()
            self.assertTrue(until(lambda: client.stats().sequences == 0))

        self.run_in_loop(cancel)

    def test_refusals_and_deadlines(self):
        async def refused(client):
            with self.assertRaises(kvd.NotFound):
                await client.round_async([kvd.RoundItem(5, commit=1)]) and client.release(5)
            with self.assertRaises(kvd.InvalidArgument):
                await client.find_async([])
            self.kvd.freeze()
            begin = time.monotonic()
            with self.assertRaises(kvd.DeadlineExceeded):
                await client.run_async(client._find([1], "", 1), timeout=0.2)
            self.assertLess(time.monotonic() - begin, 15)
            self.kvd.thaw()

        self.run_in_loop(refused)

    def test_a_lost_answer(self):
        proxy = Proxy(self.kvd.dir, self.kvd.socket)
        self.addCleanup(proxy.close)

        async def main():
            async with kvd.connect(proxy.path, timeout=20, ring=False) as client:
                client.describe()
                proxy.lose(9)
                sequence = await client.activate_async([1] * 100, 10, hit=None)
                self.assertEqual((proxy.lost, client.stats().sequences), (1, 1))
                await sequence.finish_async(retain=False)

        asyncio.run(main())

    def test_answers_of_many_calls(self):
        """Those that went into the ring before the loop waited for the descriptor, and those that come on the stream."""

        async def many(client):
            for _ in range(20):
                made = await asyncio.gather(*[client.find_async([1] * n) for n in range(1, 60)])
                self.assertEqual(made, [[]] * 59)
                self.assertEqual(client.find([1, 2]), [])  # in between, in the loop's thread

        self.run_in_loop(many)

    def test_one_client_in_two_loops_one_after_the_other(self):
        with kvd.connect(self.kvd.socket, timeout=20) as client:
            for _ in range(2):

                async def main():
                    self.assertEqual(await client.find_async([1, 2]), [])

                asyncio.run(main())

    def test_without_a_cold_tier(self):
        async def refused(client):
            for ask in (client.find_cold_async, client.load_cold_async):
                with self.assertRaises(kvd.FailedPrecondition) as caught:
                    await ask([1] * 100)
                self.assertIn("[cold]", caught.exception.message)

        self.run_in_loop(refused)


@unittest.skipIf(shutil.which("redis-server") is None, "redis-server is not installed (apt install redis-server)")
class Cold(KvdCase):
    """A prompt of 200 tokens that a redis-server has and the arena has not (COLD-2, COLD-6)."""

    def setUp(self):
        folder = tempfile.mkdtemp(prefix="kvd-redis-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "s")
        options = f"--port 0 --unixsocket {path} --dir {folder} --logfile log --appendonly no --save".split()
        self.redis = subprocess.Popen(["redis-server", *options, ""], stdin=subprocess.DEVNULL)
        self.addCleanup(self._end_redis)
        self.assertTrue(until(lambda: os.path.exists(path)))
        lines = f"[host]\narena = 16MiB\nscrub = 0\n[cold]\naddress = unix:{path}\ntimeout = 20s\nfind_time = 20s\n"
        self.settings = {"more": lines}
        super().setUp()
        self.prompt = tokens(7, 200)
        self.client = kvd.connect(self.kvd.socket, timeout=60)
        self.addCleanup(self.client.close)
        self._write()

    def _end_redis(self):
        self.redis.kill()
        self.redis.wait()

    def _write(self):
        """Computed, kept, demoted, written, released."""
        sequence = self.client.activate(self.prompt, 10, hit=None)
        sequence.step()
        kept = sequence.finish()
        self.client.demote(kept)
        self.assertTrue(until(lambda: self.client.cold_tier().continuations == 1))
        self.client.release(kept)
        self.assertEqual(self.client.find(self.prompt + [1]), [])
        self.assertTrue(until(lambda: self.client.find_cold(self.prompt, until=200).frontier == 200))

    def check_restored(self, found):
        self.assertEqual(found.frontier, 200)
        hit = self.client.find(self.prompt + [1])[0]
        self.assertEqual((hit.continuation, hit.usable, hit.live), (found.continuation, 200, False))
        before = self.client.stats().restored_pages
        sequence = self.client.activate(self.prompt + [1], 10, hit=hit)
        self.assertEqual((sequence.committed, self.client.stats().restored_pages - before), (200, 4))
        sequence.finish(retain=False)

    def test_find_and_load(self):
        there = self.client.find_cold(self.prompt, until=200)
        self.assertEqual((there.continuation, there.frontier), (None, 200))
        part = self.client.load_cold(self.prompt, until=128, retention=3)
        self.assertEqual((part.frontier, self.client.continuations()[0].retention), (128, 3))
        hit = self.client.find(self.prompt)[0]
        behind = self.client.find_cold(self.prompt, behind=hit, until=200)
        rest = self.client.load_cold(self.prompt, behind=hit, until=200)
        self.assertEqual((rest.n_bytes, part.n_bytes + rest.n_bytes), (behind.n_bytes, there.n_bytes))
        self.check_restored(rest)
        again = self.client.load_cold(self.prompt, until=200)
        self.assertEqual(again.continuation, rest.continuation, "twice is once")
        other = self.client.load_cold(tokens(8, 200))
        self.assertEqual((other.continuation, other.frontier, other.n_bytes), (None, 0, 0))
        with self.assertRaises(kvd.InvalidArgument):
            self.client.find_cold(self.prompt, behind=hit, until=128)

    def test_the_next_turn(self):
        """A longer prompt finds where the one before ended, within a page."""
        longer = self.prompt + tokens(8, 300)
        there = self.client.find_cold(longer)
        self.assertEqual((there.frontier, there.pages), (200, 3))
        found = self.client.load_cold(longer)
        self.assertEqual(len(self.client.continuations()), 1)
        self.check_restored(found)

    def test_in_a_loop(self):
        async def main():
            async with kvd.connect(self.kvd.socket, timeout=60) as client:
                there = await client.find_cold_async(self.prompt, until=200)
                freeze(self.redis)
                waiting = asyncio.ensure_future(client.load_cold_async(self.prompt, until=200))
                self.assertEqual(await client.find_async(self.prompt), [], "others do not wait for the engine")
                self.assertFalse(waiting.done())
                self.redis.send_signal(signal.SIGCONT)
                found = await waiting
                self.assertEqual((found.frontier, found.n_bytes), (200, there.n_bytes))
                return found

        self.check_restored(asyncio.run(main()))

    def test_an_activation_loads_first(self):
        """One call: what the engine has, then what is here of it, then, with the engine gone, what is still here."""
        prompt = self.prompt + [1]
        with self.client.activate(prompt, 10, cold=True) as sequence:
            self.assertEqual(sequence.committed, 200)
        self.assertEqual(self.client.find(prompt)[0].usable, 200)
        self.assertEqual(len(self.client.find(prompt)), 1)

        async def main():
            async with kvd.connect(self.kvd.socket, timeout=60) as client:
                async with await client.activate_async(prompt, 10, cold=True) as sequence:
                    self.assertEqual(sequence.committed, 200)

        asyncio.run(main())
        self.client.release(self.client.find(prompt)[0].continuation)
        found = self.client.prefetch_cold(prompt)
        self.assertEqual((found.frontier, self.client.find(prompt)[0].restore_pages), (200, 0))
        self.client.shorten(found.continuation, 128)
        self._end_redis()
        with self.client.activate(prompt, 10, cold=True) as sequence:
            self.assertEqual(sequence.committed, 128)

    def test_a_deadline(self):
        freeze(self.redis)
        with self.assertRaises(kvd.DeadlineExceeded):
            self.client.load_cold(self.prompt, until=200, timeout=2)  # kvd has begun by then
        self.redis.send_signal(signal.SIGCONT)
        self.assertTrue(until(lambda: self.client.find(self.prompt + [1])), "it goes on")
        self.check_restored(self.client.load_cold(self.prompt, until=200))


if __name__ == "__main__":
    unittest.main()
