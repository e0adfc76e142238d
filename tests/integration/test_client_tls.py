"""Talking to a server in secret: with an authority of one's own, and not with a stranger."""

import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from joulery.client._http import HttpBackend
from joulery.errors import StoreError


class Answer(BaseHTTPRequestHandler):
    """Answers everything with an empty object."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server with a certificate of its own making: (address, file of the certificate)."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}", certificate
    server.shutdown()
    server.server_close()


def test_an_authority_of_ones_own_is_trusted_if_it_is_named(secured):
    """If this fails, servers within a company cannot be used."""
    backend = HttpBackend(secured[0], "team", None, 10.0, secured[1])
    assert backend.ask("GET", "/x") == b"{}"
    assert backend.ask("GET", "/x") == b"{}"
    backend.close()


def test_a_stranger_is_not_trusted(secured):
    """If this fails, tokens are given to any server that answers."""
    backend = HttpBackend(secured[0], "team", None, 2.0)
    with pytest.raises(StoreError, match="not trusted"):
        backend.ask("GET", "/x")
    backend.close()


def test_the_other_scheme_is_named_at_once(secured):
    """If this fails, whoever writes http for https waits half a minute for a wrong remedy."""
    address = secured[0].removeprefix("https://")
    with pytest.raises(StoreError, match="speaks TLS") as caught:
        HttpBackend(f"http://{address}", "team", None, 60.0).ask("GET", "/x")
    assert caught.value.remedy == f"write https://{address}"
    plain = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    with pytest.raises(StoreError, match="speaks no TLS"):
        HttpBackend(f"https://127.0.0.1:{plain.server_port}", "team", None, 60.0).ask("GET", "/x")
    plain.shutdown()
    plain.server_close()
