"""The footprint of a training: energy, carbon, cost and savings, each with its provenance.

What is not known is left out or said to be unknown; it is never zero.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulery import __version__
from joulery.errors import FileError, UnknownDeviceError
from joulery.frontier import Origin, Provenance
from joulery.jobs import energy_provenance, saved_energy
from joulery.reports._document import Heading, Paragraph, Report, Table
from joulery.reports._text import energy_text
from joulery.units import JOULES_PER_KILOWATT_HOUR, finite, human, human_duration, human_money

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from joulery.jobs import JobSummary, RunEntry, Saved
    from joulery.metering import LogTotals
    from joulery.reports._document import Block

_SIGMAS_95 = 1.96  # of a normal distribution within its 95 % interval
# A processor may be assumed beside a simulated board, and making the hardware always is.
_SIMULATED = "simulated or assumed"
_STATED = Provenance(Origin.ASSUMED, "as stated")
# Parts of a model's life (Wu et al., Sustainable AI, MLSys 2022); what is not measured is said.
_PHASES = ("data", "experiments", "training", "inference")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with how it was obtained and what it holds for.

    Attributes:
        name: Quantity.
        value: Value; None when unknown.
        unit: Unit of the value.
        provenance: Provenance of the figure, with its relative standard error; None when unknown.
        validity: Scope of the figure; for an unknown one, what is missing.
        remedy: Advice how to make it known, for whoever gives the command.
    """

    name: str
    value: float | None
    unit: str
    provenance: Provenance | None = None
    validity: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.value is None:
            object.__setattr__(self, "provenance", None)

    @property
    def text(self) -> str:
        """Value with its unit, or another of the same kind for small and large values."""
        if self.value is None:
            return "unknown"
        if self.unit == "s":
            return human_duration(self.value)
        if self.unit == "kWh":
            return energy_text(JOULES_PER_KILOWATT_HOUR * self.value)
        if self.unit == "kg CO2" and not 0.1 <= self.value < 1000:
            return human(1000 * self.value, "g CO2")
        is_rate = self.unit.startswith(("J per ", "g CO2 per "))
        if is_rate and self.value >= 1e-9:
            return human(self.value, self.unit)
        number = f"{significant(self.value):,g} {self.unit}"
        return number if self.unit else human_money(self.value)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        obtained = self.provenance
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "provenance": None if obtained is None else obtained.origin.value,
            "source": None if obtained is None else obtained.source,
            "relative_error": None if obtained is None else obtained.relative_error,
            "validity": self.validity,
            "remedy": self.remedy or None,
        }


