# SPDX-License-Identifier: Apache-2.0
"""A real kvd in a folder of its own, for tests in Python. ctest says where the programs are (CMakeLists.txt)."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

KVD = os.environ["KVD_BINARY"]
KVDCTL = os.environ["KVDCTL"]

CONFIG = """[kvd]
socket = {socket}
store = python
log_level = debug

[devices]
device.0 = {device}
memory = 1GiB

[model]
layers = {layers}
kv_heads = {kv_heads}
head_dim = {head_dim}
profile = {profile}
max_context = {max_context}
max_concurrency = {max_concurrency}

[backend]
kind = {backend}

[capacity]
tokens = {tokens}
{capacity}
{more}
"""
DEFAULTS = {
    "layers": 2,
    "kv_heads": 2,
    "head_dim": 64,
    "profile": "bf16",
    "max_context": 4096,
    "max_concurrency": 8,
    "backend": "off",
    "tokens": 16384,
    "capacity": "",
    "more": "",
    "device": "host:0",
}


def until(check, seconds=60.0):
    """Asks check() until it holds; its last answer."""
    end = time.monotonic() + seconds
    while True:
        answer = check()
        if answer or time.monotonic() > end:
            return answer
        os.sched_yield()


def freeze(process):
    """Returns when all of its threads are stopped."""
    tasks = f"/proc/{process.pid}/task"
    process.send_signal(signal.SIGSTOP)

    def is_stopped(task):
        with open(f"{tasks}/{task}/stat") as file:
            return file.read().rpartition(") ")[2][0] == "T"

    assert until(lambda: all(map(is_stopped, os.listdir(tasks))))


# How many descriptors, these, and a command that gets them from 3 on.
_BEGIN_AT_3 = """
import fcntl, os, sys
n = int(sys.argv[1])
fds = [int(fd) for fd in sys.argv[2 : 2 + n]]
above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3 + n) for fd in fds]
for fd in fds:
    os.close(fd)
for i, fd in enumerate(above):
    os.dup2(fd, 3 + i)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(n))
os.execv(sys.argv[2 + n], sys.argv[2 + n :])
"""


class Kvd:
    def __init__(self, **settings):
        self.dir = tempfile.mkdtemp(prefix="kvd-python-")
        self.socket = os.path.join(self.dir, "kvd.sock")
        self._config = os.path.join(self.dir, "kvd.conf")
        with open(self._config, "w") as file:
            text = CONFIG.format(**{**DEFAULTS, **settings}, socket=self.socket)
            file.write(text.replace("layers = None\n", ""))  # groups say it
        self.process, self.shm = None, set()
        self._kept = {}  # name -> descriptor, as systemd keeps them for a service (export = vmm)
        self.start()

    def start(self):
        """Returns when it has said READY."""
        path = os.path.join(self.dir, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, open(
            os.path.join(self.dir, "log"), "ab"
        ) as log:
            notify.bind(path)
            notify.settimeout(60)
            kept = list(self._kept.values())
            with_kept = [sys.executable, "-c", _BEGIN_AT_3, *map(str, [len(kept), *kept])] if kept else []
            self.process = subprocess.Popen(
                [*with_kept, KVD, "--config", self._config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": path, "LISTEN_FDNAMES": ":".join(self._kept)},
                pass_fds=kept,
            )
            try:
                while not self._hear(notify):
                    pass
            except socket.timeout:
                raise AssertionError(f"kvd did not start: {self.log()}") from None
            finally:
                os.unlink(path)
        self.shm |= self._mapped_shm()

    def _hear(self, notify):
        """Whether kvd is ready. sd_notify(3): FDSTORE, FDSTOREREMOVE; a descriptor of BARRIER is closed."""
        text, fds, _, _ = socket.recv_fds(notify, 4096, 1)
        said = dict(line.split("=", 1) for line in text.decode().splitlines())
        if "FDSTOREREMOVE" in said and said["FDNAME"] in self._kept:
            os.close(self._kept.pop(said["FDNAME"]))
        elif "FDSTORE" in said:
            self._kept[said["FDNAME"]] = fds.pop()
        for fd in fds:
            os.close(fd)
        return "READY" in said

    def _mapped_shm(self):
        """Its objects in /dev/shm; those of the arena outlive it."""
        with open(f"/proc/{self.process.pid}/maps") as maps:
            return {line.split(None, 5)[5].strip() for line in maps if "/dev/shm/" in line}

    def left(self):
        """Objects that it should have taken along."""
        return {path for path in self.shm if "-arena" not in path and os.path.exists(path)}

    def log(self):
        with open(os.path.join(self.dir, "log"), errors="replace") as file:
            return file.read()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        status = self.process.wait(60)
        self.process = None
        return status

    def freeze(self):
        freeze(self.process)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def restart(self, number=signal.SIGKILL):
        self.stop(number)
        self.start()

    def ctl(self, *arguments):
        done = subprocess.run([KVDCTL, "--socket", self.socket, *arguments], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def free(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)  # where a test had stopped it
            self.stop()
        for path in self.shm:
            if "-arena" in path and os.path.exists(path):
                os.unlink(path)
        while self._kept:
            os.close(self._kept.popitem()[1])
        shutil.rmtree(self.dir, ignore_errors=True)


class KvdCase(unittest.TestCase):
    """A kvd for each test; at its end the store's invariants hold and nothing is left in /dev/shm."""

    settings = {}

    def setUp(self):
        self.kvd = Kvd(**self.settings)
        self.addCleanup(self._end)

    def _end(self):
        code, text = self.kvd.ctl("audit") if self.kvd.process is not None else (0, "")
        self.kvd.free()
        self.assertEqual(code, 0, text)
        self.assertEqual(self.kvd.left(), set())


def tokens(seed, n):
    """Deterministic, and different between seeds."""
    state, made = seed * 2654435761 % 2**32 or 1, []
    for _ in range(n):
        state = (state * 1664525 + 1013904223) % 2**32
        made.append(state % 50000)
    return made
