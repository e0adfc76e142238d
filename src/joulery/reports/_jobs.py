"""Recurring jobs as reports: all jobs of a team with what they saved, and all about one job."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING

from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.grid import static_intensity
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost, LeastEnergy, choose, gains, objective_text
from joulery.reports._chart import Axis, Chart, Series, energy_axis, time_axis
from joulery.reports._document import (
    Details,
    Grid,
    Heading,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Report,
    Table,
)
from joulery.units import finite, human, human_age, human_duration, kilowatt_hours, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from joulery.jobs import (
        BatchSizeSummary,
        DecisionEntry,
        JobBeliefs,
        JobSummary,
        JobTotals,
        Saved,
    )
    from joulery.objectives import Objective
    from joulery.reports._chart import Symbol
    from joulery.reports._document import Block

    _Link = Callable[[int], str] | None

_NONE = "–"
_MOST_POINTS = 150  # of a line, which more would only blacken
_MOST_JOBS = 15
_FEW = 8  # recurrences
_ATTENTION_SECONDS = 30 * 86_400.0  # after which what happened is history


@dataclass(frozen=True, slots=True)
class ElectricityPrice:
    """Carbon and price of a kilowatt-hour.

    Attributes:
        grams: Carbon intensity in gCO2/kWh.
        grams_source: Source of that figure.
        price: Money per kWh; None where it is unknown.
        currency: Name of the money.
    """

    grams: float
    grams_source: str
    price: float | None = None
    currency: str = ""


def electricity_price(
    region: str | None = None,
    grams: float | None = None,
    price: float | None = None,
    currency: str = "",
) -> ElectricityPrice:
    """Carbon and price of a kilowatt-hour.

    Args:
        region: Region whose yearly mean carbon intensity applies; the world unless given.
        grams: Carbon intensity in gCO2/kWh, in place of a region's.
        price: Money per kWh; None where it is unknown.
        currency: Name of the money.
    """
    if price is not None:
        finite(price, "price per kWh", minimum=0.0)
    if grams is not None:
        grams = finite(grams, "carbon intensity in g/kWh", minimum=0.0)
        return ElectricityPrice(grams, "as given", price, currency)
    signal = static_intensity(region or "WORLD")
    return ElectricityPrice(signal.at(0.0), signal.source, price, currency)


def energy_text(joules: float) -> str:
    """Energy as bills state it: ``energy_text(3.6e6)`` is ``"1.00 kWh"``."""
    return human(joules / 3600.0, "Wh")


def with_error(value: float, error: float | None, show: Callable[[float], str]) -> str:
    """A figure and its standard error in the same unit, such as ``1.25 ± 0.08 kWh``."""
    larger = max(abs(value), error or 0.0)
    text, unit = show(larger).rsplit(" ", 1)
    scale = larger / float(text) if float(text) else 1.0
    decimals = len(text.partition(".")[2])
    shown = f"{value / scale:.{decimals}f}"
    return f"{shown} {unit}" if error is None else f"{shown} ± {error / scale:.{decimals}f} {unit}"


def saved_text(saved: Saved | None) -> str:
    """A share that was saved, to the place of its error's first digit, such as ``31 ± 2 %``."""
    if saved is None:
        return _NONE
    share, error = 100 * saved.share, 100 * (saved.standard_error or 0.0)
    decimals = min(2, max(0, -math.floor(math.log10(error)))) if error else 0
    bar = "?" if saved.standard_error is None else f"{error:.{decimals}f}"
    return f"{share:.{decimals}f} ± {bar} %"


