# SPDX-License-Identifier: Apache-2.0
"""An attached store: shapes and strides in every arrangement, tables, numpy, DLPack, torch where it is installed,
state slots, and a sequence whose KV another process's mapping sees (VIEW-1, VIEW-2, GEOM-4)."""

import ctypes
import gc
import os
import unittest

import numpy as np

import kvd
from kvd._memory import Descriptors, map_region
from kvd._wire import now_ns
from kvd.store import _DLTensor
from libkvd import Libkvd
from support import KvdCase, tokens

try:
    import torch
except ImportError:
    torch = None


def raw_planes(client):
    """Pool, planes and bytes of the region as kvd describes them, without the package's views."""
    info = client.describe()
    with Descriptors(info.fd_socket, info.fd_token, now_ns() + 10**10) as descriptors:
        region = map_region(info.pool[0].planes[0], descriptors, True, "planes", 1, -1, client.epoch)
    planes = {(plane.layer, plane.slot): plane for plane in client.describe_planes()}
    return info.pool[0], planes, np.frombuffer(region.buffer, np.uint8)


class Case(KvdCase):
    def setUp(self):
        super().setUp()
        self.client = kvd.connect(self.kvd.socket, name="arrays")
        self.addCleanup(self.client.close)
        self.store = self.client.attach()


