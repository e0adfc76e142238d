"""``joulery plan``: the clock of every instruction of a training pipeline, before it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.cli.checked import whole_number
from joulery.errors import FileError, InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    import argparse

    from joulery.cli.frontier_view import Canvas
    from joulery.cli.plan_view import Choice, Question, Study, Wish
    from joulery.pipeline.build import Surroundings
    from joulery.pipeline.profiles import Profiles
    from joulery.pipeline.schedules import Schedule

_EPILOG = """\
The profile is a CSV or JSON file with one row per stage, instruction and clock: the columns stage,
instruction (forward, backward, …), frequency (MHz), time (seconds) and energy (joules) of one
microbatch on one device.

SCHEDULE is gpipe, 1f1b, early-recompute, interleaved, zb-h1, zbv, dualpipe-v, auto (compare them
and take the best), or a file with an order of your own: a list per rank, such as
[["0F0", "0B0"], ["1F0", "1B0"]].

examples:
  joulery plan pipeline --profile gpt3.csv --stages 8 --microbatches 16 --schedule 1f1b
  joulery plan pipeline --profile gpt3.csv --microbatches 16 --straggler 1.1 --html plan.html
  joulery plan pipeline --profile gpt3.csv --microbatches 32 --schedule auto --communication 0.002
  joulery plan pipeline --profile gpt3.csv --microbatches 16 --replicas 4 \\
    --coordinate 127.0.0.1:29600 --token-file ~/.joulery-token
