"""Pages of saved plans: drawn from files that may be damaged, foreign or too large."""

import asyncio
import json
import os

import pytest

from joulery.server._app import create_app
from joulery.server._config import LIMITS
from joulery.storage import Permission, Store, TokenRecord, add_token
from support.caller import Caller
from support.saved_plans import save_plans


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of files that were saved once for all tests."""
    folder = tmp_path_factory.mktemp("plans") / "plans"
    save_plans(folder)
    return folder


@pytest.fixture
def caller(tmp_path, saved):
    """A caller of an application that shows a copy of the folder."""
    folder = tmp_path / "plans"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with Store.open(tmp_path / "store.sqlite") as store:
        found = Caller(store, LIMITS)
        found.application = create_app(found.context, plans=folder)
        yield found


def ask(caller, path, token=None):
    """Status and text of a page."""
    cookie = caller.browser(token)
    status, _, text = asyncio.run(caller.ask("GET", path, b"", "none", headers=cookie))
    return status, text.decode()


def test_plans_and_recommendations_are_listed_and_the_rest_is_explained(caller):
    """If this fails, one damaged file hides all others."""
    status, text = ask(caller, "/plans")
    assert status == 200
    assert "pipeline plan of profile.csv, 1f1b, 4 ranks" in text
    assert "100 B tokens of llama-8b" in text
    assert "not JSON" in text
    assert "not shown: no plan and no recommendation" in text
    assert text.count("<tr>") == 5


def test_a_plan_is_drawn_before_and_after_with_its_frontier(caller):
    """If this fails, people cannot see what a plan changes."""
    status, text = ask(caller, "/plans/gpt.json")
    assert status == 200
    for words in ("Full clocks", "Planned: equal time", "Energy over iteration time", "1400 MHz"):
        assert words in text
    assert text.count(">rank 3<") == 2
    assert "style=" not in text  # which the policy of the pages forbids


def test_the_pareto_set_of_a_recommendation_is_drawn(caller):
    """If this fails, a recommendation is a wall of figures."""
    status, text = ask(caller, "/plans/llama.json")
    assert status == 200
    for words in ("Recommendation for", "Choices that no other beats", "deadline", "recommended"):
        assert words in text
    assert "Assumed: PUE" in text
    assert text.count('<tr class="chosen">') == 2  # of the short list and of the Pareto set


@pytest.mark.parametrize("name", ["torn.json", "foreign.json"])
def test_a_page_of_a_damaged_file_says_what_to_do(caller, name):
    """If this fails, a damaged file looks like a failure of the server."""
    status, text = ask(caller, f"/plans/{name}")
    assert status == 200
    assert "What to do" in text
    assert "Internal" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"problem": {}},
        {"problem": None},
        {"frontier": []},
        {"ranks": []},
        {"ranks": [{"seconds": "soon"}]},
        {"schema": "other"},
    ],
)
def test_plans_that_make_no_sense_are_explained(caller, tmp_path, change):
    """If this fails, a file that someone edited breaks the page."""
    path = tmp_path / "plans" / "gpt.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert ask(caller, "/plans")[0] == 200
    status, text = ask(caller, "/plans/gpt.json")
    assert status == 200
    assert ("What to do" in text) is (change != {"frontier": []})  # which is planned again


@pytest.mark.parametrize("path", ["..%2Fstore.sqlite", "%2e%2e", "profile.csv", "x.json", ".json"])
def test_no_name_leads_out_of_the_folder(caller, path):
    """If this fails, readers get any file of the server."""
    assert ask(caller, f"/plans/{path}")[0] == 404


def test_links_to_elsewhere_pipes_and_folders_are_left_out(caller, tmp_path):
    """If this fails, a link shows a secret, or a pipe hangs the server."""
    (tmp_path / "secret.json").write_text('{"pareto": "secret"}')
    folder = tmp_path / "plans"
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    (folder / "own.json").symlink_to(folder / "gpt.json")
    (folder / "gone.json").symlink_to(folder / "nothing.json")
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    text = ask(caller, "/plans")[1]
    assert "own.json" in text
    for name in ("link.json", "pipe.json", "folder.json", "gone.json"):
        assert name not in text
        assert ask(caller, f"/plans/{name}")[0] == 404


def test_odd_names_and_texts_are_shown_or_left_out(caller, tmp_path):
    """If this fails, a file of a colleague breaks the list for all."""
    folder = tmp_path / "plans"
    (folder / "my <b>plan ü.json").write_bytes((folder / "gpt.json").read_bytes())
    with open(os.fsencode(folder) + b"/\xff.json", "wb") as file:  # noqa: PTH123 - not UTF-8
        file.write(b"{}")
    (folder / "half.json").write_text('{"pareto": "\\ud800"}')
    (folder / "markup.json").write_text('{"problem": {"source": "<script>"}}')
    status, text = ask(caller, "/plans")
    assert status == 200
    assert "my &lt;b&gt;plan ü.json" in text
    assert "<script>" not in text
    assert "<b>" not in text
    status, text = ask(caller, "/plans/my%20%3Cb%3Eplan%20%C3%BC.json")
    assert status == 200
    assert "Planned: equal time" in text
    assert ask(caller, "/plans/half.json")[0] == 200


def test_large_files_are_not_read(caller, tmp_path):
    """If this fails, a large file fills the memory of the server."""
    with (tmp_path / "plans" / "huge.json").open("wb") as file:
        file.truncate(10 * 2**30)
    assert "more than 1.05 MB" in ask(caller, "/plans")[1]
    assert "more than 1.05 MB" in ask(caller, "/plans/huge.json")[1]


def test_files_of_no_team_are_shown_to_those_of_every_team(caller):
    """If this fails, a team reads the plans of others."""
    wanted = TokenRecord("vision", Permission.MANAGE)
    token, _ = caller.context.store.write(lambda one: add_token(one, wanted, 0.0))
    for path in ("/plans", "/plans/gpt.json"):
        assert ask(caller, path, token)[0] == 403
    assert "/plans" not in ask(caller, "/", token)[1]
    assert "/plans" in ask(caller, "/")[1]


@pytest.mark.parametrize(("exists", "words"), [(True, "No plans yet"), (False, "cannot read")])
def test_a_folder_without_plans_is_explained(tmp_path, exists, words):
    """If this fails, people think that the server is broken."""
    if exists:
        (tmp_path / "plans").mkdir()
    with Store.open(tmp_path / "store.sqlite") as store:
        found = Caller(store, LIMITS)
        assert ask(found, "/plans")[0] == 404
        found.application = create_app(found.context, plans=tmp_path / "plans")
        status, text = ask(found, "/plans")
        assert status == 200
        assert words in text
