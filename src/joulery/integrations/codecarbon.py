"""Names of CodeCarbon (3.3), so that code written for it runs on Joulery.

Change the import and nothing else::

    from joulery.integrations.codecarbon import EmissionsTracker, track_emissions

The CSV file has CodeCarbon's columns. Energy comes from :class:`joulery.Meter`, carbon from the
intensity that is given or from the built-in yearly means: nothing here uses the network, so
``EmissionsTracker`` takes the place from its arguments or from ``$JOULERY_REGION``.
"""

from __future__ import annotations

import csv
import functools
import io
import logging
import os
import platform
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.files import write_atomic
from joulery.grid import REGIONS
from joulery.hardware import DeviceKind
from joulery.metering import Meter
from joulery.units import JOULES_PER_KILOWATT_HOUR

if TYPE_CHECKING:
    from collections.abc import Callable
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
        "allow_multiple_runs", "api_call_interval", "api_endpoint", "api_key", "cloud_provider",
        "cloud_region", "co2_signal_api_token", "country_2letter_iso_code",
        "electricitymaps_api_token", "emissions_endpoint", "force_cpu_power",
        "force_mode_cpu_load", "force_ram_power", "log_level", "logger_preamble", "logging_logger",
        "measure_power_secs", "metadata", "output_handlers", "output_methods", "prometheus_url",
        "rapl_include_dram", "rapl_prefer_psys", "region", "save_to_api", "save_to_logfire",
        "save_to_logger", "save_to_prometheus", "tracking_mode", "wue",
    }
)  # fmt: skip


@dataclass(slots=True)
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
    water_consumed: float
    country_name: str | None
    country_iso_code: str | None
    region: str | None
    cloud_provider: str
    cloud_region: str
    os: str
    python_version: str
    codecarbon_version: str
    cpu_count: float
    cpu_model: str
    gpu_count: float
    gpu_model: str
    longitude: float | None
    latitude: float | None
    ram_total_size: float
    tracking_mode: str
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


