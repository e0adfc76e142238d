"""JSON documents of dataclasses: one strict reader and one writer, driven by type hints.

A :class:`JsonModel` is a dataclass with exactly one JSON form, used by the client, the server, the
store and the outbox alike, and described in the server's OpenAPI document. Its fields are text,
numbers, truth values, tuples, dictionaries and other dataclasses; :class:`Constraint` narrows a
type in the words of JSON Schema, :class:`Codec` gives a JSON form to a type of another room.
Reading refuses unknown members by name, so that a misspelt one is not taken for a missing one.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from joulery.errors import InvalidValueError

Document = dict[str, Any]
Reader = Callable[[Any, str], Any]
Writer = Callable[[Any], Any]

LARGEST = 1e15
"""The largest quantity: beyond it sums lose seconds, and squares may overflow."""
SMALLEST = 1e-12
"""The smallest quantity that is not zero, so that quotients stay finite."""
LARGEST_ID = 10**18 - 1
_UNIONS = (Union, types.UnionType)
_NO_RULES: Document = {}
_SHOWN = 40  # characters of a wrong value that a message repeats


class Constraint:
    """What a value must fulfil, in keywords of JSON Schema.

    Args:
        keywords: Any of ``minimum``, ``maximum``, ``minLength``, ``maxLength``,
            ``pattern``, ``maxItems``; others are for the description only.
    """

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], Document]) -> Any:
        """Add the keywords to the description that FastAPI makes."""
        return handler(core) | self.keywords


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """The JSON form of a type that is not a :class:`JsonModel`.

    Attributes:
        write: Function from a value to its JSON form.
        read: Function from a JSON form and the name of the member to the value.
        schema: JSON Schema of the form.
    """

    write: Writer
    read: Reader
    schema: Document

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Document:
        """Leave reading to :attr:`read`."""
        return {"type": "any"}

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Document:
        """Describe the form by :attr:`schema`."""
        return dict(self.schema)


def by_name(kind: Any) -> Codec:
    """The form of an enumeration: the name of its member in lower case."""
    names = {member.name.lower(): member for member in kind}

    words = list(names)
    return Codec(
        lambda value: value.name.lower(),
        lambda value, name: names[_read_word(value, name, words)],
        {"type": "string", "enum": words},
    )


Quantity = Annotated[float, Constraint(minimum=0, maximum=LARGEST)]
Count = Annotated[int, Constraint(minimum=0, maximum=LARGEST_ID)]
Text = Annotated[str, Constraint(maxLength=200)]
Name = Annotated[str, Constraint(minLength=1, maxLength=200)]


class JsonModel:
    """A dataclass with one JSON form; its docstring describes the fields in OpenAPI, too."""

    __slots__ = ()

    def to_document(self) -> Document:
        """The value as JSON; numbers of any make become plain ones."""
        return _write_members(type(self), self)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """The value that :meth:`to_document` gave this document for.

        Raises:
            InvalidValueError: A member is missing, unknown, of another type or out of range.
        """
        found: Self = _read_members(cls, document, cls.__name__)
        return found

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Document:
        """Complete the description that FastAPI makes: field texts, and no other members."""
        reference: Document = handler(core)
        schema = handler.resolve_ref_schema(reference)
        summary, descriptions = _described(cls)
        schema |= {"description": summary, "additionalProperties": False}
        for name, member in schema["properties"].items():
            member["description"] = descriptions[name]
        return reference


def _described(cls: type) -> tuple[str, dict[str, str]]:
    """A class's docstring without its attributes, and the text of each attribute."""
    text = inspect.getdoc(cls) or ""
    summary, _, attributes = text.partition("\n\nAttributes:\n")
    found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", attributes, re.MULTILINE)
    return summary, {name: re.sub(r"\s+", " ", words) for name, words in found}


@cache
def _members(cls: Any) -> dict[str, tuple[Reader, Writer, bool]]:
    """Of each field, its reader, its writer, and whether a document must have it."""
    hints = get_type_hints(cls, include_extras=True)
    missing = dataclasses.MISSING
    return {
        field.name: (
            _reader(hints[field.name]),
            _writer(hints[field.name]),
            field.default is missing and field.default_factory is missing,
        )
        for field in dataclasses.fields(cls)
    }


def _write_members(cls: Any, value: Any) -> Document:
    return {name: write(getattr(value, name)) for name, (_, write, _) in _members(cls).items()}


