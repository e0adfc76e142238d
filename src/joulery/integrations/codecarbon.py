"""Names of CodeCarbon (3.3), so that code written for it runs on Joulery.

Change the import and nothing else::

    from joulery.integrations.codecarbon import EmissionsTracker, track_emissions

The CSV file has CodeCarbon's columns. Energy comes from ``joulery.Meter``, carbon from the
intensity that is given or from the built-in yearly means: nothing here uses the network, so
``EmissionsTracker`` takes the place from its arguments or from ``$JOULERY_REGION``. Settings come
from arguments only: ``.codecarbon.config`` and ``CODECARBON_*`` variables are not read.

What is unknown, such as the energy of memory without a meter, is None and an empty cell, not 0.
Models of emulated devices end in ``(simulated)``, and ``codecarbon_version`` says what of the
figures is simulated or assumed.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import logging
import math
import os
import platform
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from joulery import __version__
from joulery.background import PeriodicTask
from joulery.errors import JouleryError
from joulery.files import write_atomic
from joulery.frontier import Origin
from joulery.grid import REGIONS
from joulery.hardware import DeviceKind, TelemetrySource
from joulery.metering import Meter
from joulery.units import JOULES_PER_KILOWATT_HOUR, finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from joulery.hardware import Device
    from joulery.metering import DeviceMeasurement, Measurement, Window

__all__ = [
    "BaseOutput",
    "EmissionsData",
    "EmissionsTracker",
    "FileOutput",
    "LoggerOutput",
    "OfflineEmissionsTracker",
    "OutputMethod",
    "TaskEmissionsData",
    "track_emissions",
    "track_task_emissions",
]

_log = logging.getLogger("joulery")
_D = TypeVar("_D", "Device", "DeviceMeasurement")

# ISO 3166 alpha-3 codes of the regions in the built-in table, and the countries' names.
_COUNTRIES = {
    "AUT": ("AT", "Austria"), "AUS": ("AU", "Australia"), "BEL": ("BE", "Belgium"),
    "BRA": ("BR", "Brazil"), "CAN": ("CA", "Canada"), "CHE": ("CH", "Switzerland"),
    "CHN": ("CN", "China"), "DEU": ("DE", "Germany"), "DNK": ("DK", "Denmark"),
    "ESP": ("ES", "Spain"), "FIN": ("FI", "Finland"), "FRA": ("FR", "France"),
    "GBR": ("GB", "United Kingdom"), "IRL": ("IE", "Ireland"), "IND": ("IN", "India"),
    "ISL": ("IS", "Iceland"), "ITA": ("IT", "Italy"), "JPN": ("JP", "Japan"),
    "KOR": ("KR", "South Korea"), "NLD": ("NL", "Netherlands"), "NOR": ("NO", "Norway"),
    "POL": ("PL", "Poland"), "SWE": ("SE", "Sweden"), "SGP": ("SG", "Singapore"),
    "TWN": ("TW", "Taiwan"), "USA": ("US", "United States"), "ZAF": ("ZA", "South Africa"),
}  # fmt: skip

# Options of CodeCarbon that have no meaning here.
_UNUSED = frozenset(
    {
        "allow_multiple_runs", "api_endpoint", "api_key", "cloud_provider", "cloud_region",
        "co2_signal_api_token", "country_2letter_iso_code", "electricitymaps_api_token",
        "emissions_endpoint", "force_mode_cpu_load",
        "log_level", "logger_preamble", "metadata", "prometheus_url", "rapl_include_dram",
        "rapl_prefer_psys", "region", "save_to_api", "save_to_logfire", "save_to_prometheus",
        "tracking_mode", "wue",
    }
)  # fmt: skip

# Longest wait for a handler that is being called when the tracker stops.
_STOP_SECONDS = 5.0  # by hand

# Columns that add up over time.
_SUMS = ("duration", "emissions", "cpu_energy", "gpu_energy", "ram_energy", "energy_consumed")


@dataclass(slots=True, kw_only=True)
class EmissionsData:
    """A row of CodeCarbon's output: kg of CO2, kWh and watts; None for unknown."""

    timestamp: str
    project_name: str
    run_id: str
    experiment_id: str
    duration: float
    emissions: float | None
    emissions_rate: float | None
    cpu_power: float | None
    gpu_power: float | None
    ram_power: float | None
    cpu_energy: float | None
    gpu_energy: float | None
    ram_energy: float | None
    energy_consumed: float | None
    water_consumed: float = 0.0
    country_name: str | None = None
    country_iso_code: str | None
    region: str | None = None
    cloud_provider: str = ""
    cloud_region: str = ""
    os: str
    python_version: str
    codecarbon_version: str = ""
    cpu_count: float
    cpu_model: str
    gpu_count: float
    gpu_model: str
    longitude: float | None = None
    latitude: float | None = None
    ram_total_size: float | None
    tracking_mode: str = "machine"
    cpu_utilization_percent: float | None = None
    gpu_utilization_percent: float | None = None
    ram_utilization_percent: float | None = None
    ram_used_gb: float | None = None
    on_cloud: str = "N"
    pue: float = 1.0
    wue: float = 0.0

    @property
    def values(self) -> dict[str, Any]:
        """Columns and values."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class TaskEmissionsData(EmissionsData):
    """A row of CodeCarbon's output of tasks."""

    task_name: str

    @property
    def values(self) -> dict[str, Any]:
        """Columns and values, the task's name first."""
        return {"task_name": self.task_name} | asdict(self)


