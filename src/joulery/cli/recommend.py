"""``joulery recommend``: device type, count, parallel plan and power limit before the run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from joulery import __version__, grid, prediction
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    Action,
    count,
    duration,
    file,
    names,
    option,
    page_option,
    watts,
    whole,
)
from joulery.cli.predict import CALIBRATION_OPTIONS, calibration
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError
from joulery.reports import recommendation_report

if TYPE_CHECKING:
    import argparse

_EPILOG = """\
MODEL is a JSON file that describes a transformer; `joulery predict --help` lists its names.
The answer is the choice of least energy (or time, money, carbon) that keeps the deadline with 90 %
confidence, the Pareto set of time, energy, money and carbon, why, and what would change it.
Energy is that of the building: devices, hosts and cooling. Times have an assumed share of lost time
(restarts, checkpoints, evaluations) and a start of ten minutes, both uncertain and stated.

Of choices whose cost differs by less than the errors can tell, the fastest is taken; of those that
are less than ten minutes slower, which a training takes to start, the cheapest.

examples:
  joulery recommend --model llama.json --tokens 2T --deadline 30d --device h100,b200,mi300x
  joulery recommend --model llama.json --tokens 300B --device a100,h100 --max-devices 64 \\
    --objective money --rent 2.5
  joulery recommend --model config.json --sequence 4096 --tokens 1B --task lora --device l40s,h100
"""
_MOST = 1_000_000  # by hand: more is a typing error


def _run(arguments: argparse.Namespace) -> Output:
    model = prediction.training_model(arguments.model, arguments.sequence)
    critical, regions = arguments.critical_batch, {}
    for name in arguments.grid or ():
        regions[name] = grid.carbon_intensity(name).at(REAL_CLOCK.wall())
    intensity = next(iter(regions.values()), None)
    work = prediction.Work(
        arguments.tokens,
        arguments.batch_size,
        arguments.precision,
        arguments.deadline,
        None if critical is None else prediction.Convergence(critical),
        arguments.framework,
        prediction.Task.parse(arguments.task),
    )
    progress = Progress()
    try:
        recommendation = prediction.recommend(
            model,
            work,
            arguments.device,
            max_devices=arguments.max_devices,
            objective=arguments.objective,
            assumptions=prediction.Assumptions(
                arguments.pue, intensity, arguments.rent, arguments.host_power
            ),
            calibration=calibration(arguments, model),
            regions=regions if len(regions) > 1 else None,
            on_progress=lambda share: progress.show(f"joulery recommend: {100 * share:.0f} %"),
        )
    finally:
        progress.done()
    return Output(
        recommendation.to_dict(),
        lambda: recommendation_report(recommendation, _made(arguments.command_line)),
        page=arguments.html,
    )


def _made(command_line: str) -> str:
    """Date, version and command of a page."""
    day = datetime.fromtimestamp(REAL_CLOCK.wall(), UTC).date()
    return f"Made on {day} with Joulery {__version__}: {command_line}"


def _rent(text: str) -> float | dict[str, float]:
    """One price, or one by device type."""
    try:
        if "=" not in text:
            return float(text)
        pairs = (word.split("=") for word in text.split(","))
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise InvalidValueError(
            f"{text!r} is not a price", remedy="write 2.5, or h100=2.5,b200=4"
        ) from None


COMMAND = Action(
    _run,
    (
        file("--model", "description of the model", "MODEL", required=True),
        option("--tokens", "tokens to train on, such as 2T", "N", count, required=True),
        option(
            "--device",
            "device types such as h100,b200, or files as for `predict`",
            "NAME,…",
            names,
            required=True,
        ),
        option("--max-devices", "most devices, by default 512", "N", whole(1, _MOST), default=512),
        option(
            "--batch-size",
            "sequences per step (1024; 64 for sft, dpo and adapters)",
            "N",
            whole(1, _MOST),
        ),
        option(
            "--precision",
            "bf16 by default; 16 bits where a device lacks it",
            "WORD",
            default="bf16",
        ),
        option("--deadline", "such as 30d or 12h, kept with 90 %% confidence", "TIME", duration),
        option("--objective", "energy, time, money, carbon, edp, …", "WORD", default="energy"),
        option("--sequence", "tokens per sequence in training", "N", whole(1, _MOST)),
        option("--task", "sft, lora, dpo, …; pretrain by default", "TASK", default="pretrain"),
        option("--framework", "megatron, compile, eager, …", "WORD", default="megatron"),
        option("--pue", "energy of the building per energy of the machines", "X", float),
        option(
            "--grid",
            "carbon intensity in gCO2/kWh, a region such as DE, or a series; several compare",
            "SOURCE,…",
            names,
        ),
        option("--rent", "dollars per device and hour, all or by type", "USD|NAME=USD,…", _rent),
        option("--host-power", "power of a host without its boards", "W", watts),
        option("--critical-batch", "sequences beyond which larger batches buy little", "N", count),
        *CALIBRATION_OPTIONS,
        page_option("write a page with the chart and the reasons"),
    ),
    epilog=_EPILOG,
)
