"""What the publication claims, beside what the reproduced figures say."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.simulate.reproduce_rows import geometric_mean
from joulery.simulate.reproduce_sensitivity import ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulery.simulate.reproduce_rows import FigureData, Rows

CITATION = "You, Chung, Chowdhury: Zeus, NSDI'23"
# The GPU on which the publication states its figures.
THEIR_GPU = "v100"
OURS, THEIRS = "joulery", "zeus"
_THEIR_BETA = 2.0

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement with its figures.

    Attributes:
        figure: Where it is from.
        what: In words.
        gpu: On which GPU.
        unit: ``%`` or ``×``.
        published: Least and most over workloads; None where the publication states none.
        found: Least and most over workloads, by policy; ``traces`` where no policy is involved.
        doubt: Half of the widest 95 % interval of the means of zeus and joulery, in its unit.
        remark: What explains a difference.
    """

    figure: str
    what: str
    gpu: str
    unit: str
    published: Span | None
    found: dict[str, Span] = field(default_factory=dict)
    doubt: float | None = None
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def claims(figures: Mapping[str, FigureData]) -> list[Claim]:
    """Every statement that ``figures`` (by name) speak to, those with a published figure first."""
    found: list[Claim] = []
    for name, judge in _JUDGES.items():
        if name in figures:
            found.extend(judge(figures[name]))
    return sorted(found, key=lambda claim: claim.published is None)


def _span(values: Iterable[float]) -> Span:
    numbers = list(values)
    return min(numbers), max(numbers)


def _theirs(gpu: object, published: Span) -> Span | None:
    return published if gpu == THEIR_GPU else None


def _saved(rows: Rows, column: str) -> Span:
    return _span(100 * (1 - value) for value in rows.numbers(column))


def _change(rows: Rows, column: str) -> Span:
    return _span(100 * (value - 1) for value in rows.numbers(column))


def _by_policy(rows: Rows) -> list[tuple[str, Rows]]:
    return [
        (str(policy), rows.where(policy=policy))
        for policy in rows.distinct("policy")
        if policy != "default"
    ]


def _potential(data: FigureData) -> list[Claim]:
    wanted: tuple[tuple[str, str, Span], ...] = (
        ("joint", "energy that the best batch size and limit together save", (23.8, 74.7)),
        ("batch_size_only", "energy that the best batch size alone saves", (3.4, 65.0)),
        ("limit_only", "energy that the best power limit alone saves", (3.0, 31.5)),
    )
    return [
        Claim(
            data.label,
            what,
            str(gpu),
            "%",
            _theirs(gpu, published),
            {"traces": _saved(data.main.where(gpu=gpu), column)},
        )
        for gpu in data.main.distinct("gpu")
        for column, what, published in wanted
    ]


def _last_five(data: FigureData) -> list[Claim]:
    found = []
    for gpu in data.main.distinct("gpu"):
        rows = data.main.where(gpu=gpu)
        for column, what, published, span in (
            ("eta", "energy saved in the last five recurrences", (15.3, 75.8), _saved),
            ("tta", "change of time in the last five recurrences", (-60.1, 12.8), _change),
        ):
            ends = zip(
                rows.column("policy"),
                rows.numbers(f"{column}_low"),
                rows.numbers(f"{column}_high"),
                strict=True,
            )
            doubt = max(
                (50 * (high - low) for policy, low, high in ends if policy in (OURS, THEIRS)),
                default=None,
            )
            found.append(
                Claim(
                    data.label,
                    what,
                    str(gpu),
                    "%",
                    _theirs(gpu, published),
                    {name: span(part, f"{column}_vs_default") for name, part in _by_policy(rows)},
                    doubt,
                )
            )
    return found