class OutputMethod(str, Enum):  # noqa: UP042 - its text is its value, as theirs
    """Outputs of figures. Only files, loggers and handlers of the caller are written to."""

    CSV = "csv"
    API = "api"
    LOGGER = "logger"
    PROMETHEUS = "prometheus"
    LOGFIRE = "logfire"
    BOAMPS = "boamps"


class BaseOutput:
    """Base class of handlers of figures; every method does nothing."""

    def out(self, total: EmissionsData, delta: EmissionsData) -> None:
        """Take the figures at a flush or the end: all, and those since the last call."""

    def live_out(self, total: EmissionsData, delta: EmissionsData) -> None:
        """Take the figures while the tracker continues."""

    def task_out(self, data: list[TaskEmissionsData], experiment_name: str) -> None:
        """Take the figures of all tasks that have ended."""

    def exit(self) -> None:
        """End."""


class LoggerOutput(BaseOutput):
    """Writes figures to a logger, as JSON."""

    def __init__(self, logger: logging.Logger, severity: int = logging.INFO) -> None:
        self.logger = logger
        self.logging_severity = severity

    def out(self, total: EmissionsData, delta: EmissionsData) -> None:
        """Log the figures."""
        self.logger.log(self.logging_severity, json.dumps(total.values))

    live_out = out


class FileOutput(BaseOutput):
    """Writes a CSV file of runs, and one of tasks."""

    def __init__(
        self,
        output_file_name: str | os.PathLike[str],
        output_dir: str | os.PathLike[str],
        on_csv_write: str = "append",
    ) -> None:
        if on_csv_write not in {"append", "update"}:
            raise ValueError(f"on_csv_write must be 'append' or 'update', not {on_csv_write!r}")
        self._folder = Path(output_dir)
        self._path = self._folder / output_file_name
        self._updates = on_csv_write == "update"

    def out(self, total: EmissionsData, delta: EmissionsData) -> None:
        """Add the row of a run, or replace it."""
        rows: list[dict[str, Any]] = []
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        if self._updates:
            rows = [row for row in rows if row.get("run_id") != total.run_id]
        _write_table(self._path, [*rows, total.values])

    def task_out(self, data: list[TaskEmissionsData], experiment_name: str) -> None:
        """Write the file of tasks anew."""
        name = f"emissions_{experiment_name}_{data[0].run_id}.csv"
        _write_table(self._folder / name, [task.values for task in data])


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[-1]), restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(path, text.getvalue().encode())