class EmissionsTracker:
    """Measures energy between :meth:`start` and :meth:`stop` and writes ``emissions.csv``.

    Args:
        project_name: Name in the first columns.
        output_dir: Folder of the CSV file.
        output_file: Name of the CSV file.
        save_to_file: Whether to write it.
        on_csv_write: ``append`` a row per run, or ``update`` the row of this run.
        experiment_id: Identifier in the file.
        experiment_name: Part of the name of the file of tasks.
        gpu_ids: Indices of the GPUs that count; all unless given.
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
        *,
        output_dir: str | os.PathLike[str] = ".",
        output_file: str | os.PathLike[str] = "emissions.csv",
        save_to_file: bool = True,
        on_csv_write: str = "append",
        experiment_id: str = "",
        experiment_name: str = "base",
        gpu_ids: list[int] | None = None,
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
        self.run_id = uuid.uuid4()
        self._path = Path(output_dir) / output_file
        self._save = save_to_file
        self._updates = on_csv_write == "update"
        self._names = (project_name, experiment_id)
        self._gpu_ids = gpu_ids
        self._country = country_iso_code
        self._pue = pue
        self._intensity = force_carbon_intensity_g_co2e_kwh
        if self._intensity is None:
            self._intensity = _intensity(country_iso_code)
        self._meter = Meter()
        self._window: Window | None = None
        self._tasks: dict[str, Window] = {}  # open ones
        self._task_rows: list[dict[str, Any]] = []
        self._task_path = Path(output_dir) / f"emissions_{experiment_name}_{self.run_id}.csv"

    def start(self) -> None:
        """Begin to measure, unless begun."""
        if self._window is None:
            self._window = self._meter.begin("run")

    def flush(self) -> float | None:
        """Write the figures so far; kg of CO2, None before the start."""
        if self._window is None:
            return None
        data = self._data(self._window.measurement)
        self._write(data)
        return data.emissions

    def stop(self) -> float | None:
        """End and write; kg of CO2, None before the start."""
        if self._window is not None and not self._window.closed:
            self._meter.end(self._window)
            self._window.settle()
            self.final_emissions_data = self._data(self._window.measurement)
            self.final_emissions = self.final_emissions_data.emissions
            self._write(self.final_emissions_data)
            if self._save and self._task_rows:
                self._write_rows(self._task_path, self._task_rows)
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
        self._task_rows.append({"task_name": name, **data.values})
        return data

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _data(self, measured: Measurement) -> EmissionsData:
        parts = {kind: self._kilowatt_hours(measured, kind) for kind in DeviceKind}
        total = sum(parts.values()) - parts[DeviceKind.NODE]
        if parts[DeviceKind.NODE] > 0:  # the whole machine, measured
            total = parts[DeviceKind.NODE]
        kilograms = total * (self._intensity or 0.0) / 1000
        hours = max(measured.seconds, 1e-9) / 3600
        gpus = [d.info.name for d in measured.devices if d.info.kind is DeviceKind.GPU]
        cpus = [d.info.name for d in measured.devices if d.info.kind is DeviceKind.CPU]
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
            water_consumed=0.0,
            country_name=None,
            country_iso_code=self._country,
            region=None,
            cloud_provider="",
            cloud_region="",
            os=platform.platform(),
            python_version=platform.python_version(),
            codecarbon_version="",
            cpu_count=os.cpu_count() or 0,
            cpu_model=cpus[0] if cpus else platform.processor(),
            gpu_count=len(gpus),
            gpu_model=", ".join(dict.fromkeys(gpus)),
            longitude=None,
            latitude=None,
            ram_total_size=_memory_gigabytes(),
            tracking_mode="machine",
            pue=self._pue,
        )

    def _kilowatt_hours(self, measured: Measurement, kind: DeviceKind) -> float:
        devices = [device for device in measured.devices if device.info.kind is kind]
        if kind is DeviceKind.GPU and self._gpu_ids is not None:
            devices = [devices[index] for index in self._gpu_ids if index < len(devices)]
        known = [device.joules for device in devices if device.joules == device.joules]
        return self._pue * sum(known) / JOULES_PER_KILOWATT_HOUR

    def _write(self, data: EmissionsData) -> None:
        if not self._save:
            return
        rows: list[dict[str, Any]] = []
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        if self._updates:
            rows = [row for row in rows if row.get("run_id") != data.run_id]
        self._write_rows(self._path, [*rows, data.values])

    def _write_rows(self, path: Path, rows: list[dict[str, Any]]) -> None:
        """Write a table; a failure is logged, since it must not stop the program."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[-1]), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        try:
            write_atomic(path, text.getvalue().encode())
        except OSError as error:
            _log.warning("joulery: %s was not written: %s", path, error)


class OfflineEmissionsTracker(EmissionsTracker):
    """The same tracker; all trackers here work offline."""


def track_emissions(
    function: Callable[..., Any] | None = None, *, offline: bool = False, **options: Any
) -> Any:
    """Decorate a function: every call is tracked, with the options of the tracker.

    Args:
        function: Function to decorate.
        offline: Accepted; all trackers here work offline.
        options: Options of :class:`EmissionsTracker`.
    """
    if function is None:
        return functools.partial(track_emissions, offline=offline, **options)

    @functools.wraps(function)
    def tracked(*args: Any, **given: Any) -> Any:
        with EmissionsTracker(**options):
            return function(*args, **given)

    return tracked


def _intensity(country: str | None) -> float:
    """Yearly mean in gCO2/kWh of a country, or of $JOULERY_REGION, or of the world."""
    region = _COUNTRIES.get((country or "").upper()) or os.environ.get("JOULERY_REGION", "WORLD")
    if (country and country.upper() not in _COUNTRIES) or region.upper() not in REGIONS:
        _log.warning("joulery: no intensity of %s is known; the world's applies", country or region)
        region = "WORLD"
    return REGIONS[region.upper()]


def _memory_gigabytes() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError):
        return 0.0
