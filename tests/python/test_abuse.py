# SPDX-License-Identifier: Apache-2.0
"""What processes of Python do to a client: fork, Ctrl-C, threads, exits, restarts, lost answers. After each the
store's invariants hold (kvdctl audit), and sequences, shared memory and descriptors are back where they were."""

import gc
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import kvd
from kvd import _messages as messages
from kvd import _operations as operations
from kvd import _ring
from kvd._messages import Request
from kvd.names import tokens_of
from proxy import Proxy
from support import Kvd, KvdCase, tokens, until

HELLO, ACTIVATE, ROUND, FINISH = 1, 9, 10, 13
POLL = "7"  # number of the system call in /proc/PID/syscall on x86-64


def open_fds():
    return len(os.listdir("/proc/self/fd"))


def rings():
    """Shared segments that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:kvd-ring" in line for line in maps)


class Case(KvdCase):
    def connect(self, socket=None, **options):
        client = kvd.connect(socket or self.kvd.socket, name="abuse", **{"timeout": 60, **options})
        self.addCleanup(client.close)
        return client

    def sequences(self):
        with kvd.connect(self.kvd.socket, role="observer") as observer:
            return observer.stats().sequences


class Interrupt:
    """SIGALRM as Ctrl-C after some seconds."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __enter__(self):
        self._old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._old)


class Fork(Case):
    def test_the_child_is_refused_and_connects_anew(self):
        client = self.connect()
        store = client.attach()
        sequence = client.activate(tokens(1, 100), 100)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            seen = "nothing"
            try:
                seen = self.in_the_child(client, store, sequence)
            finally:
                os.write(write, seen.encode())
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            self.assertEqual(pipe.read(), "unmapped refused refused refused refused connected closed")
        os.waitpid(pid, 0)
        sequence.step([1])
        self.assertEqual(store.k[0].numpy().shape[0], 256)
        sequence.finish()

    @staticmethod
    def in_the_child(client, store, sequence):
        seen = ["unmapped" if not rings() else "mapped"]
        for call in (client.stats, lambda: sequence.step([1]), lambda: store.k[0], client.fileno):
            try:
                call()
                seen.append("answered")
            except kvd.FailedPrecondition as error:
                seen.append("refused" if "fork" in error.message else error.message)
        with kvd.connect(client._session.path, name="child") as own:
            seen.append("connected" if own.stats().sequences == 1 else "alone")
        client.close()
        sequence = None
        seen.append("closed")
        return " ".join(seen)

    def test_a_fork_while_a_thread_waits(self):
        """The child of a process whose lock is held somewhere does not hang."""
        client = self.connect()
        self.kvd.freeze()
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(client.stats().sequences))
        waiter.start()
        self.assertTrue(until(lambda: client._session._poller))
        pid = os.fork()
        if pid == 0:
            try:
                client.stats()
            except kvd.FailedPrecondition:
                os._exit(7)
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)
        self.kvd.thaw()
        waiter.join(20)
        self.assertEqual(answers, [0])