def overview_report(
    jobs: Sequence[JobTotals],
    electricity: ElectricityPrice,
    now_wall_seconds: float,
    link: Callable[[int], str] | None = None,
    *,
    outstanding: int = 0,
) -> Report:
    """Savings of all jobs, those that saved most, and what needs attention.

    Args:
        jobs: Figures of every version of every job.
        electricity: Carbon and price of a kilowatt-hour.
        now_wall_seconds: Unix time.
        link: Address of a job's page; None for none.
        outstanding: Number of jobs whose figures are still being added up.
    """
    title = "Overview"
    if not (jobs or outstanding):
        empty = "No jobs yet. A joulery.Run with batch_sizes=[…] makes one when it is first run."
        return Report(title, "", (Paragraph(empty),))
    blocks: list[Block] = [_totals(jobs, electricity)]
    if outstanding:
        blocks.append(Paragraph(f"{outstanding} more jobs are still being added up.", soft=True))
    blocks += [Heading("Needs attention"), _attention(jobs, link, now_wall_seconds)]
    best = sorted(jobs, key=lambda one: -one.saved_joules)[:_MOST_JOBS]
    best = [one for one in best if one.saved is not None]
    blocks.append(Heading("Jobs by energy saved"))
    if best:
        blocks.append(_ranking(best, link))
    else:
        blocks.append(
            Paragraph(
                "Nothing to compare yet: savings appear once a job has run its default batch size "
                "and another one."
            )
        )
    blocks.append(Paragraph(_METHOD, soft=True))
    return Report(title, "", tuple(blocks))


_METHOD = (
    "Saved: every recurrence so far, exploration included, against as many runs of the default "
    "batch size as measured in the same job. The error is one standard error, from the scatter of "
    "runs. Jobs without such a run count as saving nothing."
)


def _totals(jobs: Sequence[JobTotals], electricity: ElectricityPrice) -> KeyFigures:
    joules = sum(one.saved_joules for one in jobs)
    compared = [one for one in jobs if one.saved is not None]
    error = math.sqrt(sum((one.saved_error_joules or 0.0) ** 2 for one in compared))

    def saved(show: Callable[[float], str]) -> str:
        return with_error(joules, error, show) if compared else _NONE

    baseline = sum(one.recurrences * one.baseline_joules for one in compared)
    share = f"{100 * joules / baseline:.0f} % less than the default. " if baseline > 0 else ""
    some = f"{len(compared)} of {len(jobs)} jobs have a baseline."
    unsure = sum(one.saved_error_joules is None for one in compared)
    if unsure:
        some += f" The error of {unsure} is not yet known."
    shown = [KeyFigure("Energy saved", saved(energy_text), share + some)]

    def grams(value: float) -> str:
        return human(kilowatt_hours(value) * electricity.grams, "g")

    at = f"at {electricity.grams:g} g/kWh: {electricity.grams_source}"
    shown.append(KeyFigure("CO2 saved", saved(grams), at))
    if electricity.price is None:
        hint = "no price is known: give --price"
        shown.append(KeyFigure("Money saved", _NONE, hint))
    else:
        price, currency = electricity.price, electricity.currency or "money"

        def money(value: float) -> str:
            return f"{kilowatt_hours(value) * price:.2f} {currency}"

        at = f"at {price:g} {currency} per kWh, as given"
        shown.append(KeyFigure("Money saved", saved(money), at))
    used = sum(one.joules for one in jobs)
    origins: dict[str, float] = {}
    for one in jobs:
        for origin, amount in one.origins.items():
            origins[origin] = origins.get(origin, 0.0) + amount
    shown.append(KeyFigure("Energy used", energy_text(used), _origins_text(origins, used)))
    return KeyFigures(tuple(shown))


def _origins_text(origins: dict[str, float], used: float) -> str:
    """Shares of the energy by origin, in words."""
    if not used > 0:
        return "no run has been reported on"
    rest = used - sum(origins.values())
    parts = [(origin, joules) for origin, joules in origins.items() if joules > 0]
    if rest > 0.005 * used:
        parts.append(("reported without saying how", rest))
    return ", ".join(f"{per_cent(min(1.0, joules / used))} {name}" for name, joules in parts)


