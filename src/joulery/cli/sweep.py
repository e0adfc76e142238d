"""``joulery sweep``: the energy and time of a command under one power limit after another."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from joulery.cli.sweep_setup import Setup
    from joulery.sweep import SweepJournal, SweepTable, Trial

SCHEMA = "joulery.sweep/1"
_DEFAULT_OUT = "sweep-output"
_DEFAULT_REPEATS = "3"
_OUTPUT_LOG = "output.log"
_TEXTS = ("sweep.json", "sweep.csv", "sweep.html", "frontier.json")
_PICTURE = "sweep.png"
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.usage = (
        "joulery sweep [options] -- COMMAND [ARGUMENTS...]\n"
        "       joulery sweep [options] --simulate NODE"
    )
    parser.epilog = (
        "The command must do the same work in every run. It sees the first N boards\n"
        "(CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, and JOULERY_GPUS=N); the others stay\n"
        "idle and count too. Run the same command line again to continue after an interruption.\n\n"
        "example: joulery sweep --limits 100:260:10 --repeat 10 --gpus 1,2,4,8 -- python train.py"
    )
    parser.add_argument("command", nargs="...", help="command to run, after `--`")
    parser.add_argument(
        "--limits",
        metavar="LOW:HIGH:STEP",
        help="power limits in watts, or a list such as 100,150,250; the default limit is added "
        "(default: a spread over what the boards accept)",
    )
    parser.add_argument(
        "--repeat",
        metavar="N",
        default=_DEFAULT_REPEATS,
        help="runs per setting (default: %(default)s)",
    )
    parser.add_argument(
        "--gpus", metavar="N,N", help="numbers of GPUs to run on (default: all of them)"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        default=_DEFAULT_OUT,
        help="where the journal and the results go (default: ./%(default)s)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace results in the folder that are not of a sweep, such as the demo's",
    )
    parser.add_argument(
        "--simulate", metavar="NODE", help="run a preset simulated node, such as rtx6000x8, instead"
    )
    parser.add_argument("--seed", default="0", help="decides the simulation's noise (default: 0)")
    parser.add_argument(
        "--stop-on-failure", action="store_true", help="end at the first run that fails"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and how long it takes, run nothing"
    )
    parser.add_argument(
        "--run-seconds", metavar="S", help="time of one run, for the estimate of --dry-run"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep, write its files and print its table."""
    from pathlib import Path

    from joulery.cli.checked import writable_folder
    from joulery.cli.sweep_setup import prepared
    from joulery.sweep import SweepJournal

    setup = prepared(arguments)
    folder = Path(arguments.out)
    if arguments.dry_run:
        return _dry_run(setup, folder, arguments)
    _check_results(folder, overwrite=arguments.overwrite)
    with SweepJournal.open(writable_folder(folder), setup.plan) as journal:
        try:
            with _signals_interrupt():
                complete = _swept(setup, folder, journal, arguments)
        except KeyboardInterrupt:
            return _interrupted(setup, journal)
        return _report(setup, journal, folder, arguments, complete=complete)


def _check_results(folder: Path, *, overwrite: bool) -> None:
    """Refuse to replace results that are not of a sweep: those have a journal beside them."""
    from joulery.errors import UsageError
    from joulery.sweep import has_journal

    if overwrite or has_journal(folder):
        return
    for name in (*_TEXTS, _PICTURE):
        if (folder / name).exists():
            raise UsageError(
                f"{folder / name} is there already, and not from a sweep",
                remedy="choose another folder with --out, or give --overwrite to replace it",
            )


def _swept(
    setup: Setup, folder: Path, journal: SweepJournal, arguments: argparse.Namespace
) -> bool:
    from joulery.sweep import run_sweep

    watch = _Watch(setup, journal)
    with (folder / _OUTPUT_LOG).open("ab") as output:
        try:
            return run_sweep(
                setup.plan,
                setup.environment,
                setup.work(output, watch.show),
                journal,
                stop_on_failure=arguments.stop_on_failure,
                on_trial=watch.begin,
            )
        finally:
            watch.done()


