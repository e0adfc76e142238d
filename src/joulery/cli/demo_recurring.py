"""The nights of ``joulery demo --recurring`` as text and as a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulery.reports import table_text as table
from joulery.units import human, human_duration, per_cent

if TYPE_CHECKING:
    from joulery.demo import RecurringStory

_LATEST = 5


def recurring_text(story: RecurringStory) -> str:
    """The story for people."""
    plan = story.plan
    rows = []
    for number, (night, before) in enumerate(zip(story.nights, story.unchanged, strict=True), 1):
        rows.append(
            [
                str(number),
                " → ".join(map(str, night.batch_sizes)),
                str(night.epochs),
                per_cent(night.accuracy),
                human(night.limit_watts, "W"),
                human_duration(night.seconds),
                human(night.joules, "J"),
                human(before.joules, "J"),
                night.reason,
            ]
        )
    allowed = ", ".join(map(str, plan.batch_sizes))
    good = per_cent(plan.target)
    headers = ["night", "batch size", "epochs", "accuracy", "limit"]
    headers += ["time", "energy", "unchanged", "why"]
    return "\n".join(
        [
            f"A small network is trained anew every night, until it reads {good} of the pictures.",
            f"Its owner would run batch size {plan.default}; allowed are {allowed}.",
            f"Learning is real. Time and energy are simulated ({plan.board.name}).",
            "",
            table(headers, rows, "rrrrrrrrl"),
            "",
            _saved(story, None, f"All {len(story.nights)} nights"),
            _saved(story, min(_LATEST, len(story.nights)), "The last of them"),
        ]
    )


def _saved(story: RecurringStory, latest: int | None, what: str) -> str:
    energy, time = (_compared(share) for share in story.saved(latest))
    return f"{what}: {energy} energy and {time} time than with nothing changed (simulated)."


def _compared(share: float) -> str:
    return f"{per_cent(abs(share))} {'less' if share >= 0 else 'more'}"


def recurring_document(story: RecurringStory) -> dict[str, Any]:
    """The same for programs."""
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
