"""Measurements, reports and runs on their way to a store, on the disk while none answers.

An entry is one JSON line. There are two files per store, so that curves of runs never displace
reports. Several processes append to a file and one at a time delivers from it, under file locks
that end with their holders. Entries are removed after delivery; a process that dies in between
delivers them again, and they count once, by their keys.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec.structs import replace

from joulery.documents import Codec, Foreign, JsonModel, Name, Text
from joulery.errors import (
    ConflictError,
    FileError,
    InvalidValueError,
    JouleryError,
    NotPossibleHereError,
    StoreError,
    UnknownRecordError,
    UsageError,
)
from joulery.files import lock, replacing, state_folder, sync_folder, write_all
from joulery.frontier import Frontier, OperatingPoint, Origin
from joulery.jobs import (
    BatchSize,
    Decision,
    Definition,
    EnergyEntry,
    Outcome,
    ProfileEntry,
    Request,
    RunEntry,
    parse_decision_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulery.client._backend import DecisionBackend

_log = logging.getLogger("joulery")

_LARGEST_BYTES = 4 * 2**20  # by hand: some thousand reports
_KEPT_SHARE = 0.75  # of the largest size when old lines have to go (by hand)
_LOCK_SECONDS = 1.0  # by hand: an append takes milliseconds
_RANKS = list(Origin)


def _read_point(document: object) -> OperatingPoint:
    try:
        return OperatingPoint.from_dict(document)  # type: ignore[arg-type]  # checks what it is given
    except (FileError, InvalidValueError) as error:
        raise InvalidValueError(str(error), remedy="measure again") from None


_POINT = Codec(OperatingPoint.to_dict, _read_point, {"type": "object"})


class RunMeasurements(JsonModel, frozen=True):
    """Measurements of an attempt.

    Attributes:
        batch_size: Batch size that was run.
        device: Kind of device, as in the job's definition.
        points: Time and energy of an epoch under each power limit that was measured.
        energy: Energy of each device.
        work: Description of the work that the points refer to.
    """

    batch_size: BatchSize
    device: Text
    points: tuple[Foreign[OperatingPoint, _POINT], ...] = ()
    energy: tuple[EnergyEntry, ...] = ()
    work: str = ""


def upload_measurements(backend: DecisionBackend, job: int, measurements: RunMeasurements) -> None:
    """Store the measurements of a run; safe to repeat."""
    for energy in measurements.energy:
        backend.add_energy(job, energy)
    if not measurements.points:
        return
    profiles = backend.profiles(job)
    stored = {(profile.batch_size, profile.device): profile.frontier for profile in profiles}
    key = (measurements.batch_size, measurements.device)
    frontier = merged_frontier(stored.get(key), measurements)
    if frontier is not None:
        backend.put_profile(job, ProfileEntry(*key, frontier))


def merged_frontier(stored: Frontier | None, measurements: RunMeasurements) -> Frontier | None:
    """The stored frontier updated by what was measured; None to leave it as it is.

    Limits that were not measured now stay as they were. Figures of different origins are not mixed:
    those of the better one count.
    """
    points: dict[float | None, OperatingPoint] = {}
    if stored is not None:
        before, now = _weakest(stored.points), _weakest(measurements.points)
        if before < now:
            return None
        points = {_limit(point): point for point in stored} if before == now else {}
    points |= {_limit(point): point for point in measurements.points}
    return Frontier.from_points(points.values(), measurements.work)


def _weakest(points: Sequence[OperatingPoint]) -> int:
    """The worst origin of the points, as a rank; the best is 0."""
    return max(_RANKS.index(point.provenance.origin) for point in points)


def _limit(point: OperatingPoint) -> float | None:
    return point.setting.power_limit_watts


class PendingReport(JsonModel, frozen=True):
    """The report of a run that waits, with what it measured besides.

    Attributes:
        team: Team of the job.
        definition: Definition of the job when the run began.
        request: Request for a decision to run what was run.
        decision: Decision that was run, with its token; null where no backend answered.
        outcome: Outcome of the run; null once it was reported.
        key: Idempotency key of the report.
        measurements: Further measurements of the run; null for none.
    """

    team: Name
    definition: Definition
    request: Request
    decision: Decision | None
    outcome: Outcome | None
    key: Name
    measurements: RunMeasurements | None = None

    def report(self, backend: DecisionBackend) -> PendingReport:
        """Report to the backend; the entry of what is left, the measurements.

        A run that was made without a decision gets one first. However often this is done, it
        counts once.

        Raises:
            ConflictError: The job was changed since, and the run says nothing about the new one.
        """
        decision = self.decision or backend.decide(self._job(backend), self.request)
        if self.outcome is not None:
            backend.report(decision, self.outcome, self.key)
        return replace(self, decision=decision, outcome=None)

    def deliver(self, backend: DecisionBackend) -> None:
        """Report to the backend, and upload the measurements."""
        decision, measurements = self.report(backend).decision, self.measurements
        if measurements is not None and decision is not None:
            job, _ = parse_decision_id(decision.id)
            # Under the decision, so that however often it is sent, it counts once.
            energy = (replace(entry, decision=decision.id) for entry in measurements.energy)
            upload_measurements(backend, job, replace(measurements, energy=tuple(energy)))

    def _job(self, backend: DecisionBackend) -> int:
        """The number of the job; it is not changed back to what it was then."""
        definition = self.definition
        try:
            entry = backend.job(definition.job.name, definition.device)
        except UnknownRecordError:
            return backend.define(definition).id
        if entry.definition != definition:
            raise ConflictError(
                f"job {definition.job.name!r} has been changed since", remedy="run it again"
            )
        return entry.id


class PendingRun(JsonModel, frozen=True):
    """A run of any kind that waits to be stored.

    Attributes:
        team: Team of the run.
        run: The run, as it ended.
    """

    team: Name
    run: RunEntry

    def deliver(self, backend: DecisionBackend) -> None:
        """Store the run; under its key, it counts once."""
        backend.put_run(self.run)


Entry = PendingReport | PendingRun


def entry_from(line: bytes) -> Entry | None:
    """The entry of a line; None for a damaged line."""
    for kind in (PendingReport, PendingRun):
        try:
            return kind.from_json(line)
        except InvalidValueError:
            continue
    return None


class Outbox:
    """Undelivered entries for one store or server.

    Args:
        path: Path of the file; made when there is something to keep, readable by its owner only.
        largest_bytes: Size beyond which the oldest entries are dropped.
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
        line = entry.to_json() + b"\n"
        try:
            with self._opened() as file:
                size = file.seek(0, os.SEEK_END)
                if size + len(line) > self._largest_bytes:
                    budget = _KEPT_SHARE * self._largest_bytes
                    self._replace(file, _latest([*_lines(file), line], budget))
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
            send: Function that delivers an entry. ``StoreError`` ends the delivery until
                later, a ``UsageError`` drops the entry, any other error skips it.
        """
        if not self.waiting:
            return 0
        try:
            with _locked(self._path.with_suffix(".delivering"), patience_seconds=0.0):
                with self._opened() as file:
                    lines = _lines(file)
                delivered = _send(lines, send)
                if delivered:
                    self._remove(delivered)
                return len(delivered)
        except OSError:
            return 0  # another process delivers, or the file cannot be used

    def _remove(self, delivered: set[bytes]) -> None:
        """Remove lines; others may have been added since they were read."""
        with self._opened() as file:
            lines = [line for line in _lines(file) if line not in delivered and entry_from(line)]
            self._replace(file, lines)

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


def outboxes(location: str) -> tuple[Outbox, Outbox]:
    """Undelivered reports of recurring jobs, and undelivered runs, for a store or server."""
    folder, stem = state_folder() / "undelivered", file_stem(location)
    return Outbox(folder / f"{stem}.jsonl"), Outbox(folder / f"{stem}-runs.jsonl")


def deliver_waiting(backend: DecisionBackend, location: str, team: str) -> None:
    """Deliver all that waits for a store and is of a team."""

    def send(entry: Entry) -> None:
        if entry.team != team:
            raise NotPossibleHereError(
                "an entry of another team", remedy="a run of that team will deliver it"
            )
        entry.deliver(backend)

    for outbox in outboxes(location):
        outbox.deliver(send)


def file_stem(location: str) -> str:
    """A file name that depends on the store only and does not reveal where it is."""
    if "://" in location:
        location = location.rstrip("/")
    elif location:
        location = str(Path(location).resolve())
    return hashlib.sha256(location.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _send(lines: list[bytes], send: Callable[[Entry], object]) -> set[bytes]:
    """Send entries; the lines that need not be kept any longer."""
    delivered: set[bytes] = set()
    for line in lines:
        entry = entry_from(line)
        try:
            if entry is not None:
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
        delivered.add(line)
    return delivered


def _latest(lines: list[bytes], budget_bytes: float) -> list[bytes]:
    """The last of the lines, as many as fit."""
    latest: list[bytes] = []
    for line in reversed(lines):
        budget_bytes -= len(line)
        if budget_bytes < 0:
            break
        latest.append(line)
    return latest[::-1]


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
    with os.fdopen(handle, "r+b") as file:
        lock(handle, patience_seconds)
        yield file