class CtrlC(Case):
    BLOCKING = [
        "client.stats()",
        "client.find([1] * 100)",
        "client.activate([1] * 100, 10)",
        "sequence.step([1] * 900)",
        "sequence.checkpoint()",
        "sequence.finish()",
        "client.round([sequence.boundary()])",
        "client.round_async([sequence.boundary()]).result()",
        "client.next_event(30)",
        "client.attach()",
        "client.release(3)",
        "client.close()",
        "kvd.connect(path, timeout=30)",
    ]
    PROGRAM = """
import sys, kvd
path = sys.argv[1]
client = kvd.connect(path, timeout=30)
sequence = client.activate([2] * 100, 2000)
sequence.step([1])
print("ready", flush=True)
sys.stdin.readline()
try:
    {}
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
del sequence
print("closed" if client._session._closed else client.stats().sequences >= 0, flush=True)
"""

    def test_every_blocking_call(self):
        """kvd is stopped while it blocks, so that nothing else could end it."""
        for call in self.BLOCKING:
            with self.subTest(call=call):
                self.interrupt(call)
                self.assertEqual(until(lambda: self.sequences() == 0), True)

    def interrupt(self, call):
        child = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM.format(call), self.kvd.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self.assertEqual(child.stdout.readline(), "ready\n")
            self.kvd.freeze()
            child.stdin.write("\n")
            child.stdin.flush()
            self.assertTrue(until(lambda: self.waits(child.pid)), f"it does not block: {child.poll()}")
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.stdout.readline(), "interrupted\n")
            self.kvd.thaw()
            rest, _ = child.communicate("\n", timeout=30)
            self.assertIn(rest.split()[0], ("True", "closed"), rest)
            self.assertEqual(child.returncode, 0, rest)
        finally:
            self.kvd.thaw()
            child.kill()
            child.wait()
            child.stdout.close()
            child.stdin.close()

    @staticmethod
    def waits(pid):
        with open(f"/proc/{pid}/syscall") as file:
            return file.read().split()[0] == POLL

    def test_at_any_moment(self):
        """An interrupt at a drawn microsecond, again and again: the client goes on, nothing stays behind."""
        client, draw, interrupted = self.connect(timeout=20), random.Random(5), 0
        prompt = tokens(9, 300)
        end = time.monotonic() + 120
        while interrupted < 100:  # how many draws that takes is the machine's affair
            self.assertLess(time.monotonic(), end, f"{interrupted} interrupts came")
            try:
                with Interrupt(draw.uniform(0.0001, 0.004)):
                    with client.activate(prompt, 500, hit=draw.choice(["best", None])) as sequence:
                        while True:
                            sequence.step([1] * 130)
            except kvd.OutOfRange:
                pass  # it came to the sequence's end
            except KeyboardInterrupt:
                interrupted += 1
            sequence = None
            gc.collect(0)
        gc.collect()
        self.assertTrue(until(lambda: client.stats().sequences == 0))
        sequence = client.activate(prompt, 10)
        sequence.step([1])
        self.assertNotEqual(sequence.finish(), 0)


class Exits(Case):
    def run_program(self, text):
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", text, self.kvd.socket], capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        self.assertTrue(until(lambda: self.sequences() == 0))

    def test_with_arrays_alive(self):
        self.run_program(
            """
import sys, kvd, threading
client = kvd.connect(sys.argv[1])
store = client.attach()
sequence = client.activate([1] * 100, 100)
arrays = [store.k[0].numpy(), store.kv[1].numpy(), store.table.numpy(), store.k[1].__dlpack__()]
arrays[0][:] = 3
cycle = [arrays, sequence, client]
cycle.append(cycle)
client.subscribe(kvd.EventKind.DRAINING)
threading.Thread(target=client.next_event, args=(0.2,), daemon=True).start()
call = client.round_async([sequence.boundary()])
"""
        )
        self.assertIn("said goodbye", self.kvd.log())

    def test_dropped_clients(self):
        """Without close(): descriptors and mappings go with the last reference, and the session ends in order."""
        gc.collect()
        before, shm = open_fds(), self.mappings()
        for _ in range(20):
            client = kvd.connect(self.kvd.socket)
            client.fileno()
            store = client.attach()
            view = store.k[0].numpy()
            view[0] = 1
            del client, store, view
        gc.collect()
        self.assertEqual((open_fds(), self.mappings()), (before, shm))
        with self.connect() as client:
            self.assertTrue(until(lambda: client.stats().sessions == 1))

    @staticmethod
    def mappings():
        with open("/proc/self/maps") as maps:
            return sum("kvd-" in line and "kvd-ring" not in line for line in maps)


