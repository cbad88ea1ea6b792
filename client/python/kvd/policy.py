# SPDX-License-Identifier: Apache-2.0
"""A policy over kvd's exact answers: which continuations give way so that an activation fits. kvd decides nothing.

Candidates are ordered by retention class, then by last use. The victims are the shortest prefix of this order for
which the plan is ready, less those whose going frees nothing there. With a host arena they are demoted; where that
leaves the arena short, the shortest prefix of victims and demoted ones together, in the same order, is released.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, List, NamedTuple, Sequence, Tuple

from . import _messages as messages
from . import _operations as operations
from . import types
from ._session import Steps
from .errors import Aborted, Error, InvalidArgument, NotFound, ResourceExhausted

_ATTEMPTS = 3


class _Victim(NamedTuple):
    """In the order in which they go."""

    retention: int
    used: int
    continuation: int
    exclusive: int  # device pages that its going alone would free
    demoted: bool


class _Trial(NamedTuple):
    want: types.Activation
    plan: types.Plan

    @property
    def ready(self) -> bool:
        return self.plan.feasibility == types.Feasibility.READY

    @property
    def suffices(self) -> bool:
        """Nothing is short, or only the arena is."""
        p = self.plan
        others = [p.rows, p.sequences, p.continuations, p.state_slots, p.membership, *p.pages]
        return self.ready or bool(p.arena.short_by and not any(need.short_by for need in others))


def choose_victims(want: types.Activation) -> Steps[types.Activation]:
    """The activation with victims, demote and revision set."""
    for attempt in range(_ATTEMPTS):
        try:
            return (yield from _choose(want))
        except (Aborted, NotFound):
            if attempt + 1 == _ATTEMPTS:
                raise
        # What was listed has gone or is claimed: look again.
    raise AssertionError


def _try(want: types.Activation, victims: Sequence[_Victim], released: int) -> Steps[_Trial]:
    """The plan with these victims, of which the first `released` are released and the others demoted."""
    bits = sum(1 << i for i in range(released, len(victims)))
    recipe = dataclasses.replace(want, victims=tuple(v.continuation for v in victims), demote=bits, revision=0)
    plan = yield from operations.plan(recipe)
    return _Trial(dataclasses.replace(recipe, revision=plan.revision), plan)


def _shortest(
    n: int, make: Callable[[int], Steps[_Trial]], fits: Callable[[_Trial], bool]
) -> Steps[Tuple[int, _Trial]]:
    """The least count in (0, n] that fits, of which n is known to."""
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if fits((yield from make(middle))):
            high = middle
        else:
            low = middle
    trial = yield from make(high)
    if not fits(trial):
        raise Aborted("the store changed while victims were chosen")
    return high, trial


def _choose(want: types.Activation) -> Steps[types.Activation]:
    trial = yield from _try(want, (), 0)
    if trial.ready:
        return trial.want
    if trial.plan.feasibility == types.Feasibility.INFEASIBLE:
        needed = trial.plan.pages[0].needed if trial.plan.pages else 0
        raise InvalidArgument(
            f"this activation needs {needed} pages of pool 0 and never fits this store: shorten the "
            "prompt or the output"
        )
    stats = messages.read(types.Stats, (yield messages.Request("Stats")))
    infos = yield from operations.everything("ListContinuations", types.ContinuationInfo)
    everyone = sorted(
        _Victim(i.retention, i.used, i.continuation, sum(i.exclusive_pages), i.demoted)
        for i in infos
        if not i.claimed and i.continuation != want.source
    )
    return (yield from _choose_among(want, everyone, stats.host_capacity > 0))


def _choose_among(want: types.Activation, everyone: List[_Victim], demote: bool) -> Steps[types.Activation]:
    most = messages.MAX_VICTIMS
    best = [v for v in everyone if not v.demoted][:most]
    demoted = [v for v in everyone if v.demoted]
    trial = yield from _try(want, best, 0 if demote else len(best))
    if (trial.plan.membership.short_by or trial.plan.continuations.short_by) and (
        demote or demoted
    ):  # which demoted ones hold, too
        best, demote = everyone[:most], False
        trial = yield from _try(want, best, len(best))
    if not trial.suffices and len(best) == most and len(everyone) > most:
        best = sorted((v for v in everyone if not v.demoted or not demote), key=lambda v: (-v.exclusive, v))[:most]
        trial = yield from _try(want, best, 0 if demote else len(best))
    if not trial.suffices:
        raise _short(trial.plan, len(best), len(everyone))
    chosen, trial = yield from _shorten(want, best, demote)
    if trial.ready:
        return trial.want
    return (yield from _release_some(want, chosen, demoted))


def _shorten(want: types.Activation, best: List[_Victim], demote: bool) -> Steps[Tuple[List[_Victim], _Trial]]:
    def make(n: int) -> Steps[_Trial]:
        return (yield from _try(want, best[:n], 0 if demote else n))

    n, trial = yield from _shortest(len(best), make, lambda t: t.suffices)
    chosen = best[:n]
    useful = [v for v in chosen if v.exclusive]
    if useful and len(useful) < n:  # pages that victims share among each other are exclusive to none: ask
        fewer = yield from _try(want, useful, 0 if demote else len(useful))
        if fewer.suffices:
            return useful, fewer
    return chosen, trial


def _release_some(want: types.Activation, chosen: List[_Victim], demoted: List[_Victim]) -> Steps[types.Activation]:
    """The arena cannot hold the chosen ones: of these and the demoted ones the least valuable are released."""
    going = sorted(chosen + demoted)[: messages.MAX_VICTIMS]

    def make(n: int) -> Steps[_Trial]:
        return (yield from _try(want, going[:n] + [v for v in going[n:] if not v.demoted], n))

    _, trial = yield from _shortest(len(going), make, lambda t: t.ready)
    return trial.want


def _short(plan: types.Plan, victims: int, seen: int) -> Error:
    needs = [
        (plan.rows, "rows"),
        (plan.sequences, "sequences"),
        (plan.state_slots, "state slots"),
        (plan.membership, "membership entries"),
        (plan.continuations, "descriptors of continuations"),
    ]
    needs += [(need, f"pages of pool {i}") for i, need in enumerate(plan.pages)]
    need, what = next(((need, what) for need, what in reversed(needs) if need.short_by), needs[0])
    return ResourceExhausted(
        f"needs {need.needed} {what}; even with {victims} of {seen} releasable continuations gone "
        f"there are {need.available}, {need.short_by} short: finish sequences, or ask for less "
        "output"
    )
