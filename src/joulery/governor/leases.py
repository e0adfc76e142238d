"""Leases: who holds which device, at what, and until when."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.errors import JouleryError, NotPossibleHereError, UnknownDeviceError
from joulery.governor.board import LeaseRequest
from joulery.governor.frames import lost_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.governor.board import GovernedDevice
    from joulery.governor.peer import Peer
    from joulery.governor.policy import AccessPolicy, Rule
    from joulery.governor.worker import DeviceWorker
    from joulery.hardware.device import Device

LOOK_SECONDS = 1.0
TTL_SECONDS = (0.5, 3600.0)
# An answer must not grow with the number of holders.
_MAX_LISTED = 16


@dataclass(slots=True, eq=False)
class LeaseRecord:
    """A device in somebody's hands."""

    number: int
    desk: LeaseDesk
    peer: Peer
    rule: Rule
    ttl_seconds: float
    expires_at: float
    wish: LeaseRequest = field(default_factory=LeaseRequest)
    ended: bool = False

    def state(self) -> dict[str, float | None]:
        """What its holder may know."""
        return {"lease": self.number, "ttl_seconds": self.ttl_seconds, **self.desk.board.state()}


@dataclass(eq=False)
class LeaseTable:
    """Every device that can be lent, and the policy by which it is.

    Attributes:
        boards: What there is to lease, by device id.
        policy: Who may do what.
        clock: Decides when leases expire.
        owns: Whether a caller has a device.
        audit: Told everything that happens.
        worker: Makes what does a device's errands.
    """

    boards: dict[str, GovernedDevice]
    policy: AccessPolicy
    clock: Clock
    owns: Callable[[Peer, Device, str], bool]
    audit: Callable[..., None]
    worker: Callable[[], DeviceWorker]

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.desks = {
            name: LeaseDesk(self, board, self.worker()) for name, board in self.boards.items()
        }
        self.replace_policy(self.policy)

    def desk(self, device: object) -> LeaseDesk:
        """Where a device is lent."""
        if not isinstance(device, str) or device not in self.desks:
            flaw = f"no device {str(device)[:80]!r} is governed"
            raise UnknownDeviceError(flaw, remedy="see `joulery doctor`")
        return self.desks[device]

    def tick(self) -> None:
        """Have every device looked at that is due."""
        now = self.clock.now()
        for desk in self.desks.values():
            if desk.is_due(now) and not desk.worker.busy:
                desk.worker.start(desk.tick)

    def replace_policy(self, policy: AccessPolicy) -> None:
        """Go by another policy; leases that it does not allow end."""
        self.policy = policy
        for desk in self.desks.values():
            desk.worker.start(desk.reconsider)


