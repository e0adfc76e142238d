"""A tuner beside an engine whose page of metrics fails, on a virtual clock."""

import math
import re
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import NotPossibleHereError
from joulery.hardware import SimulatedGpu, catalog
from joulery.serving import (
    ENGINES,
    BoardsKnob,
    LatencyObjective,
    ServiceWatch,
    Tuner,
    UncertainValue,
    serving_board,
    sweep_service,
    synthetic_trace,
)
from joulery.testing.engine import StandInEngine
from support.governor.emulated import EmulatedGovernor

OBJECTIVE = LatencyObjective(2.0, 0.2)


class PageClient:
    """A client that serves simulated requests up to now whenever it is asked for the page."""

    url = "http://engine"

    def __init__(self, engine):
        self.engine = engine
        self.fault = lambda text: text

    def find_metrics(self):
        """The engine."""
        return ENGINES[0]

    def fetch(self, _):
        """The page, after the fault."""
        self.engine._advance()
        return self.fault(self.engine.metrics())

    def close(self):
        """Nothing is open."""


@pytest.fixture
def service():
    """A tuner's client, board and clock."""
    clock = VirtualClock()
    requests = synthetic_trace(
        lambda _: 6.0, 600.0, prompt_tokens=300.0, output_tokens=60.0, seed=3
    )
    engine = StandInEngine(requests, serving_board("a100"), clock=clock)
    yield PageClient(engine), SimulatedGpu(catalog.board("A100"), clock), clock
    engine._server.server_close()


def is_locked(tuner, board, clock, seconds):
    """Whether the clock is locked at some moment of a time."""
    end = clock.now() + seconds
    while clock.now() < end:
        clock.sleep(0.25)
        tuner.step()
        if board._locked_hertz is not None:
            return True
    return False


def refuse(_):
    """An engine that is down."""
    raise NotPossibleHereError("the engine does not answer", remedy="start it")


def freeze():
    """A fault that repeats the first page that it sees."""
    pages = []

    def fault(text):
        pages.append(text)
        return pages[0]

    return fault


def halve(text):
    """Counters of an engine that began anew."""
    return re.sub(r"_total(\{[^}]*\}) (\S+)", lambda m: f"_total{m[1]} {float(m[2]) / 2}", text)


