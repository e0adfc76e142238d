"""Planning without the compiled core: linear programs for HiGHS, and rounding in Python.

It is what the core is checked against, too. In the linear program a duration is its fastest plus a
piece of each edge of its hull; cost is convex, so the cheapest pieces fill up first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import JouleryError, MissingExtraError
from joulery.pipeline.planning._relaxation import SampledRelaxation

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from joulery.pipeline.planning._network import Adjacency, Network

    Chosen = tuple[NDArray[np.int32], NDArray[np.float64]]

_SAMPLES = 65
_SWEEPS = 8
_FADE = 0.6
_ALLOWANCES = (1e-12, -1e-13)


class LinearProgram:
    """The linear program of one network, solved for one iteration time after another."""

    def __init__(self, network: Network) -> None:
        self._highspy = _highspy()
        self._network = network
        hulls = [curve.hull() for curve in network.curves]
        pieces = [np.diff(seconds) for seconds, _ in hulls]
        slopes = [np.diff(cost) / np.diff(seconds) for seconds, cost in hulls]
        curve_of = network.curve_of.tolist()
        self._fastest = network.extreme(0)
        self._cost_fastest = float(sum(hulls[curve][1][0] for curve in curve_of))
        counts = np.array([len(piece) for piece in pieces], dtype=np.int64)[curve_of]
        self._first_piece = np.concatenate([[0], np.cumsum(counts)])
        longest = np.concatenate([pieces[curve] for curve in curve_of])
        price = np.concatenate([slopes[curve] for curve in curve_of])
        self._solver = self._highspy.Highs()
        self._solver.setOptionValue("output_flag", False)  # noqa: FBT003 - HiGHS's own signature
        for tolerance in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self._solver.setOptionValue(tolerance, 1e-10)
        self._solver.passModel(self._model(longest, price))

    def solve(self, seconds: float) -> tuple[float, float, NDArray[np.float64]]:
        """Least cost, what a second more would save, and durations, within ``seconds``."""
        self._solver.changeColBounds(0, 0.0, seconds)
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != self._highspy.HighsModelStatus.kOptimal:
            words = self._solver.modelStatusToString(status)
            raise JouleryError(
                f"HiGHS cannot solve an iteration of {seconds:g} s: {words}",
                remedy="allow at least the time of the fastest clocks",
            )
        solution = self._solver.getSolution()
        pieces = np.array(solution.col_value)[1 + len(self._network) :]
        sums = np.concatenate([[0.0], np.cumsum(pieces)])
        durations = self._fastest + np.diff(sums[self._first_piece])
        cost = self._cost_fastest + self._solver.getInfo().objective_function_value
        return cost, -float(solution.col_dual[0]), durations

    def _model(self, longest: NDArray[np.float64], price: NDArray[np.float64]) -> Any:
        """Columns: the iteration time, starts, pieces. Rows: edges, then ends of the last ones."""
        count, pieces = len(self._network), len(longest)
        starts, columns, values, least = self._rows()
        model = self._highspy.HighsLp()
        model.num_col_, model.num_row_ = 1 + count + pieces, len(least)
        model.col_cost_ = np.concatenate([np.zeros(1 + count), price])
        model.col_lower_ = np.zeros(1 + count + pieces)
        model.col_upper_ = np.concatenate([np.full(1 + count, self._highspy.kHighsInf), longest])
        model.row_lower_ = least
        model.row_upper_ = np.full(len(least), self._highspy.kHighsInf)
        model.a_matrix_.format_ = self._highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = starts
        model.a_matrix_.index_ = columns
        model.a_matrix_.value_ = values
        return model

    def _rows(
        self,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
        """``start of the next - start - pieces >= fastest + lag``; the end is everyone's next."""
        after, count = self._network.after, len(self._network)
        first, node, lag = after.first.tolist(), after.node.tolist(), after.seconds.tolist()
        starts, columns, values, least = [0], list[int](), list[float](), list[float]()
        for i in range(count):
            pieces = range(1 + count + self._first_piece[i], 1 + count + self._first_piece[i + 1])
            nexts = [(1 + node[k], lag[k]) for k in range(first[i], first[i + 1])]
            for column, seconds in nexts or [(0, 0.0)]:
                columns += [column, 1 + i, *pieces]
                values += [1.0] + [-1.0] * (1 + len(pieces))
                least.append(self._fastest[i] + seconds)
                starts.append(len(columns))
        return (
            np.array(starts, dtype=np.int32),
            np.array(columns, dtype=np.int32),
            np.array(values),
            np.array(least),
        )


def sample(network: Network, samples: int = _SAMPLES) -> SampledRelaxation:
    """The continuous frontier at ``samples`` iteration times, denser where it is steep."""
    program = LinearProgram(network)
    fastest = network.end_seconds(network.extreme(0))
    slowest = network.end_seconds(network.extreme(-1))
    if slowest <= fastest:
        samples = 1
    steps = np.linspace(0.0, 1.0, samples) ** 2
    seconds = fastest + (slowest - fastest) * steps
    # The exact ends may be infeasible by the last digit.
    found = [program.solve(time) for time in (seconds + 1e-9 * fastest).tolist()]
    cost = np.array([cost for cost, _, _ in found])
    return SampledRelaxation(
        seconds=seconds + 1e-9 * fastest,
        cost=cost,
        proven=cost,
        watts=np.array([watts for _, watts, _ in found]),
        sampled_durations=np.array([durations for _, _, durations in found]),
    )


