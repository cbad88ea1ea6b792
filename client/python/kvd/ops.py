# SPDX-License-Identifier: Apache-2.0
"""Append and attention on paged KV, for arrays of numpy and tensors of torch: the calls of libkvd-ops.

    layer = kvd.ops.Layer.of(store, 0)
    kvd.ops.append(layer, k, v, positions, rows=[sequence.row])
    out = kvd.ops.attention(layer, q, positions, rows=[sequence.row])

Dense arrays are BF16, [B, W, heads, head_dim of K or V]: B sequences with W columns each. numpy has no BF16 and holds its bits in
uint16. kvd/kvd_ops.h has shapes, limits and what the caller guarantees on a GPU. Where the pages are tensors on a GPU,
all arrays are, and the kernels run on torch's current stream. There int32 tensors of the device are taken as they are, and
a CUDA graph can capture the call if `out` and `workspace` are given; lists and other arrays are copied first.

The library is the package libkvd-ops1; KVD_OPS_LIBRARY names another file.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from typing import Any, ContextManager, Dict, List, Optional, Tuple, Type

import numpy as np

from .errors import Error, Internal, InvalidArgument, ResourceExhausted, Unimplemented
from .names import PAGE_TOKENS
from .store import Store, View

_BF16, _INT8, _FP8, _NVFP4, _K8V4, _FP8_TENSOR = range(6)
_DTYPE_BF16, _DTYPE_I8, _DTYPE_E4M3, _DTYPE_U8, _DTYPE_F16 = range(1, 6)
_ERRORS: Dict[int, Type[Error]] = {1: InvalidArgument, 2: Internal, 3: Unimplemented, 4: ResourceExhausted}


class _Plane(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("dtype", ctypes.c_uint32),
        ("extent", ctypes.c_uint32),
        ("stride_elem", ctypes.c_uint64),
        ("stride_token", ctypes.c_uint64),
        ("stride_head", ctypes.c_uint64),
        ("stride_page", ctypes.c_uint64),
    ]


class _View(ctypes.Structure):
    _fields_ = [
        ("k", _Plane),
        ("v", _Plane),
        ("k_scale", _Plane),
        ("v_scale", _Plane),
        ("block_tables", ctypes.c_void_p),
        ("n_logical", ctypes.c_uint32),
        ("n_rows", ctypes.c_uint32),
        ("n_pages", ctypes.c_uint32),
        ("head_dim", ctypes.c_uint32),
        ("n_kv_heads", ctypes.c_uint32),
        ("storage", ctypes.c_uint32),
        ("format", ctypes.c_uint32),
        ("v_head_dim", ctypes.c_uint32),
        ("window", ctypes.c_uint32),
        ("window_aligned", ctypes.c_uint32),
    ]


class _Append(ctypes.Structure):
    _fields_ = [
        ("view", _View),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("table_rows", ctypes.c_void_p),
        ("w", ctypes.c_uint32),
        ("b", ctypes.c_uint32),
        ("k_scale", ctypes.c_float),
        ("v_scale", ctypes.c_float),
    ]


class _Attention(ctypes.Structure):
    _fields_ = [
        ("view", _View),
        ("q", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("table_rows", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("n_q_heads", ctypes.c_uint32),
        ("w", ctypes.c_uint32),
        ("b", ctypes.c_uint32),
        ("causal", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("window", ctypes.c_uint32),
        ("aligned", ctypes.c_uint32),
        ("sinks", ctypes.c_void_p),
        ("soft_cap", ctypes.c_float),
        ("shared_prefix", ctypes.c_uint32),
        ("k_scale", ctypes.c_float),
        ("v_scale", ctypes.c_float),
    ]


_loaded: Optional[ctypes.CDLL] = None


def _library() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        name = os.environ.get("KVD_OPS_LIBRARY", "libkvd-ops.so.1")
        try:
            found = ctypes.CDLL(name)
        except OSError as error:
            raise Unimplemented(f"kvd.ops needs libkvd-ops (package libkvd-ops1): {error}") from error
        found.kvd_ops_version.restype = ctypes.c_char_p
        found.kvd_ops_attention_workspace.restype = ctypes.c_size_t
        _loaded = found
    return _loaded


def version() -> str:
    """Of the library."""
    text: bytes = _library().kvd_ops_version()
    return text.decode()


def _call(name: str, op: Any, *arguments: Any) -> None:
    sentence = ctypes.create_string_buffer(512)
    code = getattr(_library(), name)(ctypes.byref(op), *arguments, sentence, ctypes.c_size_t(len(sentence)))
    if code:
        raise _ERRORS.get(code, Internal)(sentence.value.decode("utf-8", "replace"))


# ---- arrays -------------------------------------------------------------------------------------


class _Array:
    """What the ops need to know of an ndarray or a tensor. It keeps the memory alive."""

    def __init__(self, value: Any) -> None:
        if isinstance(value, View):
            value = value.numpy() if value.device == "cpu" else value.torch()
        self.value, self.device = value, "cpu"
        if isinstance(value, np.ndarray):
            self.address: int = value.__array_interface__["data"][0]
            self.shape, self.strides, self.dtype = tuple(value.shape), tuple(value.strides), str(value.dtype)
        elif hasattr(value, "data_ptr"):
            size = value.element_size()
            self.address, self.device = value.data_ptr(), str(value.device)
            self.shape, self.strides = tuple(value.shape), tuple(size * stride for stride in value.stride())
            self.dtype = str(value.dtype).rpartition(".")[2]
        else:
            raise InvalidArgument(f"a {type(value).__name__} is no array: use an ndarray, a torch.Tensor, a kvd View")


def _plane(value: Any, name: str, like: Optional[_Array], dtypes: Dict[str, int]) -> Tuple[_Array, _Plane]:
    array = _Array(value)
    if array.dtype not in dtypes or len(array.shape) != 4 or array.shape[2] != PAGE_TOKENS:
        raise InvalidArgument(
            f"plane {name} is {array.dtype}{list(array.shape)}: it is [page, kv head, {PAGE_TOKENS}, element] of "
            f"{' or '.join(dtypes)}"
        )
    if like is not None and (array.shape[:2], array.device) != (like.shape[:2], like.device):
        raise InvalidArgument(
            f"plane {name} has {array.shape[0]} pages of {array.shape[1]} heads on {array.device}, K has "
            f"{like.shape[0]} of {like.shape[1]} on {like.device}"
        )
    page, head, token, element = array.strides
    return array, _Plane(array.address, dtypes[array.dtype], array.shape[3], element, token, head, page)


_CODES = {"uint16": _DTYPE_BF16, "bfloat16": _DTYPE_BF16, "int8": _DTYPE_I8, "float8_e4m3fn": _DTYPE_E4M3, "uint8": 0}
_SCALES = {"float16": _DTYPE_F16, "uint8": _DTYPE_U8}
#: What numpy calls uint8 is FP8 where its scales are FP16, and pairs of FP4 where they are bytes.
_OF_BYTES = {_DTYPE_F16: _DTYPE_E4M3, _DTYPE_U8: _DTYPE_U8}
_STORAGE = {
    (_DTYPE_BF16, _DTYPE_BF16): _BF16,
    (_DTYPE_I8, _DTYPE_I8): _INT8,
    (_DTYPE_E4M3, _DTYPE_E4M3): _FP8,
    (_DTYPE_U8, _DTYPE_U8): _NVFP4,
    (_DTYPE_E4M3, _DTYPE_U8): _K8V4,
}


class Layer:
    """The pages of one layer and the block table: what the ops call a view. It keeps the arrays alive.

    Planes are [page, kv head, 64, element] with any page and head stride; the profile follows from their types. `table`
    is int32 [row, page of the sequence]. Scales are planes, or with FP8 that has no scales in its pages (fp8-tensor) two
    numbers, those of the model's layer. Such pages have no kernels on GPUs here.

    >>> k = np.zeros((8, 2, 64, 32), np.uint16)
    >>> layer = Layer(k, k.copy(), np.arange(8, dtype=np.int32).reshape(2, 4))
    >>> layer.head_dim, layer.kv_heads, layer.max_context, layer.device
    (32, 2, 256, 'cpu')
    """

    def __init__(self, k: Any, v: Any, table: Any, k_scale: Any = None, v_scale: Any = None) -> None:
        self._view = view = _View()
        held: List[_Array] = []
        scale_of_layer = _numbers_of(k_scale, v_scale)
        self._scales = dict(zip(("k_scale", "v_scale"), scale_of_layer or (0.0, 0.0)))
        for name, codes, scales in (("k", k, k_scale), ("v", v, v_scale)):
            array, plane = _plane(codes, name, held[0] if held else None, _CODES)
            held.append(array)
            if scale_of_layer:
                plane.dtype = plane.dtype or _DTYPE_E4M3
            elif scales is not None:
                array, scale = _plane(scales, name + "_scale", held[0], _SCALES)
                held.append(array)
                plane.dtype = plane.dtype or _OF_BYTES[scale.dtype]
                setattr(view, name + "_scale", scale)
            setattr(view, name, plane)
        storage = _STORAGE.get((view.k.dtype, view.v.dtype))
        if scale_of_layer:
            storage = _FP8_TENSOR if storage == _FP8 else None
        if storage is None:
            raise InvalidArgument(
                f"K of {held[0].dtype} and V of {_Array(v).dtype} with these scales are no profile: BF16 has none, "
                "INT8 and FP8 have float16, FP4 has uint8, and only FP8 keys with FP4 values mix; FP8 alone can have two "
                "numbers instead"
            )
        rows = _Array(table)
        if rows.dtype != "int32" or len(rows.shape) != 2 or rows.strides != (4 * rows.shape[1], 4):
            raise InvalidArgument(f"the table is {rows.dtype}{list(rows.shape)}: it is int32 [row, page], contiguous")
        held.append(rows)
        if rows.device != held[0].device:
            raise InvalidArgument(f"the table is on {rows.device}, the planes are on {held[0].device}")
        view.storage, view.block_tables = storage, rows.address
        view.n_rows, view.n_logical = rows.shape
        view.n_pages, view.n_kv_heads = held[0].shape[:2]
        view.head_dim = view.k.extent * (2 if view.k.dtype == _DTYPE_U8 else 1)
        view.v_head_dim = view.v.extent * (2 if view.v.dtype == _DTYPE_U8 else 1)
        self._held = held
        self.device: str = held[0].device
        self.head_dim: int = view.head_dim
        self.v_head_dim: int = view.v_head_dim
        self.kv_heads: int = view.n_kv_heads
        #: Tokens that a row of the table can hold.
        self.max_context: int = view.n_logical * PAGE_TOKENS

    @classmethod
    def of(
        cls,
        store: Store,
        layer: int,
        pool: int = 0,
        k_scale: Optional[float] = None,
        v_scale: Optional[float] = None,
    ) -> Layer:
        """Of a store that kvd has given. The memory stays mapped as long as this lives. With profile fp8-tensor the
        scales are the model's, which kvd does not know; with others they are in the store."""
        planes = store.pool(pool)
        scales: Tuple[Any, Any] = (k_scale, v_scale)
        if planes.info.storage not in (_BF16, _FP8_TENSOR):
            if scales != (None, None):
                raise InvalidArgument("the scales of this store are in its pages: give none")
            scales = planes.k_scale[layer], planes.v_scale[layer]
        elif planes.info.storage == _FP8_TENSOR and _numbers_of(*scales) is None:
            raise InvalidArgument("the pages of profile fp8-tensor hold no scales: give k_scale and v_scale of the layer")
        return cls(planes.k[layer], planes.v[layer], planes.table, *scales)


