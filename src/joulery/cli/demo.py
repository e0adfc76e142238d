"""``joulery demo``: the whole path in seconds, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulery.cli.checked import whole_number, writable_folder

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from joulery.demo import DemoPlan, Story

HELP = "train a real small network on a simulated GPU and save energy on it"

_DEFAULT_OUT = "demo-output"
_DEFAULT_OBJECTIVE = "cost:eta=0.5"
_MOST_EPOCHS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from joulery.objectives import OBJECTIVE_HELP

    parser.add_argument("--board", default="V100", help="accelerator to simulate (default: V100)")
    parser.add_argument(
        "--objective",
        default=_DEFAULT_OBJECTIVE,
        help=f"{OBJECTIVE_HELP} (default: %(default)s)",
    )
    parser.add_argument(
        "--limits",
        metavar="LOW:HIGH:STEP",
        help="power limits to sweep in watts, or a list such as 100,150,250 "
        "(default: a spread over what the board accepts)",
    )
    parser.add_argument("--epochs", default="8", help="passes over the pictures (default: 8)")
    parser.add_argument("--seed", default="0", help="decides pictures and weights (default: 0)")
    parser.add_argument(
        "--out",
        metavar="DIR",
        default=_DEFAULT_OUT,
        help="where frontier.json, .html and .png go (default: ./%(default)s)",
    )
    parser.add_argument(
        "--recurring",
        action="store_true",
        help="train the network anew for a dozen nights, choosing its batch size; only --board "
        "and --seed apply",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration, write its files, print its story."""
    import json
    import sys
    from pathlib import Path

    from joulery.cli.progress import progress_line
    from joulery.demo import Demonstration, story_document, story_report
    from joulery.errors import FileError
    from joulery.reports import Terminal

    if arguments.recurring:
        return _recurring(arguments)
    plan = _plan(arguments)
    folder = writable_folder(Path(arguments.out))
    if (folder / "journal.jsonl").exists():
        raise FileError(
            f"{folder} holds the results of a sweep", remedy="choose another folder with --out"
        )
    try:
        story = Demonstration(plan, progress_line).run()
    finally:
        progress_line("")
    written, remarks = _write_files(story, arguments.objective, folder)
    if arguments.json:
        document = {
            **story_document(story),
            "objective": arguments.objective,
            "files": [str(path) for path in written],
            "remarks": remarks,
        }
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
        return 0
    text = story_report(story, arguments.objective).text(Terminal.of(sys.stdout, widest=80))
    files = f"Written: {', '.join(str(path) for path in written)}"
    more = "A dozen nights of it, with batch sizes chosen: joulery demo --recurring"
    sys.stdout.write("\n".join([text, "", more, files, *remarks]) + "\n")
    return 0


def _recurring(arguments: argparse.Namespace) -> int:
    """Night after night, as recurring runs."""
    import json
    import sys

    from joulery.cli.demo_recurring import recurring_document, recurring_text
    from joulery.cli.progress import progress_line
    from joulery.demo import RECIPE, RecurringPlan, retrain
    from joulery.hardware import catalog

    board = catalog.board(arguments.board)
    seed = whole_number(arguments.seed, "--seed", 0, 2**32)
    plan = RecurringPlan(
        board, catalog.workload("resnet50", board), recipe=replace(RECIPE, seed=seed)
    )
    try:
        story = retrain(plan, progress_line)
    finally:
        progress_line("")
    if arguments.json:
        sys.stdout.write(json.dumps(recurring_document(story), allow_nan=False) + "\n")
    else:
        sys.stdout.write(recurring_text(story) + "\n")
    return 0


def _plan(arguments: argparse.Namespace) -> DemoPlan:
    from joulery.cli.limits_argument import parse_limits
    from joulery.demo import DemoPlan, Recipe
    from joulery.hardware import catalog
    from joulery.objectives import parse_objective

    board = catalog.board(arguments.board)
    return DemoPlan(
        board,
        catalog.workload("resnet50", board),
        parse_objective(arguments.objective, board.max_limit_watts),
        parse_limits(arguments.limits) if arguments.limits is not None else (),
        Recipe(
            seed=whole_number(arguments.seed, "--seed", 0, 2**64 - 1),
            epochs=whole_number(arguments.epochs, "--epochs", 1, _MOST_EPOCHS),
        ),
    )


def _write_files(story: Story, objective: str, folder: Path) -> tuple[list[Path], list[str]]:
    """Write the frontier as JSON, HTML and PNG; the files written, and what could not be."""
    from joulery.demo import story_page
    from joulery.errors import FileError, MissingExtraError
    from joulery.reports import draw, write_png

    report = story_page(story, objective)
    data, page, picture = (folder / f"frontier.{kind}" for kind in ("json", "html", "png"))
    try:
        data.write_text(story.frontier.to_json() + "\n", encoding="utf-8")
        page.write_text(report.html(), encoding="utf-8")
    except OSError as refused:
        raise FileError(
            f"cannot write {refused.filename}: {refused.strerror}",
            remedy="choose another folder with --out",
        ) from None
    try:
        write_png([draw(chart) for chart in report.charts], picture)
    except MissingExtraError as missing:
        return [data, page], [f"No {picture.name}: {missing}"]
    return [data, page, picture], []
