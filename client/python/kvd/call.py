# SPDX-License-Identifier: Apache-2.0
"""A request whose answer is collected later: of round_async() and its like, and of an exception whose call is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Generator, Generic, Optional, TypeVar

from ._messages import Request
from ._session import NoAnswer, Pending, Session, Steps
from .errors import Error, Unavailable

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Call(Generic[T]):
    """Ends with its first result or refusal, which `result()` gives again. Where it is dropped before that, what the
    request makes (a sequence, a group) is given back. `await` works in an event loop, result() in any thread."""

    def __init__(self, session: Session, pending: Optional[Pending], steps: Steps[T]) -> None:
        self._session, self._steps = session, steps
        self._pending = pending
        if pending is not None:
            session.own(self, pending)
        self._value: Any = None
        self._error: Optional[Error] = None

    @classmethod
    def start(cls, session: Session, steps: Steps[T]) -> Call[T]:
        """Sends an operation's first message."""
        made = cls(session, None, steps)
        made._go_on(lambda: next(steps))
        return made

    def done(self) -> bool:
        """Whether result() would not wait. Looks at the connection; never connects."""
        if self._pending is not None and self._pending.reply is None:
            self._session.pump()
        return self._pending is None or self._pending.reply is not None

    def result(self, timeout: Optional[float] = None) -> T:
        """Waits up to `timeout` seconds (default: the client's). DeadlineExceeded: not yet, ask again."""
        while self._pending is not None:
            pending, deadline_ns = self._pending, self._session.deadline(timeout)
            try:
                self._session.finish(pending, deadline_ns)
            except NoAnswer as no_answer:
                no_answer.error.call = self
                raise no_answer.error from None
            except Error:
                if pending.reply is None and self._session.is_current():
                    raise  # a resume that failed for now: it is open still
            self._advance(pending)
        return self._outcome()

    def abandon(self) -> None:
        """Nobody will ask for the result. An activation without an answer is cancelled."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._session.disown(pending)
            self._session.abandon(pending)
            self._error = Unavailable(f"{pending.request.kind.name} was abandoned")

    def __await__(self) -> Generator[Any, None, T]:
        return self.wait().__await__()

    async def wait(self, timeout: Optional[float] = None) -> T:
        """As result(), without blocking the event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        while self._pending is not None:
            pending, deadline_ns = self._pending, self._session.deadline(timeout)
            await _answered(loop, self._session, pending, deadline_ns)
            try:
                if pending.reply is None and self._session.is_broken(pending):
                    await loop.run_in_executor(None, self._session.repair, pending, deadline_ns)
                    continue
                self._session.finish(pending, 0)
            except NoAnswer as no_answer:
                no_answer.error.call = self
                raise no_answer.error from None
            except Error:
                if pending.reply is None and self._session.is_current():
                    raise
            self._advance(pending)
        return self._outcome()

    def _outcome(self) -> T:
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def _advance(self, pending: Pending) -> None:
        """The answer, or the session's end, is there: the operation goes on to its next message."""
        try:
            if pending.reply is None:
                self._session.check()
            reply = self._session.collect(pending)
        except Error as error:
            refusal = error
            self._go_on(lambda: self._steps.throw(refusal))
        else:
            self._go_on(lambda: self._steps.send(reply))
        self._session.disown(pending)

    def _go_on(self, move: Callable[[], Request]) -> None:
        try:
            pending = Pending(move())
            self._session.own(self, pending)
            self._session.start(pending, self._session.deadline())
            self._pending = pending
        except StopIteration as stop:
            self._value, self._pending = stop.value, None
        except Error as error:
            self._error, self._pending = error, None


async def _answered(loop: asyncio.AbstractEventLoop, session: Session, pending: Pending, deadline_ns: int) -> None:
    """Returns when it has its answer, has lost its connection, or the deadline has passed."""
    import asyncio

    from ._wire import left_ms

    session.watch(loop)
    future = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        loop.call_soon_threadsafe(settle)

    pending.wake = wake
    try:
        if pending.reply is None and not session.is_broken(pending):
            await asyncio.wait_for(future, left_ms(deadline_ns) / 1e3)
    except asyncio.TimeoutError:
        pass
    finally:
        pending.wake = None