class _Watch:
    """Progress line of a sweep, with the time that is left."""

    def __init__(self, setup: Setup, journal: SweepJournal) -> None:
        from joulery.cli.progress import Progress
        from joulery.clock import REAL_CLOCK

        self._setup = setup
        self._journal = journal
        self._progress = Progress(silent_seconds=1.0)
        self._clock = REAL_CLOCK
        self._started = self._clock.now()
        self._found = len(journal.done)
        self._made = 0
        self._trial: Trial | None = None

    def begin(self, trial: Trial) -> None:
        """Start a run."""
        if self._trial is not None:
            self._made += 1
        self._trial = trial
        self.show()

    def show(self) -> None:
        """Show the line, if it is due."""
        from joulery.units import human_duration

        left = self._seconds_left()
        ends = "" if left is None else f"; about {human_duration(max(0.0, left))} left"
        failed = sum(run.exit_code != 0 for run in self._journal.runs)
        wrong = f", {failed} failed" if failed else ""
        number = self._found + self._made + 1
        self._progress.show(
            f"joulery: run {number} of {len(self._setup.plan)}{wrong}: {self._trial}{ends}"
        )

    def done(self) -> None:
        """Clear the line."""
        self._progress.done()

    def _seconds_left(self) -> float | None:
        if self._setup.node is None:
            from joulery.sweep import seconds_left

            return seconds_left(self._setup.plan, self._journal.runs)
        # Virtual time passes as fast as this machine computes.
        if not self._made:
            return None
        pace = (self._clock.now() - self._started) / self._made
        return pace * (len(self._setup.plan) - self._found - self._made)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Turn signals that end the process into KeyboardInterrupt, so that limits are restored."""
    import signal
    import threading

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    found = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)


def _interrupted(setup: Setup, journal: SweepJournal) -> int:
    import sys

    sys.stderr.write(
        f"joulery: interrupted after {len(journal.done)} of {len(setup.plan)} runs; the power "
        "limits are restored\n  → run the same command again to continue\n"
    )
    return _INTERRUPTED


def _report(
    setup: Setup,
    journal: SweepJournal,
    folder: Path,
    arguments: argparse.Namespace,
    *,
    complete: bool,
) -> int:
    import json
    import sys

    from joulery.errors import JouleryError
    from joulery.sweep import SweepTable

    table = SweepTable.of(journal.runs, setup.plan.default_watts, setup.device)
    if not table.settings:
        last = journal.runs[-1]
        raise JouleryError(
            f"no run succeeded; {last.trial} ended with exit code {last.exit_code}",
            remedy=f"see what the command printed in {folder / _OUTPUT_LOG}",
        )
    written, remarks = _write_files(setup, table, folder)
    if arguments.json:
        document = {
            **_document(setup, table),
            "complete": complete and not table.failures,
            "files": [str(path) for path in written],
            "remarks": remarks,
        }
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        sys.stdout.write(_text(setup, table, written, remarks, complete=complete))
    return 1 if table.failures else 0


def _document(setup: Setup, table: SweepTable) -> dict[str, Any]:
    """All results, ready for JSON."""
    document = {
        "schema": SCHEMA,
        "title": setup.title,
        "energy_of": setup.energy_of,
        "plan": setup.plan.to_dict(),
        **table.to_dict(),
    }
    if setup.published is not None:
        document["published"] = setup.published.to_dict()
    return document


def _write_files(setup: Setup, table: SweepTable, folder: Path) -> tuple[list[Path], list[str]]:
    """Write every form of the results; the files written, and remarks on those missing.

    Raises:
        FileError: The folder cannot be written to.
    """
    import json

    from joulery.errors import FileError, MissingExtraError
    from joulery.files import write_atomic
    from joulery.reports import draw, sweep_report, write_png

    summary = f"Energy is that of {setup.energy_of}. Gains are against the default limit."
    report = sweep_report(table, setup.title, summary, setup.published)
    contents = (
        json.dumps(_document(setup, table), allow_nan=False, indent=1) + "\n",
        table.to_csv(),
        report.html(),
        table.frontier().to_json() + "\n",
    )
    try:
        for name, text in zip(_TEXTS, contents, strict=True):
            write_atomic(folder / name, text.encode())
    except OSError as error:
        raise FileError(
            f"cannot write to {folder}: {error.strerror}",
            remedy="make room, and run the same command again: the runs are kept",
        ) from None
    written = [folder / name for name in _TEXTS]
    picture = folder / _PICTURE
    try:
        write_png([draw(chart, 600) for chart in report.charts], picture, columns=2)
    except MissingExtraError as missing:
        return written, [f"No {picture.name}: {missing}"]
    return [*written, picture], []


def _text(
    setup: Setup, table: SweepTable, written: list[Path], remarks: list[str], *, complete: bool
) -> str:
    from joulery.reports import Terminal, sweep_report

    lines = [
        sweep_report(table, setup.title, f"Energy of {setup.energy_of}.", setup.published).text(
            Terminal.of()
        ),
        "",
    ]
    if not complete:
        lines.append("Stopped at the first failure; run the same command again to continue.")
    lines.append(f"Written: {', '.join(str(path) for path in written)}")
    return "\n".join([*lines, *remarks]) + "\n"


def _dry_run(setup: Setup, folder: Path, arguments: argparse.Namespace) -> int:
    import json
    import sys

    from joulery.cli.sweep_setup import expected_seconds
    from joulery.reports import sweep_plan_text
    from joulery.sweep import recorded_runs

    plan = setup.plan
    runs = recorded_runs(folder, plan)
    done = len({run.trial for run in runs if run.exit_code == 0})
    seconds = expected_seconds(setup, runs, arguments.run_seconds)
    if arguments.json:
        document = {
            "plan": plan.to_dict(),
            "runs": len(plan),
            "done": done,
            "estimated_seconds": seconds,
        }
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        sys.stdout.write(
            sweep_plan_text(plan, done, seconds, simulated=setup.node is not None) + "\n"
        )
    return 0
