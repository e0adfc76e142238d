"""The emulated NVML against the simulated board, the real binding, and other processes."""

import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from joulery.clock import VirtualClock
from joulery.errors import (
    InvalidValueError,
    JouleryError,
    MissingExtraError,
    MissingHardwareError,
    UnknownDeviceError,
    UsageError,
)
from joulery.hardware import Sensor, SimulatedGpu, Steady, Workload, catalog, clock_states
from joulery.hardware.simulated._physics import settle_in
from joulery.testing.emulator import BoardSpec, EmulatedNode, Phase, build
from support import emulated_load

# The catalog's figures may be refined; these tests need fixed ones.
BOARD = replace(
    catalog.board("V100"),
    idle_watts=25.0,
    min_limit_watts=100.0,
    max_limit_watts=300.0,
    default_limit_watts=300.0,
    counter_period_seconds=0.1,
    power_lag_seconds=0.05,
)
WORKLOAD = Workload("step", compute_seconds=0.08, memory_seconds=0.03, host_seconds=0.01)
OTHER = Workload("other", compute_seconds=0.02, memory_seconds=0.05, activity=0.6)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder with the compiled library, shared by the tests of this file."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    folder = tmp_path_factory.mktemp("emulator-cache")
    build.build(folder)
    return folder


@pytest.fixture
def start(cache, tmp_path):
    """Start a node that ends with the test."""
    started = []

    def begin(*boards, **options):
        node = EmulatedNode(
            boards or [BoardSpec(BOARD)], directory=tmp_path, cache=cache, **options
        )
        started.append(node.__enter__())
        node.load_in_process()
        pynvml.nvmlInit()
        return node

    yield begin
    for node in started:
        node.__exit__(None, None, None)


