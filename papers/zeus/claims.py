"""Claims of the publication next to what the reproduced figures show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.simulate import ALL_JOBS
from papers.zeus.policies import MEAN
from papers.zeus.tables import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from papers.zeus.tables import Figure, Table

CITATION = "You, Chung, Chowdhury: Zeus, NSDI'23"
PUBLISHED_GPU = "v100"  # the GPU on which the publication states its figures
OURS, THEIRS = "joulery", "zeus"
HEADERS = ("figure", "GPU", "claim", "published", "zeus here", "joulery", "grid", "±")
_PUBLISHED_BETA = 2.0

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement with its figures.

    Attributes:
        figure: Figure of the publication.
        what: Statement in words.
        gpu: GPU that it is about.
        unit: Unit of the figures, ``%`` or ``×``.
        published: Least and most over workloads; None where the publication states none.
        spans: Least and most over workloads, by policy; ``traces`` where no policy is involved.
        doubt: Half of the widest 95 % interval of the means of zeus and joulery, in its unit.
        remark: Explanation of a difference.
    """

    figure: str
    what: str
    gpu: str
    unit: str
    published: Span | None
    spans: dict[str, Span] = field(default_factory=dict)
    doubt: float | None = None
    remark: str = ""


def claims(figures: Mapping[str, Figure]) -> list[Claim]:
    """All claims that ``figures`` (by name) speak to, those with a published figure first."""
    results = [
        claim
        for name, judge in _JUDGES.items()
        if name in figures
        for gpu in figures[name].main.distinct("gpu")
        for claim in judge(figures[name], gpu)
    ]
    return sorted(results, key=lambda claim: claim.published is None)


def _span(values: Iterable[float]) -> Span:
    numbers = list(values)
    return min(numbers), max(numbers)


def _if_published(gpu: str, span: Span) -> Span | None:
    return span if gpu == PUBLISHED_GPU else None


def _change(rows: Table, column: str, sign: float = 1.0) -> Span:
    """Change in per cent; the saving with ``sign`` -1."""
    # Adding zero turns a negative zero into a positive one.
    return _span(100 * sign * (value - 1) + 0.0 for value in rows.numbers(column))


def _by_policy(rows: Table) -> list[tuple[str, Table]]:
    names = [name for name in rows.distinct("policy") if name != "default"]
    return [(name, rows.where(policy=name)) for name in names]


def _potential(figure: Figure, gpu: str) -> list[Claim]:
    rows = figure.main.where(gpu=gpu)
    expectations: tuple[tuple[str, str, Span], ...] = (
        ("joint", "energy that the best batch size and limit together save", (23.8, 74.7)),
        ("batch_size_only", "energy that the best batch size alone saves", (3.4, 65.0)),
        ("limit_only", "energy that the best power limit alone saves", (3.0, 31.5)),
    )
    return [
        Claim(
            figure.label,
            what,
            gpu,
            "%",
            _if_published(gpu, published),
            {"traces": _change(rows, column, -1.0)},
        )
        for column, what, published in expectations
    ]


def _last_five(figure: Figure, gpu: str) -> list[Claim]:
    rows = figure.main.where(gpu=gpu)
    expectations: tuple[tuple[str, str, Span, float], ...] = (
        ("eta", "energy saved in the last five recurrences", (15.3, 75.8), -1.0),
        ("tta", "change of time in the last five recurrences", (-60.1, 12.8), 1.0),
    )
    results = []
    for name, what, published, sign in expectations:
        column = f"{name}_vs_default"
        compared = [part for policy, part in _by_policy(rows) if policy in (OURS, THEIRS)]
        widths = [
            50 * (high - low)
            for part in compared
            for low, high in zip(
                part.numbers(f"{column}_low"), part.numbers(f"{column}_high"), strict=True
            )
        ]
        spans = {policy: _change(part, column, sign) for policy, part in _by_policy(rows)}
        published_here = _if_published(gpu, published)
        doubt = max(widths, default=None)
        results.append(Claim(figure.label, what, gpu, "%", published_here, spans, doubt))
    return results


def _regret(figure: Figure, gpu: str) -> list[Claim]:
    rows = figure.tables[1].where(gpu=gpu)
    theirs = rows.where(policy=THEIRS)
    base = dict(zip(theirs.column("workload"), theirs.numbers("regret"), strict=True))
    ratios = {
        policy: [
            regret / base[load]
            for load, regret in zip(part.column("workload"), part.numbers("regret"), strict=True)
            if load in base
        ]
        for policy, part in _by_policy(rows)
    }
    spans = {policy: _span(values) for policy, values in ratios.items() if values}
    relative = "cumulative regret relative to zeus"
    results = [Claim(figure.label, f"{relative}, over workloads", gpu, "×", None, spans)]
    if "grid" in spans:
        results.append(_grid_regret(figure.label, gpu, ratios["grid"]))
    if OURS in spans:
        mean = geometric_mean(max(value, 1e-3) for value in ratios[OURS])
        what = f"{relative}, geometric mean"
        results.append(Claim(figure.label, what, gpu, "×", None, {OURS: (mean, mean)}))
    cost = {policy: _change(part, "total_cost_vs_default") for policy, part in _by_policy(rows)}
    what = "change of cost over all recurrences, exploration included"
    return [*results, Claim(figure.label, what, gpu, "%", None, cost)]