class EmissionsTracker:
    """Measures energy between ``start`` and ``stop`` and writes ``emissions.csv``.

    Args:
        project_name: Name in the first columns.
        measure_power_secs: Seconds between two looks at the figures for ``live_out`` and at how
            busy boards are; energy is measured all the time.
        api_call_interval: Number of such looks between two calls of ``live_out``; -1 for none.
        output_dir: Folder of the CSV file.
        output_file: Name of the CSV file.
        output_methods: Outputs of figures, instead of ``save_to_file`` and ``save_to_logger``.
        save_to_file: Whether to write the CSV file.
        save_to_logger: Whether to write to ``logging_logger``.
        logging_logger: Handler for that.
        output_handlers: Handlers of your own.
        on_csv_write: ``append`` a row per run, or ``update`` the row of this run.
        experiment_id: Identifier in the file.
        experiment_name: Part of the name of the file of tasks.
        gpu_ids: Indices of the GPUs that count, as a list or as text, ``0,1``; all unless given.
        country_iso_code: Three or two letters of the country whose yearly mean intensity applies.
        force_carbon_intensity_g_co2e_kwh: Intensity that applies instead.
        force_cpu_power: Watts that are assumed for the CPUs, in place of what is measured.
        force_ram_power: Watts that are assumed for the memory, likewise.
        pue: Power usage effectiveness of the building, which multiplies energy and power.
        unused: Further options of CodeCarbon, which have no meaning here.

    Attributes:
        final_emissions: kg of CO2, once stopped.
        final_emissions_data: The last row, once stopped.

    Raises:
        TypeError: CodeCarbon has no such option.
        InvalidValueError: A forced power is negative or no number.
    """

    def __init__(  # noqa: PLR0913 - as CodeCarbon has them
        self,
        project_name: str = "codecarbon",
        measure_power_secs: float = 15,
        api_call_interval: int = 8,
        *,
        output_dir: str | os.PathLike[str] = ".",
        output_file: str | os.PathLike[str] = "emissions.csv",
        output_methods: Sequence[OutputMethod | str] | None = None,
        save_to_file: bool = True,
        save_to_logger: bool = False,
        logging_logger: BaseOutput | None = None,
        output_handlers: Sequence[BaseOutput] = (),
        on_csv_write: str = "append",
        experiment_id: str = "",
        experiment_name: str = "base",
        gpu_ids: Sequence[int | str] | str | None = None,
        country_iso_code: str | None = None,
        force_carbon_intensity_g_co2e_kwh: float | None = None,
        force_cpu_power: float | None = None,
        force_ram_power: float | None = None,
        pue: float = 1.0,
        **unused: Any,
    ) -> None:
        unknown = set(unused) - _UNUSED
        if unknown:
            raise TypeError(f"no such option of CodeCarbon: {', '.join(sorted(unknown))}")
        self.final_emissions: float | None = None
        self.final_emissions_data: EmissionsData | None = None
        self.force_carbon_intensity_g_co2e_kwh = _valid(force_carbon_intensity_g_co2e_kwh)
        self.run_id = uuid.uuid4()
        self._names = (project_name, experiment_id, experiment_name)
        self._gpu_ids = _indices(gpu_ids)
        self._country = _three_letters(country_iso_code)
        self._pue = pue
        self._forced_watts = _forced(force_cpu_power, force_ram_power)
        self._intensity = self.force_carbon_intensity_g_co2e_kwh
        if self._intensity is None:
            self._intensity = _intensity(country_iso_code)
        self._handlers = list(output_handlers)
        if output_methods is None:
            output_methods = ["csv"] * save_to_file + ["logger"] * save_to_logger
        if OutputMethod.CSV in output_methods:
            self._handlers.append(FileOutput(output_file, output_dir, on_csv_write))
        if OutputMethod.LOGGER in output_methods and logging_logger is not None:
            self._handlers.append(logging_logger)
        self._meter = Meter()
        self._window: Window | None = None
        self._tasks: dict[str, Window] = {}  # open ones
        self._ended_tasks: list[TaskEmissionsData] = []
        self._previous: EmissionsData | None = None  # given to handlers last
        self._look_seconds = measure_power_secs
        self._looks_per_call = api_call_interval
        self._looks = 0
        self._looking: PeriodicTask | None = None
        self._busy = _cpu_ticks()  # at the start
        self._gpu_percents: list[float] = []  # one per look

    def start(self) -> None:
        """Begin to measure, unless begun."""
        if self._window is None:
            self._window = self._meter.begin("run")
            self._busy = _cpu_ticks()
            self._gpu_percents = []
            self._previous, self._looks = None, 1
            self._looking = PeriodicTask(
                self._look, seconds=self._look_seconds, clock=self._meter.clock
            )
            self._looking.start()

    def flush(self) -> float | None:
        """Give the figures to the file and the handlers; kg of CO2, None before start."""
        if self._window is None:
            return None
        return self._give_out(self._data(self._window.measurement)).emissions

    def stop(self) -> float | None:
        """End and give out the figures; kg of CO2, None before the start."""
        for name in list(self._tasks):
            self.stop_task(name)
        if self._window is not None:
            if self._looking is not None:
                self._looking.stop(_STOP_SECONDS)
            self._look()
            window, self._window = self._meter.end(self._window), None
            window.settle()
            self.final_emissions_data = self._give_out(self._data(window.measurement))
            self.final_emissions = self.final_emissions_data.emissions
            self._call_handlers("exit")
            self._meter.close()
        return self.final_emissions

    def start_task(self, task_name: str | None = None) -> None:
        """Begin a task of this name, or of a new one."""
        name = task_name or uuid.uuid4().hex
        self._tasks[name] = self._meter.begin(name)

    def stop_task(self, task_name: str | None = None) -> EmissionsData:
        """End a task, the latest unless named; its figures.

        Raises:
            ValueError: There is no such task.
        """
        name = task_name or next(reversed(self._tasks), "")
        if name not in self._tasks:
            raise ValueError(f"no task {name!r} was started")
        window = self._meter.end(self._tasks.pop(name))
        window.settle()
        data = self._data(window.measurement)
        self._ended_tasks.append(TaskEmissionsData(**asdict(data), task_name=name))
        return data

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _look(self) -> None:
        """Note how busy boards are, and have handlers see the figures, every few calls."""
        window = self._window
        self._gpu_percents += self._busy_percent()
        self._looks += 1
        if window is not None and 0 <= self._looks_per_call <= self._looks:
            self._looks = 0
            data = self._data(window.measurement)
            self._call_handlers("live_out", data, self._since_previous(data))

    def _give_out(self, data: EmissionsData) -> EmissionsData:
        self._call_handlers("out", data, self._since_previous(data))
        if self._ended_tasks:
            self._call_handlers("task_out", self._ended_tasks, self._names[2])
        return data

    def _since_previous(self, data: EmissionsData) -> EmissionsData:
        """Figures since handlers were last called."""
        previous, self._previous = self._previous, data
        if previous is None:
            return data
        added: dict[str, Any] = {
            name: _minus(getattr(data, name), getattr(previous, name)) for name in _SUMS
        }
        rate = _times(added["emissions"], 1 / max(added["duration"] or 0.0, 1e-9))
        return replace(data, **added, emissions_rate=rate)

    def _call_handlers(self, method: str, *args: object) -> None:
        for handler in self._handlers:
            try:
                getattr(handler, method)(*args)
            except Exception as error:  # noqa: BLE001 - a handler must not stop the program
                _log.warning("joulery: %s of %r failed: %s", method, handler, error)

    def _data(self, measured: Measurement) -> EmissionsData:
        parts = {kind: self._kilowatt_hours(measured, kind) for kind in DeviceKind}
        total = parts.pop(DeviceKind.NODE)  # the whole machine, measured
        if not total:
            has_figures = any(device.joules == device.joules for device in measured.devices)
            known = [energy for energy in parts.values() if energy is not None]
            total = sum(known) if has_figures or self._forced_watts else None
        kilograms = _times(total, (self._intensity or 0.0) / 1000)
        kilowatts = 3600 / max(measured.seconds, 1e-9)
        gpus, cpus = self._models(measured, DeviceKind.GPU), self._models(measured, DeviceKind.CPU)
        memory, memory_used = _memory_gigabytes()
        return EmissionsData(
            timestamp=datetime.now().isoformat(timespec="seconds"),  # noqa: DTZ005 - local, as theirs
            project_name=self._names[0],
            run_id=str(self.run_id),
            experiment_id=self._names[1],
            duration=measured.seconds,
            emissions=kilograms,
            emissions_rate=_times(kilograms, kilowatts / 3600),
            cpu_power=_times(parts[DeviceKind.CPU], 1000 * kilowatts),
            gpu_power=_times(parts[DeviceKind.GPU], 1000 * kilowatts),
            ram_power=_times(parts[DeviceKind.MEMORY], 1000 * kilowatts),
            cpu_energy=parts[DeviceKind.CPU],
            gpu_energy=parts[DeviceKind.GPU],
            ram_energy=parts[DeviceKind.MEMORY],
            energy_consumed=total,
            country_name=_COUNTRIES.get(self._country or "", ("", None))[1],
            country_iso_code=self._country,
            os=platform.platform(),
            python_version=platform.python_version(),
            codecarbon_version=self._version(measured),
            cpu_count=os.cpu_count() or 0,
            cpu_model=cpus[0] if cpus else platform.processor(),
            gpu_count=len(gpus),
            gpu_model=", ".join(dict.fromkeys(gpus)),
            ram_total_size=memory,
            cpu_utilization_percent=self._cpu_percent(),
            gpu_utilization_percent=fmean(self._gpu_percents) if self._gpu_percents else None,
            ram_utilization_percent=None if memory is None else 100 * (memory_used or 0.0) / memory,
            ram_used_gb=memory_used,
            pue=self._pue,
        )

    def _kilowatt_hours(self, measured: Measurement, kind: DeviceKind) -> float | None:
        """Energy of a kind of device; None if unknown."""
        devices = self._chosen(measured.devices, kind)
        joules = [device.joules for device in devices if device.joules == device.joules]
        if kind in self._forced_watts:
            joules = [self._forced_watts[kind] * measured.seconds]
        if not joules and (devices or kind is not DeviceKind.GPU):
            return None  # machines without GPUs use no energy in them
        return self._pue * sum(joules) / JOULES_PER_KILOWATT_HOUR

    def _chosen(self, devices: Sequence[_D], kind: DeviceKind) -> list[_D]:
        """Devices of a kind, of GPUs those that count."""
        members = [device for device in devices if device.info.kind is kind]
        if kind is DeviceKind.GPU and self._gpu_ids is not None:
            return [members[index] for index in self._gpu_ids if index < len(members)]
        return members

    def _busy_percent(self) -> list[float]:
        """Mean utilisation of the GPUs at this moment; empty where none states it."""
        shares = []
        for gpu in self._chosen(self._meter.devices, DeviceKind.GPU):
            if isinstance(gpu, TelemetrySource):
                with suppress(JouleryError):
                    shares.append(gpu.telemetry().utilisation)
        known = [100 * share for share in shares if share is not None]
        return [fmean(known)] if known else []

    def _models(self, measured: Measurement, kind: DeviceKind) -> list[str]:
        return [
            device.info.name + " (simulated)" * (device.provenance.origin is Origin.SIMULATED)
            for device in measured.devices
            if device.info.kind is kind
        ]

    def _version(self, measured: Measurement) -> str:
        """Who measured, and what was not: the format has no other column for it."""
        notes = ["simulated"] * (measured.provenance.origin is Origin.SIMULATED)
        estimates = (
            device.info.kind
            for device in measured.devices
            if device.provenance.origin is Origin.ASSUMED and not math.isnan(device.joules)
        )
        kinds = dict.fromkeys([*self._forced_watts, *estimates])
        notes += [f"{kind} power assumed" for kind in kinds]
        return f"Joulery {__version__}" + (f" ({', '.join(notes)})" if notes else "")

    def _cpu_percent(self) -> float | None:
        """Share of the CPUs' time that was busy since the start."""
        busy, total = (now - then for now, then in zip(_cpu_ticks(), self._busy, strict=True))
        return min(max(100 * busy / total, 0.0), 100.0) if total > 0 else None