def _numbers_of(k_scale: Any, v_scale: Any) -> Optional[Tuple[float, float]]:
    """Scales of a layer, if that is what they are: numbers, or what has one element."""
    if any(scale is None or getattr(scale, "shape", ()) not in ((), (1,)) for scale in (k_scale, v_scale)):
        return None
    return float(k_scale), float(v_scale)


def _dense(value: Any, name: str, layer: Layer, dim: int) -> _Array:
    """BF16 [B, W, heads, dim], contiguous."""
    array = _Array(value)
    if array.dtype not in ("uint16", "bfloat16") or len(array.shape) != 4 or array.shape[3] != dim:
        raise InvalidArgument(
            f"{name} is {array.dtype}{list(array.shape)}: it is [B, W, heads, {dim}] of bfloat16, or of its "
            "bits in uint16"
        )
    if array.device != layer.device:
        raise InvalidArgument(f"{name} is on {array.device}, the pages are on {layer.device}")
    value = array.value
    return _Array(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value.contiguous())


def _ints(value: Any, name: str, shape: Tuple[int, ...], layer: Layer) -> Optional[_Array]:
    """int32 where the pages are."""
    return None if value is None else _numbers(value, name, shape, layer, "int32")


def _floats(value: Any, name: str, shape: Tuple[int, ...], layer: Layer) -> Optional[_Array]:
    """float32 where the pages are."""
    return None if value is None else _numbers(value, name, shape, layer, "float32")


