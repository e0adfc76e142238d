"""``joulery predict``: time, power, energy and memory of a training step before it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulery import prediction
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    Action,
    file,
    flag,
    limits,
    listed,
    option,
    quantity,
    whole,
    write_file,
    written,
)
from joulery.errors import InvalidValueError
from joulery.files import csv_text
from joulery.reports import table_of
from joulery.units import SECONDS_PER_DAY, human, human_duration, per_cent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from joulery.frontier import OperatingPoint

_EPILOG = """\
MODEL is a JSON file that describes a transformer: layers, hidden, heads, feedforward, vocabulary,
sequence, and where it applies kv_heads, head_dim, gated, tied, experts, experts_per_token,
expert_feedforward, shared_feedforward, dense_layers, expert_nodes. A configuration of
transformers works too, with --sequence.

PLAN joins words by dashes: dp (data), tp (tensor), pp (pipeline), cp (context), ep (expert),
vp (chunks per stage), mb (micro-batch), zero0 to zero3 (zero1 by default, which the output leaves
out), hsdp (devices that shard), full-recompute, selective-recompute, adam8, adam16, no-master,
fused-backward, offload, chunked-loss, zb and dualpipe (schedules), and the framework: megatron
(default), compile, eager, transformers, replay.

DEVICE may be a TOML file: name, memory_bytes, memory_bytes_per_second, tensor_flops,
default_limit_watts, and for several devices link_bytes_per_second, link_domain and
network_bytes_per_second; what is missing is assumed, and said. The file that
`joulery doctor --selftest` writes stands for that board, with the limits that were observed.

TASK is pretrain, sft, lora, qlora, dpo, grpo or some joined by dashes, such as dpo-lora;
packed700 and padded700 say how long examples are.

STEPS is a JSON list of measured steps, [{"device": "h100", "plan": "dp8-mb1-zero3",
"batch_size": 128, "precision": "fp8", "seconds": 9.1, "watts": 610, "measured": "2026-11-16"}].
They are kept with their day, and later predictions use them too; --fresh leaves kept ones out and
--forget deletes them.

examples:
  joulery predict --devices
  joulery predict --model llama.json --device h100 --plan dp8-mb1-zero3 --batch-size 128
  joulery predict --model llama.json --device b200 --plan dp8-mb2 --batch-size 128 --precision fp8
  joulery predict --model config.json --sequence 4096 --task lora --device l40s --plan dp1-mb4
  joulery predict --model llama.json --device h100 --serve 512:128 --batch-size 32
  joulery predict --model llama.json --device h100 --plan pp4-mb1 --batch-size 32 --out stages.csv