def _read_members(cls: Any, document: Any, name: str) -> Any:
    members = _members(cls)
    if not isinstance(document, dict):
        raise _wrong(name, "an object", document)
    for member in document:
        if member not in members:
            raise InvalidValueError(
                f"{cls.__name__} has no member {shown(member)}",
                remedy=f"give no members but {', '.join(members)}",
            )
    for member, (_, _, required) in members.items():
        if required and member not in document:
            raise InvalidValueError(f"{member} is missing", remedy=f"add the member {member}")
    return cls(**{each: members[each][0](value, each) for each, value in document.items()})


def _writer(hint: Any) -> Writer:
    """The function from a value of a type to its JSON form."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        codec = next((mark for mark in arguments[1:] if isinstance(mark, Codec)), None)
        return codec.write if codec else _writer(arguments[0])
    if hint in (int, float):
        return cast("Writer", hint)
    if dataclasses.is_dataclass(hint):
        return partial(_write_members, hint)
    if origin in _UNIONS:
        inner = _writer(_without_none(arguments)[-1])
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        entry = _writer(arguments[0])
        return lambda value: [entry(one) for one in value]
    return dict if origin is dict else lambda value: value


def _reader(hint: Any, rules: Document = _NO_RULES) -> Reader:  # noqa: PLR0911 - one for each kind of type
    """The function from a JSON form and its name to a value, which fulfils ``rules``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for mark in arguments[1:]:
            if isinstance(mark, Codec):
                return mark.read
            rules = rules | mark.keywords
        return _reader(arguments[0], rules)
    if hint in _SCALARS:
        read = _SCALARS[hint]
        return lambda value, name: read(value, name, rules)
    if dataclasses.is_dataclass(hint):
        return partial(_read_members, hint)
    if origin in _UNIONS:
        return _union_reader(arguments, rules)
    if origin is Literal:
        return lambda value, name: _read_word(value, name, arguments)
    return _many_reader(origin, arguments, rules)


def _without_none(arguments: tuple[Any, ...]) -> list[Any]:
    return [one for one in arguments if one is not types.NoneType]


def _union_reader(arguments: tuple[Any, ...], rules: Document) -> Reader:
    """The reader of an optional value, or of one that may be a whole number."""
    kinds = _without_none(arguments)
    inner, optional, whole = _reader(kinds[-1], rules), len(kinds) < len(arguments), int in kinds

    def read(value: Any, name: str) -> Any:
        if value is None and optional:
            return None
        found = inner(value, name)
        return value if whole and isinstance(value, int) else found

    return read


