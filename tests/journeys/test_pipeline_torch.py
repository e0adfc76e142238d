"""Journey on a pipeline of torch itself: four processes over gloo, each with an emulated board."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from joulery.cli import main as joulery
from joulery.hardware import catalog, settle
from joulery.pipeline import read_profiles
from support.journeys import BOARDS
from support.torch_on_use import needs_torch
from support.virtual_pipelines import stage_works, write_measured

pytestmark = [pytest.mark.slow, needs_torch]

SCRIPT = Path(__file__).parents[1] / "support" / "torch_pipelines.py"
RANKS = 4


@pytest.fixture
def stages(draw, tmp_path):
    """The board and the work of four unequal stages, also in a file for the ranks."""
    name = draw.choice(BOARDS)
    works = {key: work.scaled(0.1) for key, work in stage_works(draw, RANKS).items()}
    document = {"board": name, "works": [[key[0], asdict(work)] for key, work in works.items()]}
    (tmp_path / "stages.json").write_text(json.dumps(document))
    print(name, works)  # noqa: T201 - pytest shows it on failure
    return catalog.board(name), works


def train(folder):
    """Results of all ranks, and what they wrote to stderr."""
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env={
            "PYTHONPATH": f"{SCRIPT.parents[2] / 'src'}:{SCRIPT.parents[1]}",
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "JOULERY_GOVERNOR_STATE": str(folder / "governor"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr[-5000:]
    results = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return results, finished.stderr


def plan(folder, name, *options):
    """Plan the measured stages, as a user would."""
    profile = ["--profile", str(folder / "stages.csv"), "--out", str(folder / name)]
    assert joulery(["plan", "pipeline", *profile, *options]) == 0


def test_plans_are_followed_where_they_fit_and_profiles_made_in_place(stages, tmp_path):
    """A wrong plan lowers clocks in silence, or a running pipeline cannot be profiled."""
    board, works = stages
    write_measured(tmp_path / "stages.csv", board, works)
    chunks = ("--schedule", "interleaved", "--chunks", "2")
    for name, *options in (("plan", "4"), ("more", "8"), ("chunks", "4", *chunks)):
        plan(tmp_path, f"{name}.json", "--microbatches", *options)
    results, errors = train(tmp_path)
    reasons = {"neighbour": "stages", "more": "4 of 8 planned microbatches", "chunks": "stages"}
    for result in results:
        for case, reason in reasons.items():
            assert result[case]["lowest"] == result["full"]["lowest"], case
            assert reason in result[case]["reason"]
        assert result["right"]["reason"] == ""
        assert not any(result[case]["failure"] for case in (*reasons, "right"))
    # The right plan lowers clocks wherever they can be held long enough.
    assert any(result["right"]["lowest"] != result["full"]["lowest"] for result in results)
    assert errors.count("pipeline clocks stay full") == len(reasons) * RANKS
    profiles = [result["profile"] for result in results]
    if any("% only after" in profile["failure"] for profile in profiles):
        return  # refused, as the times of a machine that is too busy must be
    assert profiles[0]["code"] == 0
    for rank, profile in enumerate(profiles):
        assert (profile["failure"], profile["reason"]) == ("", "")
        rows = json.loads((tmp_path / "profile" / f"rank{rank}.json").read_text())
        assert len(rows) == 6
        for row in rows:
            work = works[rank, row["instruction"]]
            truth = settle(board, work, board.default_limit_watts, 1e6 * row["frequency"] + 1)
            assert row["time"] >= 0.99 * truth.seconds
    links = read_profiles(tmp_path / "profile").communication_seconds
    assert len(links) == RANKS - 1
    assert all(0 <= seconds < 60 for seconds in links)
