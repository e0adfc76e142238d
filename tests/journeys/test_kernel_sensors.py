"""Journey: a Jetson, Intel GPUs and Gaudi cards, measured by what their drivers show of them."""

import json
import math
import threading
from contextlib import contextmanager

import pytest

from joulery.cli import main
from joulery.clock import REAL_CLOCK
from support.hlml import IS_LOST, NOT_SUPPORTED, emulate_cards
from support.hwmon import IntelBoard, show_rails


@contextmanager
def drawing(watts, show):
    """Have the kernel show this power, a function of time; yields the joules until now."""
    stop, began, used = threading.Event(), REAL_CLOCK.now(), [0.0]

    def follow():
        before = began
        while not stop.wait(0.01):
            now = REAL_CLOCK.now()
            used[0] += watts((before + now) / 2 - began) * (now - before)
            before = now
            show(watts(now - began), used[0])

    thread = threading.Thread(target=follow)
    show(watts(0.0), 0.0)
    thread.start()
    try:
        yield used
    finally:
        stop.set()
        thread.join()


def put(file, number):
    """Write a number as sysfs does, in one step."""
    draft = file.with_suffix(".draft")
    draft.write_text(f"{number:.0f}\n")
    draft.replace(file)


@pytest.fixture
def sysfs(tmp_path, monkeypatch):
    """A folder that stands for /sys/class, of a machine without other sensors."""
    defaults = (REAL_CLOCK, tmp_path / "class")
    monkeypatch.setattr("joulery.hardware._hwmon.survey.__defaults__", defaults)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "none")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "class"


def printed(capfd, *words):
    """Document of a command that succeeds."""
    capfd.readouterr()
    assert main([words[0], "--json", *words[1:]]) == 0
    return json.loads(capfd.readouterr().out)


def judge(capfd, used, name):
    """Compare what a command is said to use with what the kernel's driver counted."""
    before = used[0]
    document = printed(capfd, "measure", "--device", name, "--", "sleep", "1.2")
    (device,) = document["devices"]
    assert device["provenance"] == "measured"
    # The command begins and ends within what was counted.
    bar = 1.96 * device["relative_error"] * device["joules"]
    assert device["joules"] - bar <= used[0] - before
    assert device["joules"] + bar >= 0.5 * (used[0] - before)
    return device


def test_a_jetson_is_measured_by_its_rails(sysfs, draw, capfd):
    """A Jetson has no energy, or that of a part as if it were the whole."""
    mean, swing = draw.uniform(8.0, 40.0), draw.uniform(0.1, 0.6)
    show_rails(sysfs, VDD_IN=(5000, 0), VDD_CPU_GPU_CV=(5000, 0), VDD_SOC=(5000, 400))
    currents = [sysfs / "hwmon" / "hwmon0" / f"curr{number}_input" for number in (1, 2)]

    def show(watts, _):
        for file, share in zip(currents, (1.0, 0.5), strict=True):
            put(file, share * watts / 5.0 * 1000)

    with drawing(lambda t: mean * (1 + swing * math.sin(6 * t)), show) as used:
        devices = printed(capfd, "doctor")["devices"]
        kinds = {device["id"]: device["kind"] for device in devices}
        assert kinds["jetson:VDD_IN"] == "node"
        assert kinds["jetson:VDD_CPU_GPU_CV"] == "gpu"
        assert "jetson:VDD_SOC" not in kinds
        judge(capfd, used, "node")
        before = used[0]
        whole = printed(capfd, "measure", "--", "sleep", "0.5")
    assert whole["joules"] <= 1.2 * (used[0] - before), "the rails are within the module"


def test_intel_boards_are_measured_by_their_counters(sysfs, draw, capfd):
    """A board of Intel has no energy, or that of its neighbour or of an integrated GPU."""
    sysfs.mkdir()
    IntelBoard(sysfs, "0000:00:02.0", "i915", counter="")  # integrated: within the CPU
    boards = [IntelBoard(sysfs, f"0000:0{bus}:00.0", "xe") for bus in (3, 4)]
    mean = draw.uniform(40.0, 250.0)

    def show(_, joules):
        for board, share in zip(boards, (1.0, 0.1), strict=True):
            put(board.counter, (share * joules + 100.0) * 1e6)

    with drawing(lambda t: mean * (1 + 0.5 * math.sin(9 * t)), show) as used:
        found = printed(capfd, "doctor")["devices"]
        assert [d["id"] for d in found if d["kind"] == "gpu"] == [
            "intel:0000:03:00.0",
            "intel:0000:04:00.0",
        ]
        assert judge(capfd, used, "gpu:0")["id"] == "intel:0000:03:00.0"
    boards[1].counter.write_text("nonsense")
    said = printed(capfd, "doctor")
    assert any("0000:04:00.0" in row["subject"] for row in said["obstacles"])


def test_gaudi_cards_are_measured_by_their_library(sysfs, tmp_path, monkeypatch, draw, capfd):
    """A card of Intel's has no energy, that of its neighbour, or that of a job beside it."""
    other, mine = emulate_cards(monkeypatch, tmp_path, 2).cards[:2]
    mean = draw.uniform(150.0, 600.0)

    def show(watts, joules):
        for card, share in ((mine, 1.0), (other, 0.1)):
            card.milliwatts = round(share * watts * 1e3)
            card.millijoules = round((share * joules + 100.0) * 1e3)

    with drawing(lambda t: mean * (1 + 0.5 * math.sin(9 * t)), show) as used:
        boards = [d for d in printed(capfd, "doctor")["devices"] if d["kind"] == "gpu"]
        assert [board["id"][-2:] for board in boards] == ["01", "00"]
        assert boards[0]["power_limit"]["max_watts"] == 850.0
        assert judge(capfd, used, "gaudi:0")["id"] == boards[0]["id"]
        monkeypatch.setenv("HABANA_VISIBLE_MODULES", "0")
        job = printed(capfd, "measure", "--", "sleep", "0.2")["devices"]
        ids = {device["id"] for device in job}
        assert boards[0]["id"] in ids
        assert boards[1]["id"] not in ids
        mine.fail(NOT_SUPPORTED, "energy")
        judge(capfd, used, "gpu:0")
    mine.fail(IS_LOST)
    said = printed(capfd, "doctor")
    assert any(row["subject"] == "Gaudi card 0" for row in said["obstacles"])