def _numbers(value: Any, name: str, shape: Tuple[int, ...], layer: Layer, dtype: str) -> _Array:
    if layer.device != "cpu":
        import torch

        array = _Array(torch.as_tensor(value, dtype=getattr(torch, dtype), device=layer.device).contiguous())
    else:
        if hasattr(value, "data_ptr"):
            value = (value.detach().float() if dtype == "float32" else value).numpy()
        array = _Array(np.ascontiguousarray(value, dtype))
    if array.shape != shape:
        raise InvalidArgument(f"{name} is {list(array.shape)}: it is {list(shape)}")
    return array


def _at(array: Optional[_Array]) -> Optional[int]:
    return None if array is None else array.address


def _rows(rows: Any, b: int, layer: Layer) -> Optional[_Array]:
    return _ints(range(b) if rows is None else rows, "rows", (b,), layer)


def _stream(layer: Layer) -> ctypes.c_void_p:
    import torch

    return ctypes.c_void_p(torch.cuda.current_stream(layer.device).cuda_stream)


def _on_device(layer: Layer) -> ContextManager[Any]:
    if layer.device == "cpu":
        return contextlib.nullcontext()
    import torch

    index = int(layer.device.rpartition(":")[2])
    if torch.cuda.current_device() == index:
        return contextlib.nullcontext()
    device: ContextManager[Any] = torch.cuda.device(index)
    return device


