# SPDX-License-Identifier: Apache-2.0
"""The codec and the names against the examples of proto/PROTOCOL.md, and the modules' own examples."""

import doctest
import importlib
import os
import re
import unittest

import kvd
from kvd import _messages as messages
from kvd import errors, types

with open(os.path.join(os.environ["KVD_SOURCE"], "proto", "PROTOCOL.md")) as file:
    PROTOCOL = file.read()


def example(after):
    """The first indented block of hexadecimal digits after a sentence."""
    block = re.search(r"\n\n((?:    [0-9a-f ]+\n)+)", PROTOCOL[PROTOCOL.index(after) :]).group(1)
    return bytes.fromhex("".join(block.split()))


class Examples(unittest.TestCase):
    def test_hello(self):
        hello = messages.hello(types.Role.WORKER, "engine", "", 0)
        self.assertEqual(messages.hello_frame(hello, 1), example("Example: Hello"))

    def test_round(self):
        item = types.RoundItem(0x0000000300000002, commit=128, ensure=192)
        frame = messages.frame(messages.round_request([item], 1), 2, 0x0000000100000001, 1, 0, 0)
        self.assertEqual(frame, example("Example: a Round"))

    def test_root(self):
        domain = kvd.Domain("llama", "", "acme")
        self.assertEqual(domain.root(), example("has the root"))
        chain = kvd.Chain(domain, range(64))
        self.assertEqual(chain.digest(0), example("digest[0]"))

    def test_every_request_of_the_table(self):
        rows = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \| (\w+) \| (yes|may)? ?\|", PROTOCOL, re.M)
        told = {(int(number), name, changes == "yes") for number, name, _, _, changes in rows}
        self.assertEqual({(k.type, k.name, k.changes) for k in messages.KINDS.values()}, told)

    def test_every_status(self):
        section = PROTOCOL[PROTOCOL.index("\n## Statuses") :]
        rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| [a-z]", section[: section.index("\n## Limits")], re.M)
        self.assertEqual({s.name: int(s) for s in kvd.Status}, {name: int(number) for number, name in rows})
        for status in kvd.Status:
            if status:
                self.assertEqual(errors.error_of(status, "x").status, status)
        self.assertEqual(errors.error_of(99, "x").status, kvd.Status.UNKNOWN)


class Doctests(unittest.TestCase):
    def test_modules(self):
        for name in ("errors", "names", "_memory", "types", "policy", "sequence", "client"):
            result = doctest.testmod(importlib.import_module("kvd." + name))
            self.assertEqual(result.failed, 0, name)
        self.assertGreater(doctest.testmod(errors).attempted, 2)


if __name__ == "__main__":
    unittest.main()
