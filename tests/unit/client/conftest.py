"""A server that behaves as a test tells it, and folders of one's own."""

import socket
import threading

import pytest

from joulery.clock import VirtualClock


class StubServer:
    """Answers each connection by ``behave(connection, request)``, until it returns False.

    Attributes:
        url: Where it is.
        requests: Heads of all requests so far.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests = []
        self.connections = 0
        self.behave = lambda connection, request: False
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                while True:
                    request = _read(connection)
                    if not request:
                        return
                    self.requests.append(request)
                    if not self.behave(connection, request):
                        return
            except OSError:
                return

    def close(self):
        """Stop listening and hang up."""
        self._listener.close()
        for connection in self._open:
            connection.close()


def _read(connection):
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(65536)
        if not part:
            return b""
        head += part
    start, _, body = head.partition(b"\r\n\r\n")
    wanted = 0
    for line in start.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            wanted = int(line.split(b":")[1])
    while len(body) < wanted:
        body += connection.recv(65536)
    return head


def answer(status=200, body=b"{}", headers=()):
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
def clock():
    """Time that the test turns."""
    return VirtualClock()


@pytest.fixture
def stub():
    """A server whose behaviour the test sets."""
    server = StubServer()
    server.answer = answer
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _own_world(tmp_path, monkeypatch):
    """What one test keeps must not reach another, nor the user's own files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("JOULERY_STORE", "JOULERY_TOKEN", "JOULERY_TEAM", "JOULERY_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
