"""Frames: bytes to messages and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulery.errors import InvalidValueError
from joulery.governor._protocol import HEADER, MAX_REQUEST_BYTES, Decoder, encode

MESSAGES = st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans())


@given(messages=st.lists(MESSAGES, max_size=4), size=st.integers(1, 50))
def test_messages_survive_any_cutting(messages, size):
    """A message split by the socket would be lost or mixed up."""
    data = b"".join(map(encode, messages))
    decoder, got = Decoder(), []
    for start in range(0, len(data), size):
        decoder.feed(data[start : start + size])
        while (message := decoder.take()) is not None:
            got.append(message)
    assert got == messages


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
    decoder = Decoder(10**6)
    decoder.feed(HEADER.pack(len(body)) + body)
    with pytest.raises(InvalidValueError):
        decoder.take()


def test_long_frames_are_refused_before_they_arrive():
    """A caller could make the daemon buffer gigabytes."""
    decoder = Decoder()
    decoder.feed(HEADER.pack(MAX_REQUEST_BYTES + 1))
    assert decoder.waiting
    with pytest.raises(InvalidValueError, match="longer"):
        decoder.take()