class Restart(Case):
    def test_under_live_arrays(self):
        """SRV-8: memory of the old instance stays readable, and nothing new is given out of it."""
        client = self.connect()
        store = client.attach()
        sequence = client.activate(tokens(1, 100), 100)
        view, plane = store.k[0].numpy(), store.k[0]
        view[3, 1, 2] = 77
        self.kvd.restart()
        for call in (
            client.stats,
            client.reconnect,
            lambda: sequence.step([1]),
            lambda: client.find([1, 2]),
            lambda: store.k[0],
            plane.numpy,
            plane.__dlpack__,
            lambda: store.table,
            client.attach,
        ):
            with self.assertRaises(kvd.Aborted) as caught:
                call()
            self.assertIn("anew", caught.exception.message)
        self.assertTrue((view[3, 1, 2] == 77).all())
        with self.connect() as again, again.attach() as other:
            self.assertFalse((other.k[0].numpy()[3, 1, 2] == 77).any())
        del view, plane, sequence
        store.detach()
        gc.collect()
        self.assertEqual(Exits.mappings(), 0)

    def test_after_detach(self):
        client = self.connect()
        store = client.attach()
        view, plane = store.v[1].numpy(), store.v[1]
        store.detach()
        view[0] = 1
        for call in (lambda: store.k, plane.numpy, lambda: store.table):
            self.assertRaises(kvd.FailedPrecondition, call)
        del view, plane
        gc.collect()
        self.assertEqual(Exits.mappings(), 0)

    def test_while_calls_wait(self):
        """A kvd that dies in the middle: UNAVAILABLE while there is none, ABORTED when there is another one."""
        client = self.connect(timeout=20)
        self.kvd.freeze()
        errors = []

        def wait():
            try:
                client.activate([1] * 10, 10)
            except kvd.Error as error:
                errors.append(error)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        self.assertTrue(until(lambda: len(client._session._pending) + client._session._cond._is_owned() >= 1))
        self.kvd.stop(signal.SIGKILL)
        for thread in threads:
            thread.join(20)
        self.assertEqual({type(error) for error in errors}, {kvd.Unavailable})
        self.kvd.start()
        self.assertRaises(kvd.Aborted, client.stats)


class Threads(Case):
    def test_many_on_one_client(self):
        client, failures = self.connect(timeout=20), []
        client.subscribe(kvd.EventKind.DRAINING)
        before = client.stats()
        events = []

        def work(seed):
            try:
                for i in range(20):
                    with client.activate(tokens(seed * 100 + i, 150), 200, hit=None) as sequence:
                        for _ in range(6):
                            sequence.step([i] * 20)
                        sequence.finish(retain=False)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        threads.append(threading.Thread(target=lambda: events.append(client.next_event(120))))
        for thread in threads:
            thread.start()
        for thread in threads[:-1]:
            thread.join(60)
        with self.connect(role="admin") as admin:
            admin.drain()
            threads[-1].join(20)
            admin.drain(False)
        self.assertEqual(failures, [])
        self.assertEqual([event.kind for event in events], [kvd.EventKind.DRAINING])
        after = client.stats()
        self.assertEqual((after.sequences, after.pool[0].available), (before.sequences, before.pool[0].available))

    def test_who_reads_wakes_the_others(self):
        """Answers that a thread reads in passing, of calls that other threads wait for: none waits for its deadline."""
        client, longest, looking = self.connect(timeout=30), [], [True]

        def look():
            while looking[0]:
                client.next_event(0)

        def work():
            for _ in range(1500):
                begin = time.monotonic()
                client.stats()
                longest.append(time.monotonic() - begin)

        threads = [threading.Thread(target=work) for _ in range(3)] + [threading.Thread(target=look)]
        for thread in threads:
            thread.start()
        for thread in threads[:3]:
            thread.join(120)
        looking[0] = False
        threads[3].join(20)
        self.assertEqual(len(longest), 4500)
        self.assertLess(max(longest), 15)

    def test_the_descriptor_tells_of_events(self):
        client = self.connect()
        client.subscribe(kvd.EventKind.DRAINING)
        poller = select.poll()
        poller.register(client.fileno(), select.POLLIN)
        self.assertEqual(poller.poll(0), [])
        with self.connect(role="admin") as admin:
            admin.drain()
            self.assertTrue(poller.poll(10000))
            client.stats()  # another call may read it
            self.assertTrue(poller.poll(10000))
            self.assertEqual(client.next_event().kind, kvd.EventKind.DRAINING)
            self.assertIsNone(client.next_event())
            self.assertEqual(poller.poll(0), [])
            admin.drain(False)
        self.kvd.stop()
        self.assertTrue(poller.poll(10000))


