# SPDX-License-Identifier: Apache-2.0
"""What is worth keeping: the policy of kvd_policy.h in Python. It remembers the prompts of the last day, learns how
likely and how soon a prefix returns, and how much of it, and gives up first what a page of memory would serve least.

    reuse = kvd.ReusePolicy(demotes=True)
    ... a request:
    use = reuse.prompt(chain, n_prompt, now)
    want = reuse.choose(client, want, now)      # instead of client.choose_victims(want)
    ... its end:
    reuse.kept(use, continuation, tokens)

Equal calls at equal times make the choices that kvd_policy makes. A choice looks at all that it knows: some
milliseconds at ten thousand continuations, where the one in C takes microseconds. One thread at a time.
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from . import _messages as messages
from . import _operations as operations
from . import policy, types
from ._reuse import BANDS, ORDER, PARTS, RATES, Memory, first_part, part_begin
from ._session import Steps
from .errors import Error, InvalidArgument, NotFound, OutOfRange, ResourceExhausted
from .names import DIGEST_BYTES, PAGE_TOKENS, Chain, DomainLike, domain_of

if TYPE_CHECKING:
    from .client import Client

_OVER, _PLAIN, _BACK, _PINNED = range(4)
_QUOTAS = 64  # domains that may have one
_REST = PARTS - 1
_SECOND_NS = 10**9
_WHOLE_CHOICES = 64
_MOST_SHORTENED = 1024


@dataclasses.dataclass
class _Entry:
    continuation: int
    slot: int  #: decides between equal ones
    at_ns: int
    pages: int
    prompt_pages: int
    rate: int
    demoted: bool = False
    cls: int = _PLAIN
    until_ns: int = 0  #: then its class is over; 0: never
    part: int = 0  #: the one that goes next
    linked: int = 0  #: rises with each change: of equal times the earlier goes first
    domain: bytes = b""  #: root; b"": unknown
    share: int = 0  #: index among the shares


@dataclasses.dataclass
class _Share:
    """What a domain may keep beside the needs of others: pages of all, and those on the device."""

    domain: bytes
    pages: int
    device_pages: int
    left: int = 0  #: of what it keeps, after what the walks under way have taken
    device_left: int = 0

    def beyond(self, whole: bool) -> int:
        return self.device_left - self.device_pages if whole else self.left - self.pages


class _Catalog:
    """The continuations that are known, in the order in which they go."""

    def __init__(self, memory: Memory, most: int) -> None:
        self.memory, self.most = memory, most
        self.entries: Dict[int, _Entry] = {}
        self.shares: List[Optional[_Share]] = [_Share(b"", 0, 0)]  #: 0: of all domains that have none
        self.now_ns, self._expire_ns, self._links = 0, 2**64 - 1, 0
        self._free = list(range(most - 1, -1, -1))

    def pinned_pages(self) -> int:
        return sum(e.pages for e in self.entries.values() if e.cls == _PINNED)

    def _link(self, e: _Entry) -> None:
        e.part = first_part(e.prompt_pages, e.pages)
        self._links += 1
        e.linked = self._links

    def remove(self, continuation: int) -> None:
        e = self.entries.pop(continuation, None)
        if e is not None:
            self._free.append(e.slot)

    def put(self, e: _Entry) -> None:
        before = self.entries.get(e.continuation)
        if before is not None:
            e.cls, e.until_ns = before.cls, before.until_ns
        self.remove(e.continuation)
        e.share = self._share_of(e.domain)
        if not self._free:
            loose = [each for each in self.entries.values() if each.cls != _PINNED]
            if not loose:
                return
            oldest = min(loose, key=lambda each: (each.at_ns, each.share, self._list_of(each), each.linked))
            self.remove(oldest.continuation)
        e.slot = self._free.pop()
        self.entries[e.continuation] = e
        self._link(e)

    def change(self, e: _Entry, pages: int, demoted: bool) -> None:
        e.pages, e.demoted = pages, demoted
        self._link(e)

    def set(self, e: _Entry, cls: int, until_ns: int) -> None:
        e.cls, e.until_ns = cls, until_ns
        if until_ns:
            self._expire_ns = min(self._expire_ns, until_ns)
        self._link(e)

    def _share_of(self, domain: bytes) -> int:
        return next((i for i, share in enumerate(self.shares) if i and share and domain and share.domain == domain), 0)

    def _move_entries(self, domain: bytes, share: int) -> None:
        for e in sorted((e for e in self.entries.values() if e.domain == domain), key=lambda e: e.slot):
            e.share = share
            self._link(e)

    def set_share(self, domain: bytes, pages: int, device_pages: int) -> bool:
        """False: no more may have one."""
        at = self._share_of(domain)
        if not at:
            at = next((i for i, share in enumerate(self.shares) if share is None), len(self.shares))
            if at > _QUOTAS:
                return False
            self.shares[at:at + 1] = [None]
            self._move_entries(domain, at)
        self.shares[at] = _Share(domain, pages, device_pages)
        return True

    def drop_share(self, domain: bytes) -> None:
        at = self._share_of(domain)
        if at:
            self._move_entries(domain, 0)
            self.shares[at] = None

    def begin(self) -> None:
        """Before walks: nothing is taken yet."""
        for share in self.shares:
            if share:
                share.left = share.device_left = 0
        for e in self.entries.values():
            self.take(e, -e.pages, 0 if e.demoted else -e.pages)

    def take(self, e: _Entry, pages: int, device_pages: int) -> None:
        share = self.shares[e.share]
        assert share is not None
        share.left -= pages
        share.device_left -= device_pages

    def advance(self, now_ns: int) -> None:
        self.now_ns = now_ns
        if now_ns < self._expire_ns:
            return
        after = 2**64 - 1
        for e in sorted((e for e in self.entries.values() if e.until_ns), key=lambda e: e.slot):
            if e.until_ns <= now_ns:
                self.set(e, _OVER, 0)
            else:
                after = min(after, e.until_ns)
        self._expire_ns = max(after, now_ns + _SECOND_NS)

    @staticmethod
    def _list_of(e: _Entry) -> int:
        return ((e.cls * 2 + e.demoted) * PARTS + e.part) * RATES + e.rate

    def place(self, e: _Entry, part: int) -> int:
        band = self.memory.model.band(max(0, self.now_ns - e.at_ns))
        return e.cls * ORDER + self.memory.model.place[(e.rate * BANDS + band) * PARTS + part]


class _Turn:
    """The walk over one share."""

    def __init__(self, catalog: _Catalog, entries: List[_Entry], whole: bool) -> None:
        self._catalog = catalog
        lists: Dict[Tuple[int, int, int], List[_Entry]] = {}
        for e in entries:
            if e.cls != _PINNED and not (whole and e.demoted):
                place = catalog.place(e, _REST if whole else e.part)
                lists.setdefault((place, 1, catalog._list_of(e)), []).append(e)
        self._heap = list(lists)
        heapq.heapify(self._heap)
        self._lists = lists
        self._by_slot = {e.slot: e for e in entries}
        self._at: List[_Entry] = []  # what is left of a list, the next one last
        self._place = -1

    def place(self) -> Optional[int]:
        """Of what comes next."""
        return self._place if self._at else self._heap[0][0] if self._heap else None

    def step(self) -> Tuple[_Entry, int]:
        again = bool(self._heap) and self._heap[0][:2] == (self._place, 0)  # before the others there
        if self._at and not again:
            e = self._at.pop()
        else:
            item = heapq.heappop(self._heap)
            self._place = item[0]
            if item[1] == 0:
                e = self._by_slot[item[2]]
            else:
                self._at = sorted(self._lists[item], key=lambda e: (e.at_ns, e.linked), reverse=True)
                e = self._at.pop()
        return e, self._catalog.memory.model.order[self._place % ORDER] % PARTS

    def again(self, e: _Entry, part: int) -> None:
        heapq.heappush(self._heap, (self._catalog.place(e, part), 0, e.slot))


class _Walk:
    """In the model's order. whole: those on the device, by the value of their rest; otherwise the parts of all. What is
    over goes first; then what domains keep beyond their shares; then what has none; what is within a share goes last."""

    def __init__(self, catalog: _Catalog, whole: bool) -> None:
        self._catalog, self._whole = catalog, whole
        of: List[List[_Entry]] = [[] for _ in catalog.shares]
        for e in catalog.entries.values():
            of[e.share].append(e)
        self._turns = [_Turn(catalog, entries, whole) for entries in of]
        catalog.begin()

    def _order(self, at: int) -> Optional[Tuple[int, int, int]]:
        place, share = self._turns[at].place(), self._catalog.shares[at]
        if place is None or share is None:
            return None
        cls = place // ORDER
        group = 1 if not at else 0 if share.beyond(self._whole) > 0 else 2
        return (0 if cls == _OVER else _BACK * group + cls, place, at)

    def step(self) -> Tuple[Optional[_Entry], int]:
        """The next one, and which of its parts."""
        orders = [order for order in map(self._order, range(len(self._turns))) if order]
        return self._turns[min(orders)[2]].step() if orders else (None, 0)

    def again(self, e: _Entry, part: int) -> None:
        self._turns[e.share].again(e, part)

    def beyond(self, e: _Entry) -> Optional[int]:
        """Pages that its domain keeps beyond its share; None: there is no such end."""
        share = self._catalog.shares[e.share]
        beyond = share.beyond(self._whole) if share and e.share and e.cls != _OVER else 0
        return beyond if beyond > 0 else None


class _Recipe:
    """Who gives way for an activation. It grows by what the plan says is short, and kvd is asked again."""

    def __init__(self, catalog: _Catalog, want: types.Activation, demotes: bool, cuts: bool) -> None:
        self._catalog = catalog
        self._demoting, self._releasing = _Walk(catalog, True), _Walk(catalog, False)
        self.trial = dataclasses.replace(want, victims=(), revision=0)
        self._demotes, self._cuts = demotes, cuts
        self._victims: Dict[int, types.Victim] = {}
        self.shortened = 0
        self.plan: Optional[types.Plan] = None

    def _may_take(self, e: _Entry) -> bool:
        known = e.continuation in self._victims
        return known or (len(self._victims) < messages.MAX_VICTIMS and e.continuation != self.trial.source)

    def _left(self, e: _Entry) -> int:
        victim = self._victims.get(e.continuation)
        return e.pages if victim is None or victim.demote else victim.frontier // PAGE_TOKENS

    def _release_part(self, e: _Entry, part: int, most: int) -> int:
        left, to = self._left(e), part_begin(e.prompt_pages, self._catalog.memory.model.together[part])
        victim = self._victims.get(e.continuation)
        cut = victim is not None and victim.frontier > 0
        after = first_part(e.prompt_pages, to) if to else 0
        if left - to > most:
            to, after = left - most, part
        if to and not (self._cuts and (cut or self.shortened < _MOST_SHORTENED)):
            if part < _REST:
                self._releasing.again(e, _REST)
                return 0
            to = 0
        if not self._may_take(e):
            return 0
        here = 0 if e.demoted or (victim is not None and victim.demote) else left  # on the device until now
        self._catalog.take(e, left - to, here - (0 if e.demoted else to))
        self._victims[e.continuation] = types.Victim(e.continuation, False, to * PAGE_TOKENS)
        self.shortened += (to != 0) - cut
        if to:
            self._releasing.again(e, after)
        return left - to

    def _release_pages(self, pages: int) -> bool:
        gone = 0
        while gone < pages:
            e, part = self._releasing.step()
            if e is None:
                break
            most, beyond = pages - gone, self._releasing.beyond(e)
            gone += self._release_part(e, part, most if beyond is None else min(most, beyond))
        return gone > 0

    def _release_whole(self, continuations: int) -> bool:
        gone, cuts, self._cuts = 0, self._cuts, False
        while gone < continuations:
            e, part = self._releasing.step()
            if e is None:
                break
            gone += self._release_part(e, part, 2**32 - 1) > 0
        self._cuts = cuts
        return gone > 0

    def _demote_pages(self, pages: int) -> bool:
        gone = 0
        while gone < pages:
            e, _ = self._demoting.step()
            if e is None:
                break
            if e.continuation in self._victims or not self._may_take(e):
                continue
            self._victims[e.continuation] = types.Victim(e.continuation, True)
            self._catalog.take(e, 0, e.pages)
            gone += e.pages
        return gone > 0

    def _grow(self, plan: types.Plan, least: int) -> bool:
        others = (plan.rows, plan.sequences, plan.continuations, plan.state_slots, plan.membership)
        short = max([1] + [need.short_by for need in plan.pages])
        device = any(need.short_by for need in others) or any(need.short_by for need in plan.pages)
        if plan.rows.short_by or plan.sequences.short_by:
            return False
        if plan.continuations.short_by:
            return self._release_whole(plan.continuations.short_by)
        if not device:
            moved, size = sum(plan.demote_pages), plan.arena.needed
            short = int(plan.arena.short_by * moved / size + 0.999) if moved and size else 1
        if device and self._demotes and not plan.membership.short_by:
            return self._demote_pages(max(short, least))
        return self._release_pages(max(short, least))

    def _ask(self) -> Steps[types.Plan]:
        self.trial = dataclasses.replace(self.trial, victims=tuple(self._victims.values()))
        self.plan = yield from operations.plan(self.trial)
        return self.plan

    def find(self) -> Steps[bool]:
        """Whether it does."""
        plan, least = (yield from self._ask()), 1
        while plan.feasibility == types.Feasibility.BLOCKED and self._grow(plan, least):
            least *= 2
            plan = yield from self._ask()
        return plan.feasibility == types.Feasibility.READY


class ReusePolicy:
    """prompts, continuations: remembered and known at most. demotes: the store has a host arena. pinned_pages: of the
    first pool that may be pinned."""

    def __init__(self, *, prompts: int = 32768, continuations: int = 65536, demotes: bool = False,
                 pinned_pages: int = 0) -> None:
        self._memory = Memory(prompts)
        self._catalog = _Catalog(self._memory, continuations)
        self._demotes, self._most_pinned = demotes, pinned_pages
        self._now_ns, self._choices, self._whole_until = 0, 0, 0

    def prompt(self, chain: Chain, n_prompt: int, now_ns: int) -> int:
        """A prompt of so many tokens, whose full pages are in the chain. Once a request, before it is activated: a number
        for kept()."""
        pages = min(n_prompt // PAGE_TOKENS, chain.pages)
        raw = chain.digests(0, pages)
        self._now_ns = max(self._now_ns, now_ns)
        use = self._memory.note(lambda page: raw[page * DIGEST_BYTES : page * DIGEST_BYTES + 8], pages, n_prompt,
                                self._now_ns)
        self._memory.uses[use].domain = chain.root
        return use

    def kept(self, use: int, continuation: int, tokens: int) -> None:
        """The use's request has left this continuation, of so many tokens."""
        noted, before = self._memory.use(use), self._catalog.entries.get(continuation)
        if not continuation:
            return
        full = tokens // PAGE_TOKENS
        e = _Entry(continuation, 0, self._now_ns, -(-tokens // PAGE_TOKENS), full, 0)
        if noted is not None:
            noted.tokens = max(noted.tokens, tokens)
            e.at_ns, e.rate, e.prompt_pages, e.domain = noted.at_ns, noted.cls.rate, noted.pages, noted.domain
        elif before is not None:
            e.rate, e.prompt_pages, e.domain = before.rate, before.prompt_pages, before.domain
        self._catalog.put(e)

    def gone(self, continuation: int) -> None:
        """It is no more: released, moved, or lost."""
        self._catalog.remove(continuation)

    def set(self, continuation: int, *, pinned: bool = False, over: bool = False, back: bool = False,
            until_ns: int = 0) -> None:
        """pinned: never a victim. over: it will not come back. back: it will. until_ns: from then on it is over. Of
        several the first counts; they replace those before."""
        e = self._catalog.entries.get(continuation)
        if e is None:
            raise NotFound(f"the policy knows no continuation {continuation:#x}")
        others = self._catalog.pinned_pages() - (e.pages if e.cls == _PINNED else 0)
        if pinned and others + e.pages > self._most_pinned:
            raise ResourceExhausted(f"{e.pages} pages more would be pinned than the {self._most_pinned} that may be: "
                                    "unpin some")
        self._catalog.set(e, _PINNED if pinned else _OVER if over else _BACK if back else _PLAIN, until_ns)

    def supersede(self, old: int, new: int) -> None:
        """`new` has taken the place of `old`, of which it was forked: it takes over its terms, and `old` is over."""
        before = self._catalog.entries.get(old)
        if old == new:
            raise InvalidArgument(f"{old:#x} cannot take its own place")
        if before is None or new not in self._catalog.entries:
            raise NotFound(f"the policy does not know both of {old:#x} and {new:#x}")
        cls, until_ns = before.cls, before.until_ns
        self._catalog.set(before, _OVER, 0)
        try:
            self.set(new, pinned=cls == _PINNED, over=cls == _OVER, back=cls == _BACK, until_ns=until_ns)
        except ResourceExhausted:
            self._catalog.set(before, cls, until_ns)
            raise

    def quota(self, domain: DomainLike, pages: Optional[int], device_pages: int = 0) -> None:
        """What the domain may keep beside the needs of others, in pages of the first pool; device_pages: of those, on the
        device, where victims are demoted (0: all). None: it has no quota any more. A quota is no limit: who is beyond it
        keeps what nobody needs, and gives way first. What is within one gives way last."""
        root = domain_of(domain).root()
        if pages is None:
            self._catalog.drop_share(root)
        elif not self._catalog.set_share(root, pages, device_pages or pages):
            raise ResourceExhausted(f"{_QUOTAS} domains have a quota: take one back first")

    def rank(self, now_ns: int) -> List[int]:
        """What is known, the least valuable first, without what is pinned."""
        self._now_ns = max(self._now_ns, now_ns)
        self._catalog.advance(self._now_ns)
        walk = _Walk(self._catalog, True)
        ranked: List[int] = []
        while True:
            e, _ = walk.step()
            if e is None:
                return ranked
            self._catalog.take(e, e.pages, e.pages)
            ranked.append(e.continuation)

    def choose(self, client: Client, want: types.Activation, now_ns: int) -> types.Activation:
        """The activation with victims and revision, as Client.choose_victims. The victims are forgotten. What it knows
        not to do is left to Client.choose_victims. As activate(evict=...):
        `lambda client, want: reuse.choose(client, want, time.monotonic_ns())`."""
        return client.run(self.steps(want, now_ns))

    def steps(self, want: types.Activation, now_ns: int) -> Steps[types.Activation]:
        """The messages of a choice, for Client.run_async."""
        self._now_ns = max(self._now_ns, now_ns)
        source = self._catalog.entries.get(want.source)
        if source is not None:
            self._memory.model.reach(source.prompt_pages, source.pages, want.frontier // PAGE_TOKENS)
        self._catalog.advance(self._now_ns)
        recipe = yield from self._find(want)
        if recipe is not None and recipe.plan is not None:
            want = dataclasses.replace(recipe.trial, revision=recipe.plan.revision)
        else:
            chosen = yield from policy.choose_victims(want)
            self._check_pins(want, chosen)
            want = chosen
        self._forget(want)
        return want

    def _find(self, want: types.Activation) -> Steps[Optional[_Recipe]]:
        """Where state images belong to frontiers nothing can be shortened, which a refusal tells. Or somebody else has
        shortened one before: so it is tried again after a while."""
        while True:
            recipe = _Recipe(self._catalog, want, self._demotes, self._choices >= self._whole_until)
            self._choices += 1
            try:
                return recipe if (yield from recipe.find()) else None
            except OutOfRange:
                if not recipe.shortened:
                    return None
                self._whole_until = self._choices + _WHOLE_CHOICES
            except Error:
                return None

    def _check_pins(self, want: types.Activation, chosen: types.Activation) -> None:
        pinned = {e.continuation for e in self._catalog.entries.values() if e.cls == _PINNED}
        less = chosen.source != want.source or chosen.keep != want.keep
        if (less and want.source in pinned) or any(victim.continuation in pinned for victim in chosen.victims):
            raise ResourceExhausted(f"fits only without what is pinned, {self._catalog.pinned_pages()} pages: unpin some, or "
                                    "ask for less")

    def _forget(self, want: types.Activation) -> None:
        for victim in want.victims:
            e = self._catalog.entries.get(victim.continuation)
            if e is None:
                continue
            if victim.demote:
                self._catalog.change(e, e.pages, True)
            elif victim.frontier:
                self._catalog.change(e, -(-victim.frontier // PAGE_TOKENS), e.demoted)
            else:
                self._catalog.remove(e.continuation)
