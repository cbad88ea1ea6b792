# SPDX-License-Identifier: Apache-2.0
"""A session: Hello, numbered requests, waiting, resuming, events.

Any thread may call. One of those that wait polls the connection and hands the others their answers; the lock is never
held while it polls. Requests that changed something are sent again under their number where the connection breaks,
once a call, so that none runs twice and none is lost.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Generator, List, Optional, Tuple, TypeVar, Union

from . import _messages as messages
from . import _ring, types
from ._memory import Descriptors
from ._wire import Lost, Nudge, Wire, left_ms, now_ns
from .errors import Aborted, DeadlineExceeded, Error, FailedPrecondition, Status, Unavailable, error_of

T = TypeVar("T")
#: An operation: yields requests, is sent the replies, returns the result. Refusals are thrown into it.
Steps = Generator[messages.Request, Any, T]

#: What is given back when its owner is dropped: a sequence's handle, or a request.
Owned = Union["Pending", int]

WINDOW = 64  # numbers that may be open at once
_MAX_EVENTS = 1024
_FAREWELL_NS = 3 * 10**9
_RING_NS = 2 * 10**9  # for the shared segment, without which it goes as well
_FINAL = (
    Status.NOT_FOUND,
    Status.ABORTED,
    Status.UNAUTHENTICATED,
    Status.PERMISSION_DENIED,
    Status.FAILED_PRECONDITION,
    Status.INVALID_ARGUMENT,
)


class Pending:
    """A request without a collected answer."""

    __slots__ = ("request", "id", "number", "deadline_ns", "wire", "reply", "resent", "abandoned", "undoes", "wake")

    def __init__(self, request: messages.Request) -> None:
        self.request = request
        self.id = self.number = self.deadline_ns = 0
        self.wire: Optional[Wire] = None  # that it was sent on last
        self.reply: Any = None  # the message, or the exception that reading it raised
        self.resent = self.abandoned = False
        self.undoes: Optional[Pending] = None  # nobody waits for it, but it has to run where this one did
        self.wake: Optional[Callable[[], None]] = None  # asyncio's


class NoAnswer(Exception):
    """Of a changing request whose outcome is unknown."""

    def __init__(self, error: Error, pending: Pending) -> None:
        super().__init__(str(error))
        self.error, self.pending = error, pending


class _Farewell:
    """What ends a session whose client was dropped: it must not keep the session."""

    def __init__(self) -> None:
        self.pid, self.wire, self.frame = os.getpid(), None, b""  # type: int, Optional[Wire], bytes

    def say(self) -> None:
        wire, self.wire = self.wire, None
        if wire is None or self.pid != os.getpid():
            return
        try:
            wire.send(self.frame)
            wire.flush(now_ns() + _FAREWELL_NS)
        except Lost:
            pass
        wire.close()


class Session:
    """See the module. `path` is the socket, `timeout` seconds for connecting, `ring` whether a shared segment is used
    where there is one."""

    def __init__(
        self, path: str, role: types.Role, name: str, library: str, rank: int, timeout: float, ring: bool = True
    ) -> None:
        self.path = path
        self.pid = os.getpid()
        self.timeout = timeout
        self.id = self.epoch = self._secret = 0
        self.events: Deque[types.Event] = deque()
        self._hello = (role, name, library, rank)
        self._wants_ring = ring and role in (types.Role.WORKER, types.Role.SCHEDULER) and _ring.IS_POSSIBLE
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for _cond
        self._nudge = Nudge()  # wakes the thread that polls
        self._wire: Optional[Wire] = None
        self._why = "it was closed"
        self._poller = 0  # thread that polls the wire
        self._pending: Dict[int, Pending] = {}
        self._next_id = self._next_number = 1
        self._expected = 0  # number that kvd wants next, as far as answers tell
        self._dead: Optional[Error] = None
        self._closed = False
        self._mask = 0
        self._events_dropped = 0
        self._orphans: Deque[Pending] = deque()  # answers that nobody waits for
        self._owners: Dict[Owned, Any] = {}
        self._dropped: Dict[Owned, Any] = {}
        self._signal: Optional[_Signal] = None
        self._loop: Any = None  # asyncio's, which reads when this is readable:
        self._loop_signal: Optional[_Signal] = None
        self._event_wakes: List[Callable[[], None]] = []
        self._farewell = _Farewell()
        self._open(self.deadline(timeout))
        weakref.finalize(self, self._farewell.say)
        _sessions.add(self)

    # ---- what is asked of it ----

    def deadline(self, timeout: Optional[float] = None) -> int:
        return now_ns() + int((self.timeout if timeout is None else timeout) * 1e9)

    def peer_pid(self) -> int:
        """Of kvd's process; 0: there is no connection now, or it is in another namespace."""
        with self._lock:
            return self._wire.peer_pid() if self._wire is not None else 0

    def run(self, steps: Steps[T], timeout: Optional[float] = None) -> T:
        """Drives an operation to its end; each of its messages may take `timeout` seconds."""
        from .call import Call  # which imports this module

        error: Optional[Error] = None
        reply: Any = None
        pending: Optional[Pending] = None
        try:
            while True:
                request = steps.send(reply) if error is None else steps.throw(error)
                error, pending = None, Pending(request)
                try:
                    reply = self.call(pending, self.deadline(timeout))
                except Error as refusal:
                    error = refusal
        except StopIteration as stop:
            value: T = stop.value
            return value
        except NoAnswer as no_answer:  # the operation goes on when its answer is there
            no_answer.error.call = Call(self, no_answer.pending, steps)
            raise no_answer.error from None
        except Error:
            raise
        except BaseException:
            if pending is not None:
                self.abandon(pending)
            steps.close()
            raise
        finally:
            error = None  # with its traceback it would keep this frame, and what the callers hold, until a collection

    def call(self, pending: Pending, deadline_ns: int) -> Any:
        """The reply; a refusal is raised."""
        self.start(pending, deadline_ns)
        return self.finish(pending, deadline_ns)

    def start(self, pending: Pending, deadline_ns: int) -> None:
        """Sends it."""
        self.check()
        if self._orphans or self._dropped:
            self._give_back(deadline_ns)
        self._start(pending, deadline_ns)

    def finish(self, pending: Pending, deadline_ns: int) -> Any:
        """Waits for the answer. NoAnswer where there is none and the request may have run."""
        if pending.reply is None:
            self.check()
        while pending.reply is None:
            if self._wait(lambda: pending.reply is not None or pending.wire is not self._wire, deadline_ns):
                if pending.reply is not None:
                    break
            elif not self.is_broken(pending):
                raise self._unanswered(
                    pending, DeadlineExceeded(f"kvd at {self.path} did not answer {pending.request.kind.name} in time")
                )
            try:
                self.repair(pending, deadline_ns)
            except Error as error:  # it was sent, and its session may be had again
                if pending.number and pending.reply is None and self.is_current():
                    raise self._unanswered(pending, error) from None
                raise
        return self.collect(pending)

    def is_broken(self, pending: Pending) -> bool:
        """Its connection is lost."""
        return pending.wire is not self._wire

    def collect(self, pending: Pending) -> Any:
        """The answer that has come."""
        if isinstance(pending.reply, Exception):
            raise pending.reply
        status, message = messages.status_of(pending.reply)
        if status:
            raise error_of(status, message)
        epoch = pending.reply.header.epoch
        if epoch and epoch != self.epoch:
            raise self._die(f"kvd at {self.path} is another instance than this client's: connect and attach anew")
        return pending.reply

    def repair(self, pending: Pending, deadline_ns: int) -> None:
        """After the loss of the connection: resumes the session, once a request."""
        with self._lock:
            if pending.reply is not None or not self.is_broken(pending):
                return
            if self._dead is None and pending.resent and self._wire is None:
                pending.resent = False
                raise self._unanswered(
                    pending,
                    Unavailable(
                        f"the connection to kvd at {self.path} broke again ({self._why}) before "
                        f"{pending.request.kind.name} was answered"
                    ),
                )
            self._ready(deadline_ns)

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for it any more. It is cancelled, or what it makes is given back, at a later call."""
        pending.abandoned = True
        if pending.reply is not None or pending.request.kind.name == "Activate":
            self._orphans.append(pending)

    def own(self, owner: Any, thing: Owned) -> None:
        """Where owner is dropped before disown(thing), the thing (a request, a sequence) is given back at a later call.
        What happens at the drop is one function of C, which no interrupt can cut in two."""
        self._owners[thing] = weakref.ref(owner, functools.partial(dict.setdefault, self._dropped, thing))

    def disown(self, thing: Owned) -> None:
        self._owners.pop(thing, None)
        self._dropped.pop(thing, None)

    def check(self) -> None:
        """Raises where this process, or this session, can make no calls."""
        if self.pid != os.getpid():
            raise FailedPrecondition(
                f"this client belongs to process {self.pid}, of which this one is a fork: " "connect anew here"
            )
        if self._closed:
            raise FailedPrecondition("this client is closed: connect anew")
        if self._dead is not None:
            raise _again(self._dead)

    # ---- sending ----

    def _start(self, pending: Pending, deadline_ns: int) -> None:
        while True:
            with self._lock:
                self._ready(deadline_ns)
                if self._wire is None:
                    continue  # it broke again at once
                if self._is_idle(pending):
                    return
                if not pending.request.kind.changes or self._window_is_open():
                    self._submit(pending, deadline_ns)
                    return
            if not self._wait(lambda: self._window_is_open() or self._wire is None, deadline_ns):
                raise DeadlineExceeded(
                    f"{WINDOW} requests of this session wait for kvd at {self.path}; nothing was sent"
                )

    def _is_idle(self, pending: Pending) -> bool:
        """It would undo what was never sent or never ran: its number may be another request's by now."""
        undone = pending.undoes
        if undone is None or undone is pending:
            return False
        return undone.reply is None and undone.id not in self._pending

    def _window_is_open(self) -> bool:
        if len(self._pending) < WINDOW:
            return True
        oldest = next((p.number for p in self._pending.values() if p.number), self._next_number)
        return self._next_number - oldest < WINDOW

    def _submit(self, pending: Pending, deadline_ns: int) -> None:
        """Under the lock."""
        numbered = pending.request.kind.changes
        pending.id, pending.deadline_ns = self._next_id, deadline_ns
        pending.number = self._next_number if numbered else 0
        frame = messages.frame(pending.request, pending.id, self.id, pending.number, deadline_ns, self.epoch)
        try:
            self._next_id += 1
            self._next_number += numbered
            pending.wire = self._wire
            self._pending[pending.id] = pending
            sent = self._transmit(frame, deadline_ns)
        except BaseException:
            pending.abandoned = True
            self._lose("a call was interrupted while it sent")
            raise
        if sent or self._wire is None:
            return
        del self._pending[pending.id]
        self._next_number -= numbered
        raise DeadlineExceeded(
            f"kvd at {self.path} took no more bytes in time; {pending.request.kind.name} was not sent"
        )

    def _transmit(self, frame: bytes, deadline_ns: int) -> bool:
        """False: the deadline passed before the first byte. A loss breaks the pending ones."""
        wire = self._wire
        assert wire is not None
        try:
            at = wire.send(frame)
            while at < len(frame):
                if not wire.wait_both(deadline_ns):
                    if at:
                        self._lose("kvd stopped reading within a frame")
                    return at > 0
                self._receive(wire)
                self._tell_others()
                if wire.doomed:
                    return True
                at += wire.send(frame, at)
        except Lost as lost:
            self._lose(str(lost))
        return True

    def _give_back(self, deadline_ns: int) -> None:
        """What nobody will use: of calls that were abandoned, and dropped sequences."""
        for thing in list(self._dropped):
            if isinstance(thing, Pending):
                self.abandon(thing)
            else:
                self._forget(messages.finish(thing, False, (), 0), deadline_ns)
            self.disown(thing)
        for orphan in list(self._orphans):
            request = _undoing(orphan)
            if request is not None:
                self._forget(request, deadline_ns, orphan)
            with contextlib.suppress(ValueError):  # another thread gave it back, too, which does no harm
                self._orphans.remove(orphan)

    def _forget(self, request: messages.Request, deadline_ns: int, undoes: Optional[Pending] = None) -> None:
        """Sends what nobody waits for, but must run."""
        pending = Pending(request)
        pending.abandoned, pending.undoes = True, undoes or pending
        self._start(pending, deadline_ns)

    # ---- waiting ----

    def _wait(self, done: Callable[[], bool], deadline_ns: int) -> bool:
        """Until done() holds, which is asked under the lock. False: the deadline passed. The lock is not held."""
        me = threading.get_ident()
        wire: Optional[Wire] = None
        try:
            while True:
                with self._lock:
                    if done():
                        return True
                    if now_ns() >= deadline_ns:
                        return False
                    wire = self._wire
                    if wire is None or self._poller not in (0, me):
                        self._wait_for_others(deadline_ns)
                        continue
                    self._poller = me
                readable = wire.wait_readable(deadline_ns)
                with self._lock:
                    if readable:
                        self._receive(wire)
                    self._stop_polling(wire)
                    if done():
                        return True
        finally:
            if self._poller == me:
                self._stop_polling(wire)

    def _wait_for_others(self, deadline_ns: int) -> None:
        self._waiting += 1
        try:
            self._cond.wait(left_ms(deadline_ns) / 1e3)
        finally:
            self._waiting -= 1

    def _tell_others(self) -> None:
        """Under the lock: what they wait for may have come, read by a thread that does not poll."""
        if self._poller not in (0, threading.get_ident()):
            self._nudge.give()
        if self._waiting:
            self._cond.notify_all()

    def _stop_polling(self, wire: Optional[Wire]) -> None:
        """Another thread that waits goes on with it."""
        self._poller = 0
        with self._lock:
            if wire is not None and wire.doomed:
                wire.close()
            if self._waiting:
                self._cond.notify_all()

    def _receive(self, wire: Wire, all_: bool = False) -> None:
        """Under the lock: what has come on it. all_: also where nothing has told of any."""
        if wire is not self._wire:
            return
        try:
            for is_event, kind, call_id, body in wire.receive(all_):
                if is_event:
                    self._queue_event(body)
                else:
                    self._arrived(kind, call_id, body)
        except Lost as lost:
            self._lose(str(lost))
        except BaseException:
            self._lose("a call was interrupted while it read")
            raise

    def _arrived(self, kind: int, call_id: int, body: bytes) -> None:
        pending = self._pending.get(call_id)
        if pending is None:
            return
        try:
            pending.reply = messages.read_reply(pending.request.kind, kind, body)
        except Error as error:
            pending.reply = error
        self._settle(pending)

    def _settle(self, pending: Pending) -> None:
        """Its answer is there. Done twice, where an interrupt comes in between, it does no harm."""
        if pending.abandoned:
            self._orphans.append(pending)
        if pending.wake:
            pending.wake()
        self._pending.pop(pending.id, None)
        if pending.number:
            self._number_again(messages.next_number(pending.reply))

    def _number_again(self, expected: int) -> None:
        """Where refusals took no number, the next request has the one that kvd expects. Answers come in any order, since
        there are two ways for them: the highest says it, once all are there."""
        self._expected = max(self._expected, expected)
        if 0 < self._expected < self._next_number and not any(p.number for p in self._pending.values()):
            self._next_number = self._expected

    def _queue_event(self, body: bytes) -> None:
        event = messages.read_event(body)
        if event is None:
            return
        if len(self.events) >= _MAX_EVENTS:
            self._events_dropped += 1 + self.events.popleft().dropped
        self.events.append(event)
        for wake in self._event_wakes:
            wake()
        self._update_signal()

    def _unanswered(self, pending: Pending, error: Error) -> Exception:
        if not pending.number:
            self._pending.pop(pending.id, None)
            return error
        error.message += "; it may have run: the exception's call.result() waits on for the outcome"
        return NoAnswer(error, pending)

    # ---- the connection, under the lock ----

    def _lose(self, why: str) -> None:
        wire = self._wire
        if wire is None:
            return
        self._why = why
        wire.shut_down()  # which wakes the thread that polls it
        self._wire = self._farewell.wire = None
        for signal in self._signals():
            signal.forget(wire)
        if not self._poller:
            wire.close()
        for pending in list(self._pending.values()):
            if pending.reply is not None:
                self._settle(pending)
            elif pending.abandoned and not pending.number:
                del self._pending[pending.id]
            elif pending.wake:
                pending.wake()
        for wake in self._event_wakes:
            wake()
        self._update_signal()
        self._cond.notify_all()

    def _ready(self, deadline_ns: int) -> None:
        """Resumes the session if the connection is lost."""
        if self._wire is None:
            self.check()
            self._open(deadline_ns)

    def _open(self, deadline_ns: int) -> None:
        """Connects and says Hello: the first time, or for the same session."""
        if self.id and left_ms(deadline_ns) == 0:
            raise DeadlineExceeded(
                f"the connection to kvd at {self.path} is lost ({self._why}) and was not made anew in time"
            )
        wire = Wire(self.path, deadline_ns, self._nudge)
        try:
            reply = self._say_hello(wire, deadline_ns)
            if not self.id:
                self.id, self.epoch, self._secret = reply.session, reply.epoch, reply.secret
            if reply.ring and self._wants_ring:
                self._open_ring(wire, min(deadline_ns, now_ns() + _RING_NS))
        except BaseException:
            wire.close()
            raise
        goodbye = messages.Request("Goodbye")
        self._farewell.frame = messages.frame(goodbye, 0, self.id, 0, 0, self.epoch)
        try:
            self._wire = self._farewell.wire = wire
            for signal in self._signals():
                signal.watch(wire)
            if self._loop_signal is not None:
                wire.stay_at_stream()
            self._update_signal()
            self._send_again(reply.last_sequence, deadline_ns)
        except BaseException:
            self._lose("a call was interrupted while it resumed the session")
            raise

    def _say_hello(self, wire: Wire, deadline_ns: int) -> Any:
        request = messages.hello(*self._hello, resume=self.id, secret=self._secret)
        call_id, self._next_id = self._next_id, self._next_id + 1
        return self._judge(self._exchange(wire, request, messages.hello_frame(request, call_id), call_id, deadline_ns))

    def _exchange(self, wire: Wire, request: messages.Request, frame: bytes, call_id: int, deadline_ns: int) -> Any:
        """The only request that is under way on it."""
        name = request.kind.name
        try:
            wire.send(frame)
            while now_ns() < deadline_ns:
                wire.wait_readable(deadline_ns)
                for is_event, kind, reply_id, body in wire.receive():
                    if not is_event and reply_id == call_id:
                        return messages.read_reply(request.kind, kind, body)
        except Lost as lost:
            raise Unavailable(f"kvd at {self.path} closed the connection before it answered {name}: {lost}") from lost
        raise DeadlineExceeded(f"kvd at {self.path} did not answer {name} in time")

    def _open_ring(self, wire: Wire, deadline_ns: int) -> None:
        """Whatever fails, the socket serves as well."""
        request = messages.Request("OpenRing")
        call_id, self._next_id = self._next_id, self._next_id + 1
        frame = messages.frame(request, call_id, self.id, 0, deadline_ns, self.epoch)
        try:
            reply = self._exchange(wire, request, frame, call_id, deadline_ns)
            if not messages.status_of(reply)[0]:
                wire.use_ring(_fetched_ring(reply, self.epoch, deadline_ns))
        except (Error, OSError, ValueError, _ring.Broken):
            pass

    def _judge(self, reply: Any) -> Any:
        status, message = messages.status_of(reply)
        if not self.id:
            if status:
                raise error_of(status, message)
            return reply
        if status in _FINAL:
            raise self._die(f"kvd does not resume the session: {message}: connect anew")
        if status:
            raise error_of(status, message)
        if reply.epoch != self.epoch or reply.session != self.id:
            raise self._die(
                f"kvd at {self.path} is another instance than this session's: sequences are gone, mapped "
                "memory is stale; connect and attach anew"
            )
        return reply

    def _die(self, why: str) -> Error:
        if self._dead is None:
            self._dead = Aborted(why)
        return _again(self._dead)

    def _send_again(self, last: int, deadline_ns: int) -> None:
        """What has no answer, in order. Numbers past `last` never ran: those that nobody wants go, the others close
        up."""
        self._next_number = self._expected = last + 1
        for pending in list(self._pending.values()):
            never_ran = pending.number > last
            if never_ran and (pending.abandoned and pending.undoes is None or self._is_idle(pending)):
                del self._pending[pending.id]
                continue
            if never_ran:
                pending.number, self._next_number = self._next_number, self._next_number + 1
            if self._wire is None:
                continue
            pending.wire, pending.resent = self._wire, True
            self._transmit(
                messages.frame(pending.request, pending.id, self.id, pending.number, pending.deadline_ns, self.epoch),
                deadline_ns,
            )
        if self._mask and self._wire is not None:
            again = Pending(messages.Request("Subscribe", event_mask=self._mask))
            self._submit(again, deadline_ns)
            again.abandoned = True

    def reconnect(self, timeout: Optional[float] = None) -> None:
        """Nothing happens while the connection stands."""
        self.check()
        with self._lock:
            self._look()
            self._ready(self.deadline(timeout))

    def _look(self) -> None:
        """Under the lock: takes what has come, and notices a loss, without waiting."""
        if self._wire is not None:
            self._receive(self._wire, True)
            self._tell_others()

    def is_current(self) -> bool:
        """False: kvd is known to be another instance, or the session to have ended."""
        return self._dead is None and self.pid == os.getpid()

    # ---- events ----

    def subscribe(self, mask: int) -> None:
        self.call(Pending(messages.Request("Subscribe", event_mask=mask)), self.deadline())
        self._mask = mask

    def next_event(self, timeout: float) -> Optional[types.Event]:
        self.check()
        with self._lock:
            self._look()
            self._ready(self.deadline(max(timeout, 0.001)))
        deadline_ns = self.deadline(timeout)
        self._wait(lambda: bool(self.events) or self._wire is None, deadline_ns)
        return self.take_event()

    def take_event(self) -> Optional[types.Event]:
        with self._lock:
            if self.events:
                event = self.events.popleft()
                if self._events_dropped:
                    event, self._events_dropped = _with_dropped(event, self._events_dropped), 0
                self._update_signal()
                return event
            if self._wire is None:
                self.check()
                raise Unavailable(
                    f"the connection to kvd at {self.path} is lost ({self._why}): the next call resumes " "the session"
                )
            return None

    def fileno(self) -> int:
        self.check()
        with self._lock:
            if self._signal is None:
                self._signal = _Signal(self._wire)
                self._update_signal()
            return self._signal.fileno()

    def _signals(self) -> List[_Signal]:
        return [signal for signal in (self._signal, self._loop_signal) if signal is not None]

    def _update_signal(self) -> None:
        if self._signal is not None:
            self._signal.set(bool(self.events) or self._wire is None)

    # ---- asyncio ----

    def pump(self) -> None:
        """Takes what has come, without waiting."""
        with self._lock:
            self._look()

    def watch(self, loop: Any) -> None:
        """The loop reads the connection from now on."""
        with self._lock:
            if self._loop is loop:
                return
            if self._loop is not None and self._loop.is_running():
                raise FailedPrecondition("another event loop uses this client: connect one client a loop")
            self._unwatch()
            self._loop, self._loop_signal = loop, _Signal(self._wire)
            loop.add_reader(self._loop_signal.fileno(), self.pump)
            if self._wire is not None:
                self._wire.stay_at_stream()
                self._look()

    def _unwatch(self) -> None:
        loop, signal = self._loop, self._loop_signal
        self._loop = self._loop_signal = None
        if signal is None:
            return
        if not loop.is_closed():
            loop.remove_reader(signal.fileno())
        signal.close()

    def wake_on_events(self, wake: Callable[[], None], on: bool) -> None:
        with self._lock:
            if on:
                self._event_wakes.append(wake)
            else:
                self._event_wakes.remove(wake)

    # ---- the end ----

    def close(self, timeout: float = 1.0) -> None:
        """Ends the session in order; its sequences end with it."""
        if self._closed or self.pid != os.getpid():
            self._closed = True
            return
        try:
            if self._wire is not None and self._dead is None:
                self.call(Pending(messages.Request("Goodbye")), self.deadline(timeout))
        except Error:
            pass  # the end of the connection is the answer, too
        finally:
            self._closed = True
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._unwatch()
            self._lose("the client was closed")
            if self._signal is not None:
                self._signal.close()
                self._signal = None
            if not self._poller:
                self._nudge.close()

    def after_fork(self) -> None:
        """In the child: the parent's connection is not this process's to end, nor to keep open."""
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        if self._wire is not None:
            self._wire.close()
        self._wire = self._farewell.wire = None
        for signal in self._signals():
            signal.close()
        self._nudge.close()
        self._signal = self._loop_signal = None


