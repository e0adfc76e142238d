"""How a server may be run."""

from pathlib import Path

import pytest

from joulery.errors import InvalidValueError
from joulery.server import ServerConfig
from joulery.server._config import is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])  # noqa: S104
def test_tokens_do_not_leave_the_machine_in_the_clear(host):
    """Anyone on the network could read tokens."""
    with pytest.raises(InvalidValueError, match="unencrypted"):
        ServerConfig(host=host)
    assert ServerConfig(host=host, insecure=True).scheme == "http"
    key = Path("key.pem")
    assert ServerConfig(host=host, tls_certificate=Path("c.pem"), tls_key=key).scheme == "https"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_no_tls(host):
    """The simplest start would be refused."""
    assert is_loopback(host)
    ServerConfig(host=host)


@pytest.mark.parametrize(
    "wrong",
    [{"port": -1}, {"port": 70_000}, {"tls_key": Path("k")}, {"tls_certificate": Path("c")}],
)
def test_nonsense_is_refused(wrong):
    """A server would fail after it has started."""
    with pytest.raises(InvalidValueError):
        ServerConfig(**wrong)
