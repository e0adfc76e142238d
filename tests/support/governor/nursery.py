"""A process that forks others at once, so that killing thousands of them is quick.

Run as a module it reads one JSON request per line and answers with the child's process id. A child
is a governor (``{"serve": {...}}``, see :class:`joulery.governor._daemon.Settings`), perhaps one
that kills itself at a given boundary, or a holder (``{"hold": {...}}``) that takes, changes and
releases a device over and over.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulery.errors import JouleryError, MissingHardwareError
from joulery.governor import Connection, ConnectionLimits, GovernorConfig, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Signals that end a process that does not handle them.
DEADLY = tuple(
    getattr(signal, f"SIG{name}")
    for name in [
        "HUP",
        "INT",
        "QUIT",
        "ILL",
        "TRAP",
        "ABRT",
        "BUS",
        "FPE",
        "KILL",
        "USR1",
        "SEGV",
        "USR2",
        "PIPE",
        "ALRM",
        "TERM",
        "STKFLT",
        "XCPU",
        "XFSZ",
        "VTALRM",
        "PROF",
        "IO",
        "PWR",
        "SYS",
    ]
    if hasattr(signal, f"SIG{name}")
)


_PR_SET_PDEATHSIG = 1


def with_support(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which processes find this package."""
    folders = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


class Nursery:
    """Starts children in an environment; they die with the block.

    Args:
        environment: What the children see; an emulated node's, usually.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = with_support(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._children: set[int] = set()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name if __spec__ else __name__],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if self._process is not None:
            self._process.communicate(timeout=60)

    def serve(self, **settings: object) -> int:
        """A governor, ready to serve unless it has killed itself; its process id."""
        return self._ask({"serve": settings})

    def hold(self, **details: object) -> int:
        """A holder at work; its process id."""
        return self._ask({"hold": details})

    def kill(self, child: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a child."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    def _ask(self, request: dict[str, Any]) -> int:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise MissingHardwareError("the nursery has died", remedy="see its standard error")
        child = int(line)
        self._children.add(child)
        return child


def main() -> None:
    """Fork children on demand."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        request = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _become(request, lambda: os.close(writer))  # noqa: B023 - the child never loops
        os.close(writer)
        os.read(reader, 1)  # ends when the child is ready, or dead
        os.close(reader)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


def _become(request: dict[str, Any], ready: Callable[[], None]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    code = 1
    try:
        if "serve" in request:
            settings = request["serve"]
            boundary = settings.pop("die_at", None)
            if boundary is not None:
                die_at_boundary(boundary)
            bounds = ConnectionLimits(**settings.pop("bounds", {}))
            paths: dict[str, Any] = {key: Path(value) for key, value in settings.items()}
            serve(GovernorConfig(**paths, limits=bounds), ready)
        else:
            hold(ready, **request["hold"])
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # os._exit would leave without a word
        raise
    finally:
        os._exit(code)


def hold(
    ready: Callable[[], None], socket: str, device: str, limits_watts: list[float], seed: int
) -> None:
    """Take, change and release a device over and over, at random."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    for number in DEADLY:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
    ready()
    while True:
        with contextlib.suppress(JouleryError, OSError):
            connection = Connection(Path(socket))
            lease = connection.ask(
                "acquire", device=device, watts=chance.choice(limits_watts), ttl_seconds=30
            )["lease"]
            for _ in range(chance.randrange(4)):
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 0.003)
                connection.ask("set", lease=lease, watts=chance.choice(limits_watts))
            if chance.random() < 0.7:
                connection.ask("release", lease=lease)
            connection.close()


def die_at_boundary(number: int) -> None:
    """Have this process kill itself right before or after its nth touch of disk or hardware.

    Boundaries 1 and 2 are before and after the first touch, 3 and 4 around the second, and so on.
    """
    from joulery.hardware import NvidiaGpu

    count = 0

    def cross() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **named: Any) -> Any:
            cross()
            result = call(*arguments, **named)
            cross()
            return result

        return around

    for owner, names in (
        (os, ("write", "fsync", "rename")),
        (Path, ("rename", "unlink")),
        (NvidiaGpu, ("set_power_limit", "lock_clock", "unlock_clock")),
    ):
        for name in names:
            setattr(owner, name, guarded(getattr(owner, name)))


if __name__ == "__main__":
    main()
