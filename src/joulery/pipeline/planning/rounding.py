"""Choose clocks that the hardware has, near the durations of the relaxation, within the deadline.

``native/round.c`` describes the method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from joulery.pipeline.planning.native.library import Rounder, available

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joulery.pipeline.planning.network import CurvePoints, Network

    Chosen = tuple[NDArray[np.int32], NDArray[np.float64]]

# What a query tries: durations of iterations shortened by that share, each rounded in so many ways.
# A slightly shorter iteration leaves slack, which is then spent where it saves most.
THOROUGH = ((1.0, 4), (0.998, 4), (0.995, 4), (0.99, 4))
# By the largest number of instructions; more tries would take milliseconds.
_TRIES = ((512, THOROUGH[:3]), (2048, ((1.0, 2), (0.995, 1))))
_TRIES_OF_LARGE = ((1.0, 2),)
# Instructions that trials of single faster ones may visit, so that they take a few tenths of a
# millisecond; of a thorough plan, a few milliseconds. Fewer trials than a handful find nothing.
_VISITS, _THOROUGH_VISITS = 3_000, 400_000
_MIN_TRIALS = 4


class Round(Protocol):
    """A way to turn durations into clock choices."""

    def __call__(
        self, durations: NDArray[np.float64], deadline_seconds: float, attempts: int
    ) -> Chosen:
        """A point for each instruction, and when the instruction starts."""
        ...

    def improve(self, chosen: NDArray[np.int32], deadline_seconds: float, trials: int) -> Chosen:
        """Points that cost no more, after so many trials, and when instructions start."""
        ...


def tries_for(instructions: int) -> tuple[tuple[float, int], ...]:
    """What a query may try in about a millisecond: (share of the deadline, ways of rounding)."""
    for most, tries in _TRIES:
        if instructions <= most:
            return tries
    return _TRIES_OF_LARGE


def trials_for(instructions: int, *, thorough: bool) -> int:
    """How many instructions a query may try to make faster."""
    trials = (_THOROUGH_VISITS if thorough else _VISITS) // instructions
    return trials if trials >= _MIN_TRIALS else 0


def rounder(network: Network, points: CurvePoints) -> Round:
    """The compiled core's rounding, or the one in Python where nothing could be compiled."""
    if not available():
        from joulery.pipeline.planning.highs import PythonRounder

        return PythonRounder(network, points)
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