class _Signal:
    """A descriptor that is readable when the connection has bytes, or when it is told so."""

    def __init__(self, wire: Optional[Wire]) -> None:
        self._epoll = select.epoll()
        self._ends: Tuple[int, ...] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._ends[0], select.EPOLLIN)
        self._is_set = False
        if wire is not None:
            self.watch(wire)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def watch(self, wire: Wire) -> None:
        self._epoll.register(wire.fileno(), select.EPOLLIN)

    def forget(self, wire: Wire) -> None:
        self._epoll.unregister(wire.fileno())

    def set(self, on: bool) -> None:
        if on and not self._is_set:
            os.write(self._ends[1], b"!")
        elif self._is_set and not on:
            os.read(self._ends[0], 1)
        self._is_set = on

    def close(self) -> None:
        ends, self._ends = self._ends, ()
        self._epoll.close()
        for end in ends:
            os.close(end)

    def __del__(self) -> None:
        self.close()


def _fetched_ring(reply: Any, epoch: int, deadline_ns: int) -> _ring.Ring:
    fds: List[int] = []
    try:
        with Descriptors(reply.fd_socket.decode(), reply.fd_token, deadline_ns, every=True) as descriptors:
            for index in (reply.segment_index, reply.doorbell_index):
                fds.append(descriptors.fetch(index))
        made = _ring.Ring(fds[0], fds[1], epoch)
        fds.pop()  # the doorbell is the ring's
        return made
    finally:
        for fd in fds:
            os.close(fd)


def _undoing(orphan: Pending) -> Optional[messages.Request]:
    """What ends what an answer told of, or an activation without one. None: nothing has to."""
    if orphan.reply is None:  # its answer makes it an orphan once more
        return messages.Request("Cancel", activate=orphan.number)
    if isinstance(orphan.reply, Exception) or messages.status_of(orphan.reply)[0]:
        return None
    if orphan.request.kind.name == "Activate":
        return messages.finish(orphan.reply.sequence, False, (), 0)
    if orphan.request.kind.name == "OpenGroup":
        return messages.Request("CloseGroup", group=orphan.reply.group)
    return None


def _again(error: Error) -> Error:
    """A new exception of the same kind and sentence: one may be raised once only."""
    return type(error)(error.message)


def _with_dropped(event: types.Event, dropped: int) -> types.Event:
    import dataclasses

    return dataclasses.replace(event, dropped=event.dropped + dropped)


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)
