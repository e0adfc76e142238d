"""Lines: bytes to messages and back."""

import pytest
from hypothesis import given, strategies as st

from joulery.errors import InvalidValueError
from joulery.files import encode_line
from joulery.governor._protocol import decode

MESSAGES = st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans())


@given(message=MESSAGES)
def test_a_message_is_one_line(message):
    """A message that holds a line end would be torn in two."""
    line = encode_line(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b"\xff",
        b'{"a":' * 20_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_object_is_refused(body):
    """NaN, depth or rubbish would reach the arithmetic behind."""
    with pytest.raises(InvalidValueError):
        decode(body + b"\n")
