# SPDX-License-Identifier: Apache-2.0
"""A running sequence, for engines that keep its tokens in one process.

Of `known` tokens the first `done` have complete KV on the device, and kvd knows of `committed` of them. The KV of the
last known token is computed with its successor, so that prompt + output tokens end with KV of one less.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple

from . import _messages as messages
from . import _operations as operations
from . import types
from ._session import Session, Steps
from .errors import FailedPrecondition, InvalidArgument, OutOfRange, ResourceExhausted, error_of
from .names import PAGE_TOKENS, Chain, DomainLike, Tokens, tokens_of

if TYPE_CHECKING:
    from .call import Call
    from .client import Client
    from .store import Store

LOW, AHEAD = 64, 256  # tokens: a boundary is due with less than LOW mapped ahead, or AHEAD complete and not committed


class Lease(NamedTuple):
    """What a worker process needs of a sequence that a scheduler activated for it; it can be pickled."""

    handle: int
    rows: Tuple[int, ...]
    mapped: Tuple[int, ...]
    cached: int
    end: int
    state_slot: Optional[int]
    source_state_slot: Optional[int]
    #: Of each pool: None, or of one with a window the tokens up to which it may be mapped now, and the first one there.
    bounds: Tuple[Optional[Tuple[int, int]], ...] = ()


class Sequence:
    """Made by Client.activate() or Client.drive(). Not for two threads at once.

    As a context manager it is finished at the end: retained (what is complete can be found again), or released where
    an exception passes. One that this client activated for itself and dropped without an end is released.
    """

    def __init__(
        self,
        client: Client,
        session: Session,
        lease: Lease,
        tokens: Tokens,
        domain: DomainLike,
        retention: int,
        own: bool,
    ) -> None:
        self.handle = lease.handle
        self._client, self._session, self._lease, self._ended = client, session, lease, False
        if own:  # leased to the session that activated it
            session.own(self, lease.handle)
        self.cached = lease.cached  #: tokens of the prompt whose KV is there already
        self.end = lease.end  #: tokens to stop at
        self.bounded = False  #: kvd could not let it grow to what was asked: `end` is less
        self.retention = retention
        self.state_slot, self.source_state_slot = lease.state_slot, lease.source_state_slot
        self.state_frontier: Optional[
            int
        ] = None  #: set it when the image's frontier changed; the next boundary says it
        self._mapped = list(lease.mapped)
        self._bounds = list(lease.bounds) or [None] * len(lease.rows)
        self._tokens = array("I", tokens_of(tokens))
        self._chain = Chain(domain, self._tokens[: self.cached])
        self._done = self._committed = self.cached
        self._named = self.cached // PAGE_TOKENS

    def __repr__(self) -> str:
        return f"<kvd.Sequence {self.handle:016x}: {self.known} tokens, {self._done} done, {self._committed} committed>"

    # ---- where it is ----

    @property
    def row(self) -> int:
        """Of the first pool's block table. It holds until the sequence ends."""
        return self._lease.rows[0]

    @property
    def rows(self) -> Tuple[int, ...]:
        return self._lease.rows

    @property
    def lease(self) -> Lease:
        """As it was activated, for the process that drives it."""
        return self._lease

    @property
    def mapped(self) -> int:
        """Tokens that have a slot in every pool."""
        return min(self._mapped)

    def first(self, pool: int = 0) -> int:
        """The first token that still has a slot in a pool: those before it are behind its window, and not read again."""
        bound = self._bounds[pool]
        return bound[1] if bound else 0

    @property
    def known(self) -> int:
        return len(self._tokens)

    @property
    def done(self) -> int:
        return self._done

    @property
    def committed(self) -> int:
        return self._committed

    @property
    def tokens(self) -> "array[int]":
        return self._tokens[:]

    def block_table(self, store: Optional[Store] = None, pool: int = 0) -> Any:
        """The pages of what is mapped, in order: int32 ndarray [ceil(mapped / 64)], a view of the table in main memory.
        On a GPU a torch tensor. -1 for those behind the window of the pool. store: the client's last attached one."""
        store = store or self._client.store
        pages = -(-self._mapped[pool] // PAGE_TOKENS)
        table = store.pool(pool).table
        return (table.torch() if table.device != "cpu" else table.numpy())[self._lease.rows[pool]][:pages]

    def slot_mapping(self, begin: int, end: int, store: Optional[Store] = None, pool: int = 0) -> Any:
        """For tokens [begin, end): page * 64 + token of the page, int64, as paged-attention libraries want it."""
        if not self.first(pool) <= begin <= end <= self._mapped[pool]:
            raise OutOfRange(
                f"asked for slots of tokens {begin} to {end} of pool {pool}; {self.first(pool)} to {self._mapped[pool]} "
                "are mapped"
            )
        table = self.block_table(store, pool)
        if hasattr(table, "is_cuda"):
            import torch

            at: Any = torch.arange(begin, end, device=table.device)
            return table[at // PAGE_TOKENS].long() * PAGE_TOKENS + at % PAGE_TOKENS
        import numpy

        at = numpy.arange(begin, end, dtype=numpy.int64)
        return table[at // PAGE_TOKENS].astype(numpy.int64) * PAGE_TOKENS + at % PAGE_TOKENS

    # ---- going on ----

    def step(self, tokens: Tokens = ()) -> None:
        """The KV of all known tokens is complete on the device, on all ranks; `tokens` come next.

        Makes room for the KV of the new ones. That takes a message about once in 256 tokens; more often only where
        many come at once. ResourceExhausted where the sequence is bounded and they do not fit.
        """
        self._client.run(self._step(tokens_of(tokens)))

    async def step_async(self, tokens: Tokens = ()) -> None:
        await self._client.run_async(self._step(tokens_of(tokens)))

    def _step(self, tokens: "array[int]") -> Steps[None]:
        self._check()
        self._check_end(len(tokens))
        self._done = max(self._done, self.known)
        self._tokens += tokens
        try:
            if self.wants_boundary:
                yield from self._boundary()
            if self.known > self.end:
                raise ResourceExhausted(
                    f"kvd can map {self.end - 1} tokens of this sequence for now; {self.known} are known"
                )
        except BaseException:
            del self._tokens[self.known - len(tokens) :]
            raise

    def append(self, tokens: Tokens) -> None:
        """Less than step(): `tokens` come next, for a batch that says the rest by complete() and boundary()."""
        more = tokens_of(tokens)
        self._check_open()
        self._check_end(len(more))
        self._tokens += more

    def _check_end(self, more: int) -> None:
        if self.known + more > self.end:
            kind = ResourceExhausted if self.bounded else OutOfRange
            raise kind(f"the sequence has {self.known} tokens and may have {self.end}; {more} more came")

    def complete(self, tokens: int) -> None:
        """Less than step(): the KV of the first `tokens` known ones is complete, for example of a chunk of a prompt."""
        self._check_open()
        if not self._done <= tokens <= self.known:
            raise OutOfRange(f"{tokens} tokens cannot be complete: {self._done} are already, {self.known} are known")
        self._done = tokens

    def _ensure(self) -> types.PerPool:
        """What is wanted ahead, of a window as much as may be mapped now."""
        want = min(self.known + AHEAD, self.end - 1)
        if not any(self._bounds):
            return want
        return tuple(min(want, bound[0]) if bound else want for bound in self._bounds)

    @property
    def wants_boundary(self) -> bool:
        """Whether step() has something to tell kvd now."""
        low = self.mapped < min(self.end - 1, self.known + LOW)
        return low or self._done - self._committed >= AHEAD or self.state_frontier is not None

    def boundary(self, last: bool = False) -> types.RoundItem:
        """What a Round has to say of it, for a batch: client.round([s.boundary() for s in batch]), then each
        s.take(result). last: no work of the device runs on it any more, so that another session may finish it."""
        return types.RoundItem(
            self.handle,
            commit=self._done,
            ensure=None if last else self._ensure(),
            state_frontier=self.state_frontier,
        )

    def take(self, result: types.RoundResult) -> None:
        """What a Round answered about its boundary(). A refusal of the item is raised."""
        if result.status:
            raise error_of(result.status, result.message)
        self._mapped = [place.membership * PAGE_TOKENS for place in result.pools]
        self._committed = min(place.committed for place in result.pools)
        self._bounds = [bound and _bound_of(place) for bound, place in zip(self._bounds, result.pools)]
        self.state_frontier = None
        if result.bounded is not None:
            self.bounded = True
            self.end = min(self.end, result.bounded[1] + 1)

    def name(self) -> None:
        """Names the pages that are complete, so that others find them while this runs: for a batch, after take()."""
        self._client.run(self._name())

    def _boundary(self) -> Steps[None]:
        results = yield from operations.round_([self.boundary()], len(self._lease.rows))
        self.take(results[0])
        yield from self._name()

    def _name(self) -> Steps[None]:
        self._chain.push(self._tokens[self._chain.tokens : self._committed])
        full = self._committed // PAGE_TOKENS
        if full > self._named:
            yield from operations.name_pages(self.handle, self._chain, self._named, full)
            self._named = full

    def _commit_all(self) -> Steps[None]:
        if self._committed < self._done or self.state_frontier is not None:
            item = types.RoundItem(self.handle, commit=self._done, state_frontier=self.state_frontier)
            self.take((yield from operations.round_([item], len(self._lease.rows)))[0])
        yield from self._name()

    # ---- ends ----

    def checkpoint(self, retention: Optional[int] = None) -> types.Checkpointed:
        """A continuation of what is complete now; the sequence goes on."""
        return self._client.run(self._checkpoint(retention))

    async def checkpoint_async(self, retention: Optional[int] = None) -> types.Checkpointed:
        return await self._client.run_async(self._checkpoint(retention))

    def _checkpoint(self, retention: Optional[int]) -> Steps[types.Checkpointed]:
        self._check()
        yield from self._commit_all()
        return (
            yield from operations.checkpoint(
                self.handle, self._chain.tail, self.retention if retention is None else retention
            )
        )

    def finish(self, retain: bool = True, retention: Optional[int] = None) -> int:
        """Ends it. retain: what is complete stays as a continuation (returned; 0 where nothing is complete) that
        outlives every engine. No work of the device may be under way on it. The call may be made once."""
        return self._client.run(self._finish(retain, retention))

    async def finish_async(self, retain: bool = True, retention: Optional[int] = None) -> int:
        return await self._client.run_async(self._finish(retain, retention))

    def _finish(self, retain: bool, retention: Optional[int]) -> Steps[int]:
        self._check()
        retain = retain and self._done > 0
        tail: Any = ()
        if retain:
            yield from self._commit_all()
            tail = self._chain.tail
        reply = yield messages.finish(self.handle, retain, tail, self.retention if retention is None else retention)
        self._ended = True
        self._session.disown(self.handle)
        continuation: int = reply.continuation
        return continuation

    def _check(self) -> None:
        self._session.check()
        self._check_open()

    def _check_open(self) -> None:
        if self._ended:
            raise FailedPrecondition(f"sequence {self.handle:016x} is finished")

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._ended:
            return
        if kind is None:
            self.finish()
            return
        try:
            self.finish(retain=False)
        except Exception:  # the first exception says more; a session that is gone has released it
            pass

    async def __aenter__(self) -> Sequence:
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        if self._ended:
            return
        if kind is None:
            await self.finish_async()
            return
        try:
            await self.finish_async(retain=False)
        except Exception:
            pass


def _bound_of(place: types.Place) -> Tuple[int, int]:
    return place.entitlement * PAGE_TOKENS, place.first * PAGE_TOKENS


def lease_of(made: types.Activated, cached: int, end: int, info: types.StoreInfo) -> Lease:
    if not made.pools:
        raise InvalidArgument("kvd activated a sequence without pools")
    return Lease(
        made.sequence,
        tuple(p.row for p in made.pools),
        tuple(p.membership * PAGE_TOKENS for p in made.pools),
        cached,
        end,
        made.state_slot,
        made.source_state_slot,
        tuple(_bound_of(place) if pool.window else None for place, pool in zip(made.pools, info.pool)),
    )
