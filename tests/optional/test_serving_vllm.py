"""A real vLLM beside emulated boards; JOULERY_VLLM is the address of one that serves any model."""

import json
import os
import subprocess
import sys
import threading
import urllib.request

import pytest

from joulery.serving import EngineClient, EngineReader
from joulery.testing.emulator import EmulatedNode

URL = os.environ.get("JOULERY_VLLM", "")
pytestmark = pytest.mark.skipif(not URL, reason="JOULERY_VLLM names no running engine")


def post(path, document):
    """Answer of the engine to a request."""
    body, head = json.dumps(document).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, body, head)  # noqa: S310 - the tester's own engine
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


@pytest.fixture
def traffic():
    """Requests in a thread while a test runs, and the tokens that the engine says it generated."""
    with urllib.request.urlopen(f"{URL}/v1/models", timeout=60) as answer:  # noqa: S310
        model = json.load(answer)["data"][0]["id"]
    ended, tokens = threading.Event(), []
    prompt = {"model": model, "prompt": "joules of a token " * 10, "max_tokens": 16}

    def load():
        while not ended.is_set():
            tokens.append(post("/v1/completions", prompt)["usage"]["completion_tokens"])

    thread = threading.Thread(target=load)
    thread.start()
    yield tokens
    ended.set()
    thread.join()


def joulery(node, *arguments):
    """Document of a serving command on the emulated node."""
    command = [sys.executable, "-m", "joulery", "serving", *arguments, "--engine", URL, "--json"]
    environment = {**os.environ, **node.env}
    output = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    return json.loads(output.stdout)


def test_a_real_engine_is_metered_tuned_and_swept(traffic):
    """A name or unit of a real vLLM is not what the reader takes it for."""
    client = EngineClient(URL)
    reader = EngineReader(client.find_metrics())
    before = reader.read(client.fetch(), 0.0)
    with EmulatedNode(["H100"]) as node, node.driven():
        metered = joulery(node, "meter", "--seconds", "8s")
        tuned = joulery(node, "tune", "--seconds", "8s", "--ttft", "5s", "--tpot", "1s")
        swept = joulery(node, "sweep", "--seconds", "4s", "--settings", "2")
    generated = reader.read(client.fetch(), 60.0).generation_tokens - before.generation_tokens
    client.close()
    # One request may be under way at either end.
    assert abs(generated - sum(traffic)) <= 32
    assert metered["engine"] == "vLLM"
    assert metered["origin"] == "simulated"
    assert metered["generation_tokens"] > 0
    assert (tuned["failures"], tuned["restarts"]) == (0, 0)
    assert 0 < tuned["latencies"]["ttft"][0] < 5
    assert all(row["tokens_per_second"] > 0 for row in swept["settings"])
