"""Leases: who holds which device, at what, and until when."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import (
    InvalidValueError,
    JouleryError,
    NotPossibleHereError,
    UnknownDeviceError,
)
from joulery.governor.board import Wish
from joulery.governor.frames import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.governor.board import Board
    from joulery.governor.peer import Peer
    from joulery.governor.policy import Policy, Rule
    from joulery.hardware.device import Device

LOOK_SECONDS = 1.0
TTL_SECONDS = (0.5, 3600.0)


@dataclass(slots=True)
class Lease:
    """A device in somebody's hands."""

    number: int
    holder: object
    peer: Peer
    board: Board
    rule: Rule
    wish: Wish
    ttl_seconds: float
    expires_at: float = 0.0


class Ledger:
    """Grants leases by policy, and gives back what they changed when they end.

    Args:
        boards: What there is to lease, by device id.
        policy: Who may do what.
        clock: Decides when leases expire.
        owns: Whether a caller has a device.
        audit: Told everything that happens.
    """

    def __init__(
        self,
        boards: dict[str, Board],
        policy: Policy,
        clock: Clock,
        owns: Callable[[Peer, Device, str], bool],
        audit: Callable[..., None],
    ) -> None:
        self.boards = boards
        self._clock = clock
        self._owns = owns
        self._audit = audit
        self._policy = policy
        self._leases: dict[int, Lease] = {}
        self._numbers = itertools.count(1)
        self._look_at = 0.0
        self.replace_policy(policy)

    def acquire(
        self, holder: object, peer: Peer, device: str, wish: Wish, ttl_seconds: float
    ) -> Lease:
        """Lease a device; all or nothing.

        Raises:
            UnknownDeviceError: No such device.
            MissingRightsError: The policy does not allow it.
            NotPossibleHereError: Somebody else holds it.
            InvalidValueError: Outside the device's range or above the cap found in force.
        """
        board = self._board(device)
        rule = self._permit(peer, board, wish)
        self._check_free(board, rule, holder)
        ttl = min(max(ttl_seconds, TTL_SECONDS[0]), TTL_SECONDS[1])
        lease = Lease(next(self._numbers), holder, peer, board, rule, Wish(), ttl)
        if not board.held:
            board.begin()
        self._leases[lease.number] = lease
        self.renew(holder)
        self._note("acquire", lease)
        try:
            self.change(lease, wish)
        except JouleryError:
            self._end(lease, "its first change failed")
            raise
        return lease

    def change(self, lease: Lease, wish: Wish) -> None:
        """Ask for something else under the same lease."""
        board = lease.board
        lease.rule = self._permit(lease.peer, board, wish)
        if board.has_limit:
            board.look()  # somebody may have lowered the ceiling
        board.check(wish)
        before, lease.wish = lease.wish, wish
        try:
            board.apply(self._joint_wish(board))
        except JouleryError:
            lease.wish = before
            raise
        self._note("set", lease, watts=wish.watts, hertz=wish.hertz)

    def may(self, peer: Peer, device: str) -> None:
        """Raise what :meth:`acquire` of an unchanged device would raise."""
        board = self._board(device)
        self._check_free(board, self._permit(peer, board, Wish()), None)

    def lease(self, holder: object, number: Any) -> Lease:
        """A lease of this holder; nobody can name another's."""
        found = self._leases.get(number) if type(number) is int else None
        if found is None or found.holder is not holder:
            raise LeaseLostError("there is no such lease any more", remedy="take a new one")
        return found

    def release(self, lease: Lease) -> None:
        """End a lease."""
        self._end(lease, "released")

    def drop(self, holder: object, why: str) -> None:
        """End every lease of a holder that is gone."""
        for lease in self._of(holder):
            self._end(lease, why)

    def renew(self, holder: object) -> None:
        """A sign of life: every lease of the holder lasts its time from now."""
        now = self._clock.now()
        for lease in self._of(holder):
            lease.expires_at = now + lease.ttl_seconds

    def tick(self) -> None:
        """Expire leases, look for foreign changes, and retry what could not be given back."""
        now = self._clock.now()
        for lease in [lease for lease in self._leases.values() if lease.expires_at <= now]:
            self._end(lease, "expired")
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        busy = {id(lease.board) for lease in self._leases.values()}
        for board in self.boards.values():
            if board.held and id(board) not in busy:
                self._finish(board)
            elif board.held and board.has_limit:
                try:
                    board.look()
                except JouleryError as error:
                    self._audit("unreadable", device=board.device.info.id, why=error.message)

    def due_in(self) -> float | None:
        """Seconds until :meth:`tick` has something to do; None for never."""
        if not any(board.held for board in self.boards.values()):
            return None
        times = [lease.expires_at for lease in self._leases.values()]
        return max(0.0, min([self._look_at, *times]) - self._clock.now())

    def end_all(self, why: str) -> None:
        """Give back everything, before a shutdown."""
        for lease in list(self._leases.values()):
            self._end(lease, why)

    def replace_policy(self, policy: Policy) -> None:
        """Go by another policy; leases that it does not allow end."""
        self._policy = policy
        for board in self.boards.values():
            if not board.held:
                board.pinned_hertz = policy.pinned_hertz(board.device.info)
        for lease in list(self._leases.values()):
            try:
                lease.rule = self._permit(lease.peer, lease.board, lease.wish)
            except JouleryError:
                self._end(lease, "the policy changed")

    def leases_on(self, board: Board) -> list[Lease]:
        """The leases of a board."""
        return [lease for lease in self._leases.values() if lease.board is board]

    def _of(self, holder: object) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.holder is holder]

    def _board(self, device: str) -> Board:
        if device not in self.boards:
            raise UnknownDeviceError(
                f"the governor knows no device {device[:80]!r}", remedy="see `joulery doctor`"
            )
        return self.boards[device]

    def _permit(self, peer: Peer, board: Board, wish: Wish) -> Rule:
        try:
            return self._policy.permit(peer, board.device, wish, self._owns)
        except JouleryError as refusal:
            device = board.device.info.id
            self._audit("refuse", device=device, uid=peer.uid, pid=peer.pid, why=refusal.message)
            raise

    def _check_free(self, board: Board, rule: Rule, holder: object) -> None:
        others = self.leases_on(board)
        if others and not all(each.shared for each in [rule, *(one.rule for one in others)]):
            peer = others[0].peer
            raise NotPossibleHereError(
                f"{board.device.info.name} ({board.device.info.id}) is held by "
                f"process {peer.pid} of user {peer.uid}",
                remedy='wait until it ends, or ask for a policy with shared = "minimum"',
            )
        if any(lease.holder is holder for lease in others):
            raise InvalidValueError(
                "this connection holds the device already",
                remedy="change the limit under its lease",
            )

    def _joint_wish(self, board: Board) -> Wish:
        wishes = [lease.wish for lease in self.leases_on(board)]
        return Wish(
            min((wish.watts for wish in wishes if wish.watts is not None), default=None),
            min((wish.hertz for wish in wishes if wish.hertz is not None), default=None),
        )

    def _end(self, lease: Lease, why: str) -> None:
        del self._leases[lease.number]
        self._note("end", lease, why=why)
        board = lease.board
        if not self.leases_on(board):
            self._finish(board)
            return
        try:
            if board.has_limit:
                board.look()
            if not board.overridden:  # only who asks for a change may change what others set
                board.apply(self._joint_wish(board))
        except JouleryError as error:
            self._note("unchanged", lease, why=error.message)

    def _finish(self, board: Board) -> None:
        try:
            board.finish()
        except JouleryError as error:
            self._audit("unrestored", device=board.device.info.id, why=error.message)
        else:
            self._audit("restored", device=board.device.info.id)
            board.pinned_hertz = self._policy.pinned_hertz(board.device.info)

    def _note(self, event: str, lease: Lease, **details: object) -> None:
        self._audit(
            event,
            lease=lease.number,
            device=lease.board.device.info.id,
            uid=lease.peer.uid,
            pid=lease.peer.pid,
            **details,
        )
