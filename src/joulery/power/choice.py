"""What profiling found, for holding it now and for later runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.power.slices import Estimate

if TYPE_CHECKING:
    from joulery.power.model import Belief


@dataclass(frozen=True, slots=True)
class TuningChoice:
    """What profiling found.

    Attributes:
        position: The choice.
        regret: Expected relative excess of its score over the best possible.
        chosen: What to expect there: measured, or foretold (then with 0 steps behind it).
        measured: Estimates by knob position.
        belief: Samples of the curves; None when an earlier profile was trusted.
        profiling_steps: Steps that profiling took.
        profiling_seconds: Time that they took.
        profiling_joules: Energy that they used.
    """

    position: int
    regret: float
    chosen: Estimate
    measured: dict[int, Estimate]
    belief: Belief | None
    profiling_steps: int
    profiling_seconds: float
    profiling_joules: float


@dataclass(frozen=True, slots=True)
class Known:
    """An earlier profile of the same job.

    Attributes:
        position: Its choice.
        regret: What it left to gain.
        chosen: What to expect there.
        measured: Estimates by knob position.
    """

    position: int
    regret: float
    chosen: Estimate
    measured: dict[int, Estimate]

    def expected(self, position: int) -> Estimate:
        """What was found there; asked for the choice and for the reference, always measured."""
        return self.chosen if position == self.position else self.measured[position]

    def settled(self) -> TuningChoice:
        """The same as if it had been found now, at no cost."""
        return TuningChoice(
            self.position, self.regret, self.chosen, self.measured, None, 0, 0.0, 0.0
        )


def foretold(belief: Belief, position: int) -> Estimate:
    """What a belief expects at a position, with no steps behind it."""
    import numpy as np

    log_seconds, log_watts = belief.log_seconds[:, position], belief.log_watts[:, position]
    return Estimate(
        float(np.exp(np.median(log_seconds))),
        float(np.exp(np.median(log_watts))),
        float(log_seconds.std()),
        float(log_watts.std()),
        0,
        0.0,
    )
