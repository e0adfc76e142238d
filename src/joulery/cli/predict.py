"""``joulery predict``: time, power, energy and memory of a training step before it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.cli.checked import whole_number
from joulery.units import hertz_from_megahertz, human, human_duration, per_cent

if TYPE_CHECKING:
    import argparse

    from joulery.frontier import OperatingPoint
    from joulery.predict import Calibration, Interval, Prediction, Transformer

_EPILOG = """\
MODEL is a JSON file that describes a transformer: layers, hidden, heads, feedforward, vocabulary,
sequence, and where it applies kv_heads, head_dim, gated, tied, experts, experts_per_token,
expert_feedforward, shared_feedforward, dense_layers. A configuration of transformers works too.

PLAN joins sizes by dashes: dp (data), tp (tensor), pp (pipeline), cp (context), ep (expert),
vp (chunks per stage), mb (micro-batch), zero0 to zero3, full-recompute.

STEPS is a JSON list of measured steps, [{"device": "h100", "plan": "dp8-mb1-zero3",
"global_batch": 128, "precision": "fp8", "seconds": 9.1, "watts": 610, "measured": "2026-11-16"}].
They are kept with their day, and later predictions use them too; --fresh leaves kept ones out.

examples:
  joulery predict --model llama.json --device h100 --plan dp8-mb1-zero3 --batch-size 128
  joulery predict --model llama.json --device b200 --plan dp8-mb2 --batch-size 128 --precision fp8
  joulery predict --model llama.json --device h100 --plan pp4-mb1 --batch-size 32 --profile p.csv
"""
_MOST = 100_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="MODEL", help="description of the model")
    add("--device", required=True, metavar="NAME", help="device type in the catalog, such as h100")
    add("--plan", default="dp1-mb1", metavar="PLAN", help="parallel plan, by default one device")
    add("--batch-size", default="1", metavar="N", help="sequences per step over all devices")
    add("--precision", default="bf16", metavar="WORD", help="fp32, tf32, bf16, fp16, fp8, …")
    add("--limits", metavar="W,W,…", help="power limits in watts; by default the device's range")
    add("--clocks", metavar="MHZ,…", help="locked clocks; by default only where no limit binds")
    add("--steps", default="1", metavar="N", help="steps of the whole training, for its total")
    add("--profile", type=Path, metavar="FILE", help="write the stages for `joulery plan`")
    add_calibration(parser)
    add("--json", action="store_true", help="print one JSON document")


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """Define the options about measured steps."""
    add = parser.add_argument
    add("--calibrate", type=Path, metavar="STEPS", help="measured steps; kept for later, too")
    add("--fresh", action="store_true", help="leave out steps that were kept earlier")


def calibration(arguments: argparse.Namespace, model: Transformer) -> Calibration:
    """Measured steps of today and, unless told otherwise, those kept."""
    from joulery.predict import Calibration, StepStore, read_steps

    store = StepStore()
    steps = [] if arguments.calibrate is None else read_steps(arguments.calibrate, model)
    if arguments.fresh:
        return Calibration(tuple(steps))
    return store.add(steps) if steps else store.load()


def run(arguments: argparse.Namespace) -> int:
    """Predict and show."""
    from joulery.predict import Plan, prediction, stage_rows, transformer, write_stage_profile

    model = transformer(arguments.model)
    batch = whole_number(arguments.batch_size, "--batch-size", 1, _MOST)
    plan = Plan.parse(arguments.plan, batch, arguments.precision)
    clocks = _numbers(arguments.clocks, "--clocks")
    hertz = None if clocks is None else [hertz_from_megahertz(clock) for clock in clocks]
    known = calibration(arguments, model)
    found = prediction(
        model,
        arguments.device,
        plan,
        limits=_numbers(arguments.limits, "--limits"),
        clocks=hertz,
        calibration=known,
    )
    if arguments.profile is not None:
        rows = stage_rows(model, arguments.device, plan, clocks=hertz, calibration=known)
        write_stage_profile(rows, arguments.profile)
    steps = whole_number(arguments.steps, "--steps", 1, 10**12)
    text = json.dumps(found.to_dict()) if arguments.json else _text(found, steps)
    sys.stdout.write(text + "\n")
    return 0


def _numbers(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    return [float(whole_number(word, option, 1, _MOST)) for word in text.split(",")]


def _text(found: Prediction, steps: int) -> str:
    from joulery.reports import table_text

    rows = [_cells(found, point) for point in reversed(found.points)]
    heads = ["setting", "step", "90 % within", "power per device", "energy", "90 % within"]
    lines = [_summary(found), "", table_text(heads, rows, "rrrrrr"), "", found.advice]
    if steps > 1:
        lines += _total(found, steps)
    error = per_cent(found.deviation)
    lines.append(f"evidence: {found.points[0].provenance.source}; time ± {error} (one sigma)")
    return "\n".join(lines)


def _cells(found: Prediction, point: OperatingPoint) -> list[str]:
    seconds, joules = found.seconds(point), found.joules(point)
    limit, clock = point.setting.power_limit_watts, point.setting.clock_hertz
    return [
        f"{limit:.0f} W" if clock is None else f"{clock / 1e6:.0f} MHz",
        human_duration(point.seconds),
        f"{human_duration(seconds.low)} – {human_duration(seconds.high)}",
        f"{point.watts / found.plan.devices:.0f} W",
        human(point.joules, "J"),
        f"{human(joules.low, 'J')} – {human(joules.high, 'J')}",
    ]


def _total(found: Prediction, steps: int) -> list[str]:
    """The training at the fastest and the least-energy setting."""
    frontier = found.frontier()
    return [
        f"{steps} steps at {point.setting.power_limit_watts or 0:.0f} W: "
        f"{days(found.seconds(point, steps))}, {_energy(found.joules(point, steps))} "
        "(90 % within; the error of a step does not average out)"
        for point in dict.fromkeys((frontier.fastest, frontier.least_energy))
    ]


def days(interval: Interval) -> str:
    """An interval of time, in days where it is long."""
    low, high = interval.low, interval.high
    if high < 2 * 86400:
        return f"{human_duration(low)} – {human_duration(high)}"
    return f"{low / 86400:.1f} – {high / 86400:.1f} days"


def _energy(interval: Interval) -> str:
    return f"{human(interval.low / 3600, 'Wh')} – {human(interval.high / 3600, 'Wh')}"


def _summary(found: Prediction) -> str:
    plan = found.plan
    fullest = max(found.memory, key=lambda one: one.reserved)
    lines = [
        (
            f"{plan.devices} × {found.device}, {plan}, {plan.precision}, "
            f"{plan.global_batch} sequences per step, time ± {per_cent(found.deviation)}"
        ),
        (
            f"memory: {fullest.allocated / 1e9:.1f} GB allocated, {fullest.reserved / 1e9:.1f} GB "
            f"reserved at the peak, of {found.memory_bytes / 1e9:.0f} GB"
        ),
    ]
    if len(found.memory) > 1:
        each = ", ".join(f"{one.reserved / 1e9:.0f}" for one in found.memory)
        lines.append(f"memory reserved by stage: {each} GB")
    return "\n".join(lines)
