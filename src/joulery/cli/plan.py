"""``joulery plan``: plan the clock of every instruction of a training pipeline."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulery import pipeline, reports
from joulery.cli import plan_coordinate
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    Action,
    address,
    duration,
    file,
    flag,
    listed,
    number,
    option,
    page_option,
    size,
    watts,
    whole,
    written,
)
from joulery.cli.progress import Progress
from joulery.errors import InvalidValueError
from joulery.frontier import Origin
from joulery.units import human

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from joulery.pipeline import (
        CoordinatorState,
        HeldPlan,
        PipelinePlan,
        PipelineProblem,
        Saving,
        ScheduleComparison,
        ScheduleSearch,
    )
    from joulery.reports import PipelineView

_EPILOG = """\
The profile is a CSV or JSON file, or a folder of them, with one row per stage, instruction and
clock: the columns stage, instruction (forward, backward, …), frequency (MHz), time (seconds) and
energy (joules) of one microbatch on one device.

SCHEDULE is gpipe, 1f1b, early-recompute, interleaved, zb-h1, zbv, dualpipe-v, auto (compare them
and take the best), or a file with a custom order: a list per rank, such as
[["0F0", "0B0"], ["1F0", "1B0"]].

examples:
  joulery plan pipeline --profile gpt3.csv --stages 8 --microbatches 16 --schedule 1f1b
  joulery plan pipeline --profile gpt3.csv --microbatches 16 --straggler 1.1 --html plan.html
  joulery plan pipeline --profile gpt3.csv --microbatches 32 --schedule auto --communication 2ms
  joulery plan pipeline --profile gpt3.csv --microbatches 16 --replicas 4 \\
    --coordinate 127.0.0.1:29600 --token-file ~/.joulery-token
"""


def _run(arguments: argparse.Namespace) -> Output | int:
    _refuse_unused(arguments)
    endpoint = _endpoint(arguments)
    progress = Progress()
    try:
        view = _plan(arguments, progress)
        progress.show("joulery plan: the frontier")
        document = _document(view)
    finally:
        progress.done()
    if arguments.out is not None:
        # Ranks follow the plan for the budget, where there is one, or that of equal time.
        view.plan.save(arguments.out, watts=arguments.budget)
    output = Output(document, lambda: reports.pipeline_report(view), page=arguments.html)
    if endpoint is None:
        return output
    output.announce(as_json=arguments.json)
    plan_coordinate.coordinate(view.plan, *endpoint)
    return 0


def _plan(arguments: argparse.Namespace, progress: Progress) -> PipelineView:
    config = pipeline.PipelineConfig(
        communication_seconds=arguments.communication and _one_or_each(arguments.communication),
        reduction_seconds=arguments.reduction and _one_or_each(arguments.reduction),
        blocking_watts=arguments.blocking_power,
        devices_per_rank=arguments.devices_per_rank,
        replicas=arguments.replicas,
        optimizer=arguments.optimizer,
        board_watts=arguments.board_limit,
    )
    profiles = pipeline.read_profiles(arguments.profile)
    if arguments.repeat != 1.0:
        profiles = profiles.scaled(arguments.repeat)
    search = None
    progress.show("joulery plan: clocks of the fastest iteration")
    if arguments.schedule == "auto":
        search = pipeline.search_schedules(
            profiles,
            arguments.microbatches,
            ranks=arguments.stages,
            config=config,
            deadline_seconds=arguments.deadline,
            memory_bytes=arguments.memory,
            layers=tuple(arguments.layers or ()),
        )
        plan = search.best.plan
    else:
        plan = pipeline.plan_pipeline(
            profiles,
            schedule=arguments.schedule,
            microbatches=arguments.microbatches,
            ranks=arguments.stages,
            chunks=arguments.chunks or 2,
            config=config,
        )
    savings = tuple(_savings(arguments, plan, search))
    progress.show("joulery plan: clocks that boards can hold")
    holding = pipeline.hold_clocks(plan, savings[0].plan)
    notes = (*profiles.notes, *profiles.split_notes(plan.problem.stages))
    return reports.PipelineView(plan, savings, notes, search, holding)


def _savings(
    arguments: argparse.Namespace, plan: PipelinePlan, search: ScheduleSearch | None
) -> Iterator[Saving]:
    """Savings at the iteration times that were asked for, the most specific one last."""
    yield pipeline.plan_saving(plan)
    if search is not None:
        pace = search.wanted.pace_seconds
        if plan.fastest_seconds <= pace * (1 + 1e-9):
            yield pipeline.plan_saving(plan, pace, name="within 1f1b's time", waits=False)
    if (factor := arguments.straggler) is not None:
        seconds = plan.full_clocks.seconds * factor
        yield pipeline.plan_saving(plan, seconds, name=f"straggler × {factor:g}")
    if (seconds := arguments.deadline) is not None:
        yield pipeline.plan_saving(plan, seconds, name=f"deadline {seconds:g} s", waits=False)
    if (budget := arguments.budget) is not None:
        yield pipeline.budget_saving(plan, budget, name=f"budget {human(budget, 'W')}")


def _one_or_each(figures: list[float]) -> float | tuple[float, ...]:
    return tuple(figures) if len(figures) > 1 else figures[0]


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Refuse options that would change nothing."""
    for name, schedule in (
        ("layers", "auto"),
        ("memory", "auto"),
        ("chunks", "interleaved"),
    ):
        if getattr(arguments, name) is not None and arguments.schedule != schedule:
            raise InvalidValueError(
                f"--{name} means nothing for the schedule {arguments.schedule}",
                remedy=f"leave it out, or use --schedule {schedule}",
            )


