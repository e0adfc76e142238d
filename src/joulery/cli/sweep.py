"""``joulery sweep``: the energy and time of a command under one power limit after another."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from joulery import hardware, metering, sweep
from joulery.cli.dispatch import INTERRUPTED, Output, signals_interrupt
from joulery.cli.options import (
    COMMAND_OPTION,
    Action,
    file,
    flag,
    given_command,
    limits,
    listed,
    option,
    whole,
    writable_folder,
    write_results,
)
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import JouleryError, MissingHardwareError, UsageError
from joulery.reports import Terminal, draw, sweep_report
from joulery.units import human_duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from joulery.hardware import Device, SimulatedNode
    from joulery.sweep import (
        SweepJournal,
        SweepWork,
        Trial,
    )

SCHEMA = "joulery.sweep/1"
_EXAMPLE = "joulery sweep --limits 100:260:10 -- python train.py"
_OUTPUT_LOG = "output.log"
_RESULTS = ("sweep.json", "sweep.csv", "sweep.html", "frontier.json", "sweep.png")
# A simulated counter is exact, so frequent readings would only take time.
_SIMULATED_SAMPLE_HERTZ = 0.01


@dataclass(frozen=True, slots=True)
class _Setup:
    """A sweep that the options describe.

    Attributes:
        plan: Runs to make.
        environment: Node on which to make them.
        title: Subject of the sweep in one line.
        command: Command to run; empty for a simulated node.
        node: Simulated node, if it is one.
    """

    plan: sweep.SweepPlan
    environment: sweep.SweepEnvironment
    title: str
    command: tuple[str, ...] = ()
    node: SimulatedNode | None = None

    @property
    def device(self) -> str:
        """Name of the boards."""
        return " and ".join(dict.fromkeys(board.info.name for board in self.environment.boards))

    @property
    def energy_of(self) -> str:
        """Description of what the joules include."""
        nodes = [
            d.info.name for d in self.environment.devices if d.info.kind is hardware.DeviceKind.NODE
        ]
        if nodes:
            return f"the whole node, by {nodes[0]}"
        kinds = dict.fromkeys(d.info.kind.value for d in self.environment.devices)
        return f"the sum of all devices ({', '.join(kinds)}); no meter for the whole node is here"

    def work(self, output: IO[bytes], on_wait: Callable[[], None]) -> SweepWork:
        """Work to run; ``output`` takes everything that a command prints."""
        if self.node is not None:
            return sweep.SimulatedWork(self.node)
        return sweep.CommandWork(self.command, self.environment.boards, output, on_wait)


def _prepare(arguments: argparse.Namespace) -> _Setup:
    """The sweep that the options describe, once all are known to be valid.

    Raises:
        UsageError: Options contradict each other, or a value is out of range.
        MissingHardwareError: This machine has no GPU.
    """
    command = _command(arguments)
    if arguments.simulate is not None:
        return _simulate(arguments)
    devices = tuple(metering.my_devices(REAL_CLOCK))
    boards = sweep.settable_boards(devices)
    if not boards:
        raise MissingHardwareError(
            "there is no GPU here whose power could be limited",
            remedy="see `joulery doctor`; try `joulery sweep --simulate rtx6000x8` without one",
        )
    plan = _plan(arguments, command, boards)
    title = f"Power limits of {len(boards)} × {boards[0].info.name}: {' '.join(command)}"
    return _Setup(plan, sweep.SweepEnvironment(boards, devices, REAL_CLOCK), title, command)


def _simulate(arguments: argparse.Namespace) -> _Setup:
    seed = arguments.seed
    preset = hardware.preset(arguments.simulate)
    clock = VirtualClock()
    node = hardware.SimulatedNode(preset, clock, seed=seed)
    plan = _plan(arguments, ("simulate", preset.name, f"seed {seed}"), node.gpus)
    devices: tuple[Device, ...] = (*node.gpus, node)
    environment = sweep.SweepEnvironment(node.gpus, devices, clock, _SIMULATED_SAMPLE_HERTZ)
    title = f"{preset.work.name} on a simulated node of {preset.boards} × {preset.board}"
    return _Setup(plan, environment, title, node=node)


def _command(arguments: argparse.Namespace) -> tuple[str, ...]:
    words = given_command(arguments)
    if arguments.simulate is not None:
        if words:
            raise UsageError(
                "a simulated node runs its own job, not a command",
                remedy="leave out either --simulate or the command",
            )
        return ()
    if not words or not words[0]:
        raise UsageError("no command given", remedy=f"put it after `--`: {_EXAMPLE}")
    metering.check_command(words, "joulery sweep")
    return tuple(words)


def _plan(
    arguments: argparse.Namespace, work: tuple[str, ...], boards: Sequence[Device]
) -> sweep.SweepPlan:
    bounds = sweep.common_limits(boards)
    limits_watts = arguments.limits
    if limits_watts is None:
        highest = min(bounds.max_watts, bounds.current_watts)
        limits_watts = sweep.spread_limits(replace(bounds, max_watts=highest))
    return sweep.SweepPlan(
        work=work,
        boards=tuple(board.info.id for board in boards),
        limits_watts=sweep.checked_limits(limits_watts, bounds),
        gpu_counts=tuple(sorted(set(arguments.gpus or [len(boards)]))),
        repeats=arguments.repeat,
        default_watts=bounds.default_watts,
    )


def _run(arguments: argparse.Namespace) -> Output | int:
    setup, folder = _prepare(arguments), arguments.out
    _check_results(folder, overwrite=arguments.overwrite)
    with sweep.SweepJournal.open(writable_folder(folder), setup.plan) as journal:
        try:
            with signals_interrupt():
                _sweep(setup, folder, journal)
        except KeyboardInterrupt:
            return _interrupt(setup, journal)
        return _report(setup, journal, folder)


def _check_results(folder: Path, *, overwrite: bool) -> None:
    """Refuse to replace results that are not of a sweep: those have a journal beside them."""
    if overwrite or sweep.has_journal(folder):
        return
    for name in _RESULTS:
        if (folder / name).exists():
            raise UsageError(
                f"{folder / name} is there already, and not from a sweep",
                remedy="choose another folder with --out, or give --overwrite to replace it",
            )


def _sweep(setup: _Setup, folder: Path, journal: SweepJournal) -> None:
    progress, doing = Progress(silent_seconds=1.0), ""
    first = len(journal.done) - len(journal.runs) + 1

    def begin(trial: Trial) -> None:
        nonlocal doing
        failed = sum(run.exit_code != 0 for run in journal.runs)
        wrong = f", {failed} failed" if failed else ""
        number = first + len(journal.runs)
        doing = f"joulery: run {number} of {len(setup.plan)}{wrong}: {trial.setting}"
        show()

    def show() -> None:
        # Simulated runs take virtual time, which does not tell how long they take here.
        seconds = None if setup.node else sweep.seconds_left(setup.plan, journal.runs)
        progress.show(
            doing if seconds is None else f"{doing}; about {human_duration(seconds)} left"
        )

    with (folder / _OUTPUT_LOG).open("ab") as output:
        try:
            work = setup.work(output, show)
            sweep.run_sweep(setup.plan, setup.environment, work, journal, on_trial=begin)
        finally:
            progress.done()


def _interrupt(setup: _Setup, journal: SweepJournal) -> int:
    sys.stderr.write(
        f"joulery: interrupted after {len(journal.done)} of {len(setup.plan)} runs; the power "
        "limits are restored\n  → run the same command again to continue\n"
    )
    return INTERRUPTED


def _report(setup: _Setup, journal: SweepJournal, folder: Path) -> Output:
    table = sweep.SweepTable.of(journal.runs, setup.plan.default_watts, setup.device)
    if not table.settings:
        last = journal.runs[-1]
        raise JouleryError(
            f"no run succeeded; {last.trial} ended with exit code {last.exit_code}",
            remedy=f"see what the command printed in {folder / _OUTPUT_LOG}",
        )
    summary = f"Energy is that of {setup.energy_of}. Gains are against the default limit."
    report = sweep_report(table, setup.title, summary)
    results = {
        "schema": SCHEMA,
        "title": setup.title,
        "energy_of": setup.energy_of,
        "plan": setup.plan.to_dict(),
        **table.to_dict(),
    }
    texts = {
        "sweep.json": json.dumps(results, allow_nan=False, indent=1) + "\n",
        "sweep.csv": table.to_csv(),
        "sweep.html": report.html(),
        "frontier.json": table.frontier().to_json() + "\n",
    }
    pictures = {"sweep.png": [draw(chart, 600) for chart in report.charts]}
    written, remarks = write_results(folder, texts, pictures, columns=2)
    more = {"complete": not table.failures, "files": written, "remarks": remarks}

    def text() -> str:
        files = f"Written: {', '.join(map(str, written))}"
        return "\n".join([report.text(Terminal.of()), "", files, *remarks])

    return Output(results | more, text, 1 if table.failures else 0)


COMMAND = Action(
    _run,
    (
        COMMAND_OPTION,
        option(
            "--limits",
            "power limits in watts, or a list such as 100,150,250; the default limit is added "
            "(default: a spread over what the boards accept)",
            "LOW:HIGH:STEP",
            limits,
        ),
        option("--repeat", "runs per setting (3)", "N", whole(1, 1_000_000), default=3),
        option(
            "--gpus", "numbers of GPUs to run on (default: all)", "N,N", listed(whole(1, 10**6))
        ),
        file(
            "--out",
            "where the journal and the results go (default: ./%(default)s)",
            "DIR",
            default=Path("sweep-output"),
        ),
        flag("--overwrite", "replace results that are not of a sweep, such as the demo's"),
        option("--simulate", "run a preset simulated node, such as rtx6000x8, instead", "NODE"),
        option("--seed", "decides the simulation's noise (0)", read=whole(0, 2**64 - 1), default=0),
    ),
    usage=(
        "joulery sweep [options] -- COMMAND [ARGUMENTS...]\n"
        "       joulery sweep [options] --simulate NODE"
    ),
    measures=True,
    epilog=f"""\
The command must do the same work in every run. It sees the first N boards
(CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or HABANA_VISIBLE_MODULES, and
JOULERY_GPUS=N); the others stay idle and count too. Run the same command line again
to continue after an interruption.

example: {_EXAMPLE}""",
)
