"""Checks that a report or a run is possible: its time, power, epochs and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.documents import SMALLEST, JsonModel
from joulery.errors import InvalidValueError
from joulery.frontier import Origin
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.units import human

if TYPE_CHECKING:
    from joulery.jobs._models import Job, Measured, Outcome
    from joulery.jobs._run_log import RunEntry

_LONGEST_TIME_SECONDS = 1e10  # by hand: three hundred years
_BEFORE_SECONDS = 60.0  # of a run before its decision was stored (by hand: slow clients)
_CLOCK_ERROR = 0.01  # relative, between client and service (by hand: quartz drifts far less)
# Time by which the service's clock may have been set back meanwhile (by hand: a wrong date). What
# took longer than that explains is refused.
_SET_BACK_SECONDS = 86_400.0
# Relative energy that boards draw beyond their limits, or that meters misread (by hand: twice the
# 5 % of nvidia-smi's manual).
_ENERGY_ERROR = 0.1
_EPOCHS_FACTOR = 4.0  # by which epochs may be cheaper than all that were measured (by hand)
_DEVICE_WATTS = 2e5  # mean of a device at most (by hand: a rack; a board in millijoules is above)
_RUN_WATTS = 1e9  # mean of a run at most (by hand: the largest sites)


def check_outcome(outcome: Outcome, job: Job, kind: ActionKind, elapsed_seconds: float) -> None:
    """Refuse an outcome that is impossible, so long after the decision by the service's clock."""
    _check_scale(outcome)
    _check_end(outcome, job, kind)
    # A clock that was set back by more makes the time passed negative; that proves nothing.
    spare = _SET_BACK_SECONDS if elapsed_seconds >= 0 else _LONGEST_TIME_SECONDS
    if outcome.seconds > elapsed_seconds * (1 + _CLOCK_ERROR) + _BEFORE_SECONDS + spare:
        raise InvalidValueError(
            f"{human(outcome.seconds, 's')} cannot have passed: the decision is "
            f"{human(elapsed_seconds, 's')} old",
            remedy="report the time since the decision was handed out, at most",
        )
    _check_power(outcome.joules, outcome.seconds, job.cost.max_watts)
    if len(outcome.measured) > max(1, len(job.limits_watts)):
        raise InvalidValueError(
            f"{len(outcome.measured)} power limits measured of {len(job.limits_watts)}",
            remedy="report each of the job's limits once",
        )
    for measured in outcome.measured:
        _check_power(measured.epoch_joules, measured.epoch_seconds, job.cost.max_watts)
    if outcome.end == RunEnd.REACHED:
        _check_whole(outcome, job)


def check_run(run: RunEntry, now_wall_seconds: float) -> None:
    """Refuse a run of any kind that is impossible; a simulated one may be at any time."""
    end = run.started_wall_seconds + run.seconds
    if run.origin != Origin.SIMULATED.value and end > now_wall_seconds + _SET_BACK_SECONDS:
        raise InvalidValueError(
            f"a run of {human(run.seconds, 's')} that lasts until later than now",
            remedy="give its start as Unix time in seconds, and the seconds since; set the clock",
        )
    names = [device.name for device in run.devices]
    if len(set(names)) < len(names):
        raise InvalidValueError(
            "two devices of the run have the same name",
            remedy="give each device once, boards of one model with a number: A100 0, A100 1",
        )
    devices = [(device.joules, _DEVICE_WATTS) for device in run.devices]
    for joules, most_watts in [(run.joules, _RUN_WATTS), *devices]:
        _check_power(joules or 0.0, run.seconds + 1.0, most_watts)  # begun before it is timed
    parts = sum(device.joules or 0.0 for device in run.devices)
    if run.joules is not None and parts > run.joules * (1 + _ENERGY_ERROR):
        raise InvalidValueError(
            f"devices of {human(parts, 'J')} in a run of {human(run.joules, 'J')}",
            remedy="give the joules of all its devices as those of the run",
        )


def _check_end(outcome: Outcome, job: Job, kind: ActionKind) -> None:
    if outcome.end != RunEnd.ABANDONED and (outcome.end == RunEnd.PROBED) != (
        kind == ActionKind.PROBE
    ):
        raise InvalidValueError(
            f"a {kind.name.lower()} decision cannot end as {outcome.end.name.lower()}",
            remedy="report on the decision that was run",
        )
    if outcome.epochs > job.max_epochs:
        raise InvalidValueError(
            f"{outcome.epochs:g} epochs of at most {job.max_epochs}",
            remedy="report whole epochs of this run only",
        )
    if outcome.end == RunEnd.REACHED and not (outcome.epochs > 0 and outcome.seconds > 0):
        raise InvalidValueError(
            "a target was reached without training",
            remedy="report the epochs and the time that the run took",
        )


def _check_scale(document: JsonModel) -> None:
    """Refuse figures so close to 0 that quotients and squares of them would overflow."""
    for name in document.__struct_fields__:
        value = getattr(document, name)
        for part in value if isinstance(value, tuple) else ():
            _check_scale(part)
        if isinstance(value, float) and 0 < value < SMALLEST:
            raise InvalidValueError(
                f"{name} is out of range: {value:g}",
                remedy=f"give 0, or at least {SMALLEST:g}",
            )


def _check_whole(outcome: Outcome, job: Job) -> None:
    """Check a whole run against its own cost and the epochs that it measured."""
    if not job.cost.of(outcome.seconds, outcome.joules) > 0:
        raise InvalidValueError(
            "a target was reached at no cost", remedy="report the energy that the run used"
        )
    totals = {"s": outcome.seconds, "J": outcome.joules}
    for unit, total in totals.items():
        least = min((_least(measured, unit) for measured in outcome.measured), default=0.0)
        if total * _EPOCHS_FACTOR < outcome.epochs * least:
            raise InvalidValueError(
                f"{outcome.epochs:g} epochs of at least {human(least, unit)} each are more than "
                f"{human(total, unit)} in all",
                remedy="report what an epoch takes, and the whole run",
            )


def _least(measured: Measured, unit: str) -> float:
    figure = measured.epoch_seconds if unit == "s" else measured.epoch_joules
    return figure / (1.0 + 3.0 * measured.relative_error)


def _check_power(joules: float, seconds: float, max_watts: float) -> None:
    """Check energy against ``max_watts`` of all boards together; 0 where that is not known."""
    if max_watts > 0 and joules > max_watts * seconds * (1 + _ENERGY_ERROR):
        raise InvalidValueError(
            f"{human(joules, 'J')} in {human(seconds, 's')} is more than all boards can draw, "
            f"{human(max_watts, 'W')}",
            remedy="report the energy of this job's boards, in joules",
        )
