"""The watchdog: a governor for one process that has the rights itself, started by it.

It restores what that process changed once it is dead or silent, as the daemon does for all clients.
It is no child of the process that it serves, since some frameworks (Ray) kill the children of a
worker that ends.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from joulery.governor._journal import private_folder, state_folder

_GOODBYE = signal.SIGUSR1
_ALL = (0.0, float("inf"))
_ATTEMPTS = 600  # ten minutes at one a second, as for a driver that is reloaded
# Isolated from the job's folder and environment, but with the same Joulery. The first process says
# the number of the watchdog and ends, so that the watchdog has another parent.
_START = """
import os, sys, runpy
if pid := os.fork():
    os.write(1, b"%d" % pid)
    os._exit(0)
os.dup2(2, 1)
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("joulery.governor._watchdog", run_name="__main__")
"""
_LOCK = threading.Lock()
# Files of the watchdogs' processes and addresses of their sockets: by process, since a forked child
# needs its own, and by state folder.
_WATCHDOGS: dict[tuple[int, Path], tuple[int, bytes]] = {}


def watchdog_address() -> bytes:
    """Name of the socket of this process's watchdog, which is started if it does not run."""
    key = (os.getpid(), private_folder(state_folder()))
    with _LOCK:
        if key in _WATCHDOGS and _has_ended(_WATCHDOGS[key][0]):
            os.close(_WATCHDOGS.pop(key)[0])
        if key not in _WATCHDOGS:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind("")  # the kernel chooses a name without a file
                listener.listen(128)
                _WATCHDOGS[key] = _started(listener.fileno()), listener.getsockname()
        return _WATCHDOGS[key][1]


def _started(file: int) -> int:
    """Start a watchdog that listens on a file; the file of its process."""
    root = str(Path(__file__).parents[2])
    first = subprocess.run(
        [sys.executable, "-I", "-c", _START, root, str(os.getpid()), str(file)],
        pass_fds=[file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # a Ctrl-C is meant for the job alone
        check=False,
    )
    if not first.stdout:
        raise OSError("the watchdog did not start")
    return os.pidfd_open(int(first.stdout))


def _has_ended(watchdog: int, wait_seconds: float = 0.0) -> bool:
    """Whether the process behind a file has ended, after waiting for it."""
    poll = select.poll()
    poll.register(watchdog, select.POLLIN)
    return bool(poll.poll(wait_seconds * 1000))


@atexit.register
def _end_watchdogs() -> None:
    """Let watchdogs clear their journals; one that is too slow goes on alone.

    It runs after the handlers that were registered since this module was imported: whoever still
    holds a lease at exit should import ``joulery.governor`` before registering.
    """
    for (process, _), (watchdog, _) in _WATCHDOGS.items():
        if process == os.getpid() and not _has_ended(watchdog):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(watchdog, _GOODBYE)
                _has_ended(watchdog, 2.0)


async def watch(pid: int, listener: socket.socket) -> None:
    """Serve a process until it has ended or sends the signal, and everything is restored."""
    import asyncio

    from joulery.governor._daemon import AuditLog, Governor, governed_devices
    from joulery.governor._policy import ANY, AccessPolicy, Rule
    from joulery.governor._server import ConnectionLimits

    # A signal that ends a job's processes is meant for the job; the watchdog follows it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    uids, devices = frozenset({os.geteuid()}), frozenset({ANY})
    rule = Rule(uids, frozenset(), devices, limits_watts=_ALL, clocks_hertz=_ALL)
    no_audit = AuditLog(Path(os.devnull))
    limits = ConnectionLimits(requests_per_second=1e6)
    governed = governed_devices(state_folder(), no_audit, holder=pid)
    governor = Governor(governed, AccessPolicy((rule,)), no_audit, limits)
    loop = asyncio.get_running_loop()
    serving = loop.create_task(governor.serve([(listener, None)], lambda: None))
    loop.add_signal_handler(_GOODBYE, serving.cancel)
    process = os.pidfd_open(pid)

    def end() -> None:
        loop.remove_reader(process)  # which stays readable, for as long as restoring takes
        serving.cancel()

    loop.add_reader(process, end)
    await governor.finish(serving, _ATTEMPTS)


if __name__ == "__main__":
    import asyncio

    asyncio.run(watch(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
