# SPDX-License-Identifier: Apache-2.0
"""Operations as generators: each yields requests and is sent the replies, in a thread or in an event loop."""

from __future__ import annotations

from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from . import _messages as messages
from . import types
from ._session import Steps
from .errors import Error, InvalidArgument, NotFound
from .names import PAGE_TOKENS, Chain

T = TypeVar("T")
_Part = Tuple[int, int, int]  #: pages [first, end) of a prompt, and the anchor


def one(request: messages.Request) -> Steps[Any]:
    """A single message and its reply."""
    return (yield request)


def describe() -> Steps[types.StoreInfo]:
    reply = yield messages.Request("DescribeStore")
    return messages.read(types.StoreInfo, reply.store)


def describe_planes(pool: int, rank: int) -> Steps[List[types.PlaneInfo]]:
    """All planes of a pool on a rank, a message for every 256."""
    planes: List[types.PlaneInfo] = []
    while True:
        reply = yield messages.Request("DescribePlanes", pool=pool, rank=rank, first=len(planes))
        planes += [messages.read(types.PlaneInfo, each) for each in reply.planes]
        if len(planes) >= reply.total or not reply.planes:
            return planes


def everything(name: str, cls: Type[T], root: types.Root = types.Root()) -> Steps[List[T]]:
    """A whole list. An object that lives throughout is in it once."""
    items: List[T] = []
    cursor: Optional[int] = 0
    while cursor is not None:
        reply = yield messages.list_request(name, cursor, root)
        some, cursor = messages.read_list(cls, reply)
        items += some
    return items


def changes(cursor: int) -> Steps[Tuple[List[types.ContinuationInfo], int]]:
    """All behind the cursor, and the one behind those."""
    items: List[types.ContinuationInfo] = []
    more = True
    while more:
        some, cursor, more = messages.read_changes((yield messages.list_changes(cursor)))
        items += some
    return items, cursor


def moved(request: messages.Request) -> Steps[types.Moved]:
    reply = yield request
    return types.Moved(reply.revision, tuple(reply.pages), reply.bytes)


class ColdQuestion(NamedTuple):
    chain: Chain
    prompt: "array[int]"
    until: int  #: tokens of the prompt
    first: int  #: pages that are there
    origin: int  #: a continuation that has those; 0: none
    retention: int


def _begin(ask: ColdQuestion) -> int:
    """Where all pages are there and the tail alone is asked for, the last page comes once more: its digest is the tail's
    name."""
    return ask.first - 1 if ask.first and ask.first == ask.until // PAGE_TOKENS else ask.first


def _names_of(ask: ColdQuestion, first: int) -> Tuple[bytes, Sequence[int]]:
    """Digests of one message from a page on, and the tail behind them where they are the last."""
    pages = ask.until // PAGE_TOKENS
    end = min(pages, first + messages.MAX_DIGESTS)
    tail = ask.prompt[pages * PAGE_TOKENS : ask.until] if end == pages and (end > first or not first) else ()
    return ask.chain.digests(first, end), tail


def _cold_part(name: str, ask: ColdQuestion, first: int, origin: int) -> messages.Request:
    root = types.Root(ask.chain.domain.root(), ask.chain.domain.label)
    return messages.cold(name, root, first, *_names_of(ask, first), origin, ask.retention)


def _longer(found: types.ColdFound, reply: Any, n_bytes: int, release: bool = True) -> Steps[types.ColdFound]:
    if reply.frontier <= found.frontier:
        return types.ColdFound(found.continuation, found.frontier, found.n_bytes, reply.pages)
    if release and found.continuation not in (None, reply.continuation):  # the longer one has its pages
        yield messages.Request("Release", continuation=found.continuation)
    return types.ColdFound(reply.continuation or None, reply.frontier, n_bytes + reply.bytes, reply.pages)


def cold(name: str, ask: ColdQuestion) -> Steps[types.ColdFound]:
    """FindCold or LoadCold: a message for every 1024 pages as long as all of them are there, and where they end before
    the prompt does one for a continuation that ends within the next page."""
    first, pages = _begin(ask), ask.until // PAGE_TOKENS
    origin = ask.origin if name == "LoadCold" and first else 0
    found = types.ColdFound(None, ask.first * PAGE_TOKENS, 0, ask.first)
    if not ask.first * PAGE_TOKENS < ask.until <= ask.chain.tokens:
        raise InvalidArgument(
            f"asked for the tokens behind page {ask.first} up to token {ask.until}; the chain has {ask.chain.tokens}: "
            "ask for what is behind the pages that are there"
        )
    while True:
        try:
            reply = yield _cold_part(name, ask, first, origin)
        except Error:
            if found.continuation is None:
                raise
            return found  # what has come stays true
        before, begin, source = found, first, origin
        found = yield from _longer(found, reply, found.n_bytes)
        first, origin = min(pages, first + messages.MAX_DIGESTS), reply.continuation
        if first == pages or reply.frontier != first * PAGE_TOKENS:
            break
    if not begin < found.pages < pages:
        return found
    short = ask._replace(until=min(ask.until, found.pages * PAGE_TOKENS + PAGE_TOKENS - 1))
    loaded = found.continuation is not None and found.frontier == found.pages * PAGE_TOKENS
    try:
        if loaded:  # it is shared, but its last page, whose digest the tail's name needs
            last = found.continuation if found.continuation and found.pages > 1 else 0
            reply = yield _cold_part(name, short, found.pages - 1, last)
        else:
            reply = yield _cold_part(name, short, begin, source)
    except Error:
        return found
    return (yield from _longer(found, reply, found.n_bytes if loaded else before.n_bytes, loaded))