def _endpoint(arguments: argparse.Namespace) -> tuple[tuple[str, int], str] | None:
    """Address and token of the coordinator; None if there is to be none."""
    if arguments.coordinate is None:
        if arguments.token_file is not None or arguments.anywhere:
            raise InvalidValueError(
                "there is no coordinator to call",
                remedy="add --coordinate HOST:PORT, or leave these out",
            )
        return None
    endpoint = plan_coordinate.listening_address(arguments.coordinate, anywhere=arguments.anywhere)
    if arguments.token_file is None:
        raise InvalidValueError(
            "ranks need a secret to call the coordinator with",
            remedy="add --token-file FILE, which is created if missing",
        )
    return endpoint, plan_coordinate.token_from(arguments.token_file)


def _document(view: PipelineView) -> dict[str, Any]:
    """Everything that was planned; ``planned_seconds`` is the iteration time of the last plan."""
    problem, full = view.plan.problem, view.plan.full_clocks
    document = {
        "provenance": Origin.PREDICTED.value,
        "planned_seconds": view.savings[-1].plan.seconds,
        "planning_cpu_seconds": view.plan.planning_cpu_seconds,
        "schedule": problem.schedule,
        "ranks": problem.ranks,
        "devices": problem.ranks * problem.config.devices,
        "stages": problem.stages,
        "microbatches": problem.microbatches,
        "full_clocks": {"seconds": full.seconds, "joules": full.joules},
        "frontier": [plan.totals() for plan in view.plan.frontier_plans],
        "plans": [_saving(problem, saving) for saving in view.savings],
        "holding": None if view.holding is None else _holding(view.holding),
        "notes": list(view.notes),
    }
    return document if view.search is None else document | _search_document(view.search)


def _holding(holding: HeldPlan) -> dict[str, Any]:
    """What holding the clocks of the first plan costs."""
    return {
        "seconds": pipeline.MINIMUM_HOLD_SECONDS,
        "extra_joules": holding.extra_joules,
        "unheld_ranks": list(holding.unheld_ranks),
    }


def _saving(problem: PipelineProblem, saving: Saving) -> dict[str, Any]:
    plan = saving.plan
    return {
        "name": saving.name,
        "deadline_seconds": saving.seconds,
        "seconds": plan.seconds,
        "joules": saving.joules,
        "lower_bound_joules": saving.lower_bound_joules,
        "full_clocks_joules": saving.full_clocks_joules,
        "saved": saving.saved,
        "instructions": [
            {
                "rank": item.rank,
                "stage": item.stage,
                "kind": item.kind,
                "microbatch": item.microbatch,
                "clock_hertz": None if math.isnan(clock) else clock,
                "start_seconds": start,
                "seconds": seconds,
                "joules": joules,
            }
            for item, clock, start, seconds, joules in zip(
                problem.instructions,
                plan.clocks_hertz.tolist(),
                plan.starts.tolist(),
                plan.durations.tolist(),
                plan.joules_each.tolist(),
                strict=True,
            )
        ],
    }


def _search_document(search: ScheduleSearch) -> dict[str, Any]:
    """The comparisons by number of microbatches, and the other partition if one was tried."""
    document: dict[str, Any] = {"comparisons": [_comparison(c) for c in search.comparisons]}
    if search.moved_layers:
        moved = search.moved_best
        document["other_partition"] = {
            "layers": list(search.moved_layers),
            "best": None if moved is None else moved.schedule.name,
            "joules": None if moved is None else moved.joules,
            "chosen": search.best is moved,
        }
    return document


def _comparison(comparison: ScheduleComparison) -> dict[str, Any]:
    best, spacious = comparison.best(), comparison.best(any_memory=True)
    return {
        "microbatches": comparison.microbatches,
        "deadline_seconds": comparison.deadline_seconds,
        "full_clocks_joules": comparison.full_clocks_joules,
        "best": None if best is None else best.schedule.name,
        "best_with_any_memory": None if spacious is None else spacious.schedule.name,
        "schedules": [
            {
                "name": candidate.schedule.name,
                "full_clocks_seconds": candidate.plan.full_clocks.seconds,
                "seconds": None if candidate.best is None else candidate.best.seconds,
                "joules": candidate.joules,
                "activations": candidate.activations,
                "activation_bytes": candidate.activation_bytes,
                "transfers": candidate.transfers,
            }
            for candidate in comparison.candidates
        ],
        "refused": comparison.refused,
    }