"""
_MOST = 100_000


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
    add("--microbatches", required=True, metavar="M", help="per iteration")
    add("--schedule", default="1f1b", metavar="SCHEDULE", help="by default 1f1b")
    add("--chunks", default="2", metavar="V", help="stages per rank of interleaved, by default 2")
    add("--straggler", type=float, metavar="X", help="another pipeline takes X times as long")
    add("--deadline", type=float, metavar="S", help="an iteration may take that many seconds")
    add("--blocking-watts", type=float, default=0.0, metavar="W", help="of a device that waits")
    add("--communication", type=float, default=0.0, metavar="S", help="seconds per hop of data")
    add("--devices-per-rank", default="1", metavar="N", help="that share a stage (tensor parallel)")
    add("--replicas", default="1", metavar="N", help="of the pipeline (data parallel)")
    add("--repeat", type=float, default=1.0, metavar="X", help="profiled pieces per microbatch")
    add("--optimizer", action="store_true", help="plan the optimizer step, which is in the profile")
    add("--activations", type=float, metavar="N", help="microbatches that fit a rank, for auto")
    add("--layers", metavar="N,N,…", help="of each profiled stage: auto tries moving some")
    add("--raw", action="store_true", help="plan on the measurements without smoothing them")
    add("--html", type=Path, metavar="FILE", help="write a page with charts, before and after")
    add("--json", action="store_true", help="print one JSON document")
    add("--coordinate", metavar="HOST:PORT", help="then serve running ranks until interrupted")
    add("--token-file", type=Path, metavar="FILE", help="secret of the ranks; made if not there")
    add("--anywhere", action="store_true", help="let --coordinate listen beyond this machine")


def run(arguments: argparse.Namespace) -> int:
    """Plan, and show what it saves."""
    from joulery.cli.plan_view import Wish, choose, html_page, study
    from joulery.pipeline.profiles import read_profiles

    wishes = _wishes(arguments)
    meeting = _meeting(arguments)
    around = _surroundings(arguments)
    profiles = read_profiles(arguments.profile, smooth=not arguments.raw)
    if arguments.repeat != 1.0:
        profiles = profiles.scaled(arguments.repeat)
    microbatches = whole_number(arguments.microbatches, "--microbatches", 1, _MOST)
    choice = None
    if arguments.schedule == "auto":
        choice = choose(profiles, _question(arguments, profiles, around, microbatches))
        schedule, profiles = choice.best.schedule, choice.profiles
        wishes.insert(1, Wish("within 1f1b's time", choice.wanted.pace_seconds, waits=False))
    else:
        schedule = _schedule(arguments, profiles, microbatches)
    found = study(schedule, profiles, around, wishes)
    if arguments.html is not None:
        _write(arguments.html, html_page(found, choice))
    _show(arguments, found, choice)
    if meeting is not None:
        from joulery.cli.plan_coordinate import coordinate

        sys.stdout.flush()
        coordinate(found.problem, around, *meeting)
    return 0


def _meeting(arguments: argparse.Namespace) -> tuple[tuple[str, int], str] | None:
    """Where ranks are to call, and what they must know; None if nobody is to."""
    from joulery.cli.plan_coordinate import listening_address, token_from

    if arguments.coordinate is None:
        if arguments.token_file is not None or arguments.anywhere:
            raise InvalidValueError(
                "there is nobody to call", remedy="add --coordinate HOST:PORT, or leave these out"
            )
        return None
    address = listening_address(arguments.coordinate, anywhere=arguments.anywhere)
    return address, token_from(arguments.token_file)


def _wishes(arguments: argparse.Namespace) -> list[Wish]:
    from joulery.cli.plan_view import Wish

    wishes = [Wish("equal time")]
    if arguments.straggler is not None:
        factor = finite(arguments.straggler, "--straggler")
        if factor < 1:
            raise InvalidValueError(
                f"a straggler that takes {factor:g} times as long is none",
                remedy="give 1 or more, such as --straggler 1.1",
            )
        wishes.append(Wish(f"straggler × {factor:g}", factor=factor))
    if arguments.deadline is not None:
        seconds = finite(arguments.deadline, "--deadline", minimum=0.0)
        wishes.append(Wish(f"deadline {seconds:g} s", seconds=seconds, waits=False))
    return wishes


def _surroundings(arguments: argparse.Namespace) -> Surroundings:
    from joulery.pipeline.build import Surroundings

    return Surroundings(
        communication_seconds=finite(arguments.communication, "--communication", minimum=0.0),
        blocking_watts=finite(arguments.blocking_watts, "--blocking-watts", minimum=0.0),
        devices_per_rank=whole_number(arguments.devices_per_rank, "--devices-per-rank", 1, _MOST),
        replicas=whole_number(arguments.replicas, "--replicas", 1, _MOST),
        optimizer=arguments.optimizer,
    )


def _ranks(arguments: argparse.Namespace, profiles: Profiles) -> int:
    if arguments.stages is None:
        return profiles.stages
    return whole_number(arguments.stages, "--stages", 1, _MOST)


def _schedule(arguments: argparse.Namespace, profiles: Profiles, microbatches: int) -> Schedule:
    from joulery.pipeline.schedules import SCHEDULES, schedule
    from joulery.pipeline.schedules_file import read_schedule

    name = arguments.schedule
    if name in SCHEDULES or not _is_there(Path(name)):
        chunks = whole_number(arguments.chunks, "--chunks", 1, _MOST)
        return schedule(name, _ranks(arguments, profiles), microbatches, chunks=chunks)
    own = read_schedule(Path(name))
    wrong = [
        f"{given} {what}, but {name} has {there}"
        for given, there, what in (
            (microbatches, own.microbatches, "microbatches"),
            (_ranks(arguments, profiles), len(own.ranks), "ranks"),
        )
        if given != there and (what != "ranks" or arguments.stages is not None)
    ]
    if wrong:
        raise InvalidValueError(f"asked for {wrong[0]}", remedy="give what the order has")
    return own


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long for one
        return False


def _question(
    arguments: argparse.Namespace, profiles: Profiles, around: Surroundings, microbatches: int
) -> Question:
    from joulery.cli.plan_view import Question

    fits = arguments.activations
    return Question(
        ranks=_ranks(arguments, profiles),
        microbatches=microbatches,
        around=around,
        deadline_seconds=arguments.deadline,
        most_activations=None if fits is None else finite(fits, "--activations", minimum=0.0),
        layers=tuple(
            whole_number(text, "--layers", 1, _MOST)
            for text in (arguments.layers.split(",") if arguments.layers else ())
        ),
    )


def _show(arguments: argparse.Namespace, found: Study, choice: Choice | None) -> None:
    from joulery.cli.plan_view import choice_document, choice_text, study_document, study_text

    if arguments.json:
        document: dict[str, Any] = study_document(found)
        if choice is not None:
            document |= choice_document(choice)
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
        return
    texts = []
    if choice is not None:
        texts.append(choice_text(choice))
        if not arguments.communication:
            texts.append(
                "Data travels for free here: say how long a hop takes with --communication."
            )
    texts.append(study_text(found, _canvas()))
    if arguments.html is not None:
        texts.append(f"Charts: {arguments.html}")
    sys.stdout.write("\n\n".join(texts) + "\n")


def _canvas() -> Canvas:
    import os
    import shutil

    from joulery.cli.frontier_view import Canvas

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    unicode = "utf" in (sys.stdout.encoding or "").lower()
    columns = shutil.get_terminal_size((80, 24)).columns
    return Canvas(min(100, columns) - 3, 14, colour, unicode)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as refused:
        raise FileError(
            f"cannot write {path}: {refused.strerror}", remedy="choose another file with --html"
        ) from None
