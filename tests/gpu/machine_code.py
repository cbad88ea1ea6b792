#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks into the machine code of the CUDA ops for what no run may show:
  - a fault of ptxas of CUDA 13.0: an asynchronous copy (LDGSTS) whose shared address has a part in a uniform register,
    and its descriptor in the next, which is odd: `LDGSTS [R15+UR0], desc[UR1][R4.64]`, an illegal instruction;
  - block and coded kernels without warpgroup products (HGMMA, QGMMA) or bulk copies (UTMALDG, UBLKCP).
Usage: python3 tests/gpu/machine_code.py FILE...     objects, archives of them, or cubins of sm_90
It needs no CUDA toolkit: it unpacks the files itself (libzstd.so.1, which dpkg needs too) and reads the bits.
Exit: 0 nothing found, 1 something found, 77 compressed in a way that it does not know (nvcc of CUDA 12 and before)"""
import ctypes
import re
import struct
import sys

# An instruction has 16 bytes; its lowest twelve bits say what it is. As nvdisasm names them:
COPY, COPY_BESIDE = 0xFAE, 0xDAE  # LDGSTS [R] and LDGSTS [R+UR]; bits 64 to 69: the descriptor's register, or that UR
PRODUCTS = {0x9F0, 0xDF0, 0x9F3, 0xDF3}  # HGMMA, QGMMA
BULK = {0x5B4, 0x3BA}  # UTMALDG, UBLKCP


class Unknown(Exception):
    pass


def judge(kernel, words, seen):
    """What is wrong with a kernel. words: its instructions, two 64-bit halves each. Adds to seen what it has."""
    names = [low & 0xFFF for low, _ in words]
    products, bulk = sum(n in PRODUCTS for n in names), sum(n in BULK for n in names)
    copies = names.count(COPY) + names.count(COPY_BESIDE)
    for kind, n in (("products", products), ("bulk copies", bulk), ("copies", copies)):
        seen[kind] = seen.get(kind, 0) + n
    for at, (low, high) in enumerate(words):
        register = high & 0x3F
        if low & 0xFFF == COPY_BESIDE and register % 2 == 0:
            yield f"{kernel}+{at * 16:#x}: LDGSTS [R+UR{register}], desc[UR{register + 1}] names no descriptor"
    if re.search("attention_(block|coded)", kernel) and not (products and bulk):
        yield f"{kernel}: {products} warpgroup products, {bulk} bulk copies"


def sections(elf):
    """Name and bytes of each section of a 64-bit ELF file."""
    (start,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    for name, kind, _, _, at, length in heads:
        text = heads[names][4] + name
        yield elf[text : elf.index(b"\0", text)].decode(), b"" if kind == 8 else elf[at : at + length]  # 8: no bytes


def unpack(packed, length):
    """A zstd frame, by the library that is in every Debian."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError as e:
        raise Unknown(str(e))
    library.ZSTD_decompress.restype = ctypes.c_size_t
    to = ctypes.create_string_buffer(length)
    got = library.ZSTD_decompress(to, ctypes.c_size_t(length), packed, ctypes.c_size_t(len(packed)))
    if got != length:
        sys.exit(f"FAIL a packed cubin of {length} bytes unpacks to {got}")
    return to.raw


def cubins(fat):
    """The cubins of a fat binary: heads of 16 bytes, each before its entries."""
    at = 0
    while at + 16 <= len(fat):
        magic, _, head, total = struct.unpack_from("<IHHQ", fat, at)
        if magic != 0xBA55ED50:
            at += 8  # they are aligned to 8
            continue
        entry, at = at + head, at + head + total
        while entry < at:
            kind, _, head, room, packed = struct.unpack_from("<HHIQI", fat, entry)
            (length,) = struct.unpack_from("<Q", fat, entry + 56)
            body = fat[entry + head : entry + head + (packed or room)]
            entry += head + room
            if kind != 2:  # 1: PTX
                continue
            if body[:4] == b"\x28\xb5\x2f\xfd":
                body = unpack(body, length)
            if body[:4] != b"\x7fELF":
                raise Unknown("a cubin is compressed neither by zstd nor not at all")
            yield body


def members(archive):
    at = 8
    while at < len(archive):
        length = int(archive[at + 48 : at + 58])
        yield archive[at + 60 : at + 60 + length]
        at += 60 + length + length % 2


def kernels(data):
    """Name and code of every kernel of an archive, an object or a cubin."""
    if data[:8] == b"!<arch>\n":
        for member in members(data):
            yield from kernels(member)
    elif data[:4] == b"\x7fELF":
        for name, body in sections(data):
            if name.startswith(".text.") and struct.unpack_from("<H", data, 18)[0] == 190:  # EM_CUDA
                yield name[6:], list(struct.iter_unpack("<QQ", body))
            elif name == ".nv_fatbin":
                for cubin in cubins(body):
                    yield from kernels(cubin)


def check_itself(code):
    """What it is made to find, it must find: in words that ptxas made, and in this code with its first copy changed."""
    fault = [(0x00000000040F7DAE, 0x000FE2000B901C40)]
    good = [(0x00000000040F7DAE, 0x000FE2000B901C45), (0xFFC000000A197FAE, 0x000FE4000B901C4E)]
    assert list(judge("attention_columns", fault, {})) and not list(judge("attention_columns", good, {}))
    assert list(judge("attention_block", good, {})) and list(judge("attention_coded", [(0x9F0, 0)], {}))
    for kernel, words in code:
        for i, (low, high) in enumerate(words):
            if low & 0xFFF == COPY:
                changed = words[:i] + [(low ^ COPY ^ COPY_BESIDE, high & ~0x3F)] + words[i + 1 :]
                assert len(list(judge(kernel, changed, {}))) == len(list(judge(kernel, words, {}))) + 1
                return


def main(files):
    try:
        code = [kernel for file in files for kernel in kernels(open(file, "rb").read())]
    except Unknown as why:
        print(f"machine_code.py: {why}: skipped")
        return 77
    seen = {}
    bad = [line for kernel, words in code for line in judge(kernel, words, seen)]
    bad += [f"no {kind} in {len(code)} kernels: is this what sm_90 runs?" for kind, n in seen.items() if n == 0]
    bad += [] if code else ["no kernels"]
    for line in bad:
        print("FAIL", line)
    if not bad:
        check_itself(code)
        print(f"{len(code)} kernels looked at:", ", ".join(f"{n} {kind}" for kind, n in seen.items()))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
