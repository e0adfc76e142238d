"""Errors as RFC 9457 problem documents: what is wrong, what to do, and nothing of our insides."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

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
from joulery.jobs.wire_text import NotJsonError, to_bytes

MEDIA_TYPE = b"application/problem+json"
_RETRY_SECONDS = 1
_LONGEST = 400
# The first that fits counts.
_STATUS: dict[type[JouleryError], int] = {
    NotJsonError: 400,
    ConflictError: 409,
    UsageError: 422,
    NotPossibleHereError: 501,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that says what is wrong.

    Attributes:
        status: Of HTTP.
        kind: The error that the client shall take it for.
        detail: What is wrong, one line.
        remedy: What to do, one line.
        headers: Besides those of every answer.
    """

    status: int
    kind: type[JouleryError]
    detail: str
    remedy: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def body(self) -> bytes:
        """As a document."""
        return to_bytes(
            {
                "type": f"/problems/{_kebab(self.kind)}",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "detail": self.detail[:_LONGEST],
                "remedy": self.remedy[:_LONGEST],
            }
        )


class ProblemError(Exception):
    """Ends the handling of a request with a problem.

    Args:
        problem: That is told.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def _kebab(kind: type[JouleryError]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def later(detail: str, status: int = 503, seconds: int = _RETRY_SECONDS) -> Problem:
    """There is too much to do; the same request may be made again."""
    return Problem(
        status,
        StoreBusyError,
        detail,
        f"make the same request again in {seconds} s",
        ((b"retry-after", b"%d" % seconds),),
    )


INTERNAL = Problem(
    500,
    JouleryError,
    "the server failed to handle the request",
    "make the same request again; if it fails again, show the server's log to its owner",
)
NO_SUCH_PLACE = Problem(
    404, UnknownRecordError, "there is nothing at this address", "see /openapi.json for addresses"
)
# The same for what is not there and what is not the caller's.
NOT_FOUND = Problem(
    404,
    UnknownRecordError,
    "there is no such record, or it belongs to another team",
    "list the jobs of your team; one may be forgotten",
)
NO_TOKEN = Problem(
    401,
    MissingRightsError,
    "the request carries no valid token",
    "send Authorization: Bearer TOKEN with a token that is neither expired nor revoked",
    ((b"www-authenticate", b'Bearer realm="joulery"'),),
)
NO_DECISION_TOKEN = Problem(
    401,
    MissingRightsError,
    "the request does not carry the token of this decision",
    "send Authorization: Bearer TOKEN with the token that came with the decision",
    ((b"www-authenticate", b'Bearer realm="joulery decision"'),),
)
NO_RIGHT = Problem(
    403,
    MissingRightsError,
    "the token does not allow this",
    "ask the server's owner for a token with more rights",
)
UNEXPECTED_MEDIA = Problem(
    415,
    InvalidValueError,
    "the body is not declared to be JSON",
    "send Content-Type: application/json",
)
BODY_TOO_LATE = Problem(
    408, StoreBusyError, "the body took too long to arrive", "make the same request again"
)
DRAINING = later("the server is being stopped")


def body_too_large(most: int) -> Problem:
    """The body is more than the server takes."""
    return Problem(
        413,
        InvalidValueError,
        f"the body has more than {most} bytes",
        "send less at once",
    )


def method_not_allowed(allowed: str) -> Problem:
    """The address is right, the method is not."""
    return Problem(
        405,
        UsageError,
        "this address does not take that method",
        f"use {allowed}",
        ((b"allow", allowed.encode("ascii")),),
    )


def problem_of(error: JouleryError) -> Problem:
    """What an error of ours is to a client."""
    if isinstance(error, StoreError):
        # Its message may tell of files, addresses and the database's own words.
        return later("the store is busy, restarting or full")
    if isinstance(error, UnknownRecordError):
        return NOT_FOUND
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    if status == 500:
        return INTERNAL
    kind = InvalidValueError if isinstance(error, NotJsonError) else type(error)
    return Problem(status, kind, error.message, error.remedy)
