"""Forms of others for the energy of a training: model cards, regulators, bills of materials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.frontier import Origin
from joulery.reports._footprint import significant

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.reports._footprint import Footprint


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
    consumption: dict[str, Any] = {
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
        consumption["co2CostEquivalent"] = {"value": tonnes, "unit": "tCO2eq"}
    considerations = {"environmentalConsiderations": {"energyConsumptions": [consumption]}}
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