def _attention(jobs: Sequence[JobTotals], link: _Link, now: float) -> Table | Paragraph:
    """Recent events that need attention, the latest first."""
    found: list[tuple[float, JobTotals, str, str]] = []
    for one in jobs:
        if one.head.paused:
            found.append((now, one, "paused", "its runs take their default until it is resumed"))
        if one.quarantined:
            what = f"{one.quarantined} report{'s' * (one.quarantined != 1)} in quarantine"
            meaning = "the figures contradict all others; look at the run"
            found.append((one.quarantined_wall_seconds, one, what, meaning))
        if one.expired:
            what = f"{one.expired} run{'s' * (one.expired != 1)} never reported"
            meaning = "the process died or lost the network"
            found.append((one.expired_wall_seconds, one, what, meaning))
    lately = [each for each in found if each[0] > now - _ATTENTION_SECONDS]
    shown = sorted(lately, key=lambda each: -each[0])[:_MOST_JOBS]
    if not shown:
        return Paragraph("Nothing: of late no report went into quarantine and no run was lost.")
    table = Table.of(
        shown,
        {
            "job": lambda each: _name(each[1]),
            "what": lambda each: each[2],
            "latest": lambda each: f"{human_age(now - each[0])} ago" if each[0] < now else "now",
            "meaning": lambda each: each[3],
        },
    )
    return replace(table, links=[link(each[1].head.id) for each in shown] if link else ())


def _name(one: JobTotals) -> str:
    return f"{one.head.name} ({one.head.device})" if one.head.device else one.head.name


def _ranking(best: Sequence[JobTotals], link: _Link) -> Table:
    found = Table.of(
        best,
        {
            "job": _name,
            "team": lambda one: one.head.team,
            ">energy saved": lambda one: with_error(
                one.saved_joules, one.saved_error_joules, energy_text
            ),
            ">of the default": lambda one: saved_text(one.saved),
            ">recurrences": lambda one: str(one.recurrences),
        },
    )
    shares = [one.saved for one in best if one.saved is not None]
    return replace(
        found,
        links=[link(one.head.id) for one in best] if link else (),
        bars=[(saved.share, saved.standard_error or 0.0) for saved in shares],
    )


def store_report(
    jobs: Sequence[JobTotals],
    electricity: ElectricityPrice,
    now_wall_seconds: float,
    read: Callable[[int], tuple[JobSummary, JobBeliefs]],
) -> Report:
    """The overview, with all about those jobs that used most energy to be opened below it.

    Args:
        jobs: Figures of every version of every job.
        electricity: Carbon and price of a kilowatt-hour.
        now_wall_seconds: Unix time.
        read: Reads the history of a job.
    """
    shown = sorted(jobs, key=lambda one: -one.joules)[:_MOST_JOBS]
    details = [
        Details(
            f"{_name(one)}, {one.head.team}: {energy_text(one.joules)} used",
            tuple(block for part in job_report(*read(one.head.id)) for block in part.blocks),
        )
        for one in shown
    ]
    overview = overview_report(jobs, electricity, now_wall_seconds)
    return Report("Recurring jobs", "", (*overview.blocks, *details))