# ---- ops ----------------------------------------------------------------------------------------


def append(layer: Layer, k: Any, v: Any, positions: Any, rows: Any = None, valid: Any = None) -> None:
    """Writes k and v [B, W, kv heads, head_dim] to the positions [B, W] of table rows [B] (0, 1, ... unless given).

    Only the first valid[b] columns of a sequence count. On the CPU what is not mapped is refused.
    """
    keys, values = _dense(k, "k", layer, layer.head_dim), _dense(v, "v", layer, layer.v_head_dim)
    b, w, heads, _ = keys.shape
    if keys.shape[:3] != values.shape[:3] or heads != layer.kv_heads:
        raise InvalidArgument(
            f"k is {list(keys.shape)} and v {list(values.shape)}: both are [B, W, {layer.kv_heads}, head_dim]"
        )
    at, count = _ints(positions, "positions", (b, w), layer), _ints(valid, "valid", (b,), layer)
    of = _rows(rows, b, layer)
    op = _Append(layer._view, keys.address, values.address, _at(at), _at(count), _at(of), w, b, **layer._scales)
    if layer.device == "cpu":
        _call("kvd_ops_append_host", op)
    else:
        with _on_device(layer):
            _call("kvd_ops_append_cuda", op, _stream(layer))


def attention(
    layer: Layer,
    q: Any,
    positions: Any = None,
    rows: Any = None,
    valid: Any = None,
    *,
    context: Any = None,
    scale: Optional[float] = None,
    window: int = 0,
    aligned: bool = False,
    sinks: Any = None,
    soft_cap: float = 0.0,
    shared_prefix: int = 0,
    out: Any = None,
    max_context: Optional[int] = None,
    workspace: Any = None,
    oracle: bool = False,
) -> Any:
    """Attention of q [B, W, query heads, head_dim] over the pages of table rows [B]. Returns `out` [B, W, query heads, head_dim of V].

    The query at position p sees keys 0 to p. With `context` [B] instead of positions every column that counts sees the
    context and all columns that count. Columns past valid[b] come back as zeros. `scale` is 1/sqrt(head_dim) unless
    given. `oracle` computes in FP64, slowly, on the CPU.

    With a `window` the query at p sees its last `window` keys, its own among them; `aligned`: those from the last
    multiple of `window` on. `sinks` [query heads] of float32 are logits that take weight and have no value. `soft_cap`
    makes soft_cap * tanh(x / soft_cap) of a scaled logit x. Pages behind the windows need not be mapped.

    `shared_prefix` is a hint for GPUs: the sequences may begin with up to so many tokens in the same pages. Those that
    they do have in common are then read once for all. It changes no result beyond the order of sums.

    On a GPU `max_context` is the most keys that any sequence has now, and in any replay of a graph: the table's row
    unless given. `workspace` is memory of workspace_bytes().
    """
    query = _dense(q, "q", layer, layer.head_dim)
    shape = (*query.shape[:3], layer.v_head_dim)
    result = _Array(_empty_like(query.value, shape) if out is None else out)
    if (result.shape, result.dtype, result.device) != (shape, query.dtype, query.device) or not _whole(result):
        raise InvalidArgument(
            f"out is {result.dtype}{list(result.shape)}: it is {query.dtype}{list(shape)} on {query.device}, contiguous"
        )
    if (positions is None) == (context is None):
        raise InvalidArgument("give positions (causal) or context (every column sees all), one of them")
    b, w, _, _ = query.shape
    at, count = _ints(positions, "positions", (b, w), layer), _ints(valid, "valid", (b,), layer)
    before, of = _ints(context, "context", (b,), layer), _rows(rows, b, layer)
    sink = _floats(sinks, "sinks", (query.shape[2],), layer)
    op = _attention(layer, query.shape, positions is not None, scale)
    op.window, op.aligned, op.sinks, op.soft_cap = window, aligned, _at(sink), soft_cap
    op.shared_prefix = shared_prefix
    op.q, op.out, op.positions, op.valid = query.address, result.address, _at(at), _at(count)
    op.context, op.table_rows = _at(before), _at(of)
    if layer.device == "cpu":
        _call("kvd_ops_attention_oracle" if oracle else "kvd_ops_attention_host", op)
    elif oracle:
        raise Unimplemented(f"the oracle is for the CPU, and these pages are on {layer.device}")
    else:
        _launch(layer, op, layer.max_context if max_context is None else max_context, workspace)
    return result.value


