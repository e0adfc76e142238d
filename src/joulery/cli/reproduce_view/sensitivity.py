"""Draw how much the knobs matter: Fig. 10 (drift), 11/22 (eta), 12 (beta) and 13 (ablation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.cli.picture import COLOURS, MARKERS
from joulery.cli.reproduce_view.theme import (
    INK,
    PAPER,
    POLICY_COLOURS,
    POLICY_HATCHES,
    POLICY_MARKERS,
    SOFT,
    legend_below,
    network,
    panels,
    per_workload,
    plain_ticks,
)
from joulery.simulate.reproduce_drift import AT
from joulery.simulate.reproduce_sensitivity import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.simulate.reproduce_rows import FigureData, Rows

# The publication's drifting data is a sentiment analysis too.
_DRIFT_WORKLOAD = "sentiment140"
_HIGHEST = 6.0


def drift(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One picture per GPU, a column per kind of drift: one workload's path, and all regrets."""
    for gpu in data.main.distinct("gpu"):
        rows = data.main.where(gpu=gpu)
        loads = rows.distinct("workload")
        load = _DRIFT_WORKLOAD if _DRIFT_WORKLOAD in loads else loads[0]
        kinds = rows.distinct("drift")
        names = [str(kind) for kind in kinds] + [""] * (2 * len(kinds))
        figure, axes = panels(names, len(kinds), (4.4, 2.5))
        for column, kind in enumerate(kinds):
            part = rows.where(workload=load, drift=kind)
            _drift_cost(axes[column], part)
            _drift_sizes(axes[len(kinds) + column], part)
            _drift_regret(axes[2 * len(kinds) + column], data.tables[1].where(gpu=gpu, drift=kind))
        legend_below(figure, axes)
        figure.suptitle(
            f"{str(gpu).upper()}, synthetic drift; first two rows {network(str(load))}", fontsize=10
        )
        yield str(gpu), figure


def _drift_cost(panel: Any, rows: Rows) -> None:
    for policy in rows.distinct("policy"):
        part = rows.where(policy=policy)
        panel.plot(
            part.numbers("recurrence"),
            [min(value, 2 * _HIGHEST) for value in part.numbers("cost_over_optimum")],
            color=POLICY_COLOURS[str(policy)],
            linestyle="-" if policy == "zeus" else "-.",
            linewidth=1.4,
            label=str(policy),
        )
    panel.axhline(1, color=SOFT, linewidth=0.8)
    panel.axvline(AT + 0.5, color=SOFT, linewidth=1, linestyle=":")
    highest = max(rows.numbers("cost_over_optimum"))
    panel.set_ylim(0, min(_HIGHEST, 1.1 * highest))
    if highest > _HIGHEST:
        panel.annotate(
            f"up to {highest:.3g}", (0.02, 0.93), xycoords="axes fraction", fontsize=8, color=SOFT
        )
    panel.set_ylabel("cost, optimum = 1 (mean)")


def _drift_sizes(panel: Any, rows: Rows) -> None:
    policies = rows.distinct("policy")
    first = rows.where(policy=policies[0])
    panel.step(
        first.numbers("recurrence"),
        first.numbers("optimal_batch_size"),
        where="mid",
        color=INK,
        linewidth=1,
        linestyle="--",
        label="optimal batch size",
    )
    for policy in policies:
        part = rows.where(policy=policy)
        panel.plot(
            part.numbers("recurrence"),
            part.numbers("batch_size_first_seed"),
            color=POLICY_COLOURS[str(policy)],
            marker=POLICY_MARKERS[str(policy)],
            markersize=3.5,
            linewidth=0.6,
            fillstyle="none" if policy == "zeus" else "full",
        )
    panel.axvline(AT + 0.5, color=SOFT, linewidth=1, linestyle=":")
    panel.set_yscale("log", base=2)
    sizes = sorted({*rows.numbers("batch_size_first_seed"), *rows.numbers("optimal_batch_size")})
    panel.set_yticks(sizes, [f"{size:g}" for size in sizes])
    panel.minorticks_off()
    panel.set_xlabel("recurrence")
    panel.set_ylabel("batch size (one seed)")


def _drift_regret(panel: Any, rows: Rows) -> None:
    policies, loads = rows.distinct("policy"), rows.distinct("workload")
    for position, policy in enumerate(policies):
        part = rows.where(policy=policy)
        panel.bar(
            [at + (position - 0.5) * 0.4 for at in range(len(loads))],
            [max(value, 0.1) for value in part.numbers("regret_after_drift")],
            0.37,
            color=POLICY_COLOURS[str(policy)],
            hatch=POLICY_HATCHES[str(policy)],
            edgecolor=PAPER,
        )
    regrets = [max(value, 0.1) for value in rows.numbers("regret_after_drift")]
    panel.set_yscale("log")
    panel.set_ylim(min(0.6 * min(regrets), 0.05 * max(regrets)), 1.6 * max(regrets))
    plain_ticks(panel.yaxis)
    panel.set_xticks(range(len(loads)), [network(str(load)) for load in loads])
    panel.tick_params("x", rotation=25)
    panel.set_ylabel("regret after the drift")
    panel.grid(visible=False, axis="x")


