"""Policies to compare the controller with: a reactive ladder, an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from joulery.serving._controller import LatencyObjective
    from joulery.serving._simulator import EngineState, ServingPolicy, ServingRun

# The ladder's rules, as peers describe theirs: up when a latency exceeds the first share of its
# bound, down when none exceeds the second for a while.
_TIGHT, _ROOMY = 0.9, 0.6
_LADDER_SECONDS = 5.0
# Length of the oracle's slices of time, rounds of repair, and share of requests it may lose.
_SLICE_SECONDS, _REPAIRS, _LOSS = 2.0, 8, 0.002


class ReactiveLadder:
    """One step down while latencies are well below their bounds, up when they come close."""

    def __init__(self, objective: LatencyObjective, positions: int) -> None:
        self._objective = objective
        self._top = self._position = positions - 1
        self._worst = 0.0
        self._next = 0.0

    def decide(self, state: EngineState) -> int:
        """Position to use from now on."""
        shares = [seconds / self._objective.ttft_seconds for seconds in state.ttft_seconds]
        shares += [seconds / self._objective.tpot_seconds for seconds in state.tpot_seconds]
        self._worst = max([self._worst, *shares])
        if self._worst > 1.0:
            self._move(self._top, state)
        elif self._worst > _TIGHT:
            self._move(min(self._top, self._position + 2), state)
        elif state.now_seconds >= self._next:
            self._move(self._position - (1 if self._worst < _ROOMY else 0), state)
        return self._position

    def _move(self, position: int, state: EngineState) -> None:
        self._position = max(0, position)
        self._worst = 0.0
        self._next = state.now_seconds + _LADDER_SECONDS


class _Timetable:
    """Positions by slice of time."""

    def __init__(self, positions: NDArray[np.int64]) -> None:
        self._positions = positions

    def decide(self, state: EngineState) -> int:
        """The position of the present slice."""
        slot = int(state.now_seconds / _SLICE_SECONDS)
        return int(self._positions[min(slot, len(self._positions) - 1)])


def oracle(
    simulate: Callable[[ServingPolicy], ServingRun],
    runs: Sequence[ServingRun],
    objective: LatencyObjective,
) -> ServingRun:
    """The run of a policy that knows the future: the cheapest position of every slice of time.

    It starts from the cheapest fixed position and raises the slices in and before which requests
    are lost that full power would not lose, until next to none are. The cheapest run that loses
    next to none counts, be it one at a fixed position.

    Args:
        simulate: Function that serves the requests under a policy.
        runs: Runs of the same requests at each fixed position.
        objective: Bounds to keep.
    """
    bounds = objective.ttft_seconds, objective.tpot_seconds
    positions = len(runs)
    full = runs[-1].attained(*bounds)
    slots = int(max(run.seconds for run in runs) / _SLICE_SECONDS) + 1
    cheapest = int(np.argmin([run.joules for run in runs]))
    table = np.full(slots, positions - 1)
    for position in range(positions - 2, cheapest - 1, -1):
        harmful = _slots_of_losses(runs[position], full, bounds, slots, 1)
        table[(table == position + 1) & ~harmful] = position
    candidates = list(runs)
    for step in range(_REPAIRS):
        candidates.append(simulate(_Timetable(table)))
        if _lost(candidates[-1], full, bounds) <= _LOSS:
            break
        harmful = _slots_of_losses(candidates[-1], full, bounds, slots, 1 + step)
        table[harmful] = np.minimum(positions - 1, table[harmful] + 2 + step)
    good = [run for run in candidates if _lost(run, full, bounds) <= _LOSS]
    return min(good, key=lambda run: run.joules)


def _lost(run: ServingRun, full: np.ndarray, bounds: tuple[float, float]) -> float:
    return float((full & ~run.attained(*bounds)).mean())


def _slots_of_losses(
    run: ServingRun, full: np.ndarray, bounds: tuple[float, float], slots: int, lead: int
) -> np.ndarray:
    """Slices in which, or so many before which, requests were lost that full power keeps."""
    harmful = np.zeros(slots, bool)
    lost = full & ~run.attained(*bounds)
    late = run.ttft_seconds > bounds[0]
    for request in np.flatnonzero(lost):
        end = run.first_seconds[request] if late[request] else run.finish_seconds[request]
        start = int(run.arrival_seconds[request] / _SLICE_SECONDS)
        harmful[max(0, start - lead) : int(end / _SLICE_SECONDS) + 1] = True
    return harmful
