"""What one client asked and was answered, in a file that outlives it.

A line is written before a request is sent and another before its answer is acted on. The system
keeps what was written when a process is killed, so at most the last line is torn, and a request
without an answer is one of which nobody knows whether it was carried out.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from joulery.errors import JouleryError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from joulery.storage import Document


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        operation: ``decide`` or ``report``.
        job: Whose.
        key: Chosen by the client.
        sent: For a decision ``after`` and ``probing``; for a report ``decision`` and ``outcome``,
            as they go over the wire.
        answer: As it came over the wire; empty where it was merely promised that it will be
            carried out; None where nobody knows.
        refused: Why it was refused for good.
    """

    operation: str
    job: int
    key: str
    sent: Document
    answer: Document | None = None
    refused: str | None = None

    @property
    def open(self) -> bool:
        """Whether nobody knows what became of it."""
        return self.answer is None and self.refused is None


class Recorder:
    """Writes down the calls of one client, over all its lives.

    Args:
        path: Of the file; a line that was torn by a kill is closed.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
        self._life = f"{os.getpid()}.{size}"
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def carry_out(self, call: Call, ask: Callable[[], Document]) -> Document | None:
        """Note a call, make it, note what came of it; its answer, if it was answered.

        Args:
            call: To be made.
            ask: Makes it; :class:`StoreError` leaves open what became of it, any other
                :class:`JouleryError` is a refusal for good.
        """
        self._count += 1
        name = f"{self._life}.{self._count}"
        subject = {"operation": call.operation, "job": call.job, "key": call.key}
        self._write({"call": name, **subject, "sent": call.sent})
        try:
            answer = ask()
        except StoreError:
            return None
        except JouleryError as error:
            self._write({"call": name, "refused": f"{type(error).__name__}: {error.message}"})
            return None
        self._write({"call": name, "answer": answer})
        return answer

    def _write(self, document: Document) -> None:
        os.write(self._file, json.dumps(document, allow_nan=False).encode() + b"\n")


def read_calls(paths: Iterable[Path]) -> list[Call]:
    """All calls of some clients, each client's in their order."""
    return [call for path in paths for call in _read(path)]


def _read(path: Path) -> list[Call]:
    requests: dict[str, Document] = {}
    came: dict[str, Document] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        document: Any = None
        with suppress(ValueError):  # torn by a kill
            document = json.loads(line)
        if isinstance(document, dict):
            (requests if "sent" in document else came)[document["call"]] = document
    return [
        Call(
            request["operation"],
            request["job"],
            request["key"],
            request["sent"],
            came.get(name, {}).get("answer"),
            came.get(name, {}).get("refused"),
        )
        for name, request in requests.items()
    ]