_MANY = whole(1, 100_000)
_SECONDS = listed(duration)
_PIPELINE = (
    file("--profile", "measured stages", required=True),
    option("--stages", "ranks in the pipeline; by default, stages of the profile", "N", _MANY),
    option("--microbatches", "microbatches per iteration", "M", _MANY, required=True),
    option("--schedule", "1f1b by default", "SCHEDULE", default="1f1b"),
    option("--chunks", "stages per rank of interleaved, by default 2", "V", _MANY),
    option("--straggler", "another pipeline takes X times as long, 1 or more", "X", number(1.0)),
    option("--deadline", "longest iteration, such as 2.5s", "TIME", duration),
    option("--budget", "power of all devices to stay below on average, such as 20kW", "W", watts),
    option("--board-limit", "power limit of each board: its clocks end there", "W", watts),
    option(
        "--blocking-power",
        "power of a waiting device; by default what the profile states",
        "W",
        watts,
    ),
    option(
        "--communication",
        "time per hop of data, or of each link between ranks, such as 2ms; by default what the "
        "profile states",
        "TIME[,TIME,…]",
        _SECONDS,
    ),
    option(
        "--reduction",
        "time to reduce gradients at the end of an iteration, or of each rank; by default what the "
        "profile states",
        "TIME[,TIME,…]",
        _SECONDS,
    ),
    option("--devices-per-rank", "devices of a tensor-parallel group", "N", _MANY, default=1),
    option("--replicas", "data-parallel copies of the pipeline", "N", _MANY, default=1),
    option("--repeat", "profiled pieces per microbatch", "X", float, default=1.0),
    flag("--optimizer", "plan the optimizer step, which is in the profile"),
    option("--memory", "such as 30GB, for activations on a device, for auto", "SIZE", size),
    option("--layers", "layers of each profiled stage: auto moves some", "N,N,…", listed(_MANY)),
    page_option("write a page with charts, before and after"),
    written("--out", "write the plan for joulery.pipeline.load_plan()", ".json"),
    option("--coordinate", "then serve running ranks until interrupted", "HOST:PORT"),
    file("--token-file", "secret of the ranks; created if missing"),
    flag("--anywhere", "let --coordinate listen beyond this machine"),
)
_PACE = (
    option("--coordinator", "address of the coordinator", "HOST:PORT", address, required=True),
    file("--token-file", "its secret", required=True),
    option("--budget", "power of all devices to stay below, such as 20kW", "W", watts),
    option("--iteration", "time of an iteration to hold, such as 2.5s", "TIME", duration),
    flag("--free", "as fast as the pipelines can again"),
)
_PACE_EPILOG = """\
All pipelines slow down as one, by their clocks, from the same iteration on. Without --budget,
--iteration or --free nothing changes, and the state is shown.

examples:
  joulery plan pace --coordinator 127.0.0.1:29600 --token-file ~/.joulery-token --budget 20kW
  joulery plan pace --coordinator 127.0.0.1:29600 --token-file ~/.joulery-token --free
"""


def _pace(arguments: argparse.Namespace) -> Output:
    requests = (arguments.budget, arguments.iteration, arguments.free or None)
    if sum(request is not None for request in requests) > 1:
        raise InvalidValueError(
            "--budget, --iteration and --free exclude each other", remedy="give one of them"
        )
    state = pipeline.hold_pace(
        arguments.coordinator,
        plan_coordinate.token_from(arguments.token_file, create=False),
        seconds=arguments.iteration,
        watts=arguments.budget,
        change=any(request is not None for request in requests),
    )
    return Output(asdict(state), _pace_text(state))


def _pace_text(state: CoordinatorState) -> str:
    lines = [
        f"{state.connected} of {state.ranks} stages connected, {state.iteration + 1} iterations",
        f"planned power {human(state.planned_watts, 'W')}",
    ]
    if state.held_seconds is not None:
        budget = f" for {human(state.held_watts, 'W')}" if state.held_watts is not None else ""
        lines.append(f"held at {human(state.held_seconds, 's')} per iteration{budget}")
    if state.share_watts is not None:
        lines.append(f"a board has {human(state.share_watts, 'W')} of the cluster's budget")
    slow = [f"{n} × {factor:.3f}" for n, factor in enumerate(state.factors) if factor > 1]
    return "\n".join([*lines, *([f"slowed down: {', '.join(slow)}"] if slow else [])])


COMMAND = Action(
    epilog="`joulery plan pipeline --help` has the options, --json among them.",
    actions={
        "pipeline": Action(
            _run,
            _PIPELINE,
            "clocks of a pipeline-parallel iteration that save energy in equal time",
            _EPILOG,
        ),
        "pace": Action(
            _pace, _PACE, "hold the pace or power of running pipelines, or free it", _PACE_EPILOG
        ),
    },
)