def job_report(
    summary: JobSummary,
    beliefs: JobBeliefs | None = None,
    objective: Objective | None = None,
    link: Callable[[str], str] | None = None,
) -> tuple[Report, Report, Report]:
    """All about one job: its savings, what an objective would choose, and how the job went.

    Args:
        summary: Summary of its history.
        beliefs: Beliefs of its policy; None where they are unknown.
        objective: Objective to choose under, in place of the job's own.
        link: Address of the page of a decision.
    """
    job, name = summary.job, summary.entry.name
    runs = _RunPoints(summary)
    wanted = objective or job.objective or job.cost
    choice: list[Block]
    if runs.baseline is None and not runs.points:
        text = "Nothing has reached the target yet, so there is nothing to choose from."
        choice = [Paragraph(text)]
    else:
        point, words = runs.choose(wanted)
        choice = [Paragraph(words), runs.chart(wanted, point, words)]
    blocks: list[Block] = []
    if summary.recurrences:
        charts = [_path_chart(summary), *_cost_charts(summary), _drift_chart(summary)]
        if beliefs is not None and beliefs.costs and runs.points:
            charts.insert(0, _belief_chart(summary, beliefs))
        blocks.append(Grid(tuple(one for one in charts if one is not None)))
        if beliefs is not None and beliefs.changed:
            noticed = "The policy has noticed that this job no longer trains as it used to, and"
            blocks.append(Paragraph(f"{noticed} weighs older runs down since."))
        blocks += [Heading("By batch size"), _sizes_table(summary)]
    latest = summary.decisions[: -_MOST_JOBS - 1 : -1]
    none = Paragraph("No decision has been made yet.")
    decisions = _decisions_table(summary, latest, link) if latest else none
    blocks += [Heading("Latest decisions"), decisions]
    return (
        Report(name, "", (_job_figures(summary),)),
        Report("What to run", "", tuple(choice)),
        Report("How it went", "", tuple(blocks)),
    )


def _job_figures(summary: JobSummary) -> KeyFigures:
    saved, used = summary.saved, summary.joules
    least = "at least " * (summary.cut or summary.energy_cut)
    how = _origins_text(summary.origins, used)
    shown = [KeyFigure("Energy used", least + energy_text(used), how)]
    if saved is None:
        why = "it needs runs of the default batch size and of another one"
        return KeyFigures((KeyFigure("Energy saved", _NONE, why), *shown))
    runs = f"against {saved.default_runs} run{'s' * (saved.default_runs != 1)} of the default"
    exploring = human(saved.exploring_joules, "J")
    return KeyFigures(
        (
            KeyFigure("Energy saved", saved_text(saved.energy), f"{runs}, exploration included"),
            KeyFigure("Time saved", saved_text(saved.time), runs),
            KeyFigure("Cost saved", saved_text(saved.cost), f"{exploring} spent on exploring"),
            *shown,
        )
    )


def objective_words(objective: Objective) -> str:
    """An objective in words, such as ``eta 0.5``."""
    if isinstance(objective, Cost):
        return f"eta {objective.eta:g}"
    slowdown = objective.bounds.max_slowdown
    if isinstance(objective, LeastEnergy) and slowdown is not None:
        return f"least energy and at most {per_cent(slowdown)} more time than the default"
    return objective_text(objective)


