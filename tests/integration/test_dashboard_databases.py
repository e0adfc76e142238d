"""The dashboard shows the same on every database."""

import asyncio
import json

import pytest

from joulery.jobs import Request
from joulery.server._app import create_app
from joulery.server._cluster_page import ClusterWatch
from joulery.server._config import LIMITS
from joulery.storage import Store
from support.caller import Caller
from support.dashboard_store import AGENT_STATUS, fill_for_dashboard

pytestmark = pytest.mark.slow
NOW = 1.8e9


class Visitor:
    """Reads pages of a store as a browser does, at a fixed time.

    Args:
        store: Store that is filled now.
        folder: Folder of a cluster's agent.
    """

    def __init__(self, store, folder):
        self.jobs = fill_for_dashboard(store, NOW)
        self.caller = Caller(store, LIMITS)
        self.caller.clock.sleep(NOW - self.caller.clock.wall())
        self.caller.application = create_app(self.caller.context, cluster=ClusterWatch(folder))
        self._cookie = self.caller.browser()

    def page(self, path, method="GET", body=b""):
        """Status and text of a page."""
        asked = self.caller.ask(method, path, body, "none", headers=self._cookie)
        status, _, text = asyncio.run(asked)
        return status, text.decode()


@pytest.fixture(scope="module")
def visitors(tmp_path_factory, postgresql):
    """Visitors of the same history on SQLite and on PostgreSQL."""
    folder = tmp_path_factory.mktemp("dashboard")
    (folder / "status.json").write_text(json.dumps(AGENT_STATUS))
    places = folder / "store.sqlite", postgresql.new_database()
    with Store.open(places[0]) as first, Store.open(places[1]) as second:
        yield Visitor(first, folder), Visitor(second, folder)


PAGES = {
    "/": "Energy saved",
    "/jobs": "6 of 6 jobs",
    "/jobs?sort=name&q=nightly": "1 of 6 jobs",
    "/jobs?sort=used": "6 of 6 jobs",
    "/jobs/{job}": "Cost of a run by batch size",
    "/jobs/{job}?eta=0.2": "With eta 0.2",
    "/jobs/{job}?slowdown=5": "With least energy",
    "/jobs/{new}": "No decision has been made yet",
    "/jobs/{job}/runs/1": "measured (NVML energy counter)",
    "/jobs/{job}/runs/{running}": "last heartbeat",
    "/jobs/{job}/runs/99999": "Not Found",
    "/jobs/999": "Not Found",
    "/cluster": "Jobs, the slowest first",
}


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_the_same_on_both(visitors, path):
    """If this fails, a page is wrong or missing on one of the databases."""
    shown = []
    for visitor in visitors:
        number = visitor.jobs["resnet-nightly"]
        with visitor.caller.context.store.reading() as transaction:
            running = max(one.sequence for one in transaction.decisions(number, 0, 1000))
        names = {"job": number, "new": visitor.jobs["brand-new"], "running": running}
        shown.append(visitor.page(path.format(**names)))
    assert shown[0] == shown[1]
    status, text = shown[0]
    assert status == (404 if "999" in path else 200)
    assert PAGES[path] in text


def test_a_job_is_paused_and_followed_on_both(visitors):
    """If this fails, people on one of the databases cannot act, or do not see what happens."""
    for visitor in visitors:
        number = visitor.jobs["first-run"]
        assert visitor.page(f"/jobs/{number}/pause", "POST", b"paused=1")[0] == 303
        assert "paused" in visitor.page(f"/jobs/{number}")[1]
        assert visitor.page(f"/jobs/{number}/pause", "POST", b"paused=0")[0] == 303
        before = visitor.page(f"/jobs/{number}")[1]
        visitor.caller.context.jobs.decide(number, Request("another"))
        after = visitor.page(f"/jobs/{number}")[1]
        assert after.count("under way") > before.count("under way")