def handle(index=0):
    """NVML's handle of a board."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.sampled_from([None, WORKLOAD, OTHER])),
        st.tuples(st.just("limit"), st.integers(100_000, 300_000)),
        st.tuples(st.just("lock"), st.integers(0, len(BOARD.clocks()) - 1)),
        st.tuples(st.just("unlock"), st.none()),
        st.tuples(st.just("wait"), st.floats(1e-4, 3.0)),
        st.tuples(st.just("wait"), st.floats(1.0, 1e5)),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=actions, seed=st.integers(0, 50))
def test_emulated_and_simulated_boards_agree(cache, tmp_path, actions, seed):
    """Two models of one board would tell two stories: the C code follows the Python physics."""
    clock = VirtualClock()
    simulated = SimulatedGpu(BOARD, clock, seed=seed)
    phase = simulated.read_energy().refreshed_at_seconds + BOARD.counter_period_seconds
    spec = BoardSpec(BOARD, refresh_phase_seconds=phase, counter_start_joules=0.0)
    with EmulatedNode([spec], directory=tmp_path, cache=cache, time_held=True) as node:
        node.load_in_process()
        pynvml.nvmlInit()
        for action, value in actions:
            if action == "load":
                simulated.set_load(value)
                node.set_load(0, value)
            elif action == "limit":
                simulated.set_power_limit(value * 1e-3)
                pynvml.nvmlDeviceSetPowerManagementLimit(handle(), value)
            elif action == "lock":
                hertz = BOARD.clocks()[value]
                simulated.lock_clock(hertz)
                megahertz = math.floor(hertz / 1e6)
                pynvml.nvmlDeviceSetGpuLockedClocks(handle(), megahertz, megahertz)
            elif action == "unlock":
                simulated.unlock_clock()
                pynvml.nvmlDeviceResetGpuLockedClocks(handle())
            else:
                clock.sleep(value)
                node.advance(value)
            truth, shown, reading = node.truth(0), node.shown(0), simulated.read_energy()
            assert truth.joules == pytest.approx(simulated.true_joules(), rel=1e-9, abs=1e-9)
            assert truth.steady.clock_hertz == pytest.approx(
                simulated.steady().clock_hertz, rel=1e-12
            )
            assert truth.steady.watts == pytest.approx(simulated.steady().watts, rel=1e-12)
            assert shown.refreshed_at_seconds == pytest.approx(
                reading.refreshed_at_seconds, rel=1e-9, abs=1e-9
            )
            assert shown.watts == pytest.approx(reading.watts, rel=1e-9)
            counted = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()) * 1e-3
            assert counted == pytest.approx(reading.joules, rel=1e-9, abs=1.1e-3)


@pytest.mark.parametrize("limit_watts", [100.0, 140.0, 217.3, 300.0])
@pytest.mark.parametrize("locked", [None, 0, 40, -1])
def test_look_up_is_the_physics_look_up(start, limit_watts, locked):
    """A limit would settle at another clock in C than in Python."""
    node = start(time_held=True)
    states = clock_states(BOARD, WORKLOAD)
    locked_hertz = None if locked is None else BOARD.clocks()[locked]
    if locked_hertz is not None:
        megahertz = math.floor(locked_hertz / 1e6)
        pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 0, megahertz)
    node.set_power_limit(0, limit_watts)
    node.set_load(0, WORKLOAD)
    found, expected = node.truth(0).steady, settle_in(states, limit_watts, locked_hertz)
    assert found.clock_hertz == pytest.approx(expected.clock_hertz, rel=1e-12)
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-12)
    assert found.watts == pytest.approx(expected.watts, rel=1e-12)
    assert found.busy_watts == pytest.approx(expected.busy_watts, rel=1e-12)


def stepped(phases, lag, watts, seconds):
    """Energy and power of a pattern, one phase after the other, with no short cut."""
    joules = 0.0
    while seconds > 0:
        for target, length in phases:
            stay = min(length, seconds)
            gone = -math.expm1(-stay / lag)
            joules += target * stay + (watts - target) * lag * gone
            watts = target + (watts - target) * (1 - gone)
            seconds -= stay
            if seconds <= 0:
                break
    return joules, watts


@pytest.mark.parametrize("seconds", [0.003, 0.05, 0.1, 0.1234, 7.77, 300.0])
def test_patterns_are_integrated_exactly(start, seconds):
    """Power that fluctuates inside a step would add up to a wrong energy."""
    node = start(time_held=True)
    flat = Steady(BOARD.max_clock_hertz, 0.1, 250.0, 250.0)
    pattern = [Phase(1.1, 0.05), Phase(1.0, 0.02), Phase(0.2, 0.03)]
    node.set_table(0, [flat], pattern)
    node.advance(seconds)
    phases = [(275.0, 0.05), (250.0, 0.02), (50.0, 0.03)]
    joules, watts = stepped(phases, BOARD.power_lag_seconds, BOARD.idle_watts, seconds)
    truth = node.truth(0)
    assert truth.joules == pytest.approx(joules, rel=1e-9)
    assert truth.watts == pytest.approx(watts, rel=1e-9)
    assert truth.steps == pytest.approx(seconds / 0.1, rel=1e-9)


def test_a_pattern_keeps_its_place_and_stretches_with_the_step(start):
    """A limit that is set in mid-step would restart the step, or leave its phases too short."""
    node = start(time_held=True)
    fast, slow = Steady(1530e6, 0.1, 240.0, 240.0), Steady(900e6, 0.2, 120.0, 120.0)
    node.set_table(0, [slow, fast], [Phase(1.25, 0.05), Phase(0.75, 0.05)])
    node.advance(0.05 + 0.025)
    node.set_power_limit(0, 120.0)
    before = node.truth(0)
    node.advance(0.05 + 0.1 + 0.1)
    lag = BOARD.power_lag_seconds
    # Half of the second phase is left, at twice its length; then a whole step.
    rest, watts = stepped([(90.0, 0.05)], lag, before.watts, 0.05)
    step, _ = stepped([(150.0, 0.1), (90.0, 0.1)], lag, watts, 0.2)
    assert node.truth(0).joules - before.joules == pytest.approx(rest + step, rel=1e-9)
    assert node.truth(0).steps == pytest.approx(0.75 + 0.25 + 1.0, rel=1e-9)


def test_the_counter_refreshes_by_its_period_through_many_changes(start):
    """Frequent changes of load would make the counter refresh early, or forget its last value."""
    node = start(time_held=True)
    node.advance(0.5001)
    expected = node.shown(0)
    for change in range(600):
        node.set_load(0, WORKLOAD if change % 2 else None)
        node.advance(1e-4)
        assert node.shown(0) == expected
    node.advance(0.05)
    assert node.shown(0).refreshed_at_seconds == pytest.approx(0.6)
    assert node.shown(0).joules > expected.joules


@pytest.mark.parametrize("stamped", [True, False])
def test_field_values_and_their_stamps(start, stamped):
    """Consumers tell by the stamp how old a reading is, on boards that stamp the refresh."""
    node = start(BoardSpec(BOARD, stamped=stamped), time_held=True)
    node.hold_time(1.7e9)
    node.set_load(0, WORKLOAD)
    node.advance(1.234)
    fields = pynvml.nvmlDeviceGetFieldValues(handle(), [83, 186, 185, 190, (186, 1), 9999])
    energy, instant, average, limit, module, unknown = fields
    refreshed = 1.7e9 + (1.2 if stamped else 1.234)
    assert energy.timestamp == pytest.approx(refreshed * 1e6, abs=2)
    assert energy.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    assert energy.value.ullVal == math.floor(node.shown(0).joules * 1e3)
    assert instant.value.uiVal == round(node.shown(0).watts * 1e3)
    assert instant.value.uiVal == pynvml.nvmlDeviceGetPowerUsage(handle())
    assert 0 < average.value.uiVal < instant.value.uiVal
    assert limit.value.uiVal == 300_000
    assert module.nvmlReturn == unknown.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_one_refresh_has_one_stamp(start):
    """Who counts refreshes by their stamps would see more than there are."""
    start(BoardSpec(BOARD))
    stamps = {pynvml.nvmlDeviceGetFieldValues(handle(), [83])[0].timestamp for _ in range(2000)}
    period_microseconds = BOARD.counter_period_seconds * 1e6
    assert len(stamps) <= 1 + (max(stamps) - min(stamps)) / period_microseconds + 0.5
    assert time.time() - max(stamps) * 1e-6 < 1.0


def test_sensor_noise_is_bounded_and_repeats(start):
    """Tests with a noisy sensor would pass today and fail tomorrow."""
    node = start(BoardSpec(BOARD, noise=0.05), time_held=True)
    seen = []
    for _ in range(50):
        node.advance(BOARD.counter_period_seconds)
        seen.append(pynvml.nvmlDeviceGetPowerUsage(handle()))
        assert pynvml.nvmlDeviceGetPowerUsage(handle()) == seen[-1]
    assert len(set(seen)) > 20
    assert all(abs(watts / 1e3 / BOARD.idle_watts - 1) <= 0.0501 for watts in seen)


def test_power_samples_are_those_of_past_refreshes(start):
    """Tools that ask for the driver's own samples would see nothing, or wrong times."""
    node = start(time_held=True)
    node.hold_time(1.7e9)
    node.advance(1.0)
    node.set_load(0, WORKLOAD)
    node.advance(1.05)
    _, samples = pynvml.nvmlDeviceGetSamples(handle(), pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert len(samples) == 21
    assert samples[0].sampleValue.uiVal == round(BOARD.idle_watts * 1e3)
    assert samples[-1].sampleValue.uiVal == round(node.shown(0).watts * 1e3)
    since = samples[10].timeStamp
    _, later = pynvml.nvmlDeviceGetSamples(handle(), pynvml.NVML_TOTAL_POWER_SAMPLES, since)
    assert [sample.timeStamp for sample in later] == [s.timeStamp for s in samples[11:]]


def test_identity(start):
    """Tools that look boards up by UUID, serial or PCI bus would find none, or the wrong one."""
    start(BoardSpec(BOARD), "A100")
    assert pynvml.nvmlDeviceGetCount() == 2
    assert "emulated" in pynvml.nvmlSystemGetDriverVersion()
    for index, name in enumerate(["V100", "A100"]):
        board = handle(index)
        uuid, pci = pynvml.nvmlDeviceGetUUID(board), pynvml.nvmlDeviceGetPciInfo(board)
        assert name in pynvml.nvmlDeviceGetName(board)
        by_name = [
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
            pynvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy),
            pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(board)),
        ]
        assert [pynvml.nvmlDeviceGetIndex(found) for found in by_name] == [index] * 4
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        handle(2)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-none")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(pynvml.c_nvmlDevice_t())


