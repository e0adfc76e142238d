"""``joulery doctor``: what is here, what is in the way, and what would help."""

import json
import types

import pytest

import joulery.governor
import joulery.hardware
from joulery.cli import doctor, main
from joulery.cli.extras import EXTRAS
from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware import Capability, DeviceInfo, DeviceKind, Obstacle, PowerLimitRange, Survey


class Board:
    """A GPU with a limit that may fail to tell."""

    info = DeviceInfo("GPU-1", "V100", DeviceKind.GPU, "nvidia", 0, 300.0)
    provenance = Provenance(Origin.MEASURED, "NVML", 0.05)
    capabilities = frozenset({Capability.ENERGY, Capability.POWER_LIMIT, Capability.CLOCK_LOCK})
    broken = False

    def power_limits(self):
        """The range, or the driver's failure."""
        if self.broken:
            raise DeviceError("no answer", remedy="ask again")
        return PowerLimitRange(100.0, 300.0, 300.0, 250.0)

    def set_power_limit(self, watts):
        """Not asked for here."""
        raise NotImplementedError


def _plain(kind, origin, source, *capabilities):
    return types.SimpleNamespace(
        info=DeviceInfo(f"{kind}:0", str(kind), kind, "test"),
        provenance=Provenance(origin, source),
        capabilities=frozenset(capabilities),
    )


ESTIMATE = _plain(DeviceKind.CPU, Origin.ASSUMED, "estimate", Capability.ENERGY)
NODE = _plain(DeviceKind.NODE, Origin.MEASURED, "integrated power", Capability.ENERGY)
MUTE = _plain(DeviceKind.MEMORY, Origin.MEASURED, "")


@pytest.fixture
def machine(monkeypatch):
    """A machine with the devices and obstacles that a test gives it."""
    parts = types.SimpleNamespace(
        devices=(),
        obstacles=(),
        mine=None,
        root=False,
        extras=set(),
        lent=None,
        engines={},
        machines=[],
    )
    monkeypatch.setattr(
        joulery.hardware, "survey", lambda: Survey(tuple(parts.devices), tuple(parts.obstacles))
    )
    monkeypatch.setattr(
        joulery.hardware,
        "visible_devices",
        lambda devices: list(devices) if parts.mine is None else parts.mine,
    )
    monkeypatch.setattr(doctor, "may_set_limits", lambda: parts.root)
    monkeypatch.setattr(joulery.governor, "daemon_obstacles", lambda _: parts.lent)
    monkeypatch.setattr(
        doctor, "missing_modules", lambda extra: [] if extra in parts.extras else [extra]
    )
    monkeypatch.setattr(doctor, "_engines", lambda: parts.engines)
    monkeypatch.setattr(joulery.hardware, "find_machines", lambda: parts.machines)
    return parts


