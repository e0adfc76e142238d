"""Runs of a sweep, each under its power limit and measured.

``run_sweep`` runs a plan on a node and keeps a journal; ``sweep_power_limits`` runs a
function on one device.
"""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from statistics import fmean
from typing import IO, TYPE_CHECKING, Protocol

from joulery.errors import DeviceError, InvalidValueError
from joulery.frontier import OperatingPoint, Setting
from joulery.governor import held, lease
from joulery.metering import Meter, run_command
from joulery.sweep._journal import FinishedRun
from joulery.sweep._plan import limit_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware import Device, SimulatedNode
    from joulery.metering import Measurement, Window
    from joulery.sweep._journal import SweepJournal
    from joulery.sweep._plan import SweepPlan, Trial

# Signals that end the whole sweep, and not just the present run.
_ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
GPUS_VARIABLE = "JOULERY_GPUS"


class SweepWork(Protocol):
    """Work of a sweep: the same amount at every run."""

    def run(self, trial: Trial) -> int:
        """Run once on the first ``trial.gpus`` boards; the exit code, 0 for success.

        Raises:
            KeyboardInterrupt: The user ends the sweep.
        """
        ...


@dataclass(frozen=True, slots=True)
class SweepEnvironment:
    """Node on which a sweep runs.

    Attributes:
        boards: All boards of the node; each gets the limit.
        devices: Devices to measure: the boards, and everything else that counts energy.
        clock: Real or virtual clock.
        sample_hertz: Readings per second of each energy counter.
    """

    boards: tuple[Device, ...]
    devices: tuple[Device, ...]
    clock: Clock
    sample_hertz: float = 10.0


def run_sweep(
    plan: SweepPlan,
    node: SweepEnvironment,
    work: SweepWork,
    journal: SweepJournal,
    *,
    on_trial: Callable[[Trial], None] | None = None,
) -> None:
    """Make every run of the plan that the journal does not have, and record each.

    The original limits are restored after each run, however it ends.

    Args:
        plan: Runs to make.
        node: Node on which to run.
        work: Work to run.
        journal: Journal of finished runs.
        on_trial: Function called before each run.

    Raises:
        MissingRightsError: This user may not set the limit.
        DeviceError: No energy could be read.
    """
    done = journal.done
    todo = [trial for trial in plan.trials() if trial not in done]
    if not todo:
        return
    with held(node.boards, watts=min(plan.limits_watts)):
        pass  # missing rights show now, not after a long run at the default
    with Meter(node.devices, clock=node.clock, sample_hertz=node.sample_hertz) as meter:
        for trial in todo:
            if on_trial is not None:
                on_trial(trial)
            journal.append(_measured(trial, node, work, meter))


def _measured(trial: Trial, node: SweepEnvironment, work: SweepWork, meter: Meter) -> FinishedRun:
    with held(node.boards, watts=trial.watts):
        # Closing a window has every counter read, which makes the run's start accurate.
        with meter.window("before"):
            pass
        with meter.window(str(trial)) as window:
            exit_code = work.run(trial)
    measured = _known(window, f"running on {trial}")
    provenance = measured.provenance
    return FinishedRun(
        repeat=trial.repeat,
        gpus=trial.gpus,
        watts=trial.watts,
        exit_code=exit_code,
        seconds=measured.seconds,
        joules=measured.joules,
        gpu_joules=_joules_of(node.boards[: trial.gpus], measured),
        idle_gpu_joules=_joules_of(node.boards[trial.gpus :], measured),
        origin=provenance.origin.value,
        source=provenance.source,
        relative_error=provenance.relative_error,
        flags=tuple(sorted(flag.value for flag in measured.flags)),
    )


def _joules_of(boards: Sequence[Device], measured: Measurement) -> float | None:
    """Energy of these boards together; None unless it is known of each."""
    ids = {board.info.id for board in boards}
    joules = [
        device.joules
        for device in measured.devices
        if device.info.id in ids and not math.isnan(device.joules)
    ]
    return math.fsum(joules) if len(joules) == len(ids) else None


def _known(window: Window, doing: str) -> Measurement:
    """Measurement of a closed window; DeviceError where no energy could be read."""
    measured = window.settle()
    if math.isnan(measured.joules):
        raise DeviceError(
            f"no energy could be read while {doing}",
            remedy="see `joulery doctor` for what can be measured here",
        )
    return measured


