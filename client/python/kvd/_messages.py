# SPDX-License-Identifier: Apache-2.0
"""The codec: the only module that knows kvd.proto and the frame around its bodies.

A request is built, and checked against the limits of PROTOCOL.md, before it gets a number: what kvd could not decode
would take none.
"""

from __future__ import annotations

import dataclasses
import operator
import struct
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from . import types
from ._schema import message, service
from .errors import Internal, InvalidArgument, Status

PROTOCOL = 2
HEADER = struct.Struct("<IHHQ")
FRAME_LIMIT = 65536
VICTIMS_BESIDE_COLD = 1024
F_REPLY, F_EVENT = 1, 2
EVENT = 64

MAX_ROUND = 256
MAX_DIGESTS = 1024
MAX_VICTIMS = 4096
MAX_GROWTH = 256
MAX_LIST = 128
MAX_HITS = 16
MAX_RANKS = 8
MAX_LENT = 1024
TAIL_TOKENS = 63
_NAME = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-")


class _Kind(NamedTuple):
    type: int
    name: str
    request: Callable[[], Any]
    reply: Callable[[], Any]
    changes: bool  #: it takes a number


def _kinds() -> Dict[str, _Kind]:
    """The requests of kvd.proto's service: a method's place is its type, its idempotency says whether it has a number."""
    return {
        method.name: _Kind(
            number,
            method.name,
            message(method.input_type.name),
            message(method.output_type.name),
            method.GetOptions().idempotency_level != method.GetOptions().NO_SIDE_EFFECTS,
        )
        for number, method in enumerate(service("Kvd").methods, 1)
    }


KINDS = _kinds()
_BY_TYPE = {kind.type: kind for kind in KINDS.values()}
_Event = message("Event")
_T = TypeVar("_T")


class Request:
    """A request before it is sent."""

    __slots__ = ("kind", "body")

    def __init__(self, kind: str, **fields: Any) -> None:
        self.kind = KINDS[kind]
        try:
            self.body = self.kind.request(**fields)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"{kind} cannot be put into a message: {error}") from error


# ---- frames ----


def frame(request: Request, call_id: int, session: int, number: int, deadline_ns: int, epoch: int) -> bytes:
    """The bytes of a request; its number 0 where it has none."""
    header = request.body.header
    header.session, header.sequence, header.deadline_ns, header.epoch = session, number, deadline_ns, epoch
    return _frame(request, call_id)


def hello_frame(request: Request, call_id: int) -> bytes:
    return _frame(request, call_id)


def _frame(request: Request, call_id: int) -> bytes:
    body: bytes = request.body.SerializeToString()
    if len(body) > FRAME_LIMIT - HEADER.size:
        raise InvalidArgument(
            f"{request.kind.name} takes {len(body)} bytes; a message has at most "
            f"{FRAME_LIMIT - HEADER.size}: split it"
        )
    return HEADER.pack(12 + len(body), request.kind.type, 0, call_id) + body


def read_reply(kind: _Kind, frame_type: int, body: bytes) -> Any:
    """The reply message, its status not looked at."""
    if frame_type != kind.type:
        raise Internal(f"kvd's answer to {kind.name} is of type {frame_type}")
    try:
        return kind.reply.FromString(body)  # type: ignore[attr-defined]
    except Exception as error:  # each implementation of protobuf has its own
        raise Internal(f"kvd's answer to {kind.name} cannot be read: {error}") from error


def read_event(body: bytes) -> Optional[types.Event]:
    """None: of a kind that this client does not know."""
    try:
        return read(types.Event, _Event.FromString(body))
    except Exception:  # a newer kind, or no Event
        return None


# ---- answers as values ----


def _convert(f: Any) -> Callable[[Any], Any]:
    how, cls = f.metadata.get("read"), f.metadata.get("cls")
    if how == "text":
        return lambda value: value.decode("ascii", "replace")
    if how == "plus_one":
        return lambda value: value - 1 if value else None
    if how == "many":
        return lambda value: tuple(read(cls, each) for each in value)
    if how == "one":
        return lambda value: read(cls, value)
    if how == "as":
        return lambda value: cls(value)
    if f.type.startswith("Tuple["):
        return lambda value: tuple(value)
    return lambda value: value


_readers: Dict[Any, List[Tuple[str, str, Callable[[Any], Any]]]] = {}


def read(cls: Type[_T], body: Any) -> _T:
    """The dataclass whose fields have the names of the message's."""
    readers = _readers.get(cls)
    if readers is None:
        fields: Any = cls
        readers = _readers[cls] = [
            (f.name, f.metadata.get("name", f.name), _convert(f)) for f in dataclasses.fields(fields)
        ]
    return cls(**{name: convert(getattr(body, wire_name)) for name, wire_name, convert in readers})


def read_list(cls: Type[_T], body: Any) -> Tuple[List[_T], Optional[int]]:
    """The objects and the next cursor, None at the end."""
    return [read(cls, each) for each in body.items], (body.next - 1 if body.next else None)


def list_changes(cursor: int) -> Request:
    return Request("ListChanges", cursor=cursor)