def _grid_regret(figure: str, gpu: str, ratios: list[float]) -> Claim:
    worst, *smaller = sorted(ratios, reverse=True)
    following = f"; the next is {smaller[0]:.0f} ×" if smaller else ""
    return Claim(
        figure,
        "most regret of grid search relative to zeus",
        gpu,
        "×",
        _if_published(gpu, (72.0, 72.0)),
        {"grid": (worst, worst)},
        remark=f"on {gpu.upper()}, to the last recurrence (there until convergence); NeuMF's small "
        f"batch sizes run to the largest number of epochs{following}",
    )


def _cluster(figure: Figure, gpu: str) -> list[Claim]:
    everything = figure.main.where(gpu=gpu)
    rows = [everything.where(workload=w) for w in everything.distinct("workload") if w != ALL_JOBS]
    expectations: tuple[tuple[str, str, Span, float], ...] = (
        ("eta_vs_default", "energy that a cluster saves, by workload", (7.0, 52.0), -100.0),
        ("tta_vs_default", "change of time in a cluster, by workload", (-33.0, 16.0), 100.0),
    )
    return [
        Claim(
            figure.label,
            what,
            gpu,
            "%",
            _if_published(gpu, published),
            {
                policy: _span(
                    sign * (value - 1)
                    for part in rows
                    for value in part.where(policy=policy).numbers(column)
                )
                for policy, _ in _by_policy(everything)
            },
            remark="other jobs than the publication's; compare in kind",
        )
        for column, what, published, sign in expectations
    ]


def _beta(figure: Figure, gpu: str) -> list[Claim]:
    rows = figure.main.where(gpu=gpu, workload=MEAN)
    energy = dict(zip(rows.numbers("beta"), rows.numbers("total_eta_vs_usual"), strict=True))
    best = min(energy, key=lambda beta: energy[beta])
    remark = f"on {gpu.upper()}, energy at beta {best:g} is {energy[best]:.3f} of that at 2"
    return [
        Claim(
            figure.label,
            "early-stopping threshold beta of least energy",
            gpu,
            "",
            _if_published(gpu, (_PUBLISHED_BETA, _PUBLISHED_BETA)),
            {THEIRS: (best, best)},
            remark="" if best == _PUBLISHED_BETA else remark,
        )
    ]


_JUDGES = {
    "fig06_23_last_five": _last_five,
    "fig07_19_cumulative_regret": _regret,
    "fig09_cluster": _cluster,
    "fig01_15_savings_potential": _potential,
    "fig12_beta_sweep": _beta,
}


def span_text(span: Span | None, unit: str) -> str:
    """A range as people read it."""
    if span is None:
        return "–"
    low, high = (_number(value) for value in span)
    text = low if low == high else f"{low} to {high}"
    return f"{text} {unit}".rstrip()


def _number(value: float) -> str:
    if abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) >= 100:
        text = f"{value:.0f}"
    else:
        text = f"{value:.2f}" if abs(value) < 3 else f"{value:.1f}"
    return text.replace("-", "−")


def claim_rows(results: Sequence[Claim]) -> list[tuple[str, ...]]:
    """One row of cells per claim under ``HEADERS``."""
    rows = []
    for claim in results:
        # Figures of the traces alone belong to no policy; they stand where zeus does.
        spans = claim.spans | {THEIRS: claim.spans.get("traces", claim.spans.get(THEIRS))}
        doubt = "–" if claim.doubt is None else f"{_number(claim.doubt)} {claim.unit}"
        rows.append(
            (
                claim.figure,
                claim.gpu.upper(),
                claim.what,
                span_text(claim.published, claim.unit),
                *(span_text(spans.get(name), claim.unit) for name in (THEIRS, OURS, "grid")),
                doubt,
            )
        )
    return rows


def headline(results: Sequence[Claim], seeds: int) -> list[tuple[str, str]]:
    """The most important results: (figure, what it means), the saving first."""
    lines = []
    for start, words in (
        ("energy saved in the last", "less energy than Default once learned"),
        ("change of time in the last", "change of time against Default once learned"),
    ):
        some = [claim for claim in results if claim.what.startswith(start) and OURS in claim.spans]
        # The publication's GPU where it is there.
        some.sort(key=lambda claim: claim.gpu != PUBLISHED_GPU)
        if some:
            lines.append(_once_learned(some[0], words, seeds))
    means = [claim for claim in results if claim.what.endswith("geometric mean")]
    if means:
        by_gpu = ", ".join(
            f"{claim.gpu.upper()} {_number(claim.spans[OURS][0])}" for claim in means
        )
        meaning = (
            "the regret of zeus, with joulery: the cost of learning beyond the best setting. "
            f"Geometric mean over workloads: {by_gpu}."
        )
        lines.append(
            (f"{_number(geometric_mean(claim.spans[OURS][0] for claim in means))} ×", meaning)
        )
    return lines


def _once_learned(claim: Claim, words: str, seeds: int) -> tuple[str, str]:
    theirs = span_text(claim.spans.get(THEIRS), claim.unit)
    doubt = "" if claim.doubt is None else f"; ± {_number(claim.doubt)} points at most (95 %)"
    meaning = (
        f"{words}, with joulery on {claim.gpu.upper()}, by workload. zeus here: {theirs}; "
        f"published: {span_text(claim.published, claim.unit)}. {seeds} seeds{doubt}."
    )
    return span_text(claim.spans[OURS], claim.unit), meaning