def test_what_is_not_provided_is_not_found(start):
    """A tool would take a made-up answer for the driver's."""
    start()
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetBoardId(handle())


def test_knobs(start):
    """Limits and clocks that are set would not act, or act outside the board's range."""
    node = start()
    board = handle()
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(board) == [100_000, 300_000]
    pynvml.nvmlDeviceSetPowerManagementLimit_v2(board, pynvml.NVML_POWER_SCOPE_GPU, 150_000)
    assert node.power_limit(0) == 150.0
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(board) == 150_000
    for milliwatts in (99_999, 300_001):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(board, milliwatts)
    node.set_load(0, WORKLOAD)
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(board) == (
        pynvml.nvmlClocksEventReasonSwPowerCap
    )
    (memory,) = pynvml.nvmlDeviceGetSupportedMemoryClocks(board)
    clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(board, memory)
    assert clocks == sorted(clocks, reverse=True)
    pynvml.nvmlDeviceSetApplicationsClocks(board, memory, clocks[-1])
    assert pynvml.nvmlDeviceGetClockInfo(board, pynvml.NVML_CLOCK_SM) == clocks[-1]
    pynvml.nvmlDeviceResetApplicationsClocks(board)
    assert pynvml.nvmlDeviceGetClockInfo(board, pynvml.NVML_CLOCK_SM) > clocks[-1]