def plan(want: types.Activation) -> Steps[types.Plan]:
    reply = yield messages.plan(want)
    return messages.read(types.Plan, reply)


def activate(want: types.Activation, cold: Optional[ColdQuestion] = None) -> Steps[types.Activated]:
    """cold: the prompt, of which the cold tier is asked for what is behind the full pages of the source."""
    source: Dict[str, Any] = {}
    first = want.frontier // PAGE_TOKENS
    if cold and cold.until > first * PAGE_TOKENS and len(want.victims) <= messages.VICTIMS_BESIDE_COLD:
        digests, tail = _names_of(cold, first)
        source = messages.cold_source(first, digests, tail, cold.retention) if digests or tail else {}
    reply = yield messages.activate(want, source)
    return messages.read_activated(reply)


def round_(items: Sequence[types.RoundItem], n_pools: int) -> Steps[types.RoundResults]:
    reply = yield messages.round_request(items, n_pools)
    return messages.read_round(reply, len(items))


def name_pages(sequence: int, chain: Chain, first: int, end: int) -> Steps[None]:
    """A message for every 1024 pages: where one is refused, the pages before it are named."""
    for at in range(first, end, messages.MAX_DIGESTS):
        yield messages.name_pages(sequence, at, chain.digests(at, min(end, at + messages.MAX_DIGESTS)))


def checkpoint(
    sequence: int, tail: Sequence[int], retention: int, victims: Sequence[types.Victim] = (), revision: int = 0
) -> Steps[types.Checkpointed]:
    reply = yield messages.checkpoint(sequence, tail, retention, victims, revision)
    return types.Checkpointed(reply.continuation, reply.frontier, reply.revision, tuple(reply.shared_pages))


# ---- find ----


class _Found:
    """The best hits, each continuation once: a deeper answer may know more of one."""

    def __init__(self, limit: int) -> None:
        self.hits: List[types.Hit] = []
        self.limit = limit

    def add(self, hit: types.Hit) -> None:
        for i, other in enumerate(self.hits):
            if other.continuation == hit.continuation:
                if not hit.before(other):
                    return
                del self.hits[i]
                break
        at = next((i for i, other in enumerate(self.hits) if hit.before(other)), len(self.hits))
        self.hits.insert(at, hit)
        del self.hits[self.limit :]


#: Without state images one further message is enough; with them each looks one branch further up.
TOKEN_QUESTIONS = 4


class _Lookup:
    """The messages of one find()."""

    def __init__(self, chain: Chain, prompt: "array[int]", limit: int) -> None:
        self.chain, self.prompt = chain, prompt
        self.root = chain.domain.root()
        self.found = _Found(max(1, min(limit, messages.MAX_HITS)))

    def ask(self, part: _Part, page: int) -> Steps[Tuple[int, Optional[int]]]:
        """About pages [first, end), with the tokens of `page`. The anchor to go on from (0: none), and the page that kvd
        lacks the tokens of."""
        first, end, anchor = part
        at = page * PAGE_TOKENS
        try:
            reply = yield messages.find(
                self.root,
                len(self.prompt),
                page,
                self.prompt[at : at + messages.TAIL_TOKENS].tolist(),
                self.chain.digests(first, end),
                first,
                anchor,
            )
        except NotFound:
            if first:
                return 0, None  # the anchor has gone meanwhile: what was found stays true
            raise
        hits, anchor, lacks = messages.read_hits(reply)
        for hit in hits:
            if 0 < hit.usable < len(self.prompt) and hit.usable <= hit.frontier:
                self.found.add(hit)
        return anchor, lacks if lacks is not None and lacks < page else None

    def is_worth_asking(self, page: int) -> bool:
        hits = self.found.hits
        return not hits or hits[0].usable // PAGE_TOKENS <= page


def find(chain: Chain, prompt: "array[int]", limit: int) -> Steps[List[types.Hit]]:
    """A message for every 1023 pages as long as they match; then the tokens that the last answer with a wish lacked."""
    if not prompt:
        raise InvalidArgument("find needs a prompt of at least one token")
    if chain.tokens != len(prompt):
        raise InvalidArgument(
            f"the chain holds {chain.tokens} tokens and the prompt has {len(prompt)}: push exactly " "the prompt"
        )
    lookup, pages = _Lookup(chain, prompt, limit), chain.pages
    part: _Part = (0, min(pages, messages.MAX_DIGESTS), 0)
    wish: Optional[Tuple[_Part, int]] = None
    while True:
        anchor, lacks = yield from lookup.ask(part, pages)
        if lacks is not None:
            wish = (part, lacks)
        if not anchor or part[1] == pages:
            break
        first = part[1] - 1
        part = (first, min(pages, first + messages.MAX_DIGESTS), anchor)
    for _ in range(TOKEN_QUESTIONS):
        if wish is None or not lookup.is_worth_asking(wish[1]):
            break
        part, page = wish
        _, lacks = yield from lookup.ask(part, page)
        wish = None if lacks is None else (part, lacks)
    return lookup.found.hits


def release_domain(root: types.Root) -> Steps[types.DomainReleased]:
    """Step by step to the end, so that nobody waits long for the store."""
    released = in_use = cursor = 0
    while True:
        reply = yield messages.release_domain(root, cursor)
        released, in_use = released + reply.released, in_use + reply.in_use
        if not reply.next:
            return types.DomainReleased(released, in_use, reply.sequences)
        cursor = reply.next - 1


def as_pair(value: Tuple[int, ...], n: int) -> Tuple[int, ...]:
    """By pool, entries left off at the end being zero."""
    return (value + (0,) * n)[:n]
