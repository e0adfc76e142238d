"""JSON that everyone reads in the same way, and nothing else."""

import pytest

from joulery.jobs import NotJsonError, from_bytes, to_bytes


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
        b"[%d]" % 2**70,
        b"[" + b"9" * 5000 + b"]",
        b'{"a":1,"a":2}',
        b'["a\0b"]',
        b'["a\\u0000b"]',
        b'["\\ud800"]',
        b'{"\\udfff":1}',
        b'["\xff"]',
        b"\xef\xbb\xbf[]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=range(19),
)
def test_what_is_not_plain_json_is_refused(content):
    """A broken document would be taken for another one, or crash its reader."""
    with pytest.raises(NotJsonError):
        from_bytes(content)


def test_plain_json_is_read():
    """Documents would be lost on their way."""
    document = {"text": "Ünïcode ✓ 😀", "numbers": [0, -1, 1.5, 2**62], "none": None, "true": True}
    assert from_bytes(to_bytes(document)) == document
