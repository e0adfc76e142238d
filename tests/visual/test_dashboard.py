"""The dashboard in a real browser."""

import gzip
import json
import os
import runpy
import struct
import time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from joulery.jobs import JobService, Request
from joulery.storage import Store
from support.dashboard_store import copy_job

ROOT = Path(__file__).parents[2]
# Those in the first line on every kind of screen.
PATHS = (
    *("/", "/jobs/{job}", "/jobs/{job}/runs/{live}", "/plans/gpt.json"),
    *("/jobs", "/cluster", "/jobs/{job}/runs/1", "/jobs/{new}", "/jobs/999"),
    *("/plans", "/plans/llama.json", "/plans/torn.json"),
)


def serious(page):
    """What axe finds that keeps people out."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def tell(server, decision, number, boards=2):
    """Send the heartbeat of a run that is twelve seconds older than before."""
    devices = [
        {"name": f"A100 {board}", "watts": 150.0 + number % 7, "clock_hertz": 1.2e9 - 1e7 * board}
        | {"limit_watts": 200.0 if number < 3 else 160.0}
        for board in range(boards)
    ]
    phase = "profiling 200 W" if number < 3 else "holding 160 W"
    live = {"phase": phase, "steps_per_second": 3.0, "devices": devices, "processes": 2}
    # What is stored must be possible: no longer than the decision is old.
    seconds = 12.0 * number if number else 1e-3
    progress = {"end": "abandoned", "epochs": 0, "seconds": seconds, "joules": 150.0 * seconds}
    body = {"progress": progress, "live": live | {"seconds": seconds}}
    path = f"/v1/decisions/{decision['id']}/heartbeat"
    assert server.ask("POST", path, body, decision["token"]).status == 200


@pytest.fixture
def watched(server, jobs):
    """A run under way that reports to the server, and the path of its page."""
    job = jobs[1]["resnet-nightly"]
    decision = server.decide(job, f"watched {time.monotonic()}")
    for number in range(8):
        tell(server, decision, number)
    return decision, f"/jobs/{job}/runs/{decision['id'].partition('.')[2]}"


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_every_page_is_accessible_and_fits_the_screen(visit, jobs, watched, width, theme):
    """If this fails, some people cannot use a page, or have to scroll it sideways."""
    names = {"job": jobs[1]["resnet-nightly"], "new": jobs[1]["brand-new"]}
    names["live"] = watched[1].rpartition("/")[2]
    with visit(width, theme) as visitor:
        for path in PATHS if (width, theme) == (1280, "light") else PATHS[:4]:
            visitor.goto(path.format(**names))
            assert serious(visitor.page) == [], path
            across = visitor.page.evaluate("document.documentElement.scrollWidth")
            assert across <= width, path
        assert all("404" in text for text in visitor.complaints)
        visitor.complaints.clear()


def test_the_overview_says_what_was_saved_and_what_needs_attention(visit):
    """If this fails, the first page does not answer the first questions."""
    with visit() as visitor:
        text = visitor.page.inner_text("main")
        assert "Energy saved" in text
        assert "±" in text
        assert "EUR" in text
        assert "built-in yearly mean of DE" in text
        assert "100 % measured" in text
        for words in ("paused", "1 report in quarantine", "1 run never reported"):
            assert words in text
        visitor.page.click("#lists >> text=resnet-nightly")
        visitor.page.wait_for_selector("text=Search path")


def test_an_objective_is_tried_by_moving_a_slider(visit, jobs):
    """If this fails, nobody learns what another objective would choose without trying it."""
    with visit() as visitor:
        visitor.goto(f"/jobs/{jobs[1]['resnet-nightly']}")
        page = visitor.page
        page.focus("#eta")
        page.keyboard.press("End")
        page.wait_for_selector("#choice p >> text=With eta 1:")
        assert "eta=1" in page.url
        assert "at 100 W" in page.inner_text("#choice p")
        page.fill("#slowdown", "0")
        page.wait_for_selector("#choice p >> text=more time")
        assert "longest time allowed" in page.inner_html("#choice")


def test_an_objective_is_tried_without_scripts(visit, jobs):
    """If this fails, pages depend on scripts."""
    with visit(scripts=False) as visitor:
        visitor.goto(f"/jobs/{jobs[1]['resnet-nightly']}")
        visitor.page.fill("#slowdown", "5")
        visitor.page.click("text=Show")
        assert "least energy" in visitor.page.inner_text("#choice p")


def test_a_page_changes_when_a_job_does(visit, jobs):
    """If this fails, people have to reload to see what happens."""
    path, numbers = jobs
    with visit() as visitor:
        visitor.goto(f"/jobs/{numbers['first-run']}")
        assert "under way" not in visitor.page.inner_text("#job")
        with Store.open(path) as store:
            JobService(store).decide(numbers["first-run"], Request("live"))
        visitor.page.wait_for_selector("#job >> text=under way", timeout=60_000)


def test_a_run_is_followed_without_reloading(visit, server, watched):
    """If this fails, people who watch a run see what it was doing, not what it does."""
    decision, path = watched
    with visit(390) as visitor:
        visitor.goto(path)
        page = visitor.page
        assert "resnet-nightly, recurrence" in page.inner_text("h1")
        assert "holding 160 W" in page.inner_text("#run")
        assert "Core clock by device" in page.inner_text("#run")
        page.evaluate("window.stays = true")
        page.focus("#run .wide >> nth=-1")
        page.evaluate("document.activeElement.scrollLeft = 40")
        tell(server, decision, 100)
        page.wait_for_selector("#run >> text=20 min", timeout=60_000)
        assert page.evaluate("window.stays")
        # Neither the place in a table nor that of the keyboard is lost.
        assert page.evaluate("document.activeElement.scrollLeft") == 40


def test_a_job_is_paused_only_with_the_right_to(visit, server, jobs):
    """If this fails, readers change what others run, or managers cannot."""
    number = jobs[1]["detector-zeus"]
    with visit() as visitor:
        visitor.goto(f"/jobs/{number}")
        visitor.page.click("text=Pause")
        visitor.page.click("text=Resume")
        visitor.page.wait_for_selector("text=Pause")
    with visit(token=server.token("vision", "read")[1]) as visitor:
        visitor.goto(f"/jobs/{number}")
        assert visitor.page.query_selector("#pause") is None
        visitor.goto(f"/jobs/{jobs[1]['wav2vec-weekly']}")
        assert "belongs to another team" in visitor.page.inner_text("main")
        visitor.complaints.clear()  # of that answer's status


def test_an_event_is_announced(visit, jobs):
    """If this fails, nobody can ask the cluster for less power from the dashboard."""
    with visit() as visitor:
        visitor.goto("/cluster")
        assert "node3 does not answer" in visitor.page.inner_text("main")
        for name, value in (("id", "evening"), ("reduce", "25"), ("minutes", "60")):
            visitor.page.fill(f"[name={name}]", value)
        visitor.page.click("text=Announce >> nth=-1")
        visitor.page.wait_for_selector("text=Announce event evening?")
        visitor.page.click("button >> text=Announce")
        visitor.page.wait_for_selector("h1 >> text=Cluster")
        folder = jobs[0].parent / "agent" / "events"
        assert json.loads((folder / "evening.json").read_text())["reduction"] == 0.25


def test_a_chart_tells_its_values_zooms_and_is_saved(visit, jobs):
    """If this fails, people read values off a chart by eye, or copy them by hand."""
    with visit() as visitor:
        page = visitor.page
        visitor.goto(f"/jobs/{jobs[1]['resnet-nightly']}")
        figure = page.locator("figure[data-chart]", has_text="Cost by recurrence")
        figure.scroll_into_view_if_needed()
        box = figure.locator("svg").first.bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 0.6 * box["width"], middle)
        assert "recurrence" in page.inner_text(".tip")
        assert " kJ" in page.inner_text(".tip")
        ticks = figure.locator("svg .ticks").first
        whole = ticks.text_content()
        page.mouse.down()
        page.mouse.move(box["x"] + 0.8 * box["width"], middle, steps=4)
        page.mouse.up()
        assert ticks.text_content() != whole
        figure.get_by_role("button", name="Show all of").click()
        assert ticks.text_content() == whole
        with page.expect_download() as saved:
            figure.get_by_role("button", name="Save figures").click()
        lines = Path(saved.value.path()).read_text().splitlines()
        assert lines[0] == '"series","recurrence","cost in kJ","one standard error"'
        assert len(lines) > 60
        with page.expect_download() as saved:
            figure.get_by_role("button", name="Save picture").click()
        picture = Path(saved.value.path()).read_text()
        assert picture.startswith("<svg")
        assert "var(--" not in picture


def test_the_keyboard_reaches_the_values_of_points(visit, jobs):
    """If this fails, only people with a mouse learn what a point stands for."""
    with visit() as visitor:
        visitor.goto(f"/jobs/{jobs[1]['resnet-nightly']}")
        visitor.page.locator(".screen svg g[tabindex]").first.focus()
        assert "batch size" in visitor.page.inner_text(".tip")


def test_the_overview_is_picked_by_range_unit_and_measure(visit):
    """If this fails, savings of a week or a year, in money or CO2, cannot be seen."""
    with visit() as visitor:
        page = visitor.page
        page.select_option("[name=range]", "365")
        page.wait_for_selector("text=Energy saved by week")
        page.select_option("[name=unit]", "month")
        page.wait_for_selector("text=Energy saved by month")
        page.select_option("[name=measure]", "money")
        page.wait_for_selector("text=Money used by month")
        assert "range=365" in page.url
        page.fill("[name=from]", "2020-01-01")
        page.fill("[name=to]", "2020-01-31")
        page.wait_for_selector("#overview >> text=0 recurrences")


def test_assets_are_light(visit):
    """If this fails, a page takes seconds on a phone."""
    with visit() as visitor:
        sizes = [
            len(gzip.compress(visitor.page.request.get(visitor.server.address + path).body()))
            for path in ("/assets/dashboard.css", "/assets/dashboard.js", "/assets/charts.js")
        ]
        assert sum(sizes) < 60_000


def test_scripts_cannot_read_the_token(visit):
    """If this fails, a script that someone smuggles in steals the token."""
    with visit() as visitor:
        assert "joulery_session" not in visitor.page.evaluate("document.cookie")
        cookies = {cookie["name"]: cookie for cookie in visitor.page.context.cookies()}
        session = cookies["joulery_session"]
        assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
        visitor.page.click("text=Log out")
        visitor.page.wait_for_selector("#token")
        names = {cookie["name"] for cookie in visitor.page.context.cookies()}
        assert names <= {"joulery_zone"}


def test_dates_are_in_the_time_zone_of_the_browser(visit):
    """If this fails, people read when something happened in a place that they are not in."""
    with visit(zone="America/New_York") as visitor:
        assert "times in America/New_York" in visitor.page.inner_text("footer")
        visitor.goto("/jobs")
        now = datetime.now(ZoneInfo("America/New_York"))
        assert f"{now:%Y-%m-%d}" in visitor.page.inner_text("#jobs")


def test_ten_thousand_jobs_stay_quick(visit, jobs):
    """If this fails, the page of a large team is slow."""
    path, numbers = jobs
    with Store.open(path) as store:
        store.write(copy_job(numbers["first-run"], 10_000))
    with visit() as visitor:
        outstanding = True
        while outstanding:  # figures are added up once, while pages are shown
            page = visitor.page.request.get(visitor.server.address + "/jobs").text()
            outstanding = "being added up" in page
        visitor.goto("/jobs?sort=name&page=100")
        assert "10,006 of 10,006 jobs" in visitor.page.inner_text("#jobs")
        assert len(visitor.page.query_selector_all("tbody tr")) == 50
        for address in ("/", "/jobs", "/jobs?q=copy+077"):
            before = processor_seconds(visitor.server)
            visitor.goto(address)
            assert processor_seconds(visitor.server) - before < 1.0, address
            assert len(visitor.page.content()) < 100_000


def processor_seconds(server):
    """What a server has used of the processor; time by the clock is that of the machine's load."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_many_tabs_share_one_stream(visit):
    """The seventh tab waits for a connection, since a browser opens six to a server."""
    with visit() as visitor:
        context, address = visitor.page.context, visitor.server.address
        tabs = [context.new_page() for _ in range(8)]
        for tab in tabs:
            tab.goto(f"{address}/jobs", timeout=60_000)
        for tab in tabs:
            tab.wait_for_selector("#live >> text=live", timeout=60_000)
        for tab in tabs:
            tab.close()


