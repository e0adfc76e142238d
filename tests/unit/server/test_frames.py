"""Values between two processes of a server."""

from hypothesis import given
from hypothesis import strategies as st

from joulery.server.frames import Frames, frame_of

VALUES = st.lists(st.tuples(st.integers(), st.text(max_size=30), st.none() | st.floats()))


@given(st.lists(VALUES, max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_frames_survive_any_cut(sent, sizes):
    """Answers would be lost or mixed up where the stream is cut elsewhere than between frames."""
    stream, frames, found, turn = b"".join(map(frame_of, sent)), Frames(), [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        found += frames.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert repr(found) == repr([value for values in sent for value in values])
