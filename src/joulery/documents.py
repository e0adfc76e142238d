"""JSON documents with types: strict reading and writing by msgspec, in our words.

A ``JsonModel`` is an immutable struct with exactly one JSON form, shared by the client, the
server, the store and the outbox, and described in the server's OpenAPI document. Constraints are
``msgspec.Meta`` in annotations. Reading refuses unknown members, so that a misspelt one is not
taken for a missing one, and every refusal names the member and a remedy.

msgspec writes enumerations by value and has no form for the classes of other rooms, for infinity
as null, or for text without control characters; ``Foreign`` with a ``Codec`` gives a
type such a form.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args, get_type_hints

import msgspec
from msgspec import Meta

from joulery.errors import FileError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from enum import Enum
    from pathlib import Path
    from typing import Annotated as Foreign

__all__ = [
    "LARGEST",
    "LARGEST_ID",
    "SMALLEST",
    "Codec",
    "Count",
    "Foreign",
    "JsonModel",
    "Name",
    "NotJsonError",
    "Quantity",
    "Text",
    "Unlimited",
    "check_name",
    "decode_json",
    "encode_json",
    "enumeration",
    "json_schemas",
    "read_text",
]

LARGEST = 1e15
"""The largest quantity (by hand: beyond it sums lose seconds, and squares may overflow)."""
SMALLEST = 1e-12
"""The smallest quantity that is not zero (by hand: quotients of quantities stay finite)."""
LARGEST_ID = 10**18 - 1
"""The largest number of a row: 18 digits, which fit 64 bits."""
_LONGEST_NAME = 200  # characters (by hand: a line of a log)

_REMEDY = "send one JSON document in UTF-8 (RFC 8259)"


class NotJsonError(InvalidValueError):
    """A text is not JSON, or not JSON that every reader understands in the same way."""


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """The JSON form of a type that msgspec cannot read or write as it is needed here.

    Attributes:
        write: Function from a value to its JSON form.
        read: Function from a JSON form to the value; refuses with ``InvalidValueError``.
        schema: JSON Schema of the form.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    schema: dict[str, Any] = field(default_factory=dict)


class _ForeignType(type):
    """Type of fields whose values a codec checks, so that msgspec need not check their class."""

    codec: Codec

    def __instancecheck__(cls, value: object) -> bool:
        return True


if not TYPE_CHECKING:

    class Foreign:
        """``Foreign[kind, codec]``: a field of the class ``kind`` with the JSON form of a codec."""

        def __class_getitem__(cls, parameters: tuple[type, Codec]) -> _ForeignType:
            kind, codec = parameters
            return _ForeignType(kind.__name__, (), {"codec": codec})


def enumeration(kind: type[Enum]) -> Codec:
    """The form of an enumeration: the name of its member in lower case."""
    names = {member.name.lower(): member for member in kind}
    choices = ", ".join(names)

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            raise InvalidValueError(
                f"must be one of {choices}, not {short_repr(value)}",
                remedy=f"give one of {choices}",
            )
        return names[value]

    return Codec(lambda member: member.name.lower(), read, {"type": "string", "enum": list(names)})


# Without control characters, halves of characters and separators of lines: no log can show them,
# and no database need hold them. The end is written so that Python allows no line end after it.
_PRINTABLE = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff]*$(?![\s\S])"
Quantity = Annotated[float, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST_ID)]
Text = Annotated[str, Meta(max_length=_LONGEST_NAME, pattern=_PRINTABLE)]
Name = Annotated[str, Meta(min_length=1, max_length=_LONGEST_NAME, pattern=_PRINTABLE)]


def _read_unlimited(value: Any) -> float:
    try:
        return math.inf if value is None else msgspec.convert(value, Quantity)
    except msgspec.ValidationError:
        raise InvalidValueError(
            f"must be null or a number from 0 to {LARGEST:g}, not {short_repr(value)}",
            remedy="give null for no limit",
        ) from None


_UNLIMITED = Codec(
    lambda value: None if math.isinf(value) else float(value),
    _read_unlimited,
    {"anyOf": [{"type": "number", "minimum": 0, "maximum": LARGEST}, {"type": "null"}]},
)
Unlimited = Foreign[float, _UNLIMITED]
"""A quantity that may be infinite, which is null in JSON."""


class JsonModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct with one JSON form; its docstring describes the fields in OpenAPI, too."""

    def to_document(self) -> dict[str, Any]:
        """The value as JSON; numbers of any make become plain ones."""
        writers = _writers(type(self))
        return {name: _write(getattr(self, name), writer) for name, writer in writers.items()}

    def to_json(self) -> bytes:
        """The value as one line of JSON."""
        return encode_json(self.to_document())

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """The value that ``to_document`` gave this document for.

        Raises:
            InvalidValueError: A member is missing, unknown, of another type or out of range.
        """
        try:
            return msgspec.convert(document, cls, dec_hook=_read_foreign)
        except msgspec.ValidationError as error:
            raise _refusal(error, cls) from None

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """The value that ``to_json`` gave this text for.

        Raises:
            NotJsonError: The text is not JSON.
            InvalidValueError: A member is missing, unknown, of another type or out of range.
        """
        value: Self = _decode(_decoder(cls), content, cls)
        return value

    def checked(self) -> Self:
        """The same value, as a server would read it.

        Raises:
            InvalidValueError: A server would refuse it.
        """
        return self.from_document(self.to_document())


def encode_json(document: Any) -> bytes:
    """A document as one line of JSON.

    Raises:
        InvalidValueError: A text is not Unicode.
    """
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        raise InvalidValueError(
            "a text holds half of a character", remedy="give text in Unicode"
        ) from None


def decode_json(content: bytes) -> Any:
    """The document that ``encode_json`` was given.

    Raises:
        NotJsonError: The text is not JSON; or it has NaN, infinities, text that is not Unicode or
            has a NUL, or is nested too deeply. Of a member given twice, the last one counts.
    """
    return _decode(_ANYTHING, content)


def _decode(
    decoder: msgspec.json.Decoder[Any], content: bytes, kind: type[JsonModel] | None = None
) -> Any:
    if rb"\u0000" in content and rb"\u0000" in content.replace(rb"\\", b""):
        raise NotJsonError("text has a NUL", remedy="leave it out")
    try:
        return decoder.decode(content)
    except RecursionError:
        raise NotJsonError("nested too deeply", remedy=_REMEDY) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if kind is not None and isinstance(error, msgspec.ValidationError):
            raise _refusal(error, kind) from None
        raise NotJsonError(f"not JSON: {error}", remedy=_REMEDY) from None


def check_name(text: str, role: str) -> str:
    """A text, said to be ``what``, checked as a name that databases hold and logs show.

    Raises:
        InvalidValueError: It is empty, too long or not printable.
    """
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError:
        raise InvalidValueError(
            f"{role} must be 1 to {_LONGEST_NAME} printable characters, not {short_repr(text)}",
            remedy="shorten it, and leave control characters out",
        ) from None


def read_text(path: Path, subject: str) -> str:
    """The text of a file in UTF-8.

    Args:
        path: The file.
        subject: Noun of what it holds, for the error.

    Raises:
        FileError: It cannot be read, or is not text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise FileError(
            f"cannot read the {subject} {path}: {reason}", remedy="check the name of the file"
        ) from None


def json_schemas(models: Iterable[type[JsonModel]]) -> dict[str, Any]:
    """JSON Schema by name, of models and what they refer to, for an OpenAPI document."""
    _, schemas = msgspec.json.schema_components(
        models,
        schema_hook=_foreign_schema,
        ref_template="#/components/schemas/{name}",
    )
    by_name = {kind.__name__: kind for kind in JsonModel.__subclasses__()}
    for name, schema in schemas.items():
        summary, descriptions = _descriptions(by_name[name])
        schema["description"] = summary
        for member, property_schema in schema["properties"].items():
            schema["properties"][member] = property_schema | {"description": descriptions[member]}
    document: dict[str, Any] = json.loads(json.dumps(schemas))  # tuples of defaults become lists
    return document


def _foreign_schema(kind: Any) -> dict[str, Any]:
    schema: dict[str, Any] = kind.codec.schema
    return schema


def _descriptions(kind: type) -> tuple[str, dict[str, str]]:
    """A class's docstring without its attributes, and the text of each attribute."""
    summary, _, attributes = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
    texts = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", attributes, re.MULTILINE)
    return summary, {name: re.sub(r"\s+", " ", text) for name, text in texts}


@cache
def _decoder(kind: type[JsonModel]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_read_foreign)


_ANYTHING = msgspec.json.Decoder()


def _read_foreign(kind: Any, value: Any) -> Any:
    return kind.codec.read(value)


@cache
def _writers(kind: type[JsonModel]) -> dict[str, Callable[[Any], Any] | None]:
    """Function that writes the values of each field; None for fields that are plain JSON."""
    hints = get_type_hints(kind)
    return {name: _writer(hints[name]) for name in kind.__struct_fields__}


def _writer(hint: Any) -> Callable[[Any], Any] | None:
    if isinstance(hint, _ForeignType):
        return hint.codec.write
    return next(filter(None, map(_writer, get_args(hint))), None)


def _write(value: Any, writer: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, JsonModel):
        return value.to_document()
    if isinstance(value, tuple | list):
        return [_write(entry, writer) for entry in value]
    if writer is not None and value is not None:
        return writer(value)
    return value.item() if hasattr(value, "item") else value  # of NumPy


_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "int | float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _refusal(error: msgspec.ValidationError, kind: type) -> InvalidValueError:
    """The error of ours for one of msgspec, which names a path such as ``$.job.batch_sizes``."""
    text, _, path = str(error).partition(" - at `")
    member = path.strip("`").removeprefix("$").removeprefix(".") or kind.__name__
    cause = error.__cause__
    if isinstance(cause, InvalidValueError):  # of a codec or of a check of the model's own
        prefix = f"{member}: " if path else ""
        return InvalidValueError(prefix + cause.message, remedy=cause.remedy)
    words = re.sub(r"`([^`]+)`", lambda name: _NOUNS.get(name[1], name[1]), text)
    words = words.replace("| null", "or null").replace("of length", "with a length")
    if "contains unknown" in text:
        name = text.split("`")[1]
        return InvalidValueError(
            f"{member} has no member {short_repr(name)}", remedy="leave it out, or correct its name"
        )
    if "missing required" in text:
        name = text.split("`")[1]
        return InvalidValueError(f"{name} is missing", remedy=f"add the member {name}")
    if "regex" in text:
        words = "Expected printable text" if "u0000" in text else "Expected an id as it was given"
    expected, _, received = words.removeprefix("Expected ").partition(", got ")
    if words.startswith("Expected"):
        message = f"{member} must be {expected}" + (f", not {received}" if received else "")
        return InvalidValueError(message, remedy=f"give {member} as {expected}")
    return InvalidValueError(f"{member}: {words}", remedy=f"give {member} as described")
