# SPDX-License-Identifier: Apache-2.0
"""The client: a session with kvd, and all that can be asked in it.

Any thread may call; calls are pipelined on one connection. Each blocks until its answer or its deadline, and Ctrl-C
works. Where the connection breaks, the session is resumed and nothing runs twice; where kvd is another instance, the
client's calls raise Aborted from then on. A fork's child makes a client of its own.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence as Seq, Tuple, TypeVar, Union

from . import _messages as messages
from . import _operations as operations
from . import policy, types
from ._session import Session, Steps
from ._wire import default_socket
from .call import Call
from .errors import Aborted, Error, InvalidArgument, NotFound, OutOfRange, ResourceExhausted
from .lent import LentPages
from .names import PAGE_TOKENS, Chain, DomainLike, Tokens, domain_of, tokens_of
from .sequence import AHEAD, Lease, Sequence, lease_of
from .version import VERSION

if TYPE_CHECKING:
    from .store import Store

T = TypeVar("T")

_ATTEMPTS = 4

#: Chooses who gives way: gets the client and the activation, returns it with victims and revision set.
Policy = Callable[["Client", types.Activation], types.Activation]


def connect(
    socket: Optional[str] = None,
    *,
    instance: Optional[str] = None,
    role: Union[str, types.Role] = "scheduler",
    name: Optional[str] = None,
    rank: int = 0,
    timeout: float = 5.0,
    ring: bool = True,
) -> Client:
    """A client of the kvd at `socket`, or of the systemd unit's `instance` (/run/kvd/INSTANCE/kvd.sock). Without
    either: $KVD_SOCKET, else /run/kvd/kvd.sock.

    role: "observer", "worker", "scheduler" or "admin". name: for logs and kvdctl. rank: a worker's place in a
    tensor-parallel group. timeout: seconds, for connecting and for each message of every call. ring: a worker's and a
    scheduler's requests go through memory that it shares with kvd, where kvd offers that and the CPU is an x86-64;
    False: over the socket.
    """
    if socket is not None and instance is not None:
        raise InvalidArgument("name a socket or an instance, not both")
    return Client(socket or default_socket(instance), _role(role), name or _program(), rank, timeout, ring)


def _role(role: Union[str, types.Role]) -> types.Role:
    try:
        return types.Role[role.upper()] if isinstance(role, str) else types.Role(role)
    except (KeyError, ValueError):
        raise InvalidArgument(f"role {role!r} is none of observer, worker, scheduler, admin") from None


def _program() -> str:
    """The program's name in the characters that a name may have."""
    base = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")
    return "".join(c if c.isascii() and (c.isalnum() or c in "._:/-") else "-" for c in base)[:63] or "python"


def root_of(domain: Union[DomainLike, types.Root]) -> types.Root:
    """As kvd knows it. A Root stays what it is."""
    if isinstance(domain, types.Root):
        return domain
    made = domain_of(domain)
    return types.Root(made.root(), made.label)


def chain_of(domain: Union[DomainLike, Chain], prompt: Seq[int]) -> Chain:
    """A chain is of exactly these tokens already."""
    return domain if isinstance(domain, Chain) else Chain(domain, prompt)


