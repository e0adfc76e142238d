"""A lease without the daemon: this process writes, and a watchdog child gives back if it dies."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.errors import NotPossibleHereError
from joulery.frontier import Origin
from joulery.governor.board import Board, Wish, governable_devices
from joulery.governor.claims import FileClaim
from joulery.governor.journal import FileJournal, NoJournal, private_folder
from joulery.governor.orphans import orphans, own_journal, repair_orphans
from joulery.governor.places import state_folder

if TYPE_CHECKING:
    from joulery.hardware.device import Device

SIMULATED = "simulated"
# Isolated from the job's folder and environment, but with the same Joulery.
_START = (
    "import sys, runpy; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('joulery.governor.watchdog', run_name='__main__')"
)
_HELD: dict[object, LocalHolder] = {}
_GUARDS: dict[tuple[int, Path], Guard] = {}


class Guard:
    """The journal of this process and the child that reads it should we die.

    Args:
        folder: Where journals are.
    """

    def __init__(self, folder: Path) -> None:
        self._path = own_journal(folder)
        self._process = os.getpid()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._reached: list[str] = []
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self.folder = folder
        self.journal = FileJournal(self._path)

    def start(self) -> None:
        """Repair what others left, then stand ready."""
        if orphans(self.folder):
            repair_orphans(self.folder, governable_devices())
        self.journal.start()
        self._revive()
        threading.Thread(target=self._show_life, name="joulery-watchdog", daemon=True).start()
        atexit.register(self._end)

    def check(self, device: Device) -> None:
        """Refuse a device that the watchdog cannot reach."""
        self._revive()
        # An emulated board ends with its test, so nothing can be left behind on it.
        if device.info.id not in self._reached and device.provenance.origin != Origin.SIMULATED:
            raise NotPossibleHereError(
                f"the watchdog cannot reach {device.info.name} ({device.info.id})",
                remedy="offer the device through a joulery.devices entry point",
            )

    def tell(self) -> None:
        """Holders came or went."""
        self._changed.set()

    def _revive(self) -> None:
        """Start the watchdog if it does not run."""
        with self._lock:
            if self._watchdog is not None and self._watchdog.poll() is None:
                return
            root = Path(__file__).parents[2]
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, root, str(self._process), self._path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # a Ctrl-C is meant for us alone
            )
            if self._watchdog.stdout is not None:
                with self._watchdog.stdout as ready:
                    self._reached = json.loads(ready.readline() or b"[]")

    def _show_life(self) -> None:
        while True:
            silence = min((holder.ttl_seconds for holder in list(_HELD.values())), default=0.0)
            if silence:
                self._revive()
            self._say(f"{silence}\n")
            self._changed.wait(silence / 3 or None)
            self._changed.clear()

    def _say(self, line: str) -> None:
        pipe = self._watchdog.stdin if self._watchdog is not None else None
        if pipe is not None:
            with suppress(OSError, ValueError):
                pipe.write(line.encode())
                pipe.flush()

    def _end(self) -> None:
        if self._process != os.getpid() or self._watchdog is None:
            return
        for holder in list(_HELD.values()):
            holder.release()
        self._say("bye\n")
        with suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(2.0)


def _guard(folder: Path) -> Guard:
    """The one guard of this process; a forked child gets its own."""
    key = (os.getpid(), folder)
    if key not in _GUARDS:
        guard = Guard(private_folder(folder))
        guard.start()
        _GUARDS[key] = guard
    return _GUARDS[key]


class LocalHolder:
    """Holds a device from within this process.

    A simulated board needs no guard, since it ends with us, and has no administrator whose cap
    would be a ceiling.

    Args:
        device: The hardware.
        ttl_seconds: After how long without a sign of life the watchdog takes the device back.
    """

    def __init__(self, device: Device, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._device = device
        self._process = os.getpid()
        self._wish: dict[str, float | None] = {}
        self._guard: Guard | None = None
        self._key: object = device.info.id
        if device.info.vendor == SIMULATED:
            self._key = id(device)
            self._board = Board(device, NoJournal(), capped=False)
        else:
            self._guard = _guard(state_folder())
            claim = FileClaim(self._guard.folder, device.info.id)
            self._board = Board(device, self._guard.journal, claim)

    def acquire(self, wish: dict[str, float | None]) -> None:
        """Take the device and set what is wished for."""
        if self._key in _HELD:
            raise NotPossibleHereError(
                f"{self._device.info.name} ({self._device.info.id}) is held by this very process",
                remedy="release the other lease first, or change the limit under it",
            )
        if self._guard is not None:
            self._guard.check(self._device)
        self._board.begin()
        _HELD[self._key] = self
        self._tell()
        try:
            self.change(wish)
        except BaseException:
            self.release()
            raise

    def change(self, wish: dict[str, float | None]) -> None:
        """Set other values."""
        changed = self._wish | wish
        if self._board.has_limit:
            self._board.look()  # somebody may have lowered the ceiling
        self._board.check(Wish(**changed))
        self._board.apply(Wish(**changed))
        self._wish = changed

    def state(self) -> dict[str, Any]:
        """What is in force."""
        board = self._board
        return {
            "watts": board.look() if board.has_limit else None,
            "hertz": board.hertz,
            "baseline_watts": board.baseline_watts,
            "ceiling_watts": board.ceiling_watts,
            "foreign_change": board.overridden,
        }

    def release(self) -> None:
        """Give the device back; nothing happens in a forked child, which does not hold it."""
        if self._process == os.getpid() and self._board.held:
            try:
                self._board.finish()
            finally:
                _HELD.pop(self._key, None)
                self._tell()

    def _tell(self) -> None:
        if self._guard is not None:
            self._guard.tell()