class OfflineEmissionsTracker(EmissionsTracker):
    """The same tracker; all trackers here work offline."""


def track_emissions(
    function: Callable[..., Any] | None = None, *, offline: bool = False, **options: Any
) -> Any:
    """Decorate a function: every call is tracked, with the options of the tracker.

    Args:
        function: Function to decorate.
        offline: Accepted; all trackers here work offline.
        options: Options of ``EmissionsTracker``.
    """
    if function is None:
        return functools.partial(track_emissions, offline=offline, **options)

    @functools.wraps(function)
    def tracked(*args: Any, **keywords: Any) -> Any:
        with EmissionsTracker(**options):
            return function(*args, **keywords)

    return tracked


def track_task_emissions(
    fn: Callable[..., Any] | None = None,
    tracker: EmissionsTracker | None = None,
    task_name: str = "",
) -> Any:
    """Decorate a function: every call is a task of the tracker, of one of its own unless given."""
    if fn is None:
        return functools.partial(track_task_emissions, tracker=tracker, task_name=task_name)
    task_tracker = tracker or EmissionsTracker()

    @functools.wraps(fn)
    def tracked(*args: Any, **keywords: Any) -> Any:
        task_tracker.start_task(task_name)
        try:
            return fn(*args, **keywords)
        finally:
            task_tracker.stop_task()
            if tracker is None:
                task_tracker.stop()

    return tracked