def _regret(data: FigureData) -> list[Claim]:
    ends = data.tables[1]
    found = []
    for gpu in ends.distinct("gpu"):
        rows = ends.where(gpu=gpu)
        ratios = _regret_ratios(rows)
        spans = {name: _span(values) for name, values in ratios.items()}
        what = "cumulative regret relative to zeus, over workloads"
        found.append(Claim(data.label, what, str(gpu), "×", None, spans))
        if "grid" in ratios:
            found.append(_grid_regret(data.label, str(gpu), ratios["grid"]))
        if OURS in ratios:
            mean = geometric_mean(max(value, 1e-3) for value in ratios[OURS])
            what = "cumulative regret relative to zeus, geometric mean"
            found.append(Claim(data.label, what, str(gpu), "×", None, {OURS: (mean, mean)}))
        cost = {name: _change(part, "total_cost_vs_default") for name, part in _by_policy(rows)}
        what = "change of cost over all recurrences, exploration included"
        found.append(Claim(data.label, what, str(gpu), "%", None, cost))
    return found


def _regret_ratios(rows: Rows) -> dict[str, list[float]]:
    """Regret relative to zeus, one per workload that zeus was run on; by policy, where any is."""
    base = dict(
        zip(
            rows.where(policy=THEIRS).column("workload"),
            rows.where(policy=THEIRS).numbers("regret"),
            strict=True,
        )
    )
    ratios = {
        policy: [
            regret / base[load]
            for load, regret in zip(part.column("workload"), part.numbers("regret"), strict=True)
            if load in base
        ]
        for policy, part in _by_policy(rows)
    }
    return {policy: values for policy, values in ratios.items() if values}


def _grid_regret(figure: str, gpu: str, ratios: list[float]) -> Claim:
    worst, *others = sorted(ratios, reverse=True)
    following = f"; the next is {others[0]:.0f} ×" if others else ""
    return Claim(
        figure,
        "most regret of grid search relative to zeus",
        gpu,
        "×",
        _theirs(gpu, (72.0, 72.0)),
        {"grid": (worst, worst)},
        remark=f"on {gpu.upper()}, to the last recurrence (there until convergence); NeuMF's small "
        f"batch sizes run to the largest number of epochs{following}",
    )


def _cluster(data: FigureData) -> list[Claim]:
    found = []
    for gpu in data.main.distinct("gpu"):
        rows = data.main.where(gpu=gpu)
        loads = [load for load in rows.distinct("workload") if load != "all jobs"]
        for column, what, published, sign in (
            ("eta_vs_default", "energy that a cluster saves, by workload", (7.0, 52.0), -100.0),
            ("tta_vs_default", "change of time in a cluster, by workload", (-33.0, 16.0), 100.0),
        ):
            spans = {
                name: _span(
                    sign * (value - 1)
                    for value, load in zip(
                        part.numbers(column), part.column("workload"), strict=True
                    )
                    if load in loads
                )
                for name, part in _by_policy(rows)
            }
            found.append(
                Claim(
                    data.label,
                    what,
                    str(gpu),
                    "%",
                    _theirs(gpu, published),
                    spans,
                    remark="other jobs than the publication's; compare in kind",
                )
            )
    return found


def _beta(data: FigureData) -> list[Claim]:
    found = []
    for gpu in data.main.distinct("gpu"):
        rows = data.main.where(gpu=gpu, workload=ALL)
        figures = dict(zip(rows.numbers("beta"), rows.numbers("total_eta_vs_usual"), strict=True))
        best = min(figures, key=lambda beta: figures[beta])
        found.append(
            Claim(
                data.label,
                "early-stopping threshold beta of least energy",
                str(gpu),
                "",
                _theirs(gpu, (_THEIR_BETA, _THEIR_BETA)),
                {THEIRS: (best, best)},
                remark=""
                if best == _THEIR_BETA
                else f"on {str(gpu).upper()}, energy at beta {best:g} is {figures[best]:.3f} of "
                f"that at {_THEIR_BETA:g}",
            )
        )
    return found


_JUDGES = {
    "fig06_23_last_five": _last_five,
    "fig07_19_cumulative_regret": _regret,
    "fig09_cluster": _cluster,
    "fig01_15_savings_potential": _potential,
    "fig12_beta_sweep": _beta,
}
