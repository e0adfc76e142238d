"""Journey: set up a cluster's agent from its commands alone, on emulated boards behind TLS."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from joulery.clock import REAL_CLOCK
from joulery.cluster import read_status

# The first agent is not taken for dead on a busy machine; its successor waits for a second only.
TTL_SECONDS, IMPATIENT_SECONDS = 20.0, 1.0
# What Slurm's commands do here: list one job, and keep its comment in a file.
SLURM = """\
#!{python}
import json, pathlib, re, sys
folder = pathlib.Path({folder!r})
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
comment = folder / "comment"
if name == "squeue":
    job = {{"job_id": 7, "name": "llama", "job_state": ["RUNNING"], "nodes": "localhost",
            "comment": comment.read_text(), "gres_detail": ["gpu:a100:2(IDX:0-1)"]}}
    print(json.dumps({{"jobs": [job] if (folder / "runs").exists() else []}}))
elif words[:2] == ["show", "job"]:
    print("JobId=7 JobName=llama\\n   Account=vision\\n   Comment=" + comment.read_text())
elif words[0] == "update":
    comment.write_text(words[2].removeprefix("Comment="))
"""


@pytest.fixture
def site(make_world):
    """A machine with two boards, a governor and what `joulery cluster init` wrote."""
    world = make_world(2)
    folder = world.folder
    commands = folder / "bin"
    commands.mkdir()
    for name in ("squeue", "scontrol"):
        script = commands / name
        script.write_text(SLURM.format(python=sys.executable, folder=str(folder)))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (folder / "comment").write_text("joulery tier=flex-2")
    (folder / "runs").touch()
    world.env["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    low, high = world.board.min_limit_watts, world.board.default_limit_watts
    world.budget = 1.4 * high
    world.site = world.joulery(
        *("cluster", "init", "--out", "site", "--nodes", "localhost", "--boards", "2"),
        *("--budget", f"{world.budget}W", "--fallback", f"{low + 5}W"),
        *("--limits", f"{low},{high}", "--port", str(port)),
    )
    settings = folder / "site" / "agent.toml"
    text = f"tick_seconds = 0.5\nttl_seconds = {TTL_SECONDS}\n" + settings.read_text()
    settings.write_text(text)
    node = folder / "site" / "localhost"
    words = ("--policy", f"{node}/governor.toml", "--listen", f"127.0.0.1:{port}")
    words += ("--tls-cert", f"{node}/node.pem", "--tls-key", f"{node}/node.key")
    paths = {"JOULERY_GOVERNOR": f"{folder}/governor.sock"}
    governor = world.start("governor", "serve", *words, **paths)
    assert "serves" in governor.stderr.readline()
    world.governor = governor
    yield world
    governor.send_signal(signal.SIGTERM)
    governor.communicate(timeout=60)


@contextmanager
def agent(world, *options, settings="site/agent.toml"):
    """An agent that is killed at the end."""
    process = world.start("cluster", "agent", "--settings", settings, *options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def limits(world):
    """Limits in force on the boards, by the emulator."""
    return [world.node.power_limit(index) for index in (0, 1)]


def wait_for(condition, seconds=60.0):
    """Wait until something holds."""
    deadline = REAL_CLOCK.now() + seconds
    while not condition():
        assert REAL_CLOCK.now() < deadline
        REAL_CLOCK.sleep(0.05)


def test_an_agent_is_tried_started_replaced_and_its_joules_kept(site):
    """What the page says to type does not keep a budget, or a dead agent goes unnoticed."""
    world, low = site, site.board.min_limit_watts
    assert world.site["silent_watts"] <= world.budget
    for index in (0, 1):
        world.node.set_load(index, world.step)
    words = ("cluster", "agent", "--settings", "site/agent.toml", "--shadow", "--ticks", "2")
    world.run([sys.executable, "-m", "joulery", *words])
    assert limits(world) == pytest.approx([low + 5] * 2), "a shadow sets nothing"
    shadow = read_status(world.folder / "site" / "state" / "shadow")
    assert [job.name for job in shadow.jobs] == ["llama"]

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with agent(world, "--listen", address):
        wait_for(lambda: min(limits(world)) > 1.1 * (low + 5))
        REAL_CLOCK.sleep(1.5)
        power = sum(world.node.truth(index).watts for index in (0, 1))
        assert power <= 1.02 * world.budget
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            figures = answer.read().decode()
        assert f"joulery_cluster_budget_watts {world.budget:.12g}" in figures
        other = world.folder / "site" / "other.toml"
        text = (world.folder / "site" / "agent.toml").read_text()
        text = text.replace('state = "state"', 'state = "other"')
        other.write_text(text)
        refused = world.popen(
            [sys.executable, *("-m", "joulery", "cluster", "agent", "--settings", str(other))]
        )
        _, errors = refused.communicate(timeout=60)
        assert refused.returncode == 3
        assert "another agent leads" in errors
        epilog = world.joulery("cluster", "epilog", "--state", "site/state")["epilog"]
        (world.folder / "epilog").write_text(epilog)
        world.run(["sh", "epilog"], SLURM_JOB_ID="7")
        true = sum(world.node.true_joules(index) for index in (0, 1))
        (figures,) = world.joulery("report", "--slurm", "7", "--grid", "DE")["jobs"]
        assert 0 < figures["joules"] <= true
        assert figures["account"] == "vision"

    other.write_text(text.replace(f"{TTL_SECONDS}", f"{IMPATIENT_SECONDS}"))
    with agent(world, "--standby", settings="site/other.toml"):
        wait_for((world.folder / "site" / "other" / "status.json").exists)
        assert read_status(world.folder / "site" / "other").epoch == 2
    said = (world.folder / "site" / "state" / "audit.jsonl").read_text()
    assert json.loads(said.splitlines()[0])["what"] == "lead"

    (world.folder / "site" / "localhost" / "governor.toml").write_text("")
    world.governor.send_signal(signal.SIGHUP)
    wait_for(lambda: limits(world) == pytest.approx([world.board.default_limit_watts] * 2))


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_files_are_installed_as_is_said(world):
    """The first line that an operator copies onto a fresh node fails."""
    words = ("--nodes", "n1", "--boards", "1", "--budget", "1kW", "--fallback", "150W")
    command = [sys.executable, "-m", "joulery", "cluster", "init", "--out", "site", *words]
    steps = world.run([*command, "--limits", "100,400"])
    lines = [line.partition("install ")[2] for line in steps.splitlines() if "install " in line]
    root = world.folder / "root"
    (root / "etc/systemd/system").mkdir(parents=True)  # which every system has
    for line in lines:
        step = f"cd site && install {line}".replace(" /etc/", f" {root}/etc/")
        world.run(["bash", "-ec", step])
    modes = {
        str(path.relative_to(root / "etc")): f"{path.stat().st_mode & 0o777:o}"
        for path in root.rglob("*")
        if path.is_file()
    }
    names = ("governor.toml", "agent.token", "node.pem", "node.key")
    units = ("joulery-governor.service", "joulery-agent.service")
    assert modes == {
        **{f"joulery/{name}": "600" for name in names},
        **{f"systemd/system/{name}": "644" for name in units},
    }


def test_a_trial_without_slurm_is_no_success(site):
    """The agent's unit is started after a trial that could not read any job."""
    (site.folder / "bin" / "squeue").unlink()
    site.env["PATH"] = str(site.folder / "bin")
    words = ("--settings", "site/agent.toml", "--shadow", "--ticks", "2")
    with site.start("cluster", "agent", *words) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "the last decision was made blindly: squeue: " in errors
    assert "no node answered" not in errors


def test_a_site_whose_fallback_exceeds_the_budget_is_refused(world):
    """A silent agent leaves more power than the budget, which the first outage shows."""
    words = ("--nodes", "n[1-3]", "--boards", "8", "--budget", "3kW", "--fallback", "150W")
    command = [sys.executable, "-m", "joulery", "cluster", "init", "--out", "site", *words]
    with world.popen([*command, "--limits", "100,400"]) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "give a fallback of at most 125 W" in errors
    subprocess.run(["test", "!", "-e", str(world.folder / "site")], check=True)