def sweep_power_limits(
    device: Device,
    limits_watts: Iterable[float],
    work: Callable[[], None],
    meter: Meter,
    *,
    on_point: Callable[[OperatingPoint], None] | None = None,
) -> list[OperatingPoint]:
    """Run ``work`` once under each limit, and measure each run.

    Every limit is checked before the first run. The original limit is restored after each
    run, however it ends.

    Args:
        device: Device whose limit to set.
        limits_watts: Limits in the order to try them; a repeated one is measured once.
        work: Function that does the same amount of work at every call.
        meter: Meter of each run; may measure more devices than the one that is limited.
        on_point: Function called with each point as soon as it is known.

    Returns:
        One point per limit, in the order given, dominated ones included.

    Raises:
        UnsupportedError: The device has no power limit.
        MissingRightsError: This user may not set it.
        InvalidValueError: No limit is given, or one is outside the board's range.
        DeviceError: The meter could not read any energy.
    """
    points = []
    for watts in accepted_limits(device, limits_watts):
        with lease(device, watts=watts), meter.window(f"{watts:g} W") as window:
            work()
        measured = _known(window, f"{device.info.name} was limited to {watts:g} W")
        point = OperatingPoint(
            measured.seconds,
            measured.joules,
            Setting(power_limit_watts=watts, device=device.info.name),
            measured.provenance,
        )
        points.append(point)
        if on_point is not None:
            on_point(point)
    return points


def accepted_limits(device: Device, limits_watts: Iterable[float]) -> tuple[float, ...]:
    """The limits without repetitions, once all are known to be within the board's range."""
    limits = tuple(dict.fromkeys(limits_watts))
    if not limits:
        raise InvalidValueError("no power limit to try", remedy="give at least one limit in watts")
    bounds = limit_range(device)
    for watts in limits:
        bounds.check(watts, device.info.name)
    return limits


@dataclass(frozen=True, slots=True)
class CommandWork:
    """A command that sees the boards of a run through its environment variables.

    Attributes:
        command: Program and arguments.
        boards: All boards of the node, in order.
        output: File for everything that the command prints.
        on_wait: Function called about twice a second while it runs.
    """

    command: tuple[str, ...]
    boards: tuple[Device, ...]
    output: IO[bytes]
    on_wait: Callable[[], None] | None = None

    def run(self, trial: Trial) -> int:
        """Run the command once."""
        signals: list[int] = []
        self.output.write(f"--- {trial}\n".encode())
        self.output.flush()
        code = run_command(
            self.command,
            stdout=self.output,
            stderr=self.output,
            environment=environment_for(self.boards[: trial.gpus], os.environ),
            on_wait=self.on_wait,
            on_signal=signals.append,
        )
        if _ENDING.intersection(signals):
            raise KeyboardInterrupt
        return code


def environment_for(boards: Sequence[Device], environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with ``JOULERY_GPUS`` and with only ``boards`` visible to the run-time."""
    variables = {**environ, GPUS_VARIABLE: str(len(boards))}
    indices = ",".join(str(board.info.index) for board in boards)
    if any(board.info.vendor == "amd" for board in boards):
        # ROCr, below HIP, hides boards; HIP's own variables would count among the rest.
        for variable in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            variables.pop(variable, None)
        return {**variables, "ROCR_VISIBLE_DEVICES": indices}
    if any(board.info.vendor == "gaudi" for board in boards):
        return {**variables, "HABANA_VISIBLE_MODULES": indices}
    # By PCI bus, as NVML counts.
    return {**variables, "CUDA_VISIBLE_DEVICES": indices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The job of a simulated node."""

    node: SimulatedNode

    def run(self, trial: Trial) -> int:
        """Run the job once on the node's clock."""
        self.node.run(trial.gpus, trial.repeat)
        return 0


def seconds_left(plan: SweepPlan, runs: Iterable[FinishedRun]) -> float | None:
    """Time of the rest of the plan, by the mean of the runs so far; None before the first.

    A number of boards that has no run yet is assumed to need as long as the others.
    """
    seconds: dict[int, list[float]] = {}
    done = set()
    for run in runs:
        if run.exit_code == 0:
            seconds.setdefault(run.gpus, []).append(run.seconds)
            done.add(run.trial)
    if not seconds:
        return None
    means = {gpus: fmean(durations) for gpus, durations in seconds.items()}
    typical = fmean(means.values())
    remaining = (trial for trial in plan.trials() if trial not in done)
    return math.fsum(means.get(trial.gpus, typical) for trial in remaining)
