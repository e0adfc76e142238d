"""The finished runs of a sweep on disk, so that an interrupted sweep goes on where it stopped.

One JSON document per line: first the plan, then a run each. Lines are only ever appended, and
each is on the disk before the next run starts. A last line that a crash cut short is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from joulery.errors import FileError, UsageError
from joulery.frontier import Origin
from joulery.sweep.plan import Trial

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.sweep.plan import SweepPlan

SCHEMA = "joulery.sweep-journal/1"
FILE_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What one run of the command took.

    Attributes:
        repeat: Which of the runs of its setting, counted from 0.
        gpus: Number of boards that the command could use.
        watts: Power limit of every board.
        exit_code: The command's; a run with any other than 0 has failed and counts for nothing.
        seconds: Its time.
        joules: Energy of the node, by its own meter or as the sum of all devices.
        gpu_joules: The part of the boards that the command could use, if known.
        idle_gpu_joules: The part of the other boards, if known.
        origin: How the energy came about.
        source: Where it was read.
        relative_error: One sigma of the energy, relative, if known.
        flags: What the meter noticed.
    """

    repeat: int
    gpus: int
    watts: float
    exit_code: int
    seconds: float
    joules: float
    gpu_joules: float | None = None
    idle_gpu_joules: float | None = None
    origin: str = Origin.ASSUMED
    source: str = ""
    relative_error: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def trial(self) -> Trial:
        """Which run of the plan it is."""
        return Trial(self.repeat, self.gpus, self.watts)


class SweepJournal:
    """The journal of one sweep; open while the sweep runs, and locked against a second one.

    Use :meth:`open`. On a plan that is already in the file, the runs found there are kept.

    Attributes:
        runs: Every run recorded, in the order in which they ended.
    """

    def __init__(self, descriptor: int, runs: list[FinishedRun]) -> None:
        self._descriptor = descriptor
        self.runs = runs

    @classmethod
    def open(cls, folder: Path, plan: SweepPlan) -> Self:
        """Start a journal in ``folder``, or go on with the one of the same plan.

        Raises:
            UsageError: The folder has the journal of another plan, or is in use.
            FileError: The file cannot be read or written, or is no journal.
        """
        path = folder / FILE_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as refused:
            raise FileError(
                f"cannot write {path}: {refused.strerror}",
                remedy="choose another folder with --out",
            ) from None
        try:
            _lock(descriptor, path)
            runs, whole_bytes = _recorded(path, plan)
            os.ftruncate(descriptor, whole_bytes)
            journal = cls(descriptor, runs)
            if not whole_bytes:
                journal._write({"schema": SCHEMA, "plan": plan.to_dict()})
                _sync_folder(folder)
        except BaseException:
            os.close(descriptor)
            raise
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)

    @property
    def done(self) -> frozenset[Trial]:
        """The runs of the plan that need not be made again; failed ones are."""
        return frozenset(run.trial for run in self.runs if run.exit_code == 0)

    def append(self, run: FinishedRun) -> None:
        """Record a run; it is on the disk when this returns."""
        self._write(asdict(run))
        self.runs.append(run)

    def _write(self, document: dict[str, Any]) -> None:
        line = json.dumps(document, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as full:
            raise FileError(
                f"cannot write the journal of the sweep: {full.strerror}",
                remedy="make room on the disk and run the same command again; it goes on",
            ) from None


def recorded_runs(folder: Path, plan: SweepPlan) -> list[FinishedRun]:
    """The runs of ``plan`` that a journal in ``folder`` holds; nothing is written."""
    path = folder / FILE_NAME
    return _recorded(path, plan)[0] if path.exists() else []


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"another sweep is writing {path}", remedy="wait for it, or choose another --out"
        ) from None


def _sync_folder(folder: Path) -> None:
    """Have the file's name on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _recorded(path: Path, plan: SweepPlan) -> tuple[list[FinishedRun], int]:
    """The runs in the file, and how many of its bytes are whole lines."""
    content = path.read_bytes()
    whole_bytes = content.rfind(b"\n") + 1
    lines = content[:whole_bytes].splitlines()
    if not lines:
        return [], 0
    _same_plan(_parsed(lines[0], path, 1), plan, path)
    return [
        _run(_parsed(line, path, n), path, n) for n, line in enumerate(lines[1:], 2)
    ], whole_bytes


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise _damaged(path, number)
    return document


def _damaged(path: Path, number: int) -> FileError:
    return FileError(
        f"line {number} of {path} is not from a sweep",
        remedy="choose another folder with --out, or take the file away to start over",
    )


def _same_plan(header: dict[str, Any], plan: SweepPlan, path: Path) -> None:
    found = header.get("plan")
    if header.get("schema") != SCHEMA or not isinstance(found, dict):
        raise _damaged(path, 1)
    # Through JSON once, so that 1 and 1.0, lists and tuples compare as they are stored.
    wanted = json.loads(json.dumps(plan.to_dict()))
    changed = [name for name in wanted if found.get(name) != wanted[name]]
    if changed:
        raise UsageError(
            f"{path} belongs to a sweep with other {' and '.join(_WORDS[n] for n in changed)}",
            remedy="give the same options as then to go on, or choose another folder with --out",
        )


_WORDS = {
    "work": "work to run",
    "boards": "boards",
    "limits_watts": "limits",
    "gpu_counts": "numbers of GPUs",
    "repeats": "repeats",
    "default_watts": "default limit",
}


def _run(document: dict[str, Any], path: Path, number: int) -> FinishedRun:
    try:
        flags = tuple(document.pop("flags", ()))
        run = FinishedRun(**document, flags=flags)
        float(run.seconds), float(run.joules), float(run.watts), Origin(run.origin)
    except (TypeError, ValueError):
        raise _damaged(path, number) from None
    return run
