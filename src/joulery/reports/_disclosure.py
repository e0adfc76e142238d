"""What a training used, in the forms that model cards, regulators and bills of materials ask for.

Every figure carries how it was obtained. What is not known is left out or said to be unknown; it
is never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.frontier import Origin, Provenance
from joulery.units import JOULES_PER_KILOWATT_HOUR, finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SIGMAS_95 = 1.96


@dataclass(frozen=True, slots=True)
class Footprint:
    """Energy and carbon of a training.

    Attributes:
        name: Name of the model.
        joules: Energy of the measured devices.
        seconds: Measured time.
        provenance: How the energy was obtained, with its relative standard error.
        devices: Number of accelerators by name.
        intensity: Carbon intensity of the electricity in gCO2/kWh; None when unknown.
        intensity_source: Where the intensity comes from.
        location: Region of the electricity.
        pue: Power usage effectiveness of the building: facility energy by IT energy.
        embodied_grams: Share of the hardware's own emissions; None when unknown.
        training_flops: Operations of the training; None when unknown.
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

    def __post_init__(self) -> None:
        finite(self.joules, "energy in joules", minimum=0.0)
        finite(self.seconds, "time in seconds", minimum=0.0)
        finite(self.pue, "power usage effectiveness", minimum=1.0)
        for value, name in (
            (self.intensity, "carbon intensity in g/kWh"),
            (self.embodied_grams, "embodied emissions in grams"),
            (self.training_flops, "operations of the training"),
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
    def accelerators(self) -> int:
        """Number of accelerators."""
        return sum(self.devices.values())

    @property
    def method(self) -> str:
        """How the energy was obtained, in a few sentences."""
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


def sci(footprint: Footprint, units: float) -> float:
    """Software carbon intensity (ISO/IEC 21031): grams per functional unit, (E·I + M)/R.

    Args:
        footprint: Footprint with a carbon intensity and embodied emissions.
        units: Number of functional units: tokens, steps, models.

    Raises:
        InvalidValueError: A part of the sum is unknown, or there are no units.
    """
    if footprint.grams is None or footprint.embodied_grams is None:
        raise InvalidValueError(
            "software carbon intensity needs the carbon intensity and the embodied emissions",
            remedy="give a region or an intensity, and the embodied emissions",
        )
    if not (math.isfinite(units) and units > 0):
        raise InvalidValueError(f"{units} is no number of units", remedy="give a positive number")
    return (footprint.grams + footprint.embodied_grams) / units


def hugging_face(footprint: Footprint) -> dict[str, Any]:
    """``co2_eq_emissions`` of a Hugging Face model card; emissions are in grams.

    Raises:
        InvalidValueError: The carbon intensity is unknown.
    """
    if footprint.grams is None:
        raise InvalidValueError(
            "a model card states emissions, which need a carbon intensity",
            remedy="give --region or --co2",
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
        "hardware_days": significant(days * footprint.accelerators),
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


def markdown(footprint: Footprint) -> str:
    """A section for a model card or a paper."""
    grams, embodied = footprint.grams, footprint.embodied_grams
    rows = [
        ("Energy", f"{significant(footprint.kilowatt_hours):g} kWh"),
        ("Time", f"{significant(footprint.seconds / 3600):g} hours"),
        ("Hardware", ", ".join(f"{n} x {name}" for name, n in footprint.devices.items())),
        ("Electricity", "unknown intensity" if grams is None else _electricity(footprint)),
        ("Embodied", "unknown" if embodied is None else _kilograms(embodied)),
    ]
    lines = [f"| {name} | {value} |" for name, value in rows]
    head = [f"## Energy of training {footprint.name}", "", "| | |", "| --- | --- |"]
    return "\n".join([*head, *lines, "", footprint.method, ""])


def _electricity(footprint: Footprint) -> str:
    grams, intensity = footprint.grams or 0.0, footprint.intensity or 0.0
    source = f", {footprint.intensity_source}" if footprint.intensity_source else ""
    return f"{_kilograms(grams)} at {intensity:g} gCO2/kWh{source}"


def _kilograms(grams: float) -> str:
    return f"{significant(grams / 1000):g} kg CO2"


DISCLOSURES: dict[str, Callable[[Footprint], dict[str, Any] | str]] = {
    "markdown": markdown,
    "huggingface": hugging_face,
    "eu": eu_form,
    "cyclonedx": cyclonedx,
    "spdx": spdx,
}
