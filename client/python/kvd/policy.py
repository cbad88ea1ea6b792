# SPDX-License-Identifier: Apache-2.0
"""A policy over kvd's exact answers: which continuations give way so that an activation fits. kvd decides nothing: it is
told the order, and answers how far one must go in it.

The others go first. Where even all of them would not do, the source goes, too: it is moved instead of forked, and if
that does not help, it is a victim like the others, and the activation starts from nothing. One message each.
"""

from __future__ import annotations

import dataclasses
from typing import Iterator

from . import _messages as messages
from . import types
from ._session import Steps
from .errors import Error, Aborted, InvalidArgument, ResourceExhausted


def choose_victims(want: types.Activation) -> Steps[types.Activation]:
    """The activation with victims and revision set, and where nothing else does with less of its source."""
    first, more = None, False
    for trial in _ladder(dataclasses.replace(want, victims=(), revision=0)):
        try:
            victims, more, plan = messages.read_choice((yield messages.choose(trial)))
        except Aborted:
            if first is None:
                raise
            continue  # others read the source: it cannot be moved now
        if plan.feasibility == types.Feasibility.READY:
            return dataclasses.replace(trial, victims=victims, revision=plan.revision)
        if plan.feasibility == types.Feasibility.INFEASIBLE:
            needed = plan.pages[0].needed if plan.pages else 0
            raise InvalidArgument(f"this activation needs {needed} pages of pool 0 and never fits this store: shorten "
                                  "the prompt or the output")
        first = first or plan
    assert first is not None
    raise _short(first, more)


def _ladder(want: types.Activation) -> Iterator[types.Activation]:
    yield want
    if want.source and want.keep:
        yield dataclasses.replace(want, keep=False)
    if want.source:
        yield dataclasses.replace(want, source=0, frontier=0, keep=False)


def _short(plan: types.Plan, more: bool) -> Error:
    if more:
        return ResourceExhausted(f"needs more than {messages.MAX_VICTIMS} victims at once: release some first, then choose "
                                 "again")
    needs = [(plan.rows, "rows"), (plan.sequences, "sequences"), (plan.state_slots, "state slots"),
             (plan.membership, "membership entries"), (plan.continuations, "descriptors of continuations")]
    needs += [(need, f"pages of pool {i}") for i, need in enumerate(plan.pages)]
    need, what = next(((need, what) for need, what in reversed(needs) if need.short_by), needs[0])
    return ResourceExhausted(f"needs {need.needed} {what}, and {need.short_by} more than there would be even if "
                             "everything idle went: sequences that run, or copies under way, hold them; wait for one to "
                             "end, or ask for less output")
