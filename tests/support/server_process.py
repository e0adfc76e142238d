"""A real server process for tests and stress scripts, and a plain way to send requests."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit

from joulery.server._auth import CACHED_SECONDS
from joulery.storage import Store, TokenRecord, add_token, revoke_token, right_named
from support.forked import ForkedCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATIENCE_SECONDS = 60.0

JOB: dict[str, Any] = {
    "name": "nightly",
    "batch_sizes": [64, 128, 256],
    "default": 128,
    "cost": "cost:eta=0.5,max_watts=300.0",
    "objective": None,
    "max_epochs": 100,
    "limits_watts": [],
}
OUTCOME: dict[str, Any] = {"end": "reached", "epochs": 20, "seconds": 2.0, "joules": 300.0}


def log_in(address: str, token: str) -> dict[str, str]:
    """Headers of a browser that has logged in at a server."""
    parts = urlsplit(address)
    browser = http.client.HTTPConnection(parts.netloc, timeout=60)
    headers = {"Origin": address, "Content-Type": "application/x-www-form-urlencoded"}
    browser.request("POST", "/login", urlencode({"token": token}), headers)
    answer = browser.getresponse()
    assert answer.status == 303, answer.read()
    cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
    browser.close()
    return {"Cookie": cookie, "Origin": address}


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a server.

    Attributes:
        status: HTTP status.
        headers: Headers, with names in lower case.
        body: Body as bytes.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class ServerProcess:
    """``joulery serve`` on a free port, gone when the ``with`` block ends.

    Args:
        store: Location of the store.
        options: Further options of the command line.
        command: Command that is put before it, such as ``prlimit``.
        forked: Whether it starts from a process that has imported what it needs.
    """

    def __init__(
        self,
        store: str | Path,
        options: Sequence[str] = (),
        command: Sequence[str] = (),
        *,
        forked: bool = True,
    ) -> None:
        self._store = str(store)
        self._options = list(options)
        self._command = list(command)
        self._forked = forked and not command
        self._process: subprocess.Popen[bytes] | ForkedCommand | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="joulery-server-")
        self.address = ""
        self.new_store: str | None = None
        self.port = 0
        self.admin_token = ""
        self.user_token = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()
        self._folder.cleanup()

    @property
    def log(self) -> str:
        """The log of the server."""
        return (Path(self._folder.name) / "log").read_text(encoding="utf-8")

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers; on the same port as before, if there was one."""
        port = ["--listen", f"127.0.0.1:{self.port}", "--json"]
        arguments = ["serve", "--store", self._store, *port, *self._options]
        env = os.environ | {"XDG_DATA_HOME": self._folder.name}
        log = Path(self._folder.name) / "log"
        if self._forked:
            self._process = ForkedCommand(arguments, env, log)
        else:
            command = [*self._command, sys.executable, "-m", "joulery", *arguments]
            with log.open("ab") as errors:
                self._process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, env=env
                )
        assert self._process.stdout is not None
        printed = json.loads(self._process.stdout.readline() or b"{}")
        assert "address" in printed, f"the server did not start: {printed} {self.log[-2000:]}"
        self.address, self.new_store = printed["address"], printed["new_store"]
        self.port = urlsplit(self.address).port or 0
        self.admin_token = printed["admin_token"] or self.admin_token
        if printed["token_file"]:
            tokens = json.loads(Path(printed["token_file"]).read_bytes())
            self.user_token = tokens[self.address]

    def stop(self) -> int:
        """Ask it to stop, and wait; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it at once."""
        return self._end(signal.SIGKILL)

    def _end(self, signal_number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        process.send_signal(signal_number)
        code = process.wait(_PATIENCE_SECONDS)
        process.stdout.close()
        self._process = None
        return code

    def signal(self, signal_number: signal.Signals) -> None:
        """Send a signal and go on."""
        assert self._process is not None
        self._process.send_signal(signal_number)

    def connect(self) -> http.client.HTTPConnection:
        """A connection that stays open."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        document: Any = None,
        token: str | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Answered:
        """One request, with a JSON body if ``document`` is given; no token where it is empty."""
        link = connection or self.connect()
        headers = {}
        if token != "":
            headers["Authorization"] = f"Bearer {self.admin_token if token is None else token}"
        body = None
        if document is not None:
            headers["Content-Type"] = "application/json"
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
        try:
            link.request(method, path, body, headers)
            response = link.getresponse()
            content = response.read()
        finally:
            if connection is None:
                link.close()
        headers_received = {name.lower(): value for name, value in response.getheaders()}
        return Answered(response.status, headers_received, content)

    def define(self, team: str = "vision", name: str = "nightly", policy: str = "zeus") -> int:
        """The number of a job that was defined."""
        document = {"job": JOB | {"name": name}, "policy": policy}
        answer = self.ask("POST", f"/v1/teams/{team}/jobs", document)
        assert answer.status == 200, answer.body
        number: int = answer.document["id"]
        return number

    def decide(self, job: int, key: str) -> Any:
        """A decision document."""
        answer = self.ask("POST", f"/v1/jobs/{job}/decisions", {"key": key})
        assert answer.status == 200, answer.body
        return answer.document

    def report(self, decision: Any, key: str) -> Answered:
        """Report that the target was reached."""
        path = f"/v1/decisions/{decision['id']}/outcome"
        return self.ask("PUT", path, {"key": key, "outcome": OUTCOME}, decision["token"])

    def token(self, team: str, rights: str, days: float = 1.0) -> tuple[int, str]:
        """A new token: its number and itself."""
        now = time.time()
        wanted_token = TokenRecord(team, right_named(rights), "", now + 86_400.0 * days)
        with Store.open(self._store) as store:
            text, record = store.write(
                lambda transaction: add_token(transaction, wanted_token, now)
            )
        return record.id, text

    def revoke(self, number: int) -> None:
        """Revoke a token, and wait until the server knows."""
        with Store.open(self._store) as store:
            store.write(lambda transaction: revoke_token(transaction, number, time.time()))
        time.sleep(CACHED_SECONDS)
