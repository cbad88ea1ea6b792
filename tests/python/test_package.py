# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: its guide runs, its types hold, the wheel is built offline and works alone."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import KvdCase

ROOT = os.path.join(os.environ["KVD_SOURCE"], "client", "python")


def run(*arguments, **options):
    done = subprocess.run(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, **options
    )
    return done.returncode, done.stdout


class Guide(KvdCase):
    def test_its_blocks_are_one_program(self):
        """What README.md shows runs from top to bottom against a real kvd."""
        with open(os.path.join(ROOT, "README.md")) as file:
            blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
        self.assertGreater(len(blocks), 4)
        program = "\n".join(blocks)
        code, text = run(sys.executable, "-c", program, env={**os.environ, "KVD_SOCKET": self.kvd.socket})
        self.assertEqual(code, 0, text)
        self.assertIn("tokens from the cache", text)


class Readme(KvdCase):
    PRELUDE = """
import sys
prompt = list(range(300))
def compute(store, sequence, begin, end):
    slots = sequence.slot_mapping(begin, end)
    store.k[0].numpy()[slots // 64, :, slots % 64] = 7
"""

    def test_its_first_example(self):
        """CONT-3: the block of Python in the project's README, in two processes: the second finds what the first left."""
        with open(os.path.join(os.environ["KVD_SOURCE"], "README.md")) as file:
            [block] = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
        for cached in (0, 299):
            code, text = run(
                sys.executable, "-c", self.PRELUDE + block, env={**os.environ, "KVD_SOCKET": self.kvd.socket}
            )
            self.assertEqual((code, text), (0, f"{cached} of 300 tokens are in the cache\n"))


class Table(unittest.TestCase):
    def test_every_call_of_the_library(self):
        """The guide's table has all functions that libkvd exports, and what it names on the right is there."""
        import kvd
        import kvd.store

        with open(os.path.join(ROOT, "README.md")) as file:
            rows = re.findall(r"^\| (`kvd_.*?) \| (.*?) \|$", file.read(), re.M)
        with open(os.path.join(os.environ["KVD_SOURCE"], "deploy", "debian", "libkvd1.symbols")) as file:
            exported = set(re.findall(r"^ (kvd_\w+)@", file.read(), re.M))
        self.assertGreater(len(exported), 70)
        self.assertEqual(set(re.findall(r"`(kvd_\w+)`", " ".join(left for left, _ in rows))), exported)
        for name in re.findall(r"`([\w.]+)`", " ".join(right for _, right in rows)):
            owner, _, attribute = name.rpartition(".")
            where = kvd.store.Store if owner == "Store" else getattr(kvd, owner) if owner else kvd
            self.assertTrue(hasattr(where, attribute), name)


class Fields(unittest.TestCase):
    #: What the package leaves alone: the daemon's version, and what only the process that exports GPU memory may use.
    UNUSED = {"HelloReply.server", "RegionInfo.local_address"}

    def test_every_field_of_the_protocol(self):
        """What a message can say, some call of the package says or shows."""
        from kvd._schema import service

        words = set()
        for name in os.listdir(os.path.join(ROOT, "kvd")):
            if name.endswith(".py"):
                with open(os.path.join(ROOT, "kvd", name)) as file:
                    words.update(re.findall(r"\w+", file.read()))
        unused, seen = set(), set()

        def walk(descriptor):
            if descriptor.full_name in seen:
                return
            seen.add(descriptor.full_name)
            for field in descriptor.fields:
                if field.name not in words:
                    unused.add(f"{descriptor.name}.{field.name}")
                if field.message_type:
                    walk(field.message_type)

        for method in service("Kvd").methods:
            walk(method.input_type)
            walk(method.output_type)
        self.assertGreater(len(seen), 60)
        self.assertEqual(unused, self.UNUSED)


class Types(unittest.TestCase):
    def test_strictly(self):
        if shutil.which("mypy") is None:
            self.skipTest("mypy is not installed")
        with tempfile.TemporaryDirectory() as cache:
            code, text = run("mypy", "--cache-dir", cache, cwd=ROOT)
        self.assertEqual(code, 0, text)


class Wheel(KvdCase):
    def test_built_offline_and_used_alone(self):
        if run(sys.executable, "-c", "import setuptools, wheel, pip")[0]:
            self.skipTest("pip, setuptools and wheel are not installed")
        with tempfile.TemporaryDirectory() as folder:
            tree = os.path.join(folder, "kvd")
            shutil.copytree(ROOT, os.path.join(tree, "client", "python"))
            shutil.copytree(os.path.join(os.environ["KVD_SOURCE"], "proto"), os.path.join(tree, "proto"))
            env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""}
            code, text = run(
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--no-build-isolation",
                "--no-deps",
                "-w",
                folder,
                os.path.join(tree, "client", "python"),
                env=env,
            )
            self.assertEqual(code, 0, text)
            wheel = [name for name in os.listdir(folder) if name.endswith(".whl")]
            self.assertRegex(wheel[0], r"^kvd_client-[0-9.]+-py3-none-any\.whl$")
            target = os.path.join(folder, "installed")
            shutil.unpack_archive(os.path.join(folder, wheel[0]), target, "zip")
            code, text = run(
                sys.executable,
                "-c",
                "import kvd; print(kvd.__file__, kvd.connect().stats().sequences)",
                env={**env, "PYTHONPATH": target, "KVD_SOCKET": self.kvd.socket},
            )
            self.assertEqual((code, text), (0, f"{target}/kvd/__init__.py 0\n"))
            self.assertTrue(os.path.exists(f"{target}/kvd/py.typed"))

    def test_the_version_is_the_project_s(self):
        import kvd

        with open(os.path.join(os.environ["KVD_SOURCE"], "CMakeLists.txt")) as file:
            self.assertIn(f"project(kvd VERSION {kvd.__version__} ", file.read())

    def test_importing_is_light(self):
        """Neither numpy nor torch nor asyncio come with it."""
        code, text = run(
            sys.executable,
            "-c",
            "import sys, kvd; print([m for m in ('numpy', 'torch', 'asyncio') if m in sys.modules])",
        )
        self.assertEqual((code, text), (0, "[]\n"))


if __name__ == "__main__":
    unittest.main()
