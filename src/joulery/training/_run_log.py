"""A run in the store, recurring or not: figures while it runs, curves and totals at its end.

Nothing is written unless a store or server is named. Only the first rank writes.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from joulery.background import PeriodicTask
from joulery.clock import VirtualClock
from joulery.errors import StoreError
from joulery.hardware import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.jobs import LiveState, RunCurve, RunDevice, RunEntry
    from joulery.metering import Measurement
    from joulery.training._config import DecisionService
    from joulery.training._live import LiveReader

_log = logging.getLogger("joulery")

STORE_VARIABLE = "JOULERY_STORE"
TEAM_VARIABLE = "JOULERY_TEAM"
TAGS_VARIABLE = "JOULERY_TAGS"
OUTER_VARIABLE = "JOULERY_OUTER_RUN"
"""Key of the run that measures this process too, and the ids of its devices, separated by blanks"""
_FIRST_SECONDS = 1.0  # between the first samples (by hand: a run of a minute has a curve)
_SIMULATED_SECONDS = 10.0  # the same on a virtual clock, where they cost more than the run
_MOST_SAMPLES = 240  # by hand: as many as a chart shows; half of them after each thinning
_PUT_SECONDS = 60.0  # between two reports of a run under way (by hand: as heartbeats are stored)
_FIRST_PUT_SECONDS = 10.0  # by hand: shorter runs report once, at their end


@dataclass(frozen=True, slots=True)
class RunState:
    """Facts about a run that its meter does not know.

    Attributes:
        steps: Number of training steps.
        phase: Phase of tuning, in words.
        setting: Setting that is held, in words.
        objective: Objective of tuning, as text; empty for none.
        energy_saving: Share of the energy that tuning saves; NaN where unknown.
        slowdown: Share of the time that the saving costs; NaN where unknown.
        decision: Id of the decision that is run; empty for none.
        tags: Tags besides those of the environment.
    """

    steps: int = 0
    phase: str = ""
    setting: str = ""
    objective: str = ""
    energy_saving: float = math.nan
    slowdown: float = math.nan
    decision: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


class RunMeter(Protocol):
    """Measurement of a run under way, as ``JobEnergy`` has it."""

    @property
    def clock(self) -> Clock:
        """Clock of the measurement."""
        ...

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices that are measured; none before it has begun."""
        ...

    def measure_here(self) -> Measurement | None:
        """Measurement until now; None before it has begun and after its end."""
        ...


