"""Journey: share the power budget of a cluster over jobs whose frontiers were measured."""

import json

import pytest

from joulery.hardware import catalog, settle
from support.virtual_pipelines import stage_works, write_measured

LIMITS = 7


def test_an_allocation_keeps_the_budget_and_beats_equal_watts(world):
    """Jobs under their shares draw more than the budget, or one is slowed down for nothing."""
    names = [world.draw.choice(("V100", "A100", "A40", "H100")) for _ in range(4)]
    boards = {f"job {number}": catalog.board(name) for number, name in enumerate(names)}
    gpus = {job: world.draw.randrange(1, 9) for job in boards}
    works = {job: catalog.workload("resnet50", board) for job, board in boards.items()}

    def truth(job, watts):
        steady = settle(boards[job], works[job], watts)
        return steady.watts, 1 / steady.seconds

    def points(job):
        low, high = boards[job].min_limit_watts, boards[job].default_limit_watts
        limits = [low + (high - low) * n / (LIMITS - 1) for n in range(LIMITS)]
        return [[limit, truth(job, limit)[1]] for limit in limits]

    jobs = [{"id": job, "gpus": gpus[job], "points": points(job)} for job in boards]
    (world.folder / "jobs.json").write_text(json.dumps({"jobs": jobs}), encoding="utf-8")
    most = sum(gpus[job] * boards[job].default_limit_watts for job in boards)
    budget = world.draw.uniform(0.6, 0.9) * most
    performance = {}
    for policy in ("fair", "max-min", "equal-watts"):
        options = ("--jobs", "jobs.json", "--budget", f"{budget / 1000:.6f}kW", "--policy", policy)
        document = world.joulery("cluster", "allocate", *options)
        shares = {job["id"]: job["watts"] / gpus[job["id"]] for job in document["jobs"]}
        drawn = sum(gpus[job] * truth(job, watts)[0] for job, watts in shares.items())
        assert drawn <= budget * (1 + 1e-6)
        performance[policy] = [truth(j, w)[1] / points(j)[-1][1] for j, w in shares.items()]
    worst = {policy: min(values) for policy, values in performance.items()}
    assert worst["max-min"] == pytest.approx(max(worst.values()), abs=0.02)
    assert sum(performance["fair"]) >= sum(performance["equal-watts"]) - 0.02


def test_a_prediction_is_a_jobs_curve(world):
    """A job that has not run yet cannot share a budget, or counts as a multiple of itself."""
    model = {"name": "drawn", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8}
    model |= {"feedforward": 14336, "vocabulary": 32_000, "sequence": 4096}
    (world.folder / "model.json").write_text(json.dumps(model), encoding="utf-8")
    gpus = world.draw.choice((4, 8))
    predicted = world.joulery(
        *("predict", "--model", "model.json", "--device", "h100", "--batch-size", "64"),
        *("--plan", f"dp{gpus}-mb1-zero3", "--limits", "400W,550W,700W"),
    )
    (world.folder / "predicted.json").write_text(json.dumps(predicted), encoding="utf-8")
    jobs = {"jobs": [{"id": "new", "frontier": "predicted.json"}]}
    (world.folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    powers = [point["joules"] / point["seconds"] for point in predicted["points"]]
    budget = (min(powers) + max(powers)) / 2
    shares = world.joulery("cluster", "allocate", "--jobs", "jobs.json", "--budget", f"{budget}W")
    assert shares["used_watts"] == pytest.approx(budget, rel=1e-6)
    assert 0.3 < shares["jobs"][0]["performance"] < 1


def test_a_pipelines_plan_is_a_jobs_curve(world):
    """A planned job counts as one of its GPUs, or each of its GPUs as the whole."""
    stages, pipelines = world.draw.choice((2, 4)), 2
    write_measured(world.folder / "stages.csv", world.board, stage_works(world.draw, stages))
    plan = world.joulery(
        *("plan", "pipeline", "--profile", "stages.csv", "--microbatches", "4"),
        *("--replicas", str(pipelines), "--blocking-power", f"{world.board.idle_watts}W"),
    )
    (world.folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    jobs = {"jobs": [{"id": "planned", "frontier": "plan.json"}]}
    (world.folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    shares = world.joulery("cluster", "allocate", "--jobs", "jobs.json", "--budget", "1MW")
    fastest = plan["frontier"][0]
    assert shares["used_watts"] == pytest.approx(fastest["joules"] / fastest["seconds"], rel=1e-6)
    watts = shares["used_watts"] / (stages * pipelines)
    assert world.board.idle_watts < watts <= world.board.default_limit_watts
