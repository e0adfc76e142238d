"""``joulery demo``: the whole path in seconds, without a GPU."""

from __future__ import annotations

import logging
import os
import webbrowser
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from joulery import demo
from joulery.cli.dispatch import Output
from joulery.cli.extras import require
from joulery.cli.options import (
    OUT_REMEDY,
    Action,
    file,
    flag,
    limits,
    listen_option,
    option,
    whole,
    writable_folder,
    write_results,
)
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError
from joulery.hardware import catalog
from joulery.objectives import OBJECTIVE_HELP, parse_objective
from joulery.reports import Terminal, draw
from joulery.units import SECONDS_PER_DAY

if TYPE_CHECKING:
    import argparse

    from joulery.hardware import Board, Workload

_OBJECTIVE = "least-energy:slowdown=5%"
_LIVE_SECONDS = 3600.0  # for which a run has been under way in a new store (by hand)


def _run(arguments: argparse.Namespace) -> Output | int:
    progress = Progress()
    if arguments.serve:
        return _serve(arguments, progress)
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


def _serve(arguments: argparse.Namespace, progress: Progress) -> int:
    """Fill a store with a month of a team, unless it is there, and serve it."""
    from joulery import grid, server, storage

    require("server")
    path = writable_folder(arguments.out) / "team.sqlite"
    host, port = arguments.listen
    electricity = grid.electricity_price("DE", price=0.3, currency="EUR")  # an example, as shown
    config = server.ServerConfig(
        store=str(path),
        host=host.strip("[]"),
        port=port,
        log_level=logging.WARNING,  # a person reads what else the terminal shows
        electricity=electricity,
        notice="A demonstration: everything here is simulated.",
    )
    server.bound_socket(config).close()  # a port that is taken is said before the store is filled
    now = REAL_CLOCK.wall()
    is_new = not path.exists()
    if is_new:
        # In memory where there is such a folder: a month of commits takes a minute on some disks.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a new folder
        with TemporaryDirectory(prefix="joulery-demo-", dir=memory) as folder:
            draft = f"{folder}/team.sqlite"
            with storage.Store.open(draft) as store:
                demo.fill_team_store(store, now, progress.show, arguments.seed % 2**32)
            storage.backup(draft, path)
    with storage.Store.open(path) as store:
        record = storage.TokenRecord(
            storage.EVERY_TEAM, storage.Permission.MANAGE, "demonstration", now + SECONDS_PER_DAY
        )
        token, _ = store.write(lambda transaction: storage.add_token(transaction, record, now))
        live = demo.LiveRun(store, _LIVE_SECONDS if is_new else 0.0, arguments.seed)
    progress.done()

    def announce(ready: server.FirstStart) -> None:
        live.start(ready.address, token)
        text = (
            f"A month of a small team, all of it simulated, at {ready.address}\n"
            f"Log in with this token, which lasts a day: {token}\n"
            f"The store is {path}. Ctrl-C ends the server."
        )
        document = {"address": ready.address, "token": token, "store": str(path)}
        Output(document, text).announce(as_json=arguments.json)
        if arguments.open:
            webbrowser.open(ready.address)

    try:
        server.serve(config, announce)
    finally:
        with storage.Store.open(path) as store:
            live.end(store)
    return 0


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
    pictures = {
        "saved.png": [demo.saved_drawing(story, objective)],
        "frontier.png": [draw(chart) for chart in page.charts],
    }
    written, remarks = write_results(folder, texts, pictures)
    document = {"objective": objective, "files": written, "remarks": remarks}

    def text() -> str:
        page = demo.story_report(story, objective).text(Terminal.of(widest=80))
        files = f"Written: {', '.join(map(str, written))}"
        hint = (
            "A dozen nights of it, with batch sizes chosen: joulery demo --recurring\n"
            "On your own training:\n"
            f"    joulery run --objective {_OBJECTIVE} -- python train.py"
        )
        return "\n".join([page, "", hint, files, *remarks])

    return Output({**story.to_dict(), **document}, text)


COMMAND = Action(
    _run,
    (
        option("--device", "accelerator to simulate (default: %(default)s)", default="A40"),
        option("--objective", f"{OBJECTIVE_HELP} (default: {_OBJECTIVE}%)", default=_OBJECTIVE),
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
            "where saved.png, frontier.json, .html and .png go (default: ./%(default)s)",
            "DIR",
            default=Path("demo-output"),
        ),
        flag(
            "--recurring",
            "train the network anew for a dozen nights, choosing its batch size; only --device "
            "and --seed apply",
        ),
        flag(
            "--serve",
            "fill a store with a month of a small team on simulated boards, and serve its "
            "dashboard (needs joulery[server]); only --seed, --out, --listen and --open apply",
        ),
        listen_option("with --serve: address to listen on", ("127.0.0.1", 8420)),
        flag("--open", "with --serve: show the dashboard in a browser"),
    ),
)
