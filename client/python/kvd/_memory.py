# SPDX-License-Identifier: Apache-2.0
"""Regions of kvd's memory in this process: shared memory by name, descriptors, CUDA IPC handles.

A mapping lives as long as something refers to it: the store that is attached, or an array made of it.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
from typing import Any, Optional, Union

from . import types
from ._wire import left_ms
from .errors import (
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    error_of,
)

CUDA_IPC, FD = 1, 2
_ASK = struct.Struct("<QII")


class HostMemory:
    """A region in main memory. `buffer` is what numpy keeps alive."""

    on_gpu = False

    def __init__(self, fd: int, n_bytes: int, read_only: bool) -> None:
        access = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        self.buffer = mmap.mmap(fd, n_bytes, mmap.MAP_SHARED, access)
        self.read_only = read_only
        self.device = -1


class Descriptors:
    """The socket of descriptors (PROTOCOL.md). The token of a store is good for the first request, and later ones carry
    none; of a ring (every) all carry it."""

    def __init__(self, path: str, token: int, deadline_ns: int, every: bool = False) -> None:
        self._path, self._token, self._deadline_ns, self._every = path, token, deadline_ns, every
        self._socket: Optional[socket.socket] = None

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def fetch(self, index: int) -> int:
        """A descriptor, the caller's to close."""
        try:
            answer, fds = self._exchange(_ASK.pack(self._token, index, 0))
        except socket.timeout as error:
            raise DeadlineExceeded(f"kvd did not answer at the socket of descriptors {self._path} in time") from error
        except OSError as error:
            kind = PermissionDenied if isinstance(error, PermissionError) else Unavailable
            raise kind(f"the socket of descriptors {self._path} cannot be used: {error}") from error
        if not self._every:
            self._token = 0
        return self._taken(answer, fds, index)

    def _exchange(self, request: bytes) -> Any:
        if self._socket is None:
            if not self._path:
                raise PermissionDenied("kvd shows this session no descriptors: attach as a worker")
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            self._limit()
            self._socket.connect(self._path)
        self._limit()
        self._socket.send(request)
        self._limit()
        data, ancillary, flags, _ = self._socket.recvmsg(512, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(value[: len(value) - len(value) % fds.itemsize])
        if not fds and flags & socket.MSG_CTRUNC:
            raise ResourceExhausted(
                "kvd's memory comes as descriptors, and this process can open no more (RLIMIT_NOFILE)"
            )
        return data, fds

    def _limit(self) -> None:
        assert self._socket is not None
        self._socket.settimeout(max(0.001, left_ms(self._deadline_ns) / 1e3))

    def _taken(self, answer: bytes, fds: "array.array[int]", index: int) -> int:
        refusal: Optional[Error] = None
        if not answer:
            refusal = Unavailable(f"kvd closed its socket of descriptors {self._path} before the answer: attach again")
        elif len(answer) < 8 or struct.unpack_from("<I", answer, 4)[0] != index:
            refusal = Unavailable(f"the socket of descriptors {self._path} answers out of turn: is it kvd's?")
        else:
            status = struct.unpack_from("<I", answer)[0]
            if status:
                refusal = error_of(status, answer[8:].rstrip(b"\0").decode("ascii", "replace"))
            elif len(fds) != 1:
                refusal = Unavailable(f"the socket of descriptors {self._path} answers without one: is it kvd's?")
        if refusal is None:
            return fds[0]
        for fd in fds:
            os.close(fd)
        raise refusal


def _is_host_memory(fd: int) -> bool:
    """A memfd whose size is sealed: what a host device exports. A GPU's descriptor has no seals."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    wanted: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    return seals & wanted == wanted


def _map_host(fd: int, region: types.RegionInfo, read_only: bool, what: str) -> HostMemory:
    if os.fstat(fd).st_size < region.n_bytes:
        raise FailedPrecondition(f"the {what} cannot be mapped: the object is smaller, its owner has changed")
    try:
        return HostMemory(fd, region.n_bytes, read_only)
    except OSError as error:
        raise ResourceExhausted(f"the {what} cannot be mapped: {error}") from error


def map_region(
    region: types.RegionInfo,
    descriptors: Descriptors,
    read_only: bool,
    what: str,
    least: int,
    device: Optional[int],
    epoch: int,
) -> Any:
    """HostMemory, or the GPU's. device: ordinal of the GPU that the caller runs on; -1: none; None: any."""
    if region.kind == 0:
        raise PermissionDenied(f"kvd shows this session no {what}: attach as a worker")
    if region.kind not in (CUDA_IPC, FD):
        raise FailedPrecondition(f"the {what} are exported in a way ({region.kind}) that this client does not know")
    if region.n_bytes < least:
        raise FailedPrecondition(f"the {what} have {region.n_bytes} bytes, their geometry needs {least}")
    if region.kind == CUDA_IPC:
        return _on_gpu(region, None, what, device, epoch)
    fd = descriptors.fetch(region.fd_index)
    try:
        if _is_host_memory(fd):
            if device is not None and device >= 0:
                raise FailedPrecondition(f'the {what} are in main memory, not on a GPU: attach with device="cpu"')
            return _map_host(fd, region, read_only, what)
        return _on_gpu(region, fd, what, device, epoch)
    finally:
        os.close(fd)


def _on_gpu(region: types.RegionInfo, fd: Optional[int], what: str, device: Optional[int], epoch: int) -> Any:
    from . import _cuda

    if device == -1:
        raise FailedPrecondition(f'the {what} are in GPU memory: attach with device="cuda"')
    return _cuda.map_region(region, fd, what, device, epoch)


def ordinal_of(device: Union[None, str, int, Any]) -> Optional[int]:
    """Of "cuda:1", 1 or a torch.device; -1 of "cpu"; None of None and of "cuda", which is the region's own.

    >>> ordinal_of("cuda:1"), ordinal_of("cpu"), ordinal_of("cuda"), ordinal_of(None)
    (1, -1, None, None)
    """
    if device is None or isinstance(device, int):
        return device
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise InvalidArgument(f'device {device!r} is none: "cpu", "cuda" or "cuda:N"')
    return -1 if kind == "cpu" else int(index) if index else None
