"""Journey: a running engine is metered, tuned and swept; its boards are as before afterwards."""

import gzip
import json
import re
import signal
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import pytest

from joulery.serving import (
    LatencyObjective,
    ServedRequest,
    Tuner,
    serving_board,
    synthetic_trace,
)
from joulery.testing.engine import StandInEngine
from support.server_process import ServerProcess, log_in

pytestmark = pytest.mark.slow
# Time for what takes 2 s on an idle machine, and is judged on a virtual clock in the unit tests.
PATIENCE_SECONDS = 60.0
# A tuner slows a board down after some requests: short ones come sooner.
PACE = 3.0


def draw_requests(draw, rate=None, pace=1.0):
    """Traffic of drawn rate and lengths.

    With a pace, requests come so many times as often and are as much shorter: the same load.
    """
    rate = rate or draw.uniform(1.0, 2.5)
    lengths = {"prompt_tokens": draw.uniform(200, 800), "output_tokens": draw.uniform(40, 120)}
    lengths = {name: length / pace for name, length in lengths.items()}
    return synthetic_trace(lambda _: pace * rate, 300.0, seed=draw.randrange(10**6), **lengths)


def draw_regular_requests(draw):
    """Traffic of equal requests at equal intervals: seconds of it say what a minute would."""
    prompt, output, rate = draw.randrange(100, 400), draw.randrange(20, 40), draw.uniform(2.0, 3.0)
    return [ServedRequest(number / rate, prompt, output) for number in range(int(300 * rate))]


@contextmanager
def running_engine(world, requests=None, pace=1.0, **options):
    """A stand-in engine on the world's board, with this traffic or a drawn one."""
    requests = requests or draw_requests(world.draw, pace=pace)
    board = serving_board(world.board.name)
    with StandInEngine(requests, board, node=world.node, **options) as engine:
        yield engine


def wait_for(condition):
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def roomy(world):
    """Bounds that leave room at any of the drawn loads."""
    return world.draw.uniform(3.0, 6.0), world.draw.uniform(0.4, 0.8)


def tune_arguments(world, engine):
    """Options of `joulery serving tune` with roomy bounds."""
    ttft, tpot = roomy(world)
    return ["serving", "tune", "--engine", engine.url, "--ttft", f"{ttft}s", "--tpot", f"{tpot}s"]


