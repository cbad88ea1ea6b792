# SPDX-License-Identifier: Apache-2.0
"""Starts engine_process.py, talks to it with deadlines, and kills it."""

import json
import os
import select
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE = float(os.environ.get("KVD_ENGINES_DEADLINE", "600"))  # seconds for an answer; models compute on a CPU


class Engine:
    def __init__(self, *arguments, program="engine_process.py"):
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._buffer = b""
        self.tokens = []  # of the request that runs, or ran last: a list of the batch's for each step
        try:
            self._wait("ready")
        except BaseException:
            self.kill()
            raise

    def _line(self, deadline):
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise AssertionError(f"the engine said nothing for {DEADLINE} s")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise AssertionError(f"the engine ended with {self._process.wait(DEADLINE)}")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _wait(self, word):
        deadline = time.monotonic() + DEADLINE
        while True:
            said = self._line(deadline)
            if "token" in said:
                self.tokens.append(said["token"])
            if word in said:
                return said

    def _send(self, text):
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def start(self, ids, mask, n, hold=0, kvd=True):
        self.tokens = []
        self._send(json.dumps({"ids": ids, "mask": mask, "n": n, "hold": hold, "kvd": kvd}))
        if hold:
            self._wait("held")

    def go_on(self):
        self._send("")

    def end(self):
        return self._wait("end")

    def run(self, ids, mask, n, kvd=True):
        """Its last words: reused (by prompt), first_ms."""
        self.start(ids, mask, n, kvd=kvd)
        return self.end()

    def kill(self):
        """SIGKILL; returns when it is gone."""
        self._process.kill()
        self._process.wait(30)
        self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
