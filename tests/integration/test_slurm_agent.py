"""The agent beside a real Slurm: budgets, events, cancelled jobs, lost nodes, a killed agent."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from joulery.clock import REAL_CLOCK
from joulery.cluster import announce
from joulery.grid import GridEvent
from support.slurm import PoweredCluster, SlurmCluster, slurm_obstacle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_obstacle()), reason=f"no Slurm here: {slurm_obstacle()}"),
]
FRONTIERS = {
    "compute": [(100, 25), (200, 60), (300, 85), (400, 100)],
    "memory": [(100, 60), (160, 99), (400, 100)],
}
COMMAND = [sys.executable, "-m", "joulery", "cluster"]
BUDGET = 9000.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Eight nodes of four GPUs with running jobs of both kinds."""
    with PoweredCluster(tmp_path_factory.mktemp("slurm"), BUDGET, FRONTIERS) as made:
        for number in range(6):
            made.slurm.submit("compute" if number % 2 else "memory", 4)
        made.slurm.submit("compute", 4, nodes=2, comment="joulery tier=flex-3")
        made.wait_for(lambda: len(made.status()["jobs"]) == 7, "all jobs to run")
        made.wait_for(lambda: made.power() > 0.98 * BUDGET, "the budget to be used")
        yield made


def worst_excess(cluster, start, end, budget=BUDGET):
    """By how much the power exceeded a budget."""
    return max(cluster.recorded(start, end)) / budget - 1


def test_jobs_get_different_caps_within_the_budget(cluster):
    """Caps do not follow frontiers, or exceed the budget."""
    begin = REAL_CLOCK.wall()
    REAL_CLOCK.sleep(1.0)
    assert worst_excess(cluster, begin, REAL_CLOCK.wall()) <= 1e-6
    watts = {round(job["watts"]) for job in cluster.status()["jobs"]}
    assert len(watts) > 1


def test_random_events_are_met_and_not_over_delivered(cluster):
    """A target is missed, exceeded later, or paid for with more slowdown than asked."""
    chance = random.Random(7)  # noqa: S311 - not a secret
    for number in range(4):
        cluster.wait_for(lambda: cluster.power() > 0.98 * BUDGET, "full power")
        target = chance.uniform(0.6, 0.9) * BUDGET
        start = REAL_CLOCK.wall() + chance.choice([0.0, 2.0])
        announce(cluster.state, GridEvent(f"e{number}", start, start + 300, target_watts=target))
        cluster.wait_for(lambda: cluster.power() <= target * (1 + 1e-4), "the target")  # noqa: B023
        met = REAL_CLOCK.wall()
        REAL_CLOCK.sleep(1.5)
        during = cluster.recorded(met, REAL_CLOCK.wall())
        assert max(during) <= target * (1 + 1e-3)
        assert sum(during) / len(during) >= 0.99 * target
        (cluster.state / "events" / f"e{number}.json").unlink()


def test_cancelled_and_new_jobs_never_exceed_the_budget(cluster):
    """Watts of an ended job are handed out twice, or a new job starts above the budget."""
    begin = REAL_CLOCK.wall()
    jobs = cluster.slurm.call("squeue", "-h", "-o", "%i").split()
    cluster.slurm.call("scancel", jobs[0])
    cluster.wait_for(lambda: len(cluster.status()["jobs"]) == 6, "the job to go")
    cluster.slurm.submit("compute", 4)
    cluster.wait_for(lambda: len(cluster.status()["jobs"]) == 7, "the next job to run")
    REAL_CLOCK.sleep(1.0)
    assert worst_excess(cluster, begin, REAL_CLOCK.wall()) <= 1e-3


def test_a_lost_node_keeps_its_caps_and_its_watts(cluster):
    """Watts of a node that cannot be reached are given to others."""
    begin = REAL_CLOCK.wall()
    cluster.cut_node("n3")
    cluster.wait_for(lambda: bool(cluster.status()["messages"]), "the agent to notice")
    REAL_CLOCK.sleep(1.5)
    cluster.restore_node("n3")
    cluster.wait_for(lambda: not cluster.status()["messages"], "the node to come back")
    assert worst_excess(cluster, begin, REAL_CLOCK.wall()) <= 1e-3


def test_a_killed_agent_leaves_safe_caps_and_the_next_one_goes_on(cluster):
    """A kill -9 of the agent lifts caps, or the next agent starts above the budget."""
    cluster.wait_for(lambda: cluster.power() > 0.98 * BUDGET, "full power")
    begin = REAL_CLOCK.wall()
    cluster.kill_agent()
    cluster.wait_for(lambda: cluster.power() < 0.95 * BUDGET, "caps to fall by themselves")
    cluster.start_agent()
    cluster.wait_for(lambda: cluster.power() > 0.98 * BUDGET, "full power again")
    assert worst_excess(cluster, begin, REAL_CLOCK.wall()) <= 1e-3


def test_the_command_line_shows_the_cluster(cluster):
    """`joulery cluster status` and `event` do not work on a running agent."""

    def joulery(*words):
        done = subprocess.run(
            [*COMMAND, *words, "--state", str(cluster.state), "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    assert joulery("status")["budget_watts"] == BUDGET
    joulery("event", "--id", "cli", "--reduce", "0.2", "--minutes", "0.05")
    cluster.wait_for(lambda: cluster.power() < 0.81 * BUDGET, "the event to be met")
    cluster.wait_for(lambda: cluster.power() > 0.98 * BUDGET, "the event to end")


def test_the_prolog_sends_a_job_back_when_there_are_no_watts(tmp_path):
    """A job starts although its floor cannot be met."""
    command = [*COMMAND, "prolog", "--state", str(tmp_path)]
    prolog = tmp_path / "prolog"
    prolog.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    prolog.chmod(0o755)
    (tmp_path / "no-watts").touch()
    with SlurmCluster(nodes=1, prolog=prolog) as slurm:
        number = slurm.submit("job", 1)
        deadline, restarts = REAL_CLOCK.now() + 20, "0"
        while restarts == "0" and REAL_CLOCK.now() < deadline:
            REAL_CLOCK.sleep(0.2)
            shown = slurm.call("scontrol", "show", "job", number)
            restarts = shown.split("Restarts=")[1].split()[0]
        assert restarts != "0"
