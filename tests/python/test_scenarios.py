# SPDX-License-Identifier: Apache-2.0
"""One suite against two clients of the protocol: libkvd (through ctypes) and the package kvd. Both meet a kvd of their
own; the last test compares what a drawn program is answered, sentences included."""

import dataclasses
import random
import re
import unittest

import kvd
import libkvd
from support import Kvd, KvdCase, tokens

DOMAIN = "scenario"
ROOT = kvd.Root(kvd.Domain(DOMAIN).root())


def item(sequence, **what):
    return kvd.RoundItem(sequence, **what)


class Scene:
    """What scenarios share. They are mixed into a case for each client."""

    def connect(self, **options):
        client = self.client_class(self.kvd.socket, **options)
        self.addCleanup(client.close)
        return client

    def refused(self, kind, call, *arguments, has=""):
        with self.assertRaises(kind) as caught:
            call(*arguments)
        self.assertIn(has, caught.exception.message)

    def want(self, client, prompt, output=64, **more):
        more.setdefault("ensure", (prompt,))
        return kvd.Activation(prompt, output, worker=client.session, root=ROOT, **more)

    def retained(self, client, prompt, output=64, retention=0):
        """A continuation of all of a prompt."""
        made = client.activate_exactly(self.want(client, len(prompt), output))
        client.round([item(made.sequence, commit=len(prompt))])
        full = len(prompt) // 64
        if full:
            client.name(made.sequence, prompt, DOMAIN, 0, full)
        return client.finish(made.sequence, True, prompt[full * 64 :], retention)


class Scenarios(Scene):
    def test_life_of_a_request(self):
        """ACT-1, FIN-1, CONT-2: activated, committed, named, retained, found to the token, forked, moved."""
        client, prompt = self.connect(), tokens(1, 200)
        before = client.resources()
        made = client.activate_exactly(self.want(client, 200))
        self.assertEqual((made.pools[0].membership, made.pools[0].committed), (5, 0), "a page ahead")
        self.assertEqual(client.round([item(made.sequence, commit=200, ensure=260)])[0].pools[0][1:4], (5, 5, 200))
        client.name(made.sequence, prompt, DOMAIN, 0, 3)
        kept = client.finish(made.sequence, True, prompt[192:])
        hits = client.find(prompt + [7], DOMAIN)
        self.assertEqual([(h.continuation, h.usable, h.frontier) for h in hits], [(kept, 200, 200)])
        self.assertEqual(client.find(prompt, DOMAIN)[0].usable, 199, "one query must be computed")
        self.assertEqual(client.find(prompt[:195] + [7, 7], DOMAIN)[0].usable, 195, "exact to the token")
        self.assertEqual(client.find(prompt[:100] + [7] * 28, DOMAIN)[0].usable, 64)
        self.assertEqual(client.find(prompt, "other"), [])
        fork = client.activate_exactly(self.want(client, 220, source=kept, frontier=200, keep=True))
        self.assertEqual(fork.pools[0].committed, 200)
        self.assertEqual(client.finish(fork.sequence, False), 0)
        moved = client.activate_exactly(self.want(client, 220, source=kept, frontier=200))
        hits = client.find(prompt + [7], DOMAIN)
        self.assertEqual([(h.usable, h.live) for h in hits], [(192, True)], "what runs has its names (LIVE-1)")
        self.refused(kvd.Aborted, client.release, hits[0].continuation)
        client.finish(moved.sequence, False)
        self.assertEqual(client.find(prompt + [7], DOMAIN), [])
        self.assertEqual(client.resources(), before)

    def test_conditions_of_retaining(self):
        """FIN-1: every full page named, the tail's tokens given, something complete."""
        client, prompt = self.connect(), tokens(2, 130)
        made = client.activate_exactly(self.want(client, 130))
        self.refused(kvd.FailedPrecondition, client.finish, made.sequence, True)
        client.round([item(made.sequence, commit=130)])
        self.refused(kvd.Error, client.finish, made.sequence, True, prompt[128:])
        client.name(made.sequence, prompt, DOMAIN, 0, 1)
        self.refused(kvd.Error, client.checkpoint, made.sequence, prompt[128:])
        client.name(made.sequence, prompt, DOMAIN, 1, 2)
        self.refused(kvd.Error, client.finish, made.sequence, True, ())
        point = client.checkpoint(made.sequence, prompt[128:], 3)
        self.assertEqual((point.frontier, point.shared_pages[0]), (130, 2))
        self.assertNotEqual(client.finish(made.sequence, True, prompt[128:]), 0)
        self.assertEqual({h.usable for h in client.find(prompt + [1], DOMAIN)}, {130})

    def test_refusals_say_what(self):
        """ERR-1: a status and kvd's sentence; nothing changed, and the numbers go on."""
        client = self.connect()
        before = client.resources()
        self.refused(kvd.NotFound, client.release, 99, has="older generation")
        self.refused(kvd.NotFound, client.finish, 99, False, has="does not exist")
        self.refused(kvd.Error, client.activate_exactly, self.want(client, 5000))
        self.refused(kvd.InvalidArgument, client.activate_exactly, dataclasses.replace(self.want(client, 10), worker=0))
        made = client.activate_exactly(self.want(client, 10))
        results = client.round([item(99, commit=1), item(made.sequence, commit=10), item(made.sequence, commit=1000)])
        self.assertEqual([r.status.name for r in results][:2], ["NOT_FOUND", "OK"])
        self.assertNotEqual(results[2].status, kvd.Status.OK)
        self.assertTrue(results[0].message and results[2].message)
        self.refused(kvd.Error, client.round, [])
        client.finish(made.sequence, False)
        self.assertEqual(client.resources(), before)

    def test_roles(self):
        """ROLE-1."""
        observer, worker = self.connect(role="observer"), self.connect(role="worker")
        self.refused(kvd.PermissionDenied, observer.find, [1, 2], DOMAIN)
        self.refused(kvd.PermissionDenied, worker.activate_exactly, self.want(worker, 10))
        self.assertEqual(observer.resources()["sequences"], 0)

    def test_a_worker_drives_what_is_leased_to_it(self):
        scheduler, worker = self.connect(), self.connect(role="worker")
        made = scheduler.activate_exactly(self.want(worker, 100))
        self.assertEqual(worker.round([item(made.sequence, commit=100)])[0].pools[0].committed, 100)
        other = self.connect(role="worker")
        self.assertEqual(other.round([item(made.sequence, commit=100)])[0].status, kvd.Status.PERMISSION_DENIED)
        scheduler.finish(made.sequence, False)

    def test_victims(self):
        """Q-2, SHORT-1: the least valuable give way, as few as make it fit, and the last one only its tail."""
        client = self.connect()
        kept = [self.retained(client, tokens(10 + i, 1900), retention=i % 2) for i in range(8)]
        want = self.want(client, 4000, 90)
        self.assertEqual(client.plan(want)[0], kvd.Feasibility.BLOCKED)
        self.refused(kvd.ResourceExhausted, client.activate_exactly, want)
        want = client.choose_victims(want)
        self.assertEqual(want.victims, ((kept[0], False, 0), (kept[2], False, 12 * 64)))
        made = client.activate_exactly(want)
        self.assertEqual(client.resources()["continuations"], 7)
        self.refused(kvd.Error, client.activate_exactly, self.want(client, 64, revision=want.revision))
        client.finish(made.sequence, False)


