# SPDX-License-Identifier: Apache-2.0
"""Attention that reads kvd's pages where they are: an entry of transformers' AttentionInterface on kvd.ops, and the
memory of a batch that appends to them. Nothing is gathered or copied. kvd.transformers makes both; only it imports
this.

While an engine is open its model's attention is the entry. Of a forward pass without the engine's cache it knows
nothing, and calls what the model had before.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence as Seq, Tuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from . import ops, types
from ._paged import Row
from .errors import InvalidArgument, Unimplemented
from .names import PAGE_TOKENS
from .store import Store

_COPIES = 'use a store on host devices with attention="copies"'
_now = threading.local()  # .memory: the PagedMemory of the forward pass that this thread is in


class _Part(NamedTuple):
    """Prompts that one call takes: rows [first, end) of the batch, of which the columns from `lead` on have a token."""

    first: int
    end: int
    lead: int
    skip: int  #: columns before those that are written: padding, and what was found
    positions: Any  #: int32 [row, column from lead]
    table_rows: Any  #: int32 [row]


class PagedMemory:
    """Of one batch: what Batch needs of its memory, on the ops."""

    def __init__(self, layers: Seq[ops.Layer], rows: Seq[Row]) -> None:
        self._layers, self._rows, self._device = layers, rows, layers[0].device
        self._table_rows = self._ints([row.sequence.row for row in rows])
        #: The same for all of a text, so that a step that is computed again has the same launch.
        self._most = max(row.sequence.end for row in rows)
        self._columns = self._width = 0
        self._parts: List[_Part] = []
        self._workspace: Tuple[Tuple[int, ...], Any] = ((), None)
        #: Decoding, a token of each row a step, is made ready once: where it goes, and the calls of each layer.
        self._is_decoding = False
        self._at = self._ints([[0]] * len(rows))
        self._appends = [ops.ReadyAppend(layer, self._at, self._table_rows) for layer in layers]
        self._attends: Dict[Tuple[Any, ...], ops.ReadyAttention] = {}

    def __len__(self) -> int:
        return len(self._layers)

    def _ints(self, values: Any) -> Any:
        return torch.tensor(values, dtype=torch.int32, device=self._device)

    def begin(self, columns: int, width: int, spans: Seq[Tuple[int, int]]) -> None:
        """A step of `width` columns behind `columns`; row i writes tokens spans[i]."""
        self._columns, self._width = columns, width
        at = [columns - row.pad for row in self._rows]
        self._is_decoding = width == 1 and all(begin == position for position, (begin, _) in zip(at, spans))
        if self._is_decoding:
            self._at.copy_(torch.tensor(at, dtype=torch.int32)[:, None])
            return
        self._parts = []
        for i, (begin, end) in enumerate(spans):
            lead = max(0, -at[i])
            if lead < width:
                positions = torch.arange(at[i] + lead, at[i] + width, dtype=torch.int32, device=self._device)[None]
                skip = min(width, begin - at[i])
                self._parts.append(_Part(i, i + 1, lead, skip, positions, self._table_rows[i : i + 1]))

    def update(self, index: int, k: Any, v: Any) -> Tuple[Any, Any]:
        """Writes them, and gives the entry what to read."""
        layer = self._layers[index]
        for new, dim in ((k, layer.head_dim), (v, layer.v_head_dim)):
            shape = (len(self._rows), layer.kv_heads, self._width, dim)
            if tuple(new.shape) != shape or new.dtype != torch.bfloat16:
                raise Unimplemented(
                    f"layer {index} has K or V of {new.dtype}{list(new.shape)}, and kvd's pages hold torch.bfloat16"
                    f"{list(shape)}: kvd.transformers keeps models whose layers are all alike"
                )
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        if self._is_decoding:
            self._appends[index](k, v)
        for part in () if self._is_decoding else self._parts:
            if part.skip < self._width:
                rows, columns = slice(part.first, part.end), slice(part.skip, None)
                positions = part.positions[:, part.skip - part.lead :]
                ops.append(layer, k[rows, columns], v[rows, columns], positions, part.table_rows)
        pages = Pages(self, index)
        return pages, pages

    def attend(self, index: int, q: Any, **options: Any) -> Any:
        """q as models have it, [row, head, column, element]; the result as they want it, [row, column, head, element].
        """
        layer, q = self._layers[index], q.transpose(1, 2).contiguous()
        if self._is_decoding:
            return self._decoding_of(index, q.shape[2], options)(q)
        shape = (*q.shape[:3], layer.v_head_dim)
        is_whole = all(part.lead == 0 for part in self._parts) and sum(p.end - p.first for p in self._parts) == len(q)
        out = (q.new_empty if is_whole else q.new_zeros)(shape)  # padding sees nothing
        for part in self._parts:
            rows, columns = slice(part.first, part.end), slice(part.lead, None)
            ops.attention(
                layer,
                q[rows, columns],
                part.positions,
                part.table_rows,
                out=out[rows, columns],
                max_context=self._most,
                workspace=self._memory_for(layer, part.positions, q.shape[2]),
                **options,
            )
        return out

    def _decoding_of(self, index: int, q_heads: int, options: Dict[str, Any]) -> ops.ReadyAttention:
        key = (index, options["scale"], options["window"], id(options["sinks"]), options["soft_cap"])
        made = self._attends.get(key)
        if made is None:
            layer = self._layers[index]
            memory = self._memory_for(layer, self._at, q_heads)
            made = ops.ReadyAttention(
                layer, self._at, self._table_rows, q_heads, max_context=self._most, workspace=memory, **options
            )
            self._attends[key] = made
        return made

    def _memory_for(self, layer: ops.Layer, positions: Any, q_heads: int) -> Any:
        """One workspace for all layers of a step: the launches of a stream follow each other."""
        if self._device == "cpu":
            return None
        b, w = positions.shape
        shape = (b, w, q_heads)
        if self._workspace[0] != shape:
            n_bytes = ops.workspace_bytes(layer, b, w, q_heads, self._most)
            self._workspace = shape, torch.empty(n_bytes, dtype=torch.uint8, device=self._device)
        return self._workspace[1]

    def enter(self) -> None:
        _now.memory = self

    def wait(self) -> None:
        """Returns when the device has done all that it was asked for."""
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)


class Pages:
    """What attention gets instead of K and V. Whatever else looks at it is told why it cannot."""

    def __init__(self, memory: PagedMemory, index: int) -> None:
        self._memory, self._index = memory, index

    def __getattr__(self, name: str) -> Any:
        raise Unimplemented(
            f"this model asks K or V for {name}: it does not attend through transformers' AttentionInterface alone, "
            f"and kvd.transformers cannot give it pages: {_COPIES}"
        )

    def attend(self, q: Any, **options: Any) -> Any:
        return self._memory.attend(self._index, q, **options)


def leave() -> None:
    """The forward pass is another one, or over."""
    _now.memory = None


# ---- the entry ----


def _mask(before: str, *arguments: Any, use_vmap: bool = False, **options: Any) -> Any:
    """The ops know causes and windows by themselves."""
    if getattr(_now, "memory", None) is None:
        return AttentionMaskInterface()[before](*arguments, use_vmap=use_vmap, **options)
    if use_vmap:
        raise Unimplemented(f"this model has a mask of its own, and kvd's ops have causal ones and windows: {_COPIES}")
    return None


def _attend(
    before: str, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
) -> Tuple[Any, Any]:
    if not isinstance(key, Pages):
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        plain: Callable[..., Tuple[Any, Any]] = AttentionInterface().get(before, eager)
        return plain(module, query, key, value, attention_mask, **options)
    if options.get("dropout") or options.get("position_bias") is not None or options.get("is_causal") is False:
        raise Unimplemented(
            f"kvd's ops attend causally, without dropout and position bias: call model.eval(), or {_COPIES}"
        )
    return (
        key.attend(
            query,
            scale=options.get("scaling"),
            window=options.get("sliding_window") or 0,
            sinks=options.get("s_aux"),
            soft_cap=options.get("softcap") or 0.0,
        ),
        None,
    )


class Entry:
    """Makes the entry the attention of a model, until close()."""

    def __init__(self, model: Any) -> None:
        self._config = model.config
        self._before: str = model.config._attn_implementation or "eager"
        name = "kvd_" + self._before
        AttentionInterface.register(name, partial(_attend, self._before))
        AttentionMaskInterface.register(name, partial(_mask, self._before))
        model.config._attn_implementation = name

    def close(self) -> None:
        self._config._attn_implementation = self._before


def layers_of(store: Store, model: Any, info: types.PoolInfo) -> List[ops.Layer]:
    """The store's layers, after a call of each kind on two pages of their own: what no kernel serves is refused now."""
    devices = {str(parameter.device) for parameter in model.parameters()}
    there = store.k[0].device
    if devices != {there}:
        raise InvalidArgument(f"the model is on {', '.join(sorted(devices))}, and store {store.info.name} on {there}: "
                              "attention that reads pages needs both on one device")
    if model.dtype != torch.bfloat16:
        raise Unimplemented(f"the model computes in {model.dtype}, and kvd's ops in torch.bfloat16: "
                            "model.to(torch.bfloat16), or a store on host devices")
    config = model.config
    if config.get_text_config(decoder=True) is not config:
        raise Unimplemented(
            f"{type(model).__name__} takes more than text, and may have masks that kvd's ops do not: {_COPIES}"
        )
    heads = config.num_attention_heads
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    _try(there, info, heads, {})
    if windowed:
        _try(there, info, heads, {"window": config.sliding_window})
    return [ops.Layer.of(store, index) for index in range(info.n_layers)]


def _try(device: str, info: types.PoolInfo, q_heads: int, options: Any) -> None:
    plane = torch.zeros(2, info.n_kv_heads, PAGE_TOKENS, info.head_dim, dtype=torch.bfloat16, device=device)
    layer = ops.Layer(plane, plane.clone(), torch.arange(2, dtype=torch.int32, device=device)[None])
    at = torch.zeros(1, 1, dtype=torch.int32, device=device)
    ops.append(layer, plane[:1, :, :1].transpose(1, 2), plane[:1, :, :1].transpose(1, 2), at)
    q = torch.zeros(1, 1, q_heads, info.head_dim, dtype=torch.bfloat16, device=device)
    ops.attention(layer, q, at, **options)


def is_paged(store: Store, attention: Optional[str]) -> bool:
    """What attention gets: pages, or a copy of them."""
    on_gpu = store.k[0].device != "cpu"
    if attention not in (None, "pages", "copies"):
        raise InvalidArgument(f'attention={attention!r}: it is "pages", "copies", or None for pages on a GPU alone')
    if attention == "copies" and on_gpu:
        raise Unimplemented(f'store {store.info.name} is on {store.k[0].device}, where attention reads pages ("pages")')
    return on_gpu or attention == "pages"
