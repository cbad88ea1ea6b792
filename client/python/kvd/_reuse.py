# SPDX-License-Identifier: Apache-2.0
"""How likely a prefix is used again, and when, and what is remembered of prompts: client/policy/reuse.c and
policy_memory.c, which say why, in Python. Equal uses at equal times give equal orders there and here, so every step is
the same arithmetic in the same order.
"""

from __future__ import annotations

import bisect
import math
import struct
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Tuple

BANDS, RATES, PARTS, LEVELS, FACTORS = 56, 33, 8, 12, 5
ORDER = BANDS * RATES * PARTS
HORIZON_NS = 86400 * 10**9
_USES, _GAP, _NEW, _SIZE, _SHARED = range(FACTORS)
_PRIOR, _BEARING_PRIOR, _MOST_BEARING, _SMOOTH = 8.0, 8.0, 1.5, 320.0
_ASSUMED_RETURN, _MOST_LEVEL, _ASSUMED_PAUSE_NS, _MOST_HAZARD = 0.2, 0.4, 60e9, 0.95
_FADE, _LEAST_FACTOR, _MOST_FACTOR, _RATES_AN_OCTAVE, _HARDLY_MORE = 0.97, 0.125, 8.0, 4.0, 1.1
_FROM_END = (0, 1, 2, 4, 8, 16, 64, 2**32 - 1)
_ALL_SHARED = 2**32 - 1


def _single(x: float) -> float:
    """As a C float keeps it."""
    return float(struct.unpack("f", struct.pack("f", x))[0])


def part_begin(prompt_pages: int, part: int) -> int:
    """The pages that are left when the part and all behind it have gone."""
    return max(0, prompt_pages - _FROM_END[part])


def first_part(prompt_pages: int, pages: int) -> int:
    part = 0
    while part < PARTS - 1 and part_begin(prompt_pages, part) >= pages:
        part += 1
    return part


@dataclass
class Class:
    level: List[int]
    rate: int
    factor: float


@dataclass
class _Bearing:
    exponent: float = 1.0
    weight: float = 0.0
    sum: float = 0.0
    surplus: float = 0.0
    spread: float = 0.0


def _level(x: float) -> int:
    return int(min(LEVELS - 1, max(0, math.floor(x))))


def _levels(uses: int, gap_ns: int, prompt_tokens: int, shared_pages: int, new_tokens: int) -> List[int]:
    first, half = uses <= 1, LEVELS // 2
    level = [0] * FACTORS
    level[_USES] = _level(2 * math.log2(uses) + 0.5)
    level[_GAP] = 0 if first else max(1, _level(2 + math.log2(max(1e-9, gap_ns / 30e9))))
    level[_NEW] = 0 if first else (
        _level(2 + max(0, math.log2(new_tokens / 64.0) + 2) / 2) if new_tokens else 1)
    level[_SHARED] = _level(math.log2(shared_pages + 1.0))
    level[_SIZE] = min(_level(math.log2(prompt_tokens / 1024.0 + 1)), half - 1) + (0 if first else half)
    return level


