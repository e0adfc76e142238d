"""``joulery doctor --bundle``: everything that a report needs, and nobody's secrets."""

import getpass
import json
import socket
import threading
import types
from pathlib import Path

import pytest

import joulery.hardware
from joulery.cli import doctor_bundle, main
from joulery.clock import VirtualClock
from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Obstacle,
    SimulatedGpu,
    Survey,
    catalog,
)

SECRETS = {
    "JOULERY_TOKEN": "jt_9f8e7d6c5b4a",
    "IPMI_PASSWORD": "correct horse",
    "JOULERY_REDFISH_USER": "operator7",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
}
NAMES = (
    "node17.cluster.example",
    "node17",
    "alice",
    "/somewhere/alice",
    "10.1.2.3",
    "bmc.example",
    "bmc2",
)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine whose name, user and secrets turn up wherever a device or driver may put them."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.cluster.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(Path, "home", lambda: Path("/somewhere/alice"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOULERY_NODE_METER", "redfish:https://bmc.example/redfish/v1 ipmi:bmc2")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    clock = VirtualClock()
    board = SimulatedGpu(catalog.board("A100"), clock)
    meter = types.SimpleNamespace(
        info=DeviceInfo(
            "redfish:https://operator7:pw@bmc.example/1",
            "BMC of node17",
            DeviceKind.NODE,
            "redfish",
        ),
        provenance=Provenance(Origin.MEASURED, "Redfish at https://10.1.2.3/redfish"),
        capabilities=frozenset({Capability.ENERGY}),
        read_energy=_fail,
    )
    obstacles = tuple(
        Obstacle(f"plug-in {secret}", f"cannot read /home/alice/{secret}: {name}", f"ask {name}")
        for secret in SECRETS.values()
        for name in (*NAMES, "alice@cluster.example", "GPU-0123abcd-0000-1111-2222-0123456789ab")
    )
    monkeypatch.setattr(joulery.hardware, "survey", lambda: Survey((board, meter), obstacles))
    monkeypatch.setattr(doctor_bundle, "REAL_CLOCK", clock)
    monkeypatch.setattr(doctor_bundle._behaviour, "__defaults__", (clock,))
    return tmp_path


def _fail():
    raise DeviceError("no answer from 10.1.2.3 for alice", remedy="ask again")


def test_no_secret_leaves_the_machine(machine, capsys):
    """A report that somebody posts tells their token, their machine or their name."""
    assert main(["doctor", "--bundle", "report.json"]) == 0
    text = (machine / "report.json").read_text("utf-8").lower()
    for secret in (*SECRETS.values(), *NAMES, "pw@", "0123abcd", "/home/alice"):
        assert secret.lower() not in text, secret
    assert "no answer from address for user" in text
    assert "Nothing was sent" in capsys.readouterr().out
    document = json.loads(text)
    assert document["versions"]["joulery"] == "0.1.0"
    assert "joulery_token" in document["variables"]


def test_all_devices_are_read_at_the_same_time(monkeypatch):
    """The bundle of a node with eight boards takes a quarter of a minute of silence."""
    monkeypatch.setattr(doctor_bundle, "_READ_SECONDS", 0.0)
    both = threading.Barrier(2)

    def read():
        both.wait(60)
        return EnergyReading(1.0, 1.0)

    device = types.SimpleNamespace(
        info=DeviceInfo("gpu", "GPU", DeviceKind.GPU, "nvidia"),
        capabilities=frozenset({Capability.ENERGY}),
        read_energy=read,
    )
    rows = doctor_bundle._behaviours([device, device])
    assert [row["readings"] for row in rows] == [1, 1]
    assert [row["mean_watts"] for row in rows] == [None, None]


def test_ordinary_words_stay(monkeypatch):
    """A report is unreadable, because half of its words are taken for secrets."""
    text = (
        "measured ±5 % (NVML energy counter of an unknown driver), NVIDIA A100-SXM4-80GB 580.65.06"
    )
    assert doctor_bundle.scrub({"text": [text, 1.5, None]}, {"ana": "USER"}) == {
        "text": [text, 1.5, None]
    }


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("(visa:…, ipmi:, redfish:https://…)", "(visa:…, ipmi:, redfish:https://HOST)"),
        ("see https://bmc.example/redfish.", "see https://HOST."),
        ("'https://me:pa)ss@host/x', then", "'https://HOST', then"),
    ],
)
def test_addresses_end_where_the_sentence_goes_on(text, scrubbed):
    """A remedy in the bundle loses its bracket, or a password with a bracket is half shown."""
    assert doctor_bundle.scrub(text, {}) == scrubbed
