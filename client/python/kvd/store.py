# SPDX-License-Identifier: Apache-2.0
"""An attached store: the planes, block tables and state slots of one rank as arrays.

A view is memory that is not copied. As numpy (BF16 and FP8 as their bits, which numpy has no type for), as torch
tensors, or through DLPack. Arrays keep their mapping alive, so that none ever points to memory that is gone; the store
and its views give no new ones once it is detached, or this client knows that kvd is another instance.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import types
from ._memory import Descriptors, map_region
from ._session import Session
from .errors import Aborted, FailedPrecondition, InvalidArgument, OutOfRange, Unimplemented
from .names import PAGE_TOKENS

K, V, K_SCALE, V_SCALE = 0, 1, 2, 3
KV, LATENT, PACKED = 0, 1, 2


class _Element(NamedTuple):
    numpy: str
    torch: str
    dlpack_code: int  # of dlpack.h


_ELEMENTS: Dict[int, _Element] = {
    1: _Element("<u2", "bfloat16", 4),
    2: _Element("|i1", "int8", 0),
    3: _Element("|u1", "float8_e4m3fn", 10),
    4: _Element("|u1", "uint8", 1),
    5: _Element("<f2", "float16", 2),
}
_INT32 = _Element("<i4", "int32", 0)
_BYTE = _Element("|u1", "uint8", 1)
#: Of the same size, which every framework has.
_CARRIERS = {"bfloat16": "<i2", "float8_e4m3fn": "|u1"}


class View:
    """Memory of kvd with a shape, in bytes of strides. Planes are [page, kv head, 64, element]."""

    def __init__(
        self,
        store: Store,
        memory: Any,
        offset: int,
        shape: Tuple[int, ...],
        strides: Tuple[int, ...],
        element: _Element,
    ) -> None:
        self._store, self._memory, self._offset, self._element = store, memory, offset, element
        self.shape, self.strides = shape, strides

    @property
    def dtype(self) -> str:
        """The element's type by torch's name: "bfloat16", "int8", "float8_e4m3fn", "uint8", "float16", "int32"."""
        return self._element.torch

    @property
    def device(self) -> str:
        """ "cpu" or "cuda:N"."""
        return f"cuda:{self._memory.device}" if self._memory.on_gpu else "cpu"

    def __repr__(self) -> str:
        return f"<kvd.View {self.dtype}{list(self.shape)} on {self.device}>"

    def numpy(self) -> Any:
        """An ndarray of it. BF16 and FP8 come as their bits (uint16, uint8)."""
        self._store.check()
        if self._memory.on_gpu:
            raise FailedPrecondition(f"this memory is on {self.device}: use torch(), or __cuda_array_interface__")
        array: Any = np.ndarray(self.shape, self._element.numpy, self._memory.buffer, self._offset, self.strides)
        return array

    def torch(self) -> Any:
        """A torch.Tensor of it."""
        self._store.check()
        try:
            import torch
        except ImportError as error:
            raise Unimplemented("torch is not installed here; numpy() needs none") from error
        carrier = _CARRIERS.get(self.dtype, self._element.numpy)
        if self._memory.on_gpu:
            made = torch.as_tensor(_CudaArray(self, carrier), device=self.device)
        else:
            made = _cpu_tensor(torch, self, carrier)
        return made.view(getattr(torch, self.dtype))

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        self._store.check()
        if not self._memory.on_gpu:
            raise AttributeError("__cuda_array_interface__: this memory is not on a GPU")
        return _CudaArray(self, self._element.numpy).__cuda_array_interface__

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=bool(copy))

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (2, self._memory.device) if self._memory.on_gpu else (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule with the element's own type. On a GPU torch makes it."""
        if self._memory.on_gpu:
            return self.torch().__dlpack__(**options)
        array: Any = np.ndarray(self.shape, self._element.numpy, self._memory.buffer, self._offset, self.strides)
        self._store.check()
        if self._memory.read_only:
            raise BufferError("block tables are read-only, which DLPack cannot say: use numpy() or torch()")
        return _with_type(array.__dlpack__(), self._element.dlpack_code)


class _CudaArray:
    """What torch.as_tensor needs; it keeps the mapping alive."""

    def __init__(self, view: View, typestr: str) -> None:
        self._memory = view._memory
        self.__cuda_array_interface__ = {
            "data": (view._memory.address + view._offset, False),
            "shape": view.shape,
            "typestr": typestr,
            "strides": view.strides,
            "version": 3,
        }


