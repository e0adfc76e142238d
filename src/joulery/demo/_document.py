"""The story as plain data, ready for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulery.demo._recurring import RecurringStory
    from joulery.demo._story import DemoEpoch, Story, TrainingRun
    from joulery.objectives import Gains

NOTE = "seconds, joules and watts are simulated; loss and accuracy are real"


def story_document(story: Story) -> dict[str, Any]:
    """Every figure of the story; each cost carries its origin."""
    recipe = story.plan.recipe
    return {
        "origin": story.default.cost.provenance.origin.value,
        "note": NOTE,
        "board": story.plan.board.name,
        "workload": story.plan.workload.name,
        "seed": recipe.seed,
        "steps_per_epoch": recipe.steps_per_epoch,
        "untrained_accuracy": story.untrained_accuracy,
        "default": _run(story.default),
        "sweep": [
            {**swept.cost.to_dict(), "first_epoch_accuracy": swept.learned.accuracy}
            for swept in story.sweep
        ],
        "frontier": story.frontier.to_dict(),
        "chosen": story.chosen.to_dict(),
        "retrained": _run(story.retrained),
        "expected": _gains(story.expected),
        "saved": {
            "joules": story.default.cost.joules - story.retrained.cost.joules,
            "extra_seconds": story.retrained.cost.seconds - story.default.cost.seconds,
            **_gains(story.saved),
        },
        "same_weights": story.same_weights,
    }


def _run(run: TrainingRun) -> dict[str, Any]:
    return {
        **run.cost.to_dict(),
        "mean_watts": run.cost.watts,
        "loss": run.final.loss,
        "accuracy": run.final.accuracy,
        "epochs": [_epoch(epoch) for epoch in run.epochs],
    }


def _epoch(epoch: DemoEpoch) -> dict[str, Any]:
    return {
        "epoch": epoch.learned.epoch,
        "loss": epoch.learned.loss,
        "accuracy": epoch.learned.accuracy,
        "seconds": epoch.seconds,
        "joules": epoch.joules,
    }


def _gains(found: Gains) -> dict[str, float]:
    return {"energy_saved_percent": found.energy, "time_lost_percent": found.time}


def recurring_document(story: RecurringStory) -> dict[str, Any]:
    """The nights as plain data."""
    energy, time = story.saved()
    return {
        "board": story.plan.board.name,
        "origin": "simulated",
        "default": story.plan.default,
        "target": story.plan.target,
        "nights": [asdict(night) for night in story.nights],
        "unchanged": [asdict(night) for night in story.unchanged],
        "saved": {"energy": energy, "time": time},
    }
