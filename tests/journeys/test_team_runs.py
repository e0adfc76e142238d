"""Journey: every run shows up in the team's store, recurring or not, and can be compared."""

import http.client
import json
import re
import sys
from statistics import fmean

import pytest

from support.journeys import TRAINING
from support.server_process import OUTCOME, ServerProcess, log_in

pytestmark = pytest.mark.slow

SCRIPT = (
    TRAINING
    + """
node.set_load(0, work)
around = -node.true_joules(0)
with joulery.Run("fine-tune", dry_run=True) as run:
    joules = -node.true_joules(0)
    for number in range(100):
        train(number)
        run.step()
    run.report(0.5)
    for number in range(40):
        train(number)
        run.step()
    run.report(0.6)
    joules += node.true_joules(0)
around += node.true_joules(0)
loop = joulery.training.CallbackLoop()
loop.begin()
for number in range(20):
    loop.begin_step()
    train(number)
    loop.end_step()
loop.end()
print(json.dumps({"joules": joules, "around": around}))
"""
)


def page(server, headers, path):
    """Text of a page."""
    browser = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    browser.request("GET", path, headers=headers)
    answer = browser.getresponse()
    text = answer.read().decode()
    browser.close()
    assert answer.status == 200, text
    return text


def test_runs_of_every_kind_are_kept(world, tmp_path):
    """Whoever trains once, or only measures, finds nothing in the store that everyone looks at."""
    with ServerProcess(tmp_path / "server.sqlite") as server:
        _, token = server.token("vision", "work")
        team = {"JOULERY_STORE": server.address, "JOULERY_TOKEN": token}  # which names the team
        command = world.script("fine_tune.py", SCRIPT)
        truth = json.loads(world.run(command, JOULERY_TAGS="lr=0.1", **team).splitlines()[-1])
        world.joulery("measure", "--", "sleep", "0.5", **team)
        runs = world.joulery("runs", "list", **team)["runs"]
        assert [run["kind"] for run in runs] == ["measure", "callback", "run"]
        run = server.ask("GET", f"/v1/runs/{runs[2]['id']}", token=token).document
        assert (run["name"], run["tags"], run["ended"]) == ("fine-tune", {"lr": "0.1"}, True)
        assert run["steps"] == 140
        (board,) = [device for device in run["devices"] if world.board.name in device["name"]]
        # Seconds long, so that refreshes of the counter and the time around the steps show.
        assert 0.7 * truth["joules"] <= board["joules"] <= 1.3 * truth["around"]
        curves = {curve["quantity"]: curve["points"] for curve in run["curves"]}
        assert {"watts", "limit_watts", "clock_hertz", "steps_per_second", "metric"} <= set(curves)
        assert [value for _, value in curves["metric"]] == [0.5, 0.6]
        found = server.ask("GET", "/v1/teams/vision/runs?text=LR", token=token).document["runs"]
        assert [entry["id"] for entry in found] == [runs[1]["id"], runs[2]["id"]]
        compared = world.joulery("compare", str(runs[2]["id"]), str(runs[1]["id"]), **team)
        assert [entry["id"] for entry in compared["runs"]] == [runs[2]["id"], runs[1]["id"]]
        headers = log_in(server.address, token)
        listed = page(server, headers, "/runs?q=fine")
        assert "fine-tune" in listed
        assert "among the latest 20,000" in listed
        text = page(server, headers, f"/runs/{run['id']}")
        for words in ("Power by device", "Energy by device", "Metric by energy", "power limit"):
            assert words in text, words
        both = "&".join(f"run={entry['id']}" for entry in runs)
        assert "energy a step" in page(server, headers, f"/runs/compare?{both}")
        _, other = server.token("speech", "read")
        assert "fine-tune" not in page(server, log_in(server.address, other), "/runs")
        assert server.ask("GET", f"/v1/runs/{run['id']}", token=other).status == 404


def board_joules(world, number, team):
    """What a run says that the board used."""
    run = world.joulery("runs", "show", str(number), **team)
    (board,) = [device for device in run["devices"] if world.board.name in device["name"]]
    return board["joules"]