def _highspy() -> ModuleType:
    try:
        import highspy
    except ImportError:
        raise MissingExtraError(
            "planning a pipeline without a C compiler needs HiGHS",
            remedy="install gcc, or: pip install 'joulery[pipeline]'",
        ) from None
    return highspy


class PythonRounder:
    """The first attempt of the compiled core's rounding, in Python."""

    def __init__(self, network: Network) -> None:
        points = network.points
        self._network = network
        self._order = network.order.tolist()
        self._before = _lists(network.before)
        self._after = _lists(network.after)
        curve_of = network.curve_of.tolist()
        first = network.first_point.tolist()
        self._choices = [range(first[curve], first[curve + 1]) for curve in curve_of]
        self._seconds: list[float] = points.seconds.tolist()
        self._cost: list[float] = points.cost.tolist()
        self._on_hull: list[int] = points.on_hull.tolist()

    def __call__(
        self, durations: NDArray[np.float64], deadline_seconds: float, attempts: int
    ) -> Chosen:
        """A point for each instruction, and when it starts; ``attempts`` makes no difference."""
        del attempts
        for allowance in _ALLOWANCES:
            deadline = deadline_seconds * (1.0 + allowance)
            chosen = self._diffuse(durations.tolist(), deadline)
            self._spend(chosen, deadline)
            lengths = np.array([self._seconds[point] for point in chosen])
            starts = self._network.starts(lengths)
            if float(np.max(starts + lengths)) <= deadline_seconds:
                return np.array(chosen, dtype=np.int32), starts
        fastest = np.array([choices[0] for choices in self._choices], dtype=np.int32)
        return fastest, self._network.starts(self._network.extreme(0))

    def improve(self, chosen: NDArray[np.int32], deadline_seconds: float, trials: int) -> Chosen:
        """The same plan: in Python trials would take too long."""
        del deadline_seconds, trials
        return chosen, self._network.starts(np.array(self._seconds)[chosen])

    def _earliest(self, i: int, starts: list[float], lengths: list[float]) -> float:
        return max((starts[j] + lengths[j] + lag for j, lag in self._before[i]), default=0.0)

    def _latest(self, i: int, ends: list[float], lengths: list[float], deadline: float) -> float:
        due = min((ends[j] - lengths[j] - lag for j, lag in self._after[i]), default=deadline)
        return min(due, deadline)

    def _diffuse(self, wanted: list[float], deadline: float) -> list[int]:
        starts = self._network.starts(np.array(wanted)).tolist()
        ends = [deadline] * len(wanted)
        lengths, chosen = [0.0] * len(wanted), [0] * len(wanted)
        for i in reversed(self._order):
            ends[i] = self._latest(i, ends, lengths, deadline)
            chosen[i] = self._nearest(i, wanted[i], ends[i] - starts[i])
            lengths[i] = self._seconds[chosen[i]]
        return chosen

    def _nearest(self, i: int, wanted: float, room: float) -> int:
        best = self._choices[i][0]
        for point in self._choices[i]:
            if self._seconds[point] > room:
                break
            if self._on_hull[point]:
                best = point
                if self._seconds[point] >= wanted * (1.0 - 1e-9):
                    break
        return best

    def _spend(self, chosen: list[int], deadline: float) -> None:
        rate = max(map(self._saving_rate, self._choices, chosen))
        for sweep in range(_SWEEPS):
            rate = 0.0 if sweep == _SWEEPS - 1 else rate * _FADE
            lengths = [self._seconds[point] for point in chosen]
            starts = self._network.starts(np.array(lengths)).tolist()
            ends = self._network.latest_ends(np.array(lengths), deadline).tolist()
            for i in reversed(self._order) if sweep % 2 else self._order:
                if sweep % 2:
                    ends[i] = self._latest(i, ends, lengths, deadline)
                else:
                    starts[i] = self._earliest(i, starts, lengths)
                chosen[i] = self._slower(i, chosen[i], ends[i] - starts[i], rate)
                lengths[i] = self._seconds[chosen[i]]

    def _saving_rate(self, choices: range, now: int) -> float:
        if now == choices[-1]:
            return 0.0
        saved = self._cost[now] - self._cost[now + 1]
        return saved / (self._seconds[now + 1] - self._seconds[now])

    def _slower(self, i: int, now: int, room: float, rate: float) -> int:
        best = now
        for point in range(now + 1, self._choices[i].stop):
            longer = self._seconds[point] - self._seconds[now]
            if self._seconds[point] > room:
                break
            if self._cost[now] - self._cost[point] >= rate * longer:
                best = point
        return best


def _lists(adjacency: Adjacency) -> list[list[tuple[int, float]]]:
    first = adjacency.first.tolist()
    pairs = list(zip(adjacency.node.tolist(), adjacency.seconds.tolist(), strict=True))
    return [pairs[first[i] : first[i + 1]] for i in range(len(first) - 1)]