def put_run(server, name, watts, **more):
    """A run of ten seconds, as a training reports it."""
    curve = {"quantity": "watts", "device": "A40", "points": [[1, watts], [9, watts]]}
    run = {
        "key": name,
        "name": name,
        "started_wall_seconds": 1.7e9,
        "seconds": 10.0,
        "joules": 10 * watts,
        "devices": [{"name": "A40", "joules": 10 * watts}],
        "curves": [curve],
    }
    answer = server.ask("PUT", "/v1/teams/vision/runs", run | more)
    assert answer.status == 204, answer.body


def test_runs_are_searched_opened_and_compared(visit):
    """Someone looks for a run and does not find it, or what made it differ."""
    with visit() as visitor:
        for number, watts in enumerate((300.0, 200.0)):
            put_run(visitor.server, f"tune {number}", watts)
        page = visitor.page
        visitor.goto("/runs")
        page.fill("[name=q]", "TUNE")
        page.click("button >> text=Search")
        page.wait_for_selector("text=2 runs")
        page.check("[aria-label^='compare tune 0']")
        page.check("[aria-label^='compare tune 1']")
        page.click("button >> text=Compare")
        page.wait_for_selector("text=Power of all devices")
        assert "−33.3 %" in page.inner_text("main") or "+50.0 %" in page.inner_text("main")
        visitor.goto("/runs")
        page.click("text=tune 1")
        page.wait_for_selector("text=Energy by device")


