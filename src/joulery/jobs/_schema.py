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
from dataclasses import dataclass, field
from functools import cache, partial
from reprlib import repr as shown
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Document = dict[str, Any]

LARGEST = 1e15
"""The largest quantity: beyond it sums lose seconds, and squares may overflow."""
SMALLEST = 1e-12
"""The smallest quantity that is not zero, so that quotients stay finite."""
LARGEST_ID = 10**18 - 1
_NO_RULES: Document = {}


class Constraint:
    """Conditions on a value, in keywords of JSON Schema.

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
    """The JSON form of a type; marks a type that is not a :class:`JsonModel`.

    Attributes:
        write: Function from a value to its JSON form.
        read: Function from a JSON form and the name of the member to the value.
        schema: JSON Schema of the form.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]
    schema: Document = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Document:
        """Leave reading to :attr:`read`."""
        return {"type": "any"}

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Document:
        """Describe the form by :attr:`schema`."""
        return dict(self.schema)


def by_name(kind: Any) -> Codec:
    """The form of an enumeration: the name of its member in lower case."""
    names = {member.name.lower(): member for member in kind}
    return Codec(
        lambda value: value.name.lower(),
        lambda value, name: names[_read_word(value, name, list(names))],
        {"type": "string", "enum": list(names)},
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
        kind: Any = type(self)
        members = _members(kind).items()
        return {name: codec.write(getattr(self, name)) for name, (codec, _) in members}

    @classmethod
    def from_document(cls, document: Any, name: str = "") -> Self:
        """The value that :meth:`to_document` gave this document for.

        Args:
            document: The value as JSON.
            name: Name of the member that it is, for messages.

        Raises:
            InvalidValueError: A member is missing, unknown, of another type or out of range.
        """
        kind: Any = cls
        members = _members(kind)
        if not isinstance(document, dict):
            raise _wrong(name or cls.__name__, "an object", document)
        for member in document:
            if member not in members:
                raise InvalidValueError(
                    f"{cls.__name__} has no member {shown(member)}",
                    remedy=f"give no members but {', '.join(members)}",
                )
        for member, (_, required) in members.items():
            if required and member not in document:
                raise InvalidValueError(f"{member} is missing", remedy=f"add the member {member}")
        return cls(**{each: members[each][0].read(one, each) for each, one in document.items()})

    def checked(self) -> Self:
        """The same value, as a server would read it.

        Raises:
            InvalidValueError: A server would refuse it.
        """
        return self.from_document(self.to_document())

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
def _members(cls: Any) -> dict[str, tuple[Codec, bool]]:
    """Codec of each field, and whether a document must have it."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        each.name: (
            _codec(hints[each.name]),
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING,
        )
        for each in dataclasses.fields(cls)
    }


def _codec(hint: Any, rules: Document = _NO_RULES) -> Codec:  # noqa: PLR0911 - one per kind
    """The form of a type whose values fulfil ``rules``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for mark in arguments[1:]:
            if isinstance(mark, Codec):
                return mark
            rules = rules | mark.keywords
        return _codec(arguments[0], rules)
    if origin in (Union, types.UnionType):
        return _union(arguments, rules)
    if origin in (tuple, dict):
        return _many(origin, arguments, rules)
    if isinstance(hint, type) and issubclass(hint, JsonModel):
        return Codec(hint.to_document, hint.from_document)
    if origin is Literal:
        return Codec(_plain, partial(_read_word, words=arguments))
    return Codec(_plain, partial(_SCALARS[hint], rules=rules))


def _plain(value: Any) -> Any:
    """A number, text or truth value; those of NumPy become Python's."""
    return value.item() if hasattr(value, "item") else value


def _union(arguments: tuple[Any, ...], rules: Document) -> Codec:
    """The form of an optional value, or of a number that stays whole if it is."""
    kinds = [one for one in arguments if one is not types.NoneType]
    inner, optional, whole = _codec(kinds[-1], rules), len(kinds) < len(arguments), int in kinds

    def read(value: Any, name: str) -> Any:
        if value is None and optional:
            return None
        found = inner.read(value, name)
        return value if whole and isinstance(value, int) else found

    return Codec(lambda value: None if value is None else inner.write(value), read)


def _many(origin: Any, arguments: tuple[Any, ...], rules: Document) -> Codec:
    """The form of a tuple or dictionary of values of one kind: a list or an object."""
    most = rules.get("maxItems", LARGEST_ID)
    entry = _codec(arguments[1 if origin is dict else 0])

    def read_object(value: Any, name: str) -> Document:
        if not isinstance(value, dict):
            raise _wrong(name, "an object", value)
        return {key: entry.read(one, f"{name}.{shown(key)}") for key, one in value.items()}

    def read_list(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise _wrong(name, "a list", value)
        if len(value) > most:
            raise InvalidValueError(
                f"{name} has {len(value)} entries", remedy=f"give at most {most}"
            )
        return tuple(entry.read(one, f"{name}[{at}]") for at, one in enumerate(value))

    if origin is dict:
        return Codec(dict, read_object)
    return Codec(lambda value: [entry.write(one) for one in value], read_list)


def _read_word(value: Any, name: str, words: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise InvalidValueError(
            f"{name} must be one of {', '.join(words)}, not {shown(value)}",
            remedy=f"give one of {', '.join(words)}",
        )
    return value


def read_text(value: Any, name: str, rules: Document) -> str:
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


def _read_truth(value: Any, name: str, rules: Document) -> bool:  # noqa: ARG001 - as of others
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _read_whole(value: Any, name: str, rules: Document) -> int:
    if not isinstance(value, int):
        raise _wrong(name, "a whole number", value)
    return int(_read_number(value, name, {"maximum": LARGEST_ID} | rules, whole=True))


def _read_number(value: Any, name: str, rules: Document, *, whole: bool = False) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(name, "a number", value)
    least, most = rules.get("minimum", -LARGEST), rules.get("maximum", LARGEST)
    # Written so that NaN, which compares as false, is refused.
    if least <= value <= most and (value == 0 or abs(value) >= SMALLEST):
        return value if whole else float(value)
    near = "" if whole else f", not closer to 0 than {SMALLEST:g}"
    raise InvalidValueError(
        f"{name} is out of range: {shown(value)}",
        remedy=f"give a number from {least:g} to {most:g}{near}",
    )


_SCALARS: dict[Any, Callable[..., Any]] = {
    str: read_text,
    bool: _read_truth,
    int: _read_whole,
    float: _read_number,
}

Unlimited = Annotated[
    float,
    Codec(
        lambda value: None if math.isinf(value) else float(value),
        lambda value, name: (
            math.inf if value is None else _read_number(value, name, {"minimum": 0})
        ),
        {"anyOf": [{"type": "number", "minimum": 0, "maximum": LARGEST}, {"type": "null"}]},
    ),
]
"""A quantity that may be infinite, which is null in JSON."""


def _wrong(name: str, wanted: str, value: Any) -> InvalidValueError:
    kinds = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    found = kinds.get(type(value), shown(value))
    return InvalidValueError(
        f"{name} must be {wanted}, not {found}", remedy=f"give {name} as {wanted}"
    )


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
        document = _decode(content.decode("utf-8"))
        # Escapes can hide halves of characters, which cannot be encoded, and NUL.
        hidden = json.dumps(document, ensure_ascii=False) if b"\\u" in content else ""
        has_nul = b"\\u0000" in hidden.encode("utf-8").replace(rb"\\", b"")
    except NotJsonError:
        raise
    except RecursionError:
        raise NotJsonError("nested too deeply", remedy=_REMEDY) from None
    except ValueError as error:
        raise NotJsonError(f"not JSON: {error}", remedy=_REMEDY) from None
    if has_nul:
        raise NotJsonError("text has a NUL", remedy="leave it out")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> Document:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotJsonError("an object has a member twice", remedy="give each member once")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotJsonError(f"{digits[:20]} is no finite number", remedy="give null for unknown")
    return number


def _int(digits: str) -> int:
    # Twenty characters hold every number of 64 bits, and converting more of them takes long.
    number = int(digits) if len(digits) <= 20 else _LARGEST_INTEGER + 1
    if abs(number) > _LARGEST_INTEGER:
        raise NotJsonError("a whole number is too large", remedy="give numbers within 64 bits")
    return number


_decode = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_int=_int, parse_constant=_finite
).decode
