# SPDX-License-Identifier: Apache-2.0
"""What an engine with a block pool of its own has to keep in mind of kvd: which block is complete under which name,
which chains hold it, and what has to be done before it is overwritten. kvd.vllm is this for vLLM."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence as Seq, Set, Tuple

from . import _operations as operations
from . import types
from ._messages import Request
from .call import Call
from .client import Client
from .errors import Aborted, Error, FailedPrecondition, NotFound, ResourceExhausted
from .lent import LentPages
from .names import PAGE_TOKENS


class Chain:
    """A continuation: the digests of its pages, and of each the block that the engine has it in (None: in none)."""

    __slots__ = ("handle", "digests", "blocks", "demoted")

    def __init__(self, handle: int, digests: Seq[bytes], blocks: Seq[Optional[int]], demoted: bool = False) -> None:
        self.handle, self.digests, self.blocks, self.demoted = handle, list(digests), list(blocks), demoted


class Held(NamedTuple):
    """A prefix that a fork of it keeps on the device: its pages, in order."""

    sequence: int
    pages: List[int]


class Blocks:
    """Not for two threads at once."""

    def __init__(self, client: Client, lent: LentPages, root: types.Root) -> None:
        self._client, self.lent, self._root = client, lent, root
        self._where: Dict[bytes, Tuple[Chain, int]] = {}
        self._holders: Dict[int, List[Chain]] = {}
        self._copies: List[Call[types.Moved]] = []
        self._replaced: List[int] = []  # continuations that a copy may have kept from going

    # ---- at the start ----

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
            self._note(Chain(info.continuation, digests, blocks, info.demoted))
            n = next((i for i, block in enumerate(blocks) if block is None), len(blocks))
            used.update(block for block in blocks if block is not None)
            if n:
                made.append((digests[:n], [block for block in blocks[:n] if block is not None]))
        self.lent.give_back([block for block in self.lent.adopted if block not in used])
        return made

    def spoil(self, block: int) -> None:
        """Its bytes are not what its name says any more: nobody may find them."""
        for chain in list(self._holders.get(block, ())):
            self._cut(chain, chain.blocks.index(block))

    def _note(self, chain: Chain) -> None:
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
        handle, stood = self.lent.name(
            blocks[known:],
            digests[known:],
            self._root,
            source=source.handle if source is not None else 0,
            first=known,
            replace=is_end,
        )
        if is_end and source is not None and self._copies:
            self._replaced.append(source.handle)
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

    def keep(self, digest: bytes) -> None:
        """Begins to copy the chain that ends with this page to the arena, so that it outlives kvd, too."""
        self._copies = [call for call in self._copies if not _is_over(call)]
        if not self._copies:
            self._release_replaced()
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
        if not gone:
            return
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
                chain.blocks[chain.blocks.index(block)] = None

    def _evict(self, chain: Chain, block: int) -> None:
        try:
            self._client.demote(chain.handle)
            chain.demoted = True
        except (FailedPrecondition, ResourceExhausted):  # no arena, or no room in it
            self._cut(chain, chain.blocks.index(block))
        except NotFound:
            self._forget(chain, 0)

    def _cut(self, chain: Chain, n: int) -> None:
        try:
            if n:
                self._client.shorten(chain.handle, n * PAGE_TOKENS)
            else:
                self._client.release(chain.handle)
        except NotFound:
            n = 0
        self._forget(chain, n)

    def _forget(self, chain: Chain, n: int) -> None:
        """Its pages from n on are no more of it."""
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
        """Brings the first `tokens` (full pages) of a hit to the device, in pages that are not lent, and keeps them there
        until let_go(). None: it cannot be had now."""
        want = types.Activation(
            tokens, 1, self._client.session, source=hit.continuation, frontier=tokens, keep=True, root=self._root
        )
        try:
            made = self._client.activate_exactly(want)
        except (Aborted, NotFound, ResourceExhausted):  # it moves, has gone, or there is no room beside what is lent
            return None
        row = self._client.store.table.numpy()[made.pools[0].row]
        return Held(made.sequence, [int(page) for page in row[: tokens // PAGE_TOKENS]])

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
