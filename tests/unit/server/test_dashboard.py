"""The dashboard's rules: who gets in, what a browser may do, and how errors look."""

import asyncio
from urllib.parse import urlencode

import pytest

from joulery.jobs import Request, job_beliefs, job_totals
from joulery.reports import overview_report
from joulery.server._config import LIMITS
from joulery.server._figures import BeliefsCache, FiguresCache, OverviewCache
from joulery.storage import Permission, Store, TokenRecord, add_token, revoke_token
from support.caller import SAME_ORIGIN, Caller


@pytest.fixture
def caller(tmp_path):
    """A caller of an application on an empty store."""
    with Store.open(tmp_path / "store.sqlite") as store:
        yield Caller(store, LIMITS)


def ask(caller, method, path, headers=(), body=b""):
    """Status, headers and text of an answer; without the API's own header."""
    status, told, text = asyncio.run(caller.ask(method, path, body, "none", headers=headers))
    return status, told, text.decode() if isinstance(text, bytes) else text


def log_in(caller, token, following="/"):
    """The answer to a form that was filled in."""
    body = urlencode({"token": token, "next": following}).encode()
    return ask(caller, "POST", "/login", SAME_ORIGIN, body)


def test_pages_ask_for_a_token(caller):
    """If this fails, anyone reads the jobs of a team; or nobody finds the way back."""
    status, told, _ = ask(caller, "GET", "/jobs?q=a")
    assert status == 303
    assert told[b"location"] == b"/login?next=%2Fjobs%3Fq%3Da"
    assert ask(caller, "GET", "/login")[0] == 200


def test_a_valid_token_is_kept_where_scripts_cannot_read_it(caller):
    """If this fails, a script can steal the token, or it travels to other sites."""
    status, told, _ = log_in(caller, caller.token, "/jobs")
    assert (status, told[b"location"]) == (303, b"/jobs")
    kept = told[b"set-cookie"].decode().lower()
    assert "httponly" in kept
    assert "samesite=strict" in kept
    assert "max-age=43200" in kept


def test_behind_a_proxy_with_tls_the_cookie_never_travels_in_the_clear(caller):
    """If this fails, the token is sent unencrypted to an address that someone else controls."""
    forwarded = [(b"x-forwarded-proto", b"https"), *SAME_ORIGIN]
    body = urlencode({"token": caller.token}).encode()
    _, told, _ = ask(caller, "POST", "/login", forwarded, body)
    assert b"; Secure" in told[b"set-cookie"]
    assert told[b"set-cookie"].startswith(b"__Host-joulery_session=")
    assert caller.token.encode() not in told[b"set-cookie"]


@pytest.mark.parametrize("following", ["https://evil", "//evil", "/\\evil", ""])
def test_logging_in_leads_nowhere_else(caller, following):
    """If this fails, a link to the log-in leads people to another site."""
    assert log_in(caller, caller.token, following)[1][b"location"] == b"/"


def test_a_session_that_ended_says_why_and_leads_back(caller):
    """If this fails, a stolen cookie outlives a log-out, or nobody learns why it ended."""
    job = asyncio.run(caller.job())
    token, record = caller.context.store.write(
        lambda transaction: add_token(transaction, TokenRecord("*", Permission.MANAGE), 0.0)
    )
    ends = {
        "logged out": lambda headers: ask(caller, "POST", "/logout", headers),
        "for 4 hours": lambda _: caller.clock.sleep(4.1 * 3600),
        "lasts 12 hours": lambda _: caller.clock.sleep(12.1 * 3600),
        "revoked": lambda _: caller.context.store.write(
            lambda transaction: revoke_token(transaction, record.id, caller.clock.wall())
        ),
    }
    for words, end in ends.items():
        headers = caller.browser(token)
        assert ask(caller, "GET", f"/jobs/{job}", headers)[0] == 200
        end(headers)
        caller.clock.sleep(6.0)  # beyond what is cached
        status, told, _ = ask(caller, "GET", f"/jobs/{job}", headers)
        assert (status, told[b"location"]) == (303, f"/login?next=%2Fjobs%2F{job}".encode())
        assert words in ask(caller, "GET", "/login", headers)[2]
        status, _, text = ask(caller, "POST", f"/jobs/{job}/pause", headers, b"paused=1")
        assert (status, "Nothing was changed" in text) == (401, True)


def test_a_page_that_a_person_opens_keeps_the_session_alive(caller):
    """If this fails, people are logged out while they work, or never where a tab stays open."""
    headers = caller.browser()
    for _ in range(3):
        caller.clock.sleep(3.5 * 3600)
        assert ask(caller, "GET", "/jobs", headers)[0] == 200
        caller.context.store.write(lambda _: None)  # after the session's new time, stored beside
    alone = caller.browser()
    for _ in range(3):
        caller.clock.sleep(1.5 * 3600)
        status = ask(caller, "GET", "/jobs", [*alone, (b"joulery-live", b"1")])[0]
    assert status == 303


