"""A wattmeter of the WT300 family that speaks SCPI on a local TCP port."""

from __future__ import annotations

import socketserver
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


@dataclass
class EmulatedWattMeter:
    """State of an emulated meter, and its answers.

    Attributes:
        watts: Power at the plug; text such as ``NAN`` is sent as it stands.
        identity: Answer to ``*IDN?``.
        received: All commands so far, oldest first.
    """

    watts: float | str = 350.0
    identity: str = "YOKOGAWA,WT310E,C2QG12345V,F1.04"
    items: dict[int, str] = field(default_factory=dict)
    received: list[str] = field(default_factory=list)

    def answer(self, command: str) -> str | None:
        """The reply to a command; None where it has none."""
        self.received.append(command)
        name, _, argument = command.upper().partition(" ")
        if name == "*IDN?":
            return self.identity
        if name == ":NUMERIC:NORMAL:VALUE?":
            return self.watts if isinstance(self.watts, str) else f"{self.watts:.4E}"
        if name.startswith(":NUMERIC:NORMAL:ITEM"):
            self.items[int(name.removeprefix(":NUMERIC:NORMAL:ITEM"))] = argument
        return None


class WattMeterServer:
    """Server of a meter on 127.0.0.1, for the length of a ``with`` block.

    Examples:
        >>> with WattMeterServer(EmulatedWattMeter()) as server:
        ...     server.resource.startswith("TCPIP0::127.0.0.1::")
        True
    """

    def __init__(self, meter: EmulatedWattMeter) -> None:
        self._server = _Server(meter)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def resource(self) -> str:
        """The VISA resource of the meter."""
        return f"TCPIP0::127.0.0.1::{self._server.server_address[1]}::SOCKET"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, meter: EmulatedWattMeter) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.meter = meter


class _Conversation(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer line by line until the other side disconnects."""
        for line in self.rfile:
            reply = self.server.meter.answer(line.decode().strip())
            if reply is not None:
                self.wfile.write(f"{reply}\n".encode())
