"""One governed device: the values found, the ceiling, and how they come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from joulery.errors import InvalidValueError
from joulery.governor.journal import Intent
from joulery.hardware.device import Capability, ClockLock, PowerLimit, PowerLimitRange, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.governor.journal import LeaseJournal
    from joulery.hardware.device import Device

KNOBS = {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}
# Drivers count milliwatts.
_SAME_WATTS = 5e-4
# Some boards keep whole watts, which only reading back can tell.
_ROUNDING_WATTS = 1.0


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a holder asks for; None leaves that knob as it was found."""

    watts: float | None = None
    hertz: float | None = None


def governable_devices() -> dict[str, Device]:
    """The devices of this machine that have a knob, by id."""
    from joulery.hardware import discover

    # No environment: node meters are of no use here, and asking one may take seconds.
    found = discover(environ={})
    return {each.info.id: each for each in found if each.capabilities & KNOBS}


@dataclass(slots=True, eq=False)
class GovernedDevice:
    """The only place that writes a knob.

    A value that somebody else set becomes the new baseline: it is neither fought nor exceeded, and
    it is what stays in the end.

    Attributes:
        device: The hardware.
        journal: Claimed while the board is held, and told before each write.
        on_foreign: Called with ``expected_watts``, and ``found_watts`` instead.
        capped: Whether what is in force when the board is first held is a ceiling.
        held: Whether there is something to give back.
        overridden: Whether somebody else has set the limit since we did.
        baseline_watts: The limit to give back.
        hertz: The clock that we pin.
        pinned_hertz: The clock that the administrator keeps pinned, which drivers do not tell.
    """

    device: Device
    journal: LeaseJournal
    on_foreign: Callable[..., object] = lambda **_: None
    capped: bool = True
    held: bool = False
    overridden: bool = False
    baseline_watts: float | None = None
    hertz: float | None = None
    pinned_hertz: float | None = None
    _limits: PowerLimitRange | None = None
    _expected: tuple[float, ...] = ()
    _unconfirmed: float | None = None
    _dirty: bool = False

    @property
    def ceiling_watts(self) -> float | None:
        """The highest limit that may be asked for; None where there is no limit to set."""
        if self._limits is None or self.capped:
            return self.baseline_watts
        return self._limits.max_watts

    def state(self) -> dict[str, float | None]:
        """What was last seen in force, and what will be given back."""
        return {
            "watts": None if self._limits is None else self._limits.current_watts,
            "hertz": self.hertz,
            "baseline_watts": self.baseline_watts,
            "ceiling_watts": self.ceiling_watts,
            "foreign_change": self.overridden,
        }

    def begin(self) -> None:
        """Take the board; what is in force is the ceiling, or what a holder that died had found."""
        self.journal.claim()
        try:
            left = self.journal.left()
            if left is None:
                self.baseline_watts = self.look()
                self._expected = () if self.baseline_watts is None else (self.baseline_watts,)
            else:
                self._dirty, self.baseline_watts = True, left.baseline_watts
                self.hertz, self.pinned_hertz = left.hertz, left.pinned_hertz
                if left.baseline_watts is not None:
                    self._expected = (left.baseline_watts, *left.expected_watts)
                    self._unconfirmed = self._expected[-1]
        except BaseException:
            self.journal.disclaim()
            raise
        self.held = True

    def look(self) -> float | None:
        """The limit in force, in watts; notices when somebody else has set it."""
        if Capability.POWER_LIMIT not in self.device.capabilities:
            return None
        self._limits = None  # unknown, should the driver fail or hang
        self._limits = cast("PowerLimit", self.device).power_limits()
        current = self._limits.current_watts
        if self.held and self.baseline_watts is not None and not self._is_ours(current):
            expected = self._expected[-1]
            self.baseline_watts, self.overridden = current, True
            self._expected, self._unconfirmed = (current,), None
            self.on_foreign(expected_watts=expected, found_watts=current)
        return current

    def check(self, wish: LeaseRequest) -> None:
        """Refuse what the board lacks or what is above the ceiling, as last seen."""
        if wish.watts is not None:
            require(self.device, Capability.POWER_LIMIT)
            least = self._limits.min_watts if self._limits else 0.0
            self._check_range("power limit", wish.watts, least, self.ceiling_watts or 0.0, "W")
        if wish.hertz is not None:
            require(self.device, Capability.CLOCK_LOCK)
            clocks = [hertz / 1e6 for hertz in cast("ClockLock", self.device).supported_clocks()]
            most = clocks[-1] if self.pinned_hertz is None else self.pinned_hertz / 1e6
            self._check_range("clock", wish.hertz / 1e6, clocks[0], min(most, clocks[-1]), "MHz")

    def _check_range(self, what: str, value: float, least: float, most: float, unit: str) -> None:
        if not least <= value <= most:
            raise InvalidValueError(
                f"{what} {value:g} {unit} is outside what {self.device.info.name} may get",
                remedy=f"give {least:g} {unit} to {most:g} {unit}, the cap found in force",
            )

    def apply(self, wish: LeaseRequest) -> None:
        """Bring the knobs from what was last seen to ``wish``, never above the ceiling."""
        if self.baseline_watts is not None and self._limits is not None:
            target = self.baseline_watts if wish.watts is None else wish.watts
            if self.capped:
                target = min(target, self.baseline_watts)
            if abs(target - self._limits.current_watts) > _SAME_WATTS:
                self._write_watts(self._limits.current_watts, target)
            self.overridden = False
        if wish.hertz != self.hertz:
            self._write_hertz(wish.hertz)

    def finish(self) -> None:
        """Give back the values found; until that worked the board stays held."""
        self.look()
        self.apply(LeaseRequest())
        if self._dirty:
            self.journal.done()
        self.held = self._dirty = self.overridden = False
        self.baseline_watts = None
        self.journal.disclaim()

    def _is_ours(self, watts: float) -> bool:
        if self._unconfirmed is not None and abs(watts - self._unconfirmed) <= _ROUNDING_WATTS:
            return True
        return any(abs(watts - value) <= _SAME_WATTS for value in self._expected)

    def _write_watts(self, found: float, target: float) -> None:
        if target != self.baseline_watts:
            self._intend((found, target), self.hertz)
        self._expected, self._unconfirmed = (found, target), target
        knob = cast("PowerLimit", self.device)
        knob.set_power_limit(target)
        self._limits = knob.power_limits()
        self._expected, self._unconfirmed = (self._limits.current_watts,), None

    def _write_hertz(self, hertz: float | None) -> None:
        knob = cast("ClockLock", self.device)
        if hertz is not None:
            self._intend(self._expected, hertz)
            # Set before the call: should it fail half way, the clock still counts as ours.
            self.hertz = hertz
        target = self.pinned_hertz if hertz is None else hertz
        if target is None:
            knob.unlock_clock()
        else:
            knob.lock_clock(target)
        self.hertz = hertz

    def _intend(self, expected_watts: tuple[float, ...], hertz: float | None) -> None:
        """Note a change away from the baseline.

        The way back needs no note of its own, since the last one tells the baseline: so a full
        disk can keep nobody from giving back.
        """
        intent = Intent(self.baseline_watts, expected_watts, self.pinned_hertz, hertz)
        self.journal.intend(intent)
        self._dirty = True
