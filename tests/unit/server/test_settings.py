"""How a server may be run."""

from pathlib import Path

import pytest

from joulery.errors import InvalidValueError
from joulery.server.settings import Settings, is_loopback
from joulery.server.workers import from_text, to_text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])  # noqa: S104
def test_tokens_do_not_leave_the_machine_in_the_clear(host):
    """Anyone on the network could read tokens."""
    with pytest.raises(InvalidValueError, match="clear"):
        Settings(host=host)
    assert Settings(host=host, insecure=True).scheme == "http"
    key = Path("key.pem")
    assert Settings(host=host, tls_certificate=Path("c.pem"), tls_key=key).scheme == "https"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_no_tls(host):
    """The simplest start would be refused."""
    assert is_loopback(host)
    Settings(host=host)


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"workers": 1000}, {"port": 70_000}, {"tls_key": Path("k")}]
)
def test_nonsense_is_refused(wrong):
    """A server would fail after it has started."""
    with pytest.raises(InvalidValueError):
        Settings(**wrong)


def test_settings_reach_workers_unchanged():
    """Workers would serve in another way than was asked for."""
    settings = Settings(
        "postgresql://u:p@h/d", "10.0.0.1", 1, 2, Path("c.pem"), Path("k.pem"), drain_seconds=2.5
    )
    assert from_text(to_text(settings)) == settings
