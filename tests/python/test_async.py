# SPDX-License-Identifier: Apache-2.0
"""The client in an event loop."""

import asyncio
import gc
import time
import unittest

import kvd
from proxy import Proxy
from support import KvdCase, tokens, until


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
            self.assertLess(time.monotonic() - begin, 5)
            self.kvd.thaw()

        self.run_in_loop(refused)

    def test_a_lost_answer(self):
        proxy = Proxy(self.kvd.dir, self.kvd.socket)
        self.addCleanup(proxy.close)

        async def main():
            async with kvd.connect(proxy.path, timeout=20) as client:
                client.describe()
                proxy.lose(9)
                sequence = await client.activate_async([1] * 100, 10, hit=None)
                self.assertEqual((proxy.lost, client.stats().sequences), (1, 1))
                await sequence.finish_async(retain=False)

        asyncio.run(main())

    def test_one_client_in_two_loops_one_after_the_other(self):
        with kvd.connect(self.kvd.socket, timeout=20) as client:
            for _ in range(2):

                async def main():
                    self.assertEqual(await client.find_async([1, 2]), [])

                asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
