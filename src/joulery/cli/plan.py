"""``joulery plan``: plan the clock of every instruction of a training pipeline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.cli.checked import whole_number
from joulery.errors import FileError, InvalidValueError
from joulery.units import count_from_text, finite, seconds_from_text

if TYPE_CHECKING:
    import argparse

    from joulery.pipeline import PipelineConfig, PipelinePlan, PlanTarget, Profiles, ScheduleSearch
    from joulery.reports import PipelineView

_EPILOG = """\
The profile is a CSV or JSON file with one row per stage, instruction and clock: the columns stage,
instruction (forward, backward, …), frequency (MHz), time (seconds) and energy (joules) of one
microbatch on one device.

SCHEDULE is gpipe, 1f1b, early-recompute, interleaved, zb-h1, zbv, dualpipe-v, auto (compare them
and take the best), or a file with a custom order: a list per rank, such as
[["0F0", "0B0"], ["1F0", "1B0"]].

examples:
  joulery plan pipeline --profile gpt3.csv --stages 8 --microbatches 16 --schedule 1f1b
  joulery plan pipeline --profile gpt3.csv --microbatches 16 --straggler 1.1 --html plan.html
  joulery plan pipeline --profile gpt3.csv --microbatches 32 --schedule auto --communication 0.002
  joulery plan pipeline --profile gpt3.csv --microbatches 16 --replicas 4 \\
    --coordinate 127.0.0.1:29600 --token-file ~/.joulery-token
"""
_MAX = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    import argparse

    parser.epilog = "`joulery plan pipeline --help` has the options, --json among them."
    actions = parser.add_subparsers(dest="action", required=True, metavar="WHAT")
    pipeline = actions.add_parser(
        "pipeline",
        help="the clock of every instruction of a pipeline-parallel iteration",
        description="Plan clocks that save energy without making the iteration longer.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = pipeline.add_argument
    add("--profile", type=Path, required=True, metavar="FILE", help="measured stages")
    add("--stages", metavar="N", help="ranks in the pipeline; by default, stages of the profile")
    add("--microbatches", required=True, metavar="M", help="microbatches per iteration")
    add("--schedule", default="1f1b", metavar="SCHEDULE", help="1f1b by default")
    add("--chunks", metavar="V", help="stages per rank of interleaved, by default 2")
    add("--straggler", type=float, metavar="X", help="another pipeline takes X times as long")
    add("--deadline", type=float, metavar="S", help="an iteration may take that many seconds")
    add(
        "--blocking-watts",
        type=float,
        metavar="W",
        help="power of a waiting device; by default what the profile states",
    )
    add(
        "--communication",
        default="0",
        metavar="S[,S,…]",
        help="seconds per hop of data, or of each link between ranks",
    )
    add(
        "--reduction",
        default="0",
        metavar="S[,S,…]",
        help="seconds to reduce gradients at the end of an iteration, or of each rank",
    )
    add("--devices-per-rank", default="1", metavar="N", help="devices of a tensor-parallel group")
    add("--replicas", default="1", metavar="N", help="data-parallel copies of the pipeline")
    add("--repeat", type=float, default=1.0, metavar="X", help="profiled pieces per microbatch")
    add("--optimizer", action="store_true", help="plan the optimizer step, which is in the profile")
    add(
        "--activations",
        type=float,
        metavar="N",
        help="microbatches of activations that fit a rank, for auto",
    )
    add("--memory", metavar="SIZE", help="such as 30GB, for activations on a device, for auto")
    add("--layers", metavar="N,N,…", help="layers of each profiled stage: auto tries moving some")
    add("--raw", action="store_true", help="plan on the measurements without smoothing them")
    add("--html", type=Path, metavar="FILE", help="write a page with charts, before and after")
    add("--save", type=Path, metavar="FILE", help="write the plan for joulery.pipeline.load_plan()")
    add("--json", action="store_true", help="print one JSON document")
    add("--coordinate", metavar="HOST:PORT", help="then serve running ranks until interrupted")
    add("--token-file", type=Path, metavar="FILE", help="secret of the ranks; created if missing")
    add("--anywhere", action="store_true", help="let --coordinate listen beyond this machine")


def run(arguments: argparse.Namespace) -> int:
    """Plan, and show what it saves."""
    from joulery.pipeline import PlanTarget, plan_savings, read_profiles
    from joulery.reports import PipelineView, pipeline_report

    _refuse_unused(arguments)
    targets = _targets(arguments)
    endpoint = _endpoint(arguments)
    config = _config(arguments)
    profiles = read_profiles(arguments.profile, smooth=not arguments.raw)
    if arguments.repeat != 1.0:
        profiles = profiles.scaled(arguments.repeat)
    search = None
    if arguments.schedule == "auto":
        search = _search(arguments, profiles, config)
        plan = search.best.plan
        pace = search.wanted.pace_seconds
        if plan.fastest_seconds <= pace * (1 + 1e-9):
            targets.insert(1, PlanTarget("within 1f1b's time", pace, waits=False))
    else:
        plan = _plan(arguments, profiles, config)
    view = PipelineView(plan, plan_savings(plan, targets), tuple(profiles.notes), search)
    if arguments.html is not None:
        _write(arguments.html, pipeline_report(view).html())
    if arguments.save is not None:
        plan.save(arguments.save)
    _show(arguments, view)
    if endpoint is not None:
        from joulery.cli.plan_coordinate import coordinate

        sys.stdout.flush()
        coordinate(plan, *endpoint)
    return 0


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Refuse options that would change nothing."""
    for option, schedule in (
        ("layers", "auto"),
        ("activations", "auto"),
        ("memory", "auto"),
        ("chunks", "interleaved"),
    ):
        if getattr(arguments, option) is not None and arguments.schedule != schedule:
            raise InvalidValueError(
                f"--{option} means nothing for the schedule {arguments.schedule}",
                remedy=f"leave it out, or use --schedule {schedule}",
            )
    if arguments.memory is not None and arguments.activations is not None:
        raise InvalidValueError(
            "--memory and --activations both limit activations", remedy="give one of them"
        )


