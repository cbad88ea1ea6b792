# SPDX-License-Identifier: Apache-2.0
"""What an engine with a block pool of its own has to keep in mind of kvd: which block is complete under which name,
which chains hold it, and what has to be done before it is overwritten. kvd.vllm is this for vLLM."""

from __future__ import annotations

import logging
import os
import select
from typing import Dict, List, NamedTuple, Optional, Sequence as Seq, Set, Tuple

from . import _operations as operations
from . import types
from ._messages import Request
from .call import Call
from .client import Client, root_of
from .errors import Aborted, Error, FailedPrecondition, NotFound, ResourceExhausted
from .lent import LentPages
from .names import PAGE_TOKENS, DomainLike

_log = logging.getLogger("kvd")


class Chain:
    """A continuation: the digests of its full pages, and of each the block that the engine has it in (None: in none).
    Where it ends inside a page it has a tail, in a block or not."""

    __slots__ = ("handle", "digests", "blocks", "demoted", "has_tail", "tail")

    def __init__(
        self,
        handle: int,
        digests: Seq[bytes],
        blocks: Seq[Optional[int]],
        demoted: bool = False,
        has_tail: bool = False,
        tail: Optional[int] = None,
    ) -> None:
        self.handle, self.digests, self.blocks, self.demoted = handle, list(digests), list(blocks), demoted
        self.has_tail, self.tail = has_tail, tail

    def place(self, block: int) -> int:
        """How many full pages are before it."""
        return len(self.digests) if block == self.tail else self.blocks.index(block)

    def leave(self, block: int) -> None:
        if block == self.tail:
            self.tail = None
        else:
            self.blocks[self.blocks.index(block)] = None


class Held(NamedTuple):
    """A prefix that a fork of it keeps on the device: its pages, in order, and its tokens."""

    sequence: int
    pages: List[int]
    tokens: int


class Daemon:
    """The process of the kvd that a client is connected to. Its exit is proven by a pidfd, and by nothing else: one that
    stops, and answers nobody any more, still copies pages."""

    def __init__(self, client: Client) -> None:
        self._fd: Optional[int] = None
        pid = client._session.peer_pid()
        try:
            self._fd = os.pidfd_open(pid) if pid else None
        except OSError:  # an old kernel, or no descriptor left: nothing is proven then
            pass
        client.stats()  # it answers: so the number was its own

    def has_exited(self, seconds: float) -> bool:
        """Waits for that."""
        return self._fd is not None and bool(select.select([self._fd], [], [], seconds)[0])

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