class LongScenarios(Scene):
    settings = {"max_context": 64 * 2200, "tokens": 64 * 2300, "layers": 1, "kv_heads": 1, "head_dim": 16}

    def test_find_of_many_pages(self):
        """One message for every 1023 pages."""
        client, prompt = self.connect(), tokens(3, 64 * 2100 + 10)
        kept = self.retained(client, prompt)
        self.assertEqual([(h.continuation, h.usable) for h in client.find(prompt + [1], DOMAIN)], [(kept, len(prompt))])
        self.assertEqual(client.find(prompt[: 64 * 1500] + [1] * 70, DOMAIN)[0].usable, 64 * 1500)
        self.assertEqual(client.find(prompt[: 64 * 1024], DOMAIN)[0].usable, 64 * 1024 - 1)


class HostScenarios(Scene):
    settings = {"more": "[host]\narena = 256MiB\n"}

    def test_places(self):
        """TIER-1: demoted, found, prefetched, brought back by an activation."""
        client, prompt = self.connect(), tokens(4, 200)
        kept = self.retained(client, prompt)
        self.assertEqual(client.demote(kept), (4, 4 * 2 * 2 * 2 * 64 * 64 * 2))
        self.assertEqual(client.demote(kept), (0, 0))
        self.assertEqual(client.find(prompt + [1], DOMAIN)[0].restore_pages, 4)
        self.assertEqual(client.prefetch(kept)[0], 4)
        client.demote(kept)
        made = client.activate_exactly(self.want(client, 220, source=kept, frontier=200, keep=True))
        self.assertEqual(made.restored[0], 4)
        client.finish(made.sequence, False)

    def test_victims_are_demoted(self):
        client = self.connect()
        for i in range(8):
            self.retained(client, tokens(30 + i, 1900))
        want = client.choose_victims(self.want(client, 4000, 90))
        self.assertEqual([victim.demote for victim in want.victims], [True, True])
        made = client.activate_exactly(want)
        self.assertEqual(client.resources()["continuations"], 8)
        client.finish(made.sequence, False)


class ScenariosOfLibkvd(Scenarios, KvdCase):
    client_class = libkvd.Libkvd


class ScenariosOfThePackage(Scenarios, KvdCase):
    client_class = libkvd.Native


class LongScenariosOfLibkvd(LongScenarios, KvdCase):
    client_class = libkvd.Libkvd


class LongScenariosOfThePackage(LongScenarios, KvdCase):
    client_class = libkvd.Native


class HostScenariosOfLibkvd(HostScenarios, KvdCase):
    client_class = libkvd.Libkvd


class HostScenariosOfThePackage(HostScenarios, KvdCase):
    client_class = libkvd.Native


