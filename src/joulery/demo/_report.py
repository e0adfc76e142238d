"""The demonstration as a report for people, every simulated figure marked as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.objectives import gains
from joulery.reports import (
    Heading,
    Paragraph,
    Report,
    Table,
    draw_before_after,
    frontier_report,
    joules_unit,
    percent,
    seconds_unit,
    table_of,
)
from joulery.units import human, human_duration, per_cent

if TYPE_CHECKING:
    from joulery.demo._recurring import RecurringStory
    from joulery.demo._story import Story
    from joulery.reports import Drawing, Unit

_NOTHING_PER_CENT = 0.1  # by hand: smaller changes are not worth a word
_LATEST_NIGHTS = 5  # by hand: nights after most of the exploring


def story_report(story: Story, objective: str) -> Report:
    """The whole demonstration, step by step, for the terminal."""
    plan, recipe = story.plan, story.plan.recipe
    introduction = (
        f"NumPy learns to read {recipe.pictures} noisy digits, {recipe.steps_per_epoch} steps of "
        f"{recipe.batch_size} pictures per epoch; seed {recipe.seed}. Loss and accuracy are real. "
        "Seconds, joules and watts are SIMULATED: they are what a model of the board takes for "
        f"as many steps of {plan.workload.name}, on a virtual clock. No GPU is used."
    )
    return Report(
        f"A real network on a simulated {plan.board.name}",
        "simulated",
        (
            Paragraph(introduction),
            Heading("1. Train once as the board comes"),
            _epochs_table(story),
            Heading("2. Sweep the power limit"),
            Paragraph(
                f"One epoch from the start under each limit, times {recipe.epochs} for a whole "
                "run; saved and lost against the default limit."
            ),
            _sweep_table(story),
            Heading("3. The frontier"),
            *story_page(story, objective).charts,
            Heading("4. Choose"),
            Paragraph(_choice(story, objective)),
            Heading("5. Train again under the chosen limit"),
            _runs_table(story),
            Paragraph(saved_sentence(story)),
        ),
    )


def story_page(story: Story, objective: str) -> Report:
    """The frontier of the demonstration with what was chosen on it, as a page."""
    return frontier_report(
        story.frontier,
        f"Time and energy of one training run on a simulated {story.plan.board.name}",
        cloud=story.sweep,
        default=story.reference,
        chosen=story.chosen,
        summary=f"{saved_sentence(story)} Chosen by {objective}.",
    )


def saved_drawing(story: Story, objective: str) -> Drawing:
    """Energy and time of the two runs, as bars below the objective that chose."""
    title = f"The same training twice: {objective} (simulated {story.plan.board.name})"
    return draw_before_after(story.default.cost, story.retrained.cost, title)


def saved_sentence(story: Story) -> str:
    """Savings of the second run, in one sentence."""
    first, second = story.default.cost, story.retrained.cost
    if second.setting == first.setting:
        return "The objective keeps the default limit, so there is nothing to save (simulated)."
    savings = [gains(point, story.reference).energy for point in story.sweep]
    if max(map(abs, savings)) < _NOTHING_PER_CENT:
        return (
            "There is nothing to save (simulated): this work stays below every limit that the "
            "board accepts."
        )
    energy, time = _units(story)
    joules, seconds = first.joules - second.joules, second.seconds - first.seconds
    verb = "saved" if joules >= 0 else "spent an extra"
    pace = "longer" if seconds >= 0 else "less"
    return (
        f"The second run {verb} {energy.text(abs(joules))} (simulated), "
        f"{percent(abs(story.saved.energy))} of the energy, and took {time.text(abs(seconds))} "
        f"{pace} (simulated), {percent(abs(story.saved.time))} of the time."
    )


def _units(story: Story) -> tuple[Unit, Unit]:
    """Units of energy and time that suit every whole run of the story."""
    runs = (*story.sweep, story.default.cost)
    return joules_unit(run.joules for run in runs), seconds_unit(run.seconds for run in runs)


def _epochs_table(story: Story) -> Table:
    energy, time = _units(story)
    cost = story.default.cost
    rows = [
        ("0", "", _share(story.untrained_accuracy), "", ""),
        *(
            (
                str(epoch.learned.epoch),
                f"{epoch.learned.loss:.3f}",
                _share(epoch.learned.accuracy),
                time.text(epoch.seconds),
                energy.text(epoch.joules),
            )
            for epoch in story.default.epochs
        ),
        ("all", "", "", time.text(cost.seconds), energy.text(cost.joules)),
    ]
    headers = ("epoch", "loss (real)", "accuracy (real)", "time (simulated)", "energy (simulated)")
    return Table(headers, rows, "rrrrr")


def _sweep_table(story: Story) -> Table:
    energy, time = _units(story)
    return Table.of(
        story.sweep,
        {
            ">limit": lambda point: _limit(point.setting.power_limit_watts),
            ">time": lambda point: time.text(point.seconds),
            ">energy": lambda point: energy.text(point.joules),
            ">mean power": lambda point: f"{point.watts:.0f} W",
            ">energy saved": lambda point: percent(gains(point, story.reference).energy),
            ">time lost": lambda point: percent(gains(point, story.reference).time),
            "figures": lambda point: point.provenance.origin.value,
        },
    )


def _choice(story: Story, objective: str) -> str:
    expected, count = story.expected, len(story.frontier)
    energy = f"{percent(abs(expected.energy))} {'less' if expected.energy >= 0 else 'more'} energy"
    time = f"{percent(abs(expected.time))} {'more' if expected.time >= 0 else 'less'} time"
    return (
        f"Of {count} point{'s' * (count > 1)} on the frontier, {objective} picks "
        f"{_limit(story.chosen.setting.power_limit_watts)}. By the sweep it takes {energy} "
        f"(simulated) and {time} (simulated) than the default limit of "
        f"{_limit(story.plan.board.default_limit_watts)}."
    )


def _runs_table(story: Story) -> Table:
    energy, time = _units(story)
    return Table.of(
        [("first", story.default), ("second", story.retrained)],
        {
            "run": lambda run: run[0],
            ">limit": lambda run: _limit(run[1].cost.setting.power_limit_watts),
            ">time (simulated)": lambda run: time.text(run[1].cost.seconds),
            ">energy (simulated)": lambda run: energy.text(run[1].cost.joules),
            ">accuracy (real)": lambda run: _share(run[1].final.accuracy),
        },
    )


def _limit(watts: float | None) -> str:
    return "as found" if watts is None else f"{watts:g} W"


def _share(share: float) -> str:
    return percent(100 * share)


def recurring_text(story: RecurringStory) -> str:
    """The nights for people."""
    plan, latest = story.plan, min(_LATEST_NIGHTS, len(story.nights))
    nights = table_of(
        [(n, *pair) for n, pair in enumerate(zip(story.nights, story.unchanged, strict=True), 1)],
        {
            ">night": lambda row: str(row[0]),
            ">batch size": lambda row: " → ".join(map(str, row[1].batch_sizes)),
            ">epochs": lambda row: str(row[1].epochs),
            ">accuracy": lambda row: per_cent(row[1].accuracy),
            ">limit": lambda row: human(row[1].limit_watts, "W"),
            ">time": lambda row: human_duration(row[1].seconds),
            ">energy": lambda row: human(row[1].joules, "J"),
            ">unchanged": lambda row: human(row[2].joules, "J"),
            "why": lambda row: row[1].reason,
        },
    )
    good, sizes = per_cent(plan.target), ", ".join(map(str, plan.batch_sizes))
    return "\n".join(
        [
            f"A small network is trained anew every night, until it reads {good} of the pictures.",
            f"Its owner would run batch size {plan.default}; allowed are {sizes}.",
            f"Learning is real. Time and energy are simulated ({plan.board.name}).",
            "",
            nights,
            "",
            _nights_saved(story, 0, f"All {len(story.nights)} nights"),
            _nights_saved(story, latest, f"The last {latest} nights together"),
        ]
    )


def _nights_saved(story: RecurringStory, latest: int, quantity: str) -> str:
    energy, time = (
        f"{per_cent(abs(share))} {'less' if share >= 0 else 'more'}"
        for share in story.saved(latest)
    )
    return f"{quantity}: {energy} energy and {time} time than with nothing changed (simulated)."