def read_changes(body: Any) -> Tuple[List[types.ContinuationInfo], int, bool]:
    """What changed, the cursor behind it, and whether there is more."""
    return [read(types.ContinuationInfo, each) for each in body.items], body.cursor, body.more


def read_activated(body: Any) -> types.Activated:
    return types.Activated(
        body.sequence,
        body.state_slot - 1 if body.state_slot else None,
        body.source_state_slot - 1 if body.source_state_slot else None,
        body.revision,
        tuple(_place(each) for each in body.pool),
        tuple(body.restored),
    )


def _place(body: Any) -> types.Place:
    return types.Place._make(_place_columns(body))


def read_hits(body: Any) -> Tuple[List[types.Hit], int, Optional[int]]:
    """The hits, the anchor to go on from (0: none), and the page whose tokens may tell more."""
    hits = [
        types.Hit(each.continuation, each.usable, each.frontier, each.retention, each.restore_pages, each.live)
        for each in body.hits
    ]
    return hits, body.anchor, body.want_page - 1 if body.want_page else None


# ---- checks ----


def check_name(name: str, what: str = "the name") -> bytes:
    text = name.encode("utf-8", "replace")
    if not text or len(text) > 63 or not _NAME.issuperset(text):
        raise InvalidArgument(f"{what} is {name!r}: 1 to 63 of the characters A-Z a-z 0-9 . _ : / -")
    return text


def _check_count(n: int, least: int, most: int, what: str) -> None:
    if not least <= n <= most:
        raise InvalidArgument(f"{n} {what}; {least} to {most} in one message")


def _tail(tail: Sequence[int]) -> Sequence[int]:
    _check_count(len(tail), 0, TAIL_TOKENS, "tokens of a tail")
    return tail


# ---- requests ----


def hello(role: types.Role, name: str, library: str, rank: int, resume: int = 0, secret: int = 0) -> Request:
    if not 0 <= rank < MAX_RANKS:
        raise InvalidArgument(f"rank {rank}; ranks are 0 to {MAX_RANKS - 1}")
    return Request(
        "Hello",
        protocol=PROTOCOL,
        role=int(role),
        name=check_name(name),
        library=library.encode(),
        rank=rank,
        resume=resume,
        resume_secret=secret,
    )


def plan(want: types.Activation) -> Request:
    return Request("Plan", **_wanted(want))


def activate(want: types.Activation, cold: Dict[str, Any]) -> Request:
    """cold: of its ColdSource; empty: nothing is loaded first."""
    return Request("Activate", **_wanted(want), **({"cold": cold} if cold else {}))


def cold_source(first: int, digests: bytes, tail: Sequence[int], retention: int) -> Dict[str, Any]:
    return {"first": first, "digests": digests, "tail": _tail(tail), "retention": retention}


def choose(want: types.Activation) -> Request:
    """By the lowest retention, then by the earliest use."""
    return Request("Choose", activation=_wanted(want), order=1)


def victim_fields(victims: Sequence[types.Victim]) -> List[Dict[str, Any]]:
    _check_count(len(victims), 0, MAX_VICTIMS, "victims")
    return [each._asdict() for each in victims]


def _wanted(want: types.Activation) -> Dict[str, Any]:
    _check_count(len(want.ensure), 0, 2, "pools of ensure")
    return {"worker": want.worker, "group": want.group, "from": want.source, "keep": want.keep,
            "frontier": want.frontier, "prompt_tokens": want.prompt_tokens,
            "max_output_tokens": want.max_output_tokens, "ensure": want.ensure, "revision": want.revision,
            "root": root_fields(want.root), "checkpoint_every": want.checkpoint_every,
            "checkpoint_prompt": want.checkpoint_prompt,
            "victims": victim_fields(want.victims)}


def read_choice(body: Any) -> Tuple[Tuple[types.Victim, ...], bool, types.Plan]:
    """The victims, whether there are more than they, and the plan with them."""
    victims = tuple(types.Victim(each.continuation, each.demote, each.frontier) for each in body.victims)
    return victims, body.more, read(types.Plan, body.plan)


def root_fields(root: types.Root) -> Dict[str, bytes]:
    if len(root.digest) not in (0, 32):
        raise InvalidArgument(f"a root digest of {len(root.digest)} bytes; it has 32")
    return {"digest": root.digest, "label": check_name(root.label, "the label") if root.label else b""}


