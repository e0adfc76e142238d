"""Find journals whose writer has died, and give back what they left changed."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import JouleryError
from joulery.governor.board import Board
from joulery.governor.journal import FileJournal, Intent, NoJournal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from joulery.hardware.device import Device

_SUFFIX = ".journal"


def own_journal(folder: Path) -> Path:
    """Where this process keeps its journal; the name tells whether its writer still lives."""
    return folder / f"{os.getpid()}-{_start_of(os.getpid())}{_SUFFIX}"


@contextmanager
def reconciling(folder: Path) -> Iterator[None]:
    """Keep other processes from repairing at the same time."""
    file = os.open(folder / "reconciling", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def orphans(folder: Path) -> list[FileJournal]:
    """Journals whose writer has died."""
    return [FileJournal(path) for path in sorted(folder.glob(f"*{_SUFFIX}")) if not _is_alive(path)]


def by_device(intents: Iterable[Intent]) -> dict[str, list[Intent]]:
    """The same intents, sorted by the device that they are about."""
    sorted_out: dict[str, list[Intent]] = {}
    for intent in intents:
        sorted_out.setdefault(intent.device, []).append(intent)
    return sorted_out


def repair(journal: FileJournal, devices: dict[str, Device]) -> bool:
    """Give back what a journal left changed; False if some of it has to wait.

    The journal itself is only read, since its writer may merely be asleep.
    """
    whole = True
    for device, intents in by_device(journal.load().values()).items():
        if device not in devices:
            whole = False
            continue
        board = Board(devices[device], NoJournal())
        board.adopt(intents)
        try:
            board.finish()
        except JouleryError:
            whole = False
    return whole


def repair_orphans(folder: Path, devices: dict[str, Device]) -> None:
    """Give back what processes that died left changed; what fails is kept for the next time."""
    with reconciling(folder):
        for journal in orphans(folder):
            if repair(journal, devices):
                journal.remove()


def _is_alive(path: Path) -> bool:
    pid, _, start = path.name.removesuffix(_SUFFIX).partition("-")
    return pid.isdecimal() and start != "" and _start_of(int(pid)) == start


def _start_of(pid: int) -> str:
    """When a process started, which tells it from a later one of the same number; "" if ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
