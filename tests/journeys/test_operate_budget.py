"""Journey: an agent keeps a cluster of imperfect boards under its budget for virtual hours."""

import json

import pytest

from joulery.cluster import announce
from joulery.grid import GridEvent
from support.disturbed import DisturbedPlant
from support.plant import Plant

HOUR = 3600.0


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is not taken for nodes and meters that do not answer."""
    for name in ("_agent._ENGINE", "_pool._NODE", "_pool._LOST_NODE", "_meters._PATIENCE"):
        monkeypatch.setattr(f"joulery.cluster.{name}_SECONDS", None)


def test_the_budget_is_kept_and_used(tmp_path, draw):
    """Boards 10 % and hosts 20 % off their figures exceed the budget, or leave it unused."""
    metered = draw.random() < 0.5
    plant = Plant(tmp_path, draw.randrange(10**6), nodes=3, tick_seconds=5.0, metered=metered)
    for name in plant.parts:
        plant.submit(draw.choice(["compute", "mixed"]), {name: (0, 1, 2, 3)}, 2 * HOUR)
    plant.run(0.4 * HOUR, churn=False)
    target = draw.uniform(0.75, 0.9) * plant.budget_watts
    start = plant.clock.wall() + 30
    announce(tmp_path, GridEvent("cut", start, start + 600, target_watts=target), plant.clock)
    plant.run(0.25 * HOUR, churn=False)
    # One tick of 5 s after the event begins, in which a few boards and unknown hosts settle, is
    # 0.2 % of the samples; in the worst of 90 draws two, by 1 %. So small a cluster leaves up to
    # 3.2 % unused (seed 23).
    first_minute = [power / budget for at, power, budget, _ in plant.power_record if at <= 60]
    # Hosts without a meter are only known once the boards have settled: for some two seconds up to
    # 1.5 % in the worst of 200 draws, 0.3 % in most.
    assert max(first_minute) <= 1.02, "the first minute counts too"
    assert plant.over_share() <= 0.006
    assert plant.unused_share(since=0.2 * HOUR) <= 0.035
    event = [row for row in plant.power_record if row[2] == pytest.approx(target)]
    delivered = [power / budget for _, power, budget, _ in event][60:]
    assert 0.965 <= sum(delivered) / len(delivered) <= 1.0
    said = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["what"] for line in said if "event" in line["what"]] == [
        "event began",
        "event ended",
    ]


def test_the_budget_is_kept_and_used_while_something_breaks_every_few_seconds(tmp_path, draw):
    """Meters that freeze, jobs that come and go and lost nodes are taken for power of hosts."""
    plant = DisturbedPlant(tmp_path, draw.randrange(10**6))
    plant.run(480)  # longer than a job that an event stopped stays so
    figures, causes = plant.figures()
    assert figures["over_share"] <= 0.02
    assert figures["unused_share"] <= 0.12, causes
    assert causes[False]["margin: hosts, boards, noise"] <= 0.04


def test_stops_are_rare_and_take_turns(tmp_path, draw):
    """Jobs that do not fit are stopped and continued all the time, or always the same ones."""
    options = {"rotation_seconds": 600.0, "least_running_seconds": 300.0}
    plant = Plant(
        tmp_path,
        draw.randrange(10**6),
        nodes=3,
        tick_seconds=5.0,
        budget=0.35,
        comment="joulery tier=flex-1",
        options=options | {"least_stopped_seconds": 300.0},
    )
    for name in plant.parts:
        for first in (0, 2):
            plant.submit("compute", {name: (first, first + 1)}, 9 * HOUR)
    plant.run(0.6 * HOUR, churn=False)
    # A tick of 5 s that exceeds the budget by a little is 0.2 % of the time.
    assert plant.over_share() <= 0.01
    stops = [job for _, what, job in plant.switches if what == "suspend"]
    assert len(stops) <= 4 * 6
    assert len(set(stops)) >= 4, "others take their turn"
    last: dict[str, float] = {}
    unrested: dict[str, float] = {}
    for at, what, job in plant.switches:
        if what == "resume" and at - last[job] < 300.0:
            assert at - unrested.get(job, -600.0) >= 600.0, "once in a rotation without a rest"
            unrested[job] = at
        last[job] = at


def test_watts_return_after_an_event_that_stops_jobs(tmp_path, draw):
    """Jobs that continue after an event are taken for an error of meters, which costs minutes."""
    metered = draw.random() < 0.5
    options = {"least_running_seconds": 60.0, "least_stopped_seconds": 60.0}
    plant = Plant(
        tmp_path, draw.randrange(10**6), nodes=4, budget=0.6, metered=metered, options=options
    )
    for name in plant.parts:
        plant.submit("compute", {name: (0, 1, 2, 3)}, HOUR)
    plant.run(120, churn=False)
    before = plant.unused_share(since=90)
    hosts, rest, least = 4 * plant.host_watts * 1.2, 16 * 65.0, 16 * 110.0
    # So little that one or two of four jobs stop, and the others have some watts to share.
    target = hosts + rest + draw.uniform(0.5, 0.55) * (least - rest)
    start = plant.clock.wall() + 10
    announce(tmp_path, GridEvent("cut", start, start + 120, target_watts=target), plant.clock)
    plant.run(130, churn=False)
    stops = [job for _, what, job in plant.switches if what == "suspend"]
    plant.run(60, churn=False)
    # None where hosts turn out to draw little; a third while it is not yet known how much.
    assert len(stops) == len(set(stops)) <= 3, "jobs are not stopped again and again"
    assert max(power / budget for at, power, budget, _ in plant.power_record if at > 60) <= 1.02
    assert plant.unused_share(since=270) <= before + 0.03
