"""Watch a job that reports nothing, and say what its power tells about its steps."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import JouleryError
from joulery.hardware.device import Capability, DeviceKind, PowerMeter
from joulery.units import human, per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from joulery.hardware.device import Device
    from joulery.power.step_period import StepPeriod

_INTERVAL_SECONDS = 0.05
_REMEMBERED_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What the power of one device tells about the steps of its job.

    Attributes:
        device: Its id.
        rhythm: The period found, with its confidence; None when there is none.
    """

    device: str
    rhythm: StepPeriod | None

    @property
    def advice(self) -> str:
        """For people: what is known, and what to do."""
        if self.rhythm is None:
            return (
                f"{self.device}: its power shows no rhythm, so steps cannot be told from outside; "
                "report them through joulery.Run to have the power tuned"
            )
        sure = "sure" if self.rhythm.sure else "not sure"
        return (
            f"{self.device}: steps of about {human(self.rhythm.seconds, 's')}, judging by its "
            f"power ({sure}: {per_cent(self.rhythm.confidence)} of the variation repeats); report "
            "them through joulery.Run to have the power tuned"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        found = self.rhythm
        return {
            "device": self.device,
            "step_seconds": None if found is None else found.seconds,
            "confidence": 0.0 if found is None else found.confidence,
            "advice": self.advice,
        }


class PowerWatch:
    """Samples the power of accelerators in the background, the last two minutes of it.

    Args:
        devices: What to watch; those that are no accelerators or have no sensor are passed over.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._sensors: list[tuple[str, PowerMeter]] = [
            (device.info.id, device)
            for device in devices
            if device.info.kind is DeviceKind.GPU
            and Capability.POWER in device.capabilities
            and isinstance(device, PowerMeter)
        ]
        longest = round(_REMEMBERED_SECONDS / _INTERVAL_SECONDS)
        self._samples: dict[str, deque[float]] = {
            name: deque(maxlen=longest) for name, _ in self._sensors
        }
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._sensors:
            self._thread = threading.Thread(target=self._watch, name="joulery-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def findings(self) -> list[Finding]:
        """What the samples so far tell about each device."""
        from joulery.power.step_period import rhythm

        return [
            Finding(name, rhythm(list(samples), _INTERVAL_SECONDS))
            for name, samples in self._samples.items()
        ]

    def _watch(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECONDS):
            for name, sensor in self._sensors:
                self._samples[name].append(self._sample(name, sensor))

    def _sample(self, name: str, sensor: PowerMeter) -> float:
        try:
            watts = sensor.read_power()
        except JouleryError:
            watts = math.nan
        if math.isfinite(watts):
            return watts
        # Even spacing matters more than one value: repeat the last one.
        samples = self._samples[name]
        return samples[-1] if samples else 0.0
