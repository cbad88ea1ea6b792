# SPDX-License-Identifier: Apache-2.0
"""libkvd through ctypes, with the names of the package kvd, so that one scenario runs against both.

The structures are read from the headers, so that this file says nothing about their layout.
"""

import ctypes
import os
import re
from types import SimpleNamespace

import kvd
from kvd import errors

HEADERS = [os.path.join(os.environ["KVD_SOURCE"], path) for path in ("proto/kvd_types.h", "client/kvd.h")]
SCALARS = {
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "bool": ctypes.c_bool,
    "size_t": ctypes.c_size_t,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
}
NONE = 2**32 - 1
ASK = {"commit": 1, "truncate": 2, "keep": 4, "ensure": 8, "state": 16}  # enum kvd_round_ask


class Headers:
    """Structures and constants of C headers: plain members, arrays, nested structures by name, pointers."""

    def __init__(self, paths):
        text = ""
        for path in paths:
            with open(path) as file:
                text += re.sub(r"/\*.*?\*/|//[^\n]*", " ", file.read(), flags=re.S)
        self.constants = {
            name: int(value.rstrip("uU"), 0)
            for name, value in re.findall(r"#define\s+(KVD_\w+)[ \t]+(\w+)[ \t]*$", text, re.M)
            if re.fullmatch(r"(0x)?[0-9a-fA-F]+[uU]?", value)
        }
        self.types = dict(SCALARS)
        for struct, body, alias in re.findall(r"(?:typedef\s+)?struct\s+(\w+)\s*\{([^{}]*)\}\s*(\w*)\s*;", text):
            made = type(struct, (ctypes.Structure,), {"_fields_": list(self._fields(body))})
            self.types[struct] = self.types[alias or struct] = made

    def _fields(self, body):
        for member in filter(str.strip, body.split(";")):
            kind, names = re.match(r"\s*(?:const\s+)?(?:struct\s+|enum\s+)?(\w+)\s*(.*)", member, re.S).groups()
            base = ctypes.c_int if "enum " in member else self.types.get(kind)
            for name in names.split(","):
                star, name, dims = re.match(r"\s*(\*?)\s*(?:const\s+)?(\w+)\s*((?:\[\w+\])*)", name).groups()
                made = ctypes.c_char_p if star and kind == "char" else ctypes.c_void_p if star else base
                for dim in reversed(re.findall(r"\[(\w+)\]", dims)):
                    made = made * (self.constants[dim] if dim in self.constants else int(dim))
                yield name, made

    def __getattr__(self, name):
        return self.types["kvd_" + name]


H = Headers(HEADERS)
LIB = ctypes.CDLL(os.environ["LIBKVD"])
LIB.kvd_client_session.restype = H.session_id
LIB.kvd_chain_pages.restype = ctypes.c_size_t
LIB.kvd_chain_digests.restype = ctypes.c_void_p


class Chain:
    """Names by libkvd."""

    def __init__(self, domain):
        fields = {name: getattr(domain, name).encode() for name in ("model", "adapter", "tenant", "modality", "label")}
        self.pointer = ctypes.c_void_p()
        LIB.kvd_chain_new(ctypes.byref(H.domain(**fields)), ctypes.byref(self.pointer))

    def push(self, prompt):
        LIB.kvd_chain_push(self.pointer, (ctypes.c_uint32 * len(prompt))(*prompt), ctypes.c_size_t(len(prompt)))

    def truncate(self, n):
        LIB.kvd_chain_truncate(self.pointer, ctypes.c_size_t(n))

    def digests(self):
        n = LIB.kvd_chain_pages(self.pointer)
        return ctypes.string_at(LIB.kvd_chain_digests(self.pointer), 32 * n) if n else b""

    def __del__(self):
        LIB.kvd_chain_free(self.pointer)