def _many_reader(origin: Any, arguments: tuple[Any, ...], rules: Document) -> Reader:
    """The reader of a list or an object of values of one kind."""
    most = rules.get("maxItems", LARGEST_ID)
    entry = _reader(arguments[1 if origin is dict else 0])

    def read_object(value: Any, name: str) -> Document:
        if not isinstance(value, dict):
            raise _wrong(name, "an object", value)
        return {key: entry(one, f"{name}.{shown(key)}") for key, one in value.items()}

    def read_list(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise _wrong(name, "a list", value)
        if len(value) > most:
            raise InvalidValueError(
                f"{name} has {len(value)} entries", remedy=f"give at most {most}"
            )
        return tuple(entry(one, f"{name}[{at}]") for at, one in enumerate(value))

    return read_object if origin is dict else read_list


def _read_word(value: Any, name: str, words: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise InvalidValueError(
            f"{name} must be one of {', '.join(words)}, not {shown(value)}",
            remedy=f"give one of {', '.join(words)}",
        )
    return value


def _read_text(value: Any, name: str, rules: Document) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    shortest, longest = rules.get("minLength", 0), rules.get("maxLength", 2000)
    # Any database can hold printable text, and any log can show it.
    if not shortest <= len(value) <= longest or not value.isprintable():
        raise InvalidValueError(
            f"{name} must be {shortest} to {longest} printable characters, not {shown(value)}",
            remedy="shorten it, and leave control characters out",
        )
    pattern = rules.get("pattern", "")
    if not re.search(pattern, value):
        raise InvalidValueError(
            f"{name} does not look like {pattern}: {shown(value)}",
            remedy="give it as it was given to you",
        )
    return value


def _read_truth(value: Any, name: str, _: Document) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _read_whole(value: Any, name: str, rules: Document) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, "a whole number", value)
    least, most = rules.get("minimum", -LARGEST_ID), rules.get("maximum", LARGEST_ID)
    if not least <= value <= most:
        raise InvalidValueError(
            f"{name} is out of range: {shown(value)}", remedy=f"give {least} to {most}"
        )
    return value


def _read_number(value: Any, name: str, rules: Document) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(name, "a number", value)
    least, most = rules.get("minimum", -LARGEST), rules.get("maximum", LARGEST)
    # Written so that NaN, which compares as false, is refused.
    if least <= value <= most and (value == 0 or abs(value) >= SMALLEST):
        return float(value)
    raise InvalidValueError(
        f"{name} is out of range: {shown(value)}",
        remedy=f"give a number from {least:g} to {most:g}, not closer to 0 than {SMALLEST:g}",
    )


_SCALARS: dict[Any, Callable[[Any, str, Document], Any]] = {
    str: _read_text,
    bool: _read_truth,
    int: _read_whole,
    float: _read_number,
}


def _read_unlimited(value: Any, name: str) -> float:
    return math.inf if value is None else _read_number(value, name, {"minimum": 0})


Unlimited = Annotated[
    float,
    Codec(
        lambda value: None if math.isinf(value) else float(value),
        _read_unlimited,
        {"anyOf": [{"type": "number", "minimum": 0, "maximum": LARGEST}, {"type": "null"}]},
    ),
]
"""A quantity that may be infinite, which is null in JSON."""


def shown(value: Any) -> str:
    """A wrong value as a message may repeat it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | dict):
        return _kind(value)
    try:
        words = repr(value[:_SHOWN] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # a number too long to be written, or endless nesting
        return _kind(value)
    return words if len(words) <= _SHOWN + 2 else words[:_SHOWN] + "…"


def _wrong(name: str, wanted: str, value: Any) -> InvalidValueError:
    return InvalidValueError(
        f"{name} must be {wanted}, not {_kind(value)}", remedy=f"give {name} as {wanted}"
    )


def _kind(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        type(None): "null",
    }
    return kinds.get(type(value), type(value).__name__)


_LARGEST_INTEGER = 2**63 - 1
_REMEDY = "send one JSON document in UTF-8 (RFC 8259)"


class NotJsonError(InvalidValueError):
    """A text is not JSON, or not JSON that every reader understands in the same way."""


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode


def to_bytes(document: Any) -> bytes:
    """A document as one line of ASCII."""
    return _encode(document).encode("ascii")


def from_bytes(content: bytes) -> Any:
    """The document that :func:`to_bytes` was given.

    Raises:
        NotJsonError: The text is not JSON; or it has NaN, infinities, numbers beyond 64 bits, a
            member twice, text that is not Unicode or has a NUL, or is nested too deeply.
    """
    try:
        zeros = content.translate(_ZEROS)
        decode = _decode_checked if any(one in zeros for one in _SUSPICIOUS) else _decode
        document = decode(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise NotJsonError("the text is not UTF-8", remedy=_REMEDY) from None
    except RecursionError:
        raise NotJsonError("nested too deeply", remedy=_REMEDY) from None
    except NotJsonError:
        raise
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise NotJsonError(f"not JSON{where}", remedy=_REMEDY) from None
    if b"\\u" in content:
        _check_texts(document)
    return document


def _unique(pairs: list[tuple[str, Any]]) -> Document:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotJsonError("an object has a member twice", remedy="give each member once")
    return found


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotJsonError("a number is too large", remedy="give finite numbers")
    return number


def _int(digits: str) -> int:
    # Twenty characters hold every number of 64 bits, and converting more of them takes long.
    number = int(digits) if len(digits) <= 20 else _LARGEST_INTEGER + 1
    if not -_LARGEST_INTEGER <= number <= _LARGEST_INTEGER:
        raise NotJsonError("a whole number is too large", remedy="give numbers within 64 bits")
    return number


def _constant(name: str) -> Any:
    raise NotJsonError(f"{name} is not JSON", remedy="give finite numbers; null for unknown")


_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant).decode
_decode_checked = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_float, parse_int=_int, parse_constant=_constant
).decode
# Numbers that may be too large, with all digits as zeros; only where there are any, each one is
# looked at.
_ZEROS = bytes.maketrans(b"E123456789", b"e000000000")
_SUSPICIOUS = (b"0" * 19, b"e000", b"e+000")


def _check_texts(document: Any) -> None:
    """Refuse what escapes can hide: halves of characters, and NUL."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str) and any(
            letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value
        ):
            raise NotJsonError(
                "text has a NUL or half of a character", remedy="give Unicode text without NUL"
            )