class Client:
    """Made by connect(). A context manager that ends the session."""

    def __init__(
        self, socket: str, role: types.Role, name: str, rank: int, timeout: float, ring: bool = True
    ) -> None:
        self._session = Session(socket, role, name, f"kvd-client-{VERSION}", rank, timeout, ring)
        self.role, self.rank = role, rank
        self._info: Optional[types.StoreInfo] = None
        self._store: Optional[Store] = None

    # ---- the session ----

    @property
    def session(self) -> int:
        """This session's handle: what sequences are leased to."""
        return self._session.id

    @property
    def epoch(self) -> int:
        """Of the instance of kvd; another one after each start."""
        return self._session.epoch

    @property
    def timeout(self) -> float:
        """Seconds for each message; may be set."""
        return self._session.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._session.timeout = seconds

    def __repr__(self) -> str:
        return f"<kvd.Client {self.role.name.lower()} {self.session:016x} at {self._session.path}>"

    def close(self) -> None:
        """Ends the session: its sequences end, and retained ones stay. Stores stay mapped until they are detached."""
        self._session.close()

    def reconnect(self, timeout: Optional[float] = None) -> None:
        """Resumes the session after a lost connection, which any call does, too. Aborted: kvd is another instance."""
        self._session.reconnect(timeout)

    def fileno(self) -> int:
        """Readable (select, poll, epoll) when next_event(0) may have an event, or the connection is lost."""
        return self._session.fileno()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def run(self, steps: Steps[T], timeout: Optional[float] = None) -> T:
        """Drives an operation in this thread."""
        return self._session.run(steps, timeout)

    async def run_async(self, steps: Steps[T], timeout: Optional[float] = None) -> T:
        """Drives an operation in the running event loop."""
        return await self._call(steps).wait(timeout)

    def _call(self, steps: Steps[T]) -> Call[T]:
        return Call.start(self._session, steps)

    # ---- prefixes ----

    def find(self, tokens: Tokens, domain: DomainLike = "", limit: int = 16) -> List[types.Hit]:
        """The cached prefixes of a prompt, exact to the token, longest first; at most len(tokens) - 1 are usable, since
        one query must be computed. domain: what KV depends on besides, or a Chain that holds exactly these tokens."""
        return self.run(self._find(tokens, domain, limit))

    async def find_async(self, tokens: Tokens, domain: DomainLike = "", limit: int = 16) -> List[types.Hit]:
        return await self.run_async(self._find(tokens, domain, limit))

    def _find(self, tokens: Tokens, domain: Union[DomainLike, Chain], limit: int) -> Steps[List[types.Hit]]:
        prompt = tokens_of(tokens)
        chain = chain_of(domain, prompt)
        return (yield from operations.find(chain, prompt, limit))

    def find_cold(
        self,
        tokens: Tokens,
        domain: DomainLike = "",
        *,
        behind: Optional[types.Hit] = None,
        until: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> types.ColdFound:
        """What the cold tier has of a prompt behind a hit of find(): asks its engine, for [cold] find_time at most.
        until: tokens up to which it is wanted (default: all but the last); a continuation that ends exactly there, or
        one that ends at a page boundary before. Nothing there: frontier is where the hit's full pages end."""
        return self.run(self._cold("FindCold", tokens, domain, behind, until, 0), timeout)

    async def find_cold_async(
        self,
        tokens: Tokens,
        domain: DomainLike = "",
        *,
        behind: Optional[types.Hit] = None,
        until: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> types.ColdFound:
        return await self.run_async(self._cold("FindCold", tokens, domain, behind, until, 0), timeout)

    def load_cold(
        self,
        tokens: Tokens,
        domain: DomainLike = "",
        *,
        behind: Optional[types.Hit] = None,
        until: Optional[int] = None,
        retention: int = 0,
        timeout: Optional[float] = None,
    ) -> types.ColdFound:
        """Loads it into the host arena, each byte checked: then find() finds it, and activate() restores it. Its
        continuation shares the full pages of the hit. Where something is missing it ends before that; nothing has come:
        continuation is None. After DeadlineExceeded it goes on."""
        return self.run(self._cold("LoadCold", tokens, domain, behind, until, retention), timeout)

    async def load_cold_async(
        self,
        tokens: Tokens,
        domain: DomainLike = "",
        *,
        behind: Optional[types.Hit] = None,
        until: Optional[int] = None,
        retention: int = 0,
        timeout: Optional[float] = None,
    ) -> types.ColdFound:
        return await self.run_async(self._cold("LoadCold", tokens, domain, behind, until, retention), timeout)

    def prefetch_cold(
        self,
        tokens: Tokens,
        domain: DomainLike = "",
        *,
        behind: Optional[types.Hit] = None,
        until: Optional[int] = None,
        retention: int = 0,
        timeout: Optional[float] = None,
    ) -> types.ColdFound:
        """load_cold(), and what has come is copied to the device, ahead of an activation."""
        found = self.load_cold(tokens, domain, behind=behind, until=until, retention=retention, timeout=timeout)
        if found.continuation is not None:
            self.prefetch(found.continuation, timeout)
        return found

    def _cold(
        self,
        name: str,
        tokens: Tokens,
        domain: Union[DomainLike, Chain],
        behind: Optional[types.Hit],
        until: Optional[int],
        retention: int,
    ) -> Steps[types.ColdFound]:
        prompt = tokens_of(tokens)
        chain = chain_of(domain, prompt)
        end = len(prompt) - 1 if until is None else until
        first, origin = 0, 0
        if behind and not behind.live and behind.usable >= PAGE_TOKENS:  # what runs is not shared with what is loaded
            first, origin = behind.usable // PAGE_TOKENS, behind.continuation
        ask = operations.ColdQuestion(chain, prompt, end, first, origin, retention)
        return (yield from operations.cold(name, ask))

    def activate(
        self,
        tokens: Tokens,
        max_new_tokens: int,
        *,
        worker: Optional[int] = None,
        group: int = 0,
        hit: Union[None, str, types.Hit] = "best",
        keep: bool = True,
        evict: Union[None, str, Policy] = "lru",
        domain: DomainLike = "",
        retention: int = 0,
        checkpoint_every: int = 0,
        checkpoint_prompt: bool = False,
        cold: bool = False,
        timeout: Optional[float] = None,
    ) -> Sequence:
        """A running sequence with everything that it can need guaranteed; its rows are in device memory on return.

        worker: the session that drives it (default: this one), or group. hit: "best" looks for the longest prefix,
        None starts empty, or one of find(). keep: the prefix stays cached (fork); else it is moved. evict: "lru" lets
        continuations of least retention, then least recent use give way where room is short; None raises
        ResourceExhausted; or a Policy. retention: class of what finish() leaves; smaller goes first.
        checkpoint_every, checkpoint_prompt: rolling checkpoints, for models with windows or state images: at multiples
        of so many tokens, itself one of 64, and at the last page boundary before the prompt's last token. cold: what
        the cold tier has of the prompt behind the hit is loaded first; what it lacks only shortens that, never refuses.
        timeout: also for the copies of a prefix that is in the host arena, and for that load.
        """
        rolling = checkpoint_every, checkpoint_prompt
        return self.run(
            self._activate(tokens, max_new_tokens, worker, group, hit, keep, evict, domain, retention, rolling, cold),
            timeout,
        )

    async def activate_async(
        self,
        tokens: Tokens,
        max_new_tokens: int,
        *,
        worker: Optional[int] = None,
        group: int = 0,
        hit: Union[None, str, types.Hit] = "best",
        keep: bool = True,
        evict: Union[None, str, Policy] = "lru",
        domain: DomainLike = "",
        retention: int = 0,
        checkpoint_every: int = 0,
        checkpoint_prompt: bool = False,
        cold: bool = False,
        timeout: Optional[float] = None,
    ) -> Sequence:
        """As activate(). A Policy of your own is called in the event loop's thread."""
        rolling = checkpoint_every, checkpoint_prompt
        return await self.run_async(
            self._activate(tokens, max_new_tokens, worker, group, hit, keep, evict, domain, retention, rolling, cold),
            timeout,
        )

    def _activate(
        self,
        tokens: Tokens,
        max_new_tokens: int,
        worker: Optional[int],
        group: int,
        hit: Union[None, str, types.Hit],
        keep: bool,
        evict: Union[None, str, Policy],
        domain: DomainLike,
        retention: int,
        rolling: Tuple[int, bool],
        cold: bool,
    ) -> Steps[Sequence]:
        prompt = tokens_of(tokens)
        if isinstance(hit, str):
            if hit != "best":
                raise InvalidArgument(f'hit={hit!r}: "best", None, or one of find()')
            hits = yield from self._find(prompt, domain, 1)
            hit = hits[0] if hits else None
        info = yield from self._described()
        want = self._want(
            len(prompt),
            max_new_tokens,
            self.session if worker is None and not group else worker or 0,
            group,
            hit,
            keep,
            info.pool,
            root_of(domain),
            rolling,
        )
        question = None
        if cold and not (hit and hit.live):  # what runs is not shared with what is loaded
            question = operations.ColdQuestion(chain_of(domain, prompt), prompt, len(prompt) - 1, 0, 0, retention)
        want, made = yield from self._activated(want, evict, question)
        start = made.pools[0].committed if question and made.pools else want.frontier
        lease = lease_of(made, start, len(prompt) + max_new_tokens, info)
        return Sequence(self, self._session, lease, prompt, domain, retention, want.worker == self.session)

    @staticmethod
    def _want(
        n: int,
        output: int,
        worker: int,
        group: int,
        hit: Optional[types.Hit],
        keep: bool,
        pools: Seq[types.PoolInfo],
        root: types.Root,
        rolling: Tuple[int, bool],
    ) -> types.Activation:
        tokens = max(0, n + min(AHEAD, output) - 1)
        ensure = tuple(0 if pool.window else tokens for pool in pools)  # the answer says how much of a window may be
        every, prompt = rolling
        source, frontier = (hit.continuation, hit.usable) if hit else (0, 0)
        return types.Activation(
            n, output, worker, group, source, frontier, keep, ensure,
            root=root, checkpoint_every=every, checkpoint_prompt=prompt,
        )

    def _activated(
        self, want: types.Activation, evict: Union[None, str, Policy], cold: Optional[operations.ColdQuestion] = None
    ) -> Steps[Any]:
        """The activation as it was made in the end, and its answer."""
        import dataclasses

        for attempt in range(_ATTEMPTS):
            try:
                return want, (yield from operations.activate(want, cold))
            except NotFound:  # the prefix, or the worker, went meanwhile
                if not want.source or attempt + 1 == _ATTEMPTS:
                    raise
                want = dataclasses.replace(want, source=0, frontier=0, victims=(), revision=0)
            except (ResourceExhausted, Aborted):
                if evict is None or attempt + 1 == _ATTEMPTS:
                    raise
                want = dataclasses.replace(want, victims=(), revision=0)
                want = (yield from policy.choose_victims(want)) if isinstance(evict, str) else evict(self, want)
        raise AssertionError

    def plan(self, want: types.Activation) -> types.Plan:
        """Whether an activation fits, and what it needs; changes nothing."""
        return self.run(operations.plan(want))

    def activate_exactly(self, want: types.Activation, timeout: Optional[float] = None) -> types.Activated:
        """One Activate message, for schedulers with plans of their own."""
        return self.run(operations.activate(want), timeout)

    def choose_victims(self, want: types.Activation) -> types.Activation:
        """The activation with the victims that make it fit, and at last without its source (kvd.policy says which).
        ResourceExhausted: even all of them would not do. The activation may still be Aborted when the store moved on: choose again.
        """
        return self.run(policy.choose_victims(want))

    def drive(self, lease: Lease, tokens: Tokens, domain: DomainLike = "", retention: int = 0) -> Sequence:
        """In a worker: the sequence that a scheduler leased to this session (Sequence.lease), and its prompt."""
        return Sequence(self, self._session, lease, tokens, domain, retention, False)

    # ---- pages that this process hands out itself ----

    def lend(self, pages: int, adopt: bool = True, domain: DomainLike = "") -> LentPages:
        """So many blank pages, and (adopt) beside them those that an earlier engine has named and that are on the device.
        Call attach() first: the block table lists them. The store's max_context is the most that one call lends."""
        made = self.activate_exactly(
            types.Activation(pages * PAGE_TOKENS, 1, self.session, root=root_of(domain)),
        )
        try:
            reply = self._ask(messages.Request("LendPages", sequence=made.sequence, adopt=adopt))
        except Error:
            self.finish(made.sequence, False)
            raise
        row, n = made.pools[0].row, reply.pool[0].membership
        table = [int(page) for page in self.store.table.numpy()[row][:n]] if self._on_cpu() else self._table_row(row, n)
        return LentPages(self, made.sequence, table, reply.adopted)

    def read_chain(self, continuation: int) -> Tuple[List[Optional[int]], List[bytes]]:
        """Of the named pages of a continuation, in order: the id of each (None: not on the device), and its digest."""
        pages: List[Optional[int]] = []
        digests: List[bytes] = []
        while True:
            reply = self._ask(messages.Request("ReadChain", continuation=continuation, first=len(pages)))
            some, names = messages.read_chain(reply)
            pages, digests = pages + some, digests + names
            if len(some) < messages.MAX_LENT:
                return pages, digests

    def _on_cpu(self) -> bool:
        return self.store.table.device == "cpu"

    def _table_row(self, row: int, n: int) -> List[int]:
        return [int(page) for page in self.store.table.torch()[row][:n].cpu()]

    # ---- sequences by handle ----

    def round(self, items: Seq[types.RoundItem], timeout: Optional[float] = None) -> types.RoundResults:
        """One boundary of a batch of 1 to 256 sequences in one message. Each item has its own status: see
        RoundResults.failed. A commit says that the device's work up to there is complete."""
        return self.run(operations.round_(items, self._n_pools()), timeout)

    def round_async(self, items: Seq[types.RoundItem]) -> Call[types.RoundResults]:
        """Sends it and returns: await it, or ask done() and result()."""
        return self._call(operations.round_(items, self._n_pools()))

    def name_pages(self, sequence: int, chain: Chain, first: int, end: int) -> None:
        """Names the complete pages [first, end), so that others find them."""
        if not 0 <= first <= end <= chain.pages:
            raise OutOfRange(
                f"asked to name pages {first} to {end}; the chain has {chain.pages} full pages: push the "
                "tokens first"
            )
        self.run(operations.name_pages(sequence, chain, first, end))

    def checkpoint(
        self,
        sequence: int,
        tail: Seq[int] = (),
        retention: int = 0,
        victims: Seq[types.Victim] = (),
        revision: int = 0,
    ) -> types.Checkpointed:
        """tail: the tokens after the last full page. victims (not from a worker) give way with it, or not at all; those
        to be demoted are in the host already. revision: of the store when they were chosen, 0 any."""
        return self.run(operations.checkpoint(sequence, tail, retention, victims, revision))

    def finish(self, sequence: int, retain: bool, tail: Seq[int] = (), retention: int = 0) -> int:
        """The continuation, 0 after a release."""
        continuation: int = self._ask(messages.finish(sequence, retain, tail, retention)).continuation
        return continuation

    def give_back(self) -> int:
        """ "No unit of mine runs on any sequence that is ending": how many were given back. After SESSION_LOST."""
        yielded: int = self._ask(messages.Request("Yield")).yielded
        return yielded

    # ---- continuations ----

    def release(self, continuation: int) -> None:
        self._ask(messages.Request("Release", continuation=continuation))

    def set_growth_victims(self, victims: Seq[types.Victim], sequence: int = 0) -> None:
        """Leaves the list of who may go, in this order, where the lease of a sequence (0: of any of this session) is to
        grow and pages lack; GAVE_WAY tells who went. It replaces the list before and ends with the session."""
        self._ask(messages.set_growth_victims(victims, sequence))

    def shorten(self, continuation: int, frontier: int) -> None:
        """Cuts it to a page boundary or a place in its tail; handle, retention and time of use stay."""
        self._ask(messages.Request("Shorten", continuation=continuation, frontier=frontier))

    def release_domain(self, domain: Union[DomainLike, types.Root]) -> types.DomainReleased:
        """Releases all continuations of a domain ("forget this adapter"): of a Domain, or of the digest or the label that
        lists show. What is in use stays, and running sequences go on: they are counted."""
        return self.run(operations.release_domain(root_of(domain)))

    def set_retention(self, continuation: int, retention: int) -> None:
        self._ask(messages.Request("SetRetention", continuation=continuation, retention=retention))

    def demote(self, continuation: int, keep_device: bool = False, timeout: Optional[float] = None) -> types.Moved:
        """Copies of all pages to the host arena; then the device gives up those that nothing else needs. keep_device:
        the copies only. After DeadlineExceeded the copies go on."""
        request = messages.Request("Demote", continuation=continuation, keep_device=keep_device)
        return self.run(operations.moved(request), timeout)

    def prefetch(self, continuation: int, timeout: Optional[float] = None) -> types.Moved:
        """Device copies of all pages, ahead of an activation."""
        return self.run(operations.moved(messages.Request("Prefetch", continuation=continuation)), timeout)

    def drop_replica(self, continuation: int, tier: types.Tier, timeout: Optional[float] = None) -> types.Moved:
        """Drops the copies of one tier that the other has, too."""
        request = messages.Request("DropReplica", continuation=continuation, tier=int(tier))
        return self.run(operations.moved(request), timeout)

    # ---- groups and sessions ----

    def open_group(self, members: Seq[int]) -> int:
        """Of worker sessions in rank order; the first leads."""
        group: int = self._ask(messages.open_group(members)).group
        return group

    def close_group(self, group: int) -> None:
        self._ask(messages.Request("CloseGroup", group=group))

    def fence(self, session: int) -> None:
        """Its requests are refused from now on; its sequences stay quarantined until its process is proven gone."""
        self._ask(messages.Request("Fence", session=session))

    # ---- views ----

    def attach(self, rank: Optional[int] = None, device: Any = None, timeout: Optional[float] = None) -> Store:
        """The planes and tables of a rank (default: this client's) in this process. device: "cpu", "cuda", "cuda:N" or
        a torch.device that the rank must be on; None: wherever it is. Needs the role of a worker, scheduler or admin.
        """
        from ._memory import ordinal_of
        from .store import Store

        rank = self.rank if rank is None else rank
        info = self.describe()
        self._store = Store(
            self._session,
            info,
            rank,
            ordinal_of(device),
            self._session.deadline(timeout),
            lambda pool: self.run(operations.describe_planes(pool, rank or 0)),
        )
        return self._store

    @property
    def store(self) -> Store:
        """The last attached one."""
        if self._store is None:
            raise InvalidArgument("this client has attached no store: call attach()")
        return self._store

    # ---- what is there ----

    def describe(self) -> types.StoreInfo:
        self._info = self.run(operations.describe())
        return self._info

    def describe_planes(self, pool: int = 0, rank: int = 0) -> List[types.PlaneInfo]:
        return self.run(operations.describe_planes(pool, rank))

    def stats(self) -> types.Stats:
        return messages.read(types.Stats, self._ask(messages.Request("Stats")))

    def reuse(self) -> types.Reuse:
        """What prompts used again since kvd's start, and what caches of other sizes would have found."""
        return messages.read(types.Reuse, self._ask(messages.Request("DescribeReuse")).reuse)

    def audit(self) -> types.Audit:
        """Whether the store's invariants hold."""
        return messages.read(types.Audit, self._ask(messages.Request("Audit")))

    def cold_tier(self) -> types.ColdTier:
        """The cold tier: what its engine does, and what was written."""
        return messages.read(types.ColdTier, self._ask(messages.Request("DescribeColdTier")))

    def check_cold_tier(self, objects: int = 0) -> None:
        """Begins to ask the engine once, and to read back so many objects of those written lately. When that has ended,
        cold_tier().checks has grown."""
        self._ask(messages.Request("CheckColdTier", objects=objects))

    def drain(self, on: bool = True) -> None:
        """New activations are refused with Unavailable; running ones go on."""
        self._ask(messages.Request("Drain", drain=on))

    def continuations(self, root: types.Root = types.Root()) -> List[types.ContinuationInfo]:
        """All, or those of a domain, by the digest or the label that the list shows."""
        return self.run(operations.everything("ListContinuations", types.ContinuationInfo, root))

    def changes(self, cursor: int = 0) -> Tuple[List[types.ContinuationInfo], int]:
        """Continuations that changed behind the cursor, as they are now (frontier 0: gone), and the cursor behind them. To
        keep a catalogue: begin with cursor 0, which tells none, then list continuations(), then ask again and again.
        OutOfRange: the oldest of them are not kept, or kvd is another instance; begin anew."""
        return self.run(operations.changes(cursor))

    def sequences(self, root: types.Root = types.Root()) -> List[types.SequenceInfo]:
        return self.run(operations.everything("ListSequences", types.SequenceInfo, root))

    def sessions(self) -> List[types.SessionInfo]:
        return self.run(operations.everything("ListSessions", types.SessionInfo))

    def settings(self) -> List[types.Setting]:
        """The configuration that is in effect."""
        return self.run(operations.everything("ListSettings", types.Setting))

    # ---- events ----

    def subscribe(self, *kinds: types.EventKind) -> None:
        """To these kinds from now on, instead of those before; resumed sessions stay subscribed."""
        self._session.subscribe(sum(1 << int(kind) for kind in set(kinds)))

    def next_event(self, timeout: float = 0.0) -> Optional[types.Event]:
        """None: none came in `timeout` seconds. Unavailable: the connection is lost; the next call resumes."""
        return self._session.next_event(timeout)

    async def next_event_async(self, timeout: Optional[float] = None) -> Optional[types.Event]:
        """As next_event(); None waits for ever."""
        import asyncio

        loop = asyncio.get_running_loop()
        came = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(came.set)

        self._session.watch(loop)
        self._session.wake_on_events(wake, True)
        try:
            event = self._session.take_event()
            if event is None:
                await asyncio.wait_for(came.wait(), timeout)
                event = self._session.take_event()
            return event
        except asyncio.TimeoutError:
            return None
        finally:
            self._session.wake_on_events(wake, False)

    # ---- helpers ----

    def _ask(self, request: messages.Request) -> Any:
        return self.run(operations.one(request))

    def _described(self) -> Steps[types.StoreInfo]:
        if self._info is None:
            self._info = yield from operations.describe()
        return self._info

    def _n_pools(self) -> int:
        return len((self._info or self.run(self._described())).pool)
