"""Make the figures of Zeus (NSDI'23) again: ``python -m papers.zeus --data DIR --out DIR``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError, JouleryError
from joulery.reports import table_text
from joulery.simulate import generate_groups, read_groups
from papers.zeus.claims import HEADERS, claim_rows, headline
from papers.zeus.output import new_folder, write_reproduction
from papers.zeus.study import (
    CLUSTER_FIGURE,
    FULL,
    QUICK,
    Effort,
    Study,
    missing_parts,
    published_traces,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.simulate import JobGroups

_MOST_SEEDS = 10_000
_JOBS = 20_000
_QUICK_JOBS = 4_000


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.zeus",
        description="Make the figures of Zeus (NSDI'23) again, next to the published ones.",
        epilog="DIR has summary_train.csv and summary_power_GPU.csv of the public artifact (folder "
        "trace of github.com/ml-energy/zeus). All GPUs that are there are shown; what is missing "
        "is listed. The output folder appears when all of it is done.",
    )
    parser.add_argument("--data", metavar="DIR", required=True, type=Path)
    parser.add_argument("--out", metavar="DIR", default="zeus-output", type=Path)
    parser.add_argument("--figures", metavar="N,N", default="", help="only these figures")
    parser.add_argument(
        "--seeds", metavar="N", type=int, help="jobs per workload where policies are compared"
    )
    parser.add_argument("--quick", action="store_true", help="fewer seeds and jobs, for a look")
    parser.add_argument(
        "--groups",
        metavar="FILE",
        type=Path,
        help="Fig. 9: CSV of group, submit_seconds, duration_seconds",
    )
    parser.add_argument(
        "--jobs",
        metavar="FILE",
        type=Path,
        help="Fig. 9: make groups from a list of jobs (Philly or Alibaba PAI) instead; default is "
        "philly.csv in a folder jobs next to the traces, where there is one",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def figure_numbers(text: str) -> list[int]:
    """The numbers of figures in ``text``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidValueError(
            f"--figures {text!r} are no numbers of figures", remedy="write --figures 1,6,7"
        )
    return [int(part) for part in parts]


def effort_of(arguments: argparse.Namespace) -> Effort:
    """The amount of simulation that the options ask for."""
    effort = QUICK if arguments.quick else FULL
    seeds = arguments.seeds
    if seeds is None:
        return effort
    if not 2 <= seeds <= _MOST_SEEDS:
        raise InvalidValueError(
            f"--seeds {seeds} is out of range",
            remedy=f"give 2, which an interval needs, to {_MOST_SEEDS}",
        )
    return replace(effort, seeds=seeds, sweep_seeds=min(effort.sweep_seeds, seeds))


def groups_of(arguments: argparse.Namespace) -> JobGroups | None:
    """The groups of a cluster's jobs that the options name, or that lie next to the traces."""
    if arguments.groups:
        return read_groups(arguments.groups)
    count = _QUICK_JOBS if arguments.quick else _JOBS
    nearby = [folder / "jobs" / "philly.csv" for folder in (arguments.data, arguments.data.parent)]
    for path in [arguments.jobs] if arguments.jobs else filter(Path.exists, nearby):
        return generate_groups(path, count)
    return None


def reproduce(arguments: argparse.Namespace) -> str:
    """Simulate, draw and write; the text to print."""
    numbers, effort = figure_numbers(arguments.figures), effort_of(arguments)
    traces = published_traces(arguments.data)

    def show(what: str, share: float) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{what}: {100 * share:.0f} %".ljust(60))

    with new_folder(arguments.out) as folder:
        groups = groups_of(arguments) if not numbers or CLUSTER_FIGURE in numbers else None
        study = Study(traces.workloads, effort, groups, show)
        missing = missing_parts(
            traces.workloads, own_groups=bool(arguments.groups), some_groups=groups is not None
        )
        figures = study.figures(numbers)
        document, results = write_reproduction(
            figures, folder, effort.seeds, missing, traces.remarks
        )
    if arguments.json:
        return json.dumps(document | {"out": str(arguments.out)}, allow_nan=False)
    lines = [f"{value}: {words}" for value, words in headline(results, effort.seeds)]
    if results:
        lines += ["", table_text(HEADERS, claim_rows(results), "lllrrrrr")]
    lines += ["", *(f"missing: {line}" for line in missing), *document["remarks"]]
    return "\n".join([*lines, f"Written: {arguments.out}/index.html"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 done, 2 wrong use or wrong data."""
    try:
        sys.stdout.write(reproduce(make_parser().parse_args(argv)) + "\n")
    except JouleryError as error:
        sys.stderr.write(f"{error.message}\n  → {error.remedy}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
