"""JSON that everyone reads in the same way, and nothing else."""

import pytest

from joulery.documents import NotJsonError, decode_json, encode_json


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
