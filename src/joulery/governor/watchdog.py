"""A child process that gives back what its parent changed, once the parent is dead or silent.

Started by :mod:`joulery.governor.local`. It first says which devices it can reach. Its parent then
sends lines: after how many seconds of silence to act, 0 for never, ``bye`` at a clean end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from joulery.governor.board import governable_devices
from joulery.governor.journal import FileJournal
from joulery.governor.orphans import reconciling, repair

_ATTEMPTS = 600
BYE = b"bye"


def main(pid: int, path: Path) -> None:
    """Watch over a process until it has ended and everything in its journal is back."""
    # Whoever stops a job's processes politely means the parent; we follow it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.pidfd_open(pid)
    devices = governable_devices()
    os.write(1, json.dumps(sorted(devices)).encode() + b"\n")
    os.close(1)
    journal = FileJournal(path)
    while not _has_ended(parent):
        repair(journal, devices)  # it is silent: stopped, or its container paused
    for _ in range(_ATTEMPTS):
        with reconciling(path.parent):
            if repair(journal, devices):
                journal.remove()
                return
        time.sleep(1.0)


def _has_ended(parent: int) -> bool:
    """Wait until the parent has ended, True, or has been silent for too long, False."""
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(0, select.POLLIN)
    silence: float | None = None
    while True:
        events = dict(poll.poll(silence and silence * 1e3))
        if parent in events:
            return True
        if not events:
            return False
        lines = os.read(0, 4096).split()
        if not lines:  # closed by mistake, as daemons do; its end will tell
            poll.unregister(0)
        elif BYE in lines:
            return True
        else:
            silence = float(lines[-1]) or None


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