class Lost(Case):
    """SRV-3: answers and connections that are lost; nothing runs twice."""

    def setUp(self):
        super().setUp()
        self.proxy = Proxy(self.kvd.dir, self.kvd.socket)
        self.addCleanup(self.proxy.close)

    def test_the_answer_of_each_changing_call(self):
        client = self.connect(self.proxy.path, timeout=20, ring=False)
        self.proxy.lose(ACTIVATE)
        sequence = client.activate(tokens(1, 100), 1000)
        self.assertEqual(client.stats().sequences, 1)
        self.proxy.lose(ROUND)
        sequence.step([1] * 300)
        self.proxy.lose(FINISH)
        self.assertNotEqual(sequence.finish(), 0)
        self.assertEqual(self.proxy.lost, 3)
        stats = client.stats()
        self.assertEqual((stats.sequences, stats.continuations), (0, 1))

    def test_calls_of_many_threads(self):
        client, failures = self.connect(self.proxy.path, timeout=20), []

        def work(seed):
            try:
                for i in range(15):
                    sequence = client.activate(tokens(seed * 100 + i, 100), 100, hit=None)
                    sequence.step([1] * 50)
                    sequence.finish(retain=False)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        cuts = 0
        while any(thread.is_alive() for thread in threads):
            if cuts < 10:
                self.proxy.cut()
                cuts += 1
            threads[cuts % 4].join(0.02)
        # A connection that breaks twice in one call is told: the call may be gone on with.
        self.assertEqual([e for e in failures if not isinstance(e, kvd.Unavailable)], [])
        failures.clear()
        gc.collect()
        self.assertTrue(until(lambda: client.stats().sequences == 0))

    def test_what_is_given_back_on_a_lost_connection(self):
        """The Finish of a dropped sequence meets the loss: it is sent again, though nobody waits for it."""
        client = self.connect(self.proxy.path, timeout=20, ring=False)
        sequence = client.activate(tokens(1, 100), 10, hit=None)
        self.proxy.cut()
        del sequence
        gc.collect()
        self.assertTrue(until(lambda: client.stats().sequences == 0))

    def test_a_deadline_and_its_outcome(self):
        client = self.connect(self.proxy.path, timeout=20, ring=False)
        client.describe()
        sequence = None
        for timeout in (0.2, 2, 20):  # how soon kvd takes it is the machine's affair
            self.proxy.hold(ACTIVATE)
            with self.assertRaises(kvd.DeadlineExceeded) as caught:
                client.activate(tokens(1, 100), 10, hit=None, timeout=timeout)
            self.proxy.let_go()
            try:
                sequence = caught.exception.call and caught.exception.call.result()
            except kvd.DeadlineExceeded as error:
                self.assertIn("nothing was changed", error.message)
            if sequence:
                break
        self.assertIn("call.result()", str(caught.exception))
        self.assertEqual((sequence.known, client.stats().sequences), (100, 1))
        sequence.finish(retain=False)

    def test_a_deadline_that_nobody_asks_about(self):
        client = self.connect(self.proxy.path, timeout=20, ring=False)
        client.describe()
        self.proxy.hold(ACTIVATE)
        self.assertRaises(kvd.DeadlineExceeded, client.activate, tokens(1, 100), 10, hit=None, timeout=0.2)
        self.proxy.let_go()
        gc.collect()
        self.assertTrue(until(lambda: client.stats().sequences == 0))

    def test_a_resume_that_fails(self):
        """The answer is lost, and then the Hello of the next connection: the outcome is to be had, or is given back."""
        client = self.connect(self.proxy.path, timeout=20, ring=False)
        client.describe()
        for wanted in (True, False):
            self.proxy.lose(HELLO, ACTIVATE)
            with self.assertRaises(kvd.Unavailable) as caught:
                client.activate(tokens(1, 100), 10, hit=None)
            self.assertIn("call.result()", str(caught.exception))
            if wanted:
                caught.exception.call.result().finish(retain=False)
            caught = None
            gc.collect()
            self.assertTrue(until(lambda: client.stats().sequences == 0))

    def test_a_deadline_before_it_began(self):
        client = self.connect(timeout=20)
        client.describe()
        self.kvd.freeze()
        with self.assertRaises(kvd.DeadlineExceeded) as caught:
            client.activate([1] * 10, 10, hit=None, timeout=1)
        self.kvd.thaw()
        with self.assertRaises(kvd.DeadlineExceeded) as again:
            caught.exception.call.result()
        self.assertIn("nothing was changed", again.exception.message)
        self.assertEqual(client.stats().sequences, 0)

    def test_the_window_of_numbers(self):
        """64 numbers may be open; more wait for their turn instead of a refusal."""
        client = self.connect(self.proxy.path, timeout=20, ring=False)
        sequence = client.activate(tokens(1, 100), 1000)
        calls = [client.round_async([kvd.RoundItem(sequence.handle, commit=min(i, 100))]) for i in range(200)]
        self.proxy.cut()
        self.assertEqual([call.result()[0].status for call in calls], [kvd.Status.OK] * 200)
        sequence.finish(retain=False)