def phase_figure(name: str, joules: float, provenance: Provenance) -> Figure:
    """Energy of the devices in one part of a model's life, such as ``inference``."""
    kilowatt_hours = joules / JOULES_PER_KILOWATT_HOUR
    return Figure(name, kilowatt_hours, "kWh", provenance, "energy of the devices")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Energy and carbon of a training.

    Attributes:
        name: Name of the model.
        joules: Energy of the measured devices.
        seconds: Measured time.
        provenance: Provenance of the energy, with its relative standard error.
        devices: Number of accelerators by name; empty when unknown.
        intensity: Carbon intensity of the electricity in gCO2/kWh; None when unknown.
        intensity_source: Source of the intensity.
        location: Region of the electricity.
        pue: Power usage effectiveness of the building: facility energy by IT energy.
        embodied_grams: Share of the hardware's own emissions; None to take it from the catalog.
        training_flops: Operations of the training; None when unknown.
        period: Time that the figures cover, as text.
        price: Price of a kilowatt-hour; None when unknown.
        saved: Share of the energy that was saved, and its standard error; None when unknown.
        saved_method: Baseline of the savings, as text.
        units: Number of functional units, such as tokens, above 0; None when unknown.
        unit: Name of a functional unit.
        phases: Energy of its own parts, such as experiments (``phase_figure``); without one for
            the training, that is all of the energy.
        stages: Footprints of other parts of the model's life, such as ``inference``, by name.
        parameters: Number of the model's parameters; None when unknown.
        inference_flops: Operations of a benchmark of inference; None when unknown.
        served: Number of units that inference served, above 0; None when unknown.
        served_unit: Name of such a unit.
        processors: Number of CPUs by name; empty when unknown.
        device_seconds: Time in use by name of accelerator; by default the time of all of them.
    """

    name: str
    joules: float
    seconds: float
    provenance: Provenance
    devices: Mapping[str, int]
    intensity: float | None = None
    intensity_source: str = ""
    location: str = ""
    pue: float = 1.0
    embodied_grams: float | None = None
    training_flops: float | None = None
    period: str = ""
    price: float | None = None
    saved: Saved | None = None
    saved_method: str = ""
    units: float | None = None
    unit: str = "model"
    phases: tuple[Figure, ...] = ()
    stages: Mapping[str, Footprint] = field(default_factory=dict)
    parameters: float | None = None
    inference_flops: float | None = None
    served: float | None = None
    served_unit: str = "token"
    processors: Mapping[str, int] = field(default_factory=dict)
    device_seconds: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        finite(self.joules, "energy in joules", minimum=0.0)
        finite(self.seconds, "time in seconds", minimum=0.0)
        finite(self.pue, "power usage effectiveness", minimum=1.0)
        for value, name in (
            (self.intensity, "carbon intensity in g/kWh"),
            (self.embodied_grams, "embodied emissions in grams"),
            (self.training_flops, "operations of the training"),
            (self.price, "price of a kWh"),
            (self.parameters, "parameters of the model"),
            (self.inference_flops, "operations of inference"),
            (self.served, "units that inference served"),
        ):
            if value is not None:
                finite(value, name, minimum=0.0)

    @property
    def kilowatt_hours(self) -> float:
        """Energy of the facility for this training."""
        return self.pue * self.joules / JOULES_PER_KILOWATT_HOUR

    @property
    def grams(self) -> float | None:
        """Emissions of the electricity; None without an intensity."""
        return None if self.intensity is None else self.kilowatt_hours * self.intensity

    @property
    def total_grams(self) -> float | None:
        """Emissions of the electricity and of making the hardware; None if either is unknown."""
        embodied = self.embodied.value
        if self.grams is None or embodied is None:
            return None
        return self.grams + 1000 * embodied

    @property
    def embodied(self) -> Figure:
        """Share of the hardware's own emissions, by use of its life."""
        title = "CO2 of making the hardware"
        if self.embodied_grams is not None:
            return Figure(title, self.embodied_grams / 1000, "kg CO2", _STATED, "as stated")
        if not self.used_seconds:
            missing = "no accelerator is known"
            return Figure(title, None, "kg CO2", None, missing, "give --embodied-kg")
        from joulery.prediction import embodied_grams, embodied_source

        try:
            grams = sum(embodied_grams(name, time) for name, time in self.used_seconds.items())
        except UnknownDeviceError as unknown:
            remedy = "name accelerators of the catalog with --hardware, or give --embodied-kg"
            return Figure(title, None, "kg CO2", None, unknown.message, remedy)
        source = Provenance(Origin.ASSUMED, embodied_source())
        return Figure(title, grams / 1000, "kg CO2", source, "four years of use around the clock")

    @property
    def usage_figures(self) -> list[Figure]:
        """Energy, time, carbon of the electricity, cost and savings, unknown ones included."""
        return [*self._energy_figures(), self._electricity_carbon(), *self._money_figures()]

    @property
    def figures(self) -> list[Figure]:
        """Every figure with its provenance and validity, unknown ones included."""
        return [*self._energy_figures(), *self._carbon_figures(), *self._money_figures()]

    def _energy_figures(self) -> Iterator[Figure]:
        period = self.period or "all that was measured"
        of_devices = self.joules / JOULES_PER_KILOWATT_HOUR
        energy = Figure("energy of the devices", of_devices, "kWh", self.provenance, period)
        yield energy
        if self.pue != 1:
            text = f"times a power usage effectiveness of {self.pue:g}"
            obtained = self._derived("as stated")
            energy = Figure("energy with cooling", self.kilowatt_hours, "kWh", obtained, text)
            yield energy
        clock = Origin.SIMULATED if self.is_simulated else Origin.MEASURED
        yield Figure("time", self.seconds, "s", Provenance(clock), period)
        if self.units is not None:
            joules = self.kilowatt_hours * JOULES_PER_KILOWATT_HOUR / self.units
            unit = f"J per {self.unit}"
            yield replace(energy, name="energy per unit", value=joules, unit=unit)

    @property
    def is_simulated(self) -> bool:
        """Whether any of the energy is simulated, and with it what is computed from it."""
        return self.provenance.origin is Origin.SIMULATED

    def _derived(self, source: str = "") -> Provenance:
        """Provenance of what is computed from the energy and an assumption."""
        return Provenance(Origin.SIMULATED if self.is_simulated else Origin.ASSUMED, source)

    def _electricity_carbon(self) -> Figure:
        title, unit = "CO2 of the electricity", "kg CO2"
        if self.grams is None:
            return Figure(title, None, unit, None, "carbon intensity not stated", "give --grid")
        validity = f"{self.intensity:g} gCO2/kWh at all times, by location"
        source = self._derived(self.intensity_source or "as stated")
        return Figure(title, self.grams / 1000, unit, source, validity)

    def _carbon_figures(self) -> Iterator[Figure]:
        yield self._electricity_carbon()
        yield self.embodied
        grams = self.total_grams
        in_all = self._derived("the hardware's part is assumed" if self.is_simulated else "")
        text = "needs both of the above" if grams is None else "both of the above"
        kilograms = None if grams is None else grams / 1000
        yield Figure("CO2 in all", kilograms, "kg CO2", in_all, text)
        if self.units is not None:
            rate, unit = None if grams is None else grams / self.units, f"g CO2 per {self.unit}"
            text = "ISO/IEC 21031: CO2 in all by units"
            yield Figure("software carbon intensity", rate, unit, in_all, text)

    def _money_figures(self) -> Iterator[Figure]:
        cost, title = None, "cost of the electricity"
        text, remedy = "price not stated", "give --price"
        if self.price is not None:
            cost, remedy = self.price * self.kilowatt_hours, ""
            text = f"{self.price:g} per kWh at all times, in its currency"
        yield Figure(title, cost, "", self._derived("as stated"), text, remedy)
        if self.saved is not None:
            share, error = self.saved.share, self.saved.standard_error
            relative = None if error is None or share == 0 else abs(error / share)
            reports = "comparison of runs by their reports"
            obtained = Provenance(self.provenance.origin, reports, relative)
            yield Figure("energy saved", 100 * share, "%", obtained, self.saved_method)

    @property
    def life_cycle(self) -> list[Figure]:
        """Energy by part of the model's life; parts that were not measured are unknown."""
        unknown = {
            name: Figure(
                name, None, "kWh", None, "not measured", f"add a log with --phase {name}=FILE"
            )
            for name in _PHASES
        }
        training = phase_figure("training", self.joules, self.provenance)
        stages = (
            phase_figure(name, stage.joules, stage.provenance)
            for name, stage in self.stages.items()
        )
        phases = {phase.name: phase for phase in (training, *self.phases, *stages)}
        return list((unknown | phases).values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "name": self.name,
            "period": self.period,
            "method": self.method,
            "hardware": dict(self.hardware) or None,
            "software": f"joulery {__version__}",
            "figures": [figure.to_dict() for figure in self.figures],
            "life_cycle": [figure.to_dict() for figure in self.life_cycle],
        }

    @property
    def hardware(self) -> Mapping[str, int]:
        """Number of accelerators by name; of CPUs where no accelerator is known."""
        return self.devices or self.processors

    @property
    def used_seconds(self) -> Mapping[str, float]:
        """Time in use by name of accelerator."""
        if self.device_seconds is not None:
            return self.device_seconds
        return {name: self.seconds * count for name, count in self.devices.items()}

    @property
    def method(self) -> str:
        """Method by which the energy was obtained, in a few sentences."""
        verb = {
            Origin.MEASURED: "was measured",
            Origin.PREDICTED: "was predicted, not measured",
            Origin.SIMULATED: "was simulated, not measured",
            Origin.ASSUMED: "is an estimate",
        }[self.provenance.origin]
        source = f" ({self.provenance.source})" if self.provenance.source else ""
        error = self.provenance.relative_error
        bar = "Its error is unknown."
        if error is not None:
            bar = f"Its 95 % error is {100 * _SIGMAS_95 * error:.1f} %."
        building = f"It was multiplied by a power usage effectiveness of {self.pue:g}."
        if self.pue == 1:
            building = "Cooling and other losses of the building are not included."
        stages = [name for name, stage in self.stages.items() if stage.is_simulated]
        others = f" That of {', '.join(stages)} was simulated." if stages else ""
        return f"The energy of the devices {verb}{source}. {bar} {building}{others}"