"""
_MOST = 100_000_000  # by hand: more is a typing error


def calibration(
    arguments: argparse.Namespace, model: prediction.Transformer
) -> prediction.Calibration:
    """Measured steps of today and, unless an option says otherwise, those kept."""
    steps = [] if arguments.calibrate is None else prediction.read_steps(arguments.calibrate, model)
    if arguments.calibrate is not None and not steps:
        raise InvalidValueError(
            f"{arguments.calibrate} holds no measured step",
            remedy='give at least one, such as [{"device": "h100", "plan": "dp8-mb1-zero3", '
            '"batch_size": 128, "seconds": 9.1}], or leave --calibrate out',
        )
    if arguments.fresh:
        return prediction.Calibration(tuple(steps))
    return prediction.remember_steps(steps)


def _run(arguments: argparse.Namespace) -> Output:
    if arguments.devices:
        names = prediction.accelerator_names()
        return Output({"devices": list(names)}, lambda: _list_devices(names))
    if arguments.forget:
        count = prediction.forget_steps()
        return Output({"forgotten": count}, lambda: f"forgot {count} measured steps")
    if arguments.model is None or arguments.device is None:
        raise InvalidValueError(
            "a prediction needs --model and --device",
            remedy="give both; `joulery predict --devices` lists device types",
        )
    if arguments.serve is not None:
        return _serve(arguments)
    model = prediction.training_model(arguments.model, arguments.sequence)
    precision, assumed = _precision(arguments)
    plan = prediction.Plan.parse(arguments.plan, arguments.batch_size, precision)
    if arguments.task:
        plan = replace(plan, task=prediction.Task.parse(arguments.task))
    evidence = calibration(arguments, model)
    result = prediction.prediction(
        model,
        arguments.device,
        plan,
        limits=arguments.limits and sorted(arguments.limits),
        clocks=arguments.clocks,
        calibration=evidence,
    )
    result = replace(result, assumed=(*result.assumed, *assumed))
    if arguments.out is not None:
        rows = prediction.stage_rows(
            model,
            arguments.device,
            result.variant or plan,
            clocks=arguments.clocks,
            calibration=evidence,
        )
        # Six digits are more than predictions know.
        plain = [{n: f"{v:.6g}" if isinstance(v, float) else v for n, v in r.items()} for r in rows]
        write_file(arguments.out, csv_text(plain), "--out")
    strange = len(evidence.outliers())
    return Output(result.to_dict(), lambda: _text(result, arguments.steps, strange))


def _precision(arguments: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """The precision that was asked for or else of 16 bits, and a word where that is not bf16."""
    if arguments.precision is not None:
        return arguments.precision, ()
    precision = prediction.accelerator(arguments.device).sixteen_bits
    return precision, () if precision == "bf16" else (f"{precision}, since it has no bf16",)


def _serve(arguments: argparse.Namespace) -> Output:
    prompt, answer = arguments.serve
    precision, assumed = _precision(arguments)
    plan = prediction.Plan.parse(arguments.plan, arguments.batch_size, precision)
    trained = [f"--{name}" for name in _OF_TRAINING if getattr(arguments, name) not in (None, 1)]
    if plan != prediction.Plan(
        tensor=plan.tensor, batch_size=plan.batch_size, precision=plan.precision
    ):
        trained.append(f"--plan {arguments.plan}")
    if trained:
        raise InvalidValueError(
            f"--serve does not use {', '.join(trained)}",
            remedy="leave it out; of a plan inference takes tp alone, such as --plan tp2",
        )
    result = prediction.predict_inference(
        arguments.model,
        arguments.device,
        devices=plan.tensor,
        batch_size=arguments.batch_size,
        prompt_tokens=prompt,
        output_tokens=answer,
        precision=precision,
    )
    return Output(result.to_dict(), lambda: _serving_text(result, assumed))


_OF_TRAINING = ("limits", "clocks", "task", "steps", "out", "sequence", "calibrate")


def _serving_text(result: prediction.Inference, assumed: Sequence[str]) -> str:
    per_second, power = per_cent(result.relative_error), per_cent(result.relative_error_watts)
    among = " of all devices" if result.devices > 1 else ""
    return (
        f"{result.devices} × {result.device}: first token after "
        f"{human_duration(result.prefill_seconds)}, then one every "
        f"{human_duration(result.token_seconds)}, times ± {per_second}\n"
        f"{result.tokens_per_second:.0f} tokens/s ± {per_second}, "
        f"{result.watts / result.devices:.0f} W per device ± {power}, "
        f"{human(result.joules_per_token, 'J')} per token{among} ± "
        f"{per_cent(result.relative_error_joules)}\n"
        f"memory: {result.memory_bytes / 1e9:.1f} GB per device; "
        f"room for {result.cache_tokens} tokens in the cache\n"
        f"evidence: {result.source}; ± is one standard error"
        + "".join(f"\nassumed of {result.device}: {word}" for word in assumed)
    )


def _list_devices(names: Sequence[str]) -> str:
    boards = [prediction.accelerator(name) for name in names]
    return table_of(
        boards,
        {
            "device": lambda board: board.name,
            "generation": lambda board: board.architecture,
            ">memory": lambda board: f"{board.memory_bytes / 1e9:.1f} GB",
            ">bandwidth": lambda board: f"{board.bytes_per_second / 1e9:.0f} GB/s",
            ">16 bit": lambda board: f"{board.peaks[board.sixteen_bits] / 1e12:.0f} Tflop/s",
            ">limit": lambda board: f"{board.limit_watts:.0f} W",
        },
    )


def _tokens(text: str) -> tuple[int, int]:
    """Tokens of prompt and answer from ``512:128``."""
    prompt, _, answer = text.partition(":")
    if not answer:
        raise InvalidValueError(
            f"{text!r} lacks the tokens of the answer", remedy="write prompt and answer: 512:128"
        )
    read = whole(1, _MOST)
    return read(prompt), read(answer)


def _text(result: prediction.Prediction, steps: int, strange: int = 0) -> str:
    points = table_of(reversed(result.points), _columns(result))
    lines = [_summary(result), "", points, "", result.advice]
    if steps > 1:
        lines += _total(result, steps)
    error = per_cent(result.deviation)
    evidence = f"evidence: {result.points[0].provenance.source}; time ± {error} (one sigma)"
    if abs(result.moved) >= 0.005:
        evidence += f"; measured steps moved the time by {100 * result.moved:+.0f} %"
    lines.append(evidence)
    if result.observed:
        lines.append(f"{result.device} by its self-test: {', '.join(result.observed)}")
    if result.assumed:
        lines.append(f"assumed of {result.device}: {', '.join(result.assumed)}")
    lines += [f"not predicted of {lack}" for lack in result.left_out]
    if strange:
        lines.append(
            f"left out: {strange} measured step{'s' * (strange > 1)} too far from what the device "
            "can do; `joulery predict --forget` deletes what was kept"
        )
    return "\n".join(lines)


def _columns(result: prediction.Prediction) -> dict[str, Callable[[OperatingPoint], str]]:
    def setting(point: OperatingPoint) -> str:
        clock = point.setting.clock_hertz
        limit = point.setting.power_limit_watts
        return f"{limit:.0f} W" if clock is None else f"{clock / 1e6:.0f} MHz"

    def seconds(point: OperatingPoint) -> str:
        within = result.seconds(point)
        return f"{human_duration(within.low)} – {human_duration(within.high)}"

    def joules(point: OperatingPoint) -> str:
        within = result.joules(point)
        return f"{human(within.low, 'J')} – {human(within.high, 'J')}"

    return {
        ">setting": setting,
        ">step": lambda point: human_duration(point.seconds),
        ">90 % within": seconds,
        ">power per device": lambda point: f"{point.watts / result.plan.devices:.0f} W",
        ">energy": lambda point: human(point.joules, "J"),
        "> 90 % within": joules,  # a blank tells the titles apart
    }


def _total(result: prediction.Prediction, steps: int) -> list[str]:
    """The training at the fastest and the least-energy setting."""
    frontier = result.frontier()
    return [
        f"{steps} steps at {point.setting.power_limit_watts or 0:.0f} W: "
        f"{_days(result.seconds(point, steps))}, {_energy(result.joules(point, steps))} "
        "(90 % within; steps only, whose error does not average out)"
        for point in dict.fromkeys((frontier.fastest, frontier.least_energy))
    ]


def _days(interval: prediction.Interval) -> str:
    """An interval of time, in days where it is long."""
    low, high = interval.low, interval.high
    if high < 2 * SECONDS_PER_DAY:
        return f"{human_duration(low)} – {human_duration(high)}"
    return f"{low / SECONDS_PER_DAY:.1f} – {high / SECONDS_PER_DAY:.1f} days"


def _energy(interval: prediction.Interval) -> str:
    """An interval of joules in watt-hours."""
    return f"{human(interval.low / 3600, 'Wh')} – {human(interval.high / 3600, 'Wh')}"


def _summary(result: prediction.Prediction) -> str:
    plan = result.plan
    fullest = max(result.memory, key=lambda memory: memory.reserved)
    lines = [
        (
            f"{plan.devices} × {result.device}, {plan}, {plan.precision}, "
            f"{plan.batch_size} sequences per step, time ± {per_cent(result.deviation)}"
        ),
        (
            f"memory: {fullest.allocated / 1e9:.1f} GB allocated, {fullest.reserved / 1e9:.1f} GB "
            f"reserved at the peak, of {result.memory_bytes / 1e9:.1f} GB: {result.verdict}"
        ),
    ]
    if len(result.memory) > 1:
        stages = ", ".join(f"{memory.reserved / 1e9:.0f}" for memory in result.memory)
        lines.append(f"memory reserved by stage: {stages} GB")
    if result.variant is not None:
        lines.append(
            f"what follows is of {result.variant}, which reserves "
            f"{result.variant_bytes / 1e9:.1f} GB: {result.variant_verdict}"
        )
    elif result.verdict == "tight":
        lines.append(
            "tight: tensors fit, but hardly what the allocator keeps beside them, so it may\n"
            "run out of memory; recommendations leave such plans out"
        )
    return "\n".join(lines)


CALIBRATION_OPTIONS = (
    file("--calibrate", "measured steps; kept for later, too", "STEPS"),
    flag("--fresh", "leave out steps that were kept earlier"),
)
COMMAND = Action(
    _run,
    (
        file("--model", "description of the model", "MODEL"),
        option("--device", "device type such as h100, or a file that describes one", "NAME"),
        flag("--devices", "list the device types that predictions know"),
        option("--plan", "parallel plan, by default one device", "PLAN", default="dp1-mb1"),
        option("--batch-size", "sequences per step, all devices", "N", whole(1, _MOST), default=1),
        option("--sequence", "tokens per sequence in training", "N", whole(1, _MOST)),
        option("--task", "what a step trains: sft, lora, dpo, …; pretrain by default", "TASK"),
        option("--serve", "predict inference: tokens of prompt and answer", "N:N", _tokens),
        option("--precision", "fp32, tf32, fp16, fp8, …; bf16 (fp16 where it lacks)", "WORD"),
        option("--limits", "power limits in watts, by default the device's", "W,W,…", limits),
        option(
            "--clocks",
            "locked clocks in MHz, by default only where no limit binds",
            "MHZ,…",
            listed(quantity("MHz")),
        ),
        option("--steps", "steps of the training, for its total", "N", whole(1, 10**12), default=1),
        written("--out", "write the stages, as a profile for `joulery plan`", ".csv"),
        *CALIBRATION_OPTIONS,
        flag("--forget", "delete the steps that were kept"),
    ),
    epilog=_EPILOG,
)
