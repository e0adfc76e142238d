"""Energy of a job over all its processes and nodes, each device counted once.

Every process measures the accelerators that it sees, and the first of a node its CPUs and memory.
Where the ranks of a job share a key-value store, as those of torch.distributed do, each leaves its
figures there, and rank 0 adds them up by node and device. Nothing waits for a rank that is gone.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joulery.background import DriverThread, PeriodicTask
from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import InvalidValueError, JouleryError
from joulery.frontier import Origin, Provenance
from joulery.hardware import DeviceKind
from joulery.metering import Measurement, Meter
from joulery.units import finite, grams_co2, kilowatt_hours

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.metering import DeviceMeasurement, Window
    from joulery.power import ProcessGroup, TuningResult
    from joulery.training._callbacks import Sink
    from joulery.training._config import RunEnvironment

_log = logging.getLogger("joulery")

NODE_VARIABLE = "JOULERY_NODE"
GRID_VARIABLE = "JOULERY_GRID"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHARE_SECONDS = 1.0  # by hand: between two figures that a rank leaves for rank 0
# Longest waits of rank 0 for the other ranks, by hand. In synchronous training ranks are
# milliseconds apart at a log entry, and a second or two at the end.
_LOG_SECONDS, _END_SECONDS = 1.0, 5.0
_OLDEST_SECONDS = 2.0  # by hand: a rank that is silent for longer is taken to have ended
_FOLLOWING = sys.maxsize  # log entries of a rank that makes none and is not waited for
_SHORTEST_SECONDS = 0.5  # by hand: several refreshes of a counter; less says nothing of the power
_POLL_SECONDS = 0.005  # by hand: between two looks while waiting
_LARGEST_SAVING_ERROR = 0.05  # by hand: savings are said to whole per cents
_STORE_ERRORS = (RuntimeError, ValueError, OSError, EOFError, pickle.UnpicklingError)


class Sums(NamedTuple):
    """Energy of a training until a checkpoint, all its parts together, of plain JSON values.

    Attributes:
        joules: Energy of all devices of the job.
        standard_error_joules: One sigma of it.
        seconds: Time that was measured.
        provenance: Origin of the joules.
    """

    joules: float = 0.0
    standard_error_joules: float = 0.0
    seconds: float = 0.0
    provenance: str = Origin.MEASURED.value

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Sums:
        """Sums in the state of a run or a callback.

        Raises:
            InvalidValueError: They are no such numbers.
        """
        names = cls._fields[:3]
        joules, error, seconds = (finite(state[name], name, minimum=0.0) for name in names)
        origin = Provenance(state.get("provenance", Origin.MEASURED)).origin
        return cls(joules, error, seconds, origin.value)

    def plus(self, measured: Measurement) -> Sums:
        """The sums after another part, whose joules are known."""
        parts = self._provenance, measured.provenance
        error = measured.joules * (measured.relative_error or 0.0)
        return Sums(
            self.joules + measured.joules,
            # Faults of one sensor do not average out over the parts of a training.
            self.standard_error_joules + error,
            self.seconds + measured.seconds,
            Provenance.combined((part, 0.0) for part in parts).origin.value,
        )

    @property
    def _provenance(self) -> Provenance:
        error = self.standard_error_joules / self.joules if self.joules else None
        return Provenance(Origin(self.provenance), relative_error=error)

    def added_to(self, device: DeviceMeasurement) -> DeviceMeasurement:
        """The measurement of a device, with these joules on top."""
        parts = (device.provenance, device.joules), (self._provenance, self.joules)
        return replace(
            device,
            joules=device.joules + self.joules,
            standard_error_joules=device.standard_error_joules + self.standard_error_joules,
            systematic_error_joules=device.systematic_error_joules + self.standard_error_joules,
            provenance=Provenance.combined(parts),
        )


@dataclass(frozen=True, slots=True, repr=False)
class JobMeasurement(Measurement):
    """Energy and power of all devices of a job, each counted once per node.

    Attributes:
        nodes: Number of nodes that are measured.
        before: Energy before the checkpoint that the job was continued from; in the total and the
            seconds, not in the devices.
    """

    nodes: int = 1
    before: Sums = field(default_factory=Sums)

    def continued_from(self, before: Sums) -> JobMeasurement:
        """The measurement of the whole training, of which this is the last part."""
        return replace(self, seconds=self.seconds + before.seconds, before=before)

    @property
    def counted(self) -> tuple[Any, ...]:
        """The devices that make up the total: all, since parts were left out node by node.

        What was used before a checkpoint is counted with the first that is known.
        """
        devices = list(self.devices)
        known = (n for n, device in enumerate(devices) if not math.isnan(device.joules))
        first = next(known, None)
        if self.before.joules and first is not None:
            devices[first] = self.before.added_to(devices[first])
        return tuple(devices)

    def rows(self) -> list[dict[str, Any]]:
        """A row per device: its joules, mean watts and their source, since the checkpoint."""
        return Measurement.rows(replace(self, seconds=self.seconds - self.before.seconds))

    @property
    def boards(self) -> int:
        """Number of accelerators that are measured."""
        return sum(device.info.kind is DeviceKind.GPU for device in self.devices)

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the job; unknown is null."""
        return {**Measurement.to_dict(self), "boards": self.boards, "nodes": self.nodes}

    def __str__(self) -> str:
        parts = [f"{self.boards} GPU{'s' * (self.boards != 1)}"] if self.boards else []
        parts += ["CPU"] if len(self.devices) > self.boards else []
        nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        devices = f", {' and '.join(parts)}{nodes}" if parts else ""
        text = f"{Measurement.__str__(self)}{devices}"
        faults = [flag for flag in sorted(self.flags) if flag not in text]
        return f"{text}, {', '.join(faults)}" if faults else text