class _RunPoints:
    """Time and energy of whole runs of a job, by batch size and power limit.

    Args:
        summary: Summary of the job's history.

    Attributes:
        points: Settings that were run until the target, and those that follow from them and the
            profiles of an epoch.
        baseline: Mean run of the default batch size; None where there is none.
    """

    def __init__(self, summary: JobSummary) -> None:
        self._job = summary.job
        groups: dict[tuple[int, float | None], list[tuple[float, float]]] = {}
        epochs: dict[int, list[float]] = {}
        for entry in summary.decisions:
            one, size = entry.outcome, entry.decision.batch_size
            if one is not None and one.end == RunEnd.REACHED and not entry.quarantined:
                limit = one.limit_watts or entry.decision.power_limit_watts
                groups.setdefault((size, limit), []).append((one.seconds, one.joules))
                epochs.setdefault(size, []).append(one.epochs)
        known = tuple(summary.origins)
        origin = Origin(known[0]) if len(known) == 1 else Origin.ASSUMED
        self.points = [
            _mean_point(runs, Setting(limit, batch_size=size), origin)
            for (size, limit), runs in groups.items()
        ]
        for profile in summary.profiles:
            size = profile.batch_size
            if size in epochs:
                self.points += _foreseen(profile.frontier, size, epochs[size], set(groups))
        own = [
            run for (size, _), runs in groups.items() if size == self._job.default for run in runs
        ]
        default = Setting(batch_size=self._job.default)
        self.baseline = _mean_point(own, default, origin) if own else None

    def choose(self, objective: Objective) -> tuple[OperatingPoint | None, str]:
        """The choice of the objective, None where nothing meets it; and that in a sentence."""
        from joulery.errors import InfeasibleError

        name = objective_words(objective)
        try:
            point = choose(objective, self.points, self.baseline)
        except InfeasibleError as error:
            return None, f"Nothing meets {name}: {error.remedy}."
        words = f"With {name}: {_label(point)}"
        base = self.baseline
        if base is not None and (base.seconds, base.joules) == (point.seconds, point.joules):
            words += ", the default"
        elif base is not None:
            saved = gains(point, base)
            slower = "slower" if saved.time > 0 else "faster"
            less = "less" if saved.energy >= 0 else "more"
            words += (
                f", {abs(saved.energy):.0f} % {less} energy and {abs(saved.time):.0f} % {slower} "
                f"than the default batch size {self._job.default}"
            )
        return point, f"{words} ({point.provenance.origin})."

    def chart(self, objective: Objective, chosen: OperatingPoint | None, words: str) -> Chart:
        """The time-energy plot with the choice, the baseline and the line of equal cost."""
        frontier = Frontier.from_points(self.points)
        drawn = [Series("frontier", tuple((p.seconds, p.joules) for p in frontier), symbol="")]
        marked = [(p.seconds, p.joules) for p in (chosen, self.baseline) if p is not None]
        others = [p for p in self.points if (p.seconds, p.joules) not in marked]
        foreseen = [p for p in others if p.provenance.origin == Origin.PREDICTED]
        run = [p for p in others if p not in foreseen]
        drawn.append(_series("from an epoch's limits", foreseen, "triangle", 5, labels=False))
        drawn.append(_series("run until the target", run, "dot", 0))
        if self.baseline is not None and (chosen is None or marked[0] != marked[1]):
            drawn.append(_series("default", [self.baseline], "diamond", 1, emphasis=True))
        if chosen is not None:
            drawn.append(_series("chosen", [chosen], "star", 2, emphasis=True))
            drawn += self._bound(objective, chosen)
        return Chart(
            "Time and energy of a whole run",
            time_axis(p.seconds for p in self.points),
            energy_axis(p.joules for p in self.points),
            tuple(one for one in drawn if one.points),
            f"{len(self.points)} settings. {words} Bars are one standard error.",
        )

    def _bound(self, objective: Objective, point: OperatingPoint) -> list[Series]:
        """The line of equal cost through the choice, or of the longest time that is allowed."""
        times, energies = [p.seconds for p in self.points], [p.joules for p in self.points]
        if self.baseline is not None:
            times, energies = [*times, self.baseline.seconds], [*energies, self.baseline.joules]
        low, high = min(times), max(times)
        bottom, top = min(energies), max(energies)
        slowdown = objective.bounds.max_slowdown
        if slowdown is not None and self.baseline is not None:
            longest = (1 + slowdown) * self.baseline.seconds
            return [_line("longest time allowed", ((longest, bottom), (longest, top)))]
        if not isinstance(objective, Cost):
            return []
        if objective.eta == 0:
            return [_line("equal cost", ((point.seconds, bottom), (point.seconds, top)))]
        slope = -(1 - objective.eta) * objective.max_watts / objective.eta
        ends = []
        for seconds in (low, high):
            energy = point.joules + slope * (seconds - point.seconds)
            kept = min(top, max(bottom, energy))
            if slope:
                seconds = point.seconds + (kept - point.joules) / slope  # noqa: PLW2901
            ends.append((seconds, kept))
        return [_line(f"equal cost, eta {objective.eta:g}", tuple(ends))]


