"""Forms of others for the energy of a training: model cards, regulators, bills of materials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.frontier import Origin
from joulery.reports._footprint import significant
from joulery.units import SECONDS_PER_DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulery.reports._footprint import Footprint

_GRID_REMEDY = "give a region or gCO2/kWh, such as --grid FR or --grid 56"
_TWO_PER_PARAMETER = "estimated: two operations per parameter for one token of a dense transformer"
# Stages of a model's life by SCI for AI, section 5: those that count for the provider, that of the
# consumer, and the names that parts of a life have here.
_TRAINING, _RUNTIME = "model training", "runtime operations"
_PROVIDER = ("prepare", "data engineering", _TRAINING, "system integration", "end of life")
_STAGES = {"data": "data engineering", "experiments": _TRAINING, "inference": _RUNTIME}


def hugging_face(footprint: Footprint) -> dict[str, Any]:
    """``co2_eq_emissions`` of a Hugging Face model card; emissions are in grams.

    Raises:
        InvalidValueError: The carbon intensity is unknown.
    """
    if footprint.grams is None:
        raise InvalidValueError(
            "a model card states emissions, which need a carbon intensity",
            remedy=_GRID_REMEDY,
        )
    hardware = ", ".join(f"{count} x {name}" for name, count in footprint.hardware.items())
    entry: dict[str, Any] = {
        "emissions": significant(footprint.grams),
        "source": f"Joulery. {footprint.method} {footprint.intensity_source}".strip(),
        "hardware_used": hardware or "unknown",
    }
    if footprint.location:
        entry["geographical_location"] = footprint.location
    return {"co2_eq_emissions": entry}


def eu_form(footprint: Footprint) -> dict[str, Any]:
    """Energy fields of the EU Code of Practice's model documentation form.

    Energy in MWh to at least two significant figures, whether measured or estimated, the method,
    the operations of the training, wall-clock days and hardware days. Of inference the form wants
    operations, since its energy depends on more than the model.
    """
    days = footprint.seconds / SECONDS_PER_DAY
    used = footprint.used_seconds.values()
    flops = footprint.training_flops
    return {
        "training_energy_mwh": significant(footprint.kilowatt_hours / 1000),
        "measured_or_estimated": (
            "measured" if footprint.provenance.origin is Origin.MEASURED else "estimated"
        ),
        "method": footprint.method,
        "training_flops": None if flops is None else significant(flops),
        "wall_clock_days": significant(days),
        "hardware_days": significant(sum(used) / SECONDS_PER_DAY) if used else None,
        "hardware": dict(footprint.hardware) or None,
        **_inference_of_eu_form(footprint),
    }


def _inference_of_eu_form(footprint: Footprint) -> dict[str, Any]:
    """Operations of inference: as stated, or of one token by the number of parameters."""
    flops, method = footprint.inference_flops, "as stated"
    if flops is None and footprint.parameters is not None:
        flops, method = 2 * footprint.parameters, _TWO_PER_PARAMETER
    if flops is None:
        return {"inference_flops": None, "inference_method": None}
    return {"inference_flops": significant(flops), "inference_method": method}


def sci_ai(footprint: Footprint) -> dict[str, Any]:
    """Provider and consumer scores by SCI for AI (Green Software Foundation).

    It extends ISO/IEC 21031:2024: emissions, making of the hardware included, per functional unit.
    The provider's are those of all that comes before and after operation, per operation, training
    token or billion parameters; the consumer's those of operation, per unit served.

    Raises:
        InvalidValueError: A number that the scores need is unknown.
    """
    units = {
        "FLOP": footprint.training_flops,
        "training token": footprint.units if footprint.unit == "token" else None,
        "billion parameters": _scaled(footprint.parameters, 1e-9),
    }
    if not any(units.values()):
        raise InvalidValueError(
            "a provider's score is per operation, training token or billion parameters",
            remedy="give --flops, --units N --unit token, or --parameters",
        )
    stages = {_TRAINING: [footprint]}
    for name, stage in footprint.stages.items():
        stages.setdefault(_STAGES.get(name, name), []).append(stage)
    runtime = stages.pop(_RUNTIME, [])
    served = {footprint.served_unit: footprint.served}
    return {
        "specification": "SCI for AI of the Green Software Foundation, on ISO/IEC 21031:2024",
        "name": footprint.name,
        "provider": {
            **_score([part for parts in stages.values() for part in parts], units),
            "stages": list(stages),
            "not_measured": [name for name in _PROVIDER if name not in stages],
        },
        "consumer": _score(runtime, served) if runtime else None,
        "method": footprint.method,
    }


def _score(parts: Sequence[Footprint], units: Mapping[str, float | None]) -> dict[str, Any]:
    """Emissions of parts of a model's life in grams, and by each unit whose number is known."""
    total = 0.0
    for part in parts:
        if part.total_grams is None:
            raise InvalidValueError(
                f"a score needs all emissions of {part.name}",
                remedy=f"{_GRID_REMEDY}; for hardware that is not in the catalog, --embodied-kg "
                "(of the training) or a log that names accelerators of the catalog",
            )
        total += part.total_grams
    scores = {unit: significant(total / count) for unit, count in units.items() if count}
    return {"grams": significant(total), "grams_per_unit": scores}


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


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
    "sci-ai": sci_ai,
}
