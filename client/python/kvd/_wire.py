# SPDX-License-Identifier: Apache-2.0
"""One connection: a byte stream cut into frames, a ring where there is one, and times.

Nothing here blocks but poll(): an interrupt (Ctrl-C) that comes while it waits loses no byte. One that comes between
the socket and the buffer may, and then the connection is given up; its session is resumed on another one.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import Iterator, Optional, Tuple

from ._messages import F_EVENT, FRAME_LIMIT, HEADER
from ._ring import Broken, Ring, Spin
from .errors import DeadlineExceeded, InvalidArgument, PermissionDenied, Unavailable

_BUFFER = 4 * FRAME_LIMIT
_STREAM_EVERY = 32  # of a ring that always has something: what came on the stream meanwhile must not wait for ever
_ROOM_MS = 1.0  # between two looks for room in a ring
_CREDENTIALS = struct.Struct("iII")  # ucred: process, user, group


def now_ns() -> int:
    """CLOCK_MONOTONIC, which all processes of the host share."""
    return time.monotonic_ns()


def left_ms(deadline_ns: int) -> float:
    """Milliseconds until then, at least 0."""
    return max(0.0, (deadline_ns - now_ns()) / 1e6)


class Lost(Exception):
    """The connection is of no more use."""


class Nudge:
    """Wakes a thread that waits for a connection."""

    def __init__(self) -> None:
        self._ends: Tuple[int, ...] = ()
        self._ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._ends[0]

    def give(self) -> None:
        try:
            os.write(self._ends[1], b"!")
        except BlockingIOError:
            pass  # it is full of them

    def take(self) -> None:
        try:
            os.read(self._ends[0], 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        ends, self._ends = self._ends, ()
        for end in ends:
            os.close(end)

    def __del__(self) -> None:
        self.close()


class Wire:
    """One thread at a time may use it; wait_readable() may run beside the others."""

    def __init__(self, path: str, deadline_ns: int, nudge: Nudge) -> None:
        self.path = path
        self.doomed = False
        self._socket = _connected(path, deadline_ns)
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._fill = 0
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._poller.register(nudge.fileno(), select.POLLIN)
        self._nudge = nudge
        self._ring: Optional[Ring] = None
        self._spin = Spin()
        self._stirs = False  # the stream has something
        self._turns = 0
        self._at_stream = False  # all answers come there, for a loop that waits for the descriptor

    def use_ring(self, ring: Ring) -> None:
        """All requests go by it from now on."""
        self._ring = ring

    def stay_at_stream(self) -> None:
        """What this process waits for is the descriptor, from now on. Receive once after it."""
        self._at_stream = True
        if self._ring is not None:
            self._ring.turn_away()

    def fileno(self) -> int:
        return self._socket.fileno()

    def peer_pid(self) -> int:
        """0: it is in another namespace of processes."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(found)[0])

    def wait_readable(self, deadline_ns: int) -> bool:
        """False: not by then, or nudged. One thread at a time."""
        ring = self._ring
        if ring is None or self._at_stream:
            return self._poll(deadline_ns)
        if self._look(ring, deadline_ns):
            return True
        try:
            return self._poll(deadline_ns) if ring.turn_away() else True
        finally:
            if not self._at_stream:
                ring.turn_back()

    def _look(self, ring: Ring, deadline_ns: int) -> bool:
        """For a while."""
        until = min(deadline_ns, now_ns() + self._spin.ns)
        came = ring.is_readable()
        while not came and now_ns() < until:
            came = ring.is_readable()
        self._spin.learn(came)
        return came

    def _poll(self, deadline_ns: int) -> bool:
        ready = self._poller.poll(left_ms(deadline_ns))
        if len(ready) == 1 and ready[0][0] != self._socket.fileno():
            self._nudge.take()
            return False
        self._stirs = bool(ready)
        return self._stirs

    # ---- sending ----

    def send(self, frame: bytes, at: int = 0) -> int:
        """Bytes that the connection took now."""
        if self._ring is not None:
            return len(frame) if self._ring.send(frame) else 0
        try:
            return self._socket.send(memoryview(frame)[at:] if at else frame)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Lost(error.strerror or str(error)) from error

    def wait_both(self, deadline_ns: int) -> bool:
        """Until it may take more bytes, or has some."""
        poller = select.poll()
        if self._ring is not None:
            poller.register(self._socket, select.POLLIN)
            self._stirs = bool(poller.poll(min(_ROOM_MS, left_ms(deadline_ns))))
            return left_ms(deadline_ns) > 0
        poller.register(self._socket, select.POLLIN | select.POLLOUT)
        return bool(poller.poll(left_ms(deadline_ns)))

    # ---- receiving ----

    def receive(self, all_: bool = False) -> Iterator[Tuple[bool, int, int, bytes]]:
        """The frames that are there now: whether it is an event, type, id, body. all_: also those of the stream, where
        nothing has told of any."""
        ring = self._ring
        if ring is not None:
            yield from self._receive_ring(ring)
            self._turns += 1
            if not (all_ or self._stirs or self._at_stream or self._turns % _STREAM_EVERY == 0):
                return
            self._stirs = False
        yield from self._receive_stream()
        if ring is not None:
            yield from self._receive_ring(ring)  # whose answer the stream may have told of

    def _receive_ring(self, ring: Ring) -> Iterator[Tuple[bool, int, int, bytes]]:
        try:
            frame = ring.receive()
            while frame is not None:
                _, kind, flags, call_id = HEADER.unpack_from(frame)
                yield bool(flags & F_EVENT), kind, call_id, frame[HEADER.size :]
                frame = ring.receive()
        except Broken as broken:
            raise Lost(str(broken)) from broken

    def _receive_stream(self) -> Iterator[Tuple[bool, int, int, bytes]]:
        try:
            n = self._socket.recv_into(self._view[self._fill :])
        except BlockingIOError:
            return
        except OSError as error:
            raise Lost(error.strerror or str(error)) from error
        if n == 0:
            raise Lost("kvd closed it")
        end, at = self._fill + n, 0
        while end - at >= HEADER.size:
            length, kind, flags, call_id = HEADER.unpack_from(self._buffer, at)
            if not 12 <= length <= FRAME_LIMIT - 4:
                raise Lost(f"a frame of {length} bytes came, which cannot be")
            if end - at < 4 + length:
                break
            body = bytes(self._view[at + HEADER.size : at + 4 + length])
            at += 4 + length
            yield bool(flags & F_EVENT), kind, call_id, body
        self._buffer[: end - at] = self._buffer[at:end]
        self._fill = end - at

    # ---- the end ----

    def flush(self, deadline_ns: int) -> None:
        """Until kvd has what was sent, which the end of the stream would take back from a ring."""
        poller = select.poll()
        poller.register(self._socket, 0)  # only its end
        while self._ring is not None and not self._ring.is_taken() and left_ms(deadline_ns) > 0:
            if poller.poll(_ROOM_MS):
                return

    def shut_down(self) -> None:
        """Wakes who waits for it."""
        self.doomed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is lost already

    def close(self) -> None:
        self._socket.close()
        ring = getattr(self, "_ring", None)
        if ring is not None:
            ring.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self.close()


def _connected(path: str, deadline_ns: int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.settimeout(max(0.001, left_ms(deadline_ns) / 1e3))
        made.connect(path)
        made.setblocking(False)
        return made
    except BaseException as error:
        made.close()
        if isinstance(error, OSError):
            raise _refusal(path, error) from error
        raise


def _refusal(path: str, error: OSError) -> Exception:
    if isinstance(error, socket.timeout):
        return DeadlineExceeded(f"kvd at {path} did not accept the connection in time")
    if isinstance(error, PermissionError):
        return PermissionDenied(f"the socket {path} is not open to this user (uid {os.geteuid()}): join its group")
    if not error.errno:
        return InvalidArgument(f"the socket path {path} cannot be used: {error}")
    return Unavailable(f"kvd cannot be reached at {path} ({error.strerror}): is it running, and is this its socket?")


def default_socket(instance: Optional[str]) -> str:
    """Of an instance of the systemd unit; without one $KVD_SOCKET, else /run/kvd/kvd.sock."""
    if instance is not None:
        return f"/run/kvd/{instance}/kvd.sock"
    return os.environ.get("KVD_SOCKET") or "/run/kvd/kvd.sock"
