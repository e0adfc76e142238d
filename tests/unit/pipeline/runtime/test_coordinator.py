"""The coordinator and its ranks over real sockets, in one process."""

import json
import logging
import socket
import time

import pytest

from joulery.errors import InvalidValueError, NotPossibleHereError
from joulery.files import encode_line
from joulery.pipeline import (
    ClockController,
    ClockSetter,
    Coordinator,
    CoordinatorClient,
    IterationTimes,
    PipelineConfig,
    PipelinePlan,
    PlanCache,
    StragglerPolicy,
    build_problem,
    hold_pace,
    make_schedule,
    profiles_from_rows,
)
from joulery.pipeline.runtime._client import _StageGroup
from joulery.pipeline.runtime._messages import parse_report, report_message
from support.pipelines import random_rows

TOKEN = "a-token-for-tests"  # noqa: S105 - not a secret


@pytest.fixture(scope="module")
def plans():
    """Two stages, three microbatches."""
    profiles = profiles_from_rows(random_rows(2, 5, clocks=6), smooth=False)
    problem = build_problem(
        make_schedule("1f1b", 2, 3), profiles, PipelineConfig(blocking_watts=60.0)
    )
    cache = PlanCache(PipelinePlan(problem))
    cache.prepare(1.3)
    return cache


class Controller:
    """Records the plans that it is given."""

    def __init__(self):
        self.plans, self.iteration, self.returned = [], 0, 0

    def follow(self, plan, from_iteration=0):
        """Note the plan."""
        self.plans.append((plan, from_iteration))
        return self.iteration < from_iteration

    def follow_first_plan(self):
        """Count."""
        self.returned += 1

    def follow_shares(self):
        """Report none."""


def until(true, seconds=60.0):
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.002)
    return False


def settled(coordinator, count):
    """Wait until so many ranks were welcome."""
    assert until(lambda: coordinator.state().connected == count)


@pytest.fixture
def coordinator(plans):
    """Two pipelines of two ranks."""
    with Coordinator(StragglerPolicy(plans, 2), TOKEN) as service:
        yield service


@pytest.fixture
def clients(coordinator):
    """All four ranks."""
    members = [
        CoordinatorClient(
            Controller(), coordinator.address, TOKEN, pipeline=pipeline, rank=rank
        ).start()
        for pipeline in (0, 1)
        for rank in (0, 1)
    ]
    settled(coordinator, 4)
    yield members
    for client in members:
        client.close()


def times(number, seconds, ratios=None):
    """A report."""
    return IterationTimes(number, seconds, 1.0, ratios or {})


def test_all_ranks_switch_at_the_same_iteration(coordinator, clients, plans):
    """If it fails ranks follow different plans, or never learn of a straggler."""
    for number in range(3):
        for client in clients:
            client.report(times(number, 1.0))
    assert until(lambda: coordinator._policy.newest_iteration == 2)
    coordinator.notice(1, 1.2)
    assert until(lambda: all(client.controller.plans for client in clients[:2]))
    for rank, client in enumerate(clients[:2]):
        plan, first = client.controller.plans[0]
        assert plan == plans.ranks(1.2)[rank]
        assert first == 4
    assert not clients[2].controller.plans
    coordinator.notice(1, 1.0)
    assert until(lambda: all(len(client.controller.plans) == 2 for client in clients[:2]))
    assert clients[0].controller.plans[1][0] == plans.ranks(1.0)[0]
    assert clients[0].late_plans == 0


def test_late_iterations_are_found_from_reports(coordinator, clients, plans):
    """If it fails stragglers must be reported by hand."""
    for number in range(6):
        for client, seconds in zip(clients, (1.0, 0.9, 1.1, 1.25), strict=True):
            client.report(times(number, seconds))
    assert until(lambda: all(client.controller.plans for client in clients[:2]))
    assert clients[0].controller.plans[0][0] == plans.ranks(1.25)[0]


def test_the_host_may_set_a_slowdown(coordinator, clients):
    """If it fails the server that hosts the coordinator cannot pass on a straggler."""
    coordinator.notice(0, 1.1)
    assert until(lambda: all(client.controller.plans for client in clients[2:]))
    coordinator.notice(7, 1.1)  # there is none: logged, and survived
    coordinator.notice(0, 1.2)
    assert until(lambda: all(len(client.controller.plans) == 2 for client in clients[2:]))