def test_the_binding_hides_a_refused_limit(start):
    """The binding reports success for a limit that was refused: reading back must stay a test."""
    node = start()
    node.deny(0)
    scope = pynvml.NVML_POWER_SCOPE_GPU
    assert pynvml.nvmlDeviceSetPowerManagementLimit_v2(handle(), scope, 150_000) == 0
    assert node.power_limit(0) == 300.0
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle(), 150_000)
    for setter in (pynvml.nvmlDeviceResetGpuLockedClocks, pynvml.nvmlDeviceResetApplicationsClocks):
        with pytest.raises(pynvml.NVMLError_NoPermission):
            setter(handle())


def test_an_old_board_has_power_but_no_counter(start):
    """Boards from before Volta could not be tested for."""
    start(BoardSpec(BOARD, has_counter=False, has_power_fields=False))
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle())
    assert pynvml.nvmlDeviceGetPowerUsage(handle()) == round(BOARD.idle_watts * 1e3)
    fields = pynvml.nvmlDeviceGetFieldValues(handle(), [83, 186])
    assert [field.nvmlReturn for field in fields] == [3, 3]


def test_mig_instances(start):
    """Shares of a board could not be tested for."""
    start(BoardSpec(BOARD, mig_slices=(1, 2)))
    assert pynvml.nvmlDeviceGetMigMode(handle())[0] == 1
    parts = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), index) for index in (0, 1)]
    slices = [pynvml.nvmlDeviceGetAttributes(part).computeInstanceSliceCount for part in parts]
    assert slices == [1, 2]
    assert pynvml.nvmlDeviceGetUUID(parts[0]).startswith("MIG-")
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[1])
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(handle())
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTotalEnergyConsumption(parts[0])


def test_faults_count_calls_and_wait_for_their_time(start):
    """A fault that strikes early, late or too often tests something else."""
    node = start(BoardSpec(BOARD), BoardSpec(BOARD), time_held=True)
    energy = pynvml.nvmlDeviceGetTotalEnergyConsumption
    node.fault(0, 10, "nvmlDeviceGetTotalEnergyConsumption", calls=2, after_seconds=1.0)
    energy(handle(0))
    node.advance(1.0)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_Timeout):
            energy(handle(0))
        energy(handle(1))
        pynvml.nvmlDeviceGetPowerUsage(handle(0))
    energy(handle(0))
    lost = handle(0)
    node.lose(0)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        handle(0)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        energy(lost)
    handle(1)
    node.clear_faults()
    energy(lost)


def test_a_reset_counter_restarts_at_its_time(start):
    """Consumers could not be tried on a driver that is reloaded under them."""
    node = start(time_held=True)
    node.set_load(0, WORKLOAD)
    node.advance(2.0)
    before = node.shown(0).joules
    node.reset_counter(0, after_seconds=0.53)
    node.advance(0.5)
    assert node.shown(0).joules > before
    node.advance(1.0)
    watts = node.truth(0).steady.watts
    assert node.shown(0).joules == pytest.approx(watts * (3.5 - 2.53), rel=1e-6)
    assert node.true_joules(0) == pytest.approx(watts * 3.5, rel=0.05)


def test_a_frozen_counter_stays_and_then_jumps(start):
    """Consumers could not be tried on a counter that hangs."""
    node = start(time_held=True)
    node.set_load(0, WORKLOAD)
    node.advance(1.05)
    node.freeze_counter(0)
    frozen = node.shown(0)
    node.set_load(0, OTHER)
    node.advance(100.0)
    assert node.shown(0) == frozen
    node.thaw_counter(0)
    assert node.shown(0).refreshed_at_seconds == pytest.approx(101.0, abs=0.05 + 1e-9)


