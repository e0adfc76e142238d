"""The policy ``default``: what the owner would run, at the highest power limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.fixed import FixedPolicy, FixedSetting

if TYPE_CHECKING:
    from joulery.jobs.policies.job_batch import JobBatch


@dataclass(frozen=True, slots=True)
class Default(FixedPolicy):
    """No change: the default batch size at the highest power limit."""

    name = "default"
    reasons = ("the default",)

    def start(self, lanes: JobBatch) -> FixedSetting:
        """The setting of each lane."""
        limits = np.isfinite(lanes.limits_watts).sum(axis=1)
        # Where limits are left alone, there is one place for them, and it is unknown.
        return FixedSetting(lanes.default, np.maximum(limits - 1, 0))