@contextmanager
def collector():
    """Address of a stand-in for OpenTelemetry's collector, and the latest points by name."""
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    points = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            """Take the metrics of a request."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            request = service.ExportMetricsServiceRequest.FromString(body)
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    labels = {entry.key: entry.value.string_value for entry in point.attributes}
                    points[metric.name, labels.get("gen_ai.token.type")] = point
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", points
        server.shutdown()


def test_a_metered_service_has_figures_with_bars(world, tmp_path):
    """Joules of prompts and answers are missing, absurd, outside their bars, or told otherwise."""
    log, exported = tmp_path / "readings.csv", tmp_path / "serving.prom"
    requests = draw_requests(world.draw, rate=world.draw.uniform(2.0, 3.0))
    with running_engine(world, requests) as engine, collector() as (address, points):
        before, began = world.node.true_joules(0), time.monotonic()
        document = world.joulery(
            *("serving", "meter", "--engine", engine.url, "--seconds", "12"),
            *("--csv", str(log), "--prometheus", str(exported), "--opentelemetry"),
            OTEL_EXPORTER_OTLP_ENDPOINT=address,
        )
        joules, elapsed = world.node.true_joules(0) - before, time.monotonic() - began
        prefill, decode = engine.truth()
    assert document["engine"] == "vLLM"
    # The command takes its time to start, in which the board draws power too.
    assert 0.7 * joules * document["seconds"] / elapsed < document["joules"] < 1.05 * joules
    text = exported.read_text()
    for name, truth, kind in (("prefill", prefill, "input"), ("decode", decode, "output")):
        figure = document[f"{name}_joules_per_token"]
        assert abs(figure["value"] - truth) < 5 * figure["error"] + 0.25 * truth, name
        assert f'{name}_joules_per_token{{engine="vLLM"}} {figure["value"]}\n' in text
        sent = points["gen_ai.server.token.energy", kind].as_double
        assert sent == pytest.approx(figure["value"])
    alone = document["by_model"]["stand-in"]
    tokens = [document[f"{name}_tokens"] for name in ("prompt", "generation")]
    assert [alone["prompt_tokens"], alone["generation_tokens"]] == pytest.approx(tokens)
    # Requests before the first reading count for these, which are those of the engine.
    assert points["gen_ai.server.token.usage", "output"].as_double >= tokens[1]
    assert points["gen_ai.server.time_to_first_token", None].count > 10
    assert points["hw.energy", None].as_double == pytest.approx(document["joules"], rel=0.02)
    assert len(log.read_text().splitlines()) > 5
    assert f'joules_total{{engine="vLLM"}} {document["joules"]}' in text
    drawn = json.dumps(world.joulery("export", "--grafana"))
    assert set(re.findall(r"joulery_serving_\w+", drawn)) <= set(
        re.findall(r"^joulery_serving_\w+", text, re.MULTILINE)
    )


LATE_NAMES = {
    "SGLang": {
        "vllm:num_requests_running": "sglang:num_running_reqs",
        "vllm:num_requests_waiting": "sglang:num_queue_reqs",
        "vllm:prompt_tokens_total": "sglang:prompt_tokens_total",
        "vllm:generation_tokens_total": "sglang:generation_tokens_total",
        "vllm:request_success_total": "sglang:num_requests_total",
        "vllm:time_to_first_token_seconds": "sglang:time_to_first_token_seconds",
    },
    "llama.cpp": {
        "vllm:num_requests_running": "llamacpp:requests_processing",
        "vllm:num_requests_waiting": "llamacpp:requests_deferred",
        "vllm:prompt_tokens_total": "llamacpp:prompt_tokens_total",
        "vllm:generation_tokens_total": "llamacpp:tokens_predicted_total",
    },
}


@pytest.mark.parametrize("name", LATE_NAMES)
def test_tokens_counted_at_the_end_of_requests_get_no_energy(world, name):
    """Joules of a token are those of other tokens, and look like measured ones."""
    counted = {}

    def late(text):
        """A page of another engine, whose tokens count when a request has ended."""
        (ended,) = re.findall(r"^vllm:request_success_total.* (\S+)$", text, re.MULTILINE)
        for token in ("prompt", "generation"):
            counter = rf"^(vllm:{token}_tokens_total.*) (\S+)$"
            (line,) = re.findall(counter, text, re.MULTILINE)
            if counted.get(token, ("", ""))[0] != ended:
                counted[token] = ended, line[1]
            text = text.replace(" ".join(line), f"{line[0]} {counted[token][1]}")
        for old, new in LATE_NAMES[name].items():
            text = text.replace(old, new)
        return re.sub(r"^.*vllm:.*\n", "", text, flags=re.MULTILINE)

    with running_engine(world, pace=PACE, page=late) as engine:
        before = world.node.truth(0)
        document = world.joulery("serving", "meter", "--engine", engine.url, "--seconds", "5")
        after = world.node.truth(0)
    assert (document["engine"], "counted-late" in document["flags"]) == (name, True)
    watts = (after.joules - before.joules) / (after.now_seconds - before.now_seconds)
    assert document["joules"] / document["seconds"] == pytest.approx(watts, rel=0.25)
    for token in ("prefill", "decode"):
        assert document[f"{token}_joules_per_token"]["value"] is None
    for model in document["by_model"].values():
        assert model["joules"] is None


def test_a_tuned_service_keeps_its_bounds_on_less_power(world, tmp_path):
    """Tuning saves nothing, breaks roomy bounds, leaves the clock locked, or is seen by nobody."""
    with (
        ServerProcess(tmp_path / "server.sqlite") as server,
        running_engine(world, pace=PACE) as engine,
    ):
        _, token = server.token("chat", "work")
        team = {"JOULERY_STORE": server.address, "JOULERY_TOKEN": token, "JOULERY_TEAM": "chat"}
        arguments = [*tune_arguments(world, engine), "--seconds", "12"]
        document = world.joulery(*arguments, **team)
        lowered = sum(s for name, s in document["seconds_at"].items() if name != "as found")
        assert lowered > 3.0, document["trouble"]
        assert document["attained"]["ttft"] > 0.95
        # How much is saved in seconds of real time depends on the machine; that it is, is judged
        # on a virtual clock (test_serving_simulate.py).
        assert document["saved"] is not None
        assert wait_for(lambda: not engine.is_slowed)
        (run,) = server.ask("GET", "/v1/teams/chat/runs", token=token).document["runs"]
        assert (run["name"], run["kind"], run["ended"]) == ("stand-in on vLLM", "serving", True)
        assert run["energy_saving"] == pytest.approx(document["saved"])
        assert run["setting"].startswith("mostly")
        assert [device["joules"] > 0 for device in run["devices"]] == [True]
        assert run["tags"]["generated token"] != "unknown"
        address = f"{server.address}/runs/{run['id']}"
        request = Request(address, headers=log_in(server.address, token))  # noqa: S310
        with urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
            page = answer.read().decode()
        for words in ("Power by device", "reported by serving", "generated token"):
            assert words in page, words


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tuner_that_ends_leaves_the_original_clock(world, number):
    """A killed tuner leaves a slow service behind."""
    with (
        running_engine(world, pace=PACE) as engine,
        world.start(*tune_arguments(world, engine)) as tuner,
    ):
        assert wait_for(lambda: engine.is_slowed)
        tuner.send_signal(number)
        assert wait_for(lambda: not engine.is_slowed)
        tuner.communicate(timeout=60)


def test_an_engine_that_fails_gets_full_power_back(world):
    """Boards stay slow while nobody knows what the engine does."""
    release, faults = threading.Event(), []

    def page(text):
        fault = faults[-1] if faults else None
        if fault == "hang":
            release.wait(300.0)
        return {"empty": "", "renamed": text.replace("vllm:", "other:")}.get(fault, text)

    world.node.load_in_process()
    objective = LatencyObjective(*roomy(world))
    with (
        running_engine(world, pace=PACE, page=page) as engine,
        Tuner(engine.url, objective, devices=_boards()) as tuner,
    ):
        for fault in ("empty", "renamed", "hang"):
            assert wait_for(lambda: engine.is_slowed), (fault, tuner.report().trouble)
            failures = tuner.report().failures
            faults.append(fault)
            told = lambda failures=failures: tuner.report().failures > failures  # noqa: E731
            assert wait_for(told), fault
            assert wait_for(lambda: not engine.is_slowed), fault
            faults.clear()
        release.set()
        assert wait_for(lambda: engine.is_slowed), tuner.report().trouble


def _boards():
    from joulery.hardware import DeviceKind, discover

    return [device for device in discover() if device.info.kind is DeviceKind.GPU]


def test_a_sweep_shows_the_service_by_clock(world):
    """A sweep mixes up settings, or says nothing about latency and energy."""
    with running_engine(world, draw_regular_requests(world.draw)) as engine:
        document = world.joulery(
            "serving", "sweep", "--engine", engine.url, "--settings", "3", "--seconds", "6"
        )
        rows = document["settings"]
        assert rows[0]["setting"] == "as found"
        assert rows[-1]["watts"] < rows[0]["watts"] * 1.1
        assert all(row["tokens_per_second"] > 0 for row in rows)
        assert rows[-1]["tpot_seconds"][0] >= 0.9 * rows[0]["tpot_seconds"][0]
        assert not engine.is_slowed
