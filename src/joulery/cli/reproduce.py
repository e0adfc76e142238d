"""``joulery reproduce``: a publication's figures, made again from its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from joulery.simulate.cluster_groups import Groups
    from joulery.simulate.reproduce_claims import Claim

_DEFAULT_OUT = "zeus-output"
_MOST_SEEDS = 10_000
_JOBS = 20_000
_QUICK_JOBS = 4_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = (
        "DIR has summary_train.csv and summary_power_GPU.csv of the public artifact of Zeus\n"
        "(NSDI'23; folder trace of github.com/ml-energy/zeus). Every GPU that is there is shown;\n"
        "what is missing is listed. The output folder appears when all of it is done.\n\n"
        "example: joulery reproduce zeus --traces DIR --out zeus-output --figures 1,6,7"
    )
    parser.add_argument("publication", choices=["zeus"], help="what to reproduce")
    parser.add_argument("--traces", metavar="DIR", required=True, help="folder of traces")
    parser.add_argument(
        "--out",
        metavar="DIR",
        default=_DEFAULT_OUT,
        help="where pictures, tables and the page go (default: ./%(default)s)",
    )
    parser.add_argument(
        "--figures", metavar="N,N", default="", help="only these figures of the publication"
    )
    parser.add_argument(
        "--seeds", metavar="N", help="jobs per workload where policies are compared (default: 100)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer seeds and jobs, for a look")
    parser.add_argument(
        "--groups", metavar="FILE", help="Fig. 9: CSV of group, submit_seconds, duration_seconds"
    )
    parser.add_argument(
        "--jobs",
        metavar="FILE",
        help="Fig. 9: make groups from a list of jobs (Philly or Alibaba PAI) instead; default is "
        "philly.csv in a folder jobs beside the traces, where there is one",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, draw, write, and say what was found."""
    import sys
    from pathlib import Path

    from joulery.cli.progress import Progress
    from joulery.cli.reproduce_files import Reproduction, new_folder, write_reproduction
    from joulery.simulate.reproduce import Study
    from joulery.simulate.reproduce_missing import found_traces, missing_parts

    numbers = _figure_numbers(arguments.figures)
    effort = _effort(arguments)
    traces = found_traces(Path(arguments.traces))
    progress = Progress()

    def show(what: str, share: float) -> None:
        progress.show(f"joulery: {what}: {100 * share:.0f} %")

    with new_folder(Path(arguments.out)) as folder:
        groups = _groups(arguments) if not numbers or 9 in numbers else None
        study = Study(traces.workloads, effort, groups, show)
        missing = missing_parts(
            traces.workloads, own_groups=bool(arguments.groups), some_groups=groups is not None
        )
        made = Reproduction(effort.seeds, tuple(missing), traces.remarks)
        document, claims = write_reproduction(study.figures(numbers), made, folder, progress.show)
        progress.done()
    document["out"] = arguments.out
    sys.stdout.write(_json(document) if arguments.json else _text(document, claims))
    return 0


def _figure_numbers(text: str) -> list[int]:
    from joulery.cli.checked import whole_number

    return [whole_number(part.strip(), "--figures", 1, 99) for part in text.split(",") if part]


def _effort(arguments: argparse.Namespace) -> Any:
    from dataclasses import replace

    from joulery.cli.checked import whole_number
    from joulery.simulate.reproduce import FULL, QUICK

    effort = QUICK if arguments.quick else FULL
    if arguments.seeds is None:
        return effort
    seeds = whole_number(arguments.seeds, "--seeds", 2, _MOST_SEEDS)
    return replace(effort, seeds=seeds, sweep_seeds=max(2, min(effort.sweep_seeds, seeds)))


def _groups(arguments: argparse.Namespace) -> Groups | None:
    from pathlib import Path

    from joulery.simulate.cluster_generate import generated
    from joulery.simulate.cluster_groups import read_groups

    if arguments.groups:
        return read_groups(Path(arguments.groups))
    count = _QUICK_JOBS if arguments.quick else _JOBS
    if arguments.jobs:
        return generated(Path(arguments.jobs), count)
    traces = Path(arguments.traces)
    for folder in (traces, traces.parent):
        if (folder / "jobs" / "philly.csv").exists():
            return generated(folder / "jobs" / "philly.csv", count)
    return None


def _json(document: dict[str, Any]) -> str:
    import json

    return json.dumps(document, allow_nan=False) + "\n"


def _text(document: dict[str, Any], claims: list[Claim]) -> str:
    from joulery.cli.reproduce_view.words import HEADERS, claim_rows, headline
    from joulery.cli.table import table

    lines = [f"{figure}: {words}" for figure, words in headline(claims, document["seeds"])]
    if claims:
        lines += ["", table(HEADERS, claim_rows(claims), "lllrrrrr")]
    lines += ["", *(f"missing: {line}" for line in document["missing"]), *document["remarks"]]
    count = sum(len(figure["files"]) for figure in document["figures"])
    lines += ["", f"Written: {document['out']}/index.html and {count} files beside it"]
    return "\n".join(lines) + "\n"