@pytest.mark.parametrize("busy", [True, False])
def test_slow_calls_take_their_time(start, busy):
    """Overheads would be measured against a driver that answers at once."""
    node = start()
    node.slow(0, 2e-3, busy=busy)
    board, began = None, time.monotonic()
    board = handle()
    for _ in range(4):
        pynvml.nvmlDeviceGetPowerUsage(board)
    assert time.monotonic() - began >= 5 * 2e-3


CHILD = """
import sys, pynvml
pynvml.nvmlInit()
board = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceSetPowerManagementLimit(board, 123000)
sys.stdout.write(str(pynvml.nvmlDeviceGetTotalEnergyConsumption(board)))
"""


def run_child(node, code):
    """Run Python code in a process that sees the node."""
    return subprocess.run(
        [sys.executable, "-c", code], env=node.env, capture_output=True, text=True, check=False
    )


def test_processes_share_the_boards(start):
    """A daemon and a trainer would each have boards of their own."""
    node = start()
    node.set_load(0, WORKLOAD)
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle())
    done = run_child(node, CHILD)
    assert done.returncode == 0, done.stderr
    after = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle())
    assert before <= int(done.stdout) <= after
    assert node.power_limit(0) == 123.0


def test_a_process_that_dies_inside_a_call_blocks_no_other(start):
    """One killed trainer would hang every other process on the node."""
    node = start()
    path = f"{node.env['LD_LIBRARY_PATH'].split(os.pathsep)[0]}/{build.SONAME}"
    done = run_child(node, f"import ctypes; ctypes.CDLL({path!r}).emulator_die_holding_lock()")
    assert done.returncode == 9
    assert node.true_joules(0) > 0
    assert pynvml.nvmlDeviceGetPowerUsage(handle()) > 0
    assert node._c.emulator_lock_works()


def test_a_process_of_its_own_drives_a_load(start):
    """Tests of the command line need work that runs somewhere else."""
    node = start()
    command = [sys.executable, emulated_load.__file__, "--steps", "3"]
    done = subprocess.run(command, env=node.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # More than three if the process was kept waiting, since the board goes on.
    assert 2 <= report["steps"] <= report["seconds"] / 0.04
    assert BOARD.idle_watts * report["seconds"] < report["true_joules"] < node.true_joules(0)
    assert node.truth(0).steady.seconds == 0


def test_processes_on_a_board_are_listed(start):
    """Tools that bill by process would find none."""
    node = start()
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle()) == []
    node.set_processes(0, {os.getpid(): 5 << 20, 1: 7 << 20})
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert {process.pid: process.usedGpuMemory for process in found} == {
        os.getpid(): 5 << 20,
        1: 7 << 20,
    }
    assert pynvml.nvmlDeviceGetMemoryInfo(handle()).used == 12 << 20
    assert pynvml.nvmlDeviceGetMemoryInfo(handle(), pynvml.nvmlMemory_v2).used == 12 << 20


def test_time_runs_on_after_it_was_held(start):
    """A node that was held for a check would jump when released."""
    node = start(time_held=True)
    node.advance(5.0)
    node.release_time()
    now = node.truth(0).now_seconds
    assert 5.0 <= now < 6.0
    time.sleep(0.002)
    assert node.truth(0).now_seconds > now


def test_a_closed_node_is_a_machine_without_driver(start, cache, tmp_path):
    """Tests would leak their boards into the tests after them."""
    with EmulatedNode([BoardSpec(BOARD)], directory=tmp_path, cache=cache) as node:
        node.load_in_process()
        pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()
    with pytest.raises(UsageError):
        node.true_joules(0)


def test_another_nvml_in_this_process_is_refused(start, monkeypatch):
    """A test would take the machine's real boards for emulated ones."""
    node = start()
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(None))
    with pytest.raises(UsageError):
        node.load_in_process()


def test_wrong_use_is_explained(start, tmp_path):
    """Mistakes in a test would end in a crash of the C code."""
    node = start()
    with pytest.raises(UnknownDeviceError):
        node.true_joules(1)
    with pytest.raises(InvalidValueError):
        node.set_table(0, [Steady(1e9, 0.1, 100.0, 100.0)], [Phase(1.0, 0.1)] * 9)
    with pytest.raises(InvalidValueError):
        node.set_table(0, [Steady(1e9, 0.1, 100.0, 100.0)] * 1025)
    with pytest.raises(InvalidValueError):
        Phase(1.0, 0.0)
    with pytest.raises(InvalidValueError):
        BoardSpec(BOARD, mig_slices=(4, 4))
    with pytest.raises(InvalidValueError), EmulatedNode(["A100"] * 17, directory=tmp_path):
        pass
    with pytest.raises(MissingHardwareError):
        EmulatedNode.attached({})
    for _ in range(64):
        node.fault(0, 10, calls=0)
    with pytest.raises(JouleryError):
        node.fault(0, 10)


