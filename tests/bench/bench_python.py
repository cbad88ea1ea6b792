# SPDX-License-Identifier: Apache-2.0
"""The Python client beside libkvd, against one kvd and in one run, in turns of 50, so that one machine's mood meets
both alike. run.sh sets the environment (tests/python/support.py says what it needs).

BENCH python.import ms: a process that imports the package, less one that does not. python.find, python.chain us: the
lookup of a prompt of 2,000 pages, and the making of its names. python.round64 us: a Round of 64 sequences that each
commit one token, its results read as columns; .items: every result looked at. python.activate us: an Activate and the
Finish of its sequence, two messages. kvd: by the shared segment; socket: the same client without it. libkvd uses its own
segment, and is called through ctypes with its arguments made before, so that its call costs a microsecond or two of
Python and no more.
"""

import ctypes
import statistics
import subprocess
import sys
import time

import kvd
import libkvd
from support import Kvd, tokens

SEQUENCES, BLOCK, TURNS, PAGES = 64, 50, 40, 2000
LENGTH = 3 * BLOCK * TURNS
ROOT = kvd.client.root_of("bench")
SETTINGS = {
    "layers": 1,
    "kv_heads": 1,
    "head_dim": 16,
    "max_concurrency": 3 * SEQUENCES + 2,
    "max_context": 64 * (PAGES + 64),
    "tokens": 64 * (PAGES + 64) + 3 * SEQUENCES * (LENGTH + 64),
}


def bench(name, value, unit):
    print(f"BENCH python.{name} {value:.1f} {unit}", flush=True)


def process_ms(text, times=15):
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", text], check=True)
        took.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(took)


def in_turns(calls, block=BLOCK, turns=TURNS, prepare=None):
    """Microseconds of each call, sorted, by name. prepare: what is made before, and is no part of it."""
    took = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            for _ in range(block):
                argument = prepare[name]() if prepare else ()
                begin = time.perf_counter_ns()
                call(*argument)
                took[name].append((time.perf_counter_ns() - begin) / 1e3)
    return {name: sorted(values) for name, values in took.items()}


def report(what, took, *over):
    """over: pairs of names, whose medians are divided."""
    for name in took:
        bench(f"{what}.{name}.p50", statistics.median(took[name]), "us")
        bench(f"{what}.{name}.p99", took[name][len(took[name]) * 99 // 100], "us")
    for ours, theirs in over or [("kvd", "libkvd")]:
        bench(f"{what}.{ours}_over_{theirs}", statistics.median(took[ours]) / statistics.median(took[theirs]), "x")


def bench_import():
    bench("import", process_ms("import kvd") - process_ms("pass"), "ms")


OVER = ("kvd", "libkvd"), ("kvd", "socket")


def bench_find(client, c, over_socket):
    prompt = tokens(1, 64 * PAGES)
    with client.activate(prompt, 1, hit=None, domain="bench") as sequence:
        sequence.complete(len(prompt))
        sequence.step()
    prompt = kvd.names.tokens_of(prompt + [1])
    ours, theirs = kvd.Chain("bench", prompt), libkvd.Chain(kvd.Domain("bench"))
    theirs.push(prompt)
    array = (ctypes.c_uint32 * len(prompt))(*prompt)
    hits, n = (libkvd.H.hit * 16)(), ctypes.c_uint32()
    arguments = (theirs.pointer, array, ctypes.c_size_t(len(prompt)), hits, 16, ctypes.byref(n))
    report(
        "find",
        in_turns(
            {
                "kvd": lambda: client.find(prompt, ours),
                "socket": lambda: over_socket.find(prompt, ours),
                "libkvd": lambda: c._run("find", *arguments),
            },
            5,
        ),
        *OVER,
    )
    assert n.value == 1 and client.find(prompt, ours)[0].usable == hits[0].usable == 64 * PAGES

    def push():
        chain = libkvd.Chain(kvd.Domain("bench"))
        libkvd.LIB.kvd_chain_push(chain.pointer, array, ctypes.c_size_t(len(prompt)))

    report("chain", in_turns({"kvd": lambda: kvd.Chain("bench", prompt), "libkvd": push}, 5))


def bench_activate(client, c, over_socket):
    def trip(by):
        want = kvd.Activation(4, 60, worker=by.session, root=ROOT)

        def call():
            by.finish(by.activate_exactly(want).sequence, False)

        return call

    want, made = c._want(kvd.Activation(4, 60, worker=c.session, root=ROOT)), libkvd.H.activated()
    how, ended = libkvd.H.finish(), libkvd.H.finished()

    def theirs():
        c._run("activate", ctypes.byref(want), ctypes.byref(made))
        how.sequence.bits = made.sequence.bits
        c._run("finish", ctypes.byref(how), ctypes.byref(ended))

    calls = {"kvd": trip(client), "socket": trip(over_socket), "libkvd": theirs}
    report("activate", in_turns(calls, 20), *OVER)


class Batch:
    """64 sequences of a client, everything mapped, and the boundary that commits one token more."""

    def __init__(self, client):
        want = kvd.Activation(4, LENGTH - 4, worker=client.session, ensure=(LENGTH - 1,), root=ROOT)
        self.sequences = [client.activate_exactly(want).sequence for _ in range(SEQUENCES)]
        self.frontier = 4
        self.items = (libkvd.H.round_item * SEQUENCES)()
        for item, sequence in zip(self.items, self.sequences):
            item.sequence.bits, item.pool[0].ask = sequence, libkvd.ASK["commit"]

    def python_items(self):
        self.frontier += 1
        return [kvd.RoundItem(sequence, commit=self.frontier) for sequence in self.sequences]

    def c_items(self):
        self.frontier += 1
        for item in self.items:
            item.pool[0].commit = self.frontier
        return self.items


def bench_round(client, c, over_socket):
    mine, others, third = Batch(client), Batch(c), Batch(over_socket)
    results = (libkvd.H.round_result * SEQUENCES)()

    def round_(by):
        def call(items):
            answer = by.round(items)
            assert not answer.failed
            return answer.column(0, "membership"), answer.column(0, "committed")

        return call

    calls = {
        "kvd": round_(client),
        "socket": round_(over_socket),
        "kvd.items": lambda: list(client.round(mine.python_items())),
        "libkvd": lambda items: c._run("round", items, SEQUENCES, results),
    }
    prepare = {
        "kvd": lambda: (mine.python_items(),),
        "socket": lambda: (third.python_items(),),
        "kvd.items": tuple,
        "libkvd": lambda: (others.c_items(),),
    }
    for name, call in calls.items():
        call(*prepare[name]())
    report("round64", in_turns(calls, prepare=prepare), *OVER)
    assert results[5].status == 0 and results[5].pool[0].committed == others.frontier


def main():
    bench_import()
    server = Kvd(**SETTINGS)
    try:
        client, c = kvd.connect(server.socket, name="kvd"), libkvd.Libkvd(server.socket, name="libkvd")
        over_socket = kvd.connect(server.socket, name="socket", ring=False)
        for bench_one in bench_find, bench_activate, bench_round:
            bench_one(client, c, over_socket)
        for each in c, client, over_socket:
            each.close()
    finally:
        server.free()


main()
