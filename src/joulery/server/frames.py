"""Values on a stream between two processes of one server, many to a frame.

Both ends are ours and on the same machine, so they are pickled; nothing that a client sent is
ever taken for a frame.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

READY = 0  # the number of what the desk says unasked: errands may come

_LENGTH = struct.Struct(">I")


def frame_of(values: list[Any]) -> bytes:
    """Values as they go over the stream."""
    content = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Puts frames together from pieces as they arrive."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, piece: bytes) -> list[Any]:
        """The values of all frames that are whole now."""
        received = self._received
        received += piece
        found: list[Any] = []
        begin = 0
        while len(received) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, begin)
            end = begin + _LENGTH.size + length
            if len(received) < end:
                break
            found += pickle.loads(received[begin + _LENGTH.size : end])  # noqa: S301 - see above
            begin = end
        del received[:begin]
        return found