def test_runs_within_runs_count_once(world):
    """A team that measures its trainings is told that it used two or three times as much."""
    team = {"JOULERY_STORE": str(world.folder / "team.sqlite"), "JOULERY_TEAM": "vision"}
    script = world.script("fine_tune.py", SCRIPT.replace("range(100)", "range(20)"))
    measure = [sys.executable, "-m", "joulery", "measure", "--"]
    before = world.node.true_joules(0)
    world.run([*measure, *measure, *script], **team)
    used = world.node.true_joules(0) - before
    runs = world.joulery("runs", "list", **team)["runs"]
    assert sorted(run["kind"] for run in runs) == ["callback", "measure", "measure", "run"]
    keys = {run["key"] for run in runs}
    (outer,) = [run for run in runs if run["part_of"] not in keys]
    (short,) = [run for run in runs if run["kind"] == "callback"]
    assert 0.5 * used < board_joules(world, outer["id"], team) < 1.1 * used
    assert 0 < board_joules(world, short["id"], team) < used
    assert sum(run["joules"] for run in runs) > 1.5 * outer["joules"], "each states what it used"
    report = world.joulery("report", "--team", "vision", **team)
    energy = next(row for row in report["figures"] if row["name"] == "energy of the devices")
    assert energy["value"] == pytest.approx(outer["joules"] / 3.6e6)
    assert sum(run["joules"] for run in report["runs"]) == pytest.approx(outer["joules"])


def more(nights):
    """The share of energy that nights took beyond as many of the default, exactly."""
    default = [joules for is_default, joules in nights if is_default]
    return sum(joules for _, joules in nights) / len(nights) / fmean(default) - 1


def test_jobs_that_lose_energy_are_flagged(world, tmp_path, draw):
    """A job uses more than its default for weeks, and the page is as green as ever."""
    factors = {"loser": draw.uniform(1.6, 3.0), "saver": draw.uniform(0.3, 0.7)}
    store, used = tmp_path / "server.sqlite", {name: [] for name in factors}
    with ServerProcess(store) as server:
        for name, factor in factors.items():
            job = server.define(name=name)
            for night in range(9):
                decision = server.decide(job, f"night {night}")
                is_default = decision["batch_size"] == 128
                joules = draw.gauss(1.0, 0.01) * 300.0 * (1.0 if is_default else factor)
                outcome = OUTCOME | {"joules": joules, "seconds": joules / 150.0}
                document = {"key": f"night {night}", "outcome": outcome}
                path = f"/v1/decisions/{decision['id']}/outcome"
                server.ask("PUT", path, document, decision["token"])
                used[name].append((is_default, joules))
        headers = log_in(server.address, server.token("vision", "read")[1])
        overview, jobs = page(server, headers, "/"), page(server, headers, "/jobs")
    everything = [night for nights in used.values() for night in nights]
    world.joulery("report", "--html", "jobs.html", "--store", str(store))
    for text in (overview, (world.folder / "jobs.html").read_text()):
        (share,) = re.findall(r"(\d+) % more energy than the default<", text)
        assert int(share) == pytest.approx(100 * more(used["loser"]), abs=1)
        ((share, less),) = re.findall(r"(\d+) % (more|less) than the default\.", text)
        share = int(share) * (1 if less == "more" else -1)
        assert share == pytest.approx(100 * more(everything), abs=1.5)
    rows = re.findall(r"<tr>.*?</tr>", jobs, re.DOTALL)
    flagged = {name for name in used for row in rows if name in row and "loses" in row}
    assert flagged == {"loser"}


def test_a_store_that_is_down_gets_the_run_later(world, tmp_path):
    """A training fails because nobody can be told about it, or is never seen by anybody."""
    command = world.script("fine_tune.py", SCRIPT.replace("range(100)", "range(10)"))
    with ServerProcess(tmp_path / "server.sqlite") as server:
        _, token = server.token("vision", "work")
        team = {"JOULERY_STORE": server.address, "JOULERY_TOKEN": token, "JOULERY_TEAM": "vision"}
        server.kill()
        with world.popen(command, **team) as process:
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "stored later" in errors, errors
        server.start()
        world.joulery("measure", "--", "true", **team)
        runs = world.joulery("runs", "list", **team)["runs"]
        assert sorted(run["kind"] for run in runs) == ["callback", "measure", "run"]
        assert all(run["ended"] for run in runs)


def test_power_now_is_listed_by_board(make_world):
    """Nobody can see at a glance which board draws what."""
    world = make_world(boards=2)
    world.node.set_load(1, world.step)
    document = world.joulery("top", "--once", "--interval", "1s")
    watts = [
        device["watts"] for device in document["devices"] if world.board.name in device["name"]
    ]
    assert watts[1] > 1.2 * watts[0] > 0
    assert {device["provenance"] for device in document["devices"]} <= {"simulated", "assumed"}
