"""CPU energy by utilisation."""

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InvalidValueError, MissingHardwareError
from joulery.frontier import Origin
from joulery.hardware import Capability, DeviceKind, _estimate as estimate
from joulery.hardware._estimate import Processor
from joulery.metering import Meter

STAT = "cpu  {user} 0 0 5000 900 0 0 77 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\ncpu1 1 0 0 1 0 0 0 0 0 0\n"
CPUINFO = "".join(
    f"processor\t: {n}\nmodel name\t: Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz\n"
    f"physical id\t: {n // 4}\ncore id\t\t: {n % 2}\ncpu cores\t: 2\n\n"
    for n in range(8)
)


@pytest.fixture
def clock():
    """The clock that a test turns."""
    return VirtualClock(1000.0)


@pytest.fixture
def stat(tmp_path, monkeypatch):
    """Busy time of two CPUs, in hundredths of a second."""
    monkeypatch.setattr(estimate, "ticks_per_second", lambda: 100.0)
    path = tmp_path / "stat"
    path.write_text(STAT.format(user=1000))
    return path


@pytest.fixture
def cpuinfo(tmp_path):
    """Two CPUs without topology."""
    path = tmp_path / "cpuinfo"
    path.write_text("".join(f"processor\t: {n}\nmodel name\t: Test CPU\n\n" for n in range(2)))
    return path


@pytest.fixture
def meter(stat, cpuinfo, clock):
    """The meter under test."""
    given = {"JOULERY_CPU_TDP_WATTS": "100"}
    (device,) = estimate.survey(given, clock, stat=stat, cpuinfo=cpuinfo).devices
    return device


def test_idle_machines_still_draw(meter, clock):
    """Zero utilisation is not zero energy."""
    before = meter.read_energy().joules
    clock.sleep(10.0)
    assert meter.read_energy().joules - before == pytest.approx(10 * 20.0)


def test_busy_cores_add_their_share(meter, stat, clock):
    """One of two CPUs busy for ten seconds is half of the dynamic power."""
    before = meter.read_energy().joules
    clock.sleep(10.0)
    stat.write_text(STAT.format(user=2000))
    reading = meter.read_energy()
    assert reading.joules - before == pytest.approx(10 * 20.0 + 80.0 * 10 / 2)
    assert reading.read_at_seconds == 1010.0


def test_cpus_taken_offline_do_not_move_the_sum(meter, stat):
    """Fewer lines must not make past work more expensive."""
    before = meter.read_energy().joules
    stat.write_text(STAT.format(user=1000).replace("cpu1", "intr"))
    assert meter.read_energy().joules == before


def test_waiting_and_stolen_time_is_not_work():
    """I/O wait and the neighbours' work do not heat our cores."""
    text = "cpu  1 2 4 1000 8000 16 32 64000 1 2\n"
    assert estimate.parse_busy_seconds(text, 1.0) == 1 + 2 + 4 + 16 + 32


@pytest.mark.parametrize("text", ["", "cpu  1 2\n", "cpu  a b c d e f g\n", "cpu0 1 2 3 4 5 6 7\n"])
def test_an_unusable_file_is_an_error(text):
    """Unknown is never zero."""
    with pytest.raises(DeviceError):
        estimate.parse_busy_seconds(text, 100.0)


def test_is_marked_as_assumed(meter):
    """A guess must not be reported like a measurement."""
    assert meter.provenance.origin is Origin.ASSUMED
    assert meter.provenance.relative_error == 0.5
    assert "100 W" in meter.provenance.source
    assert meter.info.kind is DeviceKind.CPU
    assert meter.info.max_watts == 100.0
    assert meter.capabilities == {Capability.ENERGY}
    assert meter.read_energy().range_joules is None


def test_no_proc_means_no_estimate(clock, tmp_path):
    """Without busy time there is nothing to estimate from."""
    missing = tmp_path / "none"
    with pytest.raises(MissingHardwareError):
        estimate.survey({}, clock, stat=missing, cpuinfo=missing)


@pytest.mark.parametrize("given", ["many", "", "0", "-5", "inf", "nan"])
def test_a_nonsense_design_power_is_refused(stat, cpuinfo, clock, given):
    """A wrong variable must be reported, not ignored."""
    with pytest.raises(InvalidValueError, match="JOULERY_CPU_TDP_WATTS"):
        estimate.survey({"JOULERY_CPU_TDP_WATTS": given}, clock, stat=stat, cpuinfo=cpuinfo)


def test_cpuinfo_counts_sockets_and_cores():
    """Hyper-threads are not cores, and two sockets draw twice."""
    assert estimate.parse_cpuinfo(CPUINFO) == Processor(
        "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", 2, 4, 8
    )


def test_cpuinfo_without_topology_counts_entries():
    """ARM and small guests list neither packages nor cores."""
    text = "processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n\n"
    assert estimate.parse_cpuinfo(text) == Processor("", 1, 2, 2)


def test_an_empty_cpuinfo_asks_the_system(monkeypatch):
    """Something is running this."""
    monkeypatch.setattr(estimate.os, "cpu_count", lambda: 6)
    assert estimate.parse_cpuinfo("") == Processor("", 1, 6, 6)


@pytest.mark.parametrize(
    ("model", "sockets", "cores", "watts"),
    [
        ("Intel(R) Xeon(R) Silver 4110 CPU", 1, 8, 85),
        ("Intel(R) Xeon(R) Gold 6130 CPU", 2, 32, 250),
        ("Intel(R) Xeon(R) Platinum 8380 CPU", 1, 40, 270),
        ("AMD EPYC 7302 16-Core Processor", 1, 16, 155),
        ("AMD EPYC 7763 64-Core Processor", 2, 128, 560),
        ("AMD EPYC 9654 96-Core Processor", 1, 96, 360),
        ("AMD Ryzen 9 5950X 16-Core Processor", 1, 16, 105),
        ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", 1, 4, 15),
        ("12th Gen Intel(R) Core(TM) i7-12700H", 1, 14, 45),
        ("AMD Ryzen 7 5800H with Radeon Graphics", 1, 8, 45),
    ],
)
def test_guessed_power_is_near_the_data_sheet(model, sockets, cores, watts):
    """The guess must stay well within the stated error of one half."""
    guess = estimate.guess_tdp_watts(Processor(model, sockets, cores, 2 * cores))
    assert guess == pytest.approx(watts, rel=0.26)


def test_many_unnamed_cores_are_a_server():
    """ARM servers give no model name."""
    assert estimate.guess_tdp_watts(Processor("", 1, 80, 80)) > 200


def test_this_machine_can_be_read(clock):
    """The real files parse where there is a /proc."""
    if not estimate.STAT.exists():
        pytest.skip("no /proc here")
    assert estimate.survey({}, clock).devices[0].read_energy().joules > 0


@pytest.mark.parametrize("seconds", [0.001, 0.03, 0.3, 2.0])
@pytest.mark.parametrize("ticks", [0, 1, 7, 400])
def test_windows_of_the_estimate_stay_between_idle_and_design_power(
    meter, stat, clock, seconds, ticks
):
    """A short command would cost nothing, or more than its processor can draw."""
    with Meter([meter], clock=clock) as measured:
        clock.sleep(1.0)
        with measured.window() as window:
            stat.write_text(STAT.format(user=1000 + ticks))  # in lumps of a hundredth of a second
            clock.sleep(seconds)
        figure = window.measurement
    assert 20.0 * seconds * (1 - 1e-9) <= figure.joules <= 100.0 * seconds * (1 + 1e-9)
    assert figure.peak_watts <= 100.0 * (1 + 1e-9)
    assert figure.relative_error >= 0.5
