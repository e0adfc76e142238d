"""Documents are read strictly, refused by name, and described."""

import math
from enum import IntEnum
from typing import Annotated

import pytest
from msgspec import Meta

from joulery.documents import (
    Foreign,
    JsonModel,
    Name,
    NotJsonError,
    Quantity,
    Unlimited,
    check_name,
    decode_json,
    encode_json,
    enumeration,
    json_schemas,
)
from joulery.errors import InvalidValueError


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"nul",
        b"[NaN]",
        b"[Infinity]",
        b"[-Infinity]",
        b"[1e400]",
        b"[-1e400]",
        b'["a\0b"]',
        b'["a\\u0000b"]',
        b'["\\ud800"]',
        b'{"\\udfff":1}',
        b'["\xff"]',
        b"\xef\xbb\xbf[]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=range(16),
)
def test_what_is_not_plain_json_is_refused(content):
    """A broken document would be taken for another one, or crash its reader."""
    with pytest.raises(NotJsonError):
        decode_json(content)


def test_plain_json_is_read():
    """Documents would be lost on their way."""
    document = {"text": "Ünïcode ✓ 😀", "numbers": [0, -1, 1.5, 2**62], "none": None, "true": True}
    assert decode_json(encode_json(document)) == document


class Colour(IntEnum):
    """The colour of a light."""

    RED = 0
    GREEN = 1


class Light(JsonModel, frozen=True):
    """A light.

    Attributes:
        name: Name of the light.
        colour: Colour of the light.
        watts: Power of the light.
        lasts_seconds: Time until it fails;
            null for ever.
        steps: Levels of the light.
    """

    name: Name
    colour: Foreign[Colour, enumeration(Colour)] = Colour.RED
    watts: Quantity = 0.0
    lasts_seconds: Unlimited = math.inf
    steps: Annotated[tuple[Foreign[Colour, enumeration(Colour)], ...], Meta(max_length=2)] = ()


def test_a_document_survives():
    """Words of enumerations or infinity would change on their way."""
    light = Light("desk", Colour.GREEN, 7.5, steps=(Colour.RED, Colour.GREEN))
    assert light.to_document() == {
        "name": "desk",
        "colour": "green",
        "watts": 7.5,
        "lasts_seconds": None,
        "steps": ["red", "green"],
    }
    assert Light.from_json(light.to_json()) == light == Light.from_document(light.to_document())


@pytest.mark.parametrize(
    ("content", "message", "remedy"),
    [
        (b"{}", "name is missing", "add the member name"),
        (b'{"name":"a","nmae":1}', "Light has no member 'nmae'", "leave it out"),
        (b'{"name":1}', "name must be text, not a whole number", "give name as text"),
        (b'{"name":"a\\n"}', "name must be printable text", "printable"),
        (b'{"name":"a","colour":"blue"}', "colour: must be one of red, green", "red, green"),
        (b'{"name":"a","watts":-1}', "watts must be a number >= 0", "a number >= 0"),
        (b'{"name":"a","lasts_seconds":-1}', "lasts_seconds: must be null or", "null"),
        (b'{"name":"a","steps":["red","red","red"]}', "steps must be a list", "length <= 2"),
        (b"[]", "Light must be an object, not a list", "an object"),
    ],
)
def test_refusals_name_the_member_and_a_remedy(content, message, remedy):
    """A client would not learn which member is wrong, or how to put it right."""
    with pytest.raises(InvalidValueError) as refusal:
        Light.from_json(content)
    assert message in refusal.value.message
    assert remedy in refusal.value.remedy


def test_models_are_described():
    """Generated clients would have to guess what members mean and which words they take."""
    schema = json_schemas([Light])["Light"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name"]
    assert schema["properties"]["colour"]["enum"] == ["red", "green"]
    assert schema["properties"]["lasts_seconds"]["description"] == (
        "Time until it fails; null for ever."
    )


@pytest.mark.parametrize("text", ["", "x" * 201, "a\n", "\ud800", "a\0"])
def test_names_are_checked(text):
    """A name could break a line of a log, or be refused by a database."""
    with pytest.raises(InvalidValueError, match="a label"):
        check_name(text, "a label")


def test_text_that_is_not_unicode_is_refused():
    """A file name with stray bytes would end in an internal error."""
    with pytest.raises(InvalidValueError, match="half of a character"):
        encode_json({"name": "\ud800"})
