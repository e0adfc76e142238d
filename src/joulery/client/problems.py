"""Problem documents of the server (RFC 9457) as the errors that they stand for."""

from __future__ import annotations

import re
from typing import Any

from joulery.errors import (
    ConflictError,
    InvalidValueError,
    JouleryError,
    MissingRightsError,
    NotPossibleHereError,
    StoreBusyError,
    StoreError,
    UnknownRecordError,
    UsageError,
)
from joulery.jobs.wire_text import from_bytes

_LONGEST = 500
_PREFIX = "/problems/"
_BY_STATUS: dict[int, type[JouleryError]] = {
    401: MissingRightsError,
    403: MissingRightsError,
    404: UnknownRecordError,
    408: StoreBusyError,
    409: ConflictError,
    422: InvalidValueError,
    429: StoreBusyError,
    501: NotPossibleHereError,
}


def error_of(status: int, body: bytes) -> JouleryError:
    """What an answer that is no success means to the caller."""
    document = _document(body)
    kind = _named(document.get("type"))
    if kind is None or not _fits(kind, status):
        kind = _BY_STATUS.get(status)
    if kind is None:
        # What goes wrong inside a server may go right the next time.
        kind = StoreBusyError if status >= 500 else UsageError
    if 300 <= status < 400:
        return StoreError(
            f"the server sends us elsewhere ({status})", remedy="give the address that it names"
        )
    message = _words(document.get("detail")) or _words(document.get("title"))
    return kind(
        message or f"the server refuses the request ({status})",
        remedy=_words(document.get("remedy")) or "see the log of the server",
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = from_bytes(body)
    except InvalidValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _words(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(char if char.isprintable() else " " for char in value[:_LONGEST]).strip()


def _named(value: Any) -> type[JouleryError] | None:
    if not isinstance(value, str) or not value.startswith(_PREFIX):
        return None
    wanted = value.removeprefix(_PREFIX)
    waiting: list[type[JouleryError]] = [JouleryError]
    while waiting:
        kind = waiting.pop()
        if _kebab(kind.__name__) == wanted:
            return kind
        waiting += kind.__subclasses__()
    return None


def _kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def _fits(kind: type[JouleryError], status: int) -> bool:
    """Whether a server that says both is to be believed: its errors are not the caller's fault."""
    return issubclass(kind, UsageError) == (400 <= status < 500 and status not in {401, 403})