class Libkvd:
    """A client of libkvd's."""

    def __init__(self, socket, role="scheduler", name="libkvd", timeout=5.0):
        options = H.connect_options(
            struct_size=ctypes.sizeof(H.connect_options),
            socket=socket.encode(),
            role=kvd.Role[role.upper()],
            name=name.encode(),
            timeout_ms=int(timeout * 1000),
        )
        self._client = ctypes.c_void_p()
        self._error = H.error()
        self._call("connect", ctypes.byref(options), ctypes.byref(self._client))
        self.session = LIB.kvd_client_session(self._client).bits

    def _call(self, name, *arguments):
        """A function whose last argument is the error."""
        if getattr(LIB, "kvd_" + name)(*arguments, ctypes.byref(self._error)):
            raise errors.error_of(self._error.status, self._error.message.decode())

    def _run(self, name, *arguments):
        self._call(name, self._client, *arguments)

    def close(self):
        LIB.kvd_disconnect(self._client)

    @staticmethod
    def _chain(prompt, domain):
        made = Chain(kvd.Domain(domain))
        made.push(prompt)
        return made

    def find(self, prompt, domain=""):
        chain, array = self._chain(prompt, domain), (ctypes.c_uint32 * len(prompt))(*prompt)
        hits, n = (H.hit * 16)(), ctypes.c_uint32()
        self._run("find", chain.pointer, array, ctypes.c_size_t(len(prompt)), hits, 16, ctypes.byref(n))
        return [
            kvd.Hit(h.continuation.bits, h.usable, h.frontier, h.retention, h.restore_pages, h.live)
            for h in hits[: n.value]
        ]

    @staticmethod
    def _want(want):
        made = H.activation(keep=want.keep, frontier=want.frontier, prompt_tokens=want.prompt_tokens,
                            max_output_tokens=want.max_output_tokens, n_victims=len(want.victims),
                            revision=want.revision, checkpoint_every=want.checkpoint_every,
                            checkpoint_prompt=want.checkpoint_prompt)
        made.worker.bits, made.group.bits = want.worker, want.group
        made.root.digest.bytes[:] = want.root.digest or bytes(32)
        made.root.label = want.root.label.encode()
        getattr(made, "from").bits = want.source
        for i, tokens in enumerate(want.ensure):
            made.ensure[i] = tokens
        made.recipe = (H.victim * max(1, len(want.victims)))(*[(H.continuation(v), demote, frontier) for v, demote, frontier in want.victims])
        made.victims = ctypes.cast(made.recipe, ctypes.c_void_p)
        return made

    @staticmethod
    def _place(p):
        return kvd.Place(
            p.row, p.membership, p.entitlement, p.committed, p.protected_frontier, p.slice_begin, p.slice_count,
            p.first
        )

    def activate_exactly(self, want):
        made = H.activated()
        self._run("activate", ctypes.byref(self._want(want)), ctypes.byref(made))
        slots = [None if slot == NONE else slot for slot in (made.state_slot, made.source_state_slot)]
        return kvd.Activated(
            made.sequence.bits,
            *slots,
            made.revision,
            tuple(self._place(p) for p in made.pool[: made.n_pools]),
            tuple(made.restored)
        )

    def plan(self, want):
        made = H.plan()
        self._run("plan_activation", ctypes.byref(self._want(want)), ctypes.byref(made))
        return kvd.Feasibility(made.feasibility), [made.pages[i].needed for i in range(made.n_pools)]

    def changes(self, cursor=0):
        at, n, more, told = ctypes.c_uint64(cursor), ctypes.c_uint32(), ctypes.c_bool(True), []
        infos = (H.continuation_info * 3)()  # several calls, where there are more
        while more.value:
            self._run("list_changes", ctypes.byref(at), infos, 3, ctypes.byref(n), ctypes.byref(more))
            told += [SimpleNamespace(continuation=i.continuation.bits, frontier=i.frontier, demoted=i.demoted, live=i.live)
                     for i in infos[: n.value]]
        return told, at.value

    def choose_victims(self, want):
        import dataclasses

        made = self._want(want)
        room = (H.victim * 4096)()
        self._run("choose_victims", ctypes.byref(made), room, 4096)
        return dataclasses.replace(want, source=getattr(made, "from").bits, frontier=made.frontier, keep=made.keep,
                                   victims=tuple(kvd.Victim(v.continuation.bits, v.demote, v.frontier) for v in room[: made.n_victims]),
                                   revision=made.revision)

    def round(self, items):
        asked, results = (H.round_item * len(items))(), (H.round_result * len(items))()
        for to, item in zip(asked, items):
            to.sequence.bits = item.sequence
            if item.state_frontier is not None:
                to.ask, to.state_frontier = ASK["state"], item.state_frontier
            for p, pool in enumerate(to.pool):
                for name in ("commit", "truncate", "keep", "ensure"):
                    value = getattr(item, name)
                    value = value[p] if isinstance(value, tuple) else value
                    if value is not None:
                        pool.ask |= ASK[name]
                        setattr(pool, name, value)
        self._run("round", asked, len(items), results)
        return [
            kvd.RoundResult(
                kvd.Status(r.status),
                r.message.decode(),
                (r.bounded_pool, r.bounded_frontier) if r.bounded else None,
                tuple(self._place(p) for p in r.pool[: r.n_pools]),
            )
            for r in results
        ]

    def name(self, sequence, prompt, domain, first, end):
        chain = self._chain(prompt, domain)
        self._run("name_pages", H.sequence(sequence), chain.pointer, first, end - first)

    @staticmethod
    def _fill_tail(to, tail):
        to.n = len(tail)
        for i, token in enumerate(tail[:63]):
            to.tokens[i] = token

    def checkpoint(self, sequence, tail=(), retention=0):
        what, made = H.checkpoint(retention=retention), H.checkpointed()
        what.sequence.bits = sequence
        self._fill_tail(what.tail, tail)
        self._run("checkpoint", ctypes.byref(what), ctypes.byref(made))
        return kvd.Checkpointed(made.continuation.bits, made.frontier, made.revision, tuple(made.shared_pages))

    def finish(self, sequence, retain, tail=(), retention=0):
        how, made = H.finish(retain=retain, retention=retention), H.finished()
        how.sequence.bits = sequence
        self._fill_tail(how.tail, tail)
        self._run("finish", ctypes.byref(how), ctypes.byref(made))
        return made.continuation.bits

    def release(self, continuation):
        self._run("release", H.continuation(continuation))

    def set_retention(self, continuation, retention):
        self._run("set_retention", H.continuation(continuation), retention)

    def _move(self, name, continuation, *arguments):
        made = H.moved()
        self._run(name, H.continuation(continuation), *arguments, ctypes.byref(made))
        return made.pages[0], made.bytes

    def demote(self, continuation, keep_device=False):
        return self._move("demote", continuation, ctypes.c_bool(keep_device))

    def prefetch(self, continuation):
        return self._move("prefetch", continuation)

    def resources(self):
        made = H.stats()
        self._run("stats", ctypes.byref(made))
        return {
            "sequences": made.sequences,
            "continuations": made.continuations,
            "available": [made.pool[i].available for i in range(made.n_pools)],
        }


class Native:
    """The package, with this file's signatures."""

    def __init__(self, socket, role="scheduler", name="python", timeout=5.0):
        self.client = kvd.connect(socket, role=role, name=name, timeout=timeout)
        self.session = self.client.session

    def __getattr__(self, name):
        return getattr(self.client, name)

    def plan(self, want):
        plan = self.client.plan(want)
        return plan.feasibility, [need.needed for need in plan.pages]

    def round(self, items):
        return list(self.client.round(items))

    def name(self, sequence, prompt, domain, first, end):
        self.client.name_pages(sequence, kvd.Chain(domain, prompt), first, end)

    def demote(self, continuation, keep_device=False):
        moved = self.client.demote(continuation, keep_device)
        return moved.pages[0] if moved.pages else 0, moved.n_bytes

    def prefetch(self, continuation):
        moved = self.client.prefetch(continuation)
        return moved.pages[0] if moved.pages else 0, moved.n_bytes

    def resources(self):
        stats = self.client.stats()
        return {
            "sequences": stats.sequences,
            "continuations": stats.continuations,
            "available": [pool.available for pool in stats.pool],
        }