def _mean_point(
    runs: Sequence[tuple[float, float]], setting: Setting, origin: Origin
) -> OperatingPoint:
    """The mean of runs, with its relative standard error."""
    joules = [one for _, one in runs]
    mean, error = fmean(joules), None
    if len(runs) > 1 and mean > 0:
        squares = sum((one - mean) ** 2 for one in joules)
        error = math.sqrt(squares / (len(runs) - 1) / len(runs)) / mean
    provenance = Provenance(origin, f"{len(runs)} runs", error)
    return OperatingPoint(fmean(one for one, _ in runs), mean, setting, provenance)


def _foreseen(
    frontier: Frontier, size: int, epochs: Sequence[float], run: set[tuple[int, float | None]]
) -> Iterable[OperatingPoint]:
    """Runs under limits that only epochs were measured under."""
    source = f"an epoch, times the mean of {len(epochs)} runs"
    for point in frontier.scaled(fmean(epochs)):
        limit = point.setting.power_limit_watts
        if (size, limit) not in run:
            setting = Setting(limit, batch_size=size)
            error = point.provenance.relative_error
            provenance = Provenance(Origin.PREDICTED, source, error)
            yield OperatingPoint(point.seconds, point.joules, setting, provenance)


def _label(point: OperatingPoint) -> str:
    watts = point.setting.power_limit_watts
    size = f"batch size {point.setting.batch_size}"
    return size if watts is None else f"{size} at {watts:g} W"


def _short(point: OperatingPoint) -> str:
    size, watts = point.setting.batch_size, point.setting.power_limit_watts
    return f"{size}" if watts is None else f"{size}, {watts:g} W"


def _series(
    name: str,
    members: Sequence[OperatingPoint],
    symbol: Symbol,
    colour: int,
    *,
    labels: bool = True,
    emphasis: bool = False,
) -> Series:
    return Series(
        name,
        tuple((p.seconds, p.joules) for p in members),
        errors=tuple((p.provenance.relative_error or 0.0) * p.joules for p in members),
        labels=tuple(f"{name} {_short(p)}" if emphasis else _short(p) for p in members)
        if labels
        else (),
        tips=tuple(
            f"{_label(p)}: {human_duration(p.seconds)}, {human(p.joules, 'J')}, "
            f"{p.provenance.origin} ({p.provenance.source})"
            for p in members
        ),
        line="",
        symbol=symbol,
        colour=colour,
        emphasis=emphasis,
    )


def _line(name: str, points: tuple[tuple[float, float], ...], colour: int = 2) -> Series:
    return Series.curve(name, points, "dashed", colour)


def _size_axis(summary: JobSummary, name: str) -> Axis:
    """Batch sizes on a logarithmic scale."""
    sizes = summary.job.batch_sizes
    return Axis(name, ticks=tuple(map(math.log2, sizes)), labels=tuple(map(str, sizes)))


def _cost_axis(costs: Iterable[float]) -> Axis:
    return energy_axis(map(abs, costs), name="cost")


def _by_recurrence(
    summary: JobSummary, title: str, y: Axis, drawn: Iterable[Series], text: str
) -> Chart:
    """A chart over recurrences, each of which has a tick where they are few."""
    few = len(summary.recurrences) <= _FEW
    ticks = tuple(one.number + 1.0 for one in summary.recurrences) if few else ()
    return Chart(title, Axis("recurrence", ticks=ticks), y, tuple(drawn), text)


