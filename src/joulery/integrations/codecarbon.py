"""Names of CodeCarbon (3.3), so that code written for it runs on Joulery.

Change the import and nothing else::

    from joulery.integrations.codecarbon import EmissionsTracker, track_emissions

The CSV file has CodeCarbon's columns. Energy comes from ``joulery.Meter``, carbon from the
intensity that is given or from the built-in yearly means: nothing here uses the network, so
``EmissionsTracker`` takes the place from its arguments or from ``$JOULERY_REGION``. Settings come
from arguments only: ``.codecarbon.config`` and ``CODECARBON_*`` variables are not read.
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
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.background import PeriodicTask
from joulery.files import write_atomic
from joulery.grid import REGIONS
from joulery.hardware import DeviceKind
from joulery.metering import Meter
from joulery.units import JOULES_PER_KILOWATT_HOUR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from joulery.metering import Measurement, Window

_log = logging.getLogger("joulery")

# ISO 3166 alpha-3 codes of the regions in the built-in table.
_COUNTRIES = {
    "AUT": "AT", "AUS": "AU", "BEL": "BE", "BRA": "BR", "CAN": "CA", "CHE": "CH", "CHN": "CN",
    "DEU": "DE", "DNK": "DK", "ESP": "ES", "FIN": "FI", "FRA": "FR", "GBR": "GB", "IRL": "IE",
    "IND": "IN", "ISL": "IS", "ITA": "IT", "JPN": "JP", "KOR": "KR", "NLD": "NL", "NOR": "NO",
    "POL": "PL", "SWE": "SE", "SGP": "SG", "TWN": "TW", "USA": "US", "ZAF": "ZA",
}  # fmt: skip

# Options of CodeCarbon that have no meaning here.
_UNUSED = frozenset(
    {
        "allow_multiple_runs", "api_endpoint", "api_key", "cloud_provider", "cloud_region",
        "co2_signal_api_token", "country_2letter_iso_code", "electricitymaps_api_token",
        "emissions_endpoint", "force_cpu_power", "force_mode_cpu_load", "force_ram_power",
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
    """A row of CodeCarbon's output: kg of CO2, kWh and watts."""

    timestamp: str
    project_name: str
    run_id: str
    experiment_id: str
    duration: float
    emissions: float
    emissions_rate: float
    cpu_power: float
    gpu_power: float
    ram_power: float
    cpu_energy: float
    gpu_energy: float
    ram_energy: float
    energy_consumed: float
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
    ram_total_size: float
    tracking_mode: str = "machine"
    cpu_utilization_percent: float = 0.0
    gpu_utilization_percent: float = 0.0
    ram_utilization_percent: float = 0.0
    ram_used_gb: float = 0.0
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
        measure_power_secs: Seconds between two looks at the figures for ``live_out``; energy is
            measured all the time.
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
        country_iso_code: Three letters of the country whose yearly mean intensity applies.
        force_carbon_intensity_g_co2e_kwh: Intensity that applies instead.
        pue: Power usage effectiveness of the building, which multiplies energy and power.
        unused: Further options of CodeCarbon, which have no meaning here.

    Attributes:
        final_emissions: kg of CO2, once stopped.
        final_emissions_data: The last row, once stopped.

    Raises:
        TypeError: CodeCarbon has no such option.
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
        self._country = country_iso_code
        self._pue = pue
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

    def start(self) -> None:
        """Begin to measure, unless begun."""
        if self._window is None:
            self._window = self._meter.begin("run")
            self._busy = _cpu_ticks()
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
        """Have handlers see the figures, every few calls."""
        window = self._window
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
        added = {name: getattr(data, name) - getattr(previous, name) for name in _SUMS}
        rate = added["emissions"] / max(added["duration"], 1e-9)
        return replace(data, **added, emissions_rate=rate)

    def _call_handlers(self, method: str, *args: object) -> None:
        for handler in self._handlers:
            try:
                getattr(handler, method)(*args)
            except Exception as error:  # noqa: BLE001 - a handler must not stop the program
                _log.warning("joulery: %s of %r failed: %s", method, handler, error)

    def _data(self, measured: Measurement) -> EmissionsData:
        parts = {kind: self._kilowatt_hours(measured, kind) for kind in DeviceKind}
        total = sum(parts.values()) - parts[DeviceKind.NODE]
        if parts[DeviceKind.NODE] > 0:  # the whole machine, measured
            total = parts[DeviceKind.NODE]
        kilograms = total * (self._intensity or 0.0) / 1000
        hours = max(measured.seconds, 1e-9) / 3600
        gpus = [d.info.name for d in measured.devices if d.info.kind is DeviceKind.GPU]
        cpus = [d.info.name for d in measured.devices if d.info.kind is DeviceKind.CPU]
        memory, memory_used = _memory_gigabytes()
        return EmissionsData(
            timestamp=datetime.now().isoformat(timespec="seconds"),  # noqa: DTZ005 - local, as theirs
            project_name=self._names[0],
            run_id=str(self.run_id),
            experiment_id=self._names[1],
            duration=measured.seconds,
            emissions=kilograms,
            emissions_rate=kilograms / max(measured.seconds, 1e-9),
            cpu_power=1000 * parts[DeviceKind.CPU] / hours,
            gpu_power=1000 * parts[DeviceKind.GPU] / hours,
            ram_power=1000 * parts[DeviceKind.MEMORY] / hours,
            cpu_energy=parts[DeviceKind.CPU],
            gpu_energy=parts[DeviceKind.GPU],
            ram_energy=parts[DeviceKind.MEMORY],
            energy_consumed=total,
            country_iso_code=self._country,
            os=platform.platform(),
            python_version=platform.python_version(),
            cpu_count=os.cpu_count() or 0,
            cpu_model=cpus[0] if cpus else platform.processor(),
            gpu_count=len(gpus),
            gpu_model=", ".join(dict.fromkeys(gpus)),
            ram_total_size=memory,
            cpu_utilization_percent=self._cpu_percent(),
            ram_utilization_percent=100 * memory_used / max(memory, 1e-9),
            ram_used_gb=memory_used,
            pue=self._pue,
        )

    def _kilowatt_hours(self, measured: Measurement, kind: DeviceKind) -> float:
        devices = [device for device in measured.devices if device.info.kind is kind]
        if kind is DeviceKind.GPU and self._gpu_ids is not None:
            devices = [devices[index] for index in self._gpu_ids if index < len(devices)]
        joules = [device.joules for device in devices if device.joules == device.joules]
        return self._pue * sum(joules) / JOULES_PER_KILOWATT_HOUR

    def _cpu_percent(self) -> float:
        """Share of the CPUs' time that was busy since the start."""
        busy, total = (now - then for now, then in zip(_cpu_ticks(), self._busy, strict=True))
        return min(max(100 * busy / total, 0.0), 100.0) if total > 0 else 0.0


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


def _intensity(country: str | None) -> float:
    """Yearly mean in gCO2/kWh of a country, or of $JOULERY_REGION, or of the world."""
    region = _COUNTRIES.get((country or "").upper()) or os.environ.get("JOULERY_REGION", "WORLD")
    if (country and country.upper() not in _COUNTRIES) or region.upper() not in REGIONS:
        _log.warning("joulery: no intensity of %s is known; the world's applies", country or region)
        region = "WORLD"
    return REGIONS[region.upper()]


def _cpu_ticks() -> tuple[float, float]:
    """Ticks of this machine's CPUs since it started: busy, and all; zeros where unknown."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        ticks = [float(word) for word in words]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # without idle and iowait
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def _memory_gigabytes() -> tuple[float, float]:
    """GB of this machine's memory: all, and used; zeros where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = {line.split(":")[0]: float(line.split()[1]) for line in lines}
        total = kilobytes["MemTotal"] / 2**20
        return total, total - kilobytes["MemAvailable"] / 2**20
    except (OSError, ValueError, KeyError, IndexError):
        return 0.0, 0.0
