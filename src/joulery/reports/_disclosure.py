"""Energy of a training, in the forms of model cards, regulators and bills of materials.

Every figure carries how it was obtained. What is not known is left out or said to be unknown; it
is never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery import __version__
from joulery.errors import InvalidValueError, UnknownDeviceError
from joulery.frontier import ASSUMED, Origin, Provenance
from joulery.reports._document import Heading, Paragraph, Report, Table
from joulery.units import JOULES_PER_KILOWATT_HOUR, finite, human, human_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from joulery.jobs import Saved
    from joulery.reports._document import Block

_SIGMAS_95 = 1.96
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
        provenance: Provenance of the figure, with its relative standard error.
        validity: Scope of the figure; for an unknown one, what is missing.
    """

    name: str
    value: float | None
    unit: str
    provenance: Provenance = ASSUMED
    validity: str = ""

    @property
    def text(self) -> str:
        """Value with its unit, or another of the same kind for small and large values."""
        if self.value is None:
            return "unknown"
        if self.unit == "s":
            return human_duration(self.value)
        for unit, base in (("kWh", "Wh"), ("kg CO2", "g CO2")):
            if self.unit == unit and not 0.1 <= self.value < 1000:
                return human(1000 * self.value, base)
        return f"{significant(self.value):,g} {self.unit}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "provenance": self.provenance.origin.value,
            "source": self.provenance.source,
            "relative_error": self.provenance.relative_error,
            "validity": self.validity,
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
        devices: Number of accelerators by name.
        intensity: Carbon intensity of the electricity in gCO2/kWh; None when unknown.
        intensity_source: Source of the intensity.
        location: Region of the electricity.
        pue: Power usage effectiveness of the building: facility energy by IT energy.
        embodied_grams: Share of the hardware's own emissions; None to take it from the catalog.
        training_flops: Operations of the training; None when unknown.
        period: Time that the figures cover, in words.
        price: Price of a kilowatt-hour; None when unknown.
        saved: Share of the energy that was saved, and its standard error; None when unknown.
        saved_method: Baseline of the savings, in words.
        units: Number of functional units, such as tokens, above 0; None when unknown.
        unit: Name of a functional unit.
        phases: Energy by part of the model's life (:func:`phase_figure`); without one for the
            training, that is all of the energy.
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
    def embodied(self) -> Figure:
        """Share of the hardware's own emissions, by use of its life."""
        title = "CO2 of making the hardware"
        if self.embodied_grams is not None:
            return Figure(title, self.embodied_grams / 1000, "kg CO2", _STATED, "as stated")
        from joulery.prediction import embodied_grams, embodied_source

        try:
            grams = sum(embodied_grams(name, time) for name, time in self.used_seconds.items())
        except UnknownDeviceError as unknown:
            remedy = "name accelerators of the catalog with --hardware, or give --embodied-kg"
            return Figure(title, None, "kg CO2", ASSUMED, f"{unknown.message}: {remedy}")
        source = Provenance(Origin.ASSUMED, embodied_source())
        return Figure(title, grams / 1000, "kg CO2", source, "four years of use around the clock")

    @property
    def figures(self) -> list[Figure]:
        """Every figure with its provenance and validity, unknown ones included."""
        return [*self._energy_figures(), *self._carbon_figures(), *self._money_figures()]

    def _energy_figures(self) -> Iterator[Figure]:
        period = self.period or "all that was measured"
        of_devices = self.joules / JOULES_PER_KILOWATT_HOUR
        yield Figure("energy of the devices", of_devices, "kWh", self.provenance, period)
        if self.pue != 1:
            text = f"times a power usage effectiveness of {self.pue:g}"
            yield Figure("energy with cooling", self.kilowatt_hours, "kWh", _STATED, text)
        yield Figure("time", self.seconds, "s", Provenance(Origin.MEASURED), period)
        if self.units is not None:
            joules = self.kilowatt_hours * JOULES_PER_KILOWATT_HOUR / self.units
            yield Figure("energy per unit", joules, f"J per {self.unit}", self.provenance, period)

    def _carbon_figures(self) -> Iterator[Figure]:
        carbon, embodied = None if self.grams is None else self.grams / 1000, self.embodied
        source = Provenance(Origin.ASSUMED, self.intensity_source or "as stated")
        text = f"{self.intensity or 0.0:g} gCO2/kWh at all times, by location"
        if carbon is None:
            text = "give --grid"
        yield Figure("CO2 of the electricity", carbon, "kg CO2", source, text)
        yield embodied
        if carbon is None or embodied.value is None:
            return
        yield Figure("CO2 in all", carbon + embodied.value, "kg CO2", ASSUMED, "both of the above")
        if self.units is not None:
            rate, unit = 1000 * (carbon + embodied.value) / self.units, f"g CO2 per {self.unit}"
            text = "ISO/IEC 21031: CO2 in all by units"
            yield Figure("software carbon intensity", rate, unit, ASSUMED, text)

    def _money_figures(self) -> Iterator[Figure]:
        cost = None if self.price is None else self.price * self.kilowatt_hours
        text = "give --price" if cost is None else f"{self.price:g} per kWh at all times"
        yield Figure("cost of the electricity", cost, "", _STATED, text)
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
                name, None, "kWh", ASSUMED, f"not measured: add a log with --phase {name}=FILE"
            )
            for name in _PHASES
        }
        training = phase_figure("training", self.joules, self.provenance)
        stated = {phase.name: phase for phase in (training, *self.phases)}
        return list((unknown | stated).values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "name": self.name,
            "period": self.period,
            "method": self.method,
            "hardware": dict(self.devices),
            "software": f"joulery {__version__}",
            "figures": [figure.to_dict() for figure in self.figures],
            "life_cycle": [figure.to_dict() for figure in self.life_cycle],
        }

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
        return f"The energy of the devices {verb}{source}. {bar} {building}"


