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
    write_results,
)
from joulery.cli.progress import Progress
from joulery.errors import FileError
from joulery.hardware import catalog
from joulery.objectives import OBJECTIVE_HELP, parse_objective
from joulery.reports import Terminal

if TYPE_CHECKING:
    import argparse

    from joulery.hardware import Board, Workload


def _run(arguments: argparse.Namespace) -> Output:
    progress = Progress()
    board = catalog.board(arguments.device)
    workload = catalog.workload("resnet50", board)
    try:
        if arguments.recurring:
            recipe = replace(demo.RECIPE, seed=arguments.seed % 2**32)
            plan = demo.RecurringPlan(board, workload, recipe=recipe)
            nights = demo.retrain(plan, progress.show)
            return Output(nights.to_dict(), lambda: demo.recurring_text(nights))
        return _story(arguments, board, workload, progress)
    finally:
        progress.done()


def _story(
    arguments: argparse.Namespace, board: Board, workload: Workload, progress: Progress
) -> Output:
    """Train, sweep, choose, train again; written to files, too."""
    objective = arguments.objective
    plan = demo.DemoPlan(
        board,
        workload,
        parse_objective(objective, board.max_limit_watts),
        arguments.limits or (),
        demo.Recipe(seed=arguments.seed, epochs=arguments.epochs),
    )
    folder = writable_folder(arguments.out)
    if (folder / "journal.jsonl").exists():
        raise FileError(f"{folder} holds the results of a sweep", remedy=OUT_REMEDY)
    story = demo.Demonstration(plan, progress.show).run()
    page = demo.story_page(story, objective)
    texts = {"frontier.json": story.frontier.to_json() + "\n", "frontier.html": page.html()}
    written, remarks = write_results(folder, texts, page.charts, "frontier.png")
    document = {"objective": objective, "files": written, "remarks": remarks}

    def text() -> str:
        page = demo.story_report(story, objective).text(Terminal.of(widest=80))
        files = f"Written: {', '.join(map(str, written))}"
        hint = "A dozen nights of it, with batch sizes chosen: joulery demo --recurring"
        return "\n".join([page, "", hint, files, *remarks])

    return Output({**story.to_dict(), **document}, text)


COMMAND = Action(
    _run,
    (
        option("--device", "accelerator to simulate (default: V100)", default="V100"),
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
            "train the network anew for a dozen nights, choosing its batch size; only --device "
            "and --seed apply",
        ),
    ),
)
