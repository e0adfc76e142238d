"""The daemon: repair what the last one left, then serve until told to stop."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, JouleryError, NotPossibleHereError
from joulery.governor.board import Board, governable_devices
from joulery.governor.claims import FileClaim
from joulery.governor.journal import FileJournal, private_folder
from joulery.governor.ledger import Ledger
from joulery.governor.orphans import by_device, orphans, own_journal, reconciling
from joulery.governor.ownership import owns
from joulery.governor.places import default_socket, state_folder
from joulery.governor.policy import Policy, load_policy
from joulery.governor.server import Bounds, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NICENESS = -10
_MAX_AUDIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the daemon's things are; the folder of ``state`` is for its user alone."""

    socket: Path = field(default_factory=default_socket)
    state: Path = field(default_factory=state_folder)
    policy: Path | None = None
    audit: Path | None = None
    bounds: Bounds = field(default_factory=Bounds)


def serve(settings: Settings, on_ready: Callable[[], None] | None = None) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the policy again.

    Raises:
        FileError: The policy makes no sense.
        NotPossibleHereError: Another daemon serves here already.
    """
    policy = load_policy(settings.policy) if settings.policy else Policy()
    state = private_folder(settings.state)
    audit = AuditLog(settings.audit or state / "audit.jsonl")
    with ExitStack() as stack:
        only_one = FileClaim(state, "the governor's state")
        only_one.take()
        stack.callback(only_one.give)
        listener = stack.enter_context(_listening(settings.socket))
        signals = stack.enter_context(_signals())
        journal = FileJournal(own_journal(state))
        boards = {
            name: Board(
                device,
                journal,
                FileClaim(state, name),
                partial(_tell_foreign, audit, name),
            )
            for name, device in governable_devices().items()
        }
        _adopt_orphans(state, journal, boards)
        ledger = Ledger(boards, policy, REAL_CLOCK, owns, audit.write)
        ledger.tick()  # gives back whatever was adopted, before anyone is served
        listener.listen(128)
        server = Server(listener, ledger, REAL_CLOCK, settings.bounds)
        server.watch(signals.fileno())
        audit.write("start", devices=len(boards))
        _say_ready(on_ready)
        while (received := _received(signals)) not in (signal.SIGTERM, signal.SIGINT):
            if received == signal.SIGHUP and settings.policy:
                _reload(settings.policy, ledger, audit)
            server.turn()
        server.close()
        audit.write("stop")
        if not any(board.held for board in boards.values()):
            journal.remove()


def _adopt_orphans(state: Path, journal: FileJournal, boards: dict[str, Board]) -> None:
    """Make our own what governors that died left behind."""
    with reconciling(state):
        journal.start()
        for orphan in orphans(state):
            for name, intents in by_device(orphan.load().values()).items():
                for intent in intents:
                    journal.intend(intent)
                if name in boards:
                    boards[name].adopt(intents)
            orphan.remove()


class AuditLog:
    """What happened, one JSON document per line; at most two files of 16 MiB.

    Args:
        path: The file; its predecessor has ``.1`` added.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, **details: object) -> None:
        """Append a line; a full disk must not keep anything from being given back."""
        record = {"at": round(REAL_CLOCK.wall(), 3), "event": event, **details}
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(self._path, flags, 0o600)
            os.write(file, json.dumps(record).encode() + b"\n")
            full = os.fstat(file).st_size > _MAX_AUDIT_BYTES
            os.close(file)
            if full:
                self._path.replace(f"{self._path}.1")
        except OSError:
            return


def _tell_foreign(audit: AuditLog, device: str, expected: float, found: float) -> None:
    audit.write("foreign", device=device, expected_watts=expected, found_watts=found)


def _reload(path: Path, ledger: Ledger, audit: AuditLog) -> None:
    try:
        ledger.replace_policy(load_policy(path))
        audit.write("reload")
    except JouleryError as error:  # the old policy stays in force
        audit.write("bad policy", why=error.message)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A bound socket; refuses where another daemon answers, and cleans up after a dead one."""
    if len(os.fsencode(path)) > 107:  # what the kernel's address has room for
        raise FileError(f"the path of socket {path} is too long", remedy="choose a shorter one")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        path.parent.mkdir(parents=True, exist_ok=True)
        if trial.connect_ex(os.fspath(path)) == 0:
            raise NotPossibleHereError(
                f"a governor already serves {path}", remedy="stop it first, or name another socket"
            )
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


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that gets the number of each signal we care about."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.settimeout(0)
        writer.settimeout(0)
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = [signal.signal(number, lambda *_: None) for number in numbers]
        signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _received(signals: socket.socket) -> int:
    try:
        return signals.recv(1)[0]
    except BlockingIOError:
        return 0


def _say_ready(on_ready: Callable[[], None] | None) -> None:
    """Tell the caller, and systemd where it listens."""
    if on_ready is not None:
        on_ready()
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(address.replace("@", "\0", 1))
            notify.send(b"READY=1")