def _cpu_tensor(torch: Any, view: View, carrier: str) -> Any:
    """Of writable memory by way of numpy; of read-only memory, too, without torch's warning: not writing it is the
    caller's promise (a write faults)."""
    import warnings

    array: Any = np.ndarray(view.shape, carrier, view._memory.buffer, view._offset, view.strides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int * 2),
        ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


def _with_type(capsule: Any, code: int) -> Any:
    """numpy's capsule of the bits, said to be of their real type: the end of the memory stays numpy's business."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    _DLTensor.from_address(pointer(capsule, b"dltensor")).code = code
    return capsule


class Layers(Sequence[View]):
    """The views of one kind by layer."""

    def __init__(self, views: List[Optional[View]], what: str) -> None:
        self._views, self._what = views, what

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, layer: Any) -> Any:
        if not isinstance(layer, int):
            raise InvalidArgument(f"a layer is an int, not {layer!r}")
        if not 0 <= layer < len(self._views):
            raise IndexError(f"layer {layer}; this pool has {len(self._views)}")
        view = self._views[layer]
        if view is None:
            raise FailedPrecondition(f"layer {layer} has no {self._what}")
        view._store.check()
        return view

    def __iter__(self) -> Iterator[View]:
        return (self[layer] for layer in range(len(self)))


class Pool:
    """One pool of an attached store: `k`, `v`, `kv`, `k_scale`, `v_scale`, `latent`, `packed` by layer, and `table`.

    A layer has what its format says, and the others refuse it."""

    def __init__(self, store: Store, index: int, planes: List[types.PlaneInfo], memory: Any, table: Any) -> None:
        self.info = store.info.pool[index]
        by_slot: Dict[int, List[Optional[View]]] = {s: [None] * self.info.n_layers for s in (K, V, K_SCALE, V_SCALE)}
        both: List[Optional[View]] = [None] * self.info.n_layers
        opaque: Dict[int, List[Optional[View]]] = {f: [None] * self.info.n_layers for f in (LATENT, PACKED)}
        where: Dict[Tuple[int, int], types.PlaneInfo] = {}
        for plane in planes:
            slots = by_slot if plane.format == KV else opaque if plane.slot == K else {}
            slot = plane.slot if plane.format == KV else plane.format
            if plane.layer >= self.info.n_layers or slot not in slots or plane.dtype not in _ELEMENTS:
                raise FailedPrecondition(f"kvd describes a plane that this client does not know: {plane}")
            if plane.format == KV:
                where[plane.layer, plane.slot] = plane
            slots[slot][plane.layer] = _plane(store, self.info, plane, memory)
        for layer in range(self.info.n_layers):
            both[layer] = _pair(store, self.info, where.get((layer, K)), where.get((layer, V)), memory)
        #: By layer [page, kv head, 64, element]; kv: [page, 2, kv head, 64, element], K first.
        self.k, self.v = Layers(by_slot[K], "K"), Layers(by_slot[V], "V")
        self.kv = Layers(both, "K and V of one shape")
        self.k_scale, self.v_scale = Layers(by_slot[K_SCALE], "scales"), Layers(by_slot[V_SCALE], "scales")
        #: By layer, bytes: [page, 64, byte] for all heads; [page, kv head, 64, byte], K and V of a head in one row.
        self.latent = Layers(opaque[LATENT], "latent: it has K and V, or packed rows")
        self.packed = Layers(opaque[PACKED], "packed rows: it has K and V apart, or a latent")
        rows, entries = store.info.max_concurrency, store.info.row_entries
        #: int32 [row, page of the sequence]; -1 outside of what is mapped. Read-only.
        self.table = View(store, table, 0, (rows, entries), (4 * entries, 4), _INT32)


def _strides(plane: types.PlaneInfo) -> Tuple[int, int, int, int]:
    page, head = (plane.nb3, plane.nb2) if plane.order == 0 else (plane.nb2, plane.nb3)
    return page, head, plane.nb1, plane.nb0


def _plane(store: Store, info: types.PoolInfo, plane: types.PlaneInfo, memory: Any) -> View:
    shape: Tuple[int, ...] = (info.pages, plane.n_heads, PAGE_TOKENS, plane.extent)
    strides: Tuple[int, ...] = _strides(plane)
    if plane.format == LATENT:  # of no head
        shape, strides = shape[:1] + shape[2:], strides[:1] + strides[2:]
    return View(store, memory, plane.offset, shape, strides, _ELEMENTS[plane.dtype])


def _pair(
    store: Store, info: types.PoolInfo, k: Optional[types.PlaneInfo], v: Optional[types.PlaneInfo], memory: Any
) -> Optional[View]:
    if (
        k is None
        or v is None
        or v.offset < k.offset
        or k.dtype != v.dtype
        or k.extent != v.extent
        or _strides(k) != _strides(v)
    ):
        return None
    page, *inner = _strides(k)
    return View(
        store,
        memory,
        k.offset,
        (info.pages, 2, k.n_heads, PAGE_TOKENS, k.extent),
        (page, v.offset - k.offset, *inner),
        _ELEMENTS[k.dtype],
    )


def _end_of(info: types.PoolInfo, plane: types.PlaneInfo) -> int:
    """Bytes of the region up to the plane's last element."""
    element = np.dtype(_ELEMENTS[plane.dtype].numpy).itemsize if plane.dtype in _ELEMENTS else 0
    sizes = zip((info.pages, plane.n_heads, PAGE_TOKENS, plane.extent), _strides(plane))
    return plane.offset + element + sum((n - 1) * stride for n, stride in sizes)


