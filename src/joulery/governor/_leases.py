"""Leases of devices: holders, requested values and times to live."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.errors import JouleryError, NotPossibleHereError, UnknownDeviceError
from joulery.governor._device import LeaseRequest
from joulery.governor._protocol import lost_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.governor._device import DeviceWorker, GovernedDevice
    from joulery.governor._peer import Peer
    from joulery.governor._policy import AccessPolicy, Rule
    from joulery.hardware import Device

CHECK_SECONDS = 1.0
TTL_SECONDS = (0.5, 3600.0)
# The size of an answer must not grow with the number of holders.
_MAX_LISTED = 16


@dataclass(slots=True, eq=False)
class LeaseRecord:
    """One lease of a device."""

    number: int
    device: DeviceLeases
    peer: Peer
    rule: Rule
    ttl_seconds: float
    expires_at: float
    request: LeaseRequest = field(default_factory=LeaseRequest)
    ended: bool = False

    def state(self) -> dict[str, float | None]:
        """State of the lease for its holder."""
        return {
            "lease": self.number,
            "ttl_seconds": self.ttl_seconds,
            **self.device.governed.state(),
        }


@dataclass(eq=False)
class LeaseTable:
    """All governed devices and their leases.

    Attributes:
        governed: Devices that can be leased, by id.
        policy: Policy that permits leases.
        clock: Clock by which leases expire.
        owns: Function that decides whether a client uses a device.
        audit: Function called with every event.
        worker: Factory of a device's worker.
    """

    governed: dict[str, GovernedDevice]
    policy: AccessPolicy
    clock: Clock
    owns: Callable[[Peer, Device, str], bool]
    audit: Callable[..., None]
    worker: Callable[[], DeviceWorker]

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.devices = {
            name: DeviceLeases(self, governed, self.worker())
            for name, governed in self.governed.items()
        }
        self.replace_policy(self.policy)

    def device(self, device: object) -> DeviceLeases:
        """The leases of a device."""
        if not isinstance(device, str) or device not in self.devices:
            flaw = f"no device {str(device)[:80]!r} is governed"
            raise UnknownDeviceError(flaw, remedy="see `joulery doctor`")
        return self.devices[device]

    def tick(self) -> None:
        """Submit the periodic work of every device that is due."""
        now = self.clock.now()
        for device in self.devices.values():
            if device.is_due(now) and not device.worker.busy:
                device.worker.submit(device.tick)

    def replace_policy(self, policy: AccessPolicy) -> None:
        """Adopt another policy; leases that it does not allow end."""
        self.policy = policy
        for device in self.devices.values():
            device.worker.submit(device.apply_policy)


class DeviceLeases:
    """Leases of one device; restores the values found when the last one ends.

    Methods that call the driver run on the device's worker and on no other thread.
    """

    def __init__(self, table: LeaseTable, governed: GovernedDevice, worker: DeviceWorker) -> None:
        self.governed = governed
        self.worker = worker
        self.leases: list[LeaseRecord] = []
        self._due_at = 0.0
        self._table = table
        self._id = governed.device.info.id

    def is_due(self, now: float) -> bool:
        """Whether :meth:`tick` has something to do."""
        times = [self._due_at, *(lease.expires_at for lease in list(self.leases))]
        return self.governed.held and min(times) <= now

    def description(self) -> dict[str, Any]:
        """Status of the device, with the requests of all holders."""
        return {
            "id": self._id[:200],
            "name": self.governed.device.info.name[:200],
            "held": self.governed.held,
            "stuck": self.worker.stuck,
            **self.governed.state(),
            "leases": [
                {"lease": lease.number, **lease.peer.name(), **asdict(lease.request)}
                for lease in self.leases[:_MAX_LISTED]
            ],
        }

    def check(self, peer: Peer, request: LeaseRequest) -> Rule:
        """The rule that permits a lease now; raises where there is none."""
        rule = self._permit(peer, request)
        together = [rule, *(lease.rule for lease in self.leases)]
        if self.leases and not all(each.shared for each in together):
            holder = self.leases[0].peer
            who = f"process {holder.pid} of user {holder.uid}"
            flaw = f"{self.governed.device.info.name} ({self._id}) is held by {who}"
            remedy = 'wait until it ends, or ask for a policy with shared = "minimum"'
            raise NotPossibleHereError(flaw, remedy=remedy)
        return rule

    def acquire(self, peer: Peer, request: LeaseRequest, ttl_seconds: float) -> LeaseRecord:
        """Lease the device and set the requested values; all or nothing.

        Raises:
            MissingRightsError: The policy does not allow it.
            NotPossibleHereError: Another client holds it.
            InvalidValueError: A value is outside the device's range or above the cap in force.
        """
        rule = self.check(peer, request)
        if not self.governed.held:
            self.governed.hold()
        ttl = min(max(ttl_seconds, TTL_SECONDS[0]), TTL_SECONDS[1])
        expires_at = self._table.clock.now() + ttl
        lease = LeaseRecord(next(self._table.numbers), self, peer, rule, ttl, expires_at)
        self.leases.append(lease)
        self._audit("acquire", lease)
        try:
            self.change(lease, request)
        except JouleryError:
            self.end(lease, "its first change failed")
            raise
        return lease

    def change(self, lease: LeaseRecord, request: LeaseRequest) -> None:
        """Set other values under the same lease."""
        if lease.ended:
            raise lost_lease()
        lease.rule = self._permit(lease.peer, request)
        self.governed.refresh()  # another program may have lowered the ceiling
        self.governed.check(request)
        before, lease.request = lease.request, request
        try:
            self.governed.apply(self._joint_request())
        except JouleryError:
            lease.request = before
            raise
        self._audit("set", lease, **asdict(request))

    def end(self, lease: LeaseRecord, why: str) -> None:
        """End a lease, if it has not ended already."""
        if lease.ended:
            return
        lease.ended = True
        self.leases.remove(lease)
        self._audit("end", lease, why=why)
        if not self.leases:
            self._restore()
            return
        try:
            self.governed.refresh()
            if not self.governed.overridden:  # a foreign change stands until a holder sets a value
                self.governed.apply(self._joint_request())
        except JouleryError as error:
            self._audit("unchanged", lease, why=error.message)

    def tick(self) -> None:
        """Expire leases, detect foreign changes, and retry a restore that failed."""
        now = self._table.clock.now()
        self._due_at = now + CHECK_SECONDS
        for lease in [lease for lease in self.leases if lease.expires_at <= now]:
            self.end(lease, "expired")
        try:
            if self.leases:
                self.governed.refresh()
            elif self.governed.held:
                self._restore()
        except JouleryError as error:
            self._table.audit("unreadable", device=self._id, why=error.message)

    def apply_policy(self) -> None:
        """Adopt the table's new policy."""
        if not self.governed.held:
            self.governed.pinned_hertz = self._table.policy.pinned_hertz(self.governed.device.info)
        for lease in list(self.leases):
            try:
                lease.rule = self._permit(lease.peer, lease.request)
            except JouleryError:
                self.end(lease, "the policy changed")

    def _permit(self, peer: Peer, request: LeaseRequest) -> Rule:
        try:
            return self._table.policy.permit(peer, self.governed.device, request, self._table.owns)
        except JouleryError as refusal:
            self._table.audit("refuse", device=self._id, **peer.name(), why=refusal.message)
            raise

    def _joint_request(self) -> LeaseRequest:
        watts = [lease.request.watts for lease in self.leases if lease.request.watts is not None]
        hertz = [lease.request.hertz for lease in self.leases if lease.request.hertz is not None]
        return LeaseRequest(min(watts, default=None), min(hertz, default=None))

    def _restore(self) -> None:
        try:
            self.governed.restore()
        except JouleryError as error:
            self._table.audit("unrestored", device=self._id, why=error.message)
        else:
            self._table.audit("restored", device=self._id)
            self.apply_policy()

    def _audit(self, event: str, lease: LeaseRecord, **details: object) -> None:
        who = {"device": self._id, "lease": lease.number, **lease.peer.name()}
        self._table.audit(event, **who, **details)