def significant(value: float, digits: int = 3) -> float:
    """A number rounded to significant figures."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def footprint_report(footprint: Footprint, *more: Block) -> Report:
    """Every figure of a footprint with its provenance and validity beside it.

    Args:
        footprint: Footprint to show.
        *more: Blocks below the figures.
    """
    columns: dict[str, Callable[[Figure], str]] = {
        "figure": lambda one: one.name,
        ">value": lambda one: one.text,
        ">± 95 %": _error_text,
        "obtained": lambda one: "" if one.value is None else str(one.provenance),
        "valid for": lambda one: one.validity,
    }
    hardware = ", ".join(f"{n} × {name}" for name, n in footprint.devices.items()) or "unknown"
    period = f", {footprint.period}" if footprint.period else ""
    return Report(
        f"Energy and carbon of {footprint.name}{period}",
        "",
        (
            Table.of(footprint.figures, columns),
            Paragraph(f"Hardware: {hardware}. Software: Joulery {__version__}."),
            Paragraph(footprint.method, soft=True),
            *more,
            Heading("Life cycle"),
            Table.of(footprint.life_cycle, columns),
        ),
    )


def _error_text(figure: Figure) -> str:
    error = figure.provenance.relative_error
    if figure.value is None or figure.provenance == Provenance(Origin.MEASURED):
        return ""
    return "?" if error is None else f"{significant(100 * _SIGMAS_95 * error, 2):g} %"


def hugging_face(footprint: Footprint) -> dict[str, Any]:
    """``co2_eq_emissions`` of a Hugging Face model card; emissions are in grams.

    Raises:
        InvalidValueError: The carbon intensity is unknown.
    """
    if footprint.grams is None:
        raise InvalidValueError(
            "a model card states emissions, which need a carbon intensity",
            remedy="give --grid",
        )
    hardware = ", ".join(f"{count} x {name}" for name, count in footprint.devices.items())
    entry: dict[str, Any] = {
        "emissions": significant(footprint.grams),
        "source": f"Joulery. {footprint.method} {footprint.intensity_source}".strip(),
        "training_type": "training",
        "hardware_used": hardware,
    }
    if footprint.location:
        entry["geographical_location"] = footprint.location
    return {"co2_eq_emissions": entry}


def eu_form(footprint: Footprint) -> dict[str, Any]:
    """Energy fields of the EU Code of Practice's model documentation form.

    Energy in MWh to at least two significant figures, whether measured or estimated, the method,
    the operations of the training, wall-clock days and hardware days.
    """
    days = footprint.seconds / 86400
    flops = footprint.training_flops
    return {
        "training_energy_mwh": significant(footprint.kilowatt_hours / 1000),
        "measured_or_estimated": (
            "measured" if footprint.provenance.origin is Origin.MEASURED else "estimated"
        ),
        "method": footprint.method,
        "training_flops": None if flops is None else significant(flops),
        "wall_clock_days": significant(days),
        "hardware_days": significant(sum(footprint.used_seconds.values()) / 86400),
        "hardware": dict(footprint.devices),
    }


def cyclonedx(footprint: Footprint) -> dict[str, Any]:
    """A CycloneDX 1.6 bill of materials with the energy of the training in its model card."""
    used: dict[str, Any] = {
        "activity": "training",
        "energyProviders": [
            {
                "organization": {"name": "unknown"},
                "energySource": "unknown",
                "energyProvided": {"value": significant(footprint.kilowatt_hours), "unit": "kWh"},
            }
        ],
        "activityEnergyCost": {"value": significant(footprint.kilowatt_hours), "unit": "kWh"},
        "properties": [{"name": "joulery:method", "value": footprint.method}],
    }
    if footprint.grams is not None:
        tonnes = significant(footprint.grams / 1e6)
        used["co2CostEquivalent"] = {"value": tonnes, "unit": "tCO2eq"}
    considerations = {"environmentalConsiderations": {"energyConsumptions": [used]}}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "components": [
            {
                "type": "machine-learning-model",
                "name": footprint.name,
                "modelCard": {"considerations": considerations},
            }
        ],
    }


def spdx(footprint: Footprint) -> dict[str, Any]:
    """The energy block of an SPDX 3.0 AI package."""
    return {
        "type": "ai_AIPackage",
        "name": footprint.name,
        "ai_energyConsumption": {
            "type": "ai_EnergyConsumption",
            "ai_trainingEnergyConsumption": [
                {
                    "type": "ai_EnergyConsumptionDescription",
                    "ai_energyQuantity": significant(footprint.kilowatt_hours),
                    "ai_energyUnit": "kilowattHour",
                }
            ],
        },
        "comment": footprint.method,
    }


DISCLOSURES: dict[str, Callable[[Footprint], dict[str, Any]]] = {
    "huggingface": hugging_face,
    "eu": eu_form,
    "cyclonedx": cyclonedx,
    "spdx": spdx,
}
