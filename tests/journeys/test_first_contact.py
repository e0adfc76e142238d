"""Journey: somebody tries Joulery on a board for the first time, and checks what it assumes."""

import json
import re
import socket
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import Faults, Sensor, SimulatedGpu, catalog, sensor_of
from joulery.metering import selftest
from support.first_contact import OddBoard, SimulatedLoad

SECONDS = 80.0
EXPECTED = sensor_of("A100")
MODEL = {"layers": 8, "hidden": 2048, "heads": 16, "feedforward": 8192, "vocabulary": 32000}
MODEL |= {"sequence": 1024}
USUAL = {"window_seconds": EXPECTED.window_seconds}
VARIATIONS = {
    "none": ({}, {}, set()),
    "refresh": (
        {"counter_period_seconds": (0.04, 0.08)},
        {},
        {"counter refresh", "power refresh"},
    ),
    "duty of the sensor": ({}, {"window_seconds": (0.06, 0.1)}, {"power averages over"}),
    "running mean": ({}, {"window_seconds": (0.5, 1.0)}, {"power averages over"}),
    "lag": ({}, {"lag_seconds": (0.06, 0.25)}, {"power lag"}),
    "lag alone": (
        {},
        {"lag_seconds": (0.06, 0.25), "window_seconds": 0.0},
        {"power lag"},
    ),
    "duty of the counter": ({}, {"counts_looks": True}, {"counter in bursts"}),
    "idle power": ({"idle_watts": (5.0, 20.0)}, {}, {"idle power"}),
    "range of limits": (
        {"min_limit_watts": (120.0, 180.0), "max_limit_watts": (430.0, 500.0)},
        {},
        {"lowest limit", "highest limit"},
    ),
    "default limit": (
        {"default_limit_watts": (250.0, 380.0)},
        {},
        {"default limit"},
    ),
    "slow power": ({"power_lag_seconds": (2.0, 3.0)}, {}, {"power averages over"}),
}
# What a driver accepts and the board does not do, and whether that is a failure of the board.
DISOBEDIENCE = {
    "counter that counts less": ({"counter_gain": (0.8, 0.95)}, {"counter against power"}, False),
    "counter that counts more": ({"counter_gain": (1.05, 1.2)}, {"counter against power"}, False),
    "power above a limit": ({"limit_gain": (1.1, 1.3)}, {"power under limits"}, False),
    "limit that acts late": ({"limit_seconds": (1.2, 3.8)}, {"limit acts within"}, False),
    "limit that never acts": ({"limit_seconds": 1e9}, {"limit acts within"}, False),
    "limit that reads back otherwise": ({"offset_watts": (2.0, 50.0)}, {"set limits"}, True),
    "lock that is ignored": ({"locks": False}, {"lock a clock"}, False),
    "restoring that fails": ({"restored_share": (0.7, 0.95)}, {"restored afterwards"}, False),
}


def _differences(result):
    return {check.name for check in result.checks if check.agrees is False}


def _drawn(draw, ranges):
    return {
        key: draw.uniform(*value) if isinstance(value, tuple) else value
        for key, value in ranges.items()
    }


def _observed(result, name):
    (check,) = [check for check in result.checks if check.name == name]
    return check.observed


@pytest.mark.parametrize("name", VARIATIONS)
def test_every_variation_is_found(draw, name):
    """A board that behaves in another way than we assume passes the check list."""
    changes, sensors, differences = VARIATIONS[name]
    board = replace(
        catalog.board("A100"),
        **{"counter_period_seconds": EXPECTED.period_seconds} | _drawn(draw, changes),
    )
    sensor = Sensor(
        expected=EXPECTED, noise=draw.uniform(0.0, 0.01), **USUAL | _drawn(draw, sensors)
    )
    clock = VirtualClock()
    gpu = SimulatedGpu(board, clock, seed=draw.randrange(2**16), sensor=sensor)
    result = selftest(gpu, SimulatedLoad(gpu), seconds=SECONDS, clock=clock)
    print(board, sensor, result.checks)  # noqa: T201 - pytest shows it on failure
    # Slow power cannot be told from a slow sensor, nor a window of nothing from a short one.
    if name in ("slow power", "lag alone"):
        assert differences <= _differences(result)
    else:
        assert _differences(result) == differences
        assert result.sensor.period_seconds == pytest.approx(board.counter_period_seconds, rel=0.02)
        window = pytest.approx(sensor.window_seconds, rel=0.3, abs=0.008)
        assert result.sensor.window_seconds == window
    if name != "slow power":
        assert result.sensor.lag_seconds == pytest.approx(sensor.lag_seconds, rel=0.2, abs=0.015)
    assert result.restored
    assert gpu.power_limits().current_watts == board.default_limit_watts
    assert gpu.steady().watts == board.idle_watts