def _belief_chart(summary: JobSummary, beliefs: JobBeliefs) -> Chart:
    """Expected cost of a run by batch size, with measured means beside."""
    believed = sorted(beliefs.costs.items())
    measured = [row for row in summary.batch_sizes if row.costs_joules]
    drawn = [
        Series(
            "believed by the policy, ± 1 sigma",
            tuple((math.log2(size), mean) for size, (_, mean, _) in believed),
            errors=tuple((high - low) / 2 for _, (low, _, high) in believed),
            tips=tuple(
                f"batch size {size}: {human(mean, 'J')}, {human(low, 'J')} to {human(high, 'J')}"
                for size, (low, mean, high) in believed
            ),
        ),
        Series(
            "mean of its runs",
            tuple((math.log2(row.batch_size), fmean(row.costs_joules)) for row in measured),
            tips=tuple(
                f"batch size {row.batch_size}: {human(fmean(row.costs_joules), 'J')} in "
                f"{len(row.costs_joules)} runs"
                for row in measured
            ),
            line="",
            symbol="diamond",
            colour=1,
        ),
    ]
    return Chart(
        "Cost of a run by batch size",
        _size_axis(summary, "batch size"),
        _cost_axis(cost for _, (_, cost, _) in believed),
        tuple(one for one in drawn if one.points),
        "What the policy believes a run of each batch size costs, and what runs did cost.",
    )


def _path_chart(summary: JobSummary) -> Chart | None:
    """The batch size of every decision, and how it ended: the way that the search went."""
    kinds: tuple[tuple[str, Symbol, int, RunEnd | None], ...] = (
        ("reached", "dot", 0, RunEnd.REACHED),
        ("stopped early", "cross", 1, RunEnd.STOPPED),
        ("failed", "square", 4, RunEnd.EXHAUSTED),
        ("probed for seconds", "triangle", 5, RunEnd.PROBED),
        ("under way", "diamond", 2, None),
    )
    shown = summary.decisions[-_MOST_POINTS:]
    ended = [(entry.outcome.end, entry.decision) for entry in shown if entry.outcome is not None]
    under_way = [(None, entry.decision) for entry in shown if entry.state == "open"]
    drawn = []
    for name, symbol, colour, end in kinds:
        members = [one for how, one in (*ended, *under_way) if how == end]
        points = tuple((one.recurrence + 1.0, math.log2(one.batch_size)) for one in members)
        tips = tuple(
            f"recurrence {one.recurrence + 1}: {one.batch_size}, {one.reason}" for one in members
        )
        if points:
            drawn.append(Series(name, points, tips=tips, line="", symbol=symbol, colour=colour))
    text = "The batch size of every decision by recurrence, and how it ended."
    size = _size_axis(summary, "batch size")
    return _by_recurrence(summary, "Search path", size, drawn, text) if drawn else None


def _cost_charts(summary: JobSummary) -> Iterator[Chart]:
    """Cost of every recurrence, and what was paid beyond the batch size that is best so far."""
    costs = [(one.number + 1.0, one.cost_joules) for one in summary.recurrences if one.cost_joules]
    if not costs:
        return
    drawn = [Series("recurrence", thinned(costs), symbol="")]
    means = {r.batch_size: fmean(r.costs_joules) for r in summary.batch_sizes if r.costs_joules}
    if (level := means.get(summary.job.default)) is not None:
        ends = ((costs[0][0], level), (costs[-1][0], level))
        drawn.append(_line("mean of the default's runs", ends, 1))
    text = "Cost of every recurrence with all its attempts, against runs of the default batch size."
    axis = _cost_axis(cost for _, cost in costs)
    yield _by_recurrence(summary, "Cost by recurrence", axis, drawn, text)
    if means:
        totals = itertools.accumulate(cost - min(means.values()) for _, cost in costs)
        points = [(number, total) for (number, _), total in zip(costs, totals, strict=True)]
        text = "Cost so far beyond always running the batch size whose runs cost least on average."
        drawn = [Series("regret", thinned(points), symbol="")]
        axis = _cost_axis(total for _, total in points)
        yield _by_recurrence(summary, "Cumulative regret", axis, drawn, text)


