"""Reports that could not be delivered, on the disk until they can: one JSON line each.

There is one file per store. Several processes append to it and one at a time delivers from it,
under file locks that end with their holders. Entries are removed after delivery; a process that
dies in between delivers them again, and they count once, by their keys.
"""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from joulery.client._measurements import RunMeasurements, upload_measurements
from joulery.clock import REAL_CLOCK
from joulery.errors import (
    ConflictError,
    FileError,
    InvalidValueError,
    JouleryError,
    StoreError,
    UnknownRecordError,
    UsageError,
)
from joulery.files import replacing, sync_folder, write_all
from joulery.jobs import (
    Count,
    Decision,
    Definition,
    JsonModel,
    Moment,
    Name,
    Outcome,
    Request,
    from_bytes,
    to_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from joulery.client._backend import DecisionBackend

_log = logging.getLogger("joulery")

_LARGEST_BYTES = 4 * 2**20
_KEPT_SHARE = 0.75  # of the largest size, when old lines have to go
_LOCK_SECONDS = 1.0
_LOCK_STEP_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class PendingReport(JsonModel):
    """A report or a heartbeat that waits.

    Attributes:
        decision: Decision that it is about, with its token.
        outcome: Outcome of the decision, or its progress so far.
        key: Idempotency key of the report; null for a heartbeat.
    """

    decision: Decision
    outcome: Outcome
    key: Name | None

    def deliver(self, backend: DecisionBackend) -> None:
        """Report to the backend."""
        if self.key is None:
            backend.heartbeat(self.decision, self.outcome)
        else:
            backend.report(self.decision, self.outcome, self.key)


@dataclass(frozen=True, slots=True)
class OfflineRun(JsonModel):
    """A run that was made without a decision, since no backend answered when it began.

    Attributes:
        team: Team of the job.
        definition: Definition of the job at that time.
        request: Request for a decision to run what was run, under a key chosen then.
        outcome: Outcome of the run.
        key: Idempotency key of the report.
        measurements: Further measurements of the run; null for none.
        wall_seconds: Unix time at which the run ended.
    """

    team: Name
    definition: Definition
    request: Request
    outcome: Outcome
    key: Name
    measurements: RunMeasurements | None = None
    wall_seconds: Moment = 0.0

    def deliver(self, backend: DecisionBackend) -> None:
        """Get the decision and report on it; however often that is done, it counts once.

        Raises:
            ConflictError: The job was changed since, and the run says nothing about the new one.
        """
        job = self._job(backend)
        decision = backend.decide(job, self.request)
        backend.report(decision, self.outcome, self.key)
        if self.measurements is not None:
            # Under the decision, so that however often it is sent, it counts once.
            energy = tuple(
                dataclasses.replace(one, decision=decision.id) for one in self.measurements.energy
            )
            found = dataclasses.replace(self.measurements, energy=energy)
            upload_measurements(backend, job, found, self.wall_seconds)

    def _job(self, backend: DecisionBackend) -> int:
        """The number of the job; it is not changed back to what it was then."""
        wanted = self.definition
        try:
            entry = backend.job(wanted.job.name, wanted.device)
        except UnknownRecordError:
            return backend.define(wanted).id
        if entry.definition != wanted:
            raise ConflictError(
                f"job {wanted.job.name!r} has been changed since", remedy="run it again"
            )
        return entry.id


@dataclass(frozen=True, slots=True)
class PendingMeasurements(JsonModel):
    """Energy and epochs that a run measured, to be stored besides its report.

    Attributes:
        team: Team of the job.
        job: Number of the job.
        wall_seconds: Unix time at which the run ended.
        measurements: Measurements of the run.
    """

    team: Name
    job: Count
    wall_seconds: Moment
    measurements: RunMeasurements

    def deliver(self, backend: DecisionBackend) -> None:
        """Store what was measured."""
        upload_measurements(backend, self.job, self.measurements, self.wall_seconds)


Entry = PendingReport | OfflineRun | PendingMeasurements


def entry_from(line: bytes) -> Entry | None:
    """The entry of a line; None for a damaged line."""
    try:
        document = from_bytes(line)
        if "request" in document:
            return OfflineRun.from_document(document)
        if "measurements" in document:
            return PendingMeasurements.from_document(document)
        return PendingReport.from_document(document)
    except (InvalidValueError, TypeError):
        return None


def _line(entry: Entry) -> bytes:
    return to_bytes(entry.to_document()) + b"\n"


class Outbox:
    """Undelivered entries for one store or server.

    Args:
        path: Path of the file; made when there is something to keep, readable by its owner only.
        largest_bytes: Size beyond which heartbeats are dropped first, and then the oldest entries.
    """

    def __init__(self, path: Path, largest_bytes: int = _LARGEST_BYTES) -> None:
        self._path = path
        self._largest_bytes = largest_bytes

    @property
    def waiting(self) -> bool:
        """Whether there is anything to deliver; costs one system call."""
        try:
            return self._path.stat().st_size > 0
        except OSError:
            return False

    def append(self, entry: Entry) -> None:
        """Keep an entry; it is on the disk on return.

        Raises:
            FileError: It could not be kept.
        """
        line = _line(entry)
        try:
            with self._opened() as file:
                size = file.seek(0, os.SEEK_END)
                if size + len(line) > self._largest_bytes:
                    self._replace(file, _trimmed([*_lines(file), line], self._largest_bytes))
                    return
                # A line that a killed process left incomplete must not swallow this one.
                file.seek(max(0, size - 1))
                torn = file.read(1) not in {b"", b"\n"}
                file.write(b"\n" + line if torn else line)
                _sync(file)
                if size == 0:
                    sync_folder(self._path.parent)
        except OSError as error:
            raise FileError(
                f"cannot keep a report in {self._path}: {error.strerror or error}",
                remedy="set XDG_STATE_HOME to a folder that you may write",
            ) from None

    def entries(self) -> list[Entry]:
        """Entries that wait, oldest first; damaged lines are passed over."""
        try:
            with self._opened() as file:
                lines = _lines(file)
        except OSError:
            return []
        return [entry for entry in map(entry_from, lines) if entry is not None]

    def deliver(self, send: Callable[[Entry], object]) -> int:
        """Send what waits, oldest first, until the backend fails; the number of lines removed.

        One process at a time does so; others return at once.

        Args:
            send: Function that delivers an entry. :class:`StoreError` ends the delivery until
                later, a :class:`UsageError` drops the entry, any other error skips it.
        """
        if not self.waiting:
            return 0
        try:
            with _locked(self._path.with_suffix(".delivering"), patience_seconds=0.0):
                with self._opened() as file:
                    lines = _lines(file)
                done = _sent(lines, send)
                if done:
                    self._remove({lines[number] for number in done})
                return len(done)
        except OSError:
            return 0  # another process delivers, or the file cannot be used

    def _remove(self, gone: set[bytes]) -> None:
        """Remove lines; others may have been added since they were read."""
        with self._opened() as file:
            left = [line for line in _lines(file) if line not in gone and entry_from(line)]
            self._replace(file, left)

    def _replace(self, file: BinaryIO, lines: list[bytes]) -> None:
        """Replace the content of the file by ``lines`` atomically; under its lock."""
        if not lines:
            file.truncate(0)
            _sync(file)
            return
        with replacing(self._path, private=True, sync=True) as draft:
            write_all(draft, b"".join(lines))

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file, locked while the block lasts."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            with _locked(self._path, _LOCK_SECONDS) as file:
                # Another process may have put a new file in its place while this one waited.
                if _is_at(file, self._path):
                    yield file
                    return


def _sent(lines: list[bytes], send: Callable[[Entry], object]) -> set[int]:
    """Numbers of the lines that need not be kept any longer."""
    found = [entry_from(line) for line in lines]
    last = {
        entry.decision.id: number
        for number, entry in enumerate(found)
        if isinstance(entry, PendingReport)
    }
    done: set[int] = set()
    for number, entry in enumerate(found):
        # A heartbeat is of no use once something later is known of its decision.
        superseded = _is_heartbeat(entry) and last[entry.decision.id] > number  # type: ignore[union-attr]
        if entry is not None and not superseded:
            try:
                send(entry)
            except UsageError:
                pass  # would be refused again
            except StoreError:
                break
            except JouleryError:
                continue  # not now, but others may be taken
            except Exception as error:  # noqa: BLE001 - the fail-open guard of a background thread
                _log.debug("joulery: an undelivered entry fails: %r", error)
                continue
        done.add(number)
    return done


def _is_heartbeat(entry: Entry | None) -> bool:
    return isinstance(entry, PendingReport) and entry.key is None


def _trimmed(lines: list[bytes], largest_bytes: int) -> list[bytes]:
    """The lines without heartbeats and, if need be, without the oldest."""
    entries = [(line, entry_from(line)) for line in lines]
    reports = [line for line, entry in entries if entry is not None and not _is_heartbeat(entry)]
    left = int(_KEPT_SHARE * largest_bytes)
    kept: list[bytes] = []
    for line in reversed(reports):
        left -= len(line)
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


def _lines(file: BinaryIO) -> list[bytes]:
    """Complete lines; an incomplete one was never acknowledged."""
    file.seek(0)
    return [line for line in file if line.endswith(b"\n")]


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _locked(path: Path, patience_seconds: float) -> Iterator[BinaryIO]:
    """A file under an exclusive lock; BlockingIOError where another process holds it too long."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    end = REAL_CLOCK.now() + patience_seconds
    with os.fdopen(handle, "r+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if REAL_CLOCK.now() >= end:
                    raise
                REAL_CLOCK.sleep(_LOCK_STEP_SECONDS)
        yield file