class RunLog:
    """Reports one run to a store or server, in the background; failures are logged once.

    Args:
        name: Name of the run; the name of the program unless given.
        kind: Reporter, for people.
        service: Store or server that the run is reported to.
        meter: Meter of the run.
        state: Function that states what the meter does not know.
        environ: Environment variables; those of this process unless given.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        service: DecisionService,
        meter: RunMeter,
        state: Callable[[], RunState] = RunState,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._name = name or Path(sys.argv[0] or "python").stem
        self._kind, self._service = kind, service
        self._clock, self._meter, self._state = meter.clock, meter, state
        self._simulated = isinstance(self._clock, VirtualClock)
        self._tags = _read_tags(environ.get(TAGS_VARIABLE, ""))
        self._outer = environ.get(OUTER_VARIABLE, "")
        store, team = environ.get(STORE_VARIABLE, ""), environ.get(TEAM_VARIABLE, "")
        if (str(service.location or store), service.team or team) != (store, team):
            self._outer = ""  # the outer run is in another store
        self._key = uuid.uuid4().hex
        self._task: PeriodicTask | None = None
        self._reader: LiveReader | None = None
        self._samples: list[LiveState] = []
        self._metrics: list[tuple[float, float]] = []
        self._period = _SIMULATED_SECONDS if self._simulated else _FIRST_SECONDS
        self._put_at = self._clock.now() + _FIRST_PUT_SECONDS
        self._failed = False

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell a program, whose runs this one measures too, not to count twice."""
        return {OUTER_VARIABLE: " ".join([self._key, *_ids(self._meter.devices)])}

    def _part_of(self) -> str:
        """Key of the run around this one; empty for none, or where that lacks one of the boards."""
        key, *devices = self._outer.split() or [""]
        boards = (device for device in self._meter.devices if device.info.kind == DeviceKind.GPU)
        return key if set(_ids(boards)) <= set(devices) else ""

    def start(self) -> None:
        """Begin to sample; may be called twice."""
        if self._task is None:
            self._task = PeriodicTask(
                self._tick, seconds=self._period, clock=self._clock, name="joulery-run-log"
            )
            self._task.start()

    def note_metric(self, metric: float) -> None:
        """Add a point of the validation metric."""
        measured = self._meter.measure_here()
        if measured is not None and math.isfinite(metric):
            self._metrics.append((measured.seconds, metric))

    def freeze(self) -> None:
        """Keep the present state for the end, before the setting is given back."""
        try:
            state = self._state()
        except Exception as error:  # noqa: BLE001 - the end of a training matters more
            _log.debug("joulery: no last state of this run: %r", error)
            state = RunState()
        self._state = lambda: state

    def end(self, total: Measurement) -> None:
        """Report the run as ended, if it was begun."""
        if self._task is None:
            return
        self._task.stop(timeout_seconds=0.0)
        if self._reader is not None:
            self._reader.close()
        self._put(total, ended=True)

    def _tick(self) -> float:
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001 - training continues without a curve
            _log.debug("joulery: no sample of this run: %r", error)
        return self._period

    def _sample(self) -> None:
        measured = self._meter.measure_here()
        if measured is None:
            return
        state = self._state()
        if self._reader is None:
            from joulery.training._live import LiveReader

            self._reader = LiveReader(self._meter.devices, self._clock, measured, state.steps)
            return
        self._samples.append(
            self._reader.read(measured, state.steps, measured.seconds, state.phase)
        )
        if len(self._samples) > _MOST_SAMPLES:
            del self._samples[1::2]  # every other one, so that the whole run stays in view
            self._period *= 2
        # Nobody watches a simulation while it runs.
        if self._clock.now() >= self._put_at and not self._simulated:
            self._put_at = self._clock.now() + _PUT_SECONDS
            self._put(measured, ended=False)

    def _put(self, measured: Measurement, *, ended: bool) -> None:
        from joulery.client import put_run

        service = self._service
        try:
            entry = self._entry(measured, ended=ended)
            put_run(entry, service.location, service.team, service.token, clock=self._clock)
        except StoreError as error:
            if ended:
                _log.warning("joulery: this run is stored later, by another run: %s", error)
        except Exception as error:  # noqa: BLE001 - training matters more
            if not self._failed:
                _log.warning("joulery: the run is not in the store: %s", error)
            self._failed = True

    def _entry(self, measured: Measurement, *, ended: bool) -> RunEntry:
        from joulery.jobs import RunEntry

        state, started = self._state(), measured.started_at_wall
        if math.isnan(started):
            started = self._clock.wall() - measured.seconds
        return RunEntry(
            key=self._key,
            name=self._name[:200],
            started_wall_seconds=started,
            seconds=measured.seconds,
            joules=_known(measured.joules),
            ended=ended,
            kind=self._kind,
            host=platform.node(),
            origin=measured.provenance.origin.value,
            relative_error=_known(measured.relative_error),
            steps=state.steps,
            setting=state.setting[:200],
            objective=state.objective[:200],
            energy_saving=_known(state.energy_saving),
            slowdown=_known(state.slowdown),
            decision=state.decision,
            part_of=self._part_of(),
            devices=tuple(self._device_figures(measured)),
            tags={**state.tags, **self._tags},
            curves=self._curves(),
        )

    def _device_figures(self, measured: Measurement) -> Iterator[RunDevice]:
        from joulery.jobs import RunDevice
        from joulery.training._live import unique_names

        limits = {}
        if self._samples:
            limits = {device.name: device.limit_watts for device in self._samples[-1].devices}
        names = unique_names(self._meter.devices)
        for device in measured.counted[:64]:
            name = names.get(device.info.id, device.info.id)
            yield RunDevice(
                name,
                _known(device.joules),
                _known(device.peak_watts),
                limits.get(name),
                device.provenance.origin.value,
                _known(device.relative_error),
            )

    def _curves(self) -> tuple[RunCurve, ...]:
        from joulery.jobs import RunCurve, thinned

        lines: dict[tuple[Any, str], list[tuple[float, float]]] = {}
        for sample in self._samples:
            figures: list[tuple[Any, str, float | None]] = [
                ("steps_per_second", "", sample.steps_per_second or None)
            ]
            for device in sample.devices:
                figures += [
                    (quantity, device.name, getattr(device, quantity))
                    for quantity in ("watts", "limit_watts", "clock_hertz")
                ]
            for quantity, name, figure in figures:
                if figure is not None:
                    point = round(sample.seconds, 3), round(figure, 3)
                    lines.setdefault((quantity, name), []).append(point)
        lines["metric", ""] = self._metrics
        return thinned(
            [RunCurve(*key, tuple(points)) for key, points in lines.items() if len(points) > 1]
        )


def _ids(devices: Iterable[Device]) -> list[str]:
    """Ids without the blanks that separate them."""
    return ["".join(device.info.id.split()) for device in devices]


def logs_runs(location: object, environ: Mapping[str, str] | None = None) -> bool:
    """Whether runs are to be stored: a store is named, and this is the first rank."""
    environ = os.environ if environ is None else environ
    first = environ.get("RANK", "0") == "0"
    return first and bool(location or environ.get(STORE_VARIABLE))


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _read_tags(text: str) -> dict[str, str]:
    """Tags of ``name=value,…``; a name alone has an empty value."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip()[:200]: value.strip()[:200] for name, _, value in pairs}
