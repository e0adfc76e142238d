"""The energy log: append-only, survives SIGKILL, and adds up over restarts.

One JSON document per line. Each session writes its running totals about once a second, so a
SIGKILL loses at most that; the last line of every session counts. Several processes may append
to one log at a time. A line torn by a crash is skipped and reported.
"""

from __future__ import annotations

import math
import os
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.background import PeriodicTask
from joulery.errors import FileError, InvalidValueError
from joulery.files import decode_line, encode_line, open_for_append, write_all
from joulery.frontier import Origin, Provenance
from joulery.hardware import DeviceKind
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.metering._measurement import Measurement
    from joulery.metering._window import Window

SCHEMA = "joulery.energy-log/1"
INTERVAL_SECONDS = 0.8  # by hand: a kill loses less than a second
_HEAD_BYTES = 65536  # by hand: some hundred lines
_NAMED_KINDS = {"accelerators": DeviceKind.GPU, "processors": DeviceKind.CPU}
NOTHING_LOGGED = Provenance(Origin.ASSUMED, "nothing was logged")


@dataclass(frozen=True, slots=True)
class LogTotals:
    """Totals of a log.

    Attributes:
        seconds: Measured time over all sessions.
        joules: Energy over all sessions; None when no session knew any.
        devices: Joules by device id.
        names: Name by device id, as far as the log says.
        provenances: Provenance of a device's joules by its id, as far as the log says.
        accelerators: Name by device id of the accelerators among them; None where a session does
            not say.
        processors: Name by device id of the CPUs among them, likewise.
        started_wall_seconds: Unix time at which the first session began; None where unknown.
        sessions: Number of sessions.
        unfinished: Number of sessions without a final line: killed, or still running.
        damaged_lines: Numbers of the lines that could not be read.
        provenance: Provenance of the joules: as good as their weakest part.
    """

    seconds: float = 0.0
    joules: float | None = None
    devices: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    provenances: dict[str, Provenance] = field(default_factory=dict)
    accelerators: dict[str, str] | None = None
    processors: dict[str, str] | None = None
    started_wall_seconds: float | None = None
    sessions: int = 0
    unfinished: int = 0
    damaged_lines: tuple[int, ...] = ()
    provenance: Provenance = NOTHING_LOGGED


class EnergyLog:
    """A log file.

    Args:
        path: Path of the file; made on first use.
        interval_seconds: Time between two lines of a session.

    Raises:
        InvalidValueError: An argument is invalid.
    """

    def __init__(self, path: str | Path, interval_seconds: float = INTERVAL_SECONDS) -> None:
        if not isinstance(path, str | Path):
            raise InvalidValueError(f"{path!r} is not a path", remedy='write "energy.jsonl"')
        self.path = Path(path)
        self._interval = finite(interval_seconds, "interval_seconds", minimum=0.0)

    @contextmanager
    def recording(self, window: Window, label: str = "") -> Iterator[None]:
        """Log ``window``'s running totals while the block runs, and its final ones after.

        Raises:
            FileError: The log cannot be written; if that is so at the start, before the block.
        """
        with self._errors("open"):
            if not _may_be_log(self.path):
                raise FileError(
                    f"{self.path} is a file of another kind, not an energy log",
                    remedy="give the path of a new file, or of an energy log to append to",
                )
            descriptor = open_for_append(self.path)
        session = uuid.uuid4().hex

        def write(*, final: bool = False) -> None:
            document = _line(session, label, window.measurement, final=final)
            write_all(descriptor, encode_line(document))
            os.fdatasync(descriptor)

        def write_running_totals() -> None:
            try:
                write()
            except OSError:  # disk full or gone: the measured code must not suffer for it
                task.stop()

        task = PeriodicTask(write_running_totals, seconds=self._interval, name="joulery-log")
        try:
            with self._errors("write to"):
                write()
            task.start()
            try:
                yield
            except BaseException:
                task.stop()
                with suppress(OSError):  # the block's own error matters more
                    write(final=True)
                raise
            task.stop()
            with self._errors("write to"):
                write(final=True)
        finally:
            os.close(descriptor)

    def totals(self) -> LogTotals:
        """Add up all sessions.

        Raises:
            FileError: The file cannot be read, or is not an energy log.
        """
        with self._errors("read"):
            text = self.path.read_bytes()
        return self.totals_of(text)

    def totals_of(self, text: bytes) -> LogTotals:
        """Add up all sessions of a log that was read already."""
        lines = text.split(b"\n")
        last: dict[str, dict[str, Any]] = {}
        damaged: list[int] = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            document = _parsed(line)
            if document is None:
                damaged.append(number)
            else:
                last[document["session"]] = document
        if damaged and not last:
            raise FileError(
                f"{self.path} is not an energy log: line {damaged[0]} does not parse",
                remedy="give a file written with `joulery measure --log`",
            )
        return _added_up(list(last.values()), tuple(damaged))

    def power_curves(self, text: bytes) -> dict[str, list[tuple[float, float]]]:
        """Seconds since its start and mean watts between lines, by the label of each session.

        Args:
            text: Content of the log, read already.
        """
        curves: dict[str, list[tuple[float, float]]] = {}
        before: dict[str, tuple[float, float]] = {}
        for line in text.split(b"\n"):
            document = _parsed(line) if line.strip() else None
            if document is None or document["joules"] is None:
                continue
            session, seconds, joules = (document[key] for key in ("session", "seconds", "joules"))
            start, used = before.get(session, (0.0, 0.0))
            if seconds > start and joules >= used:
                name = f"{document.get('label') or 'session'} ({session[:4]})"
                watts = (joules - used) / (seconds - start)
                curves.setdefault(name, []).append((seconds, watts))
            before[session] = seconds, joules
        return curves

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Failures of the file system as Joulery's error."""
        try:
            yield
        except OSError as error:
            raise FileError(
                f"cannot {verb} {self.path}: {error.strerror or error}",
                remedy=f"give a path to an energy log that you may {verb}",
            ) from None