class LeaseDesk:
    """Lends one device, and gives back what leases changed when they end.

    Whatever calls the driver is an errand for the device's worker and runs on no other thread.
    """

    def __init__(self, ledger: LeaseTable, board: GovernedDevice, worker: DeviceWorker) -> None:
        self.board = board
        self.worker = worker
        self.leases: list[LeaseRecord] = []
        self._look_at = 0.0
        self._ledger = ledger
        self._id = board.device.info.id

    def is_due(self, now: float) -> bool:
        """Whether :meth:`tick` has something to do."""
        times = [self._look_at, *(lease.expires_at for lease in list(self.leases))]
        return self.board.held and min(times) <= now

    def description(self) -> dict[str, Any]:
        """How it stands; the wishes of others are no secret on a node."""
        return {
            "id": self._id[:200],
            "name": self.board.device.info.name[:200],
            "held": self.board.held,
            "stuck": self.worker.stuck,
            **self.board.state(),
            "leases": [
                {"lease": lease.number, **lease.peer.name(), **asdict(lease.wish)}
                for lease in self.leases[:_MAX_LISTED]
            ],
        }

    def may(self, peer: Peer, wish: LeaseRequest) -> Rule:
        """The rule by which the device can be had now, or the refusal."""
        rule = self._permit(peer, wish)
        together = [rule, *(lease.rule for lease in self.leases)]
        if self.leases and not all(each.shared for each in together):
            holder = self.leases[0].peer
            who = f"process {holder.pid} of user {holder.uid}"
            flaw = f"{self.board.device.info.name} ({self._id}) is held by {who}"
            remedy = 'wait until it ends, or ask for a policy with shared = "minimum"'
            raise NotPossibleHereError(flaw, remedy=remedy)
        return rule

    def acquire(self, peer: Peer, wish: LeaseRequest, ttl_seconds: float) -> LeaseRecord:
        """Lease the device; all or nothing.

        Raises:
            MissingRightsError: The policy does not allow it.
            NotPossibleHereError: Somebody else holds it.
            InvalidValueError: Outside the device's range or above the cap found in force.
        """
        rule = self.may(peer, wish)
        if not self.board.held:
            self.board.begin()
        ttl = min(max(ttl_seconds, TTL_SECONDS[0]), TTL_SECONDS[1])
        expires_at = self._ledger.clock.now() + ttl
        lease = LeaseRecord(next(self._ledger.numbers), self, peer, rule, ttl, expires_at)
        self.leases.append(lease)
        self._note("acquire", lease)
        try:
            self.change(lease, wish)
        except JouleryError:
            self.end(lease, "its first change failed")
            raise
        return lease

    def change(self, lease: LeaseRecord, wish: LeaseRequest) -> None:
        """Ask for something else under the same lease."""
        if lease.ended:
            raise lost_lease()
        lease.rule = self._permit(lease.peer, wish)
        self.board.look()  # somebody may have lowered the ceiling
        self.board.check(wish)
        before, lease.wish = lease.wish, wish
        try:
            self.board.apply(self._joint_wish())
        except JouleryError:
            lease.wish = before
            raise
        self._note("set", lease, **asdict(wish))

    def end(self, lease: LeaseRecord, why: str) -> None:
        """End a lease, if it has not ended already."""
        if lease.ended:
            return
        lease.ended = True
        self.leases.remove(lease)
        self._note("end", lease, why=why)
        if not self.leases:
            self._finish()
            return
        try:
            self.board.look()
            if not self.board.overridden:  # only who asks for a change may change what others set
                self.board.apply(self._joint_wish())
        except JouleryError as error:
            self._note("unchanged", lease, why=error.message)

    def tick(self) -> None:
        """Expire leases, look for foreign changes, and retry what could not be given back."""
        now = self._ledger.clock.now()
        self._look_at = now + LOOK_SECONDS
        for lease in [lease for lease in self.leases if lease.expires_at <= now]:
            self.end(lease, "expired")
        try:
            if self.leases:
                self.board.look()
            elif self.board.held:
                self._finish()
        except JouleryError as error:
            self._ledger.audit("unreadable", device=self._id, why=error.message)

    def reconsider(self) -> None:
        """Go by the ledger's new policy."""
        if not self.board.held:
            self.board.pinned_hertz = self._ledger.policy.pinned_hertz(self.board.device.info)
        for lease in list(self.leases):
            try:
                lease.rule = self._permit(lease.peer, lease.wish)
            except JouleryError:
                self.end(lease, "the policy changed")

    def _permit(self, peer: Peer, wish: LeaseRequest) -> Rule:
        try:
            return self._ledger.policy.permit(peer, self.board.device, wish, self._ledger.owns)
        except JouleryError as refusal:
            self._ledger.audit("refuse", device=self._id, **peer.name(), why=refusal.message)
            raise

    def _joint_wish(self) -> LeaseRequest:
        watts = [lease.wish.watts for lease in self.leases if lease.wish.watts is not None]
        hertz = [lease.wish.hertz for lease in self.leases if lease.wish.hertz is not None]
        return LeaseRequest(min(watts, default=None), min(hertz, default=None))

    def _finish(self) -> None:
        try:
            self.board.finish()
        except JouleryError as error:
            self._ledger.audit("unrestored", device=self._id, why=error.message)
        else:
            self._ledger.audit("restored", device=self._id)
            self.reconsider()

    def _note(self, event: str, lease: LeaseRecord, **details: object) -> None:
        who = {"device": self._id, "lease": lease.number, **lease.peer.name()}
        self._ledger.audit(event, **who, **details)
