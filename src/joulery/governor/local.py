"""A lease without the daemon: through a watchdog child, or on boards that end with us."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import NotPossibleHereError
from joulery.governor.board import GovernedDevice, LeaseRequest
from joulery.governor.client import Connection
from joulery.governor.holding import Lease
from joulery.governor.journal import LeaseJournal, private_folder
from joulery.governor.places import state_folder

if TYPE_CHECKING:
    from joulery.hardware.device import Device

# Isolated from the job's folder and environment, but with the same Joulery.
_START = (
    "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('joulery.governor.watchdog', run_name='__main__')"
)
_LOCK = threading.Lock()
# By our process, since a forked child needs its own, and by where the state is.
_WATCHDOGS: dict[tuple[int, Path], tuple[subprocess.Popen[bytes], bytes]] = {}
_HELD: set[int] = set()


def watchdog() -> Connection:
    """A connection to the watchdog of this process, which is started if it does not run."""
    key = (os.getpid(), private_folder(state_folder()))
    with _LOCK:
        if key not in _WATCHDOGS or _WATCHDOGS[key][0].poll() is not None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind("")  # the kernel chooses a name without a file
                listener.listen(128)
                _WATCHDOGS[key] = _started(listener.fileno()), listener.getsockname()
        return Connection(_WATCHDOGS[key][1])


def _started(file: int) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _START, root, str(os.getpid()), str(file)],
        pass_fds=[file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # a Ctrl-C is meant for us alone
    )


@atexit.register
def _say_goodbye() -> None:
    """Leave no journal behind; a watchdog that is too slow goes on alone."""
    from joulery.governor.watchdog import GOODBYE

    for (process, _), (watchdog, _) in _WATCHDOGS.items():
        if process == os.getpid() and watchdog.poll() is None:
            watchdog.send_signal(GOODBYE)
            with suppress(subprocess.TimeoutExpired):
                watchdog.wait(2.0)


class DirectLease(Lease):
    """Holds a device that ends with this process.

    Args:
        device: The hardware.
        capped: Whether what is in force is a ceiling.
    """

    def __init__(self, device: Device, *, capped: bool) -> None:
        super().__init__()
        self._board = GovernedDevice(device, LeaseJournal(), capped=capped)

    def acquire(self, wish: dict[str, float | None]) -> None:
        """Take the device and set what is wished for."""
        device = self._board.device
        if id(device) in _HELD:
            flaw = f"{device.info.name} ({device.info.id}) is held by this very process"
            raise NotPossibleHereError(flaw, remedy="release its other lease, or change that one")
        self._board.begin()
        _HELD.add(id(device))
        try:
            self._change(wish)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the device back."""
        if self._is_mine() and self._board.held:
            _HELD.discard(id(self._board.device))
            self._board.finish()

    def _state(self) -> dict[str, float | None]:
        self._board.look()
        return self._board.state()

    def _change(self, wish: dict[str, float | None]) -> None:
        changed = self._wish | wish
        self._board.look()  # somebody may have lowered the ceiling
        self._board.check(LeaseRequest(**changed))
        self._board.apply(LeaseRequest(**changed))
        self._wish = changed
