"""The daemon: repair what the last one left, then serve until told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, JouleryError, NotPossibleHereError
from joulery.governor.board import GovernedDevice, governable_devices
from joulery.governor.journal import FileJournal, private_folder
from joulery.governor.leases import LOOK_SECONDS, LeaseTable
from joulery.governor.ownership import owns
from joulery.governor.places import default_socket, state_folder
from joulery.governor.policy import AccessPolicy, load_policy
from joulery.governor.server import ConnectionLimits, Server
from joulery.governor.worker import DeviceWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NICENESS = -10
_MAX_AUDIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GovernorConfig:
    """Where the daemon's things are; the folder of ``state`` is for its user alone."""

    socket: Path = field(default_factory=default_socket)
    state: Path = field(default_factory=state_folder)
    policy: Path | None = None
    audit: Path | None = None
    bounds: ConnectionLimits = field(default_factory=ConnectionLimits)


def serve(settings: GovernorConfig, on_ready: Callable[[], None] = lambda: None) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the policy again.

    Raises:
        FileError: The policy makes no sense.
        NotPossibleHereError: Another daemon serves here already.
    """
    asyncio.run(_serve(settings, on_ready))


async def _serve(settings: GovernorConfig, on_ready: Callable[[], None]) -> None:
    policy = load_policy(settings.policy) if settings.policy else AccessPolicy()
    only_one = FileJournal(private_folder(settings.state), "the governor's state")
    only_one.claim()
    audit = AuditLog(settings.audit or settings.state / "audit.jsonl")
    # Callers must not wait for the device's thread, nor the other way round.
    sys.setswitchinterval(1e-4)
    with _listening(settings.socket) as listener:
        governor = Governor(settings, policy, audit)
        loop = asyncio.get_running_loop()
        serving = loop.create_task(governor.serve(listener, on_ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        loop.add_signal_handler(signal.SIGHUP, governor.reload, settings.policy)
        await governor.finish(serving)


class Governor:
    """Everything of a governor at work.

    Args:
        settings: Where its things are.
        policy: Who may do what.
        audit: Told everything that happens.
        holder: The process to name to other governors; this one by default.
    """

    def __init__(
        self,
        settings: GovernorConfig,
        policy: AccessPolicy,
        audit: AuditLog,
        holder: int | None = None,
    ) -> None:
        self._audit = audit
        self._bounds = settings.bounds
        self._boards = {
            name: GovernedDevice(
                device,
                FileJournal(settings.state, name, holder),
                partial(audit.write, "foreign", device=name),
            )
            for name, device in governable_devices().items()
        }
        worker = partial(DeviceWorker, REAL_CLOCK, settings.bounds.stall_seconds)
        self._ledger = LeaseTable(self._boards, policy, REAL_CLOCK, owns, audit.write, worker)

    async def serve(self, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        """Give back what the dead left changed, then serve until cancelled."""
        for board in self._boards.values():
            if board.journal.left() is not None:
                with suppress(JouleryError):  # its holder lives, or the next time it works
                    board.begin()
        await self._settle()
        listener.listen(128)
        self._audit.write("start", devices=len(self._boards))
        _say_ready(on_ready)
        await Server(listener, self._ledger, REAL_CLOCK, self._bounds).run()

    async def finish(self, serving: asyncio.Task[None], attempts: int = 1) -> None:
        """Once it serves no more, give everything back; the journal keeps what fails."""
        with suppress(asyncio.CancelledError):
            await serving
        for _ in range(attempts):
            await self._settle()
            if not any(board.held for board in self._boards.values()):
                break
            await asyncio.sleep(LOOK_SECONDS)
        self._audit.write("stop")

    def reload(self, path: Path | None) -> None:
        """Read the policy again; the old one stays in force if the new one makes no sense."""
        try:
            if path is not None:
                self._ledger.replace_policy(load_policy(path))
                self._audit.write("reload")
        except JouleryError as error:
            self._audit.write("bad policy", why=error.message)

    async def _settle(self) -> None:
        """Wait until every device has done what is left to do, or is stuck."""
        desks = self._ledger.desks.values()
        ticks = [asyncio.wrap_future(desk.worker.start(desk.tick)) for desk in desks]
        if ticks:
            await asyncio.wait(ticks, timeout=self._bounds.stall_seconds)


class AuditLog:
    """What happened, one JSON document per line; at most two files of 16 MiB.

    Args:
        path: The file; its predecessor has ``.1`` added.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, event: str, **details: object) -> None:
        """Append a line; a full disk must not keep anything from being given back."""
        record = {"at": round(REAL_CLOCK.wall(), 3), "event": event, **details}
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._lock, suppress(OSError):
            file = os.open(self._path, flags, 0o600)
            os.write(file, json.dumps(record).encode() + b"\n")
            full = os.fstat(file).st_size > _MAX_AUDIT_BYTES
            os.close(file)
            if full:
                self._path.replace(f"{self._path}.1")


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A bound socket; refuses where another daemon answers, and cleans up after a dead one."""
    if len(os.fsencode(path)) > 107:  # what the kernel's address has room for
        raise FileError(f"the path of socket {path} is too long", remedy="choose a shorter one")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        path.parent.mkdir(parents=True, exist_ok=True)
        if trial.connect_ex(os.fspath(path)) == 0:
            raise NotPossibleHereError(f"a governor already serves {path}", remedy="stop it first")
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
        path.chmod(0o666)  # anyone may ask; the policy decides
        # Giving back a limit must not wait for the jobs of the machine.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        # One descriptor for each caller's socket and one for its process.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _say_ready(on_ready: Callable[[], None]) -> None:
    """Tell the caller, and systemd where it listens."""
    on_ready()
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(address.replace("@", "\0", 1))
            notify.send(b"READY=1")
