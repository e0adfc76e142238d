"""The pipelines that are planned: every profile found, cut to size, and random ones."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.pipeline import PipelineConfig, build_problem, make_schedule, profiles_from_rows

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.pipelines import random_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.pipeline import PipelineProblem

# While blocked on communication, as the authors of the profiles used it.
BLOCKING_WATTS = {"a40": 70.38, "a100": 83.64}
OTHER_BLOCKING_WATTS = 75.0


@dataclass(frozen=True, slots=True)
class Case:
    """One pipeline to plan.

    Attributes:
        name: The profile's, or ``random`` and its seed.
        stages: How many.
        microbatches: How many.
        path: The profile's file; None for a random one.
        seed: Of a random one.
    """

    name: str
    stages: int
    microbatches: int
    path: Path | None = None
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.stages} × {self.microbatches}"

    @property
    def instructions(self) -> int:
        """How many there are to plan."""
        return 2 * self.stages * self.microbatches

    def problem(self, slower_stage: int | None = None) -> PipelineProblem:
        """1F1B on the measurements as they are; one stage 10 % slower if asked for."""
        rows = random_rows(self.stages, self.seed) if self.path is None else self._rows()
        if slower_stage is not None:
            rows = [
                {**row, "time": 1.1 * float(row["time"])} if row["stage"] == slower_stage else row
                for row in rows
            ]
        watts = next(
            (watts for word, watts in BLOCKING_WATTS.items() if word in self.name.lower()),
            OTHER_BLOCKING_WATTS,
        )
        profiles = profiles_from_rows(rows, source=self.name, smooth=False)
        order = make_schedule("1f1b", self.stages, self.microbatches)
        return build_problem(order, profiles, PipelineConfig(blocking_watts=watts))

    def _rows(self) -> list[dict[str, Any]]:
        """First stages of the profile over and over, and its last stage last."""
        by_stage = rows_by_stage(self.path) if self.path else {}
        measured = len(by_stage)
        body = max(1, measured - 1)
        rows: list[dict[str, Any]] = []
        for stage in range(self.stages):
            source = measured - 1 if stage == self.stages - 1 else stage % body
            rows += [{**row, "stage": stage} for row in by_stage[source]]
        return rows


def rows_by_stage(path: Path) -> dict[int, list[dict[str, Any]]]:
    """What a profile says about each stage."""
    found: dict[int, list[dict[str, Any]]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["stage"]), []).append(dict(row))
    return dict(sorted(found.items()))


def profile_paths(data: Path) -> list[Path]:
    """Every profile there is."""
    return sorted((data / "pipeline" / "profiles").glob("*.csv"))


def cases(data: Path, *, quick: bool) -> Iterator[Case]:
    """What is compared with lowtime and with HiGHS."""
    # Those with the most stages first: a quick run compares only the first few with lowtime.
    paths = sorted(profile_paths(data), key=lambda path: -len(rows_by_stage(path)))
    for path in paths:
        yield Case(path.stem, 4, 8, path)
    yield Case("random 1", 4, 8, seed=1)
    for path in paths:
        if len(rows_by_stage(path)) >= 8:
            yield Case(path.stem, 8, 16, path)
            if not quick:
                yield Case(path.stem, 16, 8, path)
    yield Case("random 2", 8, 16, seed=2)
    if not quick:
        yield Case("random 3", 4, 8, seed=3)
        yield Case("random 4", 16, 8, seed=4)


def large_cases(data: Path, *, quick: bool, huge: bool) -> Iterator[Case]:
    """What only we plan; the huge one takes long."""
    measured = [path for path in profile_paths(data) if len(rows_by_stage(path)) >= 8]
    sizes = [(8, 96), (16, 32)] if quick else [(8, 96), (8, 128), (16, 64), (32, 128)]
    for stages, microbatches in sizes:
        for path in measured:
            yield Case(path.stem, stages, microbatches, path)
        yield Case("random 1", stages, microbatches, seed=1)
    if huge:
        for path in measured[-1:]:
            yield Case(path.stem, 64, 512, path)


def published(data: Path) -> Iterator[tuple[Case, list[tuple[float, float]]]]:
    """Frontiers that were published for a profile here: (case, [(seconds, joules)])."""
    profiles = {frozenset(_words(path.stem)): path for path in profile_paths(data)}
    for path in sorted((data / "pipeline" / "published_frontiers").glob("*_mb*.csv")):
        words = set(_words(path.stem))
        fitting = [profile for names, profile in profiles.items() if names <= words]
        if not fitting:
            continue
        microbatches = int(path.stem.rsplit("_mb", 1)[1])
        with path.open(encoding="utf-8") as file:
            rows = [(float(row["time"]), float(row["energy"])) for row in csv.DictReader(file)]
        stages = len(rows_by_stage(fitting[0]))
        yield Case(fitting[0].stem, stages, microbatches, fitting[0]), sorted(rows)


def _words(stem: str) -> list[str]:
    return stem.lower().split("_")