def workspace_bytes(
    layer: Layer, b: int, w: int, query_heads: int, max_context: Optional[int] = None, shared_prefix: int = 0
) -> int:
    """Bytes on the GPU that attention() of these shapes and of this hint needs at most; 0 on the CPU.

    >>> k = np.zeros((8, 2, 64, 32), np.uint16)
    >>> workspace_bytes(Layer(k, k.copy(), np.zeros((2, 4), np.int32)), b=1, w=1, query_heads=4)
    0
    """
    if layer.device == "cpu":
        return 0
    op = _attention(layer, (b, w, query_heads, layer.head_dim), True, None)
    op.shared_prefix = shared_prefix
    with _on_device(layer):
        return _workspace_bytes(op, layer.max_context if max_context is None else max_context)


def _attention(layer: Layer, shape: Tuple[int, ...], causal: bool, scale: Optional[float]) -> _Attention:
    b, w, heads, head_dim = shape
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    return _Attention(view=layer._view, n_q_heads=heads, w=w, b=b, causal=causal, scale=scale, **layer._scales)


def _workspace_bytes(op: _Attention, max_context: int) -> int:
    return int(_library().kvd_ops_attention_workspace(ctypes.byref(op), ctypes.c_uint32(max_context)))


def _workspace(layer: Layer, op: _Attention, max_context: int, given: Any) -> Any:
    import torch

    with _on_device(layer):
        if given is None:
            given = torch.empty(_workspace_bytes(op, max_context), dtype=torch.uint8, device=layer.device)
    memory = _Array(given)
    if memory.device != layer.device or not _whole(memory):
        raise InvalidArgument(f"the workspace is on {memory.device}: it is contiguous memory on {layer.device}")
    return given


