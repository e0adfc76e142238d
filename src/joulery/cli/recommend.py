"""``joulery recommend``: device type, count, parallel plan and power limit before the run."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

from joulery import predict
from joulery.cli.dispatch import Output
from joulery.cli.options import Action, count, duration, file, names, option, whole, write_file
from joulery.cli.predict import CALIBRATION_OPTIONS, calibration, days
from joulery.reports import recommendation_report, table_of
from joulery.units import human, human_duration, kilowatt_hours

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from joulery.predict import Choice, Recommendation

_EPILOG = """\
MODEL is a JSON file that describes a transformer; `joulery predict --help` lists its names.
The answer is the choice of least energy (or time, money, carbon) that keeps the deadline with 90 %
confidence, the Pareto set of time, energy, money and carbon, why, and what would change it.
Energy is that of the building: devices, hosts and cooling.

examples:
  joulery recommend --model llama.json --tokens 2T --deadline 30d --devices h100,b200,mi300x
  joulery recommend --model llama.json --tokens 300B --devices a100,h100 --max-gpus 64 \\
    --objective money --rent 2.5
"""
_MOST = 1_000_000
_ROWS = 12


def _run(arguments: argparse.Namespace) -> Output:
    model = predict.transformer(arguments.model)
    critical = arguments.critical_batch
    work = predict.Work(
        arguments.tokens,
        arguments.batch_size,
        arguments.precision,
        arguments.deadline,
        None if critical is None else predict.Convergence(critical),
    )
    found = predict.recommend(
        model,
        work,
        arguments.devices,
        max_devices=arguments.max_gpus,
        objective=arguments.objective,
        assumptions=predict.Assumptions(arguments.pue, arguments.grid, arguments.rent),
        calibration=calibration(arguments, model),
    )
    if arguments.html is not None:
        page = recommendation_report(found, work.deadline_seconds).html()
        write_file(arguments.html, page, "--html")
    return Output(found.to_dict(), lambda: _text(found))


def _rent(text: str) -> float | dict[str, float]:
    """One price, or one by device type."""
    try:
        if "=" not in text:
            return float(text)
        pairs = (word.split("=") for word in text.split(","))
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no price: write 2.5, or h100=2.5,b200=4") from None


def _text(found: Recommendation) -> str:
    shown = sorted(found.pareto, key=lambda one: one.seconds)
    shown = shown[:: max(1, -(-len(shown) // _ROWS))]
    if found.best not in shown:
        shown = sorted([*shown, found.best], key=lambda one: one.seconds)
    lines = [
        table_of(shown, {"": lambda one: "→" * (one == found.best), **_COLUMNS}),
        "",
        _summary(found.best),
        *(f"why: {reason}" for reason in found.reasons),
        *(f"what would change it: {change}" for change in found.changes),
        f"measure next: {found.probe}",
        *(f"left out: {word}" for word in found.left_out),
        *(f"assumed: {word}" for word in found.assumed),
        f"{found.candidates} candidates",
    ]
    return "\n".join(lines)


def _summary(best: Choice) -> str:
    energy = best.interval("energy")
    return (
        f"best: {best.devices} × {best.device}, {best.plan}, {best.plan.precision}, "
        f"{best.plan.global_batch} sequences per step, limit {best.limit_watts:.0f} W\n"
        f"90 % within: {days(best.interval('time'))}, "
        f"{human(1000 * kilowatt_hours(energy.low), 'Wh')} – "
        f"{human(1000 * kilowatt_hours(energy.high), 'Wh')} ({best.source})"
    )


_COLUMNS: dict[str, Callable[[Choice], str]] = {
    "devices": lambda one: f"{one.devices} × {one.device}",
    "plan": lambda one: str(one.plan),
    ">batch": lambda one: str(one.plan.global_batch),
    ">limit": lambda one: f"{one.limit_watts:.0f} W",
    ">time": lambda one: (
        human_duration(one.seconds) if one.seconds < 172800 else f"{one.seconds / 86400:.1f} d"
    ),
    ">energy": lambda one: human(1000 * kilowatt_hours(one.joules), "Wh"),
    ">money": lambda one: f"${human(one.dollars, '')}".strip(),
    ">CO2": lambda one: f"{one.grams / 1e6:.3g} t",
    ">memory": lambda one: f"{one.memory_bytes / 1e9:.0f} GB",
}
COMMAND = Action(
    _run,
    (
        file("--model", "description of the model", "MODEL", required=True),
        option("--tokens", "tokens to train on, such as 2T", "N", count, required=True),
        option("--devices", "device types, such as h100,b200", "NAME,…", names, required=True),
        option("--max-gpus", "most devices, by default 512", "N", whole(1, _MOST), default=512),
        option("--batch-size", "sequences per step (1024)", "N", whole(1, _MOST), default=1024),
        option("--precision", "by default bf16; bf16 where it lacks", "WORD", default="bf16"),
        option("--deadline", "such as 30d or 12h, kept with 90 %% confidence", "TIME", duration),
        option("--objective", "energy, time, money or carbon", "WORD", default="energy"),
        option("--pue", "energy of the building per energy of the machines", "X", float),
        option("--grid", "grams of CO2 per kilowatt-hour", "G", float),
        option("--rent", "dollars per device and hour, all or by type", "USD|NAME=USD,…", _rent),
        option("--critical-batch", "sequences beyond which larger batches buy little", "N", count),
        *CALIBRATION_OPTIONS,
        file("--html", "write a page with the chart and the reasons"),
    ),
    epilog=_EPILOG,
)
