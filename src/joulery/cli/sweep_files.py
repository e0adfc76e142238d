"""Write what a sweep found: JSON, CSV, a page and a picture."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, MissingExtraError
from joulery.reports import draw, sweep_report, write_png

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.cli.sweep_setup import Setup
    from joulery.sweep.table import SweepTable

SCHEMA = "joulery.sweep/1"


def sweep_document(setup: Setup, table: SweepTable) -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "title": setup.title,
        "origin": table.origin,
        "source": table.sources,
        "energy_of": setup.energy_of,
        "plan": setup.plan.to_dict(),
        "default_limit_watts": table.default_watts,
        "settings": [setting.to_dict() for setting in table.settings],
        "best": [best.to_dict() for best in table.best()],
        "failed": [
            {
                "gpus": run.gpus,
                "power_limit_watts": run.watts,
                "repeat": run.repeat,
                "exit_code": run.exit_code,
            }
            for run in table.failures
        ],
    }
    if setup.published is not None:
        document["published"] = {
            "citation": setup.published.citation,
            "best": [
                {
                    "gpus": best.gpus,
                    "metric": best.metric.value,
                    "power_limit_watts": best.watts,
                    "gain_percent": best.gain,
                }
                for best in setup.published.best
            ],
            "times": [
                {"gpus": time.gpus, "power_limit_watts": time.watts, "seconds": time.seconds}
                for time in setup.published.times
            ],
        }
    return document


def csv_text(table: SweepTable) -> str:
    """One line per setting, with a header; unknown is empty."""
    written = io.StringIO()
    records = [setting.to_dict() for setting in table.settings]
    writer = csv.DictWriter(written, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return written.getvalue()


def write_files(setup: Setup, table: SweepTable, folder: Path) -> tuple[list[Path], list[str]]:
    """Write every form of the results; the files written, and what could not be.

    Raises:
        FileError: The folder cannot be written to.
    """
    summary = f"Energy is that of {setup.energy_of}. Gains are against the default limit."
    report = sweep_report(table, setup.title, summary, setup.published)
    texts = {
        "sweep.json": json.dumps(sweep_document(setup, table), allow_nan=False, indent=1) + "\n",
        "sweep.csv": csv_text(table),
        "sweep.html": report.html(),
        "frontier.json": table.frontier().to_json() + "\n",
    }
    written = []
    for name, text in texts.items():
        path = folder / name
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as refused:
            raise FileError(
                f"cannot write {path}: {refused.strerror}",
                remedy="make room, and run the same command again: the runs are kept",
            ) from None
        written.append(path)
    picture = folder / "sweep.png"
    try:
        write_png([draw(chart, 600) for chart in report.charts], picture, columns=2)
    except MissingExtraError as missing:
        return written, [f"No {picture.name}: {missing}"]
    return [*written, picture], []
