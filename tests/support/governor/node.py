"""A governor at work on an emulated node."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulery.clock import REAL_CLOCK
from joulery.governor import SOCKET_VARIABLE, STATE_VARIABLE, Connection
from joulery.testing.emulator import EmulatedNode
from support.governor.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it is private
OPEN_POLICY = """
[[allow]]
users = ["*"]
devices = ["*"]
limits_watts = [1, 2000]
clocks_mhz = [1, 10000]
"""


class GovernedNode:
    """Emulated boards with a governor that can be killed and started again.

    Args:
        boards: As :class:`EmulatedNode` takes them.
        policy: The policy's text.
        bounds: As :class:`joulery.governor._server.Bounds` takes them; by default each user may ask
            more than any test does.
    """

    def __init__(
        self, boards: Sequence[str] = ("A100",), policy: str = OPEN_POLICY, **bounds: float
    ) -> None:
        self._boards = boards
        self._bounds = {"requests_per_second": 1e6, **bounds}
        self._policy = policy
        self._stack = ExitStack()
        self.pid = 0

    def __enter__(self) -> Self:
        # In memory, as /run is where governors keep their state.
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        folder = tempfile.TemporaryDirectory(prefix="joulery-governor-", dir=memory)
        self.folder = Path(self._stack.enter_context(folder))
        self.folder.chmod(0o755)  # callers of other users reach the socket through it
        self.node = self._stack.enter_context(EmulatedNode(self._boards))
        self.socket = self.folder / "socket"
        self.state = self.folder / "state"
        self.policy_file = self.folder / "policy.toml"
        self.policy_file.write_text(self._policy, encoding="utf-8")
        self.policy_file.chmod(0o644)
        self.nursery = self._stack.enter_context(Nursery(self.env))
        self.start()
        with closing(Connection(self.socket)) as connection:
            self.devices = [device["id"] for device in connection.ask("status")["devices"]]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def env(self) -> dict[str, str]:
        """For processes that shall see the boards and the governor."""
        places = {SOCKET_VARIABLE: str(self.socket), STATE_VARIABLE: str(self.state)}
        return {**self.node.env, **places}

    def start(self, die_at: int | None = None) -> None:
        """Start the governor; perhaps one that kills itself at a boundary."""
        armed = {} if die_at is None else {"die_at": die_at}
        places = {"socket": self.socket, "state": self.state, "policy": self.policy_file}
        paths = {name: str(path) for name, path in places.items()}
        self.pid = self.nursery.serve(bounds=self._bounds, **paths, **armed)

    def stop(self, number: int) -> None:
        """Send the governor a signal and wait until it has ended."""
        self.nursery.kill(self.pid, number)
        self.wait_until_ended(self.pid)

    def wait_until_ended(self, pid: int, seconds: float = 5.0) -> bool:
        """Whether a process ends within ``seconds``."""
        deadline = REAL_CLOCK.now() + seconds
        while REAL_CLOCK.now() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            REAL_CLOCK.sleep(2e-4)
        return False

    def status(self) -> list[dict[str, Any]]:
        """The governor's word on its devices."""
        with closing(Connection(self.socket)) as connection:
            devices: list[dict[str, Any]] = connection.ask("status")["devices"]
            return devices

    def restored_after(self, index: int, watts: float, seconds: float = 60.0) -> float | None:
        """Seconds until a board is free and at ``watts``; None if that does not happen.

        The time is the last moment at which it was seen elsewhere.
        """
        start = last = REAL_CLOCK.now()
        while REAL_CLOCK.now() < start + seconds:
            if self.node.power_limit(index) != watts:
                last = REAL_CLOCK.now()
                REAL_CLOCK.sleep(5e-5)
                continue
            # It may be about to serve a request that the dead had sent before.
            with suppress(OSError):
                free = not self.status()[index]["held"]
                if free and self.node.power_limit(index) == watts:
                    return last - start
        return None