class Bf16(Case):
    def test_shapes(self):
        store = self.store
        self.assertEqual(
            (len(store.k), store.k[0].shape, store.kv[1].shape), (2, (256, 2, 64, 64), (256, 2, 2, 64, 64))
        )
        self.assertEqual((store.k[0].dtype, store.k[0].numpy().dtype, store.table.shape), ("bfloat16", "<u2", (8, 64)))
        self.assertRaises(IndexError, lambda: store.k[2])
        self.assertRaises(kvd.FailedPrecondition, lambda: store.pool(0).k_scale[0])
        for plane in (store.kv[0].numpy()[:, 0], store.k[0].numpy()):
            plane[5, 1, 7] = np.arange(64)
        store.kv[0].numpy()[9, 1, 0, 3] = 21
        self.assertTrue((store.v[0].numpy()[9, 0, 3] == 21).all())
        self.assertTrue((store.k[0].numpy()[5, 1, 7] == np.arange(64)).all())

    def test_tables_are_read_only(self):
        table = self.store.table.numpy()
        self.assertTrue((table == -1).all())
        with self.assertRaises(ValueError):
            table[0, 0] = 1
        with self.client.activate(tokens(1, 100), 50, hit=None) as sequence:
            self.assertEqual(list(table[sequence.row][: len(sequence.block_table())]), list(sequence.block_table()))
            self.assertGreaterEqual(sequence.block_table().min(), 0)
            pages = sequence.block_table()
            self.assertEqual(
                list(sequence.slot_mapping(63, 66)), [pages[0] * 64 + 63, pages[1] * 64, pages[1] * 64 + 1]
            )
            self.assertRaises(kvd.OutOfRange, sequence.slot_mapping, 0, 5000)
            sequence.finish(retain=False)
        self.assertTrue((table == -1).all())

    def test_dlpack_says_bfloat16(self):
        capsule = self.store.k[1].__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
        self.assertEqual((tensor.code, tensor.bits, tensor.lanes, tensor.ndim), (4, 16, 1, 4))
        self.assertEqual(tensor.data, self.store.k[1].numpy().__array_interface__["data"][0])
        self.assertEqual(self.store.k[0].__dlpack_device__(), (1, 0))
        self.assertRaises(BufferError, self.store.table.__dlpack__)

    def test_an_engine_and_its_successor(self):
        """KV that one client wrote is what the next finds, token by token."""
        prompt = tokens(3, 150)

        def values(layer, begin, end):
            return (np.array(prompt[begin:end])[:, None] * (layer + 3) % 60000).astype(np.uint16).repeat(64, 1)

        with self.client.activate(prompt, 20, domain="m") as sequence:
            slots = sequence.slot_mapping(0, 150)
            for layer in range(2):
                for plane in (self.store.k[layer], self.store.v[layer]):
                    plane.numpy()[slots // 64, :, slots % 64] = values(layer, 0, 150)[:, None]
            sequence.step([1])
        with kvd.connect(self.kvd.socket) as other, other.attach() as store:
            with other.activate(prompt + [1, 2], 20, domain="m") as sequence:
                self.assertEqual(sequence.cached, 150)
                slots = sequence.slot_mapping(0, 150)
                for layer in range(2):
                    seen = store.v[layer].numpy()[slots // 64, :, slots % 64]
                    self.assertTrue((seen == values(layer, 0, 150)[:, None]).all())
                sequence.finish(retain=False)

    @unittest.skipUnless(torch, "torch is not installed")
    def test_torch(self):
        tensor = self.store.k[0].torch()
        self.assertEqual((tensor.dtype, tuple(tensor.shape)), (torch.bfloat16, (256, 2, 64, 64)))
        tensor[4, 1, 2] = 1.5
        self.assertTrue((self.store.k[0].numpy()[4, 1, 2] == 0x3FC0).all())
        self.assertTrue(torch.equal(torch.from_dlpack(self.store.k[0]), tensor))
        self.assertEqual(tuple(self.store.table.torch().shape), (8, 64))
        self.store.detach()
        self.assertEqual(tensor[4, 1, 2, 0], 1.5)


class Strides(KvdCase):
    """Every element is where kvd's plane description puts it."""

    def check(self):
        with kvd.connect(self.kvd.socket) as client, client.attach() as store:
            pool, planes, memory = raw_planes(client)
            draw = np.random.default_rng(1)
            of_slot = [store.k, store.v, store.pool(0).k_scale, store.pool(0).v_scale]
            for (layer, slot), plane in planes.items():
                view = of_slot[slot][layer].numpy()
                raw = view.view(np.uint8 if view.itemsize == 1 else np.uint16)
                for _ in range(20):
                    page, head, token, x = (int(draw.integers(n)) for n in view.shape)
                    value = int(draw.integers(256**view.itemsize))
                    raw[page, head, token, x] = value
                    nb2, nb3 = (head, page) if pool.order == 0 else (page, head)
                    at = plane.offset + x * plane.nb0 + token * plane.nb1 + nb2 * plane.nb2 + nb3 * plane.nb3
                    self.assertEqual(int.from_bytes(memory[at : at + view.itemsize].tobytes(), "little"), value)


def strides_case(name, **settings):
    def test(self):
        self.check()

    return type(name, (Strides,), {"settings": settings, "test_elements": test})


RecordBf16 = strides_case("RecordBf16", head_dim=80)
DenseBf16 = strides_case("DenseBf16", profile="bf16\narrangement = dense")
Int8 = strides_case("Int8", profile="int8", head_dim=256)
Fp8 = strides_case("Fp8", profile="fp8", head_dim=256)
Nvfp4 = strides_case("Nvfp4", profile="nvfp4", head_dim=256)
K8v4 = strides_case("K8v4", profile="k8v4", head_dim=256)
Fp8Tensor = strides_case("Fp8Tensor", profile="fp8-tensor", head_dim=80)


class Groups(Case):
    """GRP-1: a layer has what its format says, and every byte is where kvd says."""

    settings = {
        "layers": None,
        "more": """
[pool.main]
groups = full wide latent packed
[group.full]
layers = 2
[group.wide]
layers = 1
v_head_dim = 32
order = head-major
[group.latent]
layers = 2
format = latent
bytes = 132
[group.packed]
layers = 1
format = packed
bytes = 48
order = head-major
""",
    }

    def test_shapes(self):
        store, info = self.store, self.store.info.pool[0]
        self.assertEqual([(g.name, g.format, g.n_layers) for g in info.group][1:3], [("wide", 0, 1), ("latent", 1, 2)])
        self.assertEqual((info.n_layers, len(store.k), info.page_bytes), (6, 6, 64 * (1024 + 2 * 192 + 264 + 96)))
        self.assertEqual((store.kv[1].shape, store.v[2].shape), ((256, 2, 2, 64, 64), (256, 2, 64, 32)))
        self.assertEqual((store.latent[3].shape, store.latent[4].dtype), ((256, 64, 132), "uint8"))
        self.assertEqual(store.packed[5].shape, (256, 2, 64, 48))
        for views, layer in ((store.k, 3), (store.v, 5), (store.kv, 2), (store.latent, 0), (store.packed, 4)):
            with self.assertRaises(kvd.FailedPrecondition):
                views[layer]

    def test_elements(self):
        _, planes, memory = raw_planes(self.client)
        of_format = {0: (self.store.k, self.store.v), 1: (self.store.latent,), 2: (self.store.packed,)}
        seen = np.zeros(len(memory), bool)
        for (layer, slot), plane in planes.items():
            view = of_format[plane.format][slot][layer].numpy()
            heads = view if plane.format != 1 else view[:, None]
            raw = heads.view(np.uint8) if heads.itemsize == 1 else heads
            for page, head in ((0, 0), (9, 0), (255, plane.n_heads - 1)):
                raw[page, head] = (layer * 40 + slot * 20 + page + head) % 251 + 1
                by_page, by_head = (plane.nb3, plane.nb2) if plane.order == 0 else (plane.nb2, plane.nb3)
                at = plane.offset + page * by_page + head * by_head
                there = memory[at : at + 64 * plane.nb1]
                self.assertTrue((np.frombuffer(there, raw.dtype) == raw[page, head].reshape(-1)).all())
                self.assertFalse(seen[at : at + 64 * plane.nb1].any() and head)
                seen[at : at + 64 * plane.nb1] = True


class Windows(Case):
    """GRP-2, GRP-3: a prompt goes in steps, the rows show the window alone, and what is kept goes on from its end."""

    settings = {
        "layers": 1,
        "more": """
[pool.near]
groups = near
window = 128
[group.near]
layers = 3
[lease]
prefill_chunk = 192
""",
    }

    def fill(self, sequence, value):
        seen = []

        def run(begin, end):
            for pool in range(2):
                slots = sequence.slot_mapping(begin, end, pool=pool)
                for view in self.store.pool(pool).k:
                    view.numpy()[slots // 64, :, slots % 64] = value
            seen.append(end - begin)

        while sequence.done < sequence.known:
            if sequence.mapped <= sequence.done:
                sequence.take(self.client.round([sequence.boundary()])[0])
            end = min(sequence.mapped, sequence.known)
            run(sequence.done, end)
            sequence.complete(end)
        return seen

    def test_prompt_in_steps(self):
        info = self.store.info
        pools = [(p.name, p.window, p.window_aligned) for p in info.pool]
        self.assertEqual(pools, [("main", 0, False), ("near", 128, False)])
        self.assertEqual([len(pool.k) for pool in self.store.pools], [1, 3])
        prompt = list(range(1500))
        sequence = self.client.activate(prompt, 100)
        self.assertEqual(sequence.mapped, 0)
        self.assertGreater(len(self.fill(sequence, 7)), 3)
        sequence.step([5])
        self.assertEqual((sequence.first(0), sequence.first(1)), (0, (sequence.committed - 127) // 64 * 64))
        self.assertTrue((sequence.block_table() >= 0).all())
        table = sequence.block_table(pool=1)
        self.assertTrue(
            (table[: sequence.first(1) // 64] == -1).all() and (table[sequence.first(1) // 64 :] >= 0).all()
        )
        with self.assertRaises(kvd.OutOfRange):
            sequence.slot_mapping(0, 1, pool=1)
        self.fill(sequence, 8)
        sequence.finish()
        again = self.client.activate(prompt + [5, 6], 10)
        self.assertEqual((again.cached, again.first(1)), (1501, (1501 - 127) // 64 * 64))
        slots = again.slot_mapping(again.first(1), 1500, pool=1)
        for view in self.store.pool(1).k:
            self.assertTrue((view.numpy()[slots // 64, :, slots % 64] == 7).all())
        again.finish(retain=False)


    def test_rolling_checkpoints(self):
        """GRP-5: a running sequence leaves what its activation asked for, where its window has gone on."""
        prompt = list(range(1500))
        for domain, ask, found in (
            ("none", {}, {600: 0, 1100: 0, 1500: 0}),
            ("every", {"checkpoint_every": 512}, {600: 512, 1100: 1024, 1500: 1024}),
            ("prompt", {"checkpoint_prompt": True}, {600: 0, 1100: 0, 1500: 1472}),
        ):
            with self.client.activate(prompt, 100, domain=domain, **ask) as sequence:
                self.fill(sequence, 7)
                sequence.take(self.client.round([sequence.boundary()])[0])
                sequence.name()
                for n, usable in found.items():
                    hits = self.client.find(prompt[:n], domain)
                    self.assertEqual(max([hit.usable for hit in hits], default=0), usable, (domain, n))
                sequence.finish(retain=False)
        with self.assertRaises(kvd.InvalidArgument):
            self.client.activate(prompt, 100, checkpoint_every=100)


class Int8Views(Case):
    settings = {"profile": "int8", "head_dim": 256}

    def test_dlpack_through_numpy(self):
        plane = np.from_dlpack(self.store.k[0])
        self.store.k[0].numpy()[3, 0, 1] = -7
        self.assertEqual((plane.dtype, plane.shape, plane[3, 0, 1, 0]), (np.int8, (256, 2, 64, 256), -7))
        self.assertEqual(self.store.pool(0).k_scale[1].numpy().dtype, np.float16)


class State(Case):
    settings = {"capacity": "state_bytes = 1000"}

    def test_slots(self):
        prompt = tokens(1, 100)
        with self.client.activate(prompt, 50, hit=None) as sequence:
            image = self.store.state(sequence.state_slot).numpy()
            self.assertEqual(image.shape, (1000,))
            image[:] = 5
            sequence.step([1])
            sequence.state_frontier = 100
        hit = self.client.find(prompt + [1, 2])[0]
        self.assertEqual((hit.usable, hit.frontier), (100, 100))
        with self.client.activate(prompt + [1, 2], 50, hit=hit) as fork:
            self.assertTrue((self.store.state(fork.source_state_slot).numpy() == 5).all())
            fork.finish(retain=False)
        self.assertRaises(kvd.OutOfRange, self.store.state, 10000)


class TwoPools(Case):
    settings = {"backend": "mtp\ndraft_window = 4"}

    def test_rounds_of_two_pools(self):
        self.assertEqual(len(self.store.pools), 2)
        with self.client.activate(tokens(1, 100), 300) as sequence:
            self.assertEqual(len(sequence.rows), 2)
            for _ in range(10):
                sequence.step([1] * 20)
            result = self.client.round([kvd.RoundItem(sequence.handle, keep=(sequence.done, None), ensure=(290, 300))])[
                0
            ]
            self.assertEqual(result.status, kvd.Status.OK)
            self.assertGreaterEqual(result.pools[1].membership * 64, 300)
            self.assertEqual(len(sequence.block_table(pool=1)) * 64 >= 290, True)


class Growth(Case):
    settings = {
        "more": "[lease]\ngrowth = yes\nwindow = 256\nprefill_chunk = 64\nmap_ahead = 0\n",
        "tokens": 64 * 30,
        "max_context": 64 * 29,
    }

    def test_a_bounded_sequence(self):
        """LEASE: it ends early where the pool gives no more, and says so; what is complete stays."""
        first = self.client.activate(tokens(1, 64 * 8), 64 * 20, hit=None)
        second = self.client.activate(tokens(2, 64 * 8), 64 * 20, hit=None, evict=None)
        with self.assertRaises(kvd.ResourceExhausted) as caught:
            while True:
                first.step([1] * 64)
                second.step([2] * 64)
        bounded = first if first.bounded else second
        self.assertTrue(bounded.bounded)
        self.assertIn(
            str(bounded.end - 1 if "for now" in caught.exception.message else bounded.end), caught.exception.message
        )
        self.assertLessEqual(bounded.known, bounded.end)
        self.assertNotEqual(bounded.finish(), 0)
        (second if bounded is first else first).finish()
        self.assertEqual(self.client.stats().sequences, 0)


class Roles(Case):
    def test_an_observer_gets_no_memory(self):
        with kvd.connect(self.kvd.socket, role="observer") as observer:
            self.assertRaises(kvd.PermissionDenied, observer.attach)
        with kvd.connect(self.kvd.socket, role="worker") as worker:
            self.assertEqual(worker.attach(0).k[0].shape[0], 256)
        self.assertRaises(kvd.FailedPrecondition, self.client.attach, device="cuda:0")


class ByDescriptor(Case):
    settings = {"more": "[devices]\nexport = vmm\n"}

    def test_cold_tier(self):
        cold = self.client.cold_tier()
        self.assertFalse(cold.configured)
        self.assertEqual(cold.breaker, 0)
        with self.assertRaises((kvd.FailedPrecondition, kvd.PermissionDenied)):
            self.client.check_cold_tier(10)

    def test_reuse(self):
        reuse = self.client.reuse()
        self.assertEqual((reuse.prompt_tokens, reuse.domains), (0, ()))
        self.assertEqual(reuse.sizes[-1], kvd.types.ReuseSize(2**64 - 1, 0))

    def test_changes(self):
        """FEED-1, in both languages: from where the changes stand."""
        twin = Libkvd(self.kvd.socket)
        self.addCleanup(twin.close)
        known = {info.continuation for info in self.client.continuations()}
        for changes in (self.client.changes, twin.changes):
            none, cursor = changes()
            self.assertEqual(none, [])
            sequence = self.client.activate([7] * 200, max_new_tokens=2)
            sequence.step()
            continuation = sequence.finish()
            told, behind = changes(cursor)
            of = [info for info in told if info.continuation == continuation]
            self.assertEqual([(info.frontier, info.demoted, info.live) for info in of], [(200, False, False)])
            self.assertEqual(changes(behind), ([], behind))
            self.client.release(continuation)
            told, _ = changes(behind)
            self.assertEqual({(info.continuation, info.frontier) for info in told}, {(continuation, 0)})
            with self.assertRaises(kvd.OutOfRange):
                changes(cursor + 2**20)
        self.assertEqual({info.continuation for info in self.client.continuations()}, known)

    def test_settings(self):
        settings = {(each.section, each.name): each for each in self.client.settings()}
        self.assertGreater(len(settings), 50)
        self.assertEqual(settings["kvd", "socket"].value, self.kvd.socket)
        self.assertRegex(settings["kvd", "socket"].source, r":\d+$")
        self.assertEqual(settings["host", "stop_time"].source, "default")
        self.assertFalse(any(each.restart for each in settings.values()))

    def test_memory_by_descriptor(self):
        """SRV-7: regions of kind 2 come over the socket of descriptors. Each mapping keeps its own, and no longer."""
        self.assertEqual(self.client.describe().pool[0].planes[0].kind, 2)
        self.store.detach()
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        with self.client.attach() as store:
            self.assertEqual(len(os.listdir("/proc/self/fd")) - before, 2)
            store.k[0].numpy()[1] = 3
        gc.collect()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        with kvd.connect(self.kvd.socket, role="worker") as worker, worker.attach() as store:
            self.assertTrue((store.k[0].numpy()[1] == 3).all())
            self.assertRaises(ValueError, store.table.numpy().__setitem__, (0, 0), 1)


if __name__ == "__main__":
    unittest.main()
