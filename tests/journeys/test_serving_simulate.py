"""Journey: a trace is replayed under policies, and its frontier goes to a cluster's budget."""

import json
import sys

import pytest

from joulery.cluster import PowerCurve
from joulery.frontier import Frontier
from joulery.serving import ServingSimulation, served_model, serving_board, synthetic_trace
from support.served import LLAMA_8B


def write_inputs(world):
    """A model and a trace as files."""
    rate, seed = world.draw.uniform(2.0, 5.0), world.draw.randrange(10**6)
    requests = synthetic_trace(lambda _: rate, 120.0, prompt_tokens=500.0, seed=seed)
    lines = ["arrival_seconds,prompt_tokens,output_tokens"]
    lines += [f"{r.arrival_seconds},{r.prompt_tokens},{r.output_tokens}" for r in requests]
    (world.folder / "trace.csv").write_text("\n".join(lines), encoding="utf-8")
    (world.folder / "model.json").write_text(json.dumps(LLAMA_8B), encoding="utf-8")


def test_policies_are_compared_and_the_frontier_fits_a_cluster(world):
    """The command gives no saving, breaks the objective, or a frontier that nobody can use."""
    write_inputs(world)
    files = ["--trace", "trace.csv", "--model", "model.json", "--frontier", "frontier.json"]
    bounds = ["--ttft", "1500ms", "--tpot", "80ms"]
    document = world.joulery("serving", "simulate", *files, "--device", "h100", *bounds)
    policies = document["policies"]
    assert document["requests"] > 100
    assert policies["tuner"]["saved"] > 0.05
    assert policies["tuner"]["lost"] <= 0.02
    assert policies["oracle"]["saved"] >= policies["fixed"]["saved"] - 0.02
    assert document["idle"]["pays_from_seconds"] > 0
    text = (world.folder / "frontier.json").read_text(encoding="utf-8")
    curve = PowerCurve.from_frontier(Frontier.from_json(text), gpus=1)
    assert curve.least_watts < curve.most_watts


def write_log(world, unit):
    """A log of an engine that runs as the model says, with times in a unit; its requests."""
    board = serving_board("h100")
    requests = synthetic_trace(lambda _: 3.0, 10.0, seed=world.draw.randrange(10**6))
    table = board.within(board.limit_watts)
    run = ServingSimulation(requests, served_model(LLAMA_8B, board), [table]).run()
    rows = zip(requests, run.first_seconds, run.finish_seconds, strict=True)
    lines = [
        {"arrival_time": r.arrival_seconds, "input_toks": r.prompt_tokens}
        | {"output_toks": r.output_tokens, "queued_ts": r.arrival_seconds * unit}
        | {"first_token_ts": first * unit, "last_token_ts": last * unit}
        for r, first, last in rows
    ]
    (world.folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


@pytest.mark.parametrize(("unit", "fits"), [(1.0, True), (1e3, False)])
def test_a_calibration_says_how_well_it_fits(world, unit, fits):
    """A log in milliseconds, or of another engine, calibrates without a word."""
    write_inputs(world)
    write_log(world, unit)
    files = ["--trace", "log.jsonl", "--model", "model.json", "--calibrate", "log.jsonl"]
    options = ["--ttft", "1s", "--tpot", "80ms", "--policies", "full", "--price", "0.3"]
    document = world.joulery("serving", "simulate", *files, "--device", "h100", *options)
    assert (max(document["calibration"].values()) < 0.1) == fits
    full = document["policies"]["full"]
    assert full["cost"] == pytest.approx(0.3 * full["joules"] / 3.6e6)


def test_a_wrong_policy_is_named(world):
    """A misspelled policy runs all of them, or raises a traceback."""
    write_inputs(world)
    files = ["serving", "simulate", "--trace", "trace.csv", "--model", "model.json"]
    bounds = ["--device", "h100", "--ttft", "1s", "--tpot", "80ms", "--policies", "full,orakel"]
    with world.start(*files, *bounds) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "orakel" in errors


def test_what_breaks_the_objective_saves_nothing(world):
    """A table promises 43 % for a policy under which no request keeps its bounds."""
    write_inputs(world)
    files = ["--trace", "trace.csv", "--model", "model.json", "--device", "h100"]
    command = [sys.executable, "-m", "joulery", "serving", "simulate", *files]
    text = world.run([*command, "--ttft", "1ms", "--tpot", "100us", "--policies", "full,fixed"])
    rows = [line.split() for line in text.splitlines() if "0.00 %" in line]
    assert len(rows) == 2
    assert all("–" in row for row in rows), text