class Model:
    def __init__(self) -> None:
        self.edge = [0] + [
            int(1e9 * math.pow(float(HORIZON_NS) / 1e9, (b - 1) / (BANDS - 1))) for b in range(1, BANDS + 1)]
        self.hazard, self.risk, self.returned = [0.0] * BANDS, [0.0] * BANDS, [0.0] * BANDS
        self.bearing = [_Bearing() for _ in range(BANDS)]
        self.expected = [[_PRIOR] * LEVELS for _ in range(FACTORS)]
        self.observed = [[_PRIOR] * LEVELS for _ in range(FACTORS)]
        self.factor = [[1.0] * LEVELS for _ in range(FACTORS)]
        self.held, self.met = [0.0] * PARTS, [0.0] * PARTS
        self.order: List[int] = []  #: by rising value: (rate * BANDS + band) * PARTS + part
        self.place: List[int] = []
        self.together: List[int] = []  #: the last part that is worth hardly more than this one
        self.refresh()

    def band(self, age_ns: int) -> int:
        return max(0, bisect.bisect_right(self.edge, age_ns, 0, BANDS) - 1)

    def classify(self, level: List[int]) -> Class:
        product = 1.0
        for f in range(FACTORS):
            product *= self.factor[f][level[f]]
        half = (RATES - 1) / 2.0
        rate = min(RATES - 1.0, max(0.0, half + _RATES_AN_OCTAVE * math.log2(product)))
        return Class(level, math.floor(rate + 0.5), _single(math.pow(2.0, (rate - half) / _RATES_AN_OCTAVE)))

    def learn(self, cls: Class, band: int, returned: bool) -> None:
        b = self.bearing[band]
        factor = math.pow(cls.factor, b.exponent)
        chance = 1 - math.pow(1 - self.hazard[band], factor)
        logarithm = math.log(cls.factor)
        b.weight += chance
        b.sum += chance * logarithm
        distance = logarithm - b.sum / b.weight
        b.surplus += (returned - chance + b.exponent * chance * distance) * distance
        b.spread += chance * distance * distance
        for f in range(FACTORS):
            self.expected[f][cls.level[f]] += chance
            self.observed[f][cls.level[f]] += returned
        self.risk[band] += factor
        self.returned[band] += returned

    def reach(self, prompt_pages: int, pages: int, shared: int) -> None:
        end = pages
        if shared * 2 < prompt_pages:
            return
        for part in range(PARTS):
            begin = part_begin(prompt_pages, part)
            if begin >= end:
                continue
            self.held[part] += 1
            self.met[part] += 2 * shared > begin + end
            end = begin

    def refresh(self) -> None:
        self._fold()
        self._find_bearings()
        reach = self._find_reach()
        self._find_hazards()
        value: List[float] = []
        for rate in range(RATES):
            for index in self._indexes(rate):
                value += [index * each for each in reach]
        self.order = sorted(range(ORDER), key=lambda i: (value[i], -(i // PARTS % BANDS), i))
        self.place = [0] * ORDER
        for at, i in enumerate(self.order):
            self.place[i] = at

    def _fold(self) -> None:
        for f in range(FACTORS):
            for at in range(LEVELS):
                before = self.factor[f][at]
                now = before * math.pow(self.observed[f][at] / self.expected[f][at], 1.0 / FACTORS)
                self.factor[f][at] = now = min(_MOST_FACTOR, max(_LEAST_FACTOR, now))
                self.expected[f][at] *= now / before
                self.observed[f][at] = _PRIOR + _FADE * (self.observed[f][at] - _PRIOR)
                self.expected[f][at] = _PRIOR + _FADE * (self.expected[f][at] - _PRIOR)
        for b in range(BANDS):
            self.risk[b] *= _FADE
            self.returned[b] *= _FADE

    def _find_bearings(self) -> None:
        before = 1.0
        for i, b in enumerate(self.bearing):
            before = min(_MOST_BEARING, max(0.0, (b.surplus + _BEARING_PRIOR * before) / (b.spread + _BEARING_PRIOR)))
            self.bearing[i] = _Bearing(before, _FADE * b.weight, _FADE * b.sum, _FADE * b.surplus, _FADE * b.spread)

    def _find_reach(self) -> List[float]:
        least, reach = 0.0, [0.0] * PARTS
        together = list(range(PARTS))
        for part in range(PARTS):
            reach[part] = least = max(least, (self.met[part] + _PRIOR) / (self.held[part] + _PRIOR))
            self.held[part] *= _FADE
            self.met[part] *= _FADE
            for p in range(part):
                if reach[part] <= reach[p] * _HARDLY_MORE:
                    together[p] = part
        self.together = together
        return reach

    def _find_hazards(self) -> None:
        level = _ASSUMED_RETURN
        for b in range(BANDS):
            share = float(self.edge[b + 1] - self.edge[b]) / (float(self.edge[b + 1]) + _ASSUMED_PAUSE_NS)
            hazard = (self.returned[b] + _SMOOTH * level * share) / (self.risk[b] + _SMOOTH)
            self.hazard[b] = min(_MOST_HAZARD, hazard)
            level = min(_MOST_LEVEL, self.hazard[b] / share)

    def _indexes(self, rate: int) -> List[float]:
        factor = math.pow(2.0, (rate - (RATES - 1) / 2.0) / _RATES_AN_OCTAVE)
        alive, hold = [1.0], []
        for b in range(BANDS):
            alive.append(alive[b] * math.pow(1 - self.hazard[b], math.pow(factor, self.bearing[b].exponent)))
            hold.append((alive[b] + alive[b + 1]) / 2 * float(self.edge[b + 1] - self.edge[b]) / 1e9)
        index = []
        for age in range(BANDS):
            best, held = 0.0, 0.0
            for b in range(age, BANDS):
                held += hold[b]
                ratio = (alive[age] - alive[b + 1]) / held
                if ratio > best:
                    best = ratio
            index.append(best)
        return index


# ---- memory ----

_STEP, _WAYS, _ENTRIES_A_USE, _REFRESH = 8, 8, 8, 64


@dataclass
class Use:
    at_ns: int
    gap_ns: int
    uses: int
    pages: int
    tokens: int
    cls: Class
    returned: bool = False
    domain: bytes = b""  #: root of the prompt


def _pages_at(i: int) -> int:
    return i + 1 if i < _STEP else (i - _STEP + 2) * _STEP


def _entries_of(pages: int) -> int:
    return min(pages, _STEP) if pages < 2 * _STEP else pages // _STEP + _STEP - 1


@dataclass
class Memory:
    """Prompts of the last day, also of those whose KV is gone."""

    most: int
    model: Model = field(default_factory=Model)
    uses: Dict[int, Use] = field(default_factory=dict)  #: the last `most`
    next: int = 1

    def __post_init__(self) -> None:
        self._passed = [1] * BANDS
        self._n_sets = 1
        while self._n_sets * _WAYS < self.most * _ENTRIES_A_USE:
            self._n_sets *= 2
        self._sets: Dict[int, List[List[int]]] = {}  # [digest, use]

    def use(self, number: int) -> Optional[Use]:
        return self.uses.get(number)

    def _set_of(self, digest: bytes) -> Tuple[int, int]:
        key = int.from_bytes(digest[:8], "little") | 1
        return key, key >> 8 & (self._n_sets - 1)

    def _seek_digest(self, digest: bytes, now_ns: int) -> int:
        key, at = self._set_of(digest)
        for name, number in self._sets.get(at, ()):
            if name == key:
                use = self.use(number)
                return number if use is not None and now_ns - use.at_ns <= HORIZON_NS else 0
        return 0

    def _put_digest(self, digest: bytes, number: int) -> None:
        key, at = self._set_of(digest)
        ways = self._sets.setdefault(at, [])
        for way in ways:
            if way[0] == key:
                way[1] = number
                return
        if len(ways) < _WAYS:
            ways.append([key, number])
        else:
            oldest = min(range(_WAYS), key=lambda w: ways[w][1])
            ways[oldest] = [key, number]

    def _seek_prefix(self, digests: Callable[[int], bytes], pages: int, now_ns: int) -> Tuple[int, int]:
        low, high, found, shared = 0, _entries_of(pages), 0, 0
        while low < high:
            middle = (low + high) // 2
            number = self._seek_digest(digests(_pages_at(middle) - 1), now_ns)
            if number:
                found, shared, low = number, _pages_at(middle), middle + 1
            else:
                high = middle
        return found, shared

    def _pass_bands(self, now_ns: int) -> None:
        for b in range(BANDS):
            self._passed[b] = max(self._passed[b], self.next - self.most)
            while self._passed[b] < self.next:
                use = self.uses[self._passed[b]]
                if now_ns - use.at_ns < self.model.edge[b + 1]:
                    break
                if not use.returned:
                    self.model.learn(use.cls, b, False)
                self._passed[b] += 1

    def _levels_of(self, before: int, shared: int, tokens: int, now_ns: int) -> Tuple[int, int, List[int]]:
        """Uses so far, the typical gap, and the levels of a use now."""
        use = self.use(before)
        if use is None:
            return 1, 0, _levels(1, 0, tokens, 0, 0)
        returns = shared * 2 >= use.pages
        if returns and not use.returned:
            use.returned = True
            self.model.learn(use.cls, self.model.band(now_ns - use.at_ns), True)
        gap = now_ns - use.at_ns
        gap = (int(math.sqrt(use.gap_ns) * math.sqrt(gap)) if use.gap_ns else gap) or 1
        uses = use.uses + 1 if returns else 2
        new = max(0, tokens - use.tokens)
        return uses, gap, _levels(uses, gap, tokens, _ALL_SHARED if returns else shared, new)

    def note(self, digests: Callable[[int], bytes], pages: int, tokens: int, now_ns: int) -> int:
        last = self.use(self.next - 1)
        now_ns = max(now_ns, last.at_ns) if last is not None else now_ns
        self._pass_bands(now_ns)
        before, shared = self._seek_prefix(digests, pages, now_ns)
        uses, gap, level = self._levels_of(before, shared, tokens, now_ns)
        if self.next % _REFRESH == 0:
            self.model.refresh()
        number = self.next
        self.next += 1
        self.uses.pop(number - self.most, None)
        self.uses[number] = Use(now_ns, gap, uses, pages, tokens, self.model.classify(level))
        for i in range(_entries_of(pages)):
            self._put_digest(digests(_pages_at(i) - 1), number)
        return number
