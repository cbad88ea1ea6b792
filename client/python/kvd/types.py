# SPDX-License-Identifier: Apache-2.0
"""What kvd is asked and answers, as plain values.

Units: frontiers, prompts and outputs are tokens; memberships, entitlements and capacities are pages of 64 tokens;
strides, offsets and sizes are bytes; times are nanoseconds. Handles (session, sequence, continuation, group) are
opaque ints, 0 is none. None in a field of numbers is "none", or "not asked". Tuples by pool are in pool order.
"""

from __future__ import annotations

import enum
from collections import abc
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union, overload

from .errors import Status

# How _messages.read() makes a field of the message's.
_TEXT: Dict[str, Any] = {"read": "text"}
_PLUS_ONE: Dict[str, Any] = {"read": "plus_one"}


def _many(cls: Any) -> Dict[str, Any]:
    return {"read": "many", "cls": cls}


def _one(cls: Any) -> Dict[str, Any]:
    return {"read": "one", "cls": cls}


class Role(enum.IntEnum):
    """An observer looks; a worker drives what is leased to it; a scheduler activates, too; an admin may do all."""

    OBSERVER = 1
    WORKER = 2
    SCHEDULER = 3
    ADMIN = 4


class Tier(enum.IntEnum):
    DEVICE = 0
    HOST = 1


class Feasibility(enum.IntEnum):
    READY = 0
    BLOCKED = 1  #: for now
    INFEASIBLE = 2  #: for ever


class EventKind(enum.IntEnum):
    PRESSURE = 1  #: a pool fell below its low-water mark, or rose above it: pool, available
    BOUNDED = 2  #: a sequence reached a bounded completion: sequence, pool, frontier
    SESSION_LOST = 3  #: your scheduler or a member of your group is gone: finish the unit, then give_back()
    SEQUENCE_ENDED = 4  #: ended without a finish; continuation (0: none) holds what was complete
    DRAINING = 5
    LOST = 6  #: a continuation's only copy was damaged
    SHORTENED = 7  #: continuation was cut to frontier: the only copy of a page behind was damaged
    GAVE_WAY = 8  #: continuation gave way for the growth of sequence; frontier: what is left of it, 0: nothing


# ---- domains ----


@dataclass(frozen=True)
class Root:
    """A domain as kvd knows it: the root digest of its chains (32 bytes; empty: any) and its label."""

    digest: bytes = b""
    label: str = field(default="", metadata=_TEXT)


@dataclass(frozen=True)
class DomainReleased:
    """What Client.release_domain() did."""

    released: int  #: continuations
    in_use: int  #: continuations that an activation or a move holds: they stay
    sequences: int  #: running ones of the domain: they go on


# ---- activation ----


class Victim(NamedTuple):
    """A continuation that gives way."""

    continuation: int
    demote: bool = False  #: to the host arena; else it is released, or
    frontier: int = 0  #: shortened to this one, where it is not 0 (less than its own)


@dataclass(frozen=True)
class Activation:
    """A request to activate a sequence. Exactly one of `worker` (a session) and `group` is its driver."""

    prompt_tokens: int
    max_output_tokens: int
    worker: int = 0
    group: int = 0
    source: int = 0  #: continuation; 0: start empty
    frontier: int = 0  #: tokens of the source to start from
    keep: bool = False  #: the source survives (fork); else it is moved
    ensure: Tuple[int, ...] = ()  #: by pool: tokens to map at once
    victims: Tuple[Victim, ...] = ()  #: they give way with the activation or not at all, at most 4096
    revision: int = 0  #: at which the recipe was made; 0: any
    root: Root = Root()  #: of the prompt's domain (Domain.root()); a plan may leave it out
    checkpoint_every: int = 0  #: rolling checkpoints at multiples of so many tokens, itself one of 64; 0: none
    checkpoint_prompt: bool = False  #: and at the last page boundary before the prompt's last token