def _endpoint(arguments: argparse.Namespace) -> tuple[tuple[str, int], str] | None:
    """Address and token of the coordinator; None if there is to be none."""
    from joulery.cli.plan_coordinate import listening_address, token_from

    if arguments.coordinate is None:
        if arguments.token_file is not None or arguments.anywhere:
            raise InvalidValueError(
                "there is no coordinator to call",
                remedy="add --coordinate HOST:PORT, or leave these out",
            )
        return None
    address = listening_address(arguments.coordinate, anywhere=arguments.anywhere)
    return address, token_from(arguments.token_file)


def _targets(arguments: argparse.Namespace) -> list[PlanTarget]:
    from joulery.pipeline import PlanTarget

    targets = [PlanTarget("equal time")]
    if arguments.straggler is not None:
        factor = finite(arguments.straggler, "--straggler")
        if factor < 1:
            raise InvalidValueError(
                f"a straggler that takes {factor:g} times as long is none",
                remedy="give 1 or more, such as --straggler 1.1",
            )
        targets.append(PlanTarget(f"straggler × {factor:g}", factor=factor))
    if arguments.deadline is not None:
        seconds = finite(arguments.deadline, "--deadline", minimum=0.0)
        targets.append(PlanTarget(f"deadline {seconds:g} s", seconds, waits=False))
    return targets


def _config(arguments: argparse.Namespace) -> PipelineConfig:
    from joulery.pipeline import PipelineConfig

    watts = arguments.blocking_watts
    return PipelineConfig(
        communication_seconds=_seconds(arguments.communication, "--communication"),
        reduction_seconds=_seconds(arguments.reduction, "--reduction"),
        blocking_watts=None if watts is None else finite(watts, "--blocking-watts", minimum=0.0),
        devices_per_rank=whole_number(arguments.devices_per_rank, "--devices-per-rank", 1, _MAX),
        replicas=whole_number(arguments.replicas, "--replicas", 1, _MAX),
        optimizer=arguments.optimizer,
    )


def _seconds(text: str, option: str) -> float | tuple[float, ...]:
    """One figure, or several separated by commas."""
    figures = tuple(seconds_from_text(part, option) for part in text.split(","))
    return figures if len(figures) > 1 else figures[0]


def _sizes(arguments: argparse.Namespace) -> tuple[int, int | None]:
    """Microbatches, and ranks if given."""
    microbatches = whole_number(arguments.microbatches, "--microbatches", 1, _MAX)
    stages = arguments.stages
    return microbatches, None if stages is None else whole_number(stages, "--stages", 1, _MAX)


def _plan(
    arguments: argparse.Namespace, profiles: Profiles, config: PipelineConfig
) -> PipelinePlan:
    from joulery.pipeline import plan_pipeline

    microbatches, ranks = _sizes(arguments)
    return plan_pipeline(
        profiles,
        schedule=arguments.schedule,
        microbatches=microbatches,
        ranks=ranks,
        chunks=whole_number(arguments.chunks or "2", "--chunks", 1, _MAX),
        config=config,
    )


def _search(
    arguments: argparse.Namespace, profiles: Profiles, config: PipelineConfig
) -> ScheduleSearch:
    from joulery.pipeline import search_schedules

    microbatches, ranks = _sizes(arguments)
    fits = arguments.activations
    return search_schedules(
        profiles,
        microbatches,
        ranks=ranks,
        config=config,
        deadline_seconds=arguments.deadline,
        max_activations=None if fits is None else finite(fits, "--activations", minimum=0.0),
        memory_bytes=None if arguments.memory is None else _bytes(arguments.memory),
        layers=tuple(
            whole_number(text, "--layers", 1, _MAX)
            for text in (arguments.layers.split(",") if arguments.layers else ())
        ),
    )


def _bytes(text: str) -> float:
    """A size such as ``30GB`` or ``28GiB``."""
    binary = text.endswith("iB")
    number = count_from_text(text.removesuffix("iB").removesuffix("B"), "--memory")
    exponent = {"k": 1, "M": 2, "G": 3, "T": 4}.get(text[-3:-2], 0) if binary else 0
    return number * 1.024**exponent


def _show(arguments: argparse.Namespace, view: PipelineView) -> None:
    from joulery.cli.plan_document import plan_document
    from joulery.reports import Terminal, pipeline_report

    if arguments.json:
        sys.stdout.write(json.dumps(plan_document(view), allow_nan=False) + "\n")
        return
    texts = [pipeline_report(view).text(Terminal.of())]
    if arguments.html is not None:
        texts.append(f"Charts: {arguments.html}")
    sys.stdout.write("\n\n".join(texts) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror}", remedy="choose another file with --html"
        ) from None