@pytest.mark.parametrize("name", DISOBEDIENCE)
def test_a_board_that_does_not_do_what_it_states_is_found(draw, name):
    """A board whose counter, limits or clock are not as its driver says passes the check list."""
    changes, differences, fails = DISOBEDIENCE[name]
    options = _drawn(draw, changes)
    clock = VirtualClock()
    board = replace(catalog.board("A100"), counter_period_seconds=EXPECTED.period_seconds)
    sensor = Sensor(expected=EXPECTED, noise=draw.uniform(0.0, 0.01), **USUAL)
    gpu = OddBoard(board, clock, seed=draw.randrange(2**16), sensor=sensor, **options)
    result = selftest(gpu, SimulatedLoad(gpu), seconds=SECONDS, clock=clock)
    print(options, sensor, result.checks)  # noqa: T201 - pytest shows it on failure
    if "acts" in name:  # until then power is above a limit, too
        assert differences <= _differences(result) <= differences | {"power under limits"}
    else:
        assert _differences(result) == differences
    assert bool(result.failures) == fails
    assert result.restored is (name != "restoring that fails")
    if name == "limit that acts late":
        seconds = float(_observed(result, "limit acts within").removesuffix(" s"))
        assert seconds == pytest.approx(options["limit_seconds"], abs=0.2)


def test_no_rights_leave_the_rest_of_the_list(draw):
    """A user without root learns nothing about the board."""
    clock = VirtualClock()
    faults = Faults(no_permission=True)
    gpu = SimulatedGpu(catalog.board("A100"), clock, sensor=Sensor(**USUAL), faults=faults)
    result = selftest(gpu, SimulatedLoad(gpu), seconds=SECONDS, clock=clock)
    reasons = {check.name: check for check in result.checks}
    assert reasons["set limits"].agrees is None
    assert "not tried" in reasons["set limits"].observed
    assert result.restored is None
    assert result.sensor is not None


def test_a_board_that_is_lost_is_a_failure(draw):
    """A script that checks new nodes takes a board that fell off the bus for a good one."""
    clock = VirtualClock()
    lost_at = draw.uniform(0.1, 0.95) * SECONDS
    gpu = SimulatedGpu(
        catalog.board("A100"), clock, sensor=Sensor(**USUAL), faults=Faults(lost_at_seconds=lost_at)
    )
    result = selftest(gpu, SimulatedLoad(gpu), seconds=SECONDS, clock=clock)
    print(lost_at, result)  # noqa: T201 - pytest shows it on failure
    assert result.is_lost
    assert [failure.partition(": ")[2] for failure in result.failures] == ["the board is lost"]
    assert result.checks[-1].name == "restored afterwards"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lost", "ignored"])
def test_the_command_on_a_board_that_fails(make_world, draw, fault):
    """The command ends with 0, or buries in its table what is wrong with the board."""
    world = make_world(change=lambda spec: replace(spec, noise=0.0))
    if fault == "lost":
        world.node.lose(0, after_seconds=draw.uniform(2.0, 5.0))
    else:
        world.node.ignore(0, "nvmlDeviceSetPowerManagementLimit*")
    with world.start("doctor", "--selftest", "--duration", "6s") as process:
        lines = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 1
    assert lines[1].startswith("FAILED: ")
    assert ("the board is lost" if fault == "lost" else "but keeps") in lines[1]
    (restored,) = [line for line in lines if line.startswith("restored afterwards")]
    if fault == "ignored":
        assert "agrees" in restored


