"""The governor's daemon: restores what a dead one left changed, then serves until stopped."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import ssl
import stat
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import (
    FileError,
    JouleryError,
    MissingRightsError,
    NotPossibleHereError,
    cannot_listen,
)
from joulery.governor._device import DeviceWorker, GovernedDevice, governable_devices
from joulery.governor._journal import (
    FileJournal,
    driver_library,
    private_folder,
    state_folder,
)
from joulery.governor._leases import CHECK_SECONDS, DeviceLeases, LeaseTable
from joulery.governor._peer import owns
from joulery.governor._policy import AccessPolicy, load_policy
from joulery.governor._protocol import check_secrecy, default_socket
from joulery.governor._server import ConnectionLimits, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_LOOK_SECONDS = 10.0  # by hand: drivers that load late are found within seconds
_NICENESS = -10  # by hand: before jobs, after the kernel's own threads
_MAX_AUDIT_BYTES = 16 * 1024 * 1024  # by hand: some 100,000 events
_AUDIT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class GovernorConfig:
    """Configuration of the daemon.

    Attributes:
        socket: Path of the socket.
        state: Folder of journals and locks, for the daemon's user alone.
        policy: Path of the policy; None refuses every request.
        audit: Path of the audit log; ``audit.jsonl`` in ``state`` by default.
        listen: Host and port for clients on other machines, which need a token; None for none.
        certificate: Path of the certificate for them; only loopback needs none.
        key: Path of the certificate's key.
        limits: Limits of the load that clients may put on the daemon.
    """

    socket: Path = field(default_factory=default_socket)
    state: Path = field(default_factory=state_folder)
    policy: Path | None = None
    audit: Path | None = None
    listen: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


def serve(config: GovernorConfig, on_ready: Callable[[], None] | None = None) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the policy again.

    Raises:
        FileError: The policy is invalid.
        MissingRightsError: This user may not use the socket's or the journals' folder.
        NotPossibleHereError: Another daemon serves here already.
    """
    asyncio.run(_serve(config, on_ready))


