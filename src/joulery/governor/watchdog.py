"""A governor for one process that has the rights itself: its child, which outlives it.

Started by :mod:`joulery.governor.local`. It gives back what its parent changed once the parent is
dead or silent, just as the daemon does for everyone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from joulery.governor.daemon import AuditLog, Governor, GovernorConfig
from joulery.governor.policy import ANY, AccessPolicy, Rule
from joulery.governor.server import ConnectionLimits

GOODBYE = signal.SIGUSR1
_ALL = (0.0, float("inf"))
_ATTEMPTS = 600
_BOUNDS = ConnectionLimits(requests_per_second=1e6)


async def watch(pid: int, listener: socket.socket) -> None:
    """Serve a process until it has ended or says goodbye, and everything is back."""
    # Whoever stops a job's processes politely means the parent; we follow it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own = Rule(frozenset({os.geteuid()}), frozenset(), frozenset({ANY}), _ALL, _ALL)
    settings, no_audit = GovernorConfig(bounds=_BOUNDS), AuditLog(Path(os.devnull))
    governor = Governor(settings, AccessPolicy((own,)), no_audit, holder=pid)
    loop = asyncio.get_running_loop()
    serving = loop.create_task(governor.serve(listener, lambda: None))
    loop.add_signal_handler(GOODBYE, serving.cancel)
    loop.add_reader(os.pidfd_open(pid), serving.cancel)
    await governor.finish(serving, _ATTEMPTS)


if __name__ == "__main__":
    asyncio.run(watch(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
