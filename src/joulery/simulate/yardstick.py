"""What a simulation is judged by: the job's cost, or the score of another objective.

A bound is meant of what a setting is expected to take. The score of a run leaves it aside, else one
unlucky run would be infinitely bad; whether the settings that were chosen keep it is told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InfeasibleError
from joulery.jobs.policies.bayesian.scoring import Runs, score, worth

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.objectives import Objective
    from joulery.simulate.workload import TracedWorkload

# Settings that are expected to take this much more than a bound still count as within it.
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Yardstick:
    """What every fixed setting of a workload is worth.

    Attributes:
        expected: (arms, limits), cost or score of the expected run, bounds aside; infinite where
            the target is out of reach, NaN where a limit was not measured.
        within: (arms, limits), whether it keeps the bounds, within :data:`TOLERANCE`.
        arm: Position of the best setting's batch size.
        limit: Position of its power limit.
        reference: Seconds and joules of the fastest setting, which ratios refer to.
    """

    expected: Floats
    within: NDArray[np.bool_]
    arm: int
    limit: int
    reference: tuple[float, float]

    @property
    def optimal(self) -> float:
        """Cost or score of the best setting."""
        return float(self.expected[self.arm, self.limit])


def yardstick(
    load: TracedWorkload, eta: float, objective: Objective | None, epochs: Floats | None = None
) -> Yardstick:
    """By the cost with ``eta``, or by ``objective`` where one is given.

    Args:
        load: What is trained.
        eta: Weight of energy in the cost.
        objective: Instead of the cost.
        epochs: Instead of the workload's own, where they have drifted.

    Raises:
        InfeasibleError: No setting meets the objective's bounds.
    """
    mean = load.mean_epochs(epochs)[:, None]
    seconds, joules = mean * load.epoch_seconds, mean * load.epoch_joules
    known = np.isfinite(seconds) & np.isfinite(joules)
    fastest = np.where(known, seconds, np.inf).argmin()
    reference = float(seconds.flat[fastest]), float(joules.flat[fastest])
    if objective is None:
        arm, limit, _ = load.optimum(eta, epochs)
        return Yardstick(load.expected_cost(eta, epochs), known, arm, limit, reference)
    references = np.array(reference[0]), np.array(reference[1])
    finite = np.where(known, seconds, 1.0), np.where(known, joules, 1.0)
    exact = np.where(known, score(objective, Runs(*finite, *references)), np.inf)
    best = int(exact.argmin())
    if not np.isfinite(exact.flat[best]):
        raise InfeasibleError(
            f"{load}: no setting meets {objective}",
            remedy=f"the fastest is expected to take {reference[0]:g} s; widen the bound",
        )
    eased = Runs(finite[0] / (1 + TOLERANCE), finite[1] / (1 + TOLERANCE), *references)
    within = known & np.isfinite(score(objective, eased))
    expected = np.where(known, worth(objective, Runs(*finite, *references)), seconds)
    arm, limit = divmod(best, seconds.shape[1])
    return Yardstick(expected, within, arm, limit, reference)