def test_a_drifted_profile_is_planned_anew(coordinator, clients):
    """If it fails plans rest on times that are no longer true."""
    for number in range(4):
        for client, stage, ratio in ((clients[0], 0, 1.0), (clients[1], 1, 1.3)):
            ratios = {(stage, kind): (ratio,) * 4 for kind in ("forward", "backward")}
            client.report(times(number, 1.0, ratios))
    assert until(lambda: clients[0].controller.plans and clients[1].controller.plans)
    slower = coordinator._policy.plans_of(0)
    assert clients[1].controller.plans[0][0] == slower.ranks()[1]
    # The other pipeline waits for this one from now on.
    assert until(lambda: bool(clients[2].controller.plans))


def test_a_rank_that_comes_late_learns_the_present_plan(coordinator, clients, plans):
    """If it fails a rank that restarts follows another plan than its pipeline."""
    coordinator.notice(1, 1.2)
    assert until(lambda: bool(clients[0].controller.plans))
    late = CoordinatorClient(Controller(), coordinator.address, TOKEN, rank=1)
    with late:
        assert until(lambda: bool(late.controller.plans))
    assert late.controller.plans[0][:2] == (plans.ranks(1.2)[1], 0)


def test_a_lost_coordinator_means_the_first_plan(coordinator, clients, caplog):
    """If it fails ranks stay at a straggler's pace forever, or stop."""
    with caplog.at_level(logging.WARNING, "joulery"):
        coordinator.close()
        assert until(lambda: all(client.controller.returned for client in clients))
        assert until(lambda: caplog.text.count("coordinator lost") == 4)
        for client in clients:
            client.report(times(9, 1.0))
    assert caplog.text.count("coordinator lost") == 4