def _text(capsys):
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def _document(capsys):
    assert main(["doctor", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_empty_machine_gets_advice(machine, capsys):
    """Where nothing can be measured, the way to change that is the answer."""
    out = _text(capsys)
    assert "No device was found." in out
    assert "GPUs: none found" in out
    assert "JOULERY_NODE_METER" in out
    assert "pip install 'joulery[plots]'" in out
    assert "only root may set them" not in out
    machine.root = True
    document = _document(capsys)
    assert document["may_set_limits"] is False
    assert {"GPUs", "the whole node", "frontiers as PNG"} < set(document["more"])
    machine.devices, machine.root = (Board(),), False
    out = _text(capsys)
    assert "only root may set them" in out
    assert "joulery governor serve" in out
    assert out.startswith("You can measure 1 GPU, but not set its limit and clock\n")


def test_a_full_machine_gets_no_idle_advice(machine, capsys):
    """Hints for what is there already are noise."""
    machine.devices = (Board(), NODE)
    machine.root = True
    machine.extras = set(EXTRAS)
    out = _text(capsys)
    assert "How to get more" not in out
    assert "only root" not in out
    assert "250 W (100–300)" in out
    assert "lockable" in out
    assert "measured ±5 % (NVML)" in out


@pytest.mark.parametrize(
    ("device", "word"),
    [(Board(), "counter"), (ESTIMATE, "estimated"), (NODE, "sampled"), (MUTE, "–")],
    ids=["counter", "estimate", "sampled", "mute"],
)
def test_energy_says_how_it_is_known(machine, capsys, device, word):
    """A guess must never look like a counter."""
    machine.devices = (device,)
    row = _text(capsys).splitlines()[4]
    assert word in row.split()
    assert ("estimates: good for a rough idea" in _text(capsys)) == (word == "estimated")


def test_obstacles_come_with_their_remedy(machine, capsys):
    """An obstacle would be shown without its remedy."""
    machine.obstacles = (Obstacle("AMD GPUs", "no rights", "join the group render"),)
    out = _text(capsys)
    assert "  AMD GPUs: no rights\n    → join the group render" in out
    assert "GPUs: none found" not in out
    assert _document(capsys)["obstacles"] == [
        {"subject": "AMD GPUs", "reason": "no rights", "remedy": "join the group render"}
    ]


def test_the_document_has_all_of_it(machine, capsys):
    """Fleet tools read this instead of the table."""
    machine.devices = (Board(), ESTIMATE)
    machine.mine = [ESTIMATE]
    document = _document(capsys)
    assert sorted(document) == [
        "devices",
        "extras",
        "governor",
        "machine",
        "may_set_limits",
        "more",
        "obstacles",
        "serving",
    ]
    board, estimate = document["devices"]
    assert board == {
        "id": "GPU-1",
        "name": "V100",
        "kind": "gpu",
        "vendor": "nvidia",
        "index": 0,
        "max_watts": 300.0,
        "visible": False,
        "capabilities": ["clock_lock", "energy", "power_limit"],
        "provenance": "measured",
        "relative_error": 0.05,
        "source": "NVML",
        "power_limit": {
            "min_watts": 100.0,
            "max_watts": 300.0,
            "default_watts": 300.0,
            "current_watts": 250.0,
        },
    }
    assert (estimate["visible"], estimate["power_limit"]) == (True, None)
    assert document["extras"] == dict.fromkeys(EXTRAS, False)


def test_a_driver_that_fails_does_not_stop_the_doctor(machine, capsys):
    """The doctor is for sick machines."""
    board = Board()
    board.broken = True
    machine.devices = (board,)
    assert _document(capsys)["devices"][0]["power_limit"] is None
    assert "V100" in _text(capsys)


def test_a_governor_that_lends_is_said_to_plain_users(machine, capsys):
    """A user would be told that only root may set limits, while a governor lends them."""
    machine.devices = (Board(),)
    machine.lent = {"GPU-1": None, "GPU-2": Obstacle("V100", "no rule", "ask for one")}
    out = _text(capsys)
    assert "only root" not in out
    assert out.startswith("You can measure 1 GPU and set its limit and clock\n")
    assert "GPU-1: yes" in out
    assert "GPU-2: no, no rule\n    → ask for one" in out
    document = _document(capsys)
    assert document["may_set_limits"] is True
    refusal = {"subject": "V100", "reason": "no rule", "remedy": "ask for one"}
    assert document["governor"] == {"GPU-1": None, "GPU-2": refusal}
    machine.lent = {"GPU-1": machine.lent["GPU-2"]}
    assert _document(capsys)["may_set_limits"] is False


def test_serving_engines_are_named(machine):
    """A user who serves a model does not learn that its energy can be metered."""
    machine.engines = {"http://127.0.0.1:8000": "vLLM"}
    arguments = types.SimpleNamespace(selftest=False, bundle=None)
    assert "vLLM serves a model at http://127.0.0.1:8000" in doctor._run(arguments).text()


def test_kinds_of_machines_say_what_is_not_possible(machine, capsys):
    """Somebody on a Jetson or in a container looks for a fault that is a limitation."""
    kinds = {kind.name: kind for kind in joulery.hardware.MACHINES}
    machine.machines = [kinds["Intel CPU"], kinds["NVIDIA Jetson"]]
    out = _text(capsys)
    assert "NVIDIA Jetson" in out
    assert f"not possible: {kinds['NVIDIA Jetson'].impossible}" in out
    assert "Intel CPU" not in out
    names = [entry["name"] for entry in _document(capsys)["machine"]]
    assert names == ["Intel CPU", "NVIDIA Jetson"]


def test_what_was_found_goes_before_what_holds_for_most_machines(machine, capsys):
    """A board that can be limited stood beside "not possible: limits and clocks"."""
    kinds = {kind.name: kind for kind in joulery.hardware.MACHINES}
    machine.machines = [kinds["container"], kinds["virtual machine"]]
    machine.devices = (Board(), ESTIMATE)
    assert "limits and clocks, unless" in _text(capsys)
    machine.root = True
    out = _text(capsys)
    first = "You can measure 1 GPU and set its limit and clock, and estimate 1 CPU\n"
    assert out.startswith(first)
    assert "limits" not in out.split("Kind of machine")[1]
    assert "not possible: shares of a GPU (vGPU); the rest of the node" in out


def test_the_error_of_a_board_is_that_of_its_measurements(machine, capsys):
    """The doctor said ± 0 % of a board that `joulery measure` gives ± 5 %."""
    board = Board()
    board.provenance = Provenance(Origin.SIMULATED, "emulated", 0.0)
    board.power_sensor = joulery.hardware.sensor_of("NVIDIA A100")
    machine.devices = (board,)
    assert 0.03 < _document(capsys)["devices"][0]["relative_error"] < 0.07
    assert "±0 %" not in _text(capsys)
