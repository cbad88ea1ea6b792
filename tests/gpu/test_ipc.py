# SPDX-License-Identifier: Apache-2.0
"""VIEW-1, VIEW-4, GEOM-4: a consumer without libkvd. PyTorch maps a BF16 page-major pool by its CUDA IPC handle as strided tensors
[page, kv head, 64, head_dim] (the HND layout of paged-attention libraries), gathers one sequence through its block-table row and compares it with
what another process wrote. Usage: test_ipc.py planes.json (written by test_ipc.c)."""
import ctypes
import json
import sys

import torch


class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class Memory:
    """What torch.as_tensor needs to use memory that it does not own."""

    def __init__(self, address, shape, typestr, strides):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr, "strides": strides, "version": 3}


def open_handle(driver, text):
    address, handle = ctypes.c_uint64(), Handle()
    ctypes.memmove(ctypes.byref(handle), bytes.fromhex(text), 64)
    rc = driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1)
    if rc:
        sys.exit(f"cuIpcOpenMemHandle: {rc}")
    return address.value


def expected(d, layer, slot):
    """ipc_value() of ipc_worker.c for all (position, head, element)."""
    p = torch.arange(d["tokens"], device="cuda")[:, None, None]
    h = torch.arange(d["heads"], device="cuda")[None, :, None]
    x = torch.arange(d["head_dim"], device="cuda")[None, None, :]
    return (d["seed"] * 31 + layer * 7 + slot * 13 + h * 17 + p * 5 + x * 3 + p * x) % 128


def main():
    with open(sys.argv[1]) as f:
        d = json.load(f)
    torch.zeros(1, device="cuda")  # makes the primary context current
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
    driver.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]
    base, table_base = open_handle(driver, d["planes_handle"]), open_handle(driver, d["table_handle"])
    table = torch.as_tensor(Memory(table_base, (d["rows"], d["row_entries"]), "<i4", None), device="cuda")
    n_pages = (d["tokens"] + 63) // 64
    row = table[d["row"]]
    ids = row[:n_pages].long()
    assert int(ids.min()) >= 0 and int(ids.max()) < d["pages"] and len(set(ids.tolist())) == n_pages, ids
    wrong = 0
    for plane in d["planes"]:
        nb0, nb1, nb2, nb3 = plane["nb"]
        shape = (d["pages"], d["heads"], 64, d["head_dim"])
        pool = torch.as_tensor(Memory(base + plane["offset"], shape, "<i2", (nb3, nb2, nb1, nb0)), device="cuda").view(torch.bfloat16)
        assert pool.data_ptr() == base + plane["offset"], "a copy, not a mapping"
        tokens = pool[ids].permute(0, 2, 1, 3).reshape(n_pages * 64, d["heads"], d["head_dim"])[: d["tokens"]]
        wrong += int((tokens.to(torch.int64) != expected(d, plane["layer"], plane["slot"])).sum())
    print(f"  torch: {len(d['planes'])} planes of {d['pages']} pages, {d['tokens']} tokens through ids {ids.tolist()[:6]}...: {wrong} wrong")
    torch.cuda.synchronize()
    driver.cuIpcCloseMemHandle(base)
    driver.cuIpcCloseMemHandle(table_base)
    sys.exit(1 if wrong else 0)


main()