class RankFigures(NamedTuple):
    """The figures that one rank leaves for rank 0.

    Attributes:
        node: Name of its node.
        measured: Measurement of its devices.
        entry: Number of its log entries; infinite once it has ended.
        wall_seconds: Unix time of the measurement.
    """

    node: str
    measured: Measurement
    entry: float
    wall_seconds: float

    def at(self, wall_seconds: float) -> RankFigures:
        """The figures at a time a moment later, at the mean power until then."""
        late = min(wall_seconds - self.wall_seconds, _OLDEST_SECONDS)
        seconds = self.measured.seconds
        if late <= 0 or not seconds > 0 or self.entry == math.inf:
            return self
        factor = 1.0 + late / seconds
        devices = tuple(
            replace(
                device,
                joules=factor * device.joules,
                standard_error_joules=factor * device.standard_error_joules,
            )
            for device in self.measured.devices
        )
        measured = replace(self.measured, seconds=factor * seconds, devices=devices)
        return self._replace(measured=measured, wall_seconds=wall_seconds)


def merged(ranks: Sequence[RankFigures]) -> JobMeasurement:
    """The measurement of a job: each device of a node once, whichever ranks see it."""
    devices: dict[tuple[str, str], Any] = {}
    metered_nodes = {figures.node for figures in ranks if _has_node_meter(figures.measured)}
    for figures in ranks:
        for device in figures.measured.counted:
            if figures.node in metered_nodes and device.info.kind is not DeviceKind.NODE:
                continue
            key = figures.node, device.info.id
            if key not in devices or math.isnan(devices[key].joules):
                devices[key] = device
    first = ranks[0].measured
    return JobMeasurement(
        first.name,
        max(figures.measured.seconds for figures in ranks),
        tuple(devices.values()),
        first.peak_watts if len(ranks) == 1 else math.nan,
        first.started_at_wall,
        first.events,
        len({figures.node for figures in ranks}),
    )


def _has_node_meter(measured: Measurement) -> bool:
    return any(device.info.kind is DeviceKind.NODE for device in measured.counted)