def __dir__() -> list[str]:
    return __all__


def _indices(gpu_ids: Sequence[int | str] | str | None) -> list[int] | None:
    """Indices of GPUs; a name, such as a UUID, is none and left out."""
    if gpu_ids is None:
        return None
    words = gpu_ids.split(",") if isinstance(gpu_ids, str) else map(str, gpu_ids)
    return [int(word) for word in words if word.strip().isdecimal()]


def _valid(intensity: Any) -> float | None:
    """An intensity in gCO2/kWh that was given; None, and a warning, if it is invalid."""
    try:
        value = None if intensity is None else float(intensity)
    except (TypeError, ValueError):
        value = math.nan
    if value is None or (math.isfinite(value) and value >= 0):
        return value
    _log.warning("joulery: %r is not a carbon intensity; that of the place applies", intensity)
    return None


def _forced(cpu_watts: float | None, ram_watts: float | None) -> dict[DeviceKind, float]:
    """Powers that the caller assumes, by kind of device."""
    given = {DeviceKind.CPU: cpu_watts, DeviceKind.MEMORY: ram_watts}
    return {
        kind: finite(watts, f"forced power of {kind} in watts", minimum=0.0)
        for kind, watts in given.items()
        if watts is not None
    }


def _three_letters(country: str | None) -> str | None:
    """Code of three letters of a country that is given by two; any other text in capitals."""
    codes = {two_letters: code for code, (two_letters, _) in _COUNTRIES.items()}
    return codes.get(country.upper(), country.upper()) if country else None