class Store:
    """A rank's memory. Made by Client.attach(); a context manager. Views may be made in any thread."""

    def __init__(
        self,
        session: Session,
        info: types.StoreInfo,
        rank: int,
        device: Optional[int],
        deadline_ns: int,
        planes_of: Callable[[int], List[types.PlaneInfo]],
    ) -> None:
        if sys.byteorder != "little":
            raise Unimplemented("kvd's memory is little-endian, and this machine is not")
        self._session, self.info, self.rank = session, info, rank
        self._epoch, self._detached = session.epoch, False
        if not 0 <= rank < info.pool[0].n_ranks:
            raise OutOfRange(f"asked for rank {rank}; store {info.name} has ranks 0 to {info.pool[0].n_ranks - 1}")
        self.pools: List[Pool] = []
        with Descriptors(info.fd_socket, info.fd_token, deadline_ns) as descriptors:
            for index in range(len(info.pool)):
                self.pools.append(self._pool(index, planes_of(index), descriptors, device))
            self._state = self._map_state(descriptors, device)

    def _pool(self, index: int, planes: List[types.PlaneInfo], descriptors: Descriptors, device: Optional[int]) -> Pool:
        info = self.info.pool[index]
        least = max((_end_of(info, plane) for plane in planes), default=0)
        memory = map_region(
            info.planes[self.rank], descriptors, False, f"planes of pool {index}", least, device, self._epoch
        )
        table = map_region(
            info.table[self.rank],
            descriptors,
            True,
            f"block tables of pool {index}",
            4 * self.info.row_entries * self.info.max_concurrency,
            device,
            self._epoch,
        )
        return Pool(self, index, planes, memory, table)

    def _map_state(self, descriptors: Descriptors, device: Optional[int]) -> Any:
        info = self.info
        if not info.state_bytes or not info.state_slots:
            return None
        return map_region(
            info.state[self.rank],
            descriptors,
            False,
            "state slots",
            info.state_stride * info.state_slots,
            device,
            self._epoch,
        )

    # Of the first pool; the others are in `pools`.

    @property
    def k(self) -> Layers:
        return self.pool(0).k

    @property
    def v(self) -> Layers:
        return self.pool(0).v

    @property
    def kv(self) -> Layers:
        return self.pool(0).kv

    @property
    def latent(self) -> Layers:
        return self.pool(0).latent

    @property
    def packed(self) -> Layers:
        return self.pool(0).packed

    @property
    def table(self) -> View:
        return self.pool(0).table

    def pool(self, index: int) -> Pool:
        self.check()
        return self.pools[index]

    def state(self, slot: int) -> View:
        """The state image in a slot, as bytes. Whose slot it is, and since when, is not checked here."""
        self.check()
        if self._state is None:
            raise FailedPrecondition(
                f"store {self.info.name} keeps no state images: set state_bytes = in section [capacity]"
            )
        if not 0 <= slot < self.info.state_slots:
            raise OutOfRange(
                f"asked for state slot {slot}; store {self.info.name} has slots 0 to {self.info.state_slots - 1}"
            )
        return View(self, self._state, slot * self.info.state_stride, (self.info.state_bytes,), (1,), _BYTE)

    def check(self) -> None:
        """Raises where views would be of memory that is no longer this session's."""
        if self._session.pid != os.getpid():
            raise FailedPrecondition(
                f"this store was attached by process {self._session.pid}, of which this one is a "
                "fork: connect and attach anew"
            )
        if self._detached:
            raise FailedPrecondition("this store is detached: attach anew")
        if not self._session.is_current():
            raise Aborted(
                "kvd is another instance than the one that this store was attached to, or its session has "
                "ended: connect and attach anew"
            )

    def detach(self) -> None:
        """Gives no more views. The memory is unmapped when the last array that was made of it is gone."""
        self._detached = True
        self.pools, self._state = [], None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()
