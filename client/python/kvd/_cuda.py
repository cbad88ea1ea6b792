# SPDX-License-Identifier: Apache-2.0
"""GPU memory of kvd in this process, through libcuda alone: by CUDA IPC handle, or by descriptor.

Everything happens in the primary context of the region's device, which is what torch and the CUDA runtime use.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any, Dict, Optional, Tuple

from . import types
from .errors import FailedPrecondition, PermissionDenied, Unimplemented

_LAZY_PEER_ACCESS = 1
_POSIX_FD = 1
_DEVICE_LOCATION = 1
_PINNED = 1
_READ_WRITE = 3


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class _Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int)]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
        ("reserved", ctypes.c_ubyte * 24),
    ]


class _Driver:
    """The functions that are used. A failure is raised with the driver's own words."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unimplemented(f"the store is in GPU memory, and this machine has no CUDA driver: {error}") from error
        self._lib.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, _IpcHandle, ctypes.c_uint]
        self._lib.cuMemImportFromShareableHandle.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self.call("cuInit", 0)
        self._contexts: Dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(code, ctypes.byref(text))
            raise FailedPrecondition(f"{name}: {(text.value or b'?').decode()} ({code})")

    def device_of(self, uuid: bytes) -> int:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        for ordinal in range(count.value):
            device, here = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            self.call("cuDeviceGet", ctypes.byref(device), ordinal)
            self.call("cuDeviceGetUuid_v2", ctypes.byref(here), device)
            if bytes(here) == uuid:
                return ordinal
        raise FailedPrecondition(
            f"the store is on GPU {uuid.hex()}, which this process does not see " "(CUDA_VISIBLE_DEVICES?)"
        )

    def enter(self, ordinal: int) -> None:
        """Pushes the primary context, retained once for the life of the process."""
        if ordinal not in self._contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
            self._contexts[ordinal] = context
        self.call("cuCtxPushCurrent_v2", self._contexts[ordinal])

    def leave(self) -> None:
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class GpuMemory:
    """A region on a GPU. What is made of it refers to it, and its end unmaps; at the process's the driver does."""

    on_gpu = True
    read_only = False  # CUDA maps nothing read-only: not writing tables is the caller's promise

    def __init__(self, driver: _Driver, ordinal: int, address: int, reserved: int, epoch: int) -> None:
        self.device, self.address, self.epoch = ordinal, address, epoch
        finalizer = weakref.finalize(self, _unmap, driver, ordinal, address, reserved)
        finalizer.atexit = False


_lock = threading.Lock()
_driver: Optional[_Driver] = None
#: The driver opens a handle once a process.
_by_handle: "weakref.WeakValueDictionary[bytes, GpuMemory]" = weakref.WeakValueDictionary()


def _unmap(driver: _Driver, ordinal: int, address: int, reserved: int) -> None:
    driver.enter(ordinal)
    try:
        if reserved:
            driver.call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(reserved))
            driver.call("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(reserved))
        else:
            driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
    finally:
        driver.leave()


def map_region(region: types.RegionInfo, fd: Optional[int], what: str, device: Optional[int], epoch: int) -> GpuMemory:
    """device: ordinal of the GPU that the caller runs on; None: the region's."""
    global _driver
    with _lock:
        if _driver is None:
            _driver = _Driver()
        ordinal = _driver.device_of(region.uuid)
        if device is not None and device != ordinal:
            raise FailedPrecondition(
                f"the {what} are on cuda:{ordinal}, this process says it runs on cuda:{device}: "
                "attach the rank of this device"
            )
        if fd is None and not any(region.ipc_handle):
            raise PermissionDenied(f"kvd shows this session no {what}: attach as a worker")
        known = None if fd is not None else _by_handle.get(region.ipc_handle)
        if known is not None and known.epoch != epoch:
            raise FailedPrecondition(
                "this process still has memory of an earlier kvd mapped under the same handle: drop "
                "its store and tensors first"
            )
        if known is not None:
            return known
        _driver.enter(ordinal)
        try:
            address, reserved = _open(_driver, region, fd, ordinal)
        finally:
            _driver.leave()
        made = GpuMemory(_driver, ordinal, address, reserved, epoch)
        if fd is None:
            _by_handle[region.ipc_handle] = made
        return made


def _open(driver: _Driver, region: types.RegionInfo, fd: Optional[int], ordinal: int) -> Tuple[int, int]:
    """Address, and bytes that are reserved for it (0: by handle)."""
    address = ctypes.c_uint64()
    if fd is None:
        handle = _IpcHandle()
        ctypes.memmove(ctypes.byref(handle), region.ipc_handle, 64)
        driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, _LAZY_PEER_ACCESS)
        return address.value, 0
    properties = _Properties(kind=_PINNED, handles=_POSIX_FD, location=_Location(_DEVICE_LOCATION, ordinal))
    grain = ctypes.c_size_t()
    driver.call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(properties), 0)
    n_bytes = -(-region.n_bytes // grain.value) * grain.value
    memory = ctypes.c_uint64()
    driver.call("cuMemImportFromShareableHandle", ctypes.byref(memory), fd, _POSIX_FD)
    try:
        driver.call(
            "cuMemAddressReserve",
            ctypes.byref(address),
            ctypes.c_size_t(n_bytes),
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
        )
        driver.call("cuMemMap", address, ctypes.c_size_t(n_bytes), ctypes.c_size_t(0), memory, ctypes.c_uint64(0))
        access = _Access(_Location(_DEVICE_LOCATION, ordinal), _READ_WRITE)
        driver.call("cuMemSetAccess", address, ctypes.c_size_t(n_bytes), ctypes.byref(access), ctypes.c_size_t(1))
    finally:
        driver.call("cuMemRelease", memory)  # the mapping holds it
    return address.value, n_bytes
