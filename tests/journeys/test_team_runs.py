"""Journey: every run shows up in the team's store, recurring or not, and can be compared."""

import http.client
import json

import pytest

from support.journeys import TRAINING
from support.server_process import ServerProcess, log_in

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
        team = {"JOULERY_STORE": server.address, "JOULERY_TOKEN": token, "JOULERY_TEAM": "vision"}
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
    assert {device["origin"] for device in document["devices"]} <= {"simulated", "assumed"}