def _drift_chart(summary: JobSummary) -> Chart | None:
    """Epochs to the target, over the mean of the same batch size; another level is drift."""
    runs = [
        (one.decision.recurrence + 1.0, one.decision.batch_size, one.outcome.epochs)
        for one in summary.decisions
        if one.outcome is not None and one.outcome.end == RunEnd.REACHED and one.outcome.epochs
    ]
    if len(runs) < 3:
        return None
    sizes = {size for _, size, _ in runs}
    means = {own: fmean(epochs for _, size, epochs in runs if size == own) for own in sizes}
    points = [(number, epochs / means[size]) for number, size, epochs in runs]
    drawn = (
        Series("run", thinned(points), line="", symbol="dot"),
        _line("mean", ((points[0][0], 1.0), (points[-1][0], 1.0)), 5),
    )
    title = "Drift: epochs to the target, over the batch size's mean"
    text = "Runs that need ever more or fewer epochs than before show that the data has drifted."
    return _by_recurrence(summary, title, Axis("ratio"), drawn, text)


def thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most so many points that a line still shows: means of as many stretches."""
    if len(points) <= _MOST_POINTS:
        return tuple(points)
    edges = [round(at * len(points) / _MOST_POINTS) for at in range(_MOST_POINTS + 1)]
    groups = [points[a:b] for a, b in itertools.pairwise(edges)]
    return tuple((fmean(x for x, _ in one), fmean(y for _, y in one)) for one in groups)


def _sizes_table(summary: JobSummary) -> Table:
    """Runs of a job by batch size: how they ended, and medians of those that reached the target."""

    def middle(show: Callable[[float], str], values: Sequence[float]) -> str:
        return show(median(values)) if values else _NONE

    def ended(end: RunEnd) -> Callable[[BatchSizeSummary], str]:
        return lambda row: str(row.ends.get(end, 0) or _NONE)

    return Table.of(
        summary.batch_sizes,
        {
            ">batch size": lambda row: str(row.batch_size),
            ">reached": ended(RunEnd.REACHED),
            ">stopped early": ended(RunEnd.STOPPED),
            ">failed": ended(RunEnd.EXHAUSTED),
            ">lost": ended(RunEnd.ABANDONED),
            ">cost": lambda row: middle(_joules, row.costs_joules),
            ">time": lambda row: middle(human_duration, row.seconds),
            ">energy": lambda row: middle(energy_text, row.joules),
            ">limit": lambda row: limit_text(row.limit_watts),
        },
        kinds=["default" * (row.batch_size == summary.job.default) for row in summary.batch_sizes],
    )


def _decisions_table(
    summary: JobSummary,
    shown: Sequence[DecisionEntry],
    link: Callable[[str], str] | None = None,
) -> Table:
    """Decisions of a job, how they ended and why they were made."""
    found = Table.of(
        shown,
        {
            ">recurrence": lambda one: str(one.decision.recurrence + 1),
            "what": lambda one: "probe" if one.decision.kind == ActionKind.PROBE else "train",
            ">batch size": lambda one: str(one.decision.batch_size),
            ">limit": lambda one: limit_text(one.decision.power_limit_watts),
            "ended": end_text,
            ">epochs": lambda one: _NONE if one.outcome is None else f"{one.outcome.epochs:g}",
            ">cost": lambda one: (
                _NONE if one.outcome is None else _joules(summary.cost_of(one.outcome))
            ),
            "why": lambda one: one.decision.reason,
        },
    )
    return replace(found, links=[link(entry.decision.id) for entry in shown] if link else ())


def _joules(value: float) -> str:
    return human(value, "J")


def limit_text(watts: float | None) -> str:
    """A power limit, such as ``250 W``; a dash for none."""
    return _NONE if watts is None else f"{watts:g} W"


def end_text(entry: DecisionEntry) -> str:
    """End of a decision in words, and whether its report is quarantined."""
    if entry.outcome is None:
        return {"open": "under way", "expired": "never reported"}.get(entry.state, entry.state)
    return entry.outcome.end.name.lower() + " (in quarantine)" * entry.quarantined