class Place(NamedTuple):
    """One pool of a sequence now."""

    row: int
    membership: int
    entitlement: int
    committed: int
    protected_frontier: int
    slice_begin: int
    slice_count: int
    first: int  #: of a pool with a window: entries of the row before this one are behind it, -1, and not read again


@dataclass(frozen=True)
class Activated:
    sequence: int
    state_slot: Optional[int]
    source_state_slot: Optional[int]  #: of a fork: copy it before the first commit
    revision: int
    pools: Tuple[Place, ...]
    restored: Tuple[int, ...]  #: by pool: pages that came back from the host


@dataclass(frozen=True)
class Need:
    needed: int
    available: int
    short_by: int


@dataclass(frozen=True)
class Plan:
    feasibility: Feasibility = field(metadata={"read": "as", "cls": Feasibility})
    revision: int
    pages: Tuple[Need, ...] = field(metadata=_many(Need))
    rows: Need = field(metadata=_one(Need))
    sequences: Need = field(metadata=_one(Need))
    continuations: Need = field(metadata=_one(Need))
    state_slots: Need = field(metadata=_one(Need))
    membership: Need = field(metadata=_one(Need))
    entitlement: Tuple[int, ...]
    shared_pages: Tuple[int, ...]
    copied_columns: Tuple[int, ...]
    freed_pages: Tuple[int, ...]
    restore_pages: Tuple[int, ...]
    demote_pages: Tuple[int, ...]
    arena: Need = field(metadata=_one(Need))


@dataclass(frozen=True)
class Hit:
    """A continuation that covers the first `usable` tokens of a prompt exactly."""

    continuation: int
    usable: int
    frontier: int
    retention: int
    restore_pages: int  #: what an activation brings back from the host
    live: bool  #: named pages of a running sequence: it can be forked only (keep)

    def before(self, other: Hit) -> bool:
        """Longest first, then cheapest, then what can be moved, then the one that holds least beside."""
        mine, others = (-self.usable, self.restore_pages, self.live, self.frontier), (
            -other.usable,
            other.restore_pages,
            other.live,
            other.frontier,
        )
        return mine < others


# ---- rounds ----

#: Tokens for all pools, or by pool; None: not asked.
PerPool = Union[None, int, Tuple[Optional[int], ...]]


class RoundItem(NamedTuple):
    """One sequence at a boundary. Applied in this order: commit, truncate, keep, ensure."""

    sequence: int
    commit: PerPool = None  #: the device's work up to there is complete
    truncate: PerPool = None
    keep: PerPool = None
    ensure: PerPool = None  #: tokens that must be mapped
    state_frontier: Optional[int] = None  #: of the state image now; 0: it is none


class RoundResult(NamedTuple):
    """Of one sequence. `pools` is empty unless `status` is OK."""

    status: Status
    message: str
    bounded: Optional[Tuple[int, int]]  #: (pool, tokens): lease growth was refused there, the rest was applied
    pools: Tuple[Place, ...]


