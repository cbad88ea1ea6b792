# SPDX-License-Identifier: Apache-2.0
"""The policy in Python beside the one in C: fed with the same prompts at the same times, asked about the same store, both
make the same choices (Q-2). A choice changes nothing in the store, so each is asked before one of them is followed."""

import ctypes
import random
import unittest

import kvd
from libkvd import H, LIB, Chain, Headers, HEADERS, Libkvd
from support import KvdCase

POLICY = Headers([HEADERS[0], HEADERS[1], HEADERS[1].replace("kvd.h", "kvd_policy.h")])
U64 = ctypes.c_uint64
LIB.kvd_policy_prompt.restype = U64
SECOND = 10**9


class InC:
    """kvd_policy with the names of kvd.ReusePolicy."""

    def __init__(self, client, demotes, pinned_pages, continuations):
        options = POLICY.policy_options(demotes=demotes, pinned_pages=pinned_pages, continuations=continuations)
        self._client, self._policy = client, ctypes.c_void_p()
        assert LIB.kvd_policy_new(ctypes.byref(options), ctypes.byref(self._policy)) == 0

    def free(self):
        LIB.kvd_policy_free(self._policy)

    def quota(self, domain, pages, device_pages=0):
        root = ctypes.create_string_buffer(kvd.Domain(domain).root(), 32)
        share = POLICY.policy_share(pages or 0, device_pages)
        return LIB.kvd_policy_quota(self._policy, root, None if pages is None else ctypes.byref(share))

    def supersede(self, old, new):
        return LIB.kvd_policy_supersede(self._policy, H.continuation(old), H.continuation(new))

    def prompt(self, prompt, domain, now):
        chain = Chain(kvd.Domain(domain))
        chain.push(prompt)
        return LIB.kvd_policy_prompt(self._policy, chain.pointer, ctypes.c_size_t(len(prompt)), U64(now))

    def kept(self, use, continuation, tokens):
        LIB.kvd_policy_kept(self._policy, U64(use), H.continuation(continuation), tokens)

    def gone(self, continuation):
        LIB.kvd_policy_gone(self._policy, H.continuation(continuation))

    def set(self, continuation, **terms):
        return LIB.kvd_policy_set(self._policy, H.continuation(continuation), ctypes.byref(POLICY.policy_terms(**terms)))

    def rank(self, now):
        ranked = (H.continuation * 4096)()
        return [each.bits for each in ranked[: LIB.kvd_policy_rank(self._policy, U64(now), ranked, 4096)]]

    def choose(self, want, now):
        made, room = self._client._want(want), (H.victim * 4096)()
        error = H.error()
        status = LIB.kvd_policy_choose(self._policy, self._client._client, ctypes.byref(made), room, 4096, U64(now),
                                       ctypes.byref(error))
        if status:
            return status
        victims = [(v.continuation.bits, v.demote, v.frontier) for v in room[: made.n_victims]]
        return getattr(made, "from").bits, made.frontier, made.keep, victims