def _may_be_log(path: Path) -> bool:
    """Whether nothing else would be damaged by appending: no file yet, an empty one, or a log.

    A crash may have cut short the first line, so its beginning decides, or any line after it.
    """
    if not path.is_file():
        return True
    with path.open("rb") as file:
        lines = file.read(_HEAD_BYTES).splitlines()
    beginning = encode_line({"schema": SCHEMA})[:-2]
    first = lines[0].replace(b" ", b"") if lines else b""
    torn = first.startswith(beginning) or beginning.startswith(first)
    return torn or any(_parsed(line) is not None for line in lines)


_DEVICE_FIGURES = ("name", "provenance", "source", "relative_error", "systematic_error_joules")


def _line(session: str, label: str, measured: Measurement, *, final: bool) -> dict[str, Any]:
    totals = measured.to_dict()
    names = ("joules", "provenance", "relative_error", "systematic_error_joules", "flags")
    return {
        "schema": SCHEMA,
        "session": session,
        "label": label,
        "started": None if math.isnan(measured.started_at_wall) else measured.started_at_wall,
        "final": final,
        "seconds": totals["seconds"] or 0.0,
        "devices": {device["id"]: device["joules"] for device in totals["devices"]},
        **{
            kinds: {
                device["id"]: device["name"]
                for device in totals["devices"]
                if device["kind"] == kind
            }
            for kinds, kind in _NAMED_KINDS.items()
        },
        "device_figures": {
            device["id"]: {name: device[name] for name in _DEVICE_FIGURES}
            for device in totals["devices"]
        },
        **{name: totals[name] for name in names},
    }


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Document of one line; None where it is damaged or of another schema."""
    try:
        document = decode_line(line)
        if document["schema"] != SCHEMA or not isinstance(document["session"], str):
            return None
        numbers = [document["joules"], *document["devices"].values()]
        for figure in (document, *document.setdefault("device_figures", {}).values()):
            numbers += [figure["relative_error"], figure["systematic_error_joules"]]
            Origin(figure["provenance"])
        for number in (document["seconds"], *(value for value in numbers if value is not None)):
            finite(number, "a logged number", minimum=0.0)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return document


def _added_up(sessions: list[dict[str, Any]], damaged: tuple[int, ...]) -> LogTotals:
    parts: dict[str, list[dict[str, Any]]] = {}
    names: dict[str, str] = {}
    for session in sessions:
        figures = session["device_figures"]
        for device, joules in session["devices"].items():
            if joules is not None:
                parts.setdefault(device, []).append(figures.get(device, {}) | {"joules": joules})
        names |= {device: str(figure.get("name", device)) for device, figure in figures.items()}
    accelerators, processors = (_names(sessions, kinds) for kinds in _NAMED_KINDS)
    starts = [session.get("started") for session in sessions]
    metered = [session for session in sessions if session["joules"] is not None]
    return LogTotals(
        seconds=sum(session["seconds"] for session in sessions),
        joules=sum(session["joules"] for session in metered) if metered else None,
        devices={
            device: sum(part["joules"] for part in figures) for device, figures in parts.items()
        },
        names=(processors or {}) | (accelerators or {}) | names,
        provenances={
            device: _provenance(figures)
            for device, figures in parts.items()
            if all("provenance" in part for part in figures)
        },
        accelerators=accelerators,
        processors=processors,
        started_wall_seconds=min((s for s in starts if isinstance(s, float)), default=None),
        sessions=len(sessions),
        unfinished=sum(not session.get("final") for session in sessions),
        damaged_lines=damaged,
        provenance=_provenance(metered) if metered else NOTHING_LOGGED,
    )


def _names(sessions: list[dict[str, Any]], kinds: str) -> dict[str, str] | None:
    """Names by device id of all sessions; None where a session does not say."""
    names: dict[str, str] = {}
    for session in sessions:
        if not isinstance(session.get(kinds), dict):
            return None
        names |= {str(device): str(name) for device, name in session[kinds].items()}
    return names


def _provenance(parts: list[dict[str, Any]]) -> Provenance:
    """Provenance of a sum over sessions, which share the errors of their sensors."""
    origins = [Origin(part["provenance"]) for part in parts]
    weakest = max(origins, key=list(Origin).index)
    source = "; ".join(dict.fromkeys(str(part["source"]) for part in parts if part.get("source")))
    errors = [part["relative_error"] for part in parts]
    total = math.fsum(part["joules"] for part in parts)
    if total <= 0 or None in errors:
        return Provenance(weakest, source)
    shared = varying = 0.0
    for part, error in zip(parts, errors, strict=True):
        sigma, systematic = error * part["joules"], part["systematic_error_joules"] or 0.0
        shared += min(sigma, systematic)
        varying += max(0.0, sigma**2 - systematic**2)
    return Provenance(weakest, source, math.hypot(shared, math.sqrt(varying)) / total)