def test_a_wrong_token_is_refused_in_words(caller):
    """If this fails, a typo leaves people without a hint, or lets them in."""
    status, told, text = log_in(caller, "joulery_wrong")
    assert status == 401
    assert b"set-cookie" not in told
    assert "not valid" in text


def test_guessing_tokens_is_slowed_down(caller):
    """If this fails, tokens can be guessed at the log-in."""
    statuses = {log_in(caller, f"guess {number}")[0] for number in range(300)}
    assert 429 in statuses


@pytest.mark.parametrize("path", ["/", "/login", "/assets/dashboard.js", "/jobs/77"])
def test_every_answer_has_a_strict_policy(caller, path):
    """If this fails, a page may run scripts that are not ours, or be framed by others."""
    _, told, _ = ask(caller, "GET", path, caller.browser())
    policy = told[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert told[b"x-content-type-options"] == b"nosniff"


def test_forms_of_other_sites_are_refused(caller):
    """If this fails, another site can pause jobs or log people in."""
    job = asyncio.run(caller.job())
    own, path = caller.browser(), f"/jobs/{job}/pause"
    for origin in (b"https://evil.example", b"http://jobs.example:9999", b"null", None):
        headers = [own[0], own[1], *([] if origin is None else [(b"origin", origin)])]
        assert ask(caller, "POST", path, headers, b"paused=1")[0] == 403
    assert ask(caller, "POST", path, own, b"paused=1")[0] == 303
    with caller.context.store.reading() as transaction:
        assert transaction.job(job).paused


def test_the_interface_for_programs_takes_no_cookie(caller):
    """If this fails, another site can use the API with a browser's cookie."""
    status, _, _ = ask(caller, "GET", "/v1/teams/vision/jobs", caller.browser())
    assert status == 401


def test_rights_are_those_of_the_token(caller):
    """If this fails, a reader pauses jobs, or a team sees those of another."""
    job = asyncio.run(caller.job())
    store = caller.context.store
    for team, path, expected in (
        ("vision", f"/jobs/{job}", 200),
        ("speech", f"/jobs/{job}", 404),
        ("speech", f"/jobs/{job}/runs/1", 404),
        ("speech", f"/changes?topic=job.{job}", 404),
    ):
        wanted = TokenRecord(team, Permission.READ)
        token, _ = store.write(lambda one, wanted=wanted: add_token(one, wanted, 0.0))
        assert ask(caller, "GET", path, caller.browser(token))[0] == expected
        refused = ask(caller, "POST", f"/jobs/{job}/pause", caller.browser(token), b"paused=1")
        assert refused[0] == (403 if team == "vision" else 404)
    token, _ = store.write(lambda one: add_token(one, TokenRecord("speech", Permission.READ), 0.0))
    assert "nightly" not in ask(caller, "GET", "/jobs", caller.browser(token))[2]
    assert "nightly" in ask(caller, "GET", "/jobs", caller.browser())[2]


@pytest.mark.parametrize(
    "path",
    [
        *("/jobs/x", "/jobs/-1", "/jobs/99999999999999999999", "/jobs/1/runs/0", "/jobs/1/runs/9"),
        *("/assets/x", "/jobs?page=x", "/changes?topic=job.77", "/changes?topic=x", "/runs/9999"),
        *("/nothing-here", "/runs/x", "/jobs/1/x", "/v1"),
    ],
)
def test_wrong_addresses_get_a_page(caller, path):
    """If this fails, a wrong link shows a raw document or an internal error."""
    asyncio.run(caller.job())
    status, told, text = ask(caller, "GET", path, caller.browser())
    assert status == 404
    assert told[b"content-type"].startswith(b"text/html")
    assert "What to do" in text
    assert "--team" not in text  # which is for commands


def test_addresses_that_are_not_there_are_told_in_the_form_of_the_caller(caller):
    """If this fails, a person reads a raw document, or a program a page."""
    _, told, text = ask(caller, "GET", "/nothing-here", caller.browser())
    assert "there is nothing at this address" in text
    assert 'aria-label="Pages"' in text
    assert b"content-security-policy" in told
    assert ask(caller, "GET", "/nothing-here", [(b"accept", b"text/html")])[0] == 303
    status, told, _ = ask(caller, "GET", "/nothing-here")
    assert (status, told[b"content-type"]) == (404, b"application/problem+json")


def test_a_range_that_ends_before_it_begins_is_said_to(caller):
    """If this fails, dates in the wrong order read as a time in which nothing was used."""
    headers, wrong = caller.browser(), "it ends before it begins"
    assert wrong in ask(caller, "GET", "/?from=2026-11-10&to=2026-11-01", headers)[2]
    for query in ("", "?range=all", "?from=2026-11-01&to=2026-11-01", "?from=x&to=x"):
        assert wrong not in ask(caller, "GET", f"/{query}", headers)[2]


@pytest.mark.parametrize("query", ["eta=2", "eta=x", "slowdown=-1", "slowdown=nan", "eta=inf"])
def test_impossible_objectives_are_explained(caller, query):
    """If this fails, a typo in a form breaks the page."""
    job = asyncio.run(caller.job())
    status, _, text = ask(caller, "GET", f"/jobs/{job}?{query}", caller.browser())
    assert status == 200
    assert 'role="alert"' in text


def test_names_cannot_smuggle_in_markup(caller):
    """If this fails, the name of a job runs a script in the browsers of others."""
    odd = "<script>alert(1)</script>"
    job = {"name": odd, "batch_sizes": [1], "default": 1, "cost": "cost:eta=1"}
    document = {"job": job, "device": odd, "policy": "zeus"}
    made = asyncio.run(caller.ask("POST", "/v1/teams/%3Cb%3E/jobs", document))
    assert made[0] == 200
    for path in ("/", "/jobs?q=%3Cscript", f"/jobs/{made[2]['id']}"):
        text = ask(caller, "GET", path, caller.browser())[2]
        assert "<script>alert" not in text
        assert "<b>" not in text


def test_forms_are_small(caller):
    """If this fails, a caller without a token fills the memory."""
    assert ask(caller, "POST", "/login", SAME_ORIGIN, b"token=" + 10_000 * b"x")[0] == 413


def test_only_jobs_to_which_something_happened_are_added_up_again(caller, monkeypatch):
    """If this fails, every look at a page reads the history of all jobs."""
    asyncio.run(caller.job())
    added = []

    def counted(transaction, heads):
        added.append([head.id for head in heads])
        return job_totals(transaction, heads)

    monkeypatch.setattr("joulery.server._figures.job_totals", counted)
    figures = FiguresCache(caller.context)
    for _ in range(2):
        found, outstanding = figures.current()
        caller.clock.sleep(2.0)
    assert ([one.head.name for one in found], outstanding) == (["nightly"], 0)
    assert len(added) == 1
    caller.context.jobs.pause(found[0].head.id)
    assert figures.current()[0][0].head.paused
    assert len(added) == 2
    caller.context.jobs.delete(found[0].head.id)
    caller.clock.sleep(2.0)
    assert figures.current() == ([], 0)


def test_beliefs_are_folded_again_only_after_new_events(caller, monkeypatch):
    """If this fails, every look at a job folds its whole history again, or shows old beliefs."""
    job = asyncio.run(caller.job())
    folded = []

    def count(transaction, record):
        folded.append(record.events)
        return job_beliefs(transaction, record)

    monkeypatch.setattr("joulery.server._figures.job_beliefs", count)
    cache = BeliefsCache()
    for _ in range(3):
        caller.context.read(lambda transaction: cache.of(transaction, job))
    assert folded == [0]
    caller.context.jobs.decide(job, Request("now"))
    caller.context.read(lambda transaction: cache.of(transaction, job))
    assert folded == [0, 1]


@pytest.mark.parametrize(
    ("name", "date"),
    [("Asia/Kolkata", "Asia/Kolkata"), ("", "UTC"), ("../../etc", "UTC"), ("Nowhere/At", "UTC")],
)
def test_the_time_zone_of_a_cookie_is_checked(caller, name, date):
    """If this fails, a cookie opens files of the server, or breaks all pages."""
    ((header, session), *_) = caller.browser()
    headers = [(header, session + f"; joulery_zone={name}".encode())]
    status, _, text = ask(caller, "GET", "/", headers)
    assert (status, f"times in {date}<" in text) == (200, True)


def test_readers_of_the_same_minute_share_an_overview(caller, monkeypatch):
    """If this fails, every tab adds up the savings of all jobs again."""
    asyncio.run(caller.job())
    made = []

    def count(*arguments, **options):
        made.append(options["span"].unit)
        return overview_report(*arguments, **options)

    monkeypatch.setattr("joulery.server._dashboard.overview_report", count)
    for path in ("/", "/", "/?unit=week", "/"):
        assert ask(caller, "GET", path, caller.browser())[0] == 200
    assert made == ["day", "week"]
    caller.clock.sleep(61.0)
    ask(caller, "GET", "/", caller.browser())
    assert made == ["day", "week", "day"]


def test_few_overviews_are_kept():
    """If this fails, a reader who tries all ranges fills the memory."""
    cache = OverviewCache()
    for number in range(1000):
        assert cache.get(number, lambda number=number: (number, number)) == (number, number)
    assert len(cache._pages) <= 64


def test_a_stream_is_counted_without_its_time(caller):
    """The alert on slow answers would fire whenever somebody looks at the dashboard."""
    caller.context.draining = True  # which ends streams at once
    headers = caller.browser()
    assert ask(caller, "GET", "/changes?topic=overview", headers)[0] == 200
    assert ask(caller, "GET", "/jobs", headers)[0] == 200
    text = caller.context.metrics.text(None).decode()
    assert 'joulery_requests_total{operation="changes",status="200"} 1.0' in text
    assert 'joulery_request_seconds_count{operation="jobsPage"} 1.0' in text
    assert 'joulery_request_seconds_count{operation="changes"}' not in text
