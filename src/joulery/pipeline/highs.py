"""The continuous frontier at sampled iteration times, as a linear program for HiGHS.

The way without a compiled core, and what the core is checked against. A duration is its fastest
plus a piece of each edge of its hull; cost is convex, so the cheapest pieces fill up first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import JouleryError, MissingExtraError
from joulery.pipeline.sampled import SampledRelaxation

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from joulery.pipeline.network import Network

_SAMPLES = 65


class Program:
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
        lasts = self._fastest + np.diff(sums[self._first_piece])
        cost = self._cost_fastest + self._solver.getInfo().objective_function_value
        return cost, -float(solution.col_dual[0]), lasts

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
    program = Program(network)
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
        lasts=np.array([lasts for _, _, lasts in found]),
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
