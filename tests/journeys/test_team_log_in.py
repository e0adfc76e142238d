"""Journey: people log in to the dashboard, and nobody else acts in their name."""

import http.client
import time
from urllib.parse import urlencode

import pytest

from support.server_process import ServerProcess, log_in

pytestmark = pytest.mark.slow


def ask(server, method, path, headers=(), **fields):
    """Status, location and text of an answer to a browser."""
    browser = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    forms = {"Content-Type": "application/x-www-form-urlencoded"} if fields else {}
    browser.request(method, path, urlencode(fields), {**dict(headers), **forms})
    answer = browser.getresponse()
    text = answer.read().decode()
    browser.close()
    return answer.status, answer.getheader("Location"), text


def test_a_day_of_sessions(tmp_path):
    """A cookie is worth the year-long token, or outlives log-out and revocation."""
    with ServerProcess(tmp_path / "store.sqlite") as server:
        job = server.define()
        number, token = server.token("vision", "manage")
        browser = log_in(server.address, token)
        assert token not in browser["Cookie"]
        cookie = browser["Cookie"].partition("=")[2]
        assert server.ask("GET", f"/v1/jobs/{job}/decisions", token=cookie).status == 401
        assert ask(server, "GET", f"/jobs/{job}", browser)[0] == 200
        # A page at another port of the same host has the cookie, and may not use it.
        neighbour = browser | {"Origin": f"http://127.0.0.1:{server.port + 1}"}
        assert ask(server, "POST", f"/jobs/{job}/pause", neighbour, paused=1)[0] == 403
        assert ask(server, "POST", f"/jobs/{job}/pause", browser, paused=1)[0] == 303
        # Log-out ends the session on the server, and that of no one else.
        other = log_in(server.address, token)
        assert ask(server, "POST", "/logout", other)[0] == 303
        status, location, _ = ask(server, "GET", f"/jobs/{job}", other)
        assert (status, location) == (303, f"/login?next=%2Fjobs%2F{job}")
        assert ask(server, "GET", f"/jobs/{job}", browser)[0] == 200
        # Sessions survive a restart, and end with their token.
        server.stop()
        server.start()
        assert ask(server, "GET", f"/jobs/{job}", browser)[0] == 200
        server.revoke(number)
        time.sleep(0.2)
        assert ask(server, "GET", f"/jobs/{job}", browser)[0] == 303
        assert "was revoked" in ask(server, "GET", f"/login?next=/jobs/{job}", browser)[2]
