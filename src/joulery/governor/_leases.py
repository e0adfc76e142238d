"""Leases of devices: holders, requested values and times to live."""

from __future__ import annotations

import itertools
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulery.errors import JouleryError, NotPossibleHereError, UnknownDeviceError
from joulery.governor._device import LeaseRequest
from joulery.governor._peer import Peer, device_file
from joulery.governor._protocol import lost_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.governor._device import DeviceWorker, GovernedDevice
    from joulery.governor._policy import AccessPolicy, Rule
    from joulery.hardware import Device

CHECK_SECONDS = 1.0  # by hand: a foreign change is seen within a second
TTL_SECONDS = (0.5, 3600.0)  # by hand: from two renewals a second to a long pause
# A limit falls by this factor in each check until it has reached its fallback.
_DECREASE = 0.9
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

    @property
    def is_standing(self) -> bool:
        """Whether no client holds it: it keeps the fallback of its rule."""
        return self.peer == Peer()

    def gives_way_to(self, rule: Rule) -> bool:
        """Whether a new lease by ``rule`` takes the place of this one."""
        return rule.fallback_watts is not None and rule == self.rule

    def state(self) -> dict[str, float | None]:
        """State of the lease for its holder."""
        return {
            "lease": self.number,
            "ttl_seconds": self.ttl_seconds,
            "share_watts": self.device.share_watts(self),
            **self.device.governed.state(),
        }


@dataclass(eq=False)
class LeaseTable:
    """All governed devices and their leases.

    ``owns`` decides whether a client uses a device, ``audit`` is called with every event, and
    ``worker`` makes the worker of a device.
    """

    governed: dict[str, GovernedDevice]
    policy: AccessPolicy
    clock: Clock
    owns: Callable[[Peer, Device, str], bool]
    audit: Callable[..., None]
    worker: Callable[[], DeviceWorker]
    policy_flaw: str = ""  # reason why a newer policy is not in force

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        # Highest epoch of each client on another machine, and when it was last heard.
        self.leaders: dict[str, tuple[int, float]] = {}
        self.devices: dict[str, DeviceLeases] = {}
        self.add(self.governed)

    def add(self, governed: dict[str, GovernedDevice]) -> None:
        """Govern further devices."""
        for name, device in governed.items():
            self.devices[name] = leases = DeviceLeases(self, device, self.worker())
            leases.worker.submit(leases.apply_policy)

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
            if device.is_due(now) and not device.worker.is_busy:
                device.worker.submit(device.tick)

    def replace_policy(self, policy: AccessPolicy) -> None:
        """Adopt another policy; leases that it does not allow end."""
        self.policy, self.policy_flaw = policy, ""
        for device in self.devices.values():
            device.worker.submit(device.apply_policy)