class RankStore:
    """The key-value store of torch.distributed, where ranks leave their figures.

    A rank that is gone, or does not take part, costs one bounded wait and no more.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        self._store = store
        self._latest: dict[int, RankFigures] = {}
        self._late: set[int] = set()
        self._size = size

    @classmethod
    def find(cls) -> RankStore | None:
        """The store of this job's ranks; None where there is none, or a single rank."""
        distributed: Any = sys.modules.get("torch.distributed")
        try:
            if distributed is None or not distributed.is_available():
                return None
            if not distributed.is_initialized() or distributed.get_world_size() < 2:
                return None
            # Collectives would wait for every rank; the store, which has no public name, does not.
            store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
            store = distributed.PrefixStore("joulery-energy", store)
            return cls(store, distributed.get_rank(), distributed.get_world_size())
        except (AttributeError, *_STORE_ERRORS) as error:
            _log.debug("joulery: ranks cannot share their figures: %r", error)
            return None

    def leave(self, figures: RankFigures) -> None:
        """Leave the figures of this rank in place of earlier ones."""
        self._store.set(f"rank/{self.rank}", pickle.dumps(figures))

    def collect(self, figures_here: RankFigures, wait_seconds: float) -> list[RankFigures]:
        """Latest figures of all ranks that were heard of, this one first.

        Args:
            figures_here: Figures of this rank.
            wait_seconds: Longest wait for ranks that have not come as far as this one.
        """
        began = REAL_CLOCK.now()
        for rank in range(self._size):
            if rank != self.rank:
                self._await(rank, figures_here.entry, began, wait_seconds)
        return [
            figures_here,
            *(self._latest[rank].at(figures_here.wall_seconds) for rank in sorted(self._latest)),
        ]

    def _await(self, rank: int, entry: float, began: float, wait_seconds: float) -> None:
        """Read the figures of a rank, once it has come as far as an entry.

        One that did not keep up before is not waited for, except at the end: what it used since
        then is in its next figures, which come within a moment wherever it is.
        """
        self._read(rank)
        figures = self._latest.get(rank)
        if figures is None:
            return
        late = rank in self._late or figures.entry == _FOLLOWING
        earlier_seconds = figures.wall_seconds
        if late:
            wait_seconds = min(wait_seconds, _OLDEST_SECONDS) if entry == math.inf else 0.0
        while figures.entry < entry and REAL_CLOCK.now() < began + wait_seconds:
            if late and figures.wall_seconds != earlier_seconds:
                break
            REAL_CLOCK.sleep(_POLL_SECONDS)
            self._read(rank)
            figures = self._latest[rank]
        (self._late.add if figures.entry < entry else self._late.discard)(rank)

    def _read(self, rank: int) -> None:
        key = f"rank/{rank}"
        if self._store.check([key]):
            self._latest[rank] = pickle.loads(self._store.get(key))  # noqa: S301 - of the same job

    def leave_total(self, total: JobMeasurement, *, ended: bool) -> None:
        """Leave the total for the other ranks."""
        self._store.set("total", pickle.dumps((total, ended)))

    def read_total(self, wait_seconds: float) -> JobMeasurement | None:
        """The latest total of rank 0; the last one, if it comes within a wait."""
        end, total, ended = REAL_CLOCK.now() + wait_seconds, None, False
        while True:
            if self._store.check(["total"]):
                total, ended = pickle.loads(self._store.get("total"))  # noqa: S301 - as above
            if ended or REAL_CLOCK.now() >= end:
                return total
            REAL_CLOCK.sleep(_POLL_SECONDS)


