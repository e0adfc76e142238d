"""A PostgreSQL server of one's own on a Unix socket, for tests and benchmarks."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulery.errors import NotPossibleHereError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATIENCE_SECONDS = 60.0


def find_programs() -> Path | None:
    """The folder of the newest PostgreSQL server installed here."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    programs = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(programs, key=lambda path: int(path.parts[-3]), default=None)
    return None if newest is None else newest.parent


class Cluster:
    """A server with its data in a temporary folder, gone when the ``with`` block ends.

    It runs as an unprivileged user, since PostgreSQL refuses to run as root.
    """

    def __init__(self) -> None:
        self._folder = Path()
        self._server: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="joulery-pg-"))
        try:
            if os.geteuid() == 0:
                owner = _unprivileged()
                os.chown(self._folder, owner.pw_uid, owner.pw_gid)
            self._run(
                [
                    "initdb",
                    "-D",
                    self._data,
                    "-U",
                    "joulery",
                    "-A",
                    "trust",
                    "-E",
                    "UTF8",
                    "--no-sync",
                    "--locale=C",
                ]
            )
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.stop(signal.SIGQUIT)  # nothing is kept, so it need not put its files in order
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        log = (self._folder / "log").open("ab")
        with log:
            settings = ["-c", "listen_addresses=", "-c", "max_connections=50"]
            self._server = subprocess.Popen(
                [_program("postgres"), "-D", self._data, "-k", str(self._folder), *settings],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_identity(),
            )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise NotPossibleHereError(
                    "PostgreSQL did not start", remedy=f"read {self._folder / 'log'}"
                )
            time.sleep(0.02)

    def stop(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT breaks connections off, SIGQUIT is as good as a crash."""
        assert self._server is not None
        self._server.send_signal(signal_number)
        self._server.wait(_PATIENCE_SECONDS)
        self._server = None

    def new_database(self) -> str:
        """The address of an empty database."""
        self._databases += 1
        name = f"database{self._databases}"
        self._run(["createdb", "-h", str(self._folder), "-U", "joulery", name])
        return f"postgresql://joulery@/{name}?host={self._folder}"

    def _answers(self) -> bool:
        command = [_program("pg_isready"), "-q", "-h", str(self._folder)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, command: Sequence[str]) -> None:
        process = subprocess.run(
            [_program(command[0]), *command[1:]],
            check=False,
            capture_output=True,
            cwd=self._folder,
            **_identity(),
        )
        if process.returncode != 0:
            raise NotPossibleHereError(
                f"{command[0]} failed: {process.stderr.decode(errors='replace').strip()[-200:]}",
                remedy="check the PostgreSQL installation",
            )


def _program(name: str) -> str:
    folder = find_programs()
    if folder is None:
        raise NotPossibleHereError(
            "no PostgreSQL server is installed here", remedy="apt-get install postgresql"
        )
    return str(folder / name)


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NotPossibleHereError(
        "no unprivileged user to run PostgreSQL as", remedy="add a user called postgres"
    )


def _identity() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    owner = _unprivileged()
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
