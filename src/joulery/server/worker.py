"""The program of one of several workers; see :mod:`joulery.server.workers`, which starts it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from joulery.errors import JouleryError
from joulery.server.desk_start import fork_desk
from joulery.server.metrics import Metrics
from joulery.server.serving import Worker, serve
from joulery.server.workers import from_text, shared_memory


def main(arguments: list[str]) -> int:
    """Serve; ``arguments`` are the worker's number, the socket, the counters and whom to tell."""
    number, listener, shared, ready = map(int, arguments)
    settings = from_text(_first_line(sys.stdin.fileno()))
    try:
        with fork_desk(number) as desk:
            worker = Worker(
                settings,
                socket.socket(fileno=listener),
                Metrics(number, shared_memory(shared)),
                desk,
                number,
                lambda: _tell(ready),
                sys.stdin.fileno(),
            )
            serve(worker)
    except JouleryError as error:
        sys.stderr.write(f"joulery: {error.message}\n  → {error.remedy}\n")
        return error.exit_code
    return 0


def _first_line(descriptor: int) -> str:
    """Byte by byte, since nothing beyond it may be taken from the pipe."""
    line = b""
    while (letter := os.read(descriptor, 1)) not in {b"\n", b""}:
        line += letter
    return line.decode()


def _tell(descriptor: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever asked is gone; the lifeline ends us
        os.write(descriptor, b"1")
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
