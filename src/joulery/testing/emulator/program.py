"""Emulated boards that work as hard as a program does, and slow it down as real boards would.

The program computes on the CPU, so the boards follow its processor time: busy while it computes,
idle while it waits. A board under a lower limit or clock takes longer for a step; the program is
held back (``SIGSTOP``, ``SIGCONT``) for the same share of time, so that what a limit saves and what
it costs are both there to be measured.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from joulery.clock import REAL_CLOCK
from joulery.hardware import catalog, clock_states

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.hardware import Workload
    from joulery.testing.emulator.node import EmulatedNode

# By hand: short beside a step of a training, long beside a signal.
_PERIOD_SECONDS = 0.02
# By hand: the load is looked at so often, each look takes about a millisecond of processor time.
_LOOK_SECONDS = 0.2
# By hand: a program that uses less of one core waits.
_BUSY_CORES = 0.2
# By hand: a pause shorter than this share of a period is left out.
_LEAST_PAUSE = 0.005
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Continues the processes of the last line that it read, once the emulator has ended.
_GUARD = """
import contextlib, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
pids = ""
for pids in sys.stdin:
    pass
for pid in pids.split():
    with contextlib.suppress(OSError):
        os.kill(int(pid), signal.SIGCONT)
"""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process and its processor time since it began, children that ended included."""

    pid: int
    parent: int
    cpu_seconds: float
    runnable: bool


class ProgramLoad:
    """Load of emulated boards that follows the processor time of the processes below this one.

    Args:
        node: Node whose boards work for those processes.
        workload: Name of a reference workload: what a step asks of a board.
        always_busy: Whether the boards work all the time, whatever the program does.
        clock: Clock of the periods.

    Attributes:
        busy_seconds: Time in which the boards were busy; by samples where the program itself drives
            them, as a self-test does.
        paused_seconds: Part of it in which the program was held back.
    """

    def __init__(
        self,
        node: EmulatedNode,
        workload: str,
        *,
        always_busy: bool = False,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.busy_seconds = self.paused_seconds = 0.0
        self._node = node
        self._loads: list[Workload] = [
            catalog.workload(workload, spec.board) for spec in node.specs
        ]
        self._full_seconds = [
            clock_states(spec.board, load)[-1].seconds
            for spec, load in zip(node.specs, self._loads, strict=True)
        ]
        self._always_busy = always_busy
        self._clock = clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._set_busy(busy=self._always_busy)
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-c", _GUARD], stdin=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._guard is not None:
            self._guard.communicate()
        self._set_busy(busy=False)

    def _run(self) -> None:
        busy, processes = self._always_busy, self._followed()
        look_seconds, paused_seconds = self._clock.now(), 0.0
        while not self._ended.is_set():
            now = self._clock.now()
            elapsed = now - look_seconds
            if elapsed >= _LOOK_SECONDS:
                latest = self._followed()
                cores = _used_seconds(processes, latest) / max(elapsed - paused_seconds, 1e-3)
                computing = cores >= _BUSY_CORES or _waits_for_core(processes, latest)
                is_driven = self._node.is_driven
                works = self._is_any_working() if is_driven else busy
                self.busy_seconds += elapsed if works else 0.0
                if is_driven:
                    busy = False
                elif (computing or self._always_busy) != busy:
                    busy = not busy
                    self._set_busy(busy=busy)
                processes, look_seconds, paused_seconds = latest, now, 0.0
            pause = _PERIOD_SECONDS * (1.0 - self._speed()) if busy else 0.0
            self._ended.wait(_PERIOD_SECONDS - pause)
            if pause >= _LEAST_PAUSE * _PERIOD_SECONDS:
                self._hold_back(processes, pause)
                paused_seconds += pause
                self.paused_seconds += pause
        self.busy_seconds += self._clock.now() - look_seconds if busy else 0.0

    def _followed(self) -> list[ProcessUse]:
        """Processes below this one, made known to the guard."""
        guard = self._guard
        if guard is None or guard.stdin is None:
            return []
        processes = [process for process in descendants(os.getpid()) if process.pid != guard.pid]
        with contextlib.suppress(OSError):  # a guard that was killed guards nothing
            guard.stdin.write(" ".join(str(process.pid) for process in processes) + "\n")
            guard.stdin.flush()
        return processes

    def _hold_back(self, processes: list[ProcessUse], seconds: float) -> None:
        try:
            _signal_all(processes, signal.SIGSTOP)
            self._ended.wait(seconds)
        finally:
            _signal_all(processes, signal.SIGCONT)

    def _speed(self) -> float:
        """Speed of the slowest board, relative to its highest clock."""
        return min(
            full / max(self._node.truth(index).steady.seconds, full)
            for index, full in enumerate(self._full_seconds)
        )

    def _is_any_working(self) -> bool:
        boards = range(len(self._loads))
        return any(self._node.truth(index).steady.seconds > 0 for index in boards)

    def _set_busy(self, *, busy: bool) -> None:
        for index, load in enumerate(self._loads):
            self._node.set_load(index, load if busy else None)


def descendants(root: int) -> list[ProcessUse]:
    """Every process below one, and below those."""
    processes = {process.pid: process for process in map(_read_process, _pids()) if process}
    tree = {root}
    for pid in sorted(processes):  # a parent is older; ids that wrapped are met a look later
        if processes[pid].parent in tree:
            tree.add(pid)
    return [processes[pid] for pid in sorted((tree - {root}) & processes.keys())]


def _signal_all(processes: list[ProcessUse], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _used_seconds(before: list[ProcessUse], after: list[ProcessUse]) -> float:
    """Processor time between two looks; that of processes which ended is their parents'."""
    return max(0.0, sum(use.cpu_seconds for use in after) - sum(use.cpu_seconds for use in before))


def _waits_for_core(before: list[ProcessUse], after: list[ProcessUse]) -> bool:
    """Whether a process wants to compute at two looks, though a busy machine may not let it."""
    runnable = {use.pid for use in before if use.runnable}
    return any(use.runnable and use.pid in runnable for use in after)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read_process(pid: int) -> ProcessUse | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has ended
        return None
    fields = text.rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    return ProcessUse(pid, int(fields[1]), ticks / _TICKS_PER_SECOND, fields[0] == "R")
