# SPDX-License-Identifier: Apache-2.0
"""A client of kvd, the service that owns the KV cache of LLM inference engines.

    with kvd.connect() as client, client.attach() as store:
        with client.activate(prompt, max_new_tokens=100, domain="my-model") as sequence:
            ...  # compute KV of tokens [sequence.cached, len(prompt)) into store.k[layer], store.v[layer]
            sequence.step([next_token])

It speaks kvd's protocol itself: no library of kvd is below it. numpy is imported by attach(), torch where a tensor is
asked for. README.md has a whole engine.
"""

from .call import Call
from .client import Client, Policy, connect
from .errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Status,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unknown,
)
from .lent import LentPages
from .names import PAGE_TOKENS, Chain, Domain
from .reuse import ReusePolicy
from .sequence import Lease, Sequence
from .types import (
    Activated,
    Activation,
    Checkpointed,
    ColdFound,
    ContinuationInfo,
    DomainReleased,
    Event,
    EventKind,
    Feasibility,
    Hit,
    Moved,
    Need,
    Place,
    Plan,
    Role,
    Root,
    RoundItem,
    RoundResult,
    RoundResults,
    SequenceInfo,
    SessionInfo,
    Stats,
    StoreInfo,
    Tier,
    Victim,
)
from .version import VERSION as __version__

__all__ = [
    "Aborted",
    "Activated",
    "Activation",
    "AlreadyExists",
    "Call",
    "Cancelled",
    "Chain",
    "Checkpointed",
    "Client",
    "ColdFound",
    "ContinuationInfo",
    "DataLoss",
    "DeadlineExceeded",
    "Domain",
    "DomainReleased",
    "Error",
    "Event",
    "EventKind",
    "FailedPrecondition",
    "Feasibility",
    "Hit",
    "Internal",
    "InvalidArgument",
    "Lease",
    "LentPages",
    "Moved",
    "Need",
    "NotFound",
    "OutOfRange",
    "PAGE_TOKENS",
    "PermissionDenied",
    "Place",
    "Plan",
    "Policy",
    "ResourceExhausted",
    "ReusePolicy",
    "Role",
    "Root",
    "RoundItem",
    "RoundResult",
    "RoundResults",
    "Sequence",
    "SequenceInfo",
    "SessionInfo",
    "Stats",
    "Status",
    "StoreInfo",
    "Tier",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "Victim",
    "__version__",
    "connect",
]
