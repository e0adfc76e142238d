"""Files of a folder of plans: a pipeline plan, a recommendation, and what people leave there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from joulery.pipeline import plan_pipeline, read_profiles
from joulery.prediction import Work, recommend

if TYPE_CHECKING:
    from pathlib import Path

_LLAMA = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "feedforward": 14336,
    "vocabulary": 128256,
    "sequence": 8192,
    "name": "llama-8b",
}


def save_plans(folder: Path) -> None:
    """Write a plan, a recommendation, a torn plan and a foreign file into a new folder."""
    folder.mkdir()
    rows = ["stage,instruction,frequency,time,energy"]
    for stage in range(4):
        for kind, work in (("forward", 1.0), ("backward", 2.0)):
            for clock, slower, joules in ((1400, 1.0, 30.0), (1200, 1.1, 25.0), (1000, 1.25, 22.0)):
                seconds = 0.01 * (1 + 0.1 * stage) * work * slower
                rows.append(f"{stage},{kind},{clock},{seconds},{work * joules}")
    profile = folder / "profile.csv"
    profile.write_text("\n".join(rows))
    plan_pipeline(read_profiles(profile), schedule="1f1b", microbatches=6).save(folder / "gpt.json")
    work = Work(1e11, 512, deadline_seconds=30 * 86_400.0)
    recommendation = recommend(_LLAMA, work, ["h100", "a100"])
    (folder / "llama.json").write_text(json.dumps(recommendation.to_dict()))
    (folder / "torn.json").write_bytes((folder / "gpt.json").read_bytes()[:3000])
    (folder / "foreign.json").write_text('{"a": 1}')
