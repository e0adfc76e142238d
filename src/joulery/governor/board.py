"""One governed device: the values found, the ceiling, and how they come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from joulery.errors import InvalidValueError, NotPossibleHereError
from joulery.governor.journal import HERTZ, WATTS, Intent
from joulery.hardware.device import Capability, ClockLock, PowerLimit, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from joulery.governor.journal import Journal
    from joulery.hardware.device import Device

_KNOBS = {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}
# Drivers count milliwatts.
_SAME_WATTS = 5e-4
# Some boards keep whole watts, which only reading back can tell.
_ROUNDING_WATTS = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a holder asks for; None leaves that knob as it was found."""

    watts: float | None = None
    hertz: float | None = None


def governable_devices() -> dict[str, Device]:
    """The devices of this machine that have a knob, by id."""
    from joulery.hardware import discover

    # No environment: node meters are of no use here, and asking one may take seconds.
    found = discover(environ={})
    return {each.info.id: each for each in found if each.capabilities & _KNOBS}


class Claim(Protocol):
    """Keeps every other process on this machine from governing a device."""

    def take(self) -> None:
        """Claim it, or raise :class:`NotPossibleHereError`."""
        ...

    def give(self) -> None:
        """Let it go."""
        ...


class Board:
    """The only place that writes a knob.

    A value that somebody else set becomes the new baseline: it is neither fought nor exceeded, and
    it is what stays in the end.

    Args:
        device: The hardware.
        journal: Told before each write.
        claim: Taken while the board is held.
        on_foreign: Called with what was expected and what was found instead, in watts.
        capped: Whether what is in force when the board is first held is a ceiling.
    """

    def __init__(
        self,
        device: Device,
        journal: Journal,
        claim: Claim | None = None,
        on_foreign: Callable[[float, float], None] | None = None,
        *,
        capped: bool = True,
    ) -> None:
        self.device = device
        self.held = False
        self.overridden = False
        self.baseline_watts: float | None = None
        self.hertz: float | None = None
        # The clock that the administrator keeps pinned, which drivers do not tell.
        self.pinned_hertz: float | None = None
        self._journal = journal
        self._claim = claim
        self._on_foreign = on_foreign
        self._expected: tuple[float, ...] = ()
        self._unconfirmed: float | None = None
        self._dirty = False
        self._capped = capped

    @property
    def ceiling_watts(self) -> float | None:
        """The highest limit that may be asked for; None where there is no limit to set."""
        if not self.has_limit:
            return None
        limits = cast("PowerLimit", self.device).power_limits()
        if not self._capped:
            return limits.max_watts
        return limits.current_watts if self.baseline_watts is None else self.baseline_watts

    @property
    def has_limit(self) -> bool:
        """Whether there is a power limit to set."""
        return Capability.POWER_LIMIT in self.device.capabilities

    def begin(self) -> None:
        """Note what is in force; from here on it is the ceiling."""
        if self.held:
            raise NotPossibleHereError(
                f"{self.device.info.name} is still to be given back", remedy="try again later"
            )
        if self._claim is not None:
            self._claim.take()
        try:
            if self.has_limit:
                self.baseline_watts = self.current_watts()
                self._expected = (self.baseline_watts,)
        except BaseException:
            self._release_claim()
            raise
        self.held = True

    def adopt(self, intents: Iterable[Intent]) -> None:
        """Take over what a holder that died left behind; :meth:`finish` gives it back."""
        for intent in intents:
            if intent.knob == WATTS and intent.baseline is not None:
                self.baseline_watts = intent.baseline
                known = (intent.baseline, intent.found, intent.target)
                self._expected = tuple(value for value in known if value is not None)
                self._unconfirmed = intent.target
            elif intent.knob == HERTZ:
                self.hertz, self.pinned_hertz = intent.target, intent.baseline
        self.held = self._dirty = True

    def check(self, wish: Wish) -> None:
        """Refuse what the board lacks or what is above the ceiling."""
        if wish.watts is not None:
            require(self.device, Capability.POWER_LIMIT)
            least = cast("PowerLimit", self.device).power_limits().min_watts
            most = self.ceiling_watts
            if most is None or not least <= wish.watts <= most:
                raise InvalidValueError(
                    f"power limit {wish.watts:g} W is outside what {self.device.info.name} may get",
                    remedy=f"give {least:g} W to {most:g} W, the cap found in force",
                )
        if wish.hertz is not None:
            require(self.device, Capability.CLOCK_LOCK)
            clocks = cast("ClockLock", self.device).supported_clocks()
            fastest = min(clocks[-1], self.pinned_hertz or clocks[-1])
            if not clocks[0] <= wish.hertz <= fastest:
                raise InvalidValueError(
                    f"clock {wish.hertz / 1e6:g} MHz is outside what {self.device.info.name} "
                    "may get",
                    remedy=f"give {clocks[0] / 1e6:g} to {fastest / 1e6:g} MHz",
                )

    def apply(self, wish: Wish) -> None:
        """Bring the knobs to ``wish``, never above the ceiling."""
        if self.baseline_watts is not None:
            found = self.look()
            target = self.baseline_watts if wish.watts is None else wish.watts
            if self._capped:
                target = min(target, self.baseline_watts)
            if abs(target - found) > _SAME_WATTS:
                self._write_watts(found, target)
            self.overridden = False
        if wish.hertz != self.hertz:
            self._write_hertz(wish.hertz)

    def finish(self) -> None:
        """Give back the values found; until that worked the board stays held."""
        self.apply(Wish())
        if self._dirty:
            self._journal.done(self.device.info.id)
        self.held = self._dirty = self.overridden = False
        self.baseline_watts = None
        self._release_claim()

    def look(self) -> float:
        """The limit in force, in watts; notices when somebody else has set it."""
        current = self.current_watts()
        if self.held and not self._is_ours(current):
            expected = self._expected[-1]
            self.baseline_watts, self.overridden = current, True
            self._expected, self._unconfirmed = (current,), None
            if self._on_foreign is not None:
                self._on_foreign(expected, current)
        return current

    def current_watts(self) -> float:
        """The limit in force, in watts."""
        return cast("PowerLimit", self.device).power_limits().current_watts

    def _is_ours(self, watts: float) -> bool:
        if self._unconfirmed is not None and abs(watts - self._unconfirmed) <= _ROUNDING_WATTS:
            return True
        return any(abs(watts - value) <= _SAME_WATTS for value in self._expected)

    def _write_watts(self, found: float, target: float) -> None:
        if target != self.baseline_watts:
            self._intend(WATTS, self.baseline_watts, found, target)
        self._expected, self._unconfirmed = (found, target), target
        cast("PowerLimit", self.device).set_power_limit(target)
        self._expected, self._unconfirmed = (self.current_watts(),), None

    def _write_hertz(self, hertz: float | None) -> None:
        pinned = self.pinned_hertz
        target = pinned if hertz is None else hertz
        knob = cast("ClockLock", self.device)
        if hertz is not None:
            self._intend(HERTZ, pinned, self.hertz, target)
        # Set before the call: should it fail half way, the clock still counts as ours.
        self.hertz = hertz if hertz is not None else self.hertz
        if target is None:
            knob.unlock_clock()
        else:
            knob.lock_clock(target)
        self.hertz = hertz

    def _intend(
        self, knob: str, baseline: float | None, found: float | None, target: float | None
    ) -> None:
        """Note a change away from the baseline.

        The way back needs no note of its own, since the last one tells the baseline: so a full
        disk can keep nobody from giving back.
        """
        self._journal.intend(Intent(self.device.info.id, knob, baseline, found, target))
        self._dirty = True

    def _release_claim(self) -> None:
        if self._claim is not None:
            self._claim.give()
