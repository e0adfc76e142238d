"""The policy ``oracle``: knows the best fixed setting of each job from the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.jobs.policies.fixed import FixedPolicy, FixedSetting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joulery.jobs.policies.job_batch import JobBatch


@dataclass(frozen=True, slots=True, eq=False)
class Oracle(FixedPolicy):
    """Trains at a setting that somebody who knows the traces has found.

    Attributes:
        arm: (lanes,), the best batch size of each lane.
        limit: (lanes,), the best power limit.
    """

    arm: NDArray[np.int64]
    limit: NDArray[np.int64]

    name = "oracle"
    reasons = ("the best there is",)

    def start(self, lanes: JobBatch) -> FixedSetting:
        """The settings that it was told.

        Raises:
            InvalidValueError: It was told of other lanes.
        """
        if len(self.arm) != len(lanes):
            raise InvalidValueError(
                f"the oracle knows {len(self.arm)} lanes, not {len(lanes)}",
                remedy="make one for these workloads and seeds",
            )
        return FixedSetting(self.arm, self.limit)
