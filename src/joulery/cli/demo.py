"""``joulery demo``: the whole path in seconds, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from joulery import demo
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    OUT_REMEDY,
    Action,
    file,
    flag,
    limits,
    option,
    whole,
    writable_folder,
    write_file,
)
from joulery.cli.progress import progress_line
from joulery.errors import FileError, MissingExtraError
from joulery.hardware import catalog
from joulery.objectives import OBJECTIVE_HELP, parse_objective
from joulery.reports import Terminal, draw, write_png

if TYPE_CHECKING:
    import argparse


def _run(arguments: argparse.Namespace) -> Output:
    try:
        return _nights(arguments) if arguments.recurring else _story(arguments)
    finally:
        progress_line("")


def _story(arguments: argparse.Namespace) -> Output:
    plan = _plan(arguments)
    folder = writable_folder(arguments.out)
    if (folder / "journal.jsonl").exists():
        raise FileError(f"{folder} holds the results of a sweep", remedy=OUT_REMEDY)
    story = demo.Demonstration(plan, progress_line).run()
    written, remarks = _write_files(story, arguments.objective, folder)
    document = {
        **demo.story_document(story),
        "objective": arguments.objective,
        "files": written,
        "remarks": remarks,
    }

    def text() -> str:
        shown = demo.story_report(story, arguments.objective).text(Terminal.of(widest=80))
        files = f"Written: {', '.join(map(str, written))}"
        more = "A dozen nights of it, with batch sizes chosen: joulery demo --recurring"
        return "\n".join([shown, "", more, files, *remarks])

    return Output(document, text)


def _nights(arguments: argparse.Namespace) -> Output:
    """Night after night, as recurring runs."""
    board = catalog.board(arguments.board)
    recipe = replace(demo.RECIPE, seed=arguments.seed % 2**32)
    plan = demo.RecurringPlan(board, catalog.workload("resnet50", board), recipe=recipe)
    story = demo.retrain(plan, progress_line)
    return Output(demo.recurring_document(story), lambda: demo.recurring_text(story))


def _plan(arguments: argparse.Namespace) -> demo.DemoPlan:
    board = catalog.board(arguments.board)
    return demo.DemoPlan(
        board,
        catalog.workload("resnet50", board),
        parse_objective(arguments.objective, board.max_limit_watts),
        arguments.limits or (),
        demo.Recipe(seed=arguments.seed, epochs=arguments.epochs),
    )


def _write_files(story: demo.Story, objective: str, folder: Path) -> tuple[list[Path], list[str]]:
    """Write the frontier as JSON, HTML and PNG; the files written, and what could not be."""
    report = demo.story_page(story, objective)
    data, page, picture = (folder / f"frontier.{kind}" for kind in ("json", "html", "png"))
    write_file(data, story.frontier.to_json() + "\n", "--out")
    write_file(page, report.html(), "--out")
    try:
        write_png([draw(chart) for chart in report.charts], picture)
    except MissingExtraError as missing:
        return [data, page], [f"No {picture.name}: {missing}"]
    return [data, page, picture], []


COMMAND = Action(
    _run,
    (
        option("--board", "accelerator to simulate (default: V100)", default="V100"),
        option("--objective", f"{OBJECTIVE_HELP} (default: %(default)s)", default="cost:eta=0.5"),
        option(
            "--limits",
            "power limits to sweep in watts, or a list such as 100,150,250 "
            "(default: a spread over what the board accepts)",
            "LOW:HIGH:STEP",
            limits,
        ),
        option("--epochs", "passes over the pictures (8)", read=whole(1, 1000), default=8),
        option("--seed", "decides pictures and weights (0)", read=whole(0, 2**64 - 1), default=0),
        file(
            "--out",
            "where frontier.json, .html and .png go (default: ./%(default)s)",
            "DIR",
            default=Path("demo-output"),
        ),
        flag(
            "--recurring",
            "train the network anew for a dozen nights, choosing its batch size; only --board "
            "and --seed apply",
        ),
    ),
)
