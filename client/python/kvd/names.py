# SPDX-License-Identifier: Apache-2.0
"""Names of prefixes: a BLAKE2b-256 chain over pages of 64 tokens (PROTOCOL.md, Names).

>>> chain = Chain("llama")
>>> chain.push(range(130))
>>> chain.tokens, chain.pages, list(chain.tail)
(130, 2, [128, 129])
>>> chain.digest(1).hex()[:16]
'd3db6f1bf15ebc41'
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Union

from .errors import InvalidArgument, OutOfRange

PAGE_TOKENS = 64
DIGEST_BYTES = 32
_PAGE_BYTES = 4 * PAGE_TOKENS

#: Tokens of a prompt: a sequence of ints, array('I'), or anything with tolist() or the buffer of 32-bit integers
#: (numpy, torch).
Tokens = Any


@dataclass(frozen=True)
class Domain:
    """What KV depends on besides tokens. A hit never crosses domains. A string in place of a domain is its model. The
    label is for people, in lists; it is no part of the root."""

    model: str = ""
    adapter: str = ""
    tenant: str = ""
    modality: str = ""
    label: str = ""

    def root(self) -> bytes:
        """digest[-1]: 32 bytes."""
        parts = [b"kvd.chain.1"]
        for tag, text in ((b"M", self.model), (b"A", self.adapter), (b"T", self.tenant), (b"X", self.modality)):
            field = text.encode()
            parts.append(tag + len(field).to_bytes(4, "little") + field)
        return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


DomainLike = Union[Domain, str]


def domain_of(domain: DomainLike) -> Domain:
    return domain if isinstance(domain, Domain) else Domain(domain)


def tokens_of(tokens: Tokens) -> "array[int]":
    """Tokens as an array of u32. InvalidArgument where one is none."""
    if isinstance(tokens, array) and tokens.typecode == "I":
        return tokens
    kind = getattr(getattr(tokens, "dtype", None), "str", "")
    try:
        if kind in ("<u4", "|u4"):
            made = array("I")
            made.frombytes(tokens.tobytes())
            return made
        return array("I", tokens.tolist() if hasattr(tokens, "tolist") else tokens)
    except (OverflowError, TypeError) as error:
        raise InvalidArgument(f"tokens are integers from 0 to 4294967295: {error}") from error


def _little_endian(tokens: "array[int]") -> bytes:
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


class Chain:
    """The digests of all full pages, and the tokens after the last one. Not to be changed by two threads at once."""

    def __init__(self, domain: DomainLike = "", tokens: Tokens = ()) -> None:
        self.domain = domain_of(domain)
        self._root = self.domain.root()
        self._digests = bytearray()  # one after the other
        self._tail = array("I")
        self.push(tokens)

    def push(self, tokens: Tokens) -> None:
        """Appends tokens."""
        self._tail = self._tail + tokens_of(tokens)
        full = len(self._tail) // PAGE_TOKENS
        if not full:
            return
        raw = _little_endian(self._tail)
        digest = bytes(self._digests[-DIGEST_BYTES:]) or self._root
        made = []
        for at in range(0, full * _PAGE_BYTES, _PAGE_BYTES):
            digest = blake2b(digest + raw[at : at + _PAGE_BYTES], digest_size=DIGEST_BYTES).digest()
            made.append(digest)
        self._digests += b"".join(made)
        self._tail = self._tail[full * PAGE_TOKENS :]

    def truncate(self, tokens: int) -> None:
        """To a length in the tail or at a page boundary: the tokens of full pages are not kept."""
        if not 0 <= tokens <= self.tokens:
            raise OutOfRange(f"asked to truncate a chain of {self.tokens} tokens to {tokens}")
        boundary = self.pages * PAGE_TOKENS
        if tokens >= boundary:
            self._tail = self._tail[: tokens - boundary]
        elif tokens % PAGE_TOKENS:
            raise InvalidArgument(f"{tokens} is inside a full page, whose tokens the chain does not keep")
        else:
            del self._digests[tokens // PAGE_TOKENS * DIGEST_BYTES :]
            self._tail = array("I")

    @property
    def root(self) -> bytes:
        """Of its domain."""
        return self._root

    @property
    def tokens(self) -> int:
        return self.pages * PAGE_TOKENS + len(self._tail)

    @property
    def pages(self) -> int:
        return len(self._digests) // DIGEST_BYTES

    @property
    def tail(self) -> "array[int]":
        return self._tail[:]

    def digest(self, page: int) -> bytes:
        return self.digests(page, page + 1)

    def digests(self, first: int, end: int) -> bytes:
        """Those of pages [first, end), one after the other."""
        return bytes(self._digests[first * DIGEST_BYTES : end * DIGEST_BYTES])
