# SPDX-License-Identifier: Apache-2.0
"""Statuses of kvd, and an exception for each that is a refusal.

kvd's sentence is the exception's text: it names what was asked, what there was and what to change. After a refusal
nothing has changed.

>>> error = error_of(Status.NOT_FOUND, "continuation 7 does not exist")
>>> isinstance(error, NotFound), error.retryable
(True, False)
>>> str(error)
'NOT_FOUND: continuation 7 does not exist'
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Dict, Optional, Type

if TYPE_CHECKING:
    from .call import Call


class Status(enum.IntEnum):
    """Numbers and meanings of google.rpc.Code."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Error(Exception):
    """Any refusal. `status` says which kind, `message` is the sentence."""

    status: Status = Status.UNKNOWN

    def __init__(self, message: str, call: Optional[Call[Any]] = None) -> None:
        super().__init__(message)
        self.message = message
        #: Of a changing request whose outcome is unknown: `call.result(timeout)` waits on for its first answer. It
        #: does not run twice. Where the exception is dropped without that, what the request made is given back.
        self.call = call

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}"

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without a change."""
        return self.status in (Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED, Status.ABORTED, Status.UNAVAILABLE)


class Cancelled(Error):
    """The caller gave up."""

    status = Status.CANCELLED


class Unknown(Error):
    """A status that this client does not know."""

    status = Status.UNKNOWN


class InvalidArgument(Error):
    """The request can never succeed as it stands."""

    status = Status.INVALID_ARGUMENT


class DeadlineExceeded(Error):
    """The deadline passed. Of a changing request `call` learns the outcome."""

    status = Status.DEADLINE_EXCEEDED


class NotFound(Error):
    """No such object, or an older generation of it."""

    status = Status.NOT_FOUND


class AlreadyExists(Error):
    """It exists."""

    status = Status.ALREADY_EXISTS


class PermissionDenied(Error):
    """The caller's role or lease does not allow it."""

    status = Status.PERMISSION_DENIED


class ResourceExhausted(Error):
    """Short now; it may fit after releases."""

    status = Status.RESOURCE_EXHAUSTED


class FailedPrecondition(Error):
    """The object's state does not allow it."""

    status = Status.FAILED_PRECONDITION


class Aborted(Error):
    """Made against another revision, session or instance of kvd: look again, or connect and attach anew."""

    status = Status.ABORTED


class OutOfRange(Error):
    """An argument is outside what the object allows."""

    status = Status.OUT_OF_RANGE


class Unimplemented(Error):
    """Not in this build or version."""

    status = Status.UNIMPLEMENTED


class Internal(Error):
    """A defect in kvd or in this client: please report it."""

    status = Status.INTERNAL


class Unavailable(Error):
    """kvd cannot be reached, is draining, or its device is lost: try later."""

    status = Status.UNAVAILABLE


class DataLoss(Error):
    """Stored bytes were lost or damaged."""

    status = Status.DATA_LOSS


class Unauthenticated(Error):
    """No valid session."""

    status = Status.UNAUTHENTICATED


_CLASSES: Dict[Status, Type[Error]] = {cls.status: cls for cls in Error.__subclasses__()}


def error_of(status: int, message: str) -> Error:
    """The exception of a status number; `Unknown` for numbers that are none."""
    try:
        return _CLASSES[Status(status)](message)
    except (ValueError, KeyError):
        return Unknown(f"status {status}: {message}")
