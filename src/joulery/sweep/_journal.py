"""Journal of a sweep's finished runs, from which an interrupted sweep continues.

One JSON document per line: first the plan, then a run each. Lines are only appended, and each is
on the disk before the next run starts. A last line that a crash cut short is dropped.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from joulery.errors import FileError, UsageError
from joulery.files import decode_line, encode_line, lock, sync_folder, write_all
from joulery.frontier import Origin
from joulery.sweep._plan import Trial

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.sweep._plan import SweepPlan

SCHEMA = "joulery.sweep-journal/1"
FILE_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Time and energy of one run.

    Attributes:
        repeat: Number of the run among those of its setting, counted from 0.
        gpus: Number of boards that the command could use.
        watts: Power limit of every board.
        exit_code: Exit code of the command; a run with any other than 0 has failed.
        seconds: Time of the run.
        joules: Energy of the node, by its own meter or as the sum of all devices.
        gpu_joules: Energy of the boards that the command could use, if known.
        idle_gpu_joules: Energy of the other boards, if known.
        origin: Origin of the energy figure.
        source: Source of the energy figure.
        relative_error: One sigma of the energy, relative, if known.
        flags: Faults that the meter detected.
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
        """Run of the plan that this was."""
        return Trial(self.repeat, self.gpus, self.watts)


class SweepJournal:
    """Journal of one sweep, locked against a second one while it is open; made by ``open``.

    Attributes:
        runs: All recorded runs, in the order in which they ended.
    """

    def __init__(self, descriptor: int, runs: list[FinishedRun]) -> None:
        self._descriptor = descriptor
        self.runs = runs

    @classmethod
    def open(cls, folder: Path, plan: SweepPlan) -> Self:
        """Start a journal in ``folder``, or continue the one of the same plan.

        Raises:
            UsageError: The folder has the journal of another plan, or is in use.
            FileError: The file cannot be read or written, or is not a journal.
        """
        path = folder / FILE_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise FileError(
                f"cannot write {path}: {error.strerror}",
                remedy="choose another folder with --out",
            ) from None
        try:
            _lock(descriptor, path)
            runs, whole_bytes = _recorded(path, plan)
            os.ftruncate(descriptor, whole_bytes)
            journal = cls(descriptor, runs)
            if not whole_bytes:
                journal._write({"schema": SCHEMA, "plan": plan.to_dict()})
                sync_folder(folder)
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
        """Runs of the plan that succeeded; failed ones are made again."""
        return frozenset(run.trial for run in self.runs if run.exit_code == 0)

    def append(self, run: FinishedRun) -> None:
        """Record a run; it is on the disk when this returns."""
        self._write(asdict(run))
        self.runs.append(run)

    def _write(self, document: dict[str, Any]) -> None:
        try:
            write_all(self._descriptor, encode_line(document))
            os.fsync(self._descriptor)
        except OSError as full:
            raise FileError(
                f"cannot write the journal of the sweep: {full.strerror}",
                remedy="make room on the disk and run the same command again; it continues",
            ) from None


def has_journal(folder: Path) -> bool:
    """Whether ``folder`` is that of a sweep."""
    return (folder / FILE_NAME).exists()


def _lock(descriptor: int, path: Path) -> None:
    try:
        lock(descriptor)
    except BlockingIOError:
        raise UsageError(
            f"another sweep is writing {path}", remedy="wait for it, or choose another --out"
        ) from None


def _recorded(path: Path, plan: SweepPlan) -> tuple[list[FinishedRun], int]:
    """Runs in the file, and the number of bytes of its whole lines."""
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
        return decode_line(line)
    except ValueError:
        raise _damaged(path, number) from None


def _damaged(path: Path, number: int) -> FileError:
    return FileError(
        f"line {number} of {path} is not from a sweep",
        remedy="choose another folder with --out, or delete the file to start over",
    )


def _same_plan(header: dict[str, Any], plan: SweepPlan, path: Path) -> None:
    earlier = header.get("plan")
    if header.get("schema") != SCHEMA or not isinstance(earlier, dict):
        raise _damaged(path, 1)
    # Through JSON once, so that 1 and 1.0, lists and tuples compare as they are stored.
    options = decode_line(encode_line(plan.to_dict()))
    differences = [name for name in options if earlier.get(name) != options[name]]
    if differences:
        raise UsageError(
            f"{path} belongs to a sweep with other {' and '.join(differences)}",
            remedy="give the same options as then to continue, or choose another folder with --out",
        )


def _run(document: dict[str, Any], path: Path, number: int) -> FinishedRun:
    try:
        flags = tuple(document.pop("flags", ()))
        run = FinishedRun(**document, flags=flags)
        float(run.seconds), float(run.joules), float(run.watts), Origin(run.origin)
    except (TypeError, ValueError):
        raise _damaged(path, number) from None
    return run
