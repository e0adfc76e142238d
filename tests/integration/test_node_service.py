"""A node's service over the network: with TLS, against callers without rights, after a break."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from joulery.clock import REAL_CLOCK
from joulery.cluster import EmulatedGpu, NodeClient, NodeServer, NodeService
from joulery.cluster._nodes import NodeUnreachableError
from joulery.errors import InvalidValueError
from joulery.testing.emulator import build
from joulery.testing.governor.node import GovernedNode


def served(server):
    """Run a server in a thread; its port."""
    threading.Thread(target=server.run, daemon=True).start()
    return server.server_address[1]


@pytest.fixture
def service():
    """A node of one GPU."""
    return NodeService([EmulatedGpu("gpu-1")], "secret", 150.0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for the loopback address, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, found = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(found)),
        ],
        check=True,
        capture_output=True,
    )
    return found, key


def test_caps_are_set_over_tls(service, certificate):
    """An agent cannot reach a node in secret, or trusts an unknown certificate."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    server = NodeServer(service, ("127.0.0.1", 0), tls)
    address = ("127.0.0.1", served(server))
    try:
        trusted = ssl.create_default_context(cafile=certificate[0])
        client = NodeClient(address, "secret", trusted)
        (state,) = client.set_caps({"gpu-1": 300.0}, 5.0)
        assert state.cap_watts == 300.0
        client.close()
        with pytest.raises(NodeUnreachableError, match="certificate"):
            NodeClient(address, "secret", ssl.create_default_context()).status()
        with pytest.raises(NodeUnreachableError):
            NodeClient(address, "secret").status()
    finally:
        server.stop()


def test_wrong_tokens_and_nonsense_change_nothing(service):
    """A caller without the token sets caps, or nonsense ends the service."""
    server = NodeServer(service, ("127.0.0.1", 0))
    address = ("127.0.0.1", served(server))
    try:
        with pytest.raises(NodeUnreachableError, match="wrong token"):
            NodeClient(address, "guess").set_caps({"gpu-1": 400.0}, 5.0)
        for text in (
            b"\xff\xfe\n",
            b"[]\n",
            b"{\n",
            b'{"op": "caps", "token": "secret"}\n',
            b"x" * 5000,
        ):
            with socket.create_connection(address) as channel:
                channel.sendall(text)
        client = NodeClient(address, "secret")
        assert client.status()[0].cap_watts == 150.0
        for flaw in ({"gpu-1": float("nan")}, {"gpu-2": 200.0}):
            with pytest.raises(NodeUnreachableError):
                client.set_caps(flaw, 5.0)
        assert client.status()[0].cap_watts == 150.0
        client.close()
    finally:
        server.stop()


def test_a_client_comes_back_after_a_break(service):
    """An agent must be restarted when a node was."""
    server = NodeServer(service, ("127.0.0.1", 0))
    port = served(server)
    client = NodeClient(("127.0.0.1", port), "secret")
    client.status()
    server.stop()
    with pytest.raises(NodeUnreachableError):
        client.status()
    again = NodeServer(service, ("127.0.0.1", port))
    served(again)
    assert client.status()[0].id == "gpu-1"
    client.close()
    again.stop()


def test_the_network_needs_tls(service):
    """A token travels over the network in the clear."""
    with pytest.raises(InvalidValueError, match="TLS"):
        NodeServer(service, ("0.0.0.0", 0))  # noqa: S104 - refused
    with pytest.raises(InvalidValueError, match="TLS"):
        NodeClient(("192.0.2.1", 7001), "secret")


def test_caps_reach_real_driver_calls_through_the_governor(tmp_path):
    """A node's service sets caps that never arrive at the board, or leaves them behind."""
    if build.compiler() is None:
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    token = tmp_path / "token"
    token.write_text("secret")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with GovernedNode(("A100", "A100")) as governed:
        command = [sys.executable, "-m", "joulery", "cluster", "node", "--token", str(token)]
        process = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{port}", "--safe", "150"],
            env=os.environ | governed.env,
            stderr=subprocess.PIPE,
        )
        try:
            assert b"2 GPUs" in process.stderr.readline()
            client = NodeClient(("127.0.0.1", port), "secret")
            states = client.status()
            assert [governed.node.power_limit(n) for n in (0, 1)] == [150, 150]
            client.set_caps({states[0].id: 321.0}, 30.0)
            assert [governed.node.power_limit(n) for n in (0, 1)] == [321, 150]
            client.close()
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
        deadline = REAL_CLOCK.now() + 10
        while governed.node.power_limit(0) != 400 and REAL_CLOCK.now() < deadline:
            REAL_CLOCK.sleep(0.05)
        assert governed.node.power_limit(0) == 400
