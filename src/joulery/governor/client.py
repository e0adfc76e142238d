"""A lease through the daemon: one connection, kept alive from a thread of its own."""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from joulery import errors
from joulery.errors import DeviceError, JouleryError
from joulery.governor.frames import MAX_REPLY_BYTES, VERSION, Decoder, LeaseLostError, encode

if TYPE_CHECKING:
    from pathlib import Path

# As the kernel's struct timeval. Python's own timeout would make a connection fail at once where
# callers queue up.
_PATIENCE = struct.pack("ll", 10, 0)


class Connection:
    """Asks the daemon, one question at a time.

    Args:
        path: The daemon's socket.

    Raises:
        OSError: Nobody listens there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._decoder = Decoder(MAX_REPLY_BYTES)
        try:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                self._channel.setsockopt(socket.SOL_SOCKET, option, _PATIENCE)
            self._channel.connect(os.fspath(path))
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


class RemoteHolder:
    """Holds a device through the daemon, and again should the daemon restart.

    Args:
        connection: To the daemon.
        device: The device's id.
        ttl_seconds: After how long without a sign of life the daemon takes the device back.
    """

    def __init__(self, connection: Connection, device: str, ttl_seconds: float) -> None:
        self._path = connection.path
        self._device = device
        self._ttl_seconds = ttl_seconds
        self._wish: dict[str, float | None] = {}
        self._connection: Connection | None = connection
        self._state: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._process = os.getpid()

    def acquire(self, wish: dict[str, float | None]) -> None:
        """Take the device and start to show signs of life."""
        self._wish = wish
        with self._lock:
            self._take()
        threading.Thread(target=self._keep_alive, name="joulery-lease", daemon=True).start()

    def change(self, wish: dict[str, float | None]) -> None:
        """Ask for other values."""
        with self._lock:
            self._ask_again("set", wish)
            self._wish |= wish

    def state(self) -> dict[str, Any]:
        """What the daemon last told."""
        return self._state

    def release(self) -> None:
        """Give the device back; returns once it is back."""
        # A forked child shares the connection, but it is not the holder.
        if self._ended.is_set() or self._process != os.getpid():
            return
        self._ended.set()
        with self._lock:
            try:
                if self._connection is not None:
                    self._connection.ask("release", lease=self._state["lease"])
            except (OSError, JouleryError):
                pass  # the daemon gives back by itself what it has lost touch with
            finally:
                self._hang_up()

    def _keep_alive(self) -> None:
        while not self._ended.wait(self._state["ttl_seconds"] / 3):
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    self._ask_again("renew", {})
                except JouleryError:
                    continue  # whoever asks next hears why; meanwhile it may come back

    def _ask_again(self, operation: str, changes: dict[str, float | None]) -> None:
        """Ask under our lease; take the lease anew if it was lost."""
        if self._connection is not None:
            try:
                lease = self._state["lease"]
                self._state = self._connection.ask(operation, lease=lease, **changes)
            except (OSError, LeaseLostError):
                self._hang_up()
            else:
                return
        before, self._wish = self._wish, self._wish | changes
        try:
            self._take()
        except JouleryError:
            self._wish = before
            raise

    def _take(self) -> None:
        """Acquire the device, over a new connection if the old one is gone."""
        try:
            self._connection = self._connection or Connection(self._path)
            self._state = self._connection.ask(
                "acquire", device=self._device, ttl_seconds=self._ttl_seconds, **self._wish
            )
        except OSError as error:
            self._hang_up()
            raise DeviceError(
                f"the governor at {self._path} does not answer: {error}",
                remedy="see whether `joulery governor status` works",
            ) from None
        except JouleryError:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