class RoundResults(abc.Sequence):  # type: ignore[type-arg]
    """The results of a Round in the order of its items, read from columns when they are looked at.

    `failed` has the indices of those whose status is not OK. `column(pool, name)` is one number of all sequences, for
    example column(0, "membership").
    """

    def __init__(
        self,
        n: int,
        columns: List[Dict[str, Sequence[int]]],
        statuses: Sequence[int],
        n_pools: Sequence[int],
        bounded: Dict[int, Tuple[int, int]],
        messages: Dict[int, str],
    ) -> None:
        self._n, self._columns, self._statuses, self._n_pools = n, columns, statuses, n_pools
        self._bounded, self._messages = bounded, messages
        self._results: Optional[List[RoundResult]] = None

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> RoundResult:
        ...

    @overload
    def __getitem__(self, index: slice) -> List[RoundResult]:
        ...

    def __getitem__(self, index: Union[int, slice]) -> Union[RoundResult, List[RoundResult]]:
        return self._read()[index]

    def __iter__(self) -> Iterator[RoundResult]:
        return iter(self._read())

    def _read(self) -> List[RoundResult]:
        if self._results is None:
            columns = [[self.column(pool, name) for name in Place._fields] for pool in range(len(self._columns))]
            places = [map(Place._make, zip(*each)) for each in columns]
            everything = zip(*places) if places else iter([()] * self._n)
            self._results = [RoundResult(Status.OK, "", None, each) for each in everything]
            for i in {*self.failed, *self._bounded, *(i for i, n in enumerate(self._n_pools) if n != len(places))}:
                self._results[i] = self._special(i, self._results[i].pools)
        return self._results

    def _special(self, i: int, pools: Tuple[Place, ...]) -> RoundResult:
        status = Status(self._statuses[i]) if self._statuses else Status.OK
        n_pools = 0 if status else self._n_pools[i] if self._n_pools else len(pools)
        return RoundResult(status, self._messages.get(i, ""), self._bounded.get(i), pools[:n_pools])

    @property
    def failed(self) -> List[int]:
        return [i for i, status in enumerate(self._statuses) if status]

    def column(self, pool: int, name: str) -> Sequence[int]:
        return self._columns[pool][name] or (0,) * self._n


# ---- names, checkpoint, finish, moves ----


@dataclass(frozen=True)
class Checkpointed:
    continuation: int
    frontier: int
    revision: int
    shared_pages: Tuple[int, ...]


@dataclass(frozen=True)
class Moved:
    revision: int
    pages: Tuple[int, ...]  #: by pool: copied, or dropped
    n_bytes: int


@dataclass(frozen=True)
class ColdFound:
    """What the cold tier has of a prompt, or has given."""

    continuation: Optional[int]  #: of load_cold: in the host now; None: nothing has come
    frontier: int  #: tokens of the prompt, those that were there counted
    n_bytes: int  #: of values: to load, or loaded
    pages: int = 0  #: that are there, from the first on, whether a continuation ends there or not


# ---- what is there ----


@dataclass(frozen=True)
class ContinuationInfo:
    continuation: int
    frontier: int
    named_pages: int
    retention: int
    sharers: int
    tail_named: bool
    claimed: bool  #: by an activation in progress
    created: int  #: logical time: operations of the store
    used: int
    pages: Tuple[int, ...]
    exclusive_pages: Tuple[int, ...]  #: freed on the device by its release or demotion alone
    device_pages: Tuple[int, ...]
    host_pages: Tuple[int, ...]
    demoted: bool  #: it asks for no place on the device
    moving: bool
    image_on_device: bool
    image_in_host: bool
    age_ns: int  #: since it was made; of one found in the arena, since this instance has it
    idle_ns: int  #: since it was last used, or made
    state_slot: Optional[int] = field(metadata=_PLUS_ONE)
    root: Root = field(metadata=_one(Root))
    live: bool  #: what a running sequence has named so far: it can be forked, and nothing else
    rolling: bool  #: a running sequence's own rolling checkpoint: a newer one may take its place


@dataclass(frozen=True)
class SequenceInfo:
    sequence: int
    owner: int
    worker: int
    group: int
    state: int  #: 0 activating, 1 active, 2 quarantined
    ending: bool
    prompt_tokens: int
    ceiling_tokens: int
    named_pages: int
    age_ns: int  #: since its Activate came
    state_slot: Optional[int] = field(metadata=_PLUS_ONE)
    root: Root = field(metadata=_one(Root))
    lends: bool  #: its pages are an engine's, which hands them out itself


@dataclass(frozen=True)
class SessionInfo:
    session: int
    role: int
    rank: int
    uid: int
    gid: int
    pid: int
    connected: bool
    fenced: bool
    sequences: int
    requests: int
    age_ns: int  #: since its first Hello
    name: str = field(metadata=_TEXT)