class JobEnergy:
    """The energy of a job from ``begin`` to ``end``, as every process of it may ask.

    Args:
        environment: Devices and processes of the job.
        meter: Meter of the devices of this process; one of its own unless given.

    Attributes:
        begun: Whether ``begin`` or ``begin_soon`` was called.
    """

    def __init__(self, environment: RunEnvironment, meter: Meter | None = None) -> None:
        self.begun = False
        self._environment = environment
        self._meter = meter
        self._own_meter = meter is None
        self._driver: DriverThread | None = None
        self._window: Window | None = None
        self._others: list[RankFigures] = []  # of a process group, at its last gathering
        self._total: JobMeasurement | None = None  # once ended
        self._store: RankStore | None = None
        self._task: PeriodicTask | None = None
        self._entries = 0
        self._before = 0, 0.0, 0.0, 0  # devices, joules, seconds and steps at the last known power
        self._most_joules = 0.0  # of all figures: a late correction must not make a total fall

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def __str__(self) -> str:
        return str(self._total or self.measure_here() or "not begun")

    @cached_property
    def _node(self) -> str:
        """Name of this node; containers of one machine share its boot id, as they share its CPU."""
        try:
            return self._environment.environ.get(NODE_VARIABLE) or _BOOT_ID.read_text().strip()
        except OSError:
            return os.uname().nodename

    @property
    def ended(self) -> bool:
        """Whether it was measured to the end."""
        return self._total is not None

    def begin(self) -> None:
        """Begin to measure; finds the devices."""
        self.begun = True
        if self._meter is None:
            clock = self._environment.clock
            self._meter = Meter(job_devices(self._environment), clock=clock)
        self._window = self._meter.begin("run")
        if self._environment.processes > 1 and not isinstance(self._meter.clock, VirtualClock):
            self._task = PeriodicTask(self._share, seconds=_SHARE_SECONDS, name="joulery-ranks")
            self._task.start()
        self._share()

    def restart(self) -> None:
        """Count from now on; what was used before is left out."""
        meter, window = self._meter, self._window
        if meter is not None and window is not None:
            self._window = meter.begin("run")
            meter.end(window)

    @property
    def clock(self) -> Clock:
        """Clock of the measurement."""
        return self._environment.clock if self._meter is None else self._meter.clock

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices that this process measures; none before it has begun."""
        return () if self._meter is None else self._meter.devices

    def measure_here(self) -> Measurement | None:
        """Measurement of this process until now; None before it has begun and after its end."""
        window = self._window
        return None if window is None else window.measurement

    def begin_soon(self, wait_seconds: float = 0.0) -> None:
        """Begin to measure in the background: finding devices may take long.

        Args:
            wait_seconds: Longest wait for it; what is used before it has begun does not count.
        """
        self.begun = True
        self._driver = DriverThread(self._environment.clock)
        wait([self._driver.submit(self.begin)], wait_seconds)

    def follow(self) -> None:
        """Measure for rank 0, whose log entries do not wait for this process."""
        self._entries = _FOLLOWING
        self.begin_soon()

    def total(self, wait_seconds: float = 0.0) -> JobMeasurement:
        """The energy of the job until now, as far as ranks have said; any process may ask.

        Args:
            wait_seconds: Longest wait for ranks that have not come as far as this one.
        """
        window = self._window
        if window is None:
            return self._total or JobMeasurement("run", 0.0, ())
        return self._combine(self._figures(window, self._entries), wait_seconds)

    def _figures(self, window: Window, entry: float) -> RankFigures:
        wall_seconds = self._environment.clock.wall()
        return RankFigures(self._node, window.measurement, entry, wall_seconds)

    def gather(self, group: ProcessGroup) -> None:
        """Take over the figures of all ranks, where no store has them; every rank has to call."""
        figures_here = None if self._window is None else self._figures(self._window, self._entries)
        figures = list(group.all_gather(figures_here))
        other_ranks = [*figures[: group.rank], *figures[group.rank + 1 :]]
        self._others = [rank for rank in other_ranks if rank is not None]

    def end(self) -> JobMeasurement:
        """End; the energy of the job."""
        if self._driver is not None:
            self._driver.close(wait_seconds=_LOG_SECONDS)
        if self._task is not None:
            self._task.stop(timeout_seconds=0.0)
        window, self._window = self._window, None
        if window is not None and self._meter is not None:
            self._meter.end(window)
            self._total = self._combine(self._figures(window, math.inf), _END_SECONDS)
            if self._own_meter:
                self._meter.close()
        return self.total()

    def renewed(self) -> JobEnergy:
        """An account of what follows, of the same devices."""
        return JobEnergy(self._environment, None if self._own_meter else self._meter)

    def _combine(self, figures_here: RankFigures, wait_seconds: float) -> JobMeasurement:
        store = self._store = self._store or RankStore.find()
        alone = merged([figures_here, *self._others])
        if store is None:
            return alone
        try:
            store.leave(figures_here)
            if store.rank:
                return (
                    store.read_total(wait_seconds if figures_here.entry == math.inf else 0.0)
                    or alone
                )
            total = merged(store.collect(figures_here, wait_seconds))
            store.leave_total(total, ended=figures_here.entry == math.inf)
        except _STORE_ERRORS as error:
            _log.debug("joulery: other ranks do not answer: %r", error)
            return alone
        return total

    def _share(self) -> None:
        """Leave the figures of this rank for rank 0."""
        window, store = self._window, self._store or RankStore.find()
        if window is None or store is None:
            return
        self._store = store
        try:
            store.leave(self._figures(window, self._entries))
        except _STORE_ERRORS as error:
            _log.debug("joulery: rank 0 is not told the energy of this rank: %r", error)

    def figures(
        self, steps: int, result: TuningResult | None, before: Sums | None = None
    ) -> dict[str, float]:
        """Figures for people, by name; unknown ones are left out.

        Args:
            steps: Number of training steps since the measurement began.
            result: Result of tuning, if there is one.
            before: Energy before a checkpoint.
        """
        self._entries += 1
        total = self.total(_LOG_SECONDS)
        if not total.devices:
            return {}
        self._most_joules = max(self._most_joules, total.joules)
        count, joules, seconds, earlier_steps = self._before
        # Devices of a rank that was not heard of before are no power of this moment.
        is_known = count in (0, len(total.devices))
        since = total.joules - joules if is_known else math.nan
        if is_known and (total.seconds - seconds < _SHORTEST_SECONDS or since < 0):
            since = math.nan  # a part of the next interval
        else:
            self._before = len(total.devices), total.joules, total.seconds, steps
        before = before or Sums()
        joules = before.joules + max(total.joules, self._most_joules)  # NaN where unknown
        error = before.standard_error_joules + total.joules * (total.relative_error or 0.0)
        figures = {
            "joulery/joules": joules,
            "joulery/kwh": kilowatt_hours(joules),
            "joulery/co2_grams": grams_co2(joules, self._grams_per_kwh),
            "joulery/seconds": before.seconds + total.seconds,
            "joulery/relative_error": error / (joules or math.nan),
            "joulery/watts": since / ((total.seconds - seconds) or math.nan),
            "joulery/joules_per_step": since / ((steps - earlier_steps) or math.nan),
            "joulery/boards": float(total.boards),
            "joulery/nodes": float(total.nodes),
            "joulery/measured_share": _measured_share(total),
            "joulery/energy_saving": energy_saving(result),
        }
        return {name: value for name, value in figures.items() if math.isfinite(value)}

    @cached_property
    def _grams_per_kwh(self) -> float:
        """Carbon intensity that the environment names, as a number or a region; NaN for none."""
        text = self._environment.environ.get(GRID_VARIABLE, "")
        try:
            return float(text or "nan")
        except ValueError:
            pass
        from joulery.grid import static_intensity

        try:
            return static_intensity(text).at(0.0)
        except JouleryError as error:
            _log.warning("joulery: no CO2: %s is %r: %s", GRID_VARIABLE, text, error)
            return math.nan


def _measured_share(measured: Measurement) -> float:
    """Part of the joules that was measured, not simulated or estimated; NaN where none is known."""
    measured_joules = sum(
        device.joules for device in measured.counted if device.provenance.origin is Origin.MEASURED
    )
    return measured_joules / (measured.joules or math.nan)


def energy_saving(result: TuningResult | None) -> float:
    """Share of the energy that tuning saves; NaN before it rests on fresh measurements."""
    if result is None or not result.profiling_steps:
        return math.nan
    points = result.chosen.provenance, result.reference.provenance
    if any(point.origin is Origin.PREDICTED for point in points):
        return math.nan
    error = math.hypot(*(1.0 if p.relative_error is None else p.relative_error for p in points))
    return result.energy_saving if error <= _LARGEST_SAVING_ERROR else math.nan


def known_slowdown(result: TuningResult | None) -> float:
    """Share of the time that the saving costs; NaN where either is not known."""
    if result is None or math.isnan(energy_saving(result)) or not result.knows_slowdown:
        return math.nan
    return result.slowdown


def predicted_saving(result: TuningResult | None, total: JobMeasurement) -> float:
    """Joules that a held choice has saved by what an earlier run found; NaN where it is fresh."""
    if result is None or result.profiling_steps or not result.held:
        return math.nan
    boards = (device for device in total.devices if device.info.kind is DeviceKind.GPU)
    share = result.energy_saving
    saved = sum(device.joules for device in boards) * share / (1.0 - share)
    return saved if saved > 0 else math.nan


def job_devices(environment: RunEnvironment) -> list[Device]:
    """Devices that this process measures: all boards that it sees, and the node's from rank 0."""
    from joulery.hardware import discover, visible_devices
    from joulery.metering import local_rank

    if environment.devices is not None:
        return list(environment.devices)
    devices = visible_devices(discover(environment.clock, environ=environment.environ))
    rank = local_rank(environment.environ)
    if rank is None or rank.rank == 0:
        return devices
    return [device for device in devices if device.info.kind is DeviceKind.GPU]


def checked_sinks(sinks: Any) -> list[Sink]:
    """Sinks as a list.

    Raises:
        InvalidValueError: Something among them is not a sink.
    """
    several = isinstance(sinks, list | tuple)
    if not several or any(not callable(getattr(sink, "write", None)) for sink in sinks):
        raise InvalidValueError(
            f"sinks={sinks!r} are not sinks",
            remedy='give a list such as [joulery.integrations.files.FileSink("energy.jsonl")]',
        )
    return list(sinks)


def write_figures(sinks: list[Sink], figures: Mapping[str, float], step: int) -> None:
    """Write figures to all sinks; one that fails is removed from the list."""
    for sink in tuple(sinks):
        try:
            sink.write(figures, step)
        except Exception as error:  # noqa: BLE001 - training continues without it
            sinks.remove(sink)
            _log.warning("joulery: %s gets no figures any more: %s", type(sink).__name__, error)


def close_sinks(sinks: Iterable[Sink]) -> None:
    """Close all sinks; one that fails does not keep the others open."""
    for sink in sinks:
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 - training has ended
            _log.warning("joulery: %s was not closed: %s", type(sink).__name__, error)
