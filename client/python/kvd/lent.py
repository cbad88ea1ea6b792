# SPDX-License-Identifier: Apache-2.0
"""Pages that an engine hands out itself: vLLM and its like, which have a block pool of their own.

    lent = client.lend(pages=4096)          # blank ones, and (adopted) those that an earlier engine named
    ...                                     # write KV into store.k[layer][page]
    chain, stood = lent.name(pages, digests, root)       # complete: found from now on, kept when this process dies
    chain, stood = lent.name([page], [], source=chain, first=len(pages), tail=tokens)  # ... and written up to a column
    client.demote(chain)                    # in the host arena, too
    lent.blank(pages)                       # and now they may be overwritten
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence as Seq, Tuple, Union

from . import _messages as messages
from . import types
from .errors import InvalidArgument
from .names import DIGEST_BYTES, DomainLike, domain_of

if TYPE_CHECKING:
    from .client import Client


class LentPages:
    """Made by Client.lend(). All are given back by close(), by the end of a with, and by the end of the process; what has
    a name stays then. Not for two threads at once."""

    def __init__(self, client: Client, sequence: int, pages: List[int], adopted: int) -> None:
        self._client, self.sequence = client, sequence
        self.pages = set(pages)  #: ids of all that are lent
        self.adopted = set(pages[len(pages) - adopted :])  #: of those, what was complete at the start

    def name(
        self,
        pages: Seq[int],
        digests: Seq[bytes],
        domain: Union[DomainLike, types.Root] = "",
        source: int = 0,
        first: int = 0,
        retention: int = 0,
        replace: bool = False,
        tail: Seq[int] = (),
    ) -> Tuple[int, bool]:
        """The bytes of these blank pages are complete: they continue the first `first` pages of the continuation `source`
        (0: the domain begins). The continuation of all of them; and whether an equal one was there on the device, in
        whose place these are blank. replace: `source` goes where all of it is continued.

        tail: the last page is written up to a column, these are its tokens, and it has no digest. It goes on in place:
        name it again as the first page behind the full ones of the continuation that ends in it, with more tokens behind
        the same, or with its digest when it is complete; that continuation goes then. Aborted: it is being copied."""
        stood = False
        if tail:
            digests = [*digests, bytes(DIGEST_BYTES)]
        root = types.Root() if source else _root(domain)
        for at in range(0, len(pages), messages.MAX_LENT):
            part = slice(at, at + messages.MAX_LENT)
            request = messages.name_lent(
                self.sequence,
                source,
                first,
                root,
                messages.lent_pages(pages[part], digests[part]),
                retention,
                replace or at > 0,
                tail if at + messages.MAX_LENT >= len(pages) else (),
            )
            reply = self._client._ask(request)
            source, first, root, stood = reply.continuation, first + len(pages[part]), types.Root(), reply.stood
        if not pages:
            raise InvalidArgument("no page to name")
        return source, stood

    def blank(self, pages: Seq[int]) -> None:
        """They may be overwritten. FailedPrecondition: a continuation that is not demoted needs one of them (demote,
        shorten or release it first); Aborted: a copy or a running sequence reads one."""
        self._return(pages, True)

    def give_back(self, pages: Seq[int]) -> None:
        """They are lent no more. What has a name stays in the store."""
        self._return(pages, False)
        self.pages -= set(pages)

    def _return(self, pages: Seq[int], again: bool) -> None:
        for at in range(0, len(pages), messages.MAX_LENT):
            part = messages.lent_pages(pages[at : at + messages.MAX_LENT])
            self._client._ask(messages.Request("ReturnLent", sequence=self.sequence, again=again, pages=part))

    def close(self) -> None:
        if self.sequence:
            sequence, self.sequence = self.sequence, 0
            self._client.finish(sequence, False)

    def __enter__(self) -> LentPages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _root(domain: Union[DomainLike, types.Root]) -> types.Root:
    if isinstance(domain, types.Root):
        return domain
    of = domain_of(domain)
    return types.Root(of.root(), of.label)