class Blocks:
    """Not for two threads at once. patience: seconds for which an overwriting waits until a kvd that answers no more has
    exited."""

    def __init__(self, client: Client, lent: LentPages, root: types.Root, patience: float = 60.0) -> None:
        self._client, self.lent, self._root, self._patience = client, lent, root, patience
        self._daemon, self._outlive = Daemon(client), client.describe().pages_outlive
        self._where: Dict[bytes, Tuple[Chain, int]] = {}
        self._holders: Dict[int, List[Chain]] = {}
        self._copies: List[Call[types.Moved]] = []
        self._replaced: List[int] = []  # continuations that a copy may have kept from going
        self._beside: Dict[int, Chain] = {}  # by handle: ends inside a page whose full pages other chains have, too

    # ---- at the start ----

    @classmethod
    def of_all(cls, client: Client, domain: DomainLike, reserve: int, patience: float = 60.0) -> Blocks:
        """All that is free, and what an earlier engine has named, but for `reserve` pages: what comes back from the arena
        arrives there. The lowest page is among the blank ones, where it is free."""
        root = root_of(domain)
        free = client.stats().pool[0].available
        lent = client.lend(free, adopt=True, domain=domain) if free else None
        if lent is None or len(lent.pages) <= reserve:
            raise FailedPrecondition(
                f"kvd has {free} free pages and {len(lent.adopted) if lent else 0} of an earlier engine, and {reserve} are "
                "kept for what comes back from the arena: release continuations (kvdctl release), or give kvd more capacity"
            )
        cls._bring_tails_away(client, root)
        short = reserve - client.stats().pool[0].available
        if short > 0:
            lent.give_back(sorted(lent.pages - lent.adopted)[1:][-short:])
        return cls(client, lent, root, patience)

    @staticmethod
    def _bring_tails_away(client: Client, root: types.Root) -> None:
        """Pages that an earlier engine wrote up to a column are in nobody's blocks, and nobody would overwrite them: they go
        to the arena, or, where there is no room, are given up. All that is complete is lent already, and stays."""
        for info in client.continuations(root):
            tail = info.frontier % PAGE_TOKENS
            if not tail or info.demoted:
                continue
            try:
                try:
                    client.demote(info.continuation)
                except (FailedPrecondition, ResourceExhausted):  # no arena, or no room in it
                    _shorten(client, info.continuation, info.frontier - tail)
            except (Aborted, NotFound):  # it moves, or has gone
                pass

    def adopt(self) -> List[Tuple[List[bytes], List[int]]]:
        """The chains that begin in adopted blocks: digests and blocks, as far as those reach. What cannot be reached by
        any is given back."""
        used: Set[int] = set()
        made: List[Tuple[List[bytes], List[int]]] = []
        for info in self._client.continuations(self._root):
            try:
                pages, digests = self._client.read_chain(info.continuation)
            except NotFound:  # it went meanwhile
                continue
            blocks = [page if page in self.lent.adopted else None for page in pages]
            self._note(Chain(info.continuation, digests, blocks, info.demoted, bool(info.frontier % PAGE_TOKENS)))
            n = next((i for i, block in enumerate(blocks) if block is None), len(blocks))
            used.update(block for block in blocks if block is not None)
            if n:
                made.append((digests[:n], [block for block in blocks[:n] if block is not None]))
        self.lent.give_back([block for block in self.lent.adopted if block not in used])
        return made

    def spoil(self, block: int) -> None:
        """Its bytes are not what its name says any more: nobody may find them."""
        for chain in list(self._holders.get(block, ())):
            self._cut(chain, chain.place(block))

    def _note(self, chain: Chain) -> None:
        if chain.tail is not None:
            self._holders.setdefault(chain.tail, []).append(chain)
        for i, (digest, block) in enumerate(zip(chain.digests, chain.blocks)):
            self._where.setdefault(digest, (chain, i))
            if block is not None:
                self._holders.setdefault(block, []).append(chain)

    # ---- what is computed ----

    def is_complete(self, block: int) -> bool:
        return block in self._holders

    def complete(self, digests: Seq[bytes], blocks: Seq[int]) -> None:
        """The bytes of all of these blocks are complete; they are a chain from its beginning. Names what has no name."""
        known = len(digests)
        while known and digests[known - 1] not in self._where:
            known -= 1
        if known == len(digests) or any(block in self._holders for block in blocks[known:]):
            return
        source, at = self._where[digests[known - 1]] if known else (None, -1)
        try:
            self._name(source, known, digests, blocks)
        except NotFound:  # somebody has released it
            if source is not None:
                self._forget(source, 0)

    def _name(self, source: Optional[Chain], known: int, digests: Seq[bytes], blocks: Seq[int]) -> None:
        is_end = source is not None and len(source.digests) == known
        handle, stood = self._ask_name(source, known, blocks[known:], digests[known:], is_end)
        if is_end and source is not None:
            self._supersede(source)
        before: List[Optional[int]] = source.blocks[:known] if source is not None else []
        new: List[Optional[int]] = [None if stood else block for block in blocks[known:]]
        if not is_end or source is None or stood:
            self._note(Chain(handle, digests, before + new))
            return
        source.handle, source.demoted = handle, False
        source.digests += digests[known:]
        source.blocks += new
        for i in range(known, len(digests)):
            self._where[digests[i]] = (source, i)
            self._holders.setdefault(blocks[i], []).append(source)

    def _ask_name(
        self,
        source: Optional[Chain],
        first: int,
        blocks: Seq[int],
        digests: Seq[bytes],
        replace: bool,
        tail: Seq[int] = (),
    ) -> Tuple[int, bool]:
        """Ends that are only beside others give up theirs where kvd has no continuation left."""
        while True:
            handle = source.handle if source is not None else 0
            try:
                return self.lent.name(
                    blocks, digests, self._root, source=handle, first=first, replace=replace, tail=tail
                )
            except ResourceExhausted:
                oldest = next(iter(self._beside), 0)
                if not oldest or oldest == handle:
                    raise
                self._cut(self._beside.pop(oldest), 0)

    def end(self, digests: Seq[bytes], tokens: Seq[int], block: int) -> Optional[Chain]:
        """The first columns of a block are complete: these tokens, behind this chain. They are found, too, until the block
        is overwritten. The chain that ends there; None: the pages before have no name."""
        source, at = self._where.get(digests[-1], (None, 0)) if digests else (None, -1)
        if (digests and source is None) or block in self._holders:
            return None
        is_end = source is not None and at + 1 == len(source.digests) and not source.has_tail
        try:
            handle, stood = self._ask_name(source, len(digests), [block], [], is_end, tokens)
        except NotFound:  # somebody has released it
            if source is not None:
                self._forget(source, 0)
            return None
        if stood:
            return None
        if source is not None and is_end:
            self._supersede(source)
            chain = source
        elif handle in self._beside:  # it was in the arena, and has this block now
            chain = self._beside[handle]
        else:
            blocks = source.blocks[: at + 1] if source is not None else []
            chain = self._beside[handle] = Chain(handle, digests, blocks)
            self._note(chain)
        chain.handle, chain.demoted, chain.has_tail, chain.tail = handle, False, True, block
        self._holders.setdefault(block, []).append(chain)
        return chain

    def _supersede(self, chain: Chain) -> None:
        """It goes on under another handle. What it was goes: at once, with the last copy of it, or, where its tail is
        read just now, as one of those that are beside others."""
        if not chain.has_tail:
            if self._copies:
                self._replaced.append(chain.handle)
            return
        old = Chain(chain.handle, chain.digests, chain.blocks, chain.demoted, True, chain.tail)
        self._drop_tail(chain)
        try:
            self._client.release(old.handle)
        except NotFound:
            pass
        except Aborted:
            self._beside[old.handle] = old
            self._note(old)

    def _drop_tail(self, chain: Chain) -> None:
        if chain.tail is not None and chain in self._holders.get(chain.tail, ()):
            self._holders[chain.tail].remove(chain)
        chain.has_tail, chain.tail = False, None

    def keep(self, digest: bytes, chain: Optional[Chain] = None) -> None:
        """Begins to copy the chain that ends with this page to the arena, so that it outlives kvd, too; or this chain."""
        self._copies = [call for call in self._copies if not _is_over(call)]
        if not self._copies:
            self._release_replaced()
        if chain is None:
            chain, _ = self._where.get(digest, (None, 0))
        if chain is None or chain.demoted:
            return
        request = Request("Demote", continuation=chain.handle, keep_device=True)
        self._copies.append(self._client._call(operations.moved(request)))

    def _release_replaced(self) -> None:
        replaced, self._replaced = self._replaced, []
        for handle in replaced:
            try:
                self._client.release(handle)
            except NotFound:  # it went with the name that goes on
                pass

    def _finish_copies(self) -> None:
        copies, self._copies = self._copies, []
        for call in copies:
            try:
                call.result()
            except (FailedPrecondition, NotFound, ResourceExhausted):  # no arena, gone, or no room
                pass
        self._release_replaced()

    # ---- what is overwritten ----

    def reuse(self, blocks: Seq[int]) -> None:
        """Other bytes come into these: what they hold goes to the arena, or is given up where there is no room. Returns
        when they may be written."""
        gone = [block for block in blocks if block in self._holders]
        try:
            if gone:
                self._make_blank(gone)
        except Error as error:
            self._go_on_alone(error)

    def _go_on_alone(self, error: Error) -> None:
        """kvd has exited and its memory with it, but for what this process has mapped: nobody finds there what is
        overwritten. Raises the error where that is not so."""
        try:
            self._client.stats()
        except Error:
            pass
        else:
            raise error
        if self._outlive:
            raise type(error)(
                f"a block is to be overwritten that kvd knows by its name, and kvd cannot be asked ({error.message}); its "
                "next instance finds it there (export = vmm): start this engine again"
            ) from error
        if not self._daemon.has_exited(self._patience):
            raise error
        _log.warning("kvd: kvd has exited; this engine goes on in its memory, where nothing has a name any more")
        self._where, self._holders, self._copies, self._replaced, self._beside = {}, {}, [], [], {}

    def _make_blank(self, gone: Seq[int]) -> None:
        self._finish_copies()
        for block in gone:
            for chain in list(self._holders.get(block, ())):
                if not chain.demoted:
                    self._evict(chain, block)
        try:
            self.lent.blank(gone)
        except FailedPrecondition:  # others hold it, too
            self._evict_from_others(set(gone))
            self.lent.blank(gone)
        for block in gone:
            for chain in self._holders.pop(block, ()):
                chain.leave(block)

    def _evict(self, chain: Chain, block: int) -> None:
        try:
            self._client.demote(chain.handle)
            chain.demoted = True
        except (FailedPrecondition, ResourceExhausted):  # no arena, or no room in it
            self._cut(chain, chain.place(block))
        except NotFound:
            self._forget(chain, 0)

    def _cut(self, chain: Chain, n: int) -> None:
        self._forget(chain, n if _shorten(self._client, chain.handle, n * PAGE_TOKENS) else 0)

    def _forget(self, chain: Chain, n: int) -> None:
        """Its full pages from n on, and its tail, are no more of it."""
        self._drop_tail(chain)
        for digest, block in zip(chain.digests[n:], chain.blocks[n:]):
            holders = self._holders.get(block, []) if block is not None else []
            if chain in holders:
                holders.remove(chain)
            if self._where.get(digest, (None, 0))[0] is chain:
                del self._where[digest]
                for other in holders:
                    self._where[digest] = (other, other.blocks.index(block))
        del chain.digests[n:], chain.blocks[n:]

    def _evict_from_others(self, blocks: Set[int]) -> None:
        for info in self._client.continuations():
            if info.demoted:
                continue
            pages, digests = self._client.read_chain(info.continuation)
            at = next((i for i, page in enumerate(pages) if page in blocks), None)
            if at is not None:
                other = Chain(info.continuation, digests, pages)
                self._evict(other, pages[at] or 0)

    # ---- what is somewhere else ----

    def hold(self, hit: types.Hit, tokens: int) -> Optional[Held]:
        """Brings the first `tokens` of a hit to the device, in pages that are not lent, and keeps them there until let_go().
        None: it cannot be had now."""
        want = types.Activation(
            tokens, 1, self._client.session, source=hit.continuation, frontier=tokens, keep=True, root=self._root
        )
        try:
            made = self._client.activate_exactly(want)
        except (Aborted, NotFound, ResourceExhausted):  # it moves, has gone, or there is no room beside what is lent
            return None
        row = self._client.store.table.numpy()[made.pools[0].row]
        return Held(made.sequence, [int(page) for page in row[: -(-tokens // PAGE_TOKENS)]], tokens)

    def let_go(self, held: Held) -> None:
        try:
            self._client.finish(held.sequence, False)
        except Error:  # with the session, or with kvd, it is gone, too
            pass


def _is_over(call: Call[types.Moved]) -> bool:
    """Whether its copies are made, or will not be."""
    if not call.done():
        return False
    try:
        call.result(0.0)
    except Error:
        pass
    return True


def _shorten(client: Client, continuation: int, tokens: int) -> bool:
    """False: it has gone, as it does where no token stays."""
    try:
        if tokens:
            client.shorten(continuation, tokens)
        else:
            client.release(continuation)
    except NotFound:
        return False
    return tokens > 0