class Pair(KvdCase):
    settings = {"tokens": 64 * 120, "max_context": 64 * 40, "layers": 1, "kv_heads": 1, "head_dim": 16}
    demotes = False

    def setUp(self):
        super().setUp()
        self.client = kvd.connect(self.kvd.socket)
        self.addCleanup(self.client.close)
        other = Libkvd(self.kvd.socket)
        self.addCleanup(other.close)
        self.in_c = InC(other, self.demotes, 30, 64)
        self.addCleanup(self.in_c.free)
        self.in_python = kvd.ReusePolicy(demotes=self.demotes, pinned_pages=30, continuations=64)
        self.now, self.choices, self.taken = SECOND, 0, 0

    def choose(self, client, want):
        chosen = self.in_c.choose(want, self.now)
        try:
            followed = self.in_python.choose(client, want, self.now)
        except kvd.Error as error:
            self.assertEqual(chosen, error.status)
            raise
        victims = [tuple(victim) for victim in followed.victims]
        self.assertEqual((followed.source, followed.frontier, followed.keep, victims), chosen)
        self.choices += 1
        self.taken += len(victims)
        self.want = followed
        return followed

    def serve(self, prompt, domain=""):
        use = self.in_c.prompt(prompt, domain, self.now)
        self.assertEqual(self.in_python.prompt(kvd.Chain(domain, prompt), len(prompt), self.now), use)
        hits = self.client.find(prompt, domain)
        hit = hits[0] if hits else None
        keep = hit is not None and hit.usable < hit.frontier * 3 // 4
        self.want = kvd.Activation(1, 1, source=hit.continuation if hit else 0, keep=keep)
        try:
            sequence = self.client.activate(prompt, 2, hit=hit, keep=keep, evict=self.choose, domain=domain)
        except kvd.ResourceExhausted:
            return None  # only without what is pinned, say both
        if self.want.source and not self.want.keep:
            self.in_c.gone(self.want.source)
            self.in_python.gone(self.want.source)
        sequence.step()
        continuation = sequence.finish()
        for twin in (self.in_c, self.in_python):
            twin.kept(use, continuation, len(prompt))
        return continuation

    def set_terms(self, draw, continuation):
        terms = {"pinned": draw % 5 == 0, "over": draw % 5 == 1, "back": draw % 5 == 2,
                 "until_ns": self.now + 60 * SECOND if draw % 2 else 0}
        try:
            self.in_python.set(continuation, **terms)
            status = 0
        except kvd.Error as error:
            status = error.status
        self.assertEqual(self.in_c.set(continuation, **terms), status)

    def supersede(self, old, new):
        try:
            self.in_python.supersede(old, new)
            status = 0
        except kvd.Error as error:
            status = error.status
        self.assertEqual(self.in_c.supersede(old, new), status)

    def set_quota(self, domain, pages, device_pages=0):
        self.in_python.quota(domain, pages, device_pages)
        self.assertEqual(self.in_c.quota(domain, pages, device_pages), 0)

