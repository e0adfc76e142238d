"""The bodies of requests, read within bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from joulery.server.calls import JSON
from joulery.server.problems import (
    BODY_TOO_LATE,
    UNEXPECTED_MEDIA,
    ProblemError,
    body_too_large,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from joulery.server.limits import Limits

    Receive = Callable[[], Awaitable[dict[str, Any]]]


async def read_body(headers: list[tuple[bytes, bytes]], receive: Receive, limits: Limits) -> bytes:
    """The whole body.

    Raises:
        ProblemError: It is not declared to be JSON, too large, or too slow.
    """
    given = dict(headers)
    if given.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON:
        raise ProblemError(UNEXPECTED_MEDIA)
    if int(given.get(b"content-length", b"0")) > limits.body_bytes:
        raise ProblemError(body_too_large(limits.body_bytes))
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limits.body_bytes:
            raise ProblemError(body_too_large(limits.body_bytes))
        return body
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _rest(message, receive, limits.body_bytes)
    except TimeoutError:
        raise ProblemError(BODY_TOO_LATE) from None


async def _rest(message: dict[str, Any], receive: Receive, most: int) -> bytes:
    parts = [message.get("body", b"")]
    size = len(parts[0])
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(BODY_TOO_LATE)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise ProblemError(body_too_large(most))
    return b"".join(parts)
