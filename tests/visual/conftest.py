"""A real server over a filled store, and a real browser that looks at it."""

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from joulery.storage import Store
from support.dashboard_store import AGENT_STATUS, fill_for_dashboard
from support.saved_plans import save_plans
from support.server_process import ServerProcess

_CHROMIUM = "/usr/bin/chromium"
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium."""
    if not Path(_CHROMIUM).exists() and os.environ.get("CI") != "true":
        pytest.skip("no Chromium is installed (scripts/install-components)")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=_CHROMIUM, args=_FLAGS.split())
        yield found
        found.close()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Path of a filled store, and the numbers of its jobs."""
    path = tmp_path_factory.mktemp("dashboard") / "store.sqlite"
    with Store.open(path) as store:
        return path, fill_for_dashboard(store, time.time())


@pytest.fixture(scope="module")
def server(jobs):
    """A server of that store."""
    options = ["--price", "0.30", "--currency", "EUR", "--grid", "DE"]
    state = jobs[0].parent / "agent"
    (state / "events").mkdir(parents=True)
    (state / "status.json").write_text(json.dumps(AGENT_STATUS | {"at": time.time()}))
    options += ["--cluster-state", str(state)]
    plans = jobs[0].parent / "plans"
    save_plans(plans)
    options += ["--plans", str(plans)]
    with ServerProcess(jobs[0], options) as process:
        yield process


class Visitor:
    """A person at a page.

    Args:
        page: Page of the browser.
        server: Server to look at.
    """

    def __init__(self, page, server):
        self.page, self.server = page, server
        self.complaints = []
        page.on("console", lambda said: self._hear(said.type, said.text))
        page.on("pageerror", lambda error: self._hear("error", str(error)))

    def _hear(self, kind, text):
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def log_in(self, token=None):
        """Log in, from wherever the browser is."""
        self.page.goto(self.server.address + "/login")
        self.page.fill("#token", token or self.server.admin_token)
        self.page.click("button.main")
        self.page.wait_for_selector("nav")

    def goto(self, path):
        """Open a page."""
        return self.page.goto(self.server.address + path)


@pytest.fixture
def visit(browser, server):
    """A visitor with a screen of a kind; the browser must have nothing to complain about."""

    @contextmanager
    def visiting(width=1280, theme="light", token=None, *, scripts=True, zone="UTC"):
        context = browser.new_context(
            viewport={"width": width, "height": 844},
            color_scheme=theme,
            java_script_enabled=scripts,
            timezone_id=zone,
        )
        visitor = Visitor(context.new_page(), server)
        visitor.log_in(token)
        try:
            yield visitor
        finally:
            context.close()
        assert not visitor.complaints

    return visiting