def test_a_missing_coordinator_costs_nothing(plans, caplog):
    """If it fails training waits for a coordinator that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = unused.getsockname()
    controller = Controller()
    begin = time.monotonic()
    with CoordinatorClient(controller, address, TOKEN) as client:
        for number in range(1000):
            client.report(times(number, 1.0))
        assert time.monotonic() - begin < 30.0
        assert until(lambda: controller.returned > 0)


def test_a_controller_joins_with_one_call(coordinator, plans):
    """If it fails iterations are not reported."""
    controller = ClockController(plans.ranks()[0], ClockSetter([]))
    with CoordinatorClient(controller, coordinator.address, TOKEN):
        settled(coordinator, 1)
        controller.on_iteration(times(5, 1.0))
        assert until(lambda: 5 in coordinator._policy._all[0].open)
    controller.close()


def _connected(coordinator):
    return socket.create_connection(coordinator.address, timeout=60.0)


def _refused(coordinator, *messages):
    """Whether the coordinator closes a connection that sends this."""
    with _connected(coordinator) as channel:
        try:
            for message in messages:
                channel.sendall(message)
            while channel.recv(65536):
                pass
        except TimeoutError:
            return False
        except (ConnectionResetError, BrokenPipeError):
            pass
        return True


def _hello(**changes):
    message = {"op": "hello", "version": 2, "token": TOKEN, "pipeline": 0, "rank": 0}
    return encode_line({**message, **changes})


@pytest.mark.parametrize(
    "messages",
    [
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"[1, 2]\n"],
        [b'{"op": NaN}\n'],
        [b"[" * 5000 + b"\n"],
        [b"x" * 70_000],
        [encode_line({"op": "done"})],
        [_hello(token="wro" + "ng")],
        [_hello(token=None)],
        [_hello(version=1)],
        [_hello(rank=2)],
        [_hello(pipeline=-1)],
        [_hello(rank=True)],
        [_hello(), encode_line({"op": "sing"})],
        [_hello(), encode_line({"op": "done", "iteration": 1, "seconds": -1.0, "planned": 1.0})],
        [_hello(), encode_line({"op": "done", "iteration": 1, "seconds": 1.0, "planned": 0.0})],
        [_hello(), encode_line({"op": "done", "iteration": "x", "seconds": 1.0, "planned": 1.0})],
        [_hello(), encode_line({"op": "done", "iteration": 1, "seconds": "1", "planned": 1.0})],
        [
            _hello(),
            encode_line(
                {"op": "done", "iteration": 1, "seconds": 1, "planned": 1, "ratios": [[1]]}
            ),
        ],
        [_hello(), encode_line({"op": "notice", "factor": 0.5})],
    ],
)
def test_malformed_messages_are_cut_off_and_others_are_served(plans, messages):
    """If it fails a stray message ends the coordinator, or decides about a job."""
    with Coordinator(StragglerPolicy(plans, 2), TOKEN) as coordinator:
        assert _refused(coordinator, *messages)
        with _connected(coordinator) as channel:
            channel.sendall(_hello())
            assert json.loads(channel.recv(4096).split(b"\n")[0])["op"] == "welcome"


def test_connections_without_a_greeting_are_closed(plans, monkeypatch):
    """If it fails silent connections fill the coordinator."""
    monkeypatch.setattr("joulery.pipeline.runtime._messages._GREETING_SECONDS", 0.01)
    with Coordinator(StragglerPolicy(plans), TOKEN) as coordinator:
        assert _refused(coordinator)


def test_connections_are_bounded(plans, monkeypatch):
    """If it fails a port scan takes all file descriptors."""
    monkeypatch.setattr("joulery.pipeline.runtime._messages._SPARE_CONNECTIONS", 0)
    with Coordinator(StragglerPolicy(plans), TOKEN) as coordinator:
        connections = [_connected(coordinator) for _ in range(2)]
        assert until(lambda: len(coordinator._connections) == 2)
        assert _refused(coordinator)
        for channel in connections:
            channel.close()


@pytest.mark.parametrize(
    ("token", "pipeline", "reason"),
    [("another", 0, "a wrong token"), (TOKEN, 7, "there is no rank 0 of pipeline 7")],
)
def test_a_refused_rank_learns_why(coordinator, caplog, token, pipeline, reason):
    """If it fails a typing error looks like a lost network, on both sides."""
    client = CoordinatorClient(Controller(), coordinator.address, token, pipeline=pipeline)
    with client, caplog.at_level(logging.WARNING, logger="joulery"):
        assert until(lambda: client.controller.returned)
        assert until(lambda: len(caplog.messages) >= 2)
    assert any(f"not followed, back to the first plan: {reason}" in m for m in caplog.messages)
    assert any(f"refused a connection: {reason}" in message for message in caplog.messages)


def test_a_coordinator_ends_without_a_word(plans, caplog):
    """If it fails Ctrl-C prints a traceback for each connected rank."""
    with caplog.at_level(logging.WARNING):
        with Coordinator(StragglerPolicy(plans, 2), TOKEN) as service:
            connection = socket.create_connection(service.address)
            hello = {"op": "hello", "version": 2, "token": TOKEN, "pipeline": 0, "rank": 0}
            connection.sendall(encode_line(hello))
            settled(service, 1)
        connection.close()
    assert not caplog.messages


def test_an_address_in_use_and_an_empty_token_are_refused(plans):
    """If it fails ranks report to another service, or any process may decide."""
    with (
        Coordinator(StragglerPolicy(plans), TOKEN) as coordinator,
        pytest.raises(NotPossibleHereError, match="cannot listen"),
    ):
        Coordinator(StragglerPolicy(plans), TOKEN, coordinator.address).start()
    with pytest.raises(InvalidValueError, match="needs a token"):
        Coordinator(StragglerPolicy(plans), "")


def test_messages_come_in_any_pieces(plans):
    """If it fails a message that arrives in two parts is lost."""
    with (
        Coordinator(StragglerPolicy(plans), TOKEN) as coordinator,
        _connected(coordinator) as channel,
    ):
        report = {"op": "done", "iteration": 7, "seconds": 1.0, "planned": 1.0, "ratios": []}
        for byte in _hello() + encode_line(report):
            channel.sendall(bytes([byte]))
        assert until(lambda: 7 in coordinator._policy._all[0].open)


def test_reports_arrive_as_they_were_sent():
    """If it fails stragglers and drift are judged by other figures than the measured ones."""
    sent = times(3, 1.25, {(1, "forward"): (1.0, 1.5), (0, "backward"): (0.5,)})
    assert parse_report(encode_line(report_message(sent))) == sent


def _client(address, pipeline=0, rank=0, run=""):
    return CoordinatorClient(Controller(), address, TOKEN, pipeline=pipeline, rank=rank, run=run)


def test_a_restarted_job_begins_anew(coordinator, plans, caplog):
    """If it fails a job restarted against a running coordinator keeps an old straggler's pace."""
    with _client(coordinator.address, run="first") as before:
        settled(coordinator, 1)
        coordinator.notice(1, 1.3)
        assert until(lambda: bool(before.controller.plans))
        with _client(coordinator.address, run="second") as after:
            assert until(lambda: coordinator.state().factors == (1.0, 1.0))
            settled(coordinator, 1)
            # What is left of the run before is cut off, for good.
            assert until(lambda: before.controller.returned > 0)
            coordinator.notice(1, 1.1)
            assert until(lambda: bool(after.controller.plans))
    assert after.controller.plans[0][0] == plans.ranks(1.1)[0]


