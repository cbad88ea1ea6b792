# SPDX-License-Identifier: Apache-2.0
"""A transformers Cache whose K and V lie in kvd's pages. kvd.transformers makes it; only that imports this.

A batch has columns, as generate() counts them: prompts are padded on the left, and a token's column is its position in
its prompt plus the padding. kvd knows nothing of padding. A sequence holds the tokens of one prompt, and column c of a
row is token c - pad of its sequence.

A forward pass is a step: begin() learns the tokens, each layer writes its K and V and reads all of them, and end() says
that they are complete. Where K and V are written, and what attention gets, is the memory's business: CopiedMemory gives
it a copy of the pages, one after the other, and _pages.PagedMemory the pages.
"""

from __future__ import annotations

import logging
from inspect import signature
from typing import Any, List, NamedTuple, Optional, Sequence as Seq, Tuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation import GenerationMixin

from . import types
from .client import Client
from .errors import (
    Aborted,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from .names import PAGE_TOKENS
from .sequence import Sequence

log = logging.getLogger("kvd.transformers")

#: What generate() and models call the cache: versions of transformers differ.
ARGUMENT = "cache" if "cache" in signature(GenerationMixin.prepare_inputs_for_generation).parameters else "past_key_values"


class Planes(NamedTuple):
    """Of one layer, in the model's type: [page, kv head, 64, head_dim]."""

    k: Any
    v: Any


class Row:
    """A prompt of the batch, and what follows it."""

    def __init__(self, sequence: Sequence, pad: int) -> None:
        self.sequence, self.pad, self.prompt = sequence, pad, sequence.known
        self.found = sequence.cached  #: tokens that were in the cache; their pages are shared and not to be written
        self.ended: Optional[int] = None  #: tokens up to the end of the text; what follows is filling
        self.saved = sequence.cached  #: tokens up to the last copy in the arena
        self.save = 0  #: the continuation of that copy

    def begin(self, column: int, tokens: List[int], eos: Seq[int]) -> Tuple[int, int]:
        """The tokens of columns from `column` on. Those that have no place yet: positions [begin, end)."""
        begin, end = max(0, column - self.pad), max(0, column - self.pad + len(tokens))
        tokens = tokens[len(tokens) - (end - begin) :]
        known = self.sequence.tokens[begin:end] if begin < self.sequence.known else ()
        if list(known) != tokens[: len(known)]:
            raise InvalidArgument(
                f"the model got other tokens than engine.cache() for positions {begin} to {begin + len(known)}: "
                "give generate() the same ids and attention mask, no prefill_chunk_size and no assisted decoding"
            )
        more = tokens[len(known) :]
        self.sequence.append(more)
        if end > self.sequence.mapped:
            raise OutOfRange(f"{self.sequence.mapped} tokens have a place, and the model computes token {end}: ask "
                             "engine.cache() for more max_new_tokens")
        for at, token in enumerate(more, self.sequence.known - len(more)):
            if self.ended is None and token in eos:
                self.ended = at + 1
        return max(begin, self.found), end

    def complete(self, column: int) -> None:
        end = min(column - self.pad, self.sequence.known if self.ended is None else self.ended)
        if end > self.sequence.done:
            self.sequence.complete(end)

    @property
    def is_due(self) -> bool:
        """Full pages, or the whole prompt, are complete and kvd does not know it."""
        done, committed = self.sequence.done, self.sequence.committed
        return done // PAGE_TOKENS > committed // PAGE_TOKENS or committed < self.prompt <= done


class CopiedMemory:
    """Of one batch: pages of the main memory, and the copies that attention gets of them."""

    def __init__(self, planes: Seq[Planes], rows: Seq[Row]) -> None:
        self._planes, self._rows = planes, rows
        self._pages = [torch.from_numpy(row.sequence.block_table().astype("int64")) for row in rows]
        self._columns = self._width = 0
        self._to: Tuple[Any, ...] = ()  # where they go: row and column of the step, page and token of the page
        self._copy: Optional[Tuple[Any, Any]] = None

    def __len__(self) -> int:
        return len(self._planes)

    def begin(self, columns: int, width: int, spans: Seq[Tuple[int, int]]) -> None:
        """A step of `width` columns behind `columns`; row i writes tokens spans[i]."""
        self._columns, self._width = columns, width
        to: List[Tuple[Any, ...]] = []
        for i, (begin, end) in enumerate(spans):
            at = torch.arange(begin, max(begin, end))
            pages = self._pages[i][at // PAGE_TOKENS]
            to.append((torch.full_like(at, i), at + (self._rows[i].pad - columns), pages, at % PAGE_TOKENS))
        self._to = tuple(torch.cat(each) for each in zip(*to))

    def update(self, layer: int, k: Any, v: Any) -> Tuple[Any, Any]:
        with torch.no_grad():
            self._write(layer, k, v)
            return self._read(layer) if self._columns else (k, v)

    def _write(self, layer: int, k: Any, v: Any) -> None:
        planes = self._planes[layer]
        shape = (len(self._rows), planes.k.shape[1], self._width, planes.k.shape[3])
        for new in (k, v):
            if tuple(new.shape) != shape or new.dtype != planes.k.dtype:
                raise Unimplemented(
                    f"layer {layer} has K or V of {new.dtype}{list(new.shape)}, and kvd's pages hold "
                    f"{planes.k.dtype}{list(shape)}: kvd.transformers keeps models whose layers are all alike"
                )
        row, column, page, token = self._to
        planes.k[page, :, token] = k[row, :, column]
        planes.v[page, :, token] = v[row, :, column]

    def _read(self, layer: int) -> Tuple[Any, Any]:
        """K and V of all columns. It holds until the next layer reads: all share one copy."""
        columns = self._columns + self._width
        if self._copy is None:
            self._copy = self._new_copy(), self._new_copy()
        for plane, copy in zip(self._planes[layer], self._copy):
            for row, its, to in zip(self._rows, self._pages, copy):
                n = -(-(columns - row.pad) // PAGE_TOKENS)
                if n > 0:
                    pages = to[:, row.pad : row.pad + n * PAGE_TOKENS].unflatten(1, (n, PAGE_TOKENS))
                    torch.index_select(plane.transpose(0, 1), 1, its[:n], out=pages)
        return self._copy[0][:, :, :columns], self._copy[1][:, :, :columns]

    def _new_copy(self) -> Any:
        """Padding is zero there: attention multiplies it by zero, which a NaN would survive."""
        plane = self._planes[0].k
        columns = max(row.pad + len(pages) * PAGE_TOKENS for row, pages in zip(self._rows, self._pages))
        made = torch.empty(len(self._rows), plane.shape[1], columns, plane.shape[3], dtype=plane.dtype)
        for row, copy in zip(self._rows, made):
            copy[:, : row.pad] = 0
        return made

    def enter(self) -> None:
        """The forward pass of this thread is the batch's."""

    def wait(self) -> None:
        """Returns when the device has done all that it was asked for. A CPU has."""


class Batch:
    """The rows of one generate(), and the step that is under way. It outlives its Cache until finish()."""

    def __init__(
        self, owner: object, client: Client, memory: Any, rows: Seq[Row], eos: Seq[int], save_every: int
    ) -> None:
        self.owner, self.client, self.memory, self.rows = owner, client, memory, rows
        self.lost: Optional[Error] = None  #: kvd went away: the batch goes on, nothing more of it is kept
        self.columns = min(row.pad + row.sequence.done for row in rows)  #: that are complete in all rows
        self._eos, self._save_every = eos, save_every
        self._width = self._written = 0  # columns of the step, layers that have written them

    # ---- a step ----

    def begin(self, ids: Any) -> None:
        if ids is None:
            raise Unimplemented("kvd names KV by tokens: give the model input_ids, not inputs_embeds")
        if self._width:
            raise FailedPrecondition(
                "an exception passed through the model in the middle of a step: what was complete before is kept, "
                "make a new cache"
            )
        if len(ids) != len(self.rows):
            raise Unimplemented(
                f"this cache was made for {len(self.rows)} prompts, and the model got {len(ids)}: beams are not "
                "supported; for several samples of a prompt repeat it in the ids of engine.cache() and generate()"
            )
        spans = [row.begin(self.columns, tokens, self._eos) for row, tokens in zip(self.rows, ids.tolist())]
        self.memory.begin(self.columns, ids.shape[1], spans)
        self.memory.enter()
        self._width, self._written = ids.shape[1], 0

    def update(self, layer: int, k: Any, v: Any) -> Tuple[Any, Any]:
        if not self._width:
            raise FailedPrecondition("this cache belongs to the model of its engine, and to an engine that is open")
        seen: Tuple[Any, Any] = self.memory.update(layer, k, v)
        self._written += 1
        return seen

    def end(self) -> None:
        if self._written != len(self.memory):
            raise Unimplemented(
                f"the model wrote K and V of {self._written} layers, and has {len(self.memory)}: kvd.transformers "
                "keeps models in which every layer has its own"
            )
        self.columns += self._width
        self._width = 0
        for row in self.rows:
            row.complete(self.columns)
        if self.lost is None:
            try:
                self._tell([row for row in self.rows if row.is_due])
            except (Aborted, DeadlineExceeded, Unavailable) as error:
                self.lost = error
                log.warning("kvd is gone: generation goes on in its memory, and is not kept: %s", error)

    def _tell(self, due: Seq[Row]) -> None:
        """What is complete, in one message, and its names."""
        if not due:
            return
        self.memory.wait()  # complete is what lies in the pages
        items = [types.RoundItem(row.sequence.handle, commit=row.sequence.done) for row in due]
        for row, result in zip(due, self.client.round(items)):
            row.sequence.take(result)
            row.sequence.name()
        for row in due:
            if self._save_every and row.sequence.committed - row.saved >= self._save_every:
                self._save(row, row.sequence.checkpoint().continuation)

    # ---- copies in the arena ----

    def _save(self, row: Row, continuation: int) -> None:
        """A copy of what is complete, instead of the one before. One that the arena has no space for is left out."""
        try:
            self.client.demote(continuation, keep_device=True)
        except (ResourceExhausted, FailedPrecondition) as error:
            log.info("not copied to the arena: %s", error)
        row.saved = row.sequence.committed
        before, row.save = row.save, continuation
        if before and before != continuation:
            self.client.release(before)

    # ---- the end ----

    def finish(self) -> None:
        """What is complete becomes continuations."""
        self.memory.wait()
        for row in self.rows:
            try:
                self._finish(row)
            except Error as error:
                log.warning("a sequence was not kept: %s", error)

    def _finish(self, row: Row) -> None:
        continuation = row.sequence.finish()
        if self._save_every and continuation and row.sequence.done > row.found:
            self._save(row, continuation)


class PagedLayer(CacheLayerMixin):
    """One layer of a PagedCache. Windows are masks: every layer keeps all tokens."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, batch: Batch, index: int) -> None:
        super().__init__()
        self._batch, self._index = batch, index

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        pass

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Tuple[Any, Any]:
        return self._batch.update(self._index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> Tuple[int, int]:
        return self._batch.columns + query_length, 0

    def get_seq_length(self) -> int:
        return self._batch.columns

    def get_max_length(self) -> int:
        return -1

    @property
    def batch_size(self) -> int:
        return len(self._batch.rows)


class PagedCache(Cache):
    """What generate() gets as its cache. Once nobody holds it any more, its sequences become continuations."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(layers=[PagedLayer(batch, index) for index in range(len(batch.memory))])
        self.batch = batch

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Unimplemented(
            "a cache in kvd's pages is not reordered, cropped, repeated or moved: no beams, no assisted decoding, "
            "no offloading; for several samples of a prompt repeat it in the ids"
        )

    reset = reorder_cache = crop = batch_repeat_interleave = batch_select_indices = offload = prefetch = _refuse