FAULTS = {
    "refused": lambda: refuse,
    "nan": lambda: lambda text: re.sub(r"(_sum\{[^}]*\}) \S+", r"\1 NaN", text),
    "negative": lambda: lambda text: re.sub(r"(_sum\{[^}]*\}) (\S+)", r"\1 -\2", text),
    "frozen": freeze,
    "histogram gone": lambda: lambda text: text.replace("time_to_first_token", "other"),
    "counter gone": lambda: lambda text: text.replace("request_success_total", "other"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_page_that_cannot_be_true_gives_full_power_until_it_is_mended(service, name):
    """Boards stay slow, or become slower, on figures that are no figures."""
    client, board, clock = service
    with Tuner(client, OBJECTIVE, devices=[board], clock=clock, threaded=False) as tuner:
        assert is_locked(tuner, board, clock, 60.0)
        client.fault = FAULTS[name]()
        for _ in range(8):
            clock.sleep(0.25)
            tuner.step()
        assert board._locked_hertz is None
        assert not is_locked(tuner, board, clock, 20.0)
        client.fault = lambda text: text
        assert is_locked(tuner, board, clock, 60.0), tuner.report().trouble
        assert tuner.report().failures
    assert board._locked_hertz is None


def test_a_restart_between_two_readings_begins_anew(service):
    """What was learned from one engine slows the next one down."""
    client, board, clock = service
    with Tuner(client, OBJECTIVE, devices=[board], clock=clock, threaded=False) as tuner:
        assert is_locked(tuner, board, clock, 60.0)
        client.fault = halve
        clock.sleep(0.25)
        tuner.step()
        assert board._locked_hertz is None
        assert repr(tuner).startswith("<Tuner: ")
        assert " kJ in " in repr(tuner.report()) or " J in " in repr(tuner.report())
        assert tuner.report().restarts == 1
        assert is_locked(tuner, board, clock, 60.0)


def test_a_board_has_one_tuner(service):
    """A second tuner seems to work while the first holds the board."""
    client, board, clock = service
    with (
        Tuner(client, OBJECTIVE, devices=[board], clock=clock, threaded=False),
        pytest.raises(NotPossibleHereError, match="held"),
    ):
        Tuner(client, OBJECTIVE, devices=[board], clock=clock, threaded=False).__enter__()


@pytest.mark.parametrize("knob", ["clock", "limit"])
def test_a_service_keeps_to_its_share_and_says_when_that_is_too_small(
    service, tmp_path, caplog, knob
):
    """A cap that a service knows nothing of makes requests late, and nobody learns why."""
    client, board, clock = service
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a secret of the agent")
    governor = EmulatedGovernor([board], token, 400.0, clock, shared=True)
    agent = governor.connect()
    number = agent.ask("acquire", device=board.info.id, ttl_seconds=600, watts=400.0)["lease"]
    late = LatencyObjective(0.001, 0.001)
    options = {"devices": [board], "knob": knob, "clock": clock, "hold": governor.lease}
    with Tuner(client, late, threaded=False, **options) as tuner:

        def seconds_short(share_watts):
            agent.ask("set", lease=number, target_watts=share_watts)
            board.set_load(catalog.workload("resnet50", board.board))
            before = tuner.report().short_seconds
            for _ in range(40):
                clock.sleep(0.25)
                tuner.step()
            return tuner.report().short_seconds - before

        assert seconds_short(500.0) == 0, "it has all that the board could draw"
        assert seconds_short(200.0) > 5
        assert tuner.report().share_watts == board.power_limits().current_watts == 200.0
        (device,) = agent.ask("status")["devices"]
        assert device["leases"][1]["target_watts"] == 200.0
        assert caplog.text.count("too little for the objective") == 1
        assert seconds_short(500.0) <= 1
        assert board.power_limits().current_watts == 400.0
        assert not tuner.report().failures


def test_rows_of_a_sweep_compare_at_equal_traffic(service):
    """Chance of the traffic, not the setting, makes energy per token differ."""
    client, board, clock = service
    watch = ServiceWatch(client, [board], clock)
    rows, frontier = sweep_service(watch, BoardsKnob([board]), [13, 13, 13], 20.0, clock=clock)
    watch.close()
    values = [row.joules_per_token for row in rows]
    assert all(value.error > 0 for value in values)
    # The board draws the same whatever the engine does, so the figures are those of waiting.
    assert max(v.value for v in values) < 1.1 * min(v.value for v in values)
    assert {point.provenance.origin.value for point in frontier} == {"simulated"}


class SlowBoard(SimulatedGpu):
    """A board whose clock shows a change some time later."""

    changed_seconds, before_hertz = -1.0, None

    def lock_clock(self, hertz):
        """Lock it; the clock stays for a time."""
        self.before_hertz = super().telemetry().clock_hertz
        self.changed_seconds = self.clock.now()
        super().lock_clock(hertz)

    def telemetry(self):
        """The state, with the clock as it was until the lag is over."""
        telemetry = super().telemetry()
        late = self.clock.now() < self.changed_seconds + 0.12
        return replace(telemetry, clock_hertz=self.before_hertz) if late else telemetry


def test_a_knob_learns_how_long_clocks_take():
    """All boards are taken for the slowest, or a slow one for a quick one."""
    clock = VirtualClock()
    board = SlowBoard(catalog.board("A100"), clock)
    board.set_load(catalog.workload("resnet50", board.board))
    knob = BoardsKnob([board], clock=clock)
    knob.hold()
    for position in (9, 6, 3, 0):  # the first shows nothing: the limit holds the clock lower
        assert math.isnan(knob.lag.seconds)
        knob.set(position)
    knob.release()
    assert 0.12 <= knob.lag.seconds <= 0.14


def test_a_row_of_a_sweep_has_no_requests_of_the_setting_before(service):
    """Requests that began at a slow clock make the next, faster one look slow."""
    _, board, clock = service
    serving = serving_board("a100")
    requests = synthetic_trace(
        lambda _: 1.0, 200.0, prompt_tokens=100.0, output_tokens=400.0, seed=3
    )
    client = PageClient(StandInEngine(requests, serving, clock=clock))

    def obey(text):
        hertz = board._locked_hertz
        share = 1.0 if hertz is None else hertz / board.supported_clocks()[-1]
        client.engine._simulation.use(serving.within(1e6, share * serving.max_clock_hertz))
        return text

    client.fault = obey
    watch = ServiceWatch(client, [board], clock)
    rows, _ = sweep_service(watch, BoardsKnob([board]), [13, 0, 13], 8.0, clock=clock)
    watch.close()
    client.engine._server.server_close()
    first, slow, last = (row.tpot_seconds[1] for row in rows)
    assert first < 0.9 * slow
    assert last < 0.9 * slow


def test_opentelemetry_has_tokens_latencies_and_energy(service):
    """A collector gets no figures of the service, or nothing that tells prompts from answers."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from joulery.integrations.opentelemetry import ServingMetrics

    client, board, clock = service
    watch, reader = ServiceWatch(client, [board], clock), InMemoryMetricReader()
    provider, prefill = MeterProvider([reader]), UncertainValue(0.02, 0.001)
    account = replace(watch.ledger().account(), prefill_joules_per_token=prefill)
    sink = ServingMetrics(watch, provider)
    for _ in range(10):
        clock.sleep(1.0)
        state = watch.read()
        sink.write(state, account)
    (resource,) = reader.get_metrics_data().resource_metrics
    points = {
        metric.name: {
            point.attributes.get("gen_ai.token.type"): point for point in metric.data.data_points
        }
        for metric in resource.scope_metrics[0].metrics
    }
    # What is not known is left out.
    assert points["gen_ai.server.token.energy"].keys() == {"input"}
    assert points["gen_ai.server.token.energy.error"]["input"].value == prefill.error
    assert points["gen_ai.server.token.usage"]["output"].value == state.generation_tokens
    assert points["gen_ai.server.time_to_first_token"][None].count > 20
    assert {"hw.energy", "hw.power"} <= set(points)
    provider.shutdown()
    watch.close()
