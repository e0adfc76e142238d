"""Workers of Ray, which has signal handlers of its own, leave no board capped when they end."""

import json
import subprocess
import sys

import pytest

from joulery.testing.emulator import EmulatedNode

DRIVER = """
import json, os, signal, sys, time
import ray
from joulery.testing.emulator import EmulatedNode

@ray.remote(num_cpus=1)
class Training:
    def begin(self):
        from joulery.governor import lease
        from joulery.hardware import discover
        gpu = next(device for device in discover() if "V100" in device.info.name)
        self.held = lease(gpu, watts=150)
        self.held.__enter__()
        return os.getpid()

    def leave(self):
        ray.actor.exit_actor()

node = EmulatedNode.attached()
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
found = {}
for way in sys.argv[1:]:
    training = Training.remote()
    pid = ray.get(training.begin.remote())
    under = node.power_limit(0)
    if way == "kill":
        ray.kill(training)
    elif way == "leave":
        training.leave.remote()
    elif way == "forget":
        del training
    else:
        os.kill(pid, getattr(signal, way))
    deadline = time.monotonic() + 20
    while node.power_limit(0) != 250 and time.monotonic() < deadline:
        time.sleep(0.05)
    found[way] = under, node.power_limit(0)
ray.shutdown()
print(json.dumps(found))
"""

WAYS = ("SIGTERM", "SIGKILL", "kill", "leave", "forget")


@pytest.fixture
def node(tmp_path):
    """An emulated V100 whose own limit is 250 W."""
    with EmulatedNode(["V100"], directory=tmp_path) as made:
        yield made


def test_workers_of_ray_leave_no_limit_behind(node, tmp_path):
    """If this fails, a worker that Ray ends leaves the next job on a slow board."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *WAYS],
        env={
            **node.env,
            "JOULERY_GOVERNOR": "",
            "JOULERY_GOVERNOR_STATE": str(tmp_path / "governor"),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {way: [150, 250] for way in WAYS}
