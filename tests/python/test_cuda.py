# SPDX-License-Identifier: Apache-2.0
"""Pages in GPU memory as torch tensors: by CUDA IPC handle and by descriptor, DLPack, the CUDA array interface; an
engine and kvd that are killed. Skipped without torch and a GPU (VIEW-1, VIEW-4, SRV-4)."""

import gc
import os
import signal
import subprocess
import sys
import unittest

import kvd
from support import KvdCase, tokens

try:
    import torch

    HAVE_GPU = torch.cuda.is_available()
except ImportError:
    HAVE_GPU = False

ENGINE = """
import sys, kvd, torch
from support import tokens
client = kvd.connect(sys.argv[1], name="engine")
store = client.attach(device="cuda:0")
prompt = tokens(3, 700)
sequence = client.activate(prompt, 100, domain="gpu")
values = torch.tensor(prompt, device="cuda")[:, None, None] % 251
slots = sequence.slot_mapping(sequence.cached, 700)
for layer in range(2):
    for plane, factor in ((store.k[layer], 1), (store.v[layer], 2)):
        plane.torch()[slots // 64, :, slots % 64] = (values[sequence.cached:] * factor + layer).bfloat16()
torch.cuda.synchronize()
sequence.step([1])
sequence.checkpoint(retention=3)
print("ready", sequence.cached, flush=True)
sys.stdin.read()
"""


@unittest.skipUnless(HAVE_GPU, "torch and a GPU are not here")
class OnGpu(KvdCase):
    settings = {"device": "cuda:0", "more": "[host]\narena = 64MiB\n"}

    def engine(self):
        made = subprocess.Popen(
            [sys.executable, "-c", ENGINE, self.kvd.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.addCleanup(made.stdout.close)
        self.addCleanup(made.stdin.close)
        self.addCleanup(made.wait)
        self.addCleanup(made.kill)
        return made, made.stdout.readline().split()

    def check(self, expected_cached=700):
        prompt = tokens(3, 700)
        values = torch.tensor(prompt, device="cuda")[:, None, None] % 251
        with kvd.connect(self.kvd.socket, timeout=30) as client, client.attach(device="cuda") as store:
            with client.activate(prompt + [1, 2], 10, domain="gpu") as sequence:
                self.assertEqual(sequence.cached, expected_cached)
                slots = sequence.slot_mapping(0, expected_cached)
                for layer in range(2):
                    for plane, factor in ((store.k[layer], 1), (store.v[layer], 2)):
                        seen = plane.torch()[slots // 64, :, slots % 64]
                        self.assertTrue(
                            torch.equal(seen, (values[:expected_cached] * factor + layer).bfloat16().expand_as(seen))
                        )
                        both = store.kv[layer].torch()[slots // 64, factor - 1, :, slots % 64]
                        self.assertTrue(torch.equal(both, seen))
                del seen, both, slots
                sequence.finish(retain=False)
            gc.collect()

    def test_an_engine_is_killed(self):
        engine, said = self.engine()
        self.assertEqual(said, ["ready", "0"])
        engine.send_signal(signal.SIGKILL)
        self.check()
        self.assertEqual(self.engine()[1], ["ready", "699"])

    def test_kvd_is_killed(self):
        engine, _ = self.engine()
        with kvd.connect(self.kvd.socket) as client:
            for info in client.continuations():
                if info.frontier == 700:  # the checkpoint; what the sequence has named so far is there, too
                    client.demote(info.continuation, keep_device=True, timeout=30)
        engine.kill()
        engine.wait()
        self.kvd.restart()
        self.check()

    def test_views(self):
        with kvd.connect(self.kvd.socket) as client:
            store = client.attach()
            tensor = store.k[0].torch()
            self.assertEqual(
                (tensor.dtype, tensor.device.type, tensor.data_ptr()),
                (torch.bfloat16, "cuda", store.k[0].__cuda_array_interface__["data"][0]),
            )
            tensor[3] = 2.5
            self.assertEqual(torch.from_dlpack(store.k[0])[3, 0, 0, 0].item(), 2.5)
            self.assertEqual(store.k[0].__dlpack_device__(), (2, 0))
            self.assertTrue((store.table.torch() == -1).all().item())
            self.assertRaises(kvd.FailedPrecondition, store.k[0].numpy)
            self.assertRaises(kvd.FailedPrecondition, client.attach, device="cpu")
            self.assertRaises(kvd.FailedPrecondition, client.attach, device="cuda:7")
            again = client.attach()
            self.assertEqual(again.v[1].torch().device.type, "cuda")
            store.detach()
            self.assertRaises(kvd.FailedPrecondition, lambda: store.k)
            self.assertEqual(tensor[3, 0, 0, 0].item(), 2.5)
            again.detach()

    def test_the_mapping_ends_with_its_last_tensor(self):
        with kvd.connect(self.kvd.socket) as client:
            from kvd import _cuda

            store = client.attach()
            tensor = store.k[1].torch()
            store.detach()
            client._store = None
            del store
            gc.collect()
            self.assertLessEqual(len(_cuda._by_handle), 1)
            del tensor
            gc.collect()
            self.assertEqual(len(_cuda._by_handle), 0)


class ByDescriptor(OnGpu):
    settings = {"device": "cuda:0\nexport = vmm", "more": "[host]\narena = 64MiB\n"}

    test_the_mapping_ends_with_its_last_tensor = None


if __name__ == "__main__":
    unittest.main()
