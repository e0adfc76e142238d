"""A lease through a governor: one connection, kept alive from a thread of its own."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from joulery import errors
from joulery.errors import DeviceError, JouleryError
from joulery.governor.frames import MAX_REPLY_BYTES, VERSION, Decoder, LeaseLostError, encode
from joulery.governor.holding import Lease

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# As the kernel's struct timeval. Python's own timeout would make a connection fail at once where
# callers queue up.
_PATIENCE = struct.pack("ll", 10, 0)


class Connection:
    """Asks the daemon, one question at a time.

    Args:
        address: The daemon's socket.

    Raises:
        OSError: Nobody listens there.
    """

    def __init__(self, address: Path | bytes) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._decoder = Decoder(MAX_REPLY_BYTES)
        try:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                self._channel.setsockopt(socket.SOL_SOCKET, option, _PATIENCE)
            self._channel.connect(os.fspath(address))
            self.ask("hello", versions=[VERSION])
        except BaseException:
            self._channel.close()
            raise

    def ask(self, operation: str, **details: Any) -> dict[str, Any]:
        """The daemon's answer; its refusals are raised as the errors that they are.

        Raises:
            OSError: The daemon has gone or does not answer.
        """
        self._channel.sendall(encode({"op": operation, **details}))
        while (reply := self._decoder.take()) is None:
            data = self._channel.recv(self._decoder.room)
            if not data:
                raise ConnectionResetError("the governor hung up")
            self._decoder.feed(data)
        if reply.get("ok") is True:
            return reply
        known = {**vars(errors), "LeaseLostError": LeaseLostError}
        kind = known.get(str(reply.get("error")))
        if not (isinstance(kind, type) and issubclass(kind, JouleryError)):
            kind = DeviceError
        raise kind(str(reply.get("message")), remedy=str(reply.get("remedy")))

    def close(self) -> None:
        """Hang up; the daemon gives back what this connection changed."""
        self._channel.close()


class GovernorLease(Lease):
    """Holds a device through a governor, and again should the governor restart.

    Args:
        connect: Makes a connection.
        device: The device's id.
        ttl_seconds: After how long without a sign of life the device is taken back.
    """

    def __init__(self, connect: Callable[[], Connection], device: str, ttl_seconds: float) -> None:
        super().__init__()
        self._connect = connect
        self._terms = {"device": device, "ttl_seconds": ttl_seconds}
        self._connection: Connection | None = None
        self._told: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def acquire(self, wish: dict[str, float | None]) -> None:
        """Take the device and start to show signs of life."""
        self._take(wish)
        threading.Thread(target=self._keep_alive, name="joulery-lease", daemon=True).start()

    def release(self) -> None:
        """Give the device back; returns once it is back."""
        # A forked child shares the connection, but it is not the holder.
        if self._ended.is_set() or not self._is_mine():
            return
        self._ended.set()
        with self._lock:
            # The governor gives back by itself what it has lost touch with.
            with suppress(OSError, JouleryError):
                if self._connection is not None:
                    self._connection.ask("release", lease=self._told["lease"])
            self._hang_up()

    def _state(self) -> dict[str, float | None]:
        return self._told

    def _change(self, wish: dict[str, float | None]) -> None:
        with self._lock:
            self._ask("set", wish)

    def _keep_alive(self) -> None:
        while not self._ended.wait(self._told["ttl_seconds"] / 3):
            # Whoever asks next hears why; meanwhile it may come back.
            with self._lock, suppress(JouleryError):
                if not self._ended.is_set():
                    self._ask("renew", {})

    def _ask(self, operation: str, changes: dict[str, float | None]) -> None:
        """Ask under our lease; take the lease anew if it was lost."""
        wish = self._wish | changes
        if self._connection is not None:
            with suppress(OSError, LeaseLostError):
                self._told = self._connection.ask(operation, lease=self._told["lease"], **changes)
                self._wish = wish
                return
        self._take(wish)

    def _take(self, wish: dict[str, float | None]) -> None:
        """Acquire the device over a new connection."""
        self._hang_up()
        try:
            self._connection = self._connect()
            self._told = self._connection.ask("acquire", **self._terms, **wish)
            self._wish = wish
        except (OSError, JouleryError) as error:
            self._hang_up()
            if isinstance(error, JouleryError):
                raise
            remedy = "see whether `joulery governor status` works"
            raise DeviceError(f"the governor does not answer: {error}", remedy=remedy) from None

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