def eta_sweep(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One picture per GPU: where each eta ends up, a panel per workload."""
    return per_workload(data, (4.2, 3.1), _eta_paths, ": labels are eta")


def _eta_paths(panel: Any, rows: Rows) -> None:
    for policy in rows.distinct("policy"):
        _eta_path(panel, rows.where(policy=policy), str(policy))
    panel.scatter([1], [1], s=45, marker="D", color=COLOURS[1], zorder=4, label="Default")
    panel.margins(0.16)
    panel.set_xlabel("time, Default = 1")
    panel.set_ylabel("energy, Default = 1")


def _eta_path(panel: Any, rows: Rows, policy: str) -> None:
    across, upwards = rows.numbers("tta_vs_default"), rows.numbers("eta_vs_default")
    colour = POLICY_COLOURS[policy]
    panel.plot(
        across,
        upwards,
        color=colour,
        marker=POLICY_MARKERS[policy],
        markersize=5,
        linewidth=1,
        linestyle="-" if policy == "zeus" else "-.",
        fillstyle="none" if policy == "zeus" else "full",
        label=policy,
    )
    if policy != "zeus":
        return
    etas = rows.numbers("eta")
    for number, place in ((0, (5, 5)), (len(etas) - 1, (5, -12))):
        panel.annotate(
            f"{etas[number]:g}",
            (across[number], upwards[number]),
            xytext=place,
            textcoords="offset points",
            fontsize=8,
            color=colour,
        )


def beta_sweep(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One panel per GPU, one line per workload."""
    gpus = data.main.distinct("gpu")
    figure, axes = panels([str(gpu).upper() for gpu in gpus], 2, (5.6, 3.2))
    for gpu, panel in zip(gpus, axes, strict=True):
        rows = data.main.where(gpu=gpu)
        for number, load in enumerate(rows.distinct("workload")):
            part = rows.where(workload=load)
            together = load == ALL
            panel.plot(
                part.numbers("beta"),
                part.numbers("total_eta_vs_usual"),
                color=INK if together else COLOURS[number % len(COLOURS)],
                marker="D" if together else MARKERS[number % len(MARKERS)],
                markersize=5 if together else 4,
                linewidth=2.2 if together else 1,
                fillstyle="full" if together or number < len(MARKERS) else "none",
                label=str(load) if together else network(str(load)),
                zorder=4 if together else 2,
            )
        panel.axhline(1, color=SOFT, linewidth=0.8, linestyle="--")
        panel.set_xlabel("early-stopping threshold beta")
        panel.set_ylabel("energy, beta 2 = 1")
    legend_below(figure, axes, 7)
    yield "", figure


def ablation(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One panel per GPU; bars per workload and variant on a logarithmic scale."""
    gpus = data.main.distinct("gpu")
    figure, axes = panels([str(gpu).upper() for gpu in gpus], 2, (6.4, 3.4))
    hatches = ("", "//", "..")
    for gpu, panel in zip(gpus, axes, strict=True):
        rows = data.main.where(gpu=gpu)
        loads = rows.distinct("workload")
        variants = [str(variant) for variant in rows.distinct("variant")][1:]
        for position, variant in enumerate(variants):
            heights = rows.where(variant=variant).numbers("total_eta_vs_whole")
            places = [at + (position - 1) * 0.27 for at in range(len(loads))]
            panel.bar(
                places,
                heights,
                0.25,
                color=COLOURS[position + 1],
                hatch=hatches[position],
                edgecolor=PAPER,
                label=variant,
            )
            for place, height in zip(places, heights, strict=True):
                panel.annotate(
                    f"{height:.3g}",
                    (place, max(height, 1)),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    rotation=90,
                    fontsize=7,
                )
        panel.axhline(1, color=SOFT, linewidth=1, linestyle="--")
        panel.set_yscale("log")
        low, high = min(rows.numbers("total_eta_vs_whole")), max(rows.numbers("total_eta_vs_whole"))
        panel.set_ylim(0.9 * min(low, 1), 2.2 * high)
        plain_ticks(panel.yaxis)
        panel.set_xticks(
            range(len(loads)), [str(w) if w == ALL else network(str(w)) for w in loads]
        )
        panel.tick_params("x", rotation=18)
        panel.set_ylabel("energy, whole Zeus = 1")
        panel.grid(visible=False, axis="x")
    legend_below(figure, axes)
    yield "", figure
