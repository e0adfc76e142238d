"""Errors as RFC 9457 problem documents: what is wrong, what to do, and no internals."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Response

from joulery.client import ProblemDetails, status_of
from joulery.errors import (
    InvalidValueError,
    JouleryError,
    MissingRightsError,
    StoreBusyError,
    StoreError,
    StoreReplacedError,
    UnknownRecordError,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
_RETRY_SECONDS = 1  # by hand: several group commits
_RESTART_SECONDS = 10  # by hand: a supervisor restarts a server within this
_LONGEST = 400  # characters of a detail or remedy (by hand)


class ProblemError(HTTPException):
    """Ends the handling of a request with a problem document.

    Args:
        status: HTTP status.
        kind: Class of errors that the client takes it for.
        detail: Description of the error, one line.
        remedy: Advice to the caller, one line.
        headers: Headers besides those of every answer.
    """

    def __init__(
        self,
        status: int,
        kind: type[JouleryError],
        detail: str,
        remedy: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.problem = ProblemDetails(
            type=f"/problems/{kind.code}",
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail[:_LONGEST],
            remedy=remedy[:_LONGEST],
        )

    def response(self) -> Response:
        """The answer to the client."""
        return Response(
            self.problem.to_json(),
            self.status_code,
            dict(self.headers or {}),
            MEDIA_TYPE,
        )


def later(detail: str, status: int = 503, seconds: int = _RETRY_SECONDS) -> ProblemError:
    """The server has too much to do; the same request may be made again."""
    return ProblemError(
        status,
        StoreBusyError,
        detail,
        f"make the same request again in {seconds} s",
        {"Retry-After": str(seconds)},
    )


def store_replaced() -> ProblemError:
    """The store was restored under the running server, which knows another content."""
    return ProblemError(
        503,
        StoreReplacedError,
        "the store was replaced while the server had it open",
        "restart the server; clients may repeat their requests after it",
        {"Retry-After": str(_RESTART_SECONDS)},
    )


def internal() -> ProblemError:
    """The server failed; the log says why."""
    return ProblemError(
        500,
        JouleryError,
        "the server failed to handle the request",
        "make the same request again; if it fails again, show the server's log to its owner",
    )


# For commands; a page has lists to look into.
LIST_REMEDY = (
    "list the jobs of your team, by --team or $JOULERY_TEAM; the job may have been deleted"
)


def not_found(
    detail: str = "there is no such record, or it belongs to another team",
    remedy: str = LIST_REMEDY,
) -> ProblemError:
    """A record does not exist, or is not the caller's: the same for both."""
    return ProblemError(404, UnknownRecordError, detail, remedy)


def no_token(realm: str = "joulery") -> ProblemError:
    """The request has no valid token."""
    detail = "the request does not carry the token that came with the decision"
    remedy = "send Authorization: Bearer TOKEN with the token that came with the decision"
    if realm == "joulery":
        detail = "the request does not carry a valid token; one may have expired or been revoked"
        remedy = (
            "put a token of `joulery serve token create` into $JOULERY_TOKEN (over HTTP: send "
            "Authorization: Bearer TOKEN)"
        )
    return ProblemError(
        401,
        MissingRightsError,
        detail,
        remedy,
        {"WWW-Authenticate": f'Bearer realm="{realm}"'},
    )


def session_ended(reason: str) -> ProblemError:
    """The session of a person is over; the detail says why."""
    return ProblemError(
        401,
        MissingRightsError,
        f"your session has ended: {reason}",
        "log in again to continue where you are",
    )


def other_origin() -> ProblemError:
    """A form was sent by a page of another site, port or program."""
    return ProblemError(
        403,
        MissingRightsError,
        "the request comes from another page than the dashboard's",
        "use the dashboard itself; behind a proxy, have it pass on the Host header",
    )


def no_permission() -> ProblemError:
    """The token does not allow the operation."""
    return ProblemError(
        403,
        MissingRightsError,
        "the token does not allow this",
        "ask the server's owner for a token with more rights",
    )


def body_too_large(limit_bytes: int) -> ProblemError:
    """The body is larger than the server accepts."""
    return ProblemError(
        413, InvalidValueError, f"the body has more than {limit_bytes} bytes", "send less at once"
    )


def problem_of(error: JouleryError) -> ProblemError:
    """The problem that an error of ours stands for, without what others must not see."""
    if isinstance(error, UnknownRecordError):
        return not_found()
    if isinstance(error, StoreReplacedError):
        return store_replaced()
    if isinstance(error, StoreError):
        # Not the database's words, which name files, hosts and statements.
        return later("the store is busy, restarting or full")
    status = status_of(error)
    if status == 500:
        return internal()
    return ProblemError(status, type(error), error.message, error.remedy)


def problem_of_http(error: Any) -> ProblemError:
    """The problem that an error of the framework stands for."""
    if isinstance(error, ProblemError):
        return error
    status = int(error.status_code)
    if status == 404:
        detail, remedy = "there is nothing at this address", "see /openapi.json for addresses"
        return ProblemError(404, UnknownRecordError, detail, remedy)
    detail = f"{HTTPStatus(status).phrase.lower()} at this address"
    return ProblemError(
        status, UsageError, detail, "see /openapi.json for what is accepted", error.headers
    )