class Digests(unittest.TestCase):
    def test_chains_are_the_same(self):
        """CONT-2: domains, pages, pushes of every size, truncations."""
        draw = random.Random(1)
        for domain in (kvd.Domain(), kvd.Domain("m"), kvd.Domain("m", "a"), kvd.Domain("ma", "", "t", "x" * 300)):
            ours, theirs, prompt = kvd.Chain(domain), libkvd.Chain(domain), []
            for _ in range(40):
                some = tokens(draw.randrange(99), draw.randrange(0, 200))
                prompt += some
                ours.push(some)
                theirs.push(some)
                if draw.random() < 0.2:
                    length = draw.choice([len(prompt), draw.randrange(0, len(prompt) // 64 + 1) * 64])
                    del prompt[length:]
                    ours.truncate(length)
                    theirs.truncate(length)
                self.assertEqual((ours.tokens, list(ours.tail)), (len(prompt), prompt[len(prompt) // 64 * 64 :]))
                self.assertEqual(ours.digests(0, ours.pages), theirs.digests())


class Drawn(unittest.TestCase):
    """The same drawn program, each client at a kvd of its own."""

    STEPS = 400

    def program(self, client_class, seed):
        """What it was answered. Handles are told by the order in which they came."""
        server, draw, log = Kvd(), random.Random(seed), []
        self.addCleanup(server.free)
        client = client_class(server.socket)
        self.addCleanup(client.close)
        handles, live, kept = {}, {}, []

        def known(value):
            return handles.setdefault(value, f"#{len(handles)}") if value else value

        def note(what, call):
            try:
                value = call()
            except kvd.Error as error:
                text = re.sub(r"\b(?:0x)?[0-9a-f]{8,16}\b", lambda m: known(int(m.group(), 16)), error.message)
                log.append((what, error.status, text))
                return None
            log.append((what, "OK"))
            return value

        def activate():
            prompt = tokens(draw.randrange(4), draw.randrange(1, 1500))
            hits = note("find", lambda: client.find(prompt, DOMAIN)) or []
            log.append([(known(h.continuation), h.usable, h.frontier, h.retention) for h in hits])
            want = kvd.Activation(
                len(prompt), draw.randrange(0, 600), client.session, ensure=(draw.randrange(0, 1600),), root=ROOT
            )
            if hits and draw.random() < 0.8:
                want = dataclasses.replace(
                    want, source=hits[0].continuation, frontier=hits[0].usable, keep=draw.random() < 0.7
                )
            if draw.random() < 0.5:
                want = note("choose", lambda: client.choose_victims(want)) or want
            log.append((tuple((known(v), demote, frontier) for v, demote, frontier in want.victims), known(want.source), want.keep))
            made = note("activate", lambda: client.activate_exactly(want))
            if made:
                log.append((known(made.sequence), made.pools))
                live[made.sequence] = [prompt, made.pools[0].committed]

        def boundary():
            chosen = [s for s in live if draw.random() < 0.7] or [12345]
            items = [
                item(
                    s,
                    commit=draw.choice([None, draw.randrange(0, 1600)]),
                    ensure=draw.choice([None, 700, 1700]),
                    truncate=draw.choice([None, None, draw.randrange(0, 1000)]),
                    keep=draw.choice([None, None, 900]),
                )
                for s in chosen
            ]
            for sequence, result in zip(chosen, note("round", lambda: client.round(items)) or ()):
                log.append((result.status, re.sub(r"[0-9a-f]{16}", "#", result.message), result.bounded, result.pools))
                if result.pools and sequence in live:
                    live[sequence][1] = result.pools[0].committed

        def end():
            if not live:
                return
            sequence = draw.choice(list(live))
            prompt, committed = live[sequence]
            full = committed // 64
            if committed <= len(prompt) and full and draw.random() < 0.8:
                note("name", lambda: client.name(sequence, prompt, DOMAIN, 0, full))
            tail = prompt[full * 64 : committed]
            how = draw.choice([client.checkpoint, client.finish, client.finish])
            if how == client.checkpoint:
                made = note("checkpoint", lambda: how(sequence, tail[:63], 2))
                kept.append(made.continuation if made else 0)
            else:
                made = note("finish", lambda: how(sequence, draw.random() < 0.8, tail[:63], draw.randrange(3)))
                if made is not None:
                    del live[sequence]
                    kept.append(made)
            log.append(known(kept[-1]) if kept else None)

        def let_go():
            if kept:
                one = draw.choice(kept)
                note("retention", lambda: client.set_retention(one, 5)) if draw.random() < 0.5 else note(
                    "release", lambda: client.release(one)
                )

        for _ in range(self.STEPS):
            draw.choice([activate, activate, boundary, boundary, boundary, end, end, let_go])()
            log.append(client.resources())
        return log

    def test_both_are_answered_the_same(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                ours, theirs = self.program(libkvd.Native, seed), self.program(libkvd.Libkvd, seed)
                for i, (a, b) in enumerate(zip(ours, theirs)):
                    self.assertEqual(a, b, f"entry {i}, after {ours[max(0, i - 5):i]}")
                self.assertEqual(len(ours), len(theirs))


if __name__ == "__main__":
    unittest.main()
