"""One caller's conversation: frames in, frames out, no sockets."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, JouleryError
from joulery.governor.board import LeaseRequest
from joulery.governor.frames import REMEDY, VERSION, Decoder, encode, lost_lease
from joulery.units import finite

if TYPE_CHECKING:
    from concurrent.futures import Future

    from joulery.governor.leases import LeaseRecord, LeaseTable
    from joulery.governor.peer import Peer


class LeaseSession:
    """Answers one caller; any transport that can tell who it is may carry it.

    Args:
        ledger: Grants the leases.
        peer: Who calls.
    """

    def __init__(self, ledger: LeaseTable, peer: Peer) -> None:
        self.peer = peer
        self.incoming = Decoder()
        self.greeted = False
        self.closing = False
        self._ledger = ledger
        self._leases: dict[int, LeaseRecord] = {}
        known = (self._acquire, self._may, self._release, self._renew, self._set, self._status)
        self._operations = {each.__name__.removeprefix("_"): each for each in known}

    async def answer(self) -> bytes:
        """The answer to the next whole frame."""
        message: dict[str, Any] | None = None
        try:
            message = self.incoming.take() or {}
            reply = {"ok": True, **await self._reply(message)}
        except JouleryError as error:
            reply = _refusal(error)
        if message is None:
            self.closing = True  # nothing that follows can be trusted either
        number = message and message.get("id")
        if type(number) is int and abs(number) < 2**53:
            reply["id"] = number
        return encode(reply)

    def end(self, why: str) -> None:
        """The caller is gone: end its leases."""
        self.closing = True
        for lease in self._leases.values():
            lease.desk.worker.start(partial(lease.desk.end, lease, why))
        self._leases.clear()

    async def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        operation = message.get("op")
        if not self.greeted:
            versions = message.get("versions")
            if operation != "hello" or not isinstance(versions, list) or VERSION not in versions:
                self.closing = True
                raise InvalidValueError("the caller did not greet", remedy=REMEDY)
            self.greeted = True
            return {"version": VERSION}
        now = self._ledger.clock.now()
        for lease in self._leases.values():  # a sign of life
            lease.expires_at = now + lease.ttl_seconds
        if not isinstance(operation, str) or operation not in self._operations:
            raise InvalidValueError("unknown operation", remedy=REMEDY)
        return await self._operations[operation](message)

    async def _acquire(self, message: dict[str, Any]) -> dict[str, Any]:
        desk = self._ledger.desk(message.get("device"))
        if any(lease.desk is desk and not lease.ended for lease in self._leases.values()):
            raise InvalidValueError("this connection holds the device", remedy="change its lease")
        wish = LeaseRequest(**_changes(message))
        ttl = _amount(message.get("ttl_seconds"), "ttl_seconds")
        lease: LeaseRecord = await desk.worker.ask(
            partial(desk.acquire, self.peer, wish, ttl), _undo
        )
        self._leases[lease.number] = lease
        return lease.state()

    async def _may(self, message: dict[str, Any]) -> dict[str, Any]:
        desk = self._ledger.desk(message.get("device"))
        await desk.worker.ask(partial(desk.may, self.peer, LeaseRequest()))
        return {}

    async def _set(self, message: dict[str, Any]) -> dict[str, Any]:
        lease = self._lease(message)
        wish = replace(lease.wish, **_changes(message))
        await lease.desk.worker.ask(partial(lease.desk.change, lease, wish))
        return lease.state()

    async def _renew(self, message: dict[str, Any]) -> dict[str, Any]:
        lease = self._lease(message)
        await lease.desk.worker.ask(lease.desk.board.look)
        return lease.state()

    async def _release(self, message: dict[str, Any]) -> dict[str, Any]:
        lease = self._lease(message)
        del self._leases[lease.number]
        lease.desk.worker.start(partial(lease.desk.end, lease, "released"))
        await lease.desk.worker.ask(lambda: None)  # comes after it
        return {}

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        desks = self._ledger.desks.values()
        for desk in desks:
            with suppress(JouleryError):
                await desk.worker.ask(desk.board.look)
        return {"devices": [desk.description() for desk in desks]}

    def _lease(self, message: dict[str, Any]) -> LeaseRecord:
        """A lease of this caller; nobody can name another's."""
        number = message.get("lease")
        found = self._leases.get(number) if type(number) is int else None
        if found is None or found.ended:
            raise lost_lease()
        return found


def _undo(acquired: Future[LeaseRecord]) -> None:
    """Nobody may hold what he does not know of: he has gone, or was told that it takes too long."""
    if not acquired.cancelled() and not acquired.exception():
        lease = acquired.result()
        lease.desk.worker.start(partial(lease.desk.end, lease, "its holder did not wait"))


def _changes(message: dict[str, Any]) -> dict[str, float | None]:
    """The knobs that a message names; null gives one back."""
    return {
        knob: None if message[knob] is None else _amount(message[knob], knob)
        for knob in ("watts", "hertz")
        if knob in message
    }


def _amount(value: Any, knob: str) -> float:
    if type(value) not in (int, float):  # true is a number to Python, but not to us
        raise InvalidValueError(f"{knob} is not a number", remedy=REMEDY)
    return finite(value, knob, minimum=0.0)


def _refusal(error: JouleryError) -> dict[str, Any]:
    kind = type(error).__name__
    return {"ok": False, "error": kind, "message": error.message[:500], "remedy": error.remedy}
