"""One caller's conversation: frames in, frames out, no sockets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, JouleryError
from joulery.governor.board import Wish
from joulery.governor.frames import VERSION, Decoder, encode
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.governor.ledger import Lease, Ledger
    from joulery.governor.peer import Peer

_KNOBS = ("watts", "hertz")
_REMEDY = f"speak version {VERSION} of the governor's protocol"
# Per device; an answer must not grow with the number of holders.
_MAX_LISTED = 16


class Session:
    """Answers one caller; any transport that can tell who it is may carry it.

    Args:
        ledger: Grants the leases.
        peer: Who calls.
    """

    def __init__(self, ledger: Ledger, peer: Peer) -> None:
        self.peer = peer
        self.outgoing = bytearray()
        self.closing = False
        self._ledger = ledger
        self._decoder = Decoder()
        self.greeted = False
        self._operations = {
            "acquire": self._acquire,
            "may": self._may,
            "release": self._release,
            "renew": self._renew,
            "set": self._set,
            "status": self._status,
        }

    @property
    def room(self) -> int:
        """How many bytes :meth:`feed` takes."""
        return self._decoder.room

    @property
    def waiting(self) -> bool:
        """Whether a whole frame is in hand."""
        return self._decoder.waiting and not self.closing

    def feed(self, data: bytes) -> None:
        """Take what the caller sent."""
        self._decoder.feed(data)

    def step(self) -> None:
        """Answer the next whole frame, if there is one."""
        if not self.waiting:
            return
        try:
            message = self._decoder.take() or {}
        except InvalidValueError as error:
            self.closing = True
            self.outgoing += encode(_refusal(error))
            return
        try:
            reply = {"ok": True, **self._answer(message)}
        except JouleryError as error:
            reply = _refusal(error)
        number = message.get("id")
        if type(number) is int and abs(number) < 2**53:
            reply["id"] = number
        self.outgoing += encode(reply)

    def end(self, why: str) -> None:
        """The caller is gone: end its leases."""
        self.closing = True
        self._ledger.drop(self, why)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        operation = message.get("op")
        if not self.greeted:
            versions = message.get("versions")
            if operation != "hello" or not isinstance(versions, list) or VERSION not in versions:
                self.closing = True
                raise InvalidValueError("the caller did not greet", remedy=_REMEDY)
            self.greeted = True
            return {"version": VERSION}
        self._ledger.renew(self)
        if not isinstance(operation, str) or operation not in self._operations:
            raise InvalidValueError("unknown operation", remedy=_REMEDY)
        return self._operations[operation](message)

    def _acquire(self, message: dict[str, Any]) -> dict[str, Any]:
        wish = Wish(**_changes(message))
        ttl = _amount(message.get("ttl_seconds"), "ttl_seconds")
        return _state(self._ledger.acquire(self, self.peer, _device(message), wish, ttl))

    def _set(self, message: dict[str, Any]) -> dict[str, Any]:
        lease = self._ledger.lease(self, message.get("lease"))
        self._ledger.change(lease, replace(lease.wish, **_changes(message)))
        return _state(lease)

    def _release(self, message: dict[str, Any]) -> dict[str, Any]:
        self._ledger.release(self._ledger.lease(self, message.get("lease")))
        return {}

    def _renew(self, message: dict[str, Any]) -> dict[str, Any]:
        return _state(self._ledger.lease(self, message.get("lease")))

    def _may(self, message: dict[str, Any]) -> dict[str, Any]:
        self._ledger.may(self.peer, _device(message))
        return {}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        """Devices, and of each who holds it; the wishes of others are no secret on a node."""
        ledger = self._ledger
        return {
            "devices": [
                {
                    "id": name[:200],
                    "name": board.device.info.name[:200],
                    "held": board.held,
                    "watts": _current(board),
                    "baseline_watts": board.baseline_watts,
                    "hertz": board.hertz,
                    "foreign_change": board.overridden,
                    "leases": [
                        {
                            "lease": lease.number,
                            "uid": lease.peer.uid,
                            "pid": lease.peer.pid,
                            "watts": lease.wish.watts,
                            "hertz": lease.wish.hertz,
                        }
                        for lease in ledger.leases_on(board)[:_MAX_LISTED]
                    ],
                }
                for name, board in ledger.boards.items()
            ]
        }


def _current(board: Any) -> float | None:
    try:
        return float(board.look()) if board.has_limit else None
    except JouleryError:
        return None


def _state(lease: Lease) -> dict[str, Any]:
    board = lease.board
    return {
        "lease": lease.number,
        "watts": _current(board),
        "hertz": board.hertz,
        "baseline_watts": board.baseline_watts,
        "ceiling_watts": board.ceiling_watts,
        "foreign_change": board.overridden,
        "ttl_seconds": lease.ttl_seconds,
    }


def _device(message: dict[str, Any]) -> str:
    device = message.get("device")
    if not isinstance(device, str):
        raise InvalidValueError("the device is not named", remedy=_REMEDY)
    return device


def _changes(message: dict[str, Any]) -> dict[str, float | None]:
    """The knobs that a message names; null gives one back."""
    return {
        knob: None if message[knob] is None else _amount(message[knob], knob)
        for knob in _KNOBS
        if knob in message
    }


def _amount(value: Any, knob: str) -> float:
    if type(value) not in (int, float):  # true is a number to Python, but not to us
        raise InvalidValueError(f"{knob} is not a number", remedy=_REMEDY)
    return finite(value, knob, minimum=0.0)


def _refusal(error: JouleryError) -> dict[str, Any]:
    kind = type(error).__name__
    return {"ok": False, "error": kind, "message": error.message[:500], "remedy": error.remedy}