class Twins(Pair):
    def test_same_choices_with_quotas(self):
        draw = random.Random(5)
        self.set_quota("a", 40, 30)
        self.set_quota("b", 25)
        last = 0
        for i in range(220):
            domain = "aabccc"[draw.randrange(6)]
            text = draw.randrange(8) if i % 3 else 1000 + i
            length = 64 * draw.randrange(1, 24) + draw.randrange(64)
            continuation = self.serve([text * 10000 + k for k in range(length)], domain)
            if continuation and i % 9 == 0:
                self.set_terms(draw.randrange(10), continuation)
            if continuation and i % 12 == 0:
                self.supersede(last, continuation)
            last = continuation or last
            if i % 70 == 69:
                self.set_quota("ab"[i // 70 % 2], None)
                self.set_quota("c", 20 + i // 10)
            self.now += draw.randrange(1, 20 * SECOND)
            if i % 10 == 0:
                self.assertEqual(self.in_python.rank(self.now), self.in_c.rank(self.now))
        self.assertGreater(self.choices, 40)
        self.assertGreater(self.taken, 60)

    def test_same_choices(self):
        draw = random.Random(3)
        for i in range(260):
            text = draw.randrange(12) if i % 3 else 1000 + i
            length = 64 * draw.randrange(1, 34) + draw.randrange(64)
            common = 64 * 2  # the beginning of all prompts
            prompt = [k if k < common else text * 10000 + k for k in range(length + common)]
            continuation = self.serve(prompt)
            if continuation and i % 9 == 0:
                self.set_terms(draw.randrange(10), continuation)
            self.now += draw.randrange(1, 20 * SECOND)
            if i % 10 == 0:
                self.assertEqual(self.in_python.rank(self.now), self.in_c.rank(self.now))
        self.assertGreater(self.choices, 40)
        self.assertGreater(self.taken, 60)


class TwinsWithArena(Twins):
    settings = {**Twins.settings, "more": "[host]\narena = 1MiB\nscrub = 0\n"}
    demotes = True


def text(number, pages, common=0):
    """So many full pages and a token; the first of them as in text 0."""
    return [k if k < 64 * common else number * 10000 + k for k in range(64 * pages + 1)]


class Decisions(Pair):
    """The decisions that users complained about, as in test_policy_store.c, by both policies and a kvd of 100 pages."""

    settings = {**Pair.settings, "tokens": 64 * 100, "max_context": 64 * 100}

    def found(self, prompt):
        """Pages of it that kvd has."""
        hits = self.client.find(prompt)
        return hits[0].usable // 64 if hits else 0

    def serve_all(self, prompts):
        for prompt in prompts:
            self.assertIsNotNone(self.serve(prompt))
            self.now += SECOND

    def test_small_requests_leave_the_large_one(self):
        large = text(1, 60)
        for i in range(200):
            self.assertIsNotNone(self.serve(text(100 + i, 3) if i % 20 else large))
            self.now += 3 * SECOND
            if i > 100:
                self.assertEqual(self.found(large), 60)

    def test_many_small_against_one_large(self):
        large, late = text(1, 21), []
        for i in range(400):
            if i % 60 == 0 and i >= 120:
                late.append(self.found(large))
            self.serve_all([text(100 + i, 4) if i % 60 else large])
        self.assertEqual(late, [21] * 5)

    def test_the_source_goes_last(self):
        """It is moved where nothing else can give way, and goes where that would not do either."""
        first = self.serve(text(0, 80))
        self.assertIsNotNone(self.serve(text(2, 60, common=30)))  # 31 more pages, and 19 are free
        self.assertEqual(self.want, kvd.Activation(
            **{**vars(self.want), "source": first, "frontier": 30 * 64, "keep": False, "victims": ()}))
        self.assertIsNotNone(self.serve(text(0, 99)))
        self.assertEqual(len(self.client.continuations()), 1)
        running = self.client.activate(text(3, 98), 2, evict=self.choose)
        self.assertIsNone(self.serve(text(4, 3)))
        running.finish(retain=False)

    def test_equal_prompts_at_once(self):
        prompt = text(3, 10)
        chain = kvd.Chain("", prompt)
        uses = [self.in_c.prompt(prompt, "", self.now) for _ in range(2)]
        self.assertEqual([self.in_python.prompt(chain, len(prompt), self.now) for _ in range(2)], uses)
        running = [self.client.activate(prompt, 2, evict=self.choose) for _ in range(2)]
        for use, sequence in zip(uses, running):
            sequence.step()
            continuation = sequence.finish()
            for twin in (self.in_c, self.in_python):
                twin.kept(use, continuation, len(prompt))
        self.assertEqual(len(self.client.continuations()), 1)
        self.assertEqual(self.in_python.rank(self.now), [continuation])
        self.assertEqual(self.in_c.rank(self.now), [continuation])
        self.now += SECOND
        self.serve_all(text(4 + i, 60) for i in range(3))

    def test_pins_stay_and_what_fits_is_served(self):
        draw, pinned = random.Random(11), [text(i, 9) for i in range(3)]
        for prompt in pinned:
            self.assertEqual(self.in_c.set(continuation := self.serve(prompt), pinned=True), 0)
            self.in_python.set(continuation, pinned=True)
        for i in range(120):
            self.serve_all([text(10 + draw.randrange(30), draw.randrange(3, 69), common=2)])
        self.assertEqual([self.found(prompt) for prompt in pinned], [9, 9, 9])
        self.assertGreater(self.taken, 60)


class DecisionsWithArena(Decisions):
    settings = {**Decisions.settings, "more": "[host]\narena = 8MiB\nscrub = 0\n"}
    demotes = True

    def test_nothing_is_released_while_the_arena_has_room(self):
        prompts = [text(1 + i, 20) for i in range(30)]
        self.serve_all(prompts)
        self.assertEqual([self.found(prompt) for prompt in prompts], [20] * 30)
        self.serve_all(prompts)
        self.assertEqual(len(self.client.continuations()), 30)


class FullTable(Pair):
    """No descriptor is left: one continuation goes, whole, and nothing else; also where there is an arena."""

    settings = {**Decisions.settings, "more": "[limits]\ncontinuations = 16\n"}

    def test_a_full_table_of_descriptors(self):
        for i in range(40):
            before, taken = len(self.client.continuations()), self.taken
            continuation = self.serve(text(1 + i, 2))
            self.now += SECOND
            self.assertIsNotNone(continuation)
            gone = before + 1 - len(self.client.continuations())
            self.assertEqual((gone, self.taken - taken), (int(before == 16), int(before == 16)))
            if gone:
                self.assertEqual(self.want.victims[0][1:], (False, 0))


class FullTableWithArena(FullTable):
    settings = {**FullTable.settings, "more": FullTable.settings["more"] + DecisionsWithArena.settings["more"]}
    demotes = True


if __name__ == "__main__":
    unittest.main()