def test_a_run_without_a_name_begins_anew_when_all_ranks_had_left(coordinator):
    """If it fails a job without a launcher's name keeps the pace of the run before."""
    with _client(coordinator.address):
        settled(coordinator, 1)
        coordinator.notice(1, 1.3)
        assert until(lambda: max(coordinator.state().factors) > 1.2)
    settled(coordinator, 0)
    with _client(coordinator.address):
        settled(coordinator, 1)
        assert coordinator.state().factors == (1.0, 1.0)


def test_a_run_is_called_as_its_launcher_calls_it(plans, monkeypatch):
    """If it fails restarts by torchrun or Slurm go unnoticed."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    client = CoordinatorClient(Controller(), ("127.0.0.1", 1), TOKEN)
    assert client._hello["run"] == "77///2"


def test_processes_that_share_a_stage_share_a_connection(coordinator, plans):
    """If it fails ranks of a tensor-parallel group are refused, or follow different plans."""
    leader = _client(coordinator.address)
    address = leader.lead(3)
    with leader, _client(address) as second, _client(address) as third:
        settled(coordinator, 1)
        assert until(lambda: len(leader._group._members) == 2)
        coordinator.notice(1, 1.2)
        clients = (leader, second, third)
        assert until(lambda: all(client.controller.plans for client in clients))
        assert {client.controller.plans[0][0] for client in clients} == {plans.ranks(1.2)[0]}
        for client, seconds in zip(clients, (1.0, 1.4, 1.2), strict=True):
            client.report(times(0, seconds))
        # The slowest of them counts, once.
        assert until(lambda: coordinator._policy._all[0].open == {0: {0: 1.4}})
        late = _client(address)
        with late:
            assert until(lambda: bool(late.controller.plans))
        coordinator.close()
        assert until(lambda: all(client.controller.returned for client in clients))


def test_a_group_reports_what_it_has_when_the_next_iteration_begins():
    """If it fails one process that does not report silences its stage."""
    sent = []
    group = _StageGroup(TOKEN, 2, sent.append)
    group._merge(times(0, 1.0, {(0, "forward"): (1.0,)}))
    group._merge(times(1, 1.1, {(0, "forward"): (1.1,)}))
    group._merge(times(1, 1.0, {(0, "forward"): (1.0,), (0, "backward"): (0.9,)}))
    assert [report.iteration for report in sent] == [0, 1]
    assert sent[1].seconds == 1.1
    assert sent[1].ratios == {(0, "forward"): (1.1, 1.0), (0, "backward"): (0.9,)}


def test_a_power_from_outside_is_held_and_given_back(coordinator, clients, plans):
    """If it fails a budget reaches no rank, or nobody knows what is held."""
    full = coordinator.state().planned_watts
    state = hold_pace(coordinator.address, TOKEN, watts=0.8 * full)
    assert state.held_watts == 0.8 * full
    assert state.planned_watts <= 0.8 * full
    assert state.held_seconds > plans.fastest_seconds
    assert until(lambda: all(client.controller.plans for client in clients))
    assert hold_pace(coordinator.address, TOKEN, change=False) == state
    coordinator.hold(seconds=1.05 * plans.fastest_seconds)
    assert until(lambda: coordinator.state().held_watts is None)
    free = hold_pace(coordinator.address, TOKEN)
    assert (free.held_seconds, free.factors) == (None, (1.0, 1.0))
    with pytest.raises(InvalidValueError, match="no clocks keep all pipelines together below 1 W"):
        hold_pace(coordinator.address, TOKEN, watts=1.0)
    for seconds, words in ((1e-3, "no clocks finish"), (3600.0, "no clocks make")):
        with pytest.raises(InvalidValueError, match=words):
            hold_pace(coordinator.address, TOKEN, seconds=seconds)
    with pytest.raises(InvalidValueError, match="a wrong token"):
        hold_pace(coordinator.address, "another", watts=1.0)
