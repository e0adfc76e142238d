"""The governor's daemon: restores what a dead one left changed, then serves until stopped."""

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
from joulery.governor._device import DeviceWorker, GovernedDevice, governable_devices
from joulery.governor._journal import FileJournal, private_folder, state_folder
from joulery.governor._leases import CHECK_SECONDS, LeaseTable
from joulery.governor._peer import owns
from joulery.governor._policy import AccessPolicy, load_policy
from joulery.governor._protocol import default_socket
from joulery.governor._server import ConnectionLimits, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NICENESS = -10
_MAX_AUDIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GovernorConfig:
    """Configuration of the daemon.

    Attributes:
        socket: Path of the socket.
        state: Folder of journals and locks, for the daemon's user alone.
        policy: Path of the policy; None refuses every request.
        audit: Path of the audit log; ``audit.jsonl`` in ``state`` by default.
        limits: Limits of the load that clients may put on the daemon.
    """

    socket: Path = field(default_factory=default_socket)
    state: Path = field(default_factory=state_folder)
    policy: Path | None = None
    audit: Path | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


def serve(config: GovernorConfig, on_ready: Callable[[], None] = lambda: None) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the policy again.

    Raises:
        FileError: The policy is invalid.
        NotPossibleHereError: Another daemon serves here already.
    """
    asyncio.run(_serve(config, on_ready))


async def _serve(config: GovernorConfig, on_ready: Callable[[], None]) -> None:
    policy = load_policy(config.policy) if config.policy else AccessPolicy()
    only_one = FileJournal(private_folder(config.state), "the governor's state")
    only_one.lock()
    audit = AuditLog(config.audit or config.state / "audit.jsonl")
    # Clients must not wait for the device's thread, nor the other way round.
    sys.setswitchinterval(1e-4)
    with _listening(config.socket) as listener:
        governor = Governor(config, policy, audit)
        loop = asyncio.get_running_loop()
        serving = loop.create_task(governor.serve(listener, on_ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        loop.add_signal_handler(signal.SIGHUP, governor.reload, config.policy)
        await governor.finish(serving)


class Governor:
    """A running governor.

    Args:
        config: Configuration.
        policy: Access policy.
        audit: Log of every event.
        holder: Process to name to other governors; this one by default.
    """

    def __init__(
        self,
        config: GovernorConfig,
        policy: AccessPolicy,
        audit: AuditLog,
        holder: int | None = None,
    ) -> None:
        self._audit = audit
        self._limits = config.limits
        self._governed = {
            name: GovernedDevice(
                device,
                FileJournal(config.state, name, holder),
                partial(audit.write, "foreign", device=name),
            )
            for name, device in governable_devices().items()
        }
        worker = partial(DeviceWorker, REAL_CLOCK, config.limits.stall_seconds)
        self._table = LeaseTable(self._governed, policy, REAL_CLOCK, owns, audit.write, worker)

    async def serve(self, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        """Restore what dead holders left changed, then serve until cancelled."""
        for device in self._governed.values():
            if device.journal.pending() is not None:
                with suppress(JouleryError):  # its holder lives, or a later attempt succeeds
                    device.hold()
        await self._settle()
        listener.listen(128)
        self._audit.write("start", devices=len(self._governed))
        _notify_ready(on_ready)
        await Server(listener, self._table, REAL_CLOCK, self._limits).run()

    async def finish(self, serving: asyncio.Task[None], attempts: int = 1) -> None:
        """Restore everything after serving; the journal keeps what fails."""
        with suppress(asyncio.CancelledError):
            await serving
        for _ in range(attempts):
            await self._settle()
            if not any(device.held for device in self._governed.values()):
                break
            await asyncio.sleep(CHECK_SECONDS)
        self._audit.write("stop")

    def reload(self, path: Path | None) -> None:
        """Read the policy again; the old one stays in force if the new one is invalid."""
        try:
            if path is not None:
                self._table.replace_policy(load_policy(path))
                self._audit.write("reload")
        except JouleryError as error:
            self._audit.write("bad policy", why=error.message)

    async def _settle(self) -> None:
        """Wait until every device has done its periodic work, or is stuck."""
        devices = self._table.devices.values()
        ticks = [asyncio.wrap_future(device.worker.submit(device.tick)) for device in devices]
        if ticks:
            await asyncio.wait(ticks, timeout=self._limits.stall_seconds)


class AuditLog:
    """Log of events, one JSON document per line; at most two files of 16 MiB.

    Args:
        path: Path of the file; its predecessor has ``.1`` added.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, event: str, **details: object) -> None:
        """Append a line, if possible: a full disk must not prevent a restore."""
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
    """A bound socket; raises where another daemon answers, and removes that of a dead one."""
    if len(os.fsencode(path)) > 107:  # what the kernel's address has room for
        raise FileError(f"the path of socket {path} is too long", remedy="choose a shorter one")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        path.parent.mkdir(parents=True, exist_ok=True)
        if trial.connect_ex(os.fspath(path)) == 0:
            raise NotPossibleHereError(f"a governor already serves {path}", remedy="stop it first")
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
        path.chmod(0o666)  # any user may connect; the policy decides
        # Restoring a limit must not wait for the jobs of the machine.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        # One descriptor for each client's socket and one for its process.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _notify_ready(on_ready: Callable[[], None]) -> None:
    """Notify the caller, and systemd where it started the daemon."""
    on_ready()
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(address.replace("@", "\0", 1))
            notify.send(b"READY=1")