@dataclass(frozen=True)
class Setting:
    """A key of the daemon's configuration."""

    section: str = field(metadata=_TEXT)
    name: str = field(metadata=_TEXT)
    value: str = field(metadata=_TEXT)  #: in effect
    source: str = field(metadata=_TEXT)  #: "default", or FILE:LINE; "auto, " before it: kvd has chosen the value
    pending: str = field(metadata=_TEXT)  #: where restart: what the file that was read last has instead
    restart: bool


@dataclass(frozen=True)
class ReuseSize:
    """A cache that gives up the least recently used page."""

    pages: int  #: of pool 0; 2**64 - 1: without an end
    found_tokens: int


@dataclass(frozen=True)
class ReuseDomain:
    label: str = field(metadata=_TEXT)  #: "other": of all that came when there were 32; "unlabelled"
    activations: int
    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True)
class Reuse:
    """What prompts used again since the start of kvd."""

    prompt_tokens: int  #: that were looked up
    pages_of_sample: int  #: 1: every page was looked at; n: one of n was
    sizes: Tuple[ReuseSize, ...] = field(metadata=_many(ReuseSize))  #: rising
    domains: Tuple[ReuseDomain, ...] = field(metadata=_many(ReuseDomain))


@dataclass(frozen=True)
class PoolStats:
    capacity: int
    allocated: int
    reserved: int
    available: int
    quarantined: int
    shared: int
    rows_used: int
    lent: int


@dataclass(frozen=True)
class Stats:
    sequences: int
    continuations: int
    continuation_limit: int
    sessions: int
    groups: int
    state_slots_used: int
    membership_used: int
    membership_limit: int
    operations: int
    revision: int
    epoch: int
    requests: int
    refusals: int
    frames_bad: int
    connections: int
    events_dropped: int
    uptime_ns: int
    rss_bytes: int
    metadata_bytes: int
    draining: bool
    host_capacity: int  #: bytes of the arena; 0: there is none
    host_occupied: int
    host_largest_free: int
    host_pages: Tuple[int, ...]
    host_images: int
    demoted_continuations: int
    moves: int
    move_pages_left: int
    demoted_pages: int
    demoted_bytes: int
    demoted_ns: int
    restored_pages: int
    restored_bytes: int
    restored_ns: int
    scrubbed_pages: int
    damaged_replicas: int
    lost_continuations: int
    recovered_continuations: int
    recovered_shortened: int
    recovered_dropped: int
    recovered_damaged: int
    former_drivers: int
    committed_tokens: int  #: by rounds; what is cut off and committed again counts again
    version: str = field(metadata=_TEXT)
    pool: Tuple[PoolStats, ...] = field(metadata=_many(PoolStats))


@dataclass(frozen=True)
class Audit:
    violations: int
    left_out: int  #: pages, and sums over many, that changed as long as the audit lasted: not compared
    text: str = field(metadata=_TEXT)


class ColdBreaker(enum.IntEnum):
    CONNECTING = 0  #: nothing is known yet
    CLOSED = 1  #: the engine is used
    OPEN = 2  #: it is left alone for a while


@dataclass(frozen=True)
class ColdTier:
    """The cold tier and the engine behind it; kvd_types.h has the meaning of each figure."""

    configured: bool  #: else the rest is zero
    breaker: ColdBreaker = field(metadata={"read": "as", "cls": ColdBreaker})
    clustered: bool
    retry_ns: int
    trips: int
    connections: int
    waiting: int
    continuations: int
    dropped_age: int
    dropped_queue: int
    dropped_engine: int
    dropped_arena: int
    written_objects: int
    written_bytes: int
    written_ns: int
    met_objects: int
    checks: int
    ping_ns: int
    read_objects: int
    right_objects: int
    absent_objects: int
    wrong_objects: int
    unanswered_objects: int
    why: str = field(metadata=_TEXT)
    wrong_field: str = field(metadata=_TEXT)


@dataclass(frozen=True)
class Event:
    kind: EventKind = field(metadata={"read": "as", "cls": EventKind})
    pool: int
    frontier: int
    available: int
    sequence: int
    continuation: int
    session: int
    group: int
    dropped: int  #: events lost before this one
    epoch: int


