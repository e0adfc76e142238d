"""``joulery predict``: time, power, energy and memory of a training step before it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.cli.checked import whole_number
from joulery.units import human, human_duration, per_cent

if TYPE_CHECKING:
    import argparse

    from joulery.predict import Prediction

_EPILOG = """\
MODEL is a JSON file that describes a transformer: layers, hidden, heads, feedforward, vocabulary,
sequence, and where it applies kv_heads, head_dim, gated, tied, experts, experts_per_token,
expert_feedforward, shared_feedforward, dense_layers. A configuration of transformers works too.

PLAN joins sizes by dashes: dp (data), tp (tensor), pp (pipeline), cp (context), ep (expert),
vp (chunks per stage), mb (micro-batch), zero1 to zero3, full-recompute.

STEPS is a JSON list of measured steps, [{"device": "h100", "plan": "dp8-mb1-zero3",
"global_batch": 128, "precision": "fp8", "seconds": 9.1}], which narrow the prediction.

examples:
  joulery predict --model llama.json --device h100 --plan dp8-mb1-zero3 --batch-size 128
  joulery predict --model llama.json --device b200 --plan dp8-mb2 --batch-size 128 --precision fp8
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
    add("--calibrate", type=Path, metavar="STEPS", help="measured steps that narrow the answer")
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Predict and show."""
    from joulery.predict import Plan, calibrated, prediction, read_steps, transformer

    model = transformer(arguments.model)
    batch = whole_number(arguments.batch_size, "--batch-size", 1, _MOST)
    plan = Plan.parse(arguments.plan, batch, arguments.precision)
    constants = None
    if arguments.calibrate is not None:
        constants = calibrated(model, read_steps(arguments.calibrate))
    found = prediction(
        model, arguments.device, plan, limits=_limits(arguments.limits), constants=constants
    )
    if arguments.json:
        sys.stdout.write(json.dumps(found.to_dict()) + "\n")
    else:
        sys.stdout.write(_text(found) + "\n")
    return 0


def _limits(text: str | None) -> list[float] | None:
    if text is None:
        return None
    return [float(whole_number(word, "--limits", 1, _MOST)) for word in text.split(",")]


def _text(found: Prediction) -> str:
    from joulery.reports import table_text

    error = found.relative_error
    rows = [
        [
            f"{point.setting.power_limit_watts:.0f} W",
            human_duration(point.seconds),
            f"± {per_cent(error)}",
            f"{point.watts / found.plan.devices:.0f} W",
            human(point.joules, "J"),
            f"± {per_cent(point.provenance.relative_error or 0.0)}",
        ]
        for point in reversed(found.points)
    ]
    heads = ["limit per device", "step", "", "power per device", "energy of the step", ""]
    return "\n".join([_summary(found), "", table_text(heads, rows, "rrlrrl"), "", found.advice])


def _summary(found: Prediction) -> str:
    plan, memory = found.plan, found.memory
    return (
        f"{plan.devices} × {found.device}, {plan}, {plan.precision}, "
        f"{plan.global_batch} sequences per step\n"
        f"memory: {memory.allocated / 1e9:.1f} GB allocated, {memory.reserved / 1e9:.1f} GB "
        f"reserved at the peak, of {found.memory_bytes / 1e9:.0f} GB"
    )
