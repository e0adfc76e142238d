"""JSON lines: what is written is read, and nothing else is."""

import pytest

from joulery.json_lines import decode_line, encode_line


def test_a_line_is_read_as_it_was_written():
    """Journals and sockets lose what they were given."""
    document = {"a": 1, "b": [1.5, None, "ü"]}
    line = encode_line(document)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_line(line) == document


@pytest.mark.parametrize(
    "line", [b"", b"[1]", b"{", b'{"a": NaN}', b"\xff", b"[" * 10**5], ids=lambda line: line[:8]
)
def test_anything_but_an_object_is_refused(line):
    """A torn line passes for a document, or ends the reader."""
    with pytest.raises(ValueError):  # noqa: PT011 - of any kind
        decode_line(line)


def test_what_is_no_json_is_not_written():
    """NaN makes a line that other readers refuse."""
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_line({"a": float("nan")})
