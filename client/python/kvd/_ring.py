# SPDX-License-Identifier: Apache-2.0
"""The shared segment of a connection (PROTOCOL.md): requests and answers through memory, without the kernel.

Who waits looks into the ring for a while, since kvd answers most requests within microseconds, then turns to the
stream: meanwhile the answers come there, and poll() waits for all there is.

Order. Counters are aligned words that one item assignment of a memoryview stores, and one indexing loads; memoryview
copies such an item with one move of its size. Python's interpreter is compiled code that reorders nothing across its
bytecodes, and x86-64 keeps stores in order and loads in order. So a tail is seen after the bytes that it is about. What
x86-64 does let pass is a load before an older store, in three places here: a tail and kvd_sleeps, client_waits and the
answers' tail, and the room. There a lock is taken in between, which is an instruction with the prefix LOCK, a full
barrier. On aarch64 neither holds without instructions that Python cannot issue: there the client stays on its socket.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
import threading
from typing import Optional

from ._messages import FRAME_LIMIT, HEADER

RING_BYTES = 131072
_REQUESTS, _ANSWERS, _SEGMENT = 4096, 4096 + RING_BYTES, 4096 + 2 * RING_BYTES
_CONSTANTS = struct.Struct("<IIQI")  # magic, version, epoch, ring_bytes
_MAGIC, _VERSION = 0x5264766B, 1
# In words of eight and of four bytes:
_REQUEST_HEAD, _ANSWER_TAIL, _REQUEST_TAIL, _ANSWER_HEAD = 8, 9, 24, 25
_KVD_SLEEPS, _CLIENT_WAITS = 32, 64
_STREAM = 2  # client_waits: send answers there

SPIN_NS = 40000
_SPIN_TRIES = 16
_ONE = (1).to_bytes(8, sys.byteorder)

#: Whether this interpreter can use rings: see the module.
IS_POSSIBLE = os.uname().machine == "x86_64" and sys.maxsize > 2**32


class Broken(Exception):
    """It holds what cannot be."""


class Barrier:
    """For one thread at a time. An interrupt between the two may leave the lock taken: then releasing it is the barrier,
    and it is free again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def full(self) -> None:
        self._lock.acquire(False)
        self._lock.release()


class Spin:
    """How long to look before sleeping: for SPIN_NS where that paid, less and less where it did not, with a long look
    now and then. Not at all on one CPU."""

    def __init__(self, cpus: Optional[int] = None) -> None:
        self.ns = SPIN_NS if (cpus or len(os.sched_getaffinity(0))) > 1 else 0
        self._misses = 0

    def learn(self, came: bool) -> None:
        if not self.ns:
            return
        self._misses += not came
        if came or self._misses % _SPIN_TRIES == 0:
            self.ns = SPIN_NS
        elif self.ns > SPIN_NS // 32:
            self.ns //= 2


class Ring:
    """Sending, and receiving, belongs to one thread at a time; the waiting belongs to one, too, which may be another."""

    def __init__(self, segment_fd: int, doorbell_fd: int, epoch: int) -> None:
        """Takes the doorbell over, where it does not raise: Broken, or an OSError."""
        seals = fcntl.fcntl(segment_fd, fcntl.F_GET_SEALS)
        wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        if seals & wanted != wanted or os.fstat(segment_fd).st_size != _SEGMENT:
            raise Broken("the segment can change its size, or has another one")
        self._map = mmap.mmap(segment_fd, _SEGMENT)
        if _CONSTANTS.unpack_from(self._map) != (_MAGIC, _VERSION, epoch, RING_BYTES):
            raise Broken("the segment is of another kvd")
        self._bytes = memoryview(self._map)
        self._long, self._word = self._bytes.cast("Q"), self._bytes.cast("I")
        self._doorbell = doorbell_fd
        self._sending, self._turning = Barrier(), Barrier()

    def close(self) -> None:
        doorbell, self._doorbell = self._doorbell, -1
        if doorbell < 0:
            return
        os.close(doorbell)
        for view in (self._word, self._long, self._bytes):
            view.release()
        self._map.close()

    # ---- sending ----

    def send(self, frame: bytes) -> bool:
        """False: there is no room now."""
        tail, n = self._long[_REQUEST_TAIL], len(frame)
        if n > RING_BYTES - (tail - self._long[_REQUEST_HEAD]):
            return False
        at = tail % RING_BYTES
        first = min(n, RING_BYTES - at)
        self._bytes[_REQUESTS + at : _REQUESTS + at + first] = frame[:first]
        if first < n:
            self._bytes[_REQUESTS : _REQUESTS + n - first] = frame[first:]
        self._long[_REQUEST_TAIL] = tail + n  # from here on it is sent
        self._sending.full()
        # kvd sets it again only after the doorbell, so that what is stored here between its look and ours costs nothing
        if self._word[_KVD_SLEEPS]:
            self._word[_KVD_SLEEPS] = 0
            try:
                os.write(self._doorbell, _ONE)
            except BlockingIOError:
                pass  # it has a call to hear already
        return True

    def is_taken(self) -> bool:
        """kvd has copied all requests."""
        return self._long[_REQUEST_HEAD] == self._long[_REQUEST_TAIL]

    # ---- waiting ----

    def is_readable(self) -> bool:
        return self._long[_ANSWER_TAIL] != self._long[_ANSWER_HEAD]

    def turn_away(self) -> bool:
        """Answers come on the stream from now on. False: the ring has some already."""
        self._word[_CLIENT_WAITS] = _STREAM
        self._turning.full()
        return not self.is_readable()

    def turn_back(self) -> None:
        self._word[_CLIENT_WAITS] = 0

    # ---- receiving ----

    def receive(self) -> Optional[bytes]:
        """The next frame, whole. None: there is none."""
        head = self._long[_ANSWER_HEAD]
        there = self._long[_ANSWER_TAIL] - head
        if not there:
            return None
        if not HEADER.size <= there <= RING_BYTES:
            raise Broken("the shared segment has a counter that cannot be")
        n = 4 + struct.unpack("<I", self._copy(head, 4))[0]
        if not HEADER.size <= n <= min(there, FRAME_LIMIT):
            raise Broken(f"a frame of {n} bytes came in the shared segment, which cannot be")
        frame = self._copy(head, n)
        self._long[_ANSWER_HEAD] = head + n
        return frame

    def _copy(self, from_: int, n: int) -> bytes:
        at = _ANSWERS + from_ % RING_BYTES
        part = bytes(self._bytes[at : min(at + n, _SEGMENT)])
        return part if len(part) == n else part + bytes(self._bytes[_ANSWERS : _ANSWERS + n - len(part)])
