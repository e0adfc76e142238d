"""What a run may teach under a bound: the share of the score that changing over would save.

For every outcome of a run the sizes of all batch sizes move, and with them the fastest setting, the
bound that refers to it, and the best within. Only batch sizes that may be held are looked at, and
each run's own, which has proven itself if the run has ended: few of all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.bayesian.planning import NODES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.bayesian.bounded import BoundedRuns
    from joulery.jobs.policies.counter_rng import Floats

# Per cent of score per per cent beyond the bound. A choice is 1 % too slow only where that saves a
# quarter of the energy: no power limit does, and hardly another batch size.
STEEPNESS = 30.0
# Scores are worked out at every other node of the plan, and read between them.
COARSE_NODES = NODES[::2]
# Figures that are worked on at once: few enough to stay in a core's cache.
_BLOCK = 2**14


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Batch sizes of which each run moves the expected epochs; leading axes are (rows, run).

    Attributes:
        size: Log epochs that are expected now.
        tilt: How far one standard deviation of the run's outcome moves them.
        bow: Half its square.
        worth: Of each limit (first axis; minima over it are fastest there, the second is for
            nodes): what is minimised, per epoch.
        bounded: What is bounded, likewise.
    """

    size: Floats
    tilt: Floats
    bow: Floats
    worth: Floats
    bounded: Floats

    @classmethod
    def of(cls, size: Floats, tilt: Floats, worth: Floats, bounded: Floats) -> _Sizes:
        """As above, but for limits, which are the last axis."""
        turned = (np.ascontiguousarray(np.moveaxis(x, -1, 0))[:, None] for x in (worth, bounded))
        return cls(size, tilt, 0.5 * tilt**2, *turned)

    def after(self, nodes: Floats) -> Floats:
        """(nodes, rows, run, ...), log epochs expected if the run ends there."""
        moved = self.tilt * nodes.reshape((-1,) + (1,) * self.tilt.ndim)
        moved -= self.bow
        moved += self.size
        return np.asarray(moved)


