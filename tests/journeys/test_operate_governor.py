"""An operator runs a governor: what is wrong with it is said on stderr and by its status."""

import json
import signal
import sys
import threading
import time

import pytest

from joulery.testing.emulator.node import STATE_VARIABLE

POLICY = '[[allow]]\nusers = ["*"]\ndevices = ["gpu:0"]\nlimits_watts = [100, 300]\n'


def wait_until(holds):
    """Wait until a condition holds, for a minute at most."""
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Governor:
    """A governor with a policy file, whose words on stderr are kept."""

    def __init__(self, world, *options, **environment):
        self.policy = world.folder / "policy.toml"
        self.policy.write_text(POLICY)
        self.policy.chmod(0o644)
        self._world, self.socket = world, world.folder / "governor.sock"
        words = ("governor", "serve", "--socket", str(self.socket), *options)
        self.process = world.start(*words, **environment)
        self.words = []
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self):
        self.words.extend(self.process.stderr)

    def said(self, text):
        """Wait until a text is on stderr."""
        wait_until(lambda: any(text in line for line in self.words))

    def status(self):
        """Exit code and document of its status."""
        command = [sys.executable, "-m", "joulery", "governor", "status", "--json"]
        with self._world.popen([*command, "--socket", str(self.socket)]) as status:
            output, _ = status.communicate(timeout=60)
        return status.returncode, json.loads(output)

    def __enter__(self):
        self.said("the governor serves")
        return self

    def __exit__(self, *_):
        with self.process:
            self.process.terminate()
            self._listener.join(60)


def test_a_broken_policy_is_noticed(world):
    """An operator reloads a policy with a mistake and believes that it is in force."""
    with Governor(world, "--policy", "policy.toml") as governor:
        assert governor.status()[0] == 0
        governor.policy.write_text(POLICY + "[[alow]]\n")
        governor.process.send_signal(signal.SIGHUP)
        governor.said("unknown table 'alow'")
        code, status = governor.status()
        assert (code, status["policy"]["rules"]) == (1, 1)
        assert "unknown table 'alow'" in status["policy"]["flaw"]
        governor.policy.write_text(POLICY)
        governor.process.send_signal(signal.SIGHUP)
        wait_until(lambda: governor.status()[0] == 0)


def test_a_governor_without_boards_looks_again(world):
    """A governor that starts before the driver serves nothing for ever, and looks healthy."""
    state = world.folder / "late"
    with Governor(world, **{STATE_VARIABLE: str(state)}) as governor:
        governor.said("0 boards to govern")
        governor.said("every request is refused")
        assert governor.status()[0] == 3
        state.symlink_to(world.env[STATE_VARIABLE])
        governor.said("boards to govern: 1")
        code, status = governor.status()
        assert (code, len(status["devices"]), status["policy"]["rules"]) == (0, 1, 0)


@pytest.mark.parametrize(("device", "unmatched"), [("gpu:0", []), ("gpu:7", [1])])
def test_a_policy_is_checked_against_the_boards(world, device, unmatched):
    """A rule for a board that is not there, or a spelling of other commands, allows nothing."""
    path = world.folder / "policy.toml"
    path.write_text(POLICY.replace("gpu:0", device))
    path.chmod(0o644)
    assert world.joulery("governor", "check-policy", str(path))["unmatched"] == unmatched