def _intensity(country: str | None) -> float:
    """Yearly mean in gCO2/kWh of a country, or of $JOULERY_REGION, or of the world."""
    place = (country or os.environ.get("JOULERY_REGION", "")).upper()
    region = _COUNTRIES.get(place, (place, ""))[0]
    if region not in REGIONS:
        _warn_of_world(place)
        region = "WORLD"
    return REGIONS[region]


@functools.cache
def _warn_of_world(place: str) -> None:
    """Say once what applies, as each call of a decorated function makes a tracker."""
    if place:
        reason = f"no intensity of {place} is known"
        remedy = (
            f"known are {', '.join(sorted(_COUNTRIES))}; for others give "
            "force_carbon_intensity_g_co2e_kwh"
        )
    else:
        reason = "no country is given"
        remedy = "give country_iso_code='DEU' or JOULERY_REGION"
    _log.warning(
        "joulery: %s; the world's mean of %g g/kWh applies (%s)", reason, REGIONS["WORLD"], remedy
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _minus(value: float | None, earlier: float | None) -> float | None:
    return None if value is None else value - (earlier or 0.0)


def _cpu_ticks() -> tuple[float, float]:
    """Ticks of this machine's CPUs since it started: busy, and all; zeros where unknown."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        ticks = [float(word) for word in words]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # without idle and iowait
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def _memory_gigabytes() -> tuple[float | None, float | None]:
    """GB of this machine's memory: all, and used; None where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = {line.split(":")[0]: float(line.split()[1]) for line in lines}
        total = kilobytes["MemTotal"] / 2**20
        return total, total - kilobytes["MemAvailable"] / 2**20
    except (OSError, ValueError, KeyError, IndexError):
        return None, None