def _envelope(max_context: int, workspace: Any) -> Tuple[Any, ...]:
    """What a launch gets beside the call."""
    n_bytes = ctypes.c_size_t(workspace.numel() * workspace.element_size())
    return ctypes.c_uint32(max_context), ctypes.c_void_p(workspace.data_ptr()), n_bytes


def _launch(layer: Layer, op: _Attention, max_context: int, workspace: Any) -> None:
    memory = _workspace(layer, op, max_context, workspace)
    with _on_device(layer):
        _call("kvd_ops_attention_cuda", op, *_envelope(max_context, memory), _stream(layer))


class _Ready:
    """A call that is made ready once. Not for two threads at a time."""

    _name = ""

    def __init__(self, layer: Layer, op: Any, held: Tuple[Any, ...], before_stream: Tuple[Any, ...] = ()) -> None:
        import torch

        self._torch, self._bf16, self._layer, self._op, self._held = torch, torch.bfloat16, layer, op, held
        self._device, self._index = torch.device(layer.device), torch.device(layer.device).index
        self._sentence = ctypes.create_string_buffer(512)
        self._before = (ctypes.byref(op), *before_stream)
        self._after = (self._sentence, ctypes.c_size_t(512))
        self._function = getattr(_library(), f"{self._name}_{'host' if layer.device == 'cpu' else 'cuda'}")

    def _address(self, value: Any, shape: Tuple[int, ...], name: str) -> int:
        if (
            value.shape != shape
            or value.dtype is not self._bf16
            or value.device != self._device
            or not value.is_contiguous()
        ):
            raise InvalidArgument(
                f"{name} is {value.dtype}{list(value.shape)} on {value.device}: it was made ready for "
                f"torch.bfloat16{list(shape)} on {self._device}, contiguous"
            )
        address: int = value.data_ptr()
        return address

    def _run(self) -> None:
        if self._index is None:
            code = self._function(*self._before, *self._after)
        elif self._torch.cuda.current_device() == self._index:
            code = self._launch()
        else:
            with _on_device(self._layer):
                code = self._launch()
        if code:
            raise _ERRORS.get(code, Internal)(self._sentence.value.decode("utf-8", "replace"))


    def _launch(self) -> int:
        stream = ctypes.c_void_p(self._torch.cuda.current_stream(self._device).cuda_stream)
        code: int = self._function(*self._before, stream, *self._after)
        return code


