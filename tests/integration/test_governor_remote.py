"""A governor that serves another machine: TLS, tokens, and limits while the client is silent."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

from joulery.clock import REAL_CLOCK
from joulery.cluster import NodeClient
from joulery.cluster._nodes import NodeUnreachableError
from joulery.errors import InvalidValueError, MissingRightsError
from joulery.files import encode_line
from joulery.governor import SOCKET_VARIABLE, STATE_VARIABLE, Connection
from joulery.testing.emulator import EmulatedNode, build
from support.governor.emulated import EmulatedGovernor, EmulatedGpu

SECRET = "a secret of the agent"  # noqa: S105 - guards emulated boards
POLICY = """
[[allow]]
tokens = ["token"]
devices = ["*"]
limits_watts = [100, 400]
fallback_watts = 150
"""


@pytest.fixture
def token(tmp_path):
    """The agent's token."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(SECRET)
    return path


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


class RemoteNode:
    """An emulated machine whose governor can be killed and started again."""

    def __init__(self, node, folder, certificate):
        self.node, self.folder, self.certificate = node, folder, certificate
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY)
        self.policy.chmod(0o644)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = probe.getsockname()
        self.process = None

    def start(self):
        """Start the governor, as `joulery governor unit --listen` does."""
        found, key = self.certificate
        options = {
            "--policy": self.policy,
            "--listen": "{}:{}".format(*self.address),
            "--tls-cert": found,
            "--tls-key": key,
        }
        places = {
            SOCKET_VARIABLE: str(self.folder / "socket"),
            STATE_VARIABLE: str(self.folder / "state"),
        }
        words = [str(word) for pair in options.items() for word in pair]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "joulery", "governor", "serve", *words],
            env={**self.node.env, **places},
            stderr=subprocess.PIPE,
        )
        assert b"serves" in self.process.stderr.readline()

    def stop(self, number=signal.SIGTERM):
        """End the governor."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process.stderr.close()
            self.process = None

    def client(self, secret=SECRET):
        """The agent's side."""
        return NodeClient.at(
            self.address, secret, ssl.create_default_context(cafile=self.certificate[0])
        )

    def limits(self):
        """Limits in force on the boards."""
        return [self.node.power_limit(index) for index in (0, 1)]

    def wait_for(self, limits):
        """Wait until the boards have some limits."""
        deadline = REAL_CLOCK.now() + 60
        while self.limits() != limits and REAL_CLOCK.now() < deadline:
            REAL_CLOCK.sleep(0.05)
        assert self.limits() == limits


@pytest.fixture
def remote(tmp_path, token, certificate):
    """A machine with two boards and a governor that serves an agent."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    with EmulatedNode(["A100", "A100"]) as node:
        made = RemoteNode(node, tmp_path, certificate)
        made.start()
        yield made
        made.stop(signal.SIGKILL)


def test_an_agent_sets_caps_over_tls_and_leaves_safe_ones_behind(remote):
    """Caps never arrive at a board, rise when the agent is gone, or outlast the policy."""
    assert remote.limits() == [150.0, 150.0], "before the agent speaks"
    client = remote.client()
    first, second = client.status()
    states = client.set_caps({first.id: 321.0, second.id: 90.0}, {}, 1.0)
    assert remote.limits() == [321.0, 100.0]
    assert [state.cap_watts for state in states] == [321.0, 100.0]
    assert states[0].most_watts == 400.0
    remote.stop()
    assert remote.limits() == [150.0, 100.0], "a governor that ends keeps to the fallback"
    with pytest.raises(NodeUnreachableError):
        client.status()
    remote.start()
    assert remote.limits() == [150.0, 150.0]
    client.set_caps({first.id: 321.0}, {}, 1.0)
    assert remote.limits() == [321.0, 150.0]
    client.close()
    remote.wait_for([150.0, 150.0])
    client.set_caps({first.id: 250.0}, {}, 30.0)
    remote.stop(signal.SIGKILL)
    client.close()
    remote.start()
    assert remote.limits() == [150.0, 150.0]
    remote.policy.write_text(POLICY.replace("fallback_watts = 150", ""))
    remote.process.send_signal(signal.SIGHUP)
    remote.wait_for([400.0, 400.0])


def test_strangers_and_nonsense_change_nothing(remote):
    """A caller without the token sets caps, or nonsense ends the governor."""
    with pytest.raises(NodeUnreachableError, match="wrong token"):
        remote.client("a guess of someone else").status()
    with pytest.raises(NodeUnreachableError, match=r"(?i)certificate"):
        NodeClient.at(remote.address, SECRET, ssl.create_default_context()).status()
    with pytest.raises(NodeUnreachableError):
        NodeClient.at(remote.address, SECRET).status()
    trusted = ssl.create_default_context(cafile=remote.certificate[0])
    for token in (None, 7, [], "", "x" * 3000):
        with pytest.raises(MissingRightsError, match="wrong token"):
            Connection(remote.address, token, trusted)
    for data in (b"\xff" * 5000, b"\n", encode_line({"op": "status"})):
        with socket.create_connection(remote.address) as plain, suppress(OSError):
            plain.sendall(data)
        with (
            socket.create_connection(remote.address) as plain,
            suppress(OSError),
            trusted.wrap_socket(plain, server_hostname="127.0.0.1") as channel,
        ):
            channel.sendall(data)
            channel.recv(1000)
    client = remote.client()
    states = client.status()
    with pytest.raises(InvalidValueError):
        client.set_caps({states[0].id: float("nan")}, {}, 5.0)
    client.set_caps({"GPU-of-another-machine": 200.0}, {}, 5.0)
    assert remote.limits() == [150.0, 150.0]
    client.close()


@contextmanager
def _emulated(token):
    governor = EmulatedGovernor([EmulatedGpu("gpu-1")], token, 150.0)
    governor.serve()
    try:
        yield governor
    finally:
        governor.stop()


def test_a_client_comes_back_after_a_break(token):
    """An agent must be restarted when a node was."""
    with _emulated(token) as governor:
        client = NodeClient.at(("127.0.0.1", governor.port), SECRET)
        assert client.set_caps({"gpu-1": 300.0}, {}, 60.0)[0].cap_watts == 300.0
        governor.cut()
        with pytest.raises(NodeUnreachableError):
            client.status()
        governor.serve()
        assert client.status()[0].cap_watts == 300.0
        assert client.set_caps({"gpu-1": 310.0}, {}, 60.0)[0].cap_watts == 310.0
        client.close()


def test_the_network_needs_tls(tmp_path):
    """A token travels over the network in the clear."""
    with pytest.raises(InvalidValueError, match="TLS"):
        NodeClient.at(("192.0.2.1", 7001), "secret")
    command = [sys.executable, "-m", "joulery", "governor", "serve", "--listen", "0.0.0.0:0"]
    places = ["--socket", str(tmp_path / "socket"), "--state", str(tmp_path / "state")]
    done = subprocess.run([*command, *places], capture_output=True, text=True, check=False)
    assert done.returncode == InvalidValueError.exit_code
    assert "needs TLS" in done.stderr
