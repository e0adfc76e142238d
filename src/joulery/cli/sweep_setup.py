"""The options of ``joulery sweep`` as a plan, a node to run it on, and the work to run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from joulery.cli.checked import whole_number
from joulery.cli.limits_argument import parse_limits
from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import InvalidValueError, MissingHardwareError, UsageError
from joulery.hardware import DeviceKind
from joulery.sweep import (
    CommandWork,
    SimulatedWork,
    SweepEnvironment,
    SweepPlan,
    checked_limits,
    common_limits,
    seconds_left,
    settable_boards,
    spread_limits,
)
from joulery.units import finite

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from joulery.hardware import Device, SimulatedNode
    from joulery.sweep import FinishedRun, PublishedSweep, SweepWork

_EXAMPLE = "joulery sweep --limits 100:260:10 -- python train.py"
# A simulated counter is exact, so frequent readings would only take time.
_SIMULATED_SAMPLE_HERTZ = 0.01
_MOST_REPEATS = 1_000_000
_MOST_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Setup:
    """A sweep that the options describe.

    Attributes:
        plan: Runs to make.
        environment: Node on which to make them.
        title: Subject of the sweep in one line.
        command: Command to run; empty for a simulated node.
        node: Simulated node, if it is one.
        published: Published figures to compare with.
    """

    plan: SweepPlan
    environment: SweepEnvironment
    title: str
    command: tuple[str, ...] = ()
    node: SimulatedNode | None = None
    published: PublishedSweep | None = None

    @property
    def device(self) -> str:
        """Name of the boards."""
        return " and ".join(dict.fromkeys(board.info.name for board in self.environment.boards))

    @property
    def energy_of(self) -> str:
        """Description of what the joules include."""
        nodes = [d.info.name for d in self.environment.devices if d.info.kind is DeviceKind.NODE]
        if nodes:
            return f"the whole node, by {nodes[0]}"
        others = dict.fromkeys(d.info.kind.value for d in self.environment.devices)
        return f"the sum of all devices ({', '.join(others)}); no meter for the whole node is here"

    def work(self, output: IO[bytes], on_wait: Callable[[], None]) -> SweepWork:
        """Work to run; ``output`` takes everything that a command prints."""
        if self.node is not None:
            return SimulatedWork(self.node)
        return CommandWork(self.command, self.environment.boards, output, on_wait)


def prepared(arguments: argparse.Namespace) -> Setup:
    """The sweep that the options describe, once all are known to be valid.

    Raises:
        UsageError: Options contradict each other, or a value is out of range.
        MissingHardwareError: This machine has no GPU.
    """
    command = _command(arguments)
    repeats = whole_number(arguments.repeat, "--repeat", 1, _MOST_REPEATS)
    if arguments.simulate is not None:
        return _simulated(arguments, repeats)
    from joulery.metering import my_devices

    devices = tuple(my_devices(REAL_CLOCK))
    boards = settable_boards(devices)
    if not boards:
        raise MissingHardwareError(
            "there is no GPU here whose power could be limited",
            remedy="see `joulery doctor`; try `joulery sweep --simulate rtx6000x8` without one",
        )
    plan = _plan(arguments, command, boards, repeats)
    title = f"Power limits of {len(boards)} × {boards[0].info.name}: {' '.join(command)}"
    return Setup(plan, SweepEnvironment(boards, devices, REAL_CLOCK), title, command)


def _simulated(arguments: argparse.Namespace, repeats: int) -> Setup:
    from joulery.hardware import SimulatedNode, preset
    from joulery.sweep import PUBLISHED

    seed = whole_number(arguments.seed, "--seed", 0, _MOST_SEED)
    chosen = preset(arguments.simulate)
    clock = VirtualClock()
    node = SimulatedNode(chosen, clock, seed=seed)
    plan = _plan(arguments, ("simulate", chosen.name, f"seed {seed}"), node.gpus, repeats)
    devices: tuple[Device, ...] = (*node.gpus, node.meter)
    environment = SweepEnvironment(node.gpus, devices, clock, _SIMULATED_SAMPLE_HERTZ)
    title = f"{chosen.job.work.name} on a simulated node of {chosen.boards} × {chosen.board}"
    return Setup(plan, environment, title, node=node, published=PUBLISHED.get(chosen.name))


def _command(arguments: argparse.Namespace) -> tuple[str, ...]:
    from joulery.metering import check_command

    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.simulate is not None:
        if words:
            raise UsageError(
                "a simulated node runs its own job, not a command",
                remedy="leave out either --simulate or the command",
            )
        return ()
    if not words or not words[0]:
        raise UsageError("no command given", remedy=f"put it after `--`: {_EXAMPLE}")
    check_command(words)
    return tuple(words)


def _plan(
    arguments: argparse.Namespace, work: tuple[str, ...], boards: Sequence[Device], repeats: int
) -> SweepPlan:
    allowed = common_limits(boards)
    if arguments.limits is not None:
        wanted = parse_limits(arguments.limits)
    else:
        highest = min(allowed.max_watts, allowed.current_watts)
        wanted = spread_limits(replace(allowed, max_watts=highest))
    return SweepPlan(
        work=work,
        boards=tuple(board.info.id for board in boards),
        limits_watts=checked_limits(wanted, allowed),
        gpu_counts=_gpu_counts(arguments.gpus, len(boards)),
        repeats=repeats,
        default_watts=allowed.default_watts,
    )


def _gpu_counts(text: str | None, here: int) -> tuple[int, ...]:
    if text is None:
        return (here,)
    counts = {whole_number(word.strip(), "--gpus", 1, 10**6) for word in text.split(",")}
    return tuple(sorted(counts))


def expected_seconds(
    setup: Setup, runs: Iterable[FinishedRun], run_seconds: str | None
) -> float | None:
    """Time of the rest of the plan; None where it is unknown.

    Args:
        setup: Sweep in question.
        runs: Runs made already.
        run_seconds: Time of one run, as the user states it.
    """
    found = list(runs)
    done = {run.trial for run in found if run.exit_code == 0}
    left = [trial for trial in setup.plan.trials() if trial not in done]
    if run_seconds is not None:
        return len(left) * _seconds(run_seconds)
    if setup.node is not None:
        node = setup.node
        each = {(t.gpus, t.watts): node.expected_seconds(t.gpus, t.watts) for t in left}
        return sum(each[trial.gpus, trial.watts] for trial in left)
    return seconds_left(setup.plan, found)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InvalidValueError(
            f"--run-seconds {text!r} is no number", remedy="give seconds, such as 90"
        ) from None
    return finite(number, "--run-seconds", minimum=0.0)
