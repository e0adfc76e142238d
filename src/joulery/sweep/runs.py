"""Make the runs of a sweep, each under its power limit, and record what they took."""

from __future__ import annotations

import math
import os
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import IO, TYPE_CHECKING, Protocol

from joulery.errors import DeviceError
from joulery.governor import lease
from joulery.metering.command import run_command
from joulery.metering.meter import Meter
from joulery.sweep.journal import FinishedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.hardware.simulated_node import SimulatedNode
    from joulery.metering.measurement import Measurement
    from joulery.sweep.journal import SweepJournal
    from joulery.sweep.plan import SweepPlan, Trial

# What ends a sweep, rather than the one run that it meets.
_ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
GPUS_VARIABLE = "JOULERY_GPUS"


class SweepWork(Protocol):
    """What a sweep runs."""

    def run(self, trial: Trial) -> int:
        """Run once on the first ``trial.gpus`` boards; the exit code, 0 for success.

        Raises:
            KeyboardInterrupt: The user wants the sweep to end.
        """
        ...


@dataclass(frozen=True, slots=True)
class SweepEnvironment:
    """Where a sweep runs.

    Attributes:
        boards: All boards of the node; each gets the limit.
        devices: What to measure: the boards, and everything else that counts energy.
        clock: Real or virtual.
        sample_hertz: Looks per second at each energy counter.
    """

    boards: tuple[Device, ...]
    devices: tuple[Device, ...]
    clock: Clock
    sample_hertz: float = 10.0


@contextmanager
def held_limits(boards: Iterable[Device], watts: float) -> Iterator[None]:
    """Cap every board at ``watts`` inside the block; what was found comes back in any case."""
    with ExitStack() as held:
        for board in boards:
            held.enter_context(lease(board, watts=watts))
        yield


def run_sweep(
    plan: SweepPlan,
    bench: SweepEnvironment,
    work: SweepWork,
    journal: SweepJournal,
    *,
    stop_on_failure: bool = False,
    on_trial: Callable[[Trial], None] | None = None,
) -> bool:
    """Make every run of the plan that the journal does not have, and record each.

    The limits found before are back in force after each run, however it ends.

    Args:
        plan: What to run.
        bench: Where.
        work: What is run.
        journal: Where finished runs go.
        stop_on_failure: End at the first run that fails.
        on_trial: Called before each run.

    Returns:
        Whether the plan was gone through to its end.

    Raises:
        MissingRightsError: This user may not set the limit.
        DeviceError: No energy could be read.
    """
    done = journal.done
    todo = [trial for trial in plan.trials() if trial not in done]
    if not todo:
        return True
    with held_limits(bench.boards, min(plan.limits_watts)):
        pass  # whoever lacks the rights hears so now, not after a long run at the default
    with Meter(bench.devices, clock=bench.clock, sample_hertz=bench.sample_hertz) as meter:
        for trial in todo:
            if on_trial is not None:
                on_trial(trial)
            run = _measured(trial, bench, work, meter)
            journal.append(run)
            if run.exit_code != 0 and stop_on_failure:
                return False
    return True


def _measured(trial: Trial, bench: SweepEnvironment, work: SweepWork, meter: Meter) -> FinishedRun:
    with held_limits(bench.boards, trial.watts):
        # Closing a window has every counter read, so that the run's first joule is known well.
        with meter.window("before"):
            pass
        with meter.window(str(trial)) as window:
            exit_code = work.run(trial)
    measured = window.settle()
    if math.isnan(measured.joules):
        raise DeviceError(
            f"no energy could be read while running on {trial}",
            remedy="see `joulery doctor` for what can be measured here",
        )
    provenance = measured.provenance
    return FinishedRun(
        repeat=trial.repeat,
        gpus=trial.gpus,
        watts=trial.watts,
        exit_code=exit_code,
        seconds=measured.seconds,
        joules=measured.joules,
        gpu_joules=_joules_of(bench.boards[: trial.gpus], measured),
        idle_gpu_joules=_joules_of(bench.boards[trial.gpus :], measured),
        origin=provenance.origin.value,
        source=provenance.source,
        relative_error=provenance.relative_error,
        flags=tuple(sorted(flag.value for flag in measured.flags)),
    )


def _joules_of(boards: Sequence[Device], measured: Measurement) -> float | None:
    """What these boards used together; None unless it is known of each."""
    ids = {board.info.id for board in boards}
    known = [
        device.joules
        for device in measured.devices
        if device.info.id in ids and not math.isnan(device.joules)
    ]
    return math.fsum(known) if len(known) == len(ids) else None


@dataclass(frozen=True, slots=True)
class CommandWork:
    """A command of the user, told by its environment which boards to use.

    Attributes:
        command: Program and arguments.
        boards: All boards of the node, in order.
        output: Where everything goes that the command prints.
        on_wait: Called about twice a second while it runs.
    """

    command: tuple[str, ...]
    boards: tuple[Device, ...]
    output: IO[bytes]
    on_wait: Callable[[], None] | None = None

    def run(self, trial: Trial) -> int:
        """Run the command once."""
        received: list[int] = []
        self.output.write(f"--- {trial}\n".encode())
        self.output.flush()
        code = run_command(
            self.command,
            stdout=self.output,
            stderr=self.output,
            environment=environment_for(self.boards[: trial.gpus], os.environ),
            on_wait=self.on_wait,
            on_signal=received.append,
        )
        if _ENDING.intersection(received):
            raise KeyboardInterrupt
        return code


def environment_for(boards: Sequence[Device], environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with ``JOULERY_GPUS``, and showing only ``boards`` to the vendor's run-time."""
    made = {**environ, GPUS_VARIABLE: str(len(boards))}
    indices = ",".join(str(board.info.index) for board in boards)
    if any(board.info.vendor == "amd" for board in boards):
        # The run-time below HIP hides boards; HIP would count anew among those it is left with.
        for variable in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            made.pop(variable, None)
        return {**made, "ROCR_VISIBLE_DEVICES": indices}
    # By PCI bus, as the driver's management library counts.
    return {**made, "CUDA_VISIBLE_DEVICES": indices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The job of a simulated node."""

    node: SimulatedNode

    def run(self, trial: Trial) -> int:
        """Run the job once on the node's clock."""
        self.node.run(trial.gpus, trial.repeat)
        return 0


def seconds_left(plan: SweepPlan, runs: Iterable[FinishedRun]) -> float | None:
    """How long the rest of the plan takes, by the mean of the runs so far; None before the first.

    A number of boards that has no run yet is taken to need as long as the others.
    """
    seconds: dict[int, list[float]] = {}
    done = set()
    for run in runs:
        if run.exit_code == 0:
            seconds.setdefault(run.gpus, []).append(run.seconds)
            done.add(run.trial)
    if not seconds:
        return None
    means = {gpus: fmean(found) for gpus, found in seconds.items()}
    typical = fmean(means.values())
    left = (trial for trial in plan.trials() if trial not in done)
    return math.fsum(means.get(trial.gpus, typical) for trial in left)