def find(
    root: bytes, prompt_tokens: int, page: int, tokens: Sequence[int], digests: bytes, first: int = 0, anchor: int = 0
) -> Request:
    """tokens: those of the prompt from `page` on."""
    _check_count(len(digests) // 32, 0, MAX_DIGESTS, "digests")
    return Request(
        "Find",
        max=MAX_HITS,
        root=root,
        digests=digests,
        first=first,
        anchor=anchor,
        prompt_tokens=prompt_tokens,
        token_page=page,
        tokens=_tail(tokens),
    )


def cold(
    name: str, root: types.Root, first: int, digests: bytes, tail: Sequence[int], origin: int, retention: int
) -> Request:
    return Request(
        name,
        root=root_fields(root),
        first=first,
        digests=digests,
        tail=_tail(tail),
        retention=retention,
        **{"from": origin},
    )


def name_pages(sequence: int, first: int, digests: bytes) -> Request:
    _check_count(len(digests) // 32, 1, MAX_DIGESTS, "digests")
    return Request("NamePages", sequence=sequence, first=first, digests=digests)


def checkpoint(
    sequence: int, tail: Sequence[int], retention: int, victims: Sequence[types.Victim] = (), revision: int = 0
) -> Request:
    return Request("Checkpoint", sequence=sequence, tail=_tail(tail), retention=retention,
                   victims=victim_fields(victims), revision=revision)


def set_growth_victims(victims: Sequence[types.Victim], sequence: int) -> Request:
    _check_count(len(victims), 0, MAX_GROWTH, "victims of growth")
    return Request("SetGrowthVictims", sequence=sequence, victims=victim_fields(victims))


def lent_pages(pages: Sequence[int], digests: Sequence[bytes] = ()) -> List[Dict[str, Any]]:
    _check_count(len(pages), 0, MAX_LENT, "pages")
    if digests and len(digests) != len(pages):
        raise InvalidArgument(f"{len(pages)} pages and {len(digests)} digests")
    if any(len(digest) != 32 for digest in digests):
        raise InvalidArgument("a digest has 32 bytes")
    return [dict(page=page + 1, digest=digest) for page, digest in zip(pages, digests or (b"",) * len(pages))]


def name_lent(
    sequence: int,
    source: int,
    first: int,
    root: types.Root,
    pages: List[Dict[str, Any]],
    retention: int,
    replace: bool,
    tail: Sequence[int] = (),
) -> Request:
    return Request("NameLent", **{"sequence": sequence, "from": source, "first": first, "root": root_fields(root),
                                  "pages": pages, "retention": retention, "replace": replace, "tail": _tail(tail)})


def read_chain(body: Any) -> Tuple[List[Optional[int]], List[bytes]]:
    return [each.page - 1 if each.page else None for each in body.pages], [each.digest for each in body.pages]


def finish(sequence: int, retain: bool, tail: Sequence[int], retention: int) -> Request:
    return Request("Finish", sequence=sequence, retain=retain, tail=_tail(tail), retention=retention)


def open_group(members: Sequence[int]) -> Request:
    _check_count(len(members), 1, MAX_RANKS, "members of a group")
    return Request("OpenGroup", members=members)


def list_request(name: str, cursor: int, root: types.Root = types.Root()) -> Request:
    return Request(name, cursor=cursor, max=MAX_LIST, root=root_fields(root))


def release_domain(root: types.Root, cursor: int) -> Request:
    return Request("ReleaseDomain", root=root_fields(root), cursor=cursor)


# ---- rounds ----


def round_request(items: Sequence[types.RoundItem], n_pools: int) -> Request:
    _check_count(len(items), 1, MAX_ROUND, "sequences of a Round")
    sequences, commit, truncate, keep, ensure, state = zip(*items)
    request = Request("Round")
    body = request.body
    try:
        body.sequence.extend(sequences)
        if state.count(None) != len(state):
            body.state_frontier.extend([0 if value is None else value + 1 for value in state])
        for pool in range(n_pools):
            columns = body.pool.add()
            for column, values in (
                (columns.commit, commit),
                (columns.truncate, truncate),
                (columns.keep, keep),
                (columns.ensure, ensure),
            ):
                if values.count(None) != len(values):
                    column.extend(_column(values, pool))
    except (ValueError, TypeError, IndexError) as error:
        raise InvalidArgument(f"a Round takes handles, and tokens from 0 to 4294967294 or None: {error}") from error
    return request


def _column(values: Sequence[types.PerPool], pool: int) -> Iterable[int]:
    try:
        return [value + 1 for value in values]  # type: ignore[operator]
    except TypeError:
        picked = [value[pool] if isinstance(value, tuple) else value for value in values]
        return [0 if value is None else value + 1 for value in picked]


_PLACE = types.Place._fields
_place_columns = operator.attrgetter(*_PLACE)


def read_round(body: Any, n: int) -> types.RoundResults:
    if body.n != n:
        raise Internal(f"kvd answered {body.n} results to a Round of {n} sequences")
    columns = [dict(zip(_PLACE, _place_columns(pool))) for pool in body.pool]
    if any(column and len(column) != n for each in columns for column in each.values()):
        raise Internal("kvd answered a column of another length than the Round")
    messages = {each.index: each.message.decode("ascii", "replace") for each in body.messages}
    bounded = {each.index: (each.pool, each.frontier) for each in body.bounded}
    return types.RoundResults(n, columns, body.status, body.n_pools, bounded, messages)


def next_number(reply: Any) -> int:
    """That the session's next new request has; 0: the reply does not say."""
    return 0 if isinstance(reply, Exception) else int(reply.header.next_sequence)


def status_of(body: Any) -> Tuple[int, str]:
    """Status and sentence of a reply."""
    header = body.header
    if not header.status:
        return 0, ""
    return header.status, header.message.decode("ascii", "replace") or Status(header.status).name