async def _serve(config: GovernorConfig, on_ready: Callable[[], None] | None) -> None:
    policy = load_policy(config.policy) if config.policy else AccessPolicy()
    only_one = FileJournal(private_folder(config.state), "the governor's state")
    only_one.lock()
    audit = AuditLog(config.audit or config.state / "audit.jsonl")
    audit.check()
    # Clients must not wait for the device's thread, nor the other way round.
    sys.setswitchinterval(1e-4)
    with _listening(config.socket) as listener, _remote(config) as remote:
        find = partial(governed_devices, config.state, audit)
        governor = Governor(find(), policy, audit, config.limits, find)
        loop = asyncio.get_running_loop()
        serving = loop.create_task(governor.serve([(listener, None), *remote], on_ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        loop.add_signal_handler(signal.SIGHUP, governor.reload, config.policy)
        await governor.finish(serving)


def governed_devices(
    state: Path, audit: AuditLog, holder: int | None = None
) -> dict[str, GovernedDevice]:
    """This machine's devices, each with its journal, in which ``holder`` is named to others."""
    devices, shared = governable_devices(), driver_library()
    return {
        name: GovernedDevice(
            device,
            FileJournal(state, name, holder, shared),
            partial(audit.write, "foreign", device=name),
        )
        for name, device in devices.items()
    }


class Governor:
    """A running governor."""

    def __init__(
        self,
        governed: dict[str, GovernedDevice],
        policy: AccessPolicy,
        audit: AuditLog,
        limits: ConnectionLimits,
        find: Callable[[], dict[str, GovernedDevice]] | None = None,
    ) -> None:
        self._find = find
        self._audit = audit
        self._limits = limits
        worker = partial(DeviceWorker, REAL_CLOCK, limits.stall_seconds)
        self._table = LeaseTable(governed, policy, REAL_CLOCK, owns, audit.write, worker)

    async def serve(
        self,
        listeners: list[tuple[socket.socket, ssl.SSLContext | None]],
        on_ready: Callable[[], None] | None,
    ) -> None:
        """Restore what dead holders left changed, then serve until cancelled."""
        for device in self._table.devices.values():
            device.worker.submit(device.adopt)
        await self._settle(DeviceLeases.tick)
        for listener, _ in listeners:
            listener.listen(128)
        self._audit.write("start", devices=len(self._table.devices))
        _notify_ready(on_ready)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Server(listeners, self._table, REAL_CLOCK, self._limits).run())
            if self._find is not None:
                tasks.create_task(self.await_devices(self._find))

    async def await_devices(
        self, find: Callable[[], dict[str, GovernedDevice]], seconds: float = _LOOK_SECONDS
    ) -> None:
        """Look for devices every few seconds while there are none; say what is missing."""
        if not self._table.policy.rules:
            _say("no rule of a policy: every request is refused", "give --policy FILE")
        if self._table.devices:
            return
        _say(f"0 boards to govern; looks again every {seconds:g} s", "see `joulery doctor`")
        while not self._table.devices:
            await asyncio.sleep(seconds)
            with suppress(JouleryError):
                self._table.add(await asyncio.to_thread(find))
        for device in self._table.devices.values():
            device.worker.submit(device.adopt)
        self._audit.write("devices", devices=len(self._table.devices))
        _say(f"boards to govern: {len(self._table.devices)}")

    async def finish(self, serving: asyncio.Task[None], attempts: int = 1) -> None:
        """Restore everything after serving; the journal keeps what fails."""
        with suppress(asyncio.CancelledError):
            await serving
        for _ in range(attempts):
            await self._settle(DeviceLeases.rest)
            if all(device.rests for device in self._table.devices.values()):
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
            self._table.policy_flaw = error.message
            self._audit.write("bad policy", why=error.message)
            _say(f"the policy before stays in force: {error.message}", error.remedy)

    async def _settle(self, work: Callable[[DeviceLeases], None]) -> None:
        """Wait until every device has done some work, or is stuck."""
        devices = self._table.devices.values()
        futures = [
            asyncio.wrap_future(device.worker.submit(partial(work, device))) for device in devices
        ]
        if futures:
            await asyncio.wait(futures, timeout=self._limits.stall_seconds)


def _say(text: str, remedy: str = "") -> None:
    sys.stderr.write(f"joulery: {text}\n" + (f"  → {remedy}\n" if remedy else ""))
    sys.stderr.flush()


class AuditLog:
    """Log of events, one JSON document per line; two files of at most 16 MiB each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise unless the file can be written: an audit must not be missing from the start."""
        try:
            os.close(os.open(self._path, _AUDIT_FLAGS, 0o600))
        except OSError as error:
            flaw = f"cannot write audit log {self._path}: {error.strerror}"
            raise FileError(flaw, remedy="name a file in a folder of this user") from None

    def write(self, event: str, **details: object) -> None:
        """Append a line, if possible: a full disk must not prevent a restore."""
        record = {"at": round(REAL_CLOCK.wall(), 3), "event": event, **details}
        with self._lock, suppress(OSError):
            file = os.open(self._path, _AUDIT_FLAGS, 0o600)
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
    with listener:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_dead(path)
            listener.bind(os.fspath(path))
            path.chmod(0o666)  # any user may connect; the policy decides
        except PermissionError as error:
            flaw = f"cannot serve {path}: {error.strerror}"
            remedy = "run it as root, or name --socket and --state in a folder of your own"
            raise MissingRightsError(flaw, remedy=remedy) from None
        except OSError as error:
            flaw = f"cannot serve {path}: {error.strerror}"
            raise FileError(flaw, remedy="choose another path") from None
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


def _remove_dead(path: Path) -> None:
    """Remove the socket of a daemon that is gone; raise where anything else has its name."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise FileError(f"{path} is there already, and no socket", remedy="choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        if trial.connect_ex(os.fspath(path)) == 0:
            raise NotPossibleHereError(f"a governor already serves {path}", remedy="stop it first")
    path.unlink()


@contextmanager
def _remote(config: GovernorConfig) -> Iterator[list[tuple[socket.socket, ssl.SSLContext | None]]]:
    """The bound socket for other machines with its TLS context, if there is to be one."""
    if config.listen is None:
        yield []
        return
    tls = None
    try:
        if config.certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(config.certificate, config.key)
        check_secrecy(config.listen, tls)
    except OSError as error:
        flaw = f"cannot use {config.certificate} with {config.key}: {error}"
        raise FileError(flaw, remedy="check the certificate and its key") from None
    try:
        listener = socket.create_server(config.listen)
    except OSError as error:
        raise cannot_listen("{}:{}".format(*config.listen), error) from None
    with listener:
        yield [(listener, tls)]


def _notify_ready(on_ready: Callable[[], None] | None) -> None:
    """Notify the caller, and systemd where it started the daemon."""
    if on_ready is not None:
        on_ready()
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(address.replace("@", "\0", 1))
            notify.send(b"READY=1")