def significant(value: float, digits: int = 3) -> float:
    """A number rounded to significant figures."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def footprint_report(footprint: Footprint, *blocks: Block) -> Report:
    """Every figure of a footprint with its provenance and validity, for a model's documentation.

    Args:
        footprint: Footprint to show.
        *blocks: Blocks below the figures.
    """
    hardware = ", ".join(f"{n:,} × {name}" for name, n in footprint.hardware.items()) or "unknown"
    simulated = all(part.is_simulated for part in (footprint, *footprint.stages.values()))
    return Report(
        _title(footprint),
        _SIMULATED if simulated else "",
        (
            _figures_table(footprint.figures),
            Paragraph(f"Hardware: {hardware}. Software: Joulery {__version__}."),
            Paragraph(footprint.method, soft=True),
            *blocks,
            Heading("Life cycle"),
            _figures_table(footprint.life_cycle),
        ),
    )


def usage_report(footprint: Footprint, *blocks: Block) -> Report:
    """What was used and saved: energy, time, carbon of the electricity, and cost.

    Args:
        footprint: Footprint to show.
        *blocks: Blocks below the figures.
    """
    method = Paragraph(footprint.method, soft=True)
    table = _figures_table(footprint.usage_figures)
    origin = _SIMULATED if footprint.is_simulated else ""
    return Report(_title(footprint), origin, (table, *blocks, method))


def _title(footprint: Footprint) -> str:
    period = f", {footprint.period}" if footprint.period else ""
    return f"Energy and carbon of {footprint.name}{period}"


def _figures_table(figures: Sequence[Figure]) -> Table:
    columns: dict[str, Callable[[Figure], str]] = {
        "figure": lambda figure: figure.name,
        ">value": lambda figure: figure.text,
        ">95 % error": _error_text,
        "obtained": _obtained,
        "valid for": lambda figure: figure.validity,
    }
    return replace(Table.of(figures, columns), hints=[figure.remedy for figure in figures])


def log_footprint(totals: LogTotals, name: str) -> Footprint:
    """The footprint of an energy log.

    Args:
        totals: Sums of the log.
        name: Name of the model.

    Raises:
        FileError: The log has no energy.
    """
    if totals.joules is None:
        remedy = "measure with a device that can be read"
        raise FileError(f"the log of {name} has no energy", remedy=remedy)
    if totals.accelerators is None:
        devices = dict.fromkeys(totals.devices, 1)
    else:
        devices = dict(Counter(totals.accelerators.values()))
    return Footprint(
        name,
        totals.joules,
        totals.seconds,
        totals.provenance,
        devices,
        processors=Counter((totals.processors or {}).values()),
    )


def jobs_footprint(
    summaries: Sequence[JobSummary],
    name: str,
    period: str = "",
    runs: Sequence[RunEntry] = (),
) -> Footprint:
    """The footprint of recurring jobs, with what they saved and what exploring took.

    Args:
        summaries: Summaries of the jobs, as ``joulery.client.usage`` gives them.
        name: Name of the model.
        period: Time that the summaries cover.
        runs: Other runs that count, as ``joulery.client.team_usage`` gives them.
    """
    joules = sum(summary.joules for summary in summaries) + sum(run.joules or 0.0 for run in runs)
    exploring = sum(summary.exploring_joules for summary in summaries)
    provenance = energy_provenance(summaries, runs)
    devices: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for summary in summaries:
        device, count = _count_boards(summary.entry.device)
        board_seconds = summary.accelerator_seconds
        # Boards of one name may be those of several machines, one after the other.
        boards = count if count > 1 else len(board_seconds)
        devices[device] = max(devices.get(device, 1), boards)
        used_seconds = max(sum(board_seconds.values()), count * summary.seconds)
        seconds[device] = seconds.get(device, 0.0) + used_seconds
    for run in runs:
        for device, count in _accelerators(run).items():
            devices[device] = max(devices.get(device, 1), count)
            seconds[device] = seconds.get(device, 0.0) + count * run.seconds
    return Footprint(
        name,
        joules,
        sum(summary.seconds for summary in summaries) + sum(run.seconds for run in runs),
        provenance,
        devices,
        period=period,
        saved=saved_energy(summaries),
        saved_method="recurring jobs: runs against those of the default batch size, exploring "
        "included",
        phases=(
            phase_figure("experiments", exploring, provenance),
            phase_figure("training", joules - exploring, provenance),
        ),
        device_seconds=seconds,
    )


def _accelerators(run: RunEntry) -> dict[str, int]:
    """Number of the boards of a run by name; of all its devices where no board is known."""
    from joulery.prediction import embodied_grams

    def is_known(name: str) -> bool:
        try:
            embodied_grams(name, 0.0)
        except UnknownDeviceError:
            return False
        return True

    counts = run.device_counts
    return {name: count for name, count in counts.items() if is_known(name)} or counts


def _count_boards(device: str) -> tuple[str, int]:
    """Name and number of the boards of a job's device, such as ``A100 × 4``."""
    name, times, count = device.rpartition(" × ")
    return (name, int(count)) if times and count.isdecimal() else (device, 1)


def _error_text(figure: Figure) -> str:
    if figure.value is None or figure.provenance is None or figure.unit == "s":
        return ""
    error = figure.provenance.relative_error
    if error is None:
        return "?"
    if figure.unit == "%":
        return f"{significant(_SIGMAS_95 * error * abs(figure.value), 2):g} points"
    return f"{significant(100 * _SIGMAS_95 * error, 2):g} %"


def _obtained(figure: Figure) -> str:
    """Provenance of a figure; without ± for a share, which would read as points of it."""
    if figure.provenance is None:
        return ""
    is_share = figure.unit == "%"
    return str(replace(figure.provenance, relative_error=None) if is_share else figure.provenance)