# ---- the store ----


@dataclass(frozen=True)
class RegionInfo:
    """Memory of kvd that can be mapped. Its handle is a bearer token: never log it."""

    kind: int  #: 1 CUDA IPC handle, 2 descriptor
    n_bytes: int = field(metadata={"name": "bytes"})
    ipc_handle: bytes = field(repr=False)
    uuid: bytes
    owner_pid: int
    fd_index: int


@dataclass(frozen=True)
class LayerGroup:
    """Layers of a pool that store a token alike. The bytes of latent and packed rows mean nothing to kvd."""

    name: str = field(metadata=_TEXT)
    format: int  #: 0 K and V apart, 1 latent: one row for all heads, 2 packed: K and V of a head in one row
    storage: int  #: as in PoolInfo
    order: int
    n_layers: int
    n_kv_heads: int  #: over all ranks; latent: 1, whole on each
    head_dim: int  #: of K
    v_head_dim: int
    row_bytes: int  #: latent: of a token; packed: of a token and head


@dataclass(frozen=True)
class PoolInfo:
    """A pool of one shape has no groups. With groups storage, order, n_kv_heads and head_dim are 0, and n_layers is
    the sum."""

    storage: int  #: 0 BF16, 1 INT8-G64, 2 FP8-row256, 3 NVFP4-G16, 4 K8V4, 5 FP8-tensor
    order: int  #: 0 page-major, 1 head-major
    arrangement: int  #: 0 dense, 1 the planes of a layer side by side in each page
    n_layers: int
    n_kv_heads: int  #: over all ranks
    head_dim: int
    n_ranks: int
    pages: int
    page_bytes: int
    planes: Tuple[RegionInfo, ...] = field(metadata=_many(RegionInfo))
    table: Tuple[RegionInfo, ...] = field(metadata=_many(RegionInfo))
    group: Tuple[LayerGroup, ...] = field(metadata=_many(LayerGroup))  #: in the order of their layers
    name: str = field(metadata=_TEXT)  #: main, draft, or what the configuration calls it
    window: int  #: tokens that a layer sees at most, the one to come among them; 0: all
    window_lead: int  #: tokens that are kept behind them
    window_aligned: bool  #: a layer sees the tokens from the last multiple of window on


@dataclass(frozen=True)
class StoreInfo:
    backend: int  #: 0 off, 1 mtp, 2 dflash
    max_context: int
    max_concurrency: int
    row_entries: int
    draft_window: int
    map_ahead: int
    state_bytes: int
    capacity_tokens: int
    lease_growth: bool
    pages_outlive: bool  #: device pages outlive this kvd: the next one may take them over
    geometry: bytes
    state_slots: int
    state_stride: int
    board_index: int  #: the session's board at the socket of descriptors; 0: there is none
    bell_index: int  #: and its bell
    fd_token: int = field(repr=False)
    name: str = field(metadata=_TEXT)
    fd_socket: str = field(metadata=_TEXT)
    pool: Tuple[PoolInfo, ...] = field(metadata=_many(PoolInfo))
    state: Tuple[RegionInfo, ...] = field(metadata=_many(RegionInfo))


@dataclass(frozen=True)
class PlaneInfo:
    """Element (d, token, head, page) is at offset + d*nb0 + token*nb1 + head*nb2 + page*nb3 of the region (page-major),
    or ... + page*nb2 + head*nb3 (head-major)."""

    ordinal: int
    layer: int
    slot: int  #: 0 K, 1 V, 2 K scales, 3 V scales
    dtype: int  #: 1 BF16, 2 I8, 3 E4M3, 4 U8, 5 F16
    extent: int
    n_heads: int
    offset: int
    nb0: int
    nb1: int
    nb2: int
    nb3: int
    format: int  #: of its layer, as in LayerGroup
    order: int  #: 0: nb3 is the page's stride, 1: nb2 is