def test_the_table_of_runs_fits_a_screen(visit):
    """The boards of a run are seen only by scrolling sideways."""
    saved = {"energy_saving": 0.125, "slowdown": 0.1, "objective": "least-energy:slowdown=10%"}
    more = saved | {"setting": "350 W, batch size 128", "host": "gpu-03", "origin": "simulated"}
    boards = [{"name": f"NVIDIA A100-SXM4-80GB {i}", "joules": 750.0} for i in range(4)]
    with visit() as visitor:
        put_run(
            visitor.server, "keyword-nightly", 300.0, seconds=1e4, devices=boards, **more, curves=[]
        )
        visitor.goto("/runs?q=keyword-nightly")
        assert visitor.page.inner_text("tbody td >> nth=-1").startswith("NVIDIA A100")
        sizes = "table => [table.clientWidth, table.scrollWidth]"
        width, needed = visitor.page.eval_on_selector(".wide", sizes)
        assert needed <= width


def test_the_tools_of_a_chart_leave_its_axis_visible(visit, jobs):
    """On a phone, the title of the x axis is hidden by the buttons for saving."""
    with visit(390) as visitor:
        visitor.goto(f"/jobs/{jobs[1]['resnet-nightly']}")
        picture = visitor.page.locator("figure svg:visible").first.bounding_box()
        tools = visitor.page.locator("figure .tools:visible").first.bounding_box()
        assert tools["y"] + tools["height"] <= picture["y"]


def test_pictures_for_the_docs_are_taken(browser, server, tmp_path):
    """The pictures in the docs can no longer be made anew, and show pages of the past."""
    put_run(server, "pictured", 250.0)
    names = runpy.run_path(str(ROOT / "scripts" / "dashboard_images.py"))
    names["take_pictures"](browser, server.address, server.admin_token, tmp_path)
    for name, _, height in names["PICTURES"]:
        header = (tmp_path / f"dashboard-{name}.png").read_bytes()[:24]
        assert struct.unpack(">II", header[16:]) == (names["WIDTH"], height)
