"""``joulery plan pipeline --coordinate``: ranks in processes of their own follow its plans."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys

import pytest

from joulery.cli import main

RANK = """
import json, sys, time
from joulery.pipeline import CoordinatorClient, IterationTimes

port, token, pipeline, rank, factor = int(sys.argv[1]), *sys.argv[2:4], *map(float, sys.argv[4:])
got = []


class Controller:
    def follow(self, plan, first):
        got.append(first)
        return True

    def follow_first_plan(self):
        pass

    def follow_shares(self):
        pass


address = ("127.0.0.1", port)
client = CoordinatorClient(Controller(), address, token, pipeline=int(pipeline), rank=int(rank))
with client:
    end = time.monotonic() + 60
    iteration = 0
    while not got and time.monotonic() < end:
        client.report(IterationTimes(iteration, factor, 1.0, {}))
        iteration += 1
        time.sleep(0.02)
    print(json.dumps({"rank": rank, "plans": len(got)}), flush=True)
    time.sleep(60)
"""


@pytest.fixture
def profile(tmp_path):
    """Two unequal stages over eight clocks."""
    path = tmp_path / "profile.csv"
    lines = ["stage,instruction,frequency,time,energy"]
    for stage, size in enumerate((1.0, 1.2)):
        for kind, work in (("forward", 0.1), ("backward", 0.2)):
            for clock in range(1400, 1000, -50):
                seconds = size * work * (0.2 + 0.8 * 1400 / clock)
                watts = 100 + 300 * (clock / 1400) ** 3
                lines.append(f"{stage},{kind},{clock},{seconds},{seconds * watts}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _command(profile, *more):
    plan = ["plan", "pipeline", "--profile", str(profile), "--microbatches", "4"]
    return [*plan, *map(str, more)]


@pytest.fixture
def served(profile, tmp_path):
    """The command at work for two pipelines, its port and its token file."""
    secret = tmp_path / "token"
    options = ("--replicas", 2, "--coordinate", "127.0.0.1:0", "--token-file", secret)
    with subprocess.Popen(
        [sys.executable, "-m", "joulery", *_command(profile, *options)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    ) as process:
        try:
            line = process.stderr.readline()
            yield process, int(re.search(r"127\.0\.0\.1:(\d+)", line)[1]), secret
        finally:
            process.kill()


def _rank(port, token, pipeline, rank, factor):
    return subprocess.Popen(
        [sys.executable, "-c", RANK, *map(str, (port, token, pipeline, rank, factor))],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_ranks_get_plans_for_the_pace_of_a_late_pipeline(served):
    """If it fails the command serves nothing: pipelines do not slow down for a straggler."""
    process, port, secret = served
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    token = secret.read_text(encoding="ascii").strip()
    ranks = [_rank(port, token, p, r, 1.2 if p else 1.0) for p in range(2) for r in range(2)]
    try:
        reports = [json.loads(rank.stdout.readline()) for rank in ranks[:2]]
        assert [one["plans"] >= 1 for one in reports] == [True, True]
        assert any("pipeline 0 at 1.2" in line for line in process.stderr)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "ended" in words


def test_a_rank_with_a_wrong_token_gets_a_refusal_only(served):
    """If it fails any process on the machine may change the clocks of a training."""
    _, port, _ = served
    with socket.create_connection(("127.0.0.1", port), timeout=60) as channel:
        hello = {"op": "hello", "version": 2, "token": "x" * 64, "pipeline": 0, "rank": 0}
        channel.sendall(json.dumps(hello).encode() + b"\n")
        answer = channel.makefile("rb")
        assert json.loads(answer.readline())["op"] == "refused"
        assert answer.read() == b""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--coordinate", "0.0.0.0:0"), "--anywhere"),
        (("--coordinate", "29600"), "HOST:PORT"),
        (("--coordinate", "127.0.0.1:0"), "--token-file"),
        (("--anywhere",), "--coordinate"),
    ],
)
def test_what_is_unsafe_or_unclear_is_refused(profile, capsys, options, words):
    """If it fails a coordinator serves other machines, or a mistake goes unnoticed."""
    assert main(_command(profile, *options)) != 0
    assert words in capsys.readouterr().err


def test_a_token_that_others_can_read_is_refused(profile, tmp_path, capsys):
    """If it fails the secret is none."""
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef0123\n", encoding="ascii")
    secret.chmod(0o644)
    options = ("--coordinate", "127.0.0.1:0", "--token-file", secret)
    assert main(_command(profile, *options)) != 0
    assert "chmod 600" in capsys.readouterr().err
