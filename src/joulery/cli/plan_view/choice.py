"""Which schedule, and which partition of the layers, to plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InfeasibleError
from joulery.pipeline.auto import compare
from joulery.pipeline.partition import balanced, repartitioned

if TYPE_CHECKING:
    from joulery.pipeline.auto import Candidate, Comparison
    from joulery.pipeline.build import Surroundings
    from joulery.pipeline.profiles import Profiles

# Numbers of microbatches to compare at on the way, per rank.
_PER_RANK = (1, 2, 4, 8)
# Another partition must save more than this share: nobody moves layers for less.
_WORTH_MOVING = 1e-3


@dataclass(frozen=True, slots=True)
class Question:
    """What to choose for.

    Attributes:
        ranks: In the pipeline.
        microbatches: Per iteration.
        around: Communication, waiting, and devices that share the plan.
        deadline_seconds: When an iteration is to end; None for 1F1B's pace.
        most_activations: Microbatches that fit a rank; None for what 1F1B holds.
        layers: Of each profiled stage, to try another partition; empty for not to.
    """

    ranks: int
    microbatches: int
    around: Surroundings
    deadline_seconds: float | None = None
    most_activations: float | None = None
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What was compared, and what won.

    Attributes:
        comparisons: At growing numbers of microbatches, the wanted one last.
        most_activations: Microbatches that were taken to fit a rank.
        best: The candidate that won.
        profiles: Its stages.
        layers: As profiled; empty if nobody said.
        moved_layers: The other partition that was tried; empty if none was.
        moved: The comparison for it.
    """

    comparisons: tuple[Comparison, ...]
    most_activations: float
    best: Candidate
    profiles: Profiles
    layers: tuple[int, ...] = ()
    moved_layers: tuple[int, ...] = ()
    moved: Comparison | None = None

    @property
    def wanted(self) -> Comparison:
        """The comparison for the wanted number of microbatches."""
        return self.comparisons[-1]

    @property
    def moved_best(self) -> Candidate | None:
        """The winner of the other partition, if there is one and it fits."""
        if self.moved is None:
            return None
        try:
            return self.moved.best(self.most_activations)
        except InfeasibleError:
            return None


def choose(profiles: Profiles, question: Question) -> Choice:
    """Compare schedules, and partitions if the layers are known."""
    ranks, around = question.ranks, question.around
    counts = [ranks * factor for factor in _PER_RANK if ranks * factor < question.microbatches]
    smaller = [compare(profiles, ranks, count, around) for count in counts]
    wanted = compare(profiles, ranks, question.microbatches, around, question.deadline_seconds)
    limit = question.most_activations
    limit = wanted.reference_activations if limit is None else limit
    plain = Choice((*smaller, wanted), limit, wanted.best(limit), profiles, question.layers)
    other = balanced(profiles, question.layers) if question.layers else ()
    if other == question.layers:
        return plain
    moved_profiles = repartitioned(profiles, question.layers, other)
    moved = compare(moved_profiles, ranks, question.microbatches, around, wanted.deadline_seconds)
    found = Choice(plain.comparisons, limit, plain.best, profiles, question.layers, other, moved)
    winner = found.moved_best
    if winner is None or (winner.joules or 0.0) >= (plain.best.joules or 0.0) * (1 - _WORTH_MOVING):
        return found
    return Choice(plain.comparisons, limit, winner, moved_profiles, question.layers, other, moved)
