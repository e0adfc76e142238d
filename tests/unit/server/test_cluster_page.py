"""The page of a cluster: real empty states, and events only with the right to announce them."""

import asyncio
import json

import pytest

from joulery.errors import FileError
from joulery.server._app import create_app
from joulery.server._cluster_page import ClusterWatch
from joulery.server._config import LIMITS
from joulery.storage import Permission, Store, TokenRecord, add_token
from support.caller import Caller
from support.dashboard_store import AGENT_STATUS


@pytest.fixture
def caller(tmp_path):
    """A caller of an application that shows a cluster without a status yet."""
    (tmp_path / "agent" / "events").mkdir(parents=True)
    with Store.open(tmp_path / "store.sqlite") as store:
        found = Caller(store, LIMITS)
        found.application = create_app(found.context, None, ClusterWatch(tmp_path / "agent"))
        yield found


def ask(caller, method, path, token=None, body=b""):
    """Status and text of an answer to a browser that is logged in."""
    cookie = caller.browser(token)
    status, _, text = asyncio.run(caller.ask(method, path, body, "none", headers=cookie))
    return status, text.decode()


@pytest.mark.parametrize("content", [None, "", "[]", '{"at": 1}'])
def test_a_missing_or_broken_status_is_said(caller, tmp_path, content):
    """If this fails, an agent that is not running looks like an error of the server."""
    if content is not None:
        (tmp_path / "agent" / "status.json").write_text(content)
    status, text = ask(caller, "GET", "/cluster")
    assert status == 200
    assert "joulery cluster agent" in text
    watch = ClusterWatch(tmp_path / "agent")
    watch.sample()
    assert watch.history == ()
    with pytest.raises(FileError):
        watch.look()


EVENT = b"id=peak&reduce=25&minutes=60&confirmed=1"


@pytest.mark.parametrize(
    ("team", "right", "body", "status"),
    [
        ("*", Permission.MANAGE, EVENT, 303),
        ("*", Permission.WORK, EVENT, 403),
        ("vision", Permission.MANAGE, EVENT, 403),
        ("*", Permission.MANAGE, b"id=peak&reduce=100&minutes=60", 422),
        ("*", Permission.MANAGE, b"id=peak&reduce=x&minutes=60", 422),
        ("*", Permission.MANAGE, b"id=..%2Fpeak&reduce=25&minutes=60", 422),
        ("*", Permission.MANAGE, b"id=peak&reduce=25&minutes=-1", 422),
    ],
)
def test_events_are_announced_by_those_who_may(caller, tmp_path, team, right, body, status):
    """If this fails, one team lowers the power of others, or a typo is taken for an event."""
    (tmp_path / "agent" / "status.json").write_text(json.dumps(AGENT_STATUS))
    wanted = TokenRecord(team, right)
    token, _ = caller.context.store.write(lambda one: add_token(one, wanted, 0.0))
    assert ask(caller, "POST", "/cluster/events", token, body)[0] == status
    announced = list((tmp_path / "agent" / "events").glob("*"))
    assert bool(announced) is (status == 303)
    shown = "Announce an event" in ask(caller, "GET", "/cluster", token)[1]
    assert shown is (status != 403)


def test_an_event_is_confirmed_before_it_acts(caller, tmp_path):
    """If this fails, one slip of the hand slows down the jobs of all teams."""
    (tmp_path / "agent" / "status.json").write_text(json.dumps(AGENT_STATUS))
    status, text = ask(caller, "POST", "/cluster/events", None, EVENT.removesuffix(b"&confirmed=1"))
    assert (status, "from 10.0 kW to 7.50 kW" in text) == (200, True)
    assert not list((tmp_path / "agent" / "events").glob("*"))
    assert 'name="confirmed" value="1"' in text


def test_the_cluster_is_shown_to_those_of_every_team(caller, tmp_path):
    """If this fails, a team reads the names and the power of the jobs of all others."""
    (tmp_path / "agent" / "status.json").write_text(json.dumps(AGENT_STATUS))
    for team, expected in (("*", 200), ("vision", 403)):
        wanted = TokenRecord(team, Permission.READ)
        token, _ = caller.context.store.write(lambda one, new=wanted: add_token(one, new, 0.0))
        status, text = ask(caller, "GET", "/cluster", token)
        assert status == expected
        assert ("node3" in text) is (expected == 200)
        assert ('href="/cluster"' in ask(caller, "GET", "/", token)[1]) is (expected == 200)


def test_without_a_cluster_there_is_no_page(tmp_path):
    """If this fails, people are led to a page of nothing."""
    with Store.open(tmp_path / "store.sqlite") as store:
        found = Caller(store, LIMITS)
        status, text = ask(found, "GET", "/cluster")
        assert status == 404
        assert "<code>joulery cluster agent</code>" in text
        assert "/cluster" not in ask(found, "GET", "/")[1]
