"""One HTTP request with a time limit, the only place where this room calls a network; and times."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from typing import Any

from joulery.errors import NotPossibleHereError

_TIMEOUT_SECONDS = 20.0  # by hand: providers answer in seconds


class SignalError(NotPossibleHereError):
    """A provider of grid signals does not answer, or not with what it documents."""


def request(
    url: str,
    *,
    query: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    form: dict[str, str] | None = None,
    document: Any = None,
) -> bytes:
    """The body of the answer to a GET, or to a POST of a form or a JSON document.

    Raises:
        SignalError: No answer in time, or a status other than 2xx.
    """
    if not url.startswith(("https://", "http://")):
        raise SignalError(f"not an address: {url}", remedy="give one that starts with https://")
    address = f"{url}?{urllib.parse.urlencode(query)}" if query else url
    data, all_headers = None, dict(headers or {})
    if form is not None:
        data = urllib.parse.urlencode(form).encode()
    elif document is not None:
        data = json.dumps(document).encode()
        all_headers["Content-Type"] = "application/json"
    call = urllib.request.Request(address, data=data, headers=all_headers)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(call, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise SignalError(
            f"{url} answers {error.code} {error.reason}",
            remedy="check the token, the region and the provider's status page",
        ) from None
    except (OSError, ValueError) as error:
        raise SignalError(
            f"{url} does not answer: {error}", remedy="check the network and the address"
        ) from None


def utc_seconds(text: str) -> float:
    """A time as services write it, in UTC where it states no zone, in seconds since 1970."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
