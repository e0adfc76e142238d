"""Journey: someone who has no GPU sees a month of a small team on the dashboard."""

import http.client
import json
import re
import signal
import time

import pytest

from support.server_process import log_in

pytestmark = pytest.mark.slow


def page(address, headers, path):
    """Text of a page."""
    browser = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    browser.request("GET", path, headers=headers)
    answer = browser.getresponse()
    text = answer.read().decode()
    browser.close()
    assert answer.status == 200, text
    return text


def wait_until(holds):
    """Wait for what a server does in the background."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("it does not come to hold")


def test_a_month_of_a_team_is_served(world):
    """A newcomer sees an empty product, or simulated figures that look measured."""
    seed = str(world.draw.randrange(1000))
    arguments = ("--serve", "--listen", "127.0.0.1:0", "--out", "demo", "--seed", seed, "--json")
    with world.start("demo", *arguments) as server:
        try:
            ready = json.loads(server.stdout.readline())
            headers = log_in(ready["address"], ready["token"])
            overview = page(ready["address"], headers, "/")
            tiles = re.findall(r"<div><dt>.*?</div>", overview, re.DOTALL)
            saved = [tile for tile in tiles if "saved" in tile and "kWh is unknown" not in tile]
            assert saved
            assert all("simulated" in tile for tile in saved)
            power = re.compile(r"[\d.]+ kW now, of 1 of 1 run")
            wait_until(lambda: power.search(page(ready["address"], headers, "/")))
            for words in (
                "everything here is simulated",
                "resnet-nightly",
                "Running now",
                "in quarantine",
                "runs of every kind",
            ):
                assert words in overview, words
            assert "llama-3-8b-lora" in page(ready["address"], headers, "/runs?q=llama")
            assert "every figure here is simulated" in page(ready["address"], headers, "/runs/1")
            jobs = page(ready["address"], headers, "/jobs?q=keyword")
            job = re.search(r"/jobs/\d+", jobs)[0]
            assert "release the report" in page(ready["address"], headers, job)
        finally:
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=60)
    assert server.returncode == 0
    assert "wall_seconds" not in errors  # a log is not for the person at the terminal
    runs = world.joulery("runs", "list", "--store", ready["store"], "--team", "vision")["runs"]
    assert runs[0]["name"] == "resnet-nightly"
    assert all(run["ended"] for run in runs)
