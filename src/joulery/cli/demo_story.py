"""The demonstration as text for people, every simulated figure marked as such."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from joulery.cli.frontier_view import FrontierView, joules_unit, seconds_unit, terminal_plot
from joulery.cli.table import table
from joulery.objectives import gains

if TYPE_CHECKING:
    from joulery.cli.frontier_view import Canvas, Unit
    from joulery.demo.story import Story, TrainingRun

_INDENT = "   "


def frontier_view(story: Story, objective: str) -> FrontierView:
    """What to draw of the story."""
    plan = story.plan
    return FrontierView(
        story.frontier,
        f"Time and energy of one training run on a simulated {plan.board.name}",
        tuple(swept.cost for swept in story.sweep),
        story.reference,
        story.chosen,
        objective,
    )


def story_text(story: Story, objective: str, canvas: Canvas) -> str:
    """The whole story."""
    sections = (
        ("Train once as the board comes", _default_run(story)),
        ("Sweep the power limit", _sweep(story)),
        ("The frontier", terminal_plot(frontier_view(story, objective), canvas)),
        ("Choose", _choice(story, objective)),
        ("Train again under the chosen limit", _second_run(story)),
    )
    parts = [_opening(story, canvas)]
    for number, (heading, body) in enumerate(sections, start=1):
        parts.append(canvas.paint(f"{number}. {heading}", "1") + f"\n\n{_indented(body)}")
    return "\n\n".join(parts)


def saved_sentence(story: Story) -> str:
    """What came of it, in one sentence."""
    first, second = story.default.cost, story.retrained.cost
    if second.setting == first.setting:
        return "The objective keeps the default limit, so there is nothing to save (simulated)."
    energy, time = _units(story)
    joules, seconds = first.joules - second.joules, second.seconds - first.seconds
    saved = story.saved
    verb = "saved" if joules >= 0 else "spent an extra"
    pace = "longer" if seconds >= 0 else "less"
    return (
        f"The second run {verb} {energy.text(abs(joules))} (simulated), {abs(saved.energy):.1f} % "
        f"of the energy, and took {time.text(abs(seconds))} {pace} (simulated), "
        f"{abs(saved.time):.1f} % of the time."
    )


def _units(story: Story) -> tuple[Unit, Unit]:
    """Units of energy and time that suit every whole run of the story."""
    runs = [swept.cost for swept in story.sweep] + [story.default.cost]
    return joules_unit(run.joules for run in runs), seconds_unit(run.seconds for run in runs)


def _opening(story: Story, canvas: Canvas) -> str:
    plan, recipe = story.plan, story.plan.recipe
    title = canvas.paint(f"A real network on a simulated {plan.board.name}", "1")
    about = (
        f"NumPy learns to read {recipe.pictures} noisy digits, {recipe.steps_per_epoch} steps of "
        f"{recipe.batch_size} pictures per epoch; seed {recipe.seed}. Loss and accuracy are real. "
        "Seconds, joules and watts are SIMULATED: they are what a model of the board takes for "
        f"as many steps of {plan.workload.name}, on a virtual clock. No GPU is used."
    )
    return f"{title}\n{_filled(about)}"


def _default_run(story: Story) -> str:
    energy, time = _units(story)
    rows = [
        ["0", "", _share(story.untrained_accuracy), "", ""],
        *(
            [
                str(epoch.learned.epoch),
                f"{epoch.learned.loss:.3f}",
                _share(epoch.learned.accuracy),
                time.text(epoch.seconds),
                energy.text(epoch.joules),
            ]
            for epoch in story.default.epochs
        ),
        [
            "all",
            "",
            "",
            time.text(story.default.cost.seconds),
            energy.text(story.default.cost.joules),
        ],
    ]
    headers = ["epoch", "loss (real)", "accuracy (real)", "time (simulated)", "energy (simulated)"]
    return table(headers, rows, "rrrrr")


def _sweep(story: Story) -> str:
    energy, time = _units(story)
    rows = []
    for swept in story.sweep:
        against = gains(swept.cost, story.reference)
        rows.append(
            [
                _limit(swept.cost.setting.power_limit_watts),
                time.text(swept.cost.seconds),
                energy.text(swept.cost.joules),
                f"{swept.cost.watts:.0f} W",
                _percent(against.energy),
                _percent(against.time),
                str(swept.cost.provenance.origin),
            ]
        )
    headers = ["limit", "time", "energy", "mean power", "energy saved", "time lost", "figures"]
    accuracies = sorted({_share(swept.learned.accuracy) for swept in story.sweep})
    reached = " to ".join((accuracies[0], accuracies[-1])[: len(accuracies)])
    return (
        _filled(
            f"One epoch from the start under each limit, times {story.plan.recipe.epochs} for a "
            "whole run; saved and lost against the default limit."
        )
        + f"\n\n{table(headers, rows, 'rrrrrrl')}\n\n"
        + _filled(f"Accuracy after that epoch (real): {reached} under every limit.")
    )


def _choice(story: Story, objective: str) -> str:
    foretold, choices = story.foretold, len(story.frontier)
    energy = f"{abs(foretold.energy):.1f} % {'less' if foretold.energy >= 0 else 'more'} energy"
    time = f"{abs(foretold.time):.1f} % {'more' if foretold.time >= 0 else 'less'} time"
    return _filled(
        f"Of {choices} point{'s' * (choices > 1)} on the frontier, {objective} picks "
        f"{_limit(story.chosen.setting.power_limit_watts)}. By the sweep it takes {energy} "
        f"(simulated) and {time} (simulated) than the default limit of "
        f"{_limit(story.plan.board.default_limit_watts)}."
    )


def _second_run(story: Story) -> str:
    energy, time = _units(story)

    def row(name: str, run: TrainingRun) -> list[str]:
        return [
            name,
            _limit(run.cost.setting.power_limit_watts),
            time.text(run.cost.seconds),
            energy.text(run.cost.joules),
            _share(run.final.accuracy),
        ]

    rows = [row("first", story.default), row("second", story.retrained)]
    headers = ["run", "limit", "time (simulated)", "energy (simulated)", "accuracy (real)"]
    if story.same_weights:
        learned = "Both runs took the same steps to the same weights, bit for bit (real)."
    else:
        learned = "The runs ended with different weights: this machine's arithmetic varies (real)."
    return (
        f"{table(headers, rows, 'lrrrr')}\n\n{_filled(saved_sentence(story))}\n{_filled(learned)}"
    )


def _limit(watts: float | None) -> str:
    return "as found" if watts is None else f"{watts:g} W"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _percent(per_cent: float) -> str:
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(per_cent, 1) + 0.0:.1f} %"


def _filled(text: str) -> str:
    return textwrap.fill(text, width=76)


def _indented(text: str) -> str:
    return textwrap.indent(text, _INDENT)