@dataclass(frozen=True, slots=True)
class _Changes:
    """What may be changed over to, for a few rows.

    Attributes:
        others: Batch sizes that may be held, (rows, run, others).
        able: (rows, 1, others), which of those may: rows are filled up to the same number.
        fastest: (rows, 1, others), log seconds of an epoch of theirs at the fastest limit.
        own: The batch size of the run, (rows, run).
        own_fastest: (rows, run), likewise.
        held: The setting that is held, (rows, run).
        most: Largest time or energy.
        slowdown: Largest time over the fastest's.
    """

    others: _Sizes
    able: NDArray[np.bool_]
    fastest: Floats
    own: _Sizes
    own_fastest: Floats
    held: _Sizes
    most: float
    slowdown: float

    @classmethod
    def of(cls, runs: BoundedRuns, part: slice, tilt: Floats) -> _Changes:
        """From (rows, run, arms), how far each run moves each batch size."""
        arms = slice(tilt.shape[2])
        able = runs.able[part, arms]
        figures = (runs.size, runs.fastest, runs.worth, runs.bounded)
        size, fastest, worth, bounded = (each[part, arms] for each in figures)
        most = max(1, int(able.sum(axis=1).max()))
        order = (~able).argsort(axis=1, kind="stable")[:, :most]
        row = np.arange(len(size))[:, None]
        few = np.take_along_axis(tilt, order[:, None], axis=2)
        few_of = [each[row, order][:, None] for each in (size, worth, bounded, fastest)]
        arm, limit = (one[part] for one in runs.best)
        held = np.arange(len(arm)), arm
        at_held = [each[(*held, limit)][:, None, None] for each in (worth, bounded)]
        return cls(
            others=_Sizes.of(few_of[0], few, few_of[1], few_of[2]),
            able=able[row, order][:, None],
            fastest=few_of[3],
            own=_Sizes.of(size, tilt.diagonal(axis1=1, axis2=2), worth, bounded),
            own_fastest=fastest,
            held=_Sizes.of(size[held][:, None], tilt[held[0], :, arm], *at_held),
            most=runs.most,
            slowdown=runs.slowdown,
        )

    def shares(self, nodes: Floats) -> tuple[Floats, Floats]:
        """(nodes, rows, run), once the run has ended, and once it was stopped."""
        sizes, own, held = (each.after(nodes) for each in (self.others, self.own, self.held))
        fastest = np.where(self.able, sizes + self.fastest, np.inf).min(axis=3)
        longest = self._longest(fastest)
        graded = _graded(sizes, longest[..., None], self.others.worth, self.others.bounded)
        least = np.where(self.able, graded, np.inf).min(axis=3)
        stopped = _saved(_graded(held, longest, self.held.worth, self.held.bounded), least)
        # A run that has ended proves its batch size: if that is the fastest, the bound moves.
        longest_then = self._longest(np.minimum(fastest, own + self.own_fastest))
        moves = np.nonzero(longest_then < longest)
        if len(moves[0]):
            least[moves] = self._least_where(moves, sizes, longest_then)
        graded = _graded(own, longest_then, self.own.worth, self.own.bounded)
        np.minimum(least, graded, out=least)
        ended = _saved(_graded(held, longest_then, self.held.worth, self.held.bounded), least)
        return ended, stopped

    def _longest(self, fastest: Floats) -> Floats:
        return np.minimum(self.most, self.slowdown + fastest)

    def _least_where(
        self, at: tuple[NDArray[np.int64], ...], sizes: Floats, longest: Floats
    ) -> Floats:
        """(places,), of the batch sizes that may be held, at some nodes, rows and runs."""
        row = at[1]
        worth, bounded = self.others.worth[:, 0, row, 0], self.others.bounded[:, 0, row, 0]
        graded = _graded(sizes[at], longest[at][:, None], worth, bounded)
        return np.asarray(np.where(self.able[row, 0], graded, np.inf).min(axis=1))


def saved_shares(runs: BoundedRuns, tilt: Floats) -> Floats:
    """(2, rows, run, coarse nodes), of the held setting's score, of a run that ended or stopped.

    Args:
        runs: Under a bound.
        tilt: (rows, run, arms), how far one standard deviation of what a run shows moves each.
    """
    rows, arms = runs.size.shape
    shares = np.zeros((2, rows, arms, len(COARSE_NODES)))
    step = max(1, 4 * _BLOCK // (arms * runs.worth[0].size))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        # Lanes alike are mostly side by side, so most of what only fills rows up can be left out.
        last = int(np.flatnonzero(runs.valid[part].any(axis=0))[-1]) + 1
        changes = _Changes.of(runs, part, tilt[part, :last, :last])
        nodes = max(1, _BLOCK // (changes.others.worth.size * last))
        for first in range(0, len(COARSE_NODES), nodes):
            some = slice(first, first + nodes)
            for out, found in zip(shares, changes.shares(COARSE_NODES[some]), strict=True):
                out[part, :last, some] = found.transpose(1, 2, 0)
    return shares


def _graded(size: Floats, longest: Floats, worth: Floats, bounded: Floats) -> Floats:
    """Log score of runs under the best limit, the first axis of ``worth`` and ``bounded``."""
    grades = bounded + (size - longest)
    np.maximum(grades, 0.0, out=grades)
    grades *= STEEPNESS
    grades += worth
    return np.asarray(grades.min(axis=0) + size)


def _saved(held: Floats, least: Floats) -> Floats:
    """Share of the held setting's score; nothing where either is not known."""
    known = np.isfinite(least) & np.isfinite(held)
    saved = np.where(known, held, 0.0) - np.where(known, least, 0.0)
    return np.asarray(-np.expm1(-np.maximum(0.0, saved)))
