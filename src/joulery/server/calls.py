"""One request as handlers see it, and their answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from joulery.errors import InvalidValueError
from joulery.jobs.wire_members import LARGEST_ID, shown
from joulery.jobs.wire_text import from_bytes, to_bytes
from joulery.server.problems import NO_TOKEN, NOT_FOUND, ProblemError

if TYPE_CHECKING:
    from joulery.storage.tokens import TokenRecord

JSON = b"application/json"
_QUERY_ENTRIES = 10


@dataclass(slots=True)
class Call:
    """A request whose caller is known.

    Attributes:
        parameters: From the path, decoded.
        query: As it came.
        body: As it came.
        caller: Whose token it carries; None for calls on a decision and for those open to all.
    """

    parameters: dict[str, str]
    query: bytes
    body: bytes
    caller: TokenRecord | None

    @property
    def token(self) -> TokenRecord:
        """Whose call it is, where operations ask for a token."""
        if self.caller is None:
            raise ProblemError(NO_TOKEN)
        return self.caller

    def document(self) -> Any:
        """The body as JSON."""
        return from_bytes(self.body)

    def number(self, name: str) -> int:
        """A number from the path; what is none names nothing."""
        text = self.parameters[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise ProblemError(NOT_FOUND)
        return int(text)

    def options(self, *names: str) -> dict[str, str]:
        """What the query says; nothing but ``names``."""
        try:
            pairs = parse_qsl(
                self.query.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_QUERY_ENTRIES,
            )
        except ValueError:
            raise InvalidValueError(
                "cannot read the query", remedy=f"give {', '.join(names) or 'none'}"
            ) from None
        found = dict(pairs)
        for name in found:
            if name not in names:
                raise InvalidValueError(
                    f"the query has no {shown(name)}", remedy=f"give {', '.join(names) or 'none'}"
                )
        if len(found) < len(pairs):
            raise InvalidValueError("the query says something twice", remedy="say it once")
        return found

    def page(self, most: int, *others: str) -> tuple[int, int, dict[str, str]]:
        """After what, how many entries, and what the query says besides."""
        options = self.options("after", "limit", *others)
        after = _whole(options.pop("after", "0"), "after", 0, LARGEST_ID)
        limit = _whole(options.pop("limit", str(min(100, most))), "limit", 1, most)
        return after, limit, options


def _whole(text: str, name: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most:
        return int(text)
    raise InvalidValueError(
        f"{name} {shown(text)} is no whole number from {least} to {most}",
        remedy=f"give {least} to {most}",
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler answers.

    Attributes:
        body: Ready to be sent.
        status: Of HTTP.
        media_type: Of the body.
        headers: Besides those of every answer.
    """

    body: bytes
    status: int = 200
    media_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


def answer(document: Any, status: int = 200) -> Answer:
    """A document as an answer."""
    return Answer(to_bytes(document), status)


NOTHING = Answer(b"", 204)