def test_a_missing_compiler_is_explained(cache, tmp_path, monkeypatch):
    """A machine without gcc would show a FileNotFoundError of a subprocess."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="gcc"):
        build.build(tmp_path / "cache")
    assert build.build(cache).is_dir()  # what is built needs no compiler


def test_a_broken_compiler_is_explained(cache, tmp_path, monkeypatch):
    """A compiler's failure would be hidden, or leave half a library behind."""
    broken = tmp_path / "gcc"
    broken.write_text("#!/bin/sh\necho 'no headers here' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JouleryError, match="no headers here"):
        build.build(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob(f"*/{build.SONAME}"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    loads=st.lists(st.tuples(st.booleans(), st.floats(0.01, 2.0)), min_size=1, max_size=12),
    sensor=st.builds(
        Sensor,
        window_seconds=st.sampled_from([0.0, 0.011, 0.025, 0.1, 0.112, 1.0]),
        lag_seconds=st.sampled_from([0.0, 0.08, 0.2]),
        gain=st.sampled_from([1.0, 0.954, 1.044]),
        offset_watts=st.sampled_from([0.0, -22.6, 16.0]),
        counts_looks=st.booleans(),
    ).filter(lambda sensor: sensor.window_seconds > 0 or not sensor.counts_looks),
)
def test_emulated_and_simulated_sensors_agree(cache, tmp_path, loads, sensor):
    """The meter would be tried on sensors in Python that the emulated driver does not have."""
    clock = VirtualClock()
    simulated = SimulatedGpu(BOARD, clock, seed=7, sensor=sensor)
    phase = simulated.read_energy().refreshed_at_seconds + BOARD.counter_period_seconds
    spec = BoardSpec(
        BOARD,
        refresh_phase_seconds=phase,
        counter_start_joules=0.0,
        window_seconds=sensor.window_seconds,
        sensor_lag_seconds=sensor.lag_seconds,
        gain=sensor.gain,
        offset_watts=sensor.offset_watts,
        counts_looks=sensor.counts_looks,
    )
    with EmulatedNode([spec], directory=tmp_path, cache=cache, time_held=True) as node:
        for busy, seconds in loads:
            load = WORKLOAD if busy else None
            simulated.set_load(load)
            node.set_load(0, load)
            clock.sleep(seconds)
            node.advance(seconds)
            shown, reading = node.shown(0), simulated.read_energy()
            assert shown.watts == pytest.approx(reading.watts, rel=1e-3, abs=0.01)
            # The counter of the simulated board never goes below zero per refresh.
            assert shown.joules == pytest.approx(reading.joules, rel=1e-3, abs=0.02)


def test_folders_of_killed_emulators_are_removed(cache, tmp_path, monkeypatch):
    """Every emulator that was killed leaves a folder behind for ever."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, signal\nfrom pathlib import Path\n"
        "from joulery.testing.emulator import EmulatedNode\n"
        f"with EmulatedNode(['v100'], cache=Path({str(cache)!r})) as node:\n"
        "    node.env\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    (folder,) = tmp_path.iterdir()
    with (folder / "state").open("rb") as state, EmulatedNode(["v100"], cache=cache):
        assert list(tmp_path.iterdir()) == [folder]
        assert state.read(1)  # whoever has it mapped survives
        assert not (folder / "driver").exists()
    assert not list(tmp_path.iterdir())


def test_a_node_made_again_has_the_same_boards(cache, tmp_path, monkeypatch):
    """A sweep cannot be continued on emulated boards, or two nodes share leases."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import sys\nfrom pathlib import Path\nimport pynvml\n"
        "from joulery.testing.emulator import EmulatedNode\n"
        f"with EmulatedNode(['v100', 'v100'], cache=Path({str(cache)!r})) as node:\n"
        "    node.load_in_process()\n"
        "    pynvml.nvmlInit()\n"
        "    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(2))\n"
        "    print(*map(pynvml.nvmlDeviceGetUUID, handles), flush=True)\n"
        "    sys.stdin.read()"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start() -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return process, process.stdout.readline().split()

    first, ids = start()
    second, others = start()
    first.communicate()
    again, same = start()
    for process in (second, again):
        process.communicate()
    assert same == ids
    assert len({*ids, *others}) == 4
