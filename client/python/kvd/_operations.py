# SPDX-License-Identifier: Apache-2.0
"""Operations as generators: each yields requests and is sent the replies, in a thread or in an event loop."""

from __future__ import annotations

from array import array
from typing import Any, List, Optional, Sequence, Type, TypeVar

from . import _messages as messages
from . import types
from ._session import Steps
from .errors import InvalidArgument, NotFound
from .names import PAGE_TOKENS, Chain

T = TypeVar("T")


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


def everything(name: str, cls: Type[T]) -> Steps[List[T]]:
    """A whole list. An object that lives throughout is in it once."""
    items: List[T] = []
    cursor: Optional[int] = 0
    while cursor is not None:
        reply = yield messages.list_request(name, cursor)
        some, cursor = messages.read_list(cls, reply)
        items += some
    return items


def moved(request: messages.Request) -> Steps[types.Moved]:
    reply = yield request
    return types.Moved(reply.revision, tuple(reply.pages), reply.bytes)


def plan(want: types.Activation) -> Steps[types.Plan]:
    reply = yield messages.activation("Plan", want)
    return messages.read(types.Plan, reply)


def activate(want: types.Activation) -> Steps[types.Activated]:
    reply = yield messages.activation("Activate", want)
    return messages.read_activated(reply)


def round_(items: Sequence[types.RoundItem], n_pools: int) -> Steps[types.RoundResults]:
    reply = yield messages.round_request(items, n_pools)
    return messages.read_round(reply, len(items))


def name_pages(sequence: int, chain: Chain, first: int, end: int) -> Steps[None]:
    """A message for every 1024 pages: where one is refused, the pages before it are named."""
    for at in range(first, end, messages.MAX_DIGESTS):
        yield messages.name_pages(sequence, at, chain.digests(at, min(end, at + messages.MAX_DIGESTS)))


def checkpoint(sequence: int, tail: Sequence[int], retention: int) -> Steps[types.Checkpointed]:
    reply = yield messages.checkpoint(sequence, tail, retention)
    return types.Checkpointed(reply.continuation, reply.frontier, reply.revision, tuple(reply.shared_pages))


# ---- find ----


def _usable(candidate: types.Candidate, prompt: "array[int]", whole_only: bool) -> int:
    """Tokens of the prompt that it holds exactly; 0: of no use."""
    boundary = candidate.matched_pages * PAGE_TOKENS
    if boundary > candidate.frontier or boundary > len(prompt):
        return 0  # an answer that contradicts itself
    usable = boundary
    if candidate.exact_pages:
        end = min(candidate.frontier, len(prompt), boundary + len(candidate.tail))
        while usable < end and candidate.tail[usable - boundary] == prompt[usable]:
            usable += 1
    if whole_only:  # the only frontier of which there is a state image
        return usable if usable == candidate.frontier and usable < len(prompt) else 0
    return min(usable, len(prompt) - 1)  # the last token's query must be computed


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

    def add_all(self, candidates: List[types.Candidate], prompt: "array[int]", whole_only: bool, pages: int) -> None:
        for each in candidates:
            usable = _usable(each, prompt, whole_only) if each.matched_pages <= pages else 0
            if usable:
                self.add(types.Hit(each.continuation, usable, each.frontier, each.retention, each.restore_pages))


def find(chain: Chain, prompt: "array[int]", limit: int, whole_only: bool) -> Steps[List[types.Hit]]:
    """A message for every 1023 pages as long as they match, and one for continuations without full pages."""
    if not prompt:
        raise InvalidArgument("find needs a prompt of at least one token")
    if chain.tokens != len(prompt):
        raise InvalidArgument(
            f"the chain holds {chain.tokens} tokens and the prompt has {len(prompt)}: push exactly " "the prompt"
        )
    found = _Found(max(1, min(limit, messages.MAX_CANDIDATES)))
    sent = anchor = 0
    while sent < chain.pages and (anchor or not sent):
        first = sent - 1 if sent else 0
        end = min(chain.pages, first + messages.MAX_DIGESTS)
        try:
            reply = yield messages.find(chain.digests(first, end), first, anchor)
        except NotFound:
            if sent:
                break  # the anchor has gone meanwhile: what was found stays true
            raise
        candidates, anchor = messages.read_candidates(reply)
        found.add_all(candidates, prompt, whole_only, end)
        sent = end
    if len(found.hits) < found.limit:
        reply = yield messages.find(b"")
        found.add_all(messages.read_candidates(reply)[0], prompt, whole_only, 0)
    return found.hits