@pytest.mark.slow
def test_the_command_on_an_emulated_board(make_world, draw):
    """The command does not find what differs, or leaves a limit changed."""
    lowest = draw.uniform(120.0, 180.0)

    def change(spec):
        board = replace(spec.board, min_limit_watts=lowest, counter_period_seconds=0.1)
        return replace(spec, board=board, noise=0.0)

    world = make_world(change=change)
    original = round(draw.uniform(0.8, 1.0) * world.board.default_limit_watts)
    world.node.set_power_limit(0, original)
    document = world.joulery("doctor", "--selftest", "--duration", "5s")
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["lowest limit"]["agrees"] is False
    assert checks["set limits"]["agrees"] is True
    assert document["restored"] is True
    assert world.node.power_limit(0) == original
    assert world.node.truth(0).steady.seconds == 0
    assert [point["limit_watts"] for point in document["points"]][-1] == pytest.approx(original)
    written = json.loads((world.folder / "joulery-selftest.json").read_text("utf-8"))
    assert written == {key: value for key, value in document.items() if key != "file"}
    if written["sensor"] is not None:  # a busy machine reads too rarely to tell, and says so
        assert written["sensor"]["boards"] == f"^NVIDIA\\ {world.board.name}$"
    (world.folder / "model.json").write_text(json.dumps(MODEL), encoding="utf-8")
    file = "joulery-selftest.json"
    step = world.joulery("predict", "--model", "model.json", "--device", file, "--fresh")
    limits = [point["setting"]["power_limit_watts"] for point in step["points"]]
    assert min(limits) == pytest.approx(lowest, abs=0.1)
    assert f"min limit {written['specs']['min_limit_watts']:g} W (simulated)" in step["observed"]


@pytest.mark.slow
def test_a_bundle_has_what_a_report_needs_and_no_secrets(make_world, draw):
    """Whoever asks for help posts a token or a name, or is asked for one thing after another."""
    world = make_world(boards=2)
    world.node.set_load(1, world.step)
    limit = round(draw.uniform(0.8, 1.0) * world.board.default_limit_watts)
    world.node.set_power_limit(0, limit)
    secrets = {
        "JOULERY_TOKEN": f"jt_{draw.getrandbits(48):012x}",
        "AWS_SECRET_ACCESS_KEY": f"wJalr/{draw.getrandbits(40):x}",
        "IPMI_PASSWORD": f"correct horse {draw.randrange(10**6)}",
        "USER": f"alice{draw.randrange(1000)}",
        "LOGNAME": f"alice{draw.randrange(1000)}",
        "HOME": f"/somewhere/bob{draw.randrange(1000)}",
        "JOULERY_STORE": f"https://store{draw.randrange(1000)}.cluster.example/",
    }
    (world.folder / "joulery-selftest.json").write_text('{"board": "by hand"}')
    summary = world.joulery("doctor", "--bundle", "report.json", **secrets)
    text = (world.folder / "report.json").read_text("utf-8")
    hidden = {*secrets.values(), socket.gethostname()} - {"localhost"}
    hidden.add(secrets["JOULERY_STORE"].split("/")[2])
    names = set(re.findall(r"GPU-[0-9a-f-]{36}", str(world.joulery("doctor"))))
    assert len(names) == 2
    for secret in hidden | names:
        assert not re.search(rf"\b{re.escape(secret)}\b", text), secret
    document = json.loads(text)
    assert summary["sections"].keys() == document.keys() - {"schema"}
    assert "JOULERY_TOKEN" in document["variables"]
    assert document["selftest"] == {"board": "by hand"}
    boards = [d for d in document["doctor"]["document"]["devices"] if d["kind"] == "gpu"]
    limits = [board["power_limit"]["current_watts"] for board in boards]
    assert limits == [limit, world.board.default_limit_watts]
    counters = [row for row in document["counters"] if row["kind"] == "gpu"]
    idle, busy = (row["mean_watts"] for row in counters)
    assert idle == pytest.approx(world.board.idle_watts, rel=0.1)
    assert busy == pytest.approx(world.node.truth(1).watts, rel=0.1)