class DeviceLeases:
    """Leases of one device; restores the values found when the last one ends.

    A rule with ``fallback_watts`` always has a lease: while no client holds it, a standing one
    keeps the last limit, and lowers it to the fallback once its time to live is over.
    Methods that call the driver run on the device's worker and on no other thread.
    """

    def __init__(self, table: LeaseTable, governed: GovernedDevice, worker: DeviceWorker) -> None:
        self.governed = governed
        self.worker = worker
        self.leases: list[LeaseRecord] = []
        self._due_at = 0.0
        self._table = table
        self._id = governed.device.info.id
        self._file = device_file(self._id)
        self._flaw = ""

    @property
    def rests(self) -> bool:
        """Whether no client holds the device and nothing is left to restore."""
        return not self.governed.held or any(lease.is_standing for lease in self.leases)

    def is_due(self, now: float) -> bool:
        """Whether ``tick`` has something to do."""
        times = [self._due_at, *(lease.expires_at for lease in list(self.leases))]
        return min(times) <= now and (self.governed.held or bool(self._fallback_rules()))

    def description(self) -> dict[str, Any]:
        """Status of the device, with the requests of all holders."""
        return {
            "id": self._id[:200],
            "name": self.governed.device.info.name[:200],
            "file": self._file,
            "held": self.governed.held,
            "stuck": self.worker.hangs,
            "flaw": self._flaw[:500],
            **self.governed.state(),
            **self.governed.readings,
            "leases": [
                {"lease": lease.number, **lease.peer.name(), **asdict(lease.request)}
                for lease in self.leases[:_MAX_LISTED]
            ],
        }

    def share_watts(self, lease: LeaseRecord) -> float | None:
        """Lowest target, or limit without one, of other holders, such as a cluster's agent.

        Processes that promise a power keep to a share themselves, which is no share for others.
        """
        requests = [
            other.request
            for other in list(self.leases)
            if other is not lease and (other.peer.uid < 0 or other.request.target_watts is None)
        ]
        watts = [r.watts if r.target_watts is None else r.target_watts for r in requests]
        return min((limit for limit in watts if limit is not None), default=None)

    def check(self, peer: Peer, request: LeaseRequest) -> Rule:
        """The rule that permits a lease now; raises where there is none."""
        rule = self._permit(peer, request)
        rivals = [lease for lease in self.leases if not lease.gives_way_to(rule)]
        if rivals and not all(entry.shared for entry in [rule, *(o.rule for o in rivals)]):
            flaw = f"{self.governed.device.info.name} ({self._id}) is held by {rivals[0].peer}"
            remedy = 'wait until it ends, or ask for a policy with shared = "minimum"'
            raise NotPossibleHereError(flaw, remedy=remedy)
        return rule

    def acquire(self, peer: Peer, request: LeaseRequest, ttl_seconds: float) -> LeaseRecord:
        """Lease the device and set the requested values; all or nothing."""
        rule = self.check(peer, request)
        if not self.governed.held:
            self.governed.hold()
        self._flaw = ""
        before = [lease for lease in self.leases if lease.gives_way_to(rule)]
        if before and request.watts is None:  # what stands, until the holder sets a limit
            request = replace(request, watts=before[0].request.watts)
        lease = self._added(peer, rule, ttl_seconds)
        for standing in before:
            standing.ended, lease.request = (
                True,
                standing.request,
            )  # which stays should the change fail
            self.leases.remove(standing)
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

    def end(self, lease: LeaseRecord, reason: str) -> None:
        """End a lease, if it has not ended already."""
        if lease.ended:
            return
        lease.ended = True
        self.leases.remove(lease)
        self._audit("end", lease, why=reason)
        if lease.rule in self._fallback_rules():
            standing = self._added(Peer(), lease.rule, TTL_SECONDS[0])
            standing.expires_at, standing.request = lease.expires_at, lease.request
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
            if not lease.is_standing:
                self.end(lease, "expired")
        self._guarded(lambda: self._lower_standing(now, _DECREASE))
        if self.leases:
            self._guarded(self.governed.refresh)
        elif self.governed.held:
            self._restore()

    def adopt(self) -> None:
        """Take over what a dead governor left changed; the next tick restores it."""
        try:
            if not self.governed.held and self.governed.journal.pending() is not None:
                self.governed.hold()
        except NotPossibleHereError:  # its holder lives
            pass
        except JouleryError as error:  # no limit is lent until an administrator has acted
            self._note(error)
            sys.stderr.write(f"joulery: {error.message}\n  → {error.remedy}\n")

    def rest(self) -> None:
        """Prepare for the end of the governor: standing limits fall to their fallback at once."""
        self.tick()
        for lease in self.leases:
            lease.expires_at = 0.0
        self._guarded(lambda: self._lower_standing(self._table.clock.now(), 0.0))

    def apply_policy(self) -> None:
        """Adopt the table's new policy."""
        if not self.governed.held:
            self.governed.pinned_hertz = self._table.policy.pinned_hertz(self.governed.device.info)
        rules, ending = self._fallback_rules(), []
        for lease in self.leases:
            try:
                if not lease.is_standing:
                    lease.rule = self._permit(lease.peer, lease.request)
                elif lease.rule not in rules:
                    ending.append(lease)
            except JouleryError:
                ending.append(lease)
        self._guarded(lambda: self._stand(rules))
        for lease in ending:
            self.end(lease, "the policy changed")

    def _fallback_rules(self) -> list[Rule]:
        rules, info = self._table.policy.rules, self.governed.device.info
        return [rule for rule in rules if rule.fallback_watts is not None and rule.names(info)]

    def _stand(self, rules: list[Rule]) -> None:
        """Take a standing lease for each rule with a fallback that has none."""
        for rule in rules:
            if any(lease.rule == rule for lease in self.leases):
                continue
            if not self.governed.held:
                self.governed.hold()
            self._added(Peer(), rule, 0.0).request = LeaseRequest(rule.fallback_watts)
            self.governed.refresh()
            self.governed.apply(self._joint_request())

    def _lower_standing(self, now: float, factor: float) -> None:
        """Take standing limits whose time is over a step towards their fallback."""
        self._stand(self._fallback_rules())
        due = [lease for lease in self.leases if lease.is_standing and lease.expires_at <= now]
        for lease in due:
            lease.expires_at = now + CHECK_SECONDS
            watts = lease.request.watts or self.governed.baseline_watts or 0.0
            lowered = max(lease.rule.fallback_watts or 0.0, factor * watts)
            lease.request = LeaseRequest(min(watts, lowered))
        if due:
            self.governed.refresh()
            self.governed.apply(self._joint_request())

    def _guarded(self, action: Callable[[], object]) -> None:
        """Do what the next tick tries again if it fails."""
        try:
            action()
            if self.governed.held:
                self._flaw = ""
        except JouleryError as error:
            self._note(error)

    def _note(self, error: JouleryError) -> None:
        """Keep a problem for the status, and audit it once."""
        if error.message != self._flaw:
            self._flaw = error.message
            self._table.audit("unreadable", device=self._id, why=error.message)

    def _added(self, peer: Peer, rule: Rule, ttl_seconds: float) -> LeaseRecord:
        ttl = min(max(ttl_seconds, TTL_SECONDS[0]), TTL_SECONDS[1])
        expires_at = self._table.clock.now() + ttl
        lease = LeaseRecord(next(self._table.numbers), self, peer, rule, ttl, expires_at)
        self.leases.append(lease)
        return lease

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