@unittest.skipUnless(_ring.IS_POSSIBLE, "rings are for x86-64")
class Rings(Case):
    """The shared segment. All other tests of this file run by it, too, where they do not say otherwise."""

    settings = {"more": "[limits]\nmessage_queue = 64KiB"}
    ROOT = kvd.client.root_of("ring")

    def setUp(self):
        super().setUp()
        patch = mock.patch("kvd._session._RING_NS", 60 * 10**9)  # a slow kvd has one, too
        patch.start()
        self.addCleanup(patch.stop)

    @staticmethod
    def ring(client):
        return client._session._wire._ring

    def test_who_has_one(self):
        gc.collect()
        before = open_fds(), rings()
        self.assertEqual(before[1], 0)
        for role, ring, has in (("worker", True, 1), ("scheduler", True, 1), ("admin", True, 0), ("worker", False, 0)):
            with kvd.connect(self.kvd.socket, role=role, ring=ring) as client:
                client.stats()
                self.assertEqual(rings(), has, role)
        with mock.patch.object(_ring, "IS_POSSIBLE", False), kvd.connect(self.kvd.socket) as client:
            self.assertEqual((client.stats().sequences, rings()), (0, 0))
        self.assertEqual((open_fds(), rings()), before)

    def test_none_of_this_kvd(self):
        off = Kvd(more="[kvd]\nring = no")
        self.addCleanup(off.free)
        with kvd.connect(off.socket) as client:
            self.assertEqual((client.stats().sequences, rings()), (0, 0))

    LIMITED = """
import os, resource, sys, kvd
kvd._session._RING_NS = 60 * 10**9
kvd.connect(sys.argv[1]).close()
for limit in range(4, 14):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 100))
    try:
        with kvd.connect(sys.argv[1]) as client:
            print("socket" if client._session._wire._ring is None else "ring", client.stats().sequences)
    except (kvd.Unavailable, OSError):
        print("none")
    client = None
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    assert os.listdir("/proc/self/fd") == ["0", "1", "2", "3"], os.listdir("/proc/self/fd")
"""

    def test_a_client_without_files_goes_on(self):
        done = subprocess.run(
            [sys.executable, "-c", self.LIMITED, self.kvd.socket], capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertEqual(lines, sorted(lines, key=["none", "socket 0", "ring 0"].index))
        self.assertEqual(set(lines), {"none", "socket 0", "ring 0"})

    def thrown_away(self, client, steps):
        """An operation of one message, whose answer goes with its ring."""
        call, session, ring = client._call(steps), client._session, self.ring(client)
        self.assertTrue(until(ring.is_readable))
        with session._lock:
            session._lose("the test threw it away")
        made = call.result()
        self.assertIsNot(self.ring(client), ring)
        return made

    def test_answers_that_are_thrown_away(self):
        """SRV-3: the session is resumed with another ring; nothing runs twice, and nothing is lost."""
        client = self.connect(timeout=20)
        want = kvd.Activation(100, 100, client.session, ensure=(100,), root=self.ROOT)
        made = self.thrown_away(client, operations.activate(want))
        item = kvd.RoundItem(made.sequence, commit=40)
        self.assertEqual(self.thrown_away(client, operations.round_([item], 1))[0].status, kvd.Status.OK)
        finish = messages.finish(made.sequence, True, range(40), 0)
        self.assertEqual(self.thrown_away(client, operations.one(messages.Request("Stats"))).sequences, 1)
        kept = self.thrown_away(client, operations.one(finish)).continuation
        stats = client.stats()
        self.assertEqual((stats.sequences, stats.continuations), (0, 1))
        self.thrown_away(client, operations.one(messages.Request("Release", continuation=kept)))
        self.assertEqual((client.stats().continuations, rings()), (0, 1))

    def test_counters_that_cannot_be(self):
        """A segment that somebody scribbled over costs the connection, not the session."""
        client = self.connect(timeout=20)
        sequence = client.activate(tokens(1, 100), 100)
        for tail in (1, 15, -1, _ring.RING_BYTES + 1, 2**63):
            ring = self.ring(client)
            self.kvd.freeze()
            ring._long[_ring._ANSWER_TAIL] = (ring._long[_ring._ANSWER_HEAD] + tail) % 2**64
            call = client._call(operations.one(Request("Stats")))
            self.assertFalse(call.done())
            self.kvd.thaw()
            self.assertEqual(call.result().sequences, 1)
            self.assertIsNot(self.ring(client), ring)
        sequence.step([1])
        sequence.finish(retain=False)

    def test_more_answers_than_it_holds(self):
        """They come on the stream, kvd reads no more where that is full, and each call has its own."""
        client = self.connect(timeout=60)
        calls = [client._call(operations.describe()) for _ in range(2000)]
        self.assertEqual({call.result().pool for call in calls}, {client.describe().pool})
        self.assertEqual(client.stats().sequences, 0)

    def test_no_room(self):
        """What kvd does not take is not sent; what it took is answered later."""
        client = self.connect(timeout=60)
        ring = self.ring(client)
        prompt = tokens(1, 64 * 1000)
        chain = kvd.Chain("ring", prompt)
        find = lambda: client._call(operations.find(chain, tokens_of(prompt), 1))  # noqa: E731
        self.kvd.freeze()
        head = ring._long[_ring._REQUEST_HEAD]
        used = lambda: ring._long[_ring._REQUEST_TAIL] - head  # noqa: E731
        calls = [find()]
        size = used()
        while used() + size <= _ring.RING_BYTES:
            calls.append(find())
        client.timeout = 0.05
        with self.assertRaises(kvd.DeadlineExceeded) as caught:
            find().result()
        self.assertIn("was not sent", caught.exception.message)
        self.assertEqual((len(calls), used()), (_ring.RING_BYTES // size, len(calls) * size))
        client.timeout = 60
        self.kvd.thaw()
        self.assertEqual([call.result() for call in calls], [[]] * len(calls))
        self.assertEqual(client.stats().sequences, 0)

    def test_it_is_looked_into_before_the_stream(self):
        """A client that waits at the stream has its answers there, and turns back to the ring."""
        client = self.connect(timeout=20)
        wire = client._session._wire
        self.assertTrue(self.ring(client).turn_away())
        call = client._call(operations.describe())
        self.assertTrue(until(lambda: select.select([wire], [], [], 0)[0]))
        self.assertFalse(self.ring(client).is_readable())
        self.assertEqual(call.result().pool, client.describe().pool)
        self.assertEqual(client.stats().sequences, 0)

    def test_spin(self):
        """Looking that does not pay becomes short, and is tried at length again; with one CPU there is none."""
        spin = _ring.Spin(2)
        seen = []
        for _ in range(160):
            spin.learn(False)
            seen.append(spin.ns)
        self.assertEqual(seen.count(_ring.SPIN_NS), 10)
        self.assertLessEqual(min(seen), _ring.SPIN_NS // 16)
        spin.learn(True)
        self.assertEqual(spin.ns, _ring.SPIN_NS)
        spin = _ring.Spin(1)
        spin.learn(True)
        self.assertEqual(spin.ns, 0)


class Exceptions(Case):
    def test_in_the_middle_of_a_step(self):
        client = self.connect()
        before = client.stats()
        for depth in range(3):
            with self.assertRaises(ZeroDivisionError):
                with client.activate(tokens(1, 100), 1000) as sequence:
                    for _ in range(depth):
                        sequence.step([1] * 200)
                    1 / 0
        after = client.stats()
        self.assertEqual((after.sequences, after.continuations, after.pool), (0, 0, before.pool))
        self.assertRaises(kvd.FailedPrecondition, sequence.step, [1])

    def test_wrong_arguments_change_nothing(self):
        client = self.connect()
        sequence = client.activate(tokens(1, 100), 100)
        for call in (
            lambda: client.activate([-1], 10),
            lambda: client.activate(["a"], 10),
            lambda: client.find([]),
            lambda: client.activate([1], 2**40),
            lambda: client.activate([1], 10, hit="worst"),
            lambda: client.checkpoint(sequence.handle, [1] * 64),
            lambda: client.release(-1),
            lambda: client.round([kvd.RoundItem(sequence.handle, commit=-5)]),
            lambda: client.round([]),
            lambda: client.attach(device="tpu"),
            lambda: kvd.connect(self.kvd.socket, role="boss"),
            lambda: kvd.connect(self.kvd.socket, name="with space"),
            lambda: kvd.connect("/" + "x" * 200),
        ):
            self.assertRaises(kvd.InvalidArgument, call)
        self.assertRaises(kvd.OutOfRange, sequence.step, [1] * 500)
        self.assertRaises(kvd.OutOfRange, sequence.complete, 101)
        self.assertRaises(kvd.OutOfRange, client.attach, 3)
        sequence.step([1])
        self.assertEqual((sequence.known, sequence.done), (101, 100))
        sequence.finish()

    def test_a_refusal_that_took_no_number(self):
        """SRV-1: a body that kvd does not decode; the numbers go on."""
        client = self.connect()
        sequence = client.activate(tokens(1, 100), 1000)
        for _ in range(3):
            with self.assertRaises(kvd.InvalidArgument):
                client._ask(Request("Finish", sequence=sequence.handle, retain=True, tail=[1] * 64))
            sequence.step([1] * 300)
        self.assertNotEqual(sequence.finish(), 0)

    def test_nobody_there(self):
        self.assertRaises(kvd.Unavailable, kvd.connect, os.path.join(self.kvd.dir, "nothing.sock"))
        with self.assertRaises(kvd.DeadlineExceeded):
            self.kvd.freeze()
            kvd.connect(self.kvd.socket, timeout=0.1)
        self.kvd.thaw()


if __name__ == "__main__":
    unittest.main()