class ReadyAppend(_Ready):
    """append() for loops that call it again and again for the same rows: what does not change is looked at once.

    positions [B, W] and rows [B] are int32 tensors of torch where the pages are. Write the next positions into the
    tensor; its memory is what each call reads. k and v are contiguous tensors of BF16, and their shapes are checked.
    """

    _name = "kvd_ops_append"

    def __init__(self, layer: Layer, positions: Any, rows: Any) -> None:
        b, w = positions.shape
        at, of = _in_place(positions, "positions", (b, w), layer), _in_place(rows, "rows", (b,), layer)
        self._k, self._v = ((b, w, layer.kv_heads, dim) for dim in (layer.head_dim, layer.v_head_dim))
        op = _Append(layer._view, None, None, at, None, of, w, b, **layer._scales)
        super().__init__(layer, op, (positions, rows))

    def __call__(self, k: Any, v: Any) -> None:
        self._op.k, self._op.v = self._address(k, self._k, "k"), self._address(v, self._v, "v")
        self._run()


class ReadyAttention(_Ready):
    """attention() in the same way, for positions. The options are attention()'s; calls that may run at one time need a
    workspace each."""

    _name = "kvd_ops_attention"

    def __init__(
        self,
        layer: Layer,
        positions: Any,
        rows: Any,
        query_heads: int,
        *,
        scale: Optional[float] = None,
        window: int = 0,
        aligned: bool = False,
        sinks: Any = None,
        soft_cap: float = 0.0,
        max_context: Optional[int] = None,
        workspace: Any = None,
    ) -> None:
        b, w = positions.shape
        most = layer.max_context if max_context is None else max_context
        sink = _floats(sinks, "sinks", (query_heads,), layer)
        op = _attention(layer, (b, w, query_heads, layer.head_dim), True, scale)
        op.window, op.aligned, op.sinks, op.soft_cap = window, aligned, _at(sink), soft_cap
        op.positions, op.table_rows = (
            _in_place(positions, "positions", (b, w), layer),
            _in_place(rows, "rows", (b,), layer),
        )
        memory = None if layer.device == "cpu" else _workspace(layer, op, most, workspace)
        before = () if memory is None else _envelope(most, memory)
        self._q, self._out = ((b, w, query_heads, dim) for dim in (layer.head_dim, layer.v_head_dim))
        super().__init__(layer, op, (positions, rows, sink, memory), before)

    def __call__(self, q: Any) -> Any:
        """A new tensor."""
        out = q.new_empty(self._out)
        self._op.q, self._op.out = self._address(q, self._q, "q"), out.data_ptr()
        self._run()
        return out


def _in_place(value: Any, name: str, shape: Tuple[int, ...], layer: Layer) -> int:
    array = _Array(value)
    if (array.dtype, array.shape, array.device) != ("int32", shape, layer.device) or not _whole(array):
        raise InvalidArgument(
            f"{name} is {array.dtype}{list(array.shape)} on {array.device}: it is int32{list(shape)} on "
            f"{layer.device}, contiguous, because its memory is read at each call"
        )
    return array.address


def _empty_like(value: Any, shape: Tuple[int, ...]) -> Any:
    return np.empty(shape, value.dtype) if isinstance(value, np.ndarray) else value.new_empty(shape)


def _whole(array: _Array) -> bool:
    if isinstance(array.value, np.ndarray):
        return bool(array.value.flags.c_contiguous)
    return bool(array.value.is_contiguous())


def to_bf16(x: Any) -> Any:
    """An array of floats as the bits of BF16, to nearest even: numpy's way to fill q, k and v.

    >>> [hex(bits) for bits in to_bf16(np.array([1, -2.5, 0.1, np.nan], np.float32))]
    ['0x3f80', '0xc020', '0x3dcd', '0x7fc0']
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def from_bf16(bits: Any) -> Any:
    """The floats that bits of BF16 stand for.

    >>> from_bf16(np.array([0x3F80, 0xC020], np.uint16)).tolist()
    [1.0, -2.5]
    """
    return (np.ascontiguousarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
