"""Processes and those that they started."""

from __future__ import annotations

from pathlib import Path


def children(process: int) -> list[int]:
    """Processes that a process has started and that run."""
    try:
        listed = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    except OSError:  # it has ended
        return []
    return [int(number) for number in listed.split()]


def family(process: int) -> list[int]:
    """A process and all that it has started, itself first."""
    return [process, *(one for child in children(process) for one in family(child))]
