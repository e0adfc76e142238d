"""Pages of the dashboard under any query, form, cookie and file: never an internal error."""

import asyncio
import copy
import json
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from joulery.server._app import create_app
from joulery.server._cluster_page import ClusterWatch
from joulery.server._config import LIMITS
from joulery.server._pages import ZONE_COOKIE
from joulery.storage import Store
from support.caller import Caller
from support.dashboard_store import AGENT_STATUS, fill_for_dashboard
from support.saved_plans import save_plans

NOW = 1.8e9
QUICKLY = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
EXTREMES = ("1e308", "-1e308", "1e306", "5e-324", "nan", "inf", "-1", "0", "1e300", "9" * 4301, "")
TEXTS = st.sampled_from(EXTREMES) | st.floats().map(str) | st.text(max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


class Site:
    """A dashboard with jobs, a cluster and plans, and a browser that is logged in.

    Args:
        store: Empty store.
        folder: Folder for the files of agent and plans.
    """

    def __init__(self, store, folder):
        self.jobs = fill_for_dashboard(store, NOW)
        self.folder = folder
        (folder / "agent" / "events").mkdir(parents=True)
        save_plans(folder / "plans")
        self.plan = json.loads((folder / "plans" / "gpt.json").read_bytes())
        self.recommendation = json.loads((folder / "plans" / "llama.json").read_bytes())
        self.show_cluster(AGENT_STATUS)
        self.caller = Caller(store, LIMITS)
        self.caller.clock.sleep(NOW - self.caller.clock.wall())
        self.browser = self.caller.browser()
        watch = ClusterWatch(folder / "agent")
        self.caller.application = create_app(self.caller.context, None, watch, folder / "plans")

    def show_cluster(self, status):
        """Write the status of the agent."""
        (self.folder / "agent" / "status.json").write_text(json.dumps(status))

    def ask(self, path, form=None, zone=""):
        """Status of an answer; a form is posted."""
        ((name, session), *origin) = self.browser
        zone_cookie = f"; {ZONE_COOKIE}={quote(zone, safe='/')}".encode()
        headers = [(name, session + zone_cookie), *origin]
        body = b"" if form is None else urlencode(form).encode()
        method = "GET" if form is None else "POST"
        answer = self.caller.ask(method, path, body, "none", headers=headers)
        return asyncio.run(answer)[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """One site for all tests of this file."""
    folder = tmp_path_factory.mktemp("site")
    with Store.open(folder / "store.sqlite") as store:
        yield Site(store, folder)


@settings(QUICKLY, max_examples=12)  # each works out the figures of a job anew
@given(name=st.sampled_from(["eta", "slowdown"]), value=TEXTS)
def test_a_job_answers_any_objective(site, name, value):
    """If this fails, a slip in the form of a job ends in an internal error."""
    job = site.jobs["wav2vec-weekly"]
    assert site.ask(f"/jobs/{job}?{urlencode({name: value})}") == 200


@QUICKLY
@given(
    path=st.sampled_from(["/", "/jobs", "/runs", "/cluster", "/plans", "/login"]),
    query=st.dictionaries(
        st.sampled_from(["q", "sort", "page", "next", "range", "from", "to", "unit", "team"]),
        TEXTS,
        max_size=4,
    ),
    zone=st.sampled_from(["Europe/Berlin", "UTC", "../etc/passwd", "/etc", "Europe"]) | st.text(),
)
def test_lists_answer_any_query_and_time_zone(site, path, query, zone):
    """If this fails, a changed address or cookie ends in an internal error."""
    assert site.ask(f"{path}?{urlencode(query)}", zone=zone) < 500


@QUICKLY
@given(
    parts=st.lists(st.sampled_from(["jobs", "runs", "plans", "assets"]) | TEXTS, max_size=4),
)
def test_any_address_is_answered(site, parts):
    """If this fails, a wrong link ends in an internal error."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    assert site.ask(path) < 500


@QUICKLY
@given(
    path=st.sampled_from(["/login", "/cluster/events", "/jobs/1/pause", "/jobs/99/pause"]),
    form=st.dictionaries(
        st.sampled_from(["token", "next", "id", "reduce", "minutes", "paused"]), TEXTS
    ),
)
def test_forms_take_anything(site, path, form):
    """If this fails, a form that was filled in wrongly ends in an internal error."""
    assert site.ask(path, form) < 500
    for event in (site.folder / "agent" / "events").glob("*"):
        event.unlink()
    assert site.ask("/cluster") == 200


@QUICKLY
@given(name=st.sampled_from(sorted(AGENT_STATUS)), value=JSON)
def test_the_cluster_shows_any_file_or_says_why_not(site, name, value):
    """If this fails, a damaged file of the agent takes its page down."""
    site.show_cluster(AGENT_STATUS | {name: value})
    assert site.ask("/cluster") == 200
    site.show_cluster({key: old for key, old in AGENT_STATUS.items() if key != name})
    assert site.ask("/cluster") == 200
    site.show_cluster(value)
    assert site.ask("/cluster") == 200
    site.show_cluster(AGENT_STATUS)


@settings(QUICKLY, max_examples=30)
@given(data=st.data(), value=JSON)
def test_plans_show_any_file_or_say_why_not(site, data, value):
    """If this fails, a damaged plan takes the page of all plans down."""
    document = copy.deepcopy(data.draw(st.sampled_from([site.plan, site.recommendation])))
    branch, keys = document, sorted(document)
    for _ in range(4):
        key = data.draw(st.sampled_from(keys))
        if not (branch[key] and isinstance(branch[key], dict | list) and data.draw(st.booleans())):
            break
        branch = branch[key]
        keys = sorted(branch) if isinstance(branch, dict) else list(range(len(branch)))
        key = keys[0]
    branch[key] = value
    (site.folder / "plans" / "odd.json").write_text(json.dumps(document))
    assert site.ask("/plans") == 200
    assert site.ask("/plans/odd.json") == 200
