"""``joulery disclose``: the footprint of a training in the forms that others ask for."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from joulery import metering, reports
from joulery.cli.dispatch import Output
from joulery.cli.jobs import with_store
from joulery.cli.options import Action, count, file, number, option, whole
from joulery.cli.report import (
    FORM_OPTIONS,
    SOURCE_OPTIONS,
    EnergySource,
    is_of_store,
    read_log,
    read_text,
    show_report,
    source_of_jobs,
    source_of_log,
    with_electricity,
)
from joulery.errors import FileError, InvalidValueError, UsageError

if TYPE_CHECKING:
    import argparse

# Units of a consumer's score by SCI for AI, section 8.1.
_SERVED = ("token", "second", "image", "execution", "page", "inference")
_REMEDY = "give a log written with `joulery measure --log`, or --job, --team or --month"


def _run(arguments: argparse.Namespace) -> Output:
    if is_of_store(arguments):
        return with_store(
            lambda backend, arguments: _disclose(source_of_jobs(backend, arguments), arguments)
        )(arguments)
    if not arguments.file:
        raise UsageError("nothing to disclose", remedy=_REMEDY)
    path, text = arguments.file, read_text(arguments.file, _REMEDY)
    totals = read_log(path, text)
    if totals is None:
        raise FileError(f"{path} is not an energy log", remedy=_REMEDY)
    _check_hardware(path, totals, dict(arguments.hardware))
    return _disclose(source_of_log(path, totals, text), arguments)


def _check_hardware(path: Path, totals: metering.LogTotals, hardware: dict[str, int]) -> None:
    """Refuse accelerators whose energy is not in the log."""
    boards, measured = sum(hardware.values()), totals.accelerators
    if hardware and measured is not None and boards != len(measured):
        raise InvalidValueError(
            f"{path} has the energy of {len(measured)} accelerators, not of {boards}",
            remedy="leave --hardware out, or give a log of all of them",
        )


def _disclose(source: EnergySource, arguments: argparse.Namespace) -> Output:
    footprint = with_electricity(source.footprint, arguments)
    hardware = dict(arguments.hardware)
    if hardware:
        footprint = replace(footprint, devices=hardware, device_seconds=None)
    stages = {
        name: with_electricity(_read_stage(name, path), arguments) for name, path in arguments.phase
    }
    kilograms = arguments.embodied_kg
    footprint = replace(
        footprint,
        name=arguments.name or footprint.name,
        embodied_grams=None if kilograms is None else 1000 * kilograms,
        training_flops=arguments.flops,
        units=arguments.units,
        unit=arguments.unit,
        stages=stages,
        parameters=arguments.parameters,
        inference_flops=arguments.inference_flops,
        served=arguments.served,
        served_unit=arguments.served_unit,
    )
    if arguments.form is None:
        report = reports.footprint_report(footprint, *source.blocks)
        return show_report({**source.document, **footprint.to_dict()}, report, arguments)
    document = reports.DISCLOSURES[arguments.form](footprint)
    return Output(document, json.dumps(document, indent=2, allow_nan=False))


def _read_stage(name: str, path: str) -> reports.Footprint:
    """A part of the model's life from the energy log of it."""
    try:
        totals = metering.EnergyLog(path).totals_of(Path(path).read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", remedy=_REMEDY) from None
    return reports.log_footprint(totals, name)


def _hardware(text: str) -> tuple[str, int]:
    name, _, boards = text.rpartition("=")
    if not name:
        raise ArgumentTypeError(f"{text!r} names no accelerators: write H100=8")
    return name, whole(1, 10**9)(boards)


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ArgumentTypeError(f"{text!r} is not a phase: write inference=FILE")
    return name, path


def _units(text: str) -> float:
    units = count(text)
    if not units:
        raise ArgumentTypeError("there must be more than 0 units")
    return units


COMMAND = Action(
    _run,
    (
        file("file", "energy log", nargs="?"),
        option(
            "--as",
            "emissions of a Hugging Face model card, energy fields of the EU's model documentation "
            "form, the energy block of a bill of materials, or the scores of SCI for AI; every "
            "figure unless given",
            dest="form",
            choices=tuple(reports.DISCLOSURES),
        ),
        option("--name", "name of the model"),
        *SOURCE_OPTIONS,
        *FORM_OPTIONS,
        option("--embodied-kg", "CO2 of making the hardware (by the catalog)", "KG", number(0)),
        option("--flops", "operations of the training", read=number(0.0)),
        option("--parameters", "parameters of the model, such as 7B", "N", _units),
        option("--inference-flops", "operations of a benchmark of inference", read=number(0.0)),
        option("--served", "units that inference served, such as 3M", "N", _units),
        option("--served-unit", "name of such a unit (token)", choices=_SERVED, default="token"),
        option("--units", "functional units, for figures per unit, such as 2T", "N", _units),
        option("--unit", "name of such a unit: token, step, model (model)", default="model"),
        option("--hardware", "accelerators", "NAME=COUNT", _hardware, action="append", default=[]),
        option(
            "--phase",
            "log of another part of the model's life: data, experiments, inference, …",
            "NAME=FILE",
            _named_file,
            action="append",
            default=[],
        ),
    ),
    usage=(
        "joulery disclose FILE [options]\n"
        "       joulery disclose --job NAME | --team NAME | --month M [options]"
    ),
    epilog="""\
FILE is an energy log (`joulery measure --log`). What was used, without forms:
`joulery report`.

examples:
  joulery disclose energy.jsonl --as huggingface --grid FR
  joulery disclose energy.jsonl --as eu --hardware H100=8 --flops 2e24
  joulery disclose energy.jsonl --as sci-ai --grid FR --parameters 7B \\
      --phase inference=serve.jsonl --served 3M
  joulery disclose energy.jsonl --grid FR --units 2T --unit token --html footprint.html
  joulery disclose --job resnet-nightly --month 2026-10 --as cyclonedx""",
)
