"""What an attempt found out that is worth keeping besides how it ended."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from joulery.client.findings import RunMeasurements
from joulery.frontier import ASSUMED, OperatingPoint, Provenance, Setting
from joulery.jobs.wire_measurements import EnergyEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.jobs.models import Decision, Measured, Outcome
    from joulery.jobs.requests import Definition
    from joulery.training.used import DeviceUse

_LONGEST_TEXT = 200


def findings_of(
    decision: Decision, outcome: Outcome, used: Sequence[DeviceUse], wanted: Definition
) -> RunMeasurements:
    """What is worth keeping of an attempt besides how it ended.

    Args:
        decision: That was run.
        outcome: How it ended.
        used: What each device used.
        wanted: The job.
    """
    whence = Provenance.combined((one.provenance, one.joules) for one in used) if used else ASSUMED
    setting = Setting(
        batch_size=decision.batch_size,
        device=used[0].name if used else wanted.device,
        devices=len(used) if len(used) > 1 else None,
    )
    return RunMeasurements(
        batch_size=decision.batch_size,
        device=wanted.device,
        points=tuple(_point(one, setting, whence) for one in outcome.measured),
        energy=tuple(_energy(decision, one) for one in used),
        work=f"an epoch of {wanted.job.name} at batch size {decision.batch_size}",
    )


def _point(one: Measured, setting: Setting, whence: Provenance) -> OperatingPoint:
    # Joules are seconds times watts, which err independently.
    error = math.sqrt(2.0) * one.relative_error
    return OperatingPoint(
        one.epoch_seconds,
        one.epoch_joules,
        replace(setting, power_limit_watts=one.limit_watts),
        Provenance(whence.origin, whence.source, error),
    )


def _energy(decision: Decision, one: DeviceUse) -> EnergyEntry:
    return EnergyEntry(
        decision.id,
        one.id[:_LONGEST_TEXT],
        one.seconds,
        one.joules,
        one.provenance.origin.value,
        one.provenance.source[:_LONGEST_TEXT],
    )
