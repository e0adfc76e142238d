"""Choose clocks that the hardware has, near durations that it has not, within the deadline.

``native/round.c`` says how; the same in Python, with fewer attempts, is for where nothing could be
compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulery.pipeline.native.library import Rounder, available

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.pipeline.network import Adjacency, Network


# What a query tries: wishes of iterations that much shorter, each rounded in so many ways.
# Wishing for a little less leaves more slack to be spent on the best bargains.
THOROUGH = ((1.0, 4), (0.998, 4), (0.995, 4), (0.99, 4))
# By the most instructions; more tries would take milliseconds.
_TRIES = ((512, THOROUGH[:3]), (2048, ((1.0, 2), (0.995, 1))))
_TRIES_OF_LARGE = ((1.0, 2),)
_SWEEPS = 8
_FADE = 0.6
_ALLOWANCES = (1e-12, -1e-13)


# Instructions that trials of single faster ones may look at, so that they take a few tenths of a
# millisecond; of a thorough plan, a few milliseconds. Fewer trials than a handful find nothing.
_LOOKS, _THOROUGH_LOOKS = 3_000, 400_000
_LEAST_TRIALS = 4


class Round(Protocol):
    """Turns wished durations into clocks."""

    def __call__(
        self, wish: NDArray[np.float64], deadline_seconds: float, attempts: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """A point for each instruction, and when it starts."""
        ...

    def improve(
        self, chosen: NDArray[np.int32], deadline_seconds: float, trials: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """A plan that costs no more, after so many trials, and when instructions start."""
        ...


@dataclass(frozen=True, slots=True)
class Points:
    """All curves of a network end to end.

    Attributes:
        first: (curves + 1,), where each curve begins.
        seconds: (points,).
        cost: (points,).
        on_hull: (points,).
        point: (points,), position among the profile's points.
    """

    first: NDArray[np.int32]
    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    on_hull: NDArray[np.uint8]
    point: NDArray[np.int64]


def points_of(network: Network) -> Points:
    """The curves of a network end to end."""
    curves = network.curves
    return Points(
        first=np.cumsum([0, *(len(curve.seconds) for curve in curves)]).astype(np.int32),
        seconds=np.concatenate([curve.seconds for curve in curves]),
        cost=np.concatenate([curve.cost for curve in curves]),
        on_hull=np.concatenate([curve.on_hull for curve in curves]),
        point=np.concatenate([curve.point for curve in curves]),
    )


def tries_for(instructions: int) -> tuple[tuple[float, int], ...]:
    """What a query may try in about a millisecond: (share of the deadline, ways of rounding)."""
    for most, tries in _TRIES:
        if instructions <= most:
            return tries
    return _TRIES_OF_LARGE


def trials_for(instructions: int, *, thorough: bool) -> int:
    """How many instructions a query may try to make faster."""
    trials = (_THOROUGH_LOOKS if thorough else _LOOKS) // instructions
    return trials if trials >= _LEAST_TRIALS else 0


def rounder(network: Network, points: Points) -> Round:
    """What turns (wished durations, deadline, attempts) into (points, starts)."""
    if available():
        before, after = network.before, network.after
        return Rounder(
            (
                network.order,
                *(before.first, before.node, before.seconds),
                *(after.first, after.node, after.seconds),
                network.curve_of,
                *(points.first, points.seconds, points.cost, points.on_hull),
            )
        )
    return PlainRounder(network, points)


class PlainRounder:
    """The first attempt of the compiled core, in Python."""

    def __init__(self, network: Network, points: Points) -> None:
        self._network = network
        self._order = network.order.tolist()
        self._before = _lists(network.before)
        self._after = _lists(network.after)
        curve_of = network.curve_of.tolist()
        first = points.first.tolist()
        self._choices = [range(first[curve], first[curve + 1]) for curve in curve_of]
        self._seconds: list[float] = points.seconds.tolist()
        self._cost: list[float] = points.cost.tolist()
        self._on_hull: list[int] = points.on_hull.tolist()

    def __call__(
        self, wish: NDArray[np.float64], deadline_seconds: float, attempts: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """A point for each instruction, and when it starts; ``attempts`` makes no difference."""
        del attempts
        for allowance in _ALLOWANCES:
            deadline = deadline_seconds * (1.0 + allowance)
            chosen = self._diffuse(wish.tolist(), deadline)
            self._spend(chosen, deadline)
            lasts = np.array([self._seconds[point] for point in chosen])
            starts = self._network.starts(lasts)
            if float(np.max(starts + lasts)) <= deadline_seconds:
                return np.array(chosen, dtype=np.int32), starts
        fastest = np.array([choices[0] for choices in self._choices], dtype=np.int32)
        return fastest, self._network.starts(self._network.extreme(0))

    def improve(
        self, chosen: NDArray[np.int32], deadline_seconds: float, trials: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The same plan: in Python trials would take too long."""
        del deadline_seconds, trials
        return chosen, self._network.starts(np.array(self._seconds)[chosen])

    def _starts(self, lasts: list[float]) -> list[float]:
        starts = [0.0] * len(lasts)
        for i in self._order:
            starts[i] = self._earliest(i, starts, lasts)
        return starts

    def _ends(self, lasts: list[float], deadline: float) -> list[float]:
        ends = [deadline] * len(lasts)
        for i in reversed(self._order):
            ends[i] = self._latest(i, ends, lasts, deadline)
        return ends

    def _earliest(self, i: int, starts: list[float], lasts: list[float]) -> float:
        return max((starts[j] + lasts[j] + lag for j, lag in self._before[i]), default=0.0)

    def _latest(self, i: int, ends: list[float], lasts: list[float], deadline: float) -> float:
        due = min((ends[j] - lasts[j] - lag for j, lag in self._after[i]), default=deadline)
        return min(due, deadline)

    def _diffuse(self, wish: list[float], deadline: float) -> list[int]:
        starts, ends = self._starts(wish), [deadline] * len(wish)
        lasts, chosen = [0.0] * len(wish), [0] * len(wish)
        for i in reversed(self._order):
            ends[i] = self._latest(i, ends, lasts, deadline)
            chosen[i] = self._nearest(i, wish[i], ends[i] - starts[i])
            lasts[i] = self._seconds[chosen[i]]
        return chosen

    def _nearest(self, i: int, wish: float, room: float) -> int:
        best = self._choices[i][0]
        for point in self._choices[i]:
            if self._seconds[point] > room:
                break
            if self._on_hull[point]:
                best = point
                if self._seconds[point] >= wish * (1.0 - 1e-9):
                    break
        return best

    def _spend(self, chosen: list[int], deadline: float) -> None:
        bargain = max(map(self._bargain, self._choices, chosen))
        for sweep in range(_SWEEPS):
            bargain = 0.0 if sweep == _SWEEPS - 1 else bargain * _FADE
            lasts = [self._seconds[point] for point in chosen]
            starts, ends = self._starts(lasts), self._ends(lasts, deadline)
            for i in reversed(self._order) if sweep % 2 else self._order:
                if sweep % 2:
                    ends[i] = self._latest(i, ends, lasts, deadline)
                else:
                    starts[i] = self._earliest(i, starts, lasts)
                chosen[i] = self._slower(i, chosen[i], ends[i] - starts[i], bargain)
                lasts[i] = self._seconds[chosen[i]]

    def _bargain(self, choices: range, now: int) -> float:
        if now == choices[-1]:
            return 0.0
        saved = self._cost[now] - self._cost[now + 1]
        return saved / (self._seconds[now + 1] - self._seconds[now])

    def _slower(self, i: int, now: int, room: float, bargain: float) -> int:
        best = now
        for point in range(now + 1, self._choices[i].stop):
            longer = self._seconds[point] - self._seconds[now]
            if self._seconds[point] > room:
                break
            if self._cost[now] - self._cost[point] >= bargain * longer:
                best = point
        return best


def _lists(adjacency: Adjacency) -> list[list[tuple[int, float]]]:
    first = adjacency.first.tolist()
    pairs = list(zip(adjacency.node.tolist(), adjacency.seconds.tolist(), strict=True))
    return [pairs[first[i] : first[i + 1]] for i in range(len(first) - 1)]
