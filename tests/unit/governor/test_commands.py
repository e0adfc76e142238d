"""Knobs that are set by commands, since the driver lets this user read only."""

import inspect
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import FileError, MissingRightsError
from joulery.governor._commands import COMMANDS_VARIABLE, with_commands
from joulery.governor._device import GovernedDevice, LeaseRequest
from joulery.governor._journal import LeaseJournal
from joulery.hardware import Capability, Faults, SimulatedGpu, catalog, protocol_of


class CommandedGpu(SimulatedGpu):
    """A board whose limit only a command can set."""

    def __init__(self, file):
        super().__init__(catalog.board("V100"), VirtualClock(), faults=Faults(no_permission=True))
        self.file = file
        file.write_text("250 on 0\n")

    def power_limits(self):
        """The limit that the command left."""
        return replace(
            super().power_limits(), current_watts=float(self.file.read_text().split()[0])
        )


@pytest.fixture
def gpu(tmp_path):
    """A board in a folder of its own."""
    return CommandedGpu(tmp_path / "limit")


def commanded(gpu, tmp_path, text):
    """The board with a file of commands."""
    (tmp_path / "commands.toml").write_text(text)
    return with_commands(gpu, {COMMANDS_VARIABLE: str(tmp_path / "commands.toml")})


def test_a_command_sets_the_limit_and_restores_it(gpu, tmp_path):
    """Where no daemon may run, no limit could be held without root."""
    command = f"sh -c 'echo {{watts}} on {{index}} > {gpu.file}'"
    device = commanded(gpu, tmp_path, f'[simulated]\nset_power_limit = "{command}"')
    governed = GovernedDevice(device, LeaseJournal())
    governed.hold()
    governed.apply(LeaseRequest(watts=150.5))
    assert gpu.file.read_text() == "150.5 on 0\n"
    governed.restore()
    assert gpu.file.read_text() == "250 on 0\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [("sh -c 'echo not for you >&2; exit 1'", "not for you"), ("true", "left V100 at 250 W")],
)
def test_a_command_that_sets_nothing_is_no_success(gpu, tmp_path, command, said):
    """A tuner would measure limits that were never in force."""
    device = commanded(gpu, tmp_path, f'[simulated]\nset_power_limit = "{command}"')
    with pytest.raises(MissingRightsError, match=said):
        device.set_power_limit(150.0)


def test_without_a_command_the_driver_is_asked(gpu, tmp_path):
    """A file for one vendor or knob would take the others away."""
    device = commanded(gpu, tmp_path, '[simulated]\nunlock_clock = "true"')
    with pytest.raises(MissingRightsError, match="permission"):
        device.set_power_limit(150.0)
    device.unlock_clock()
    assert commanded(gpu, tmp_path, '[amd]\nunlock_clock = "true"') is gpu
    assert with_commands(gpu, {COMMANDS_VARIABLE: str(tmp_path / "none.toml")}) is gpu


@pytest.mark.parametrize(
    "text",
    ["[simulated", '[simulated]\nset_watts = "true"', '[simulated]\nset_power_limit = "{volts}"',
     "[simulated]\nset_power_limit = 3", "simulated = 3"],
)  # fmt: skip
def test_a_file_that_cannot_be_used_says_so(gpu, tmp_path, text):
    """A typing error in the file would show as missing rights."""
    with pytest.raises(FileError, match=r"commands\.toml"):
        commanded(gpu, tmp_path, text)


@pytest.mark.parametrize("capability", [Capability.POWER_LIMIT, Capability.CLOCK_LOCK])
def test_a_commanded_device_has_the_methods_of_its_knobs_by_name(tmp_path, capability):
    """From Python 3.12 on a protocol is checked without ``__getattr__``, and the lease refused."""
    path = tmp_path / "commands.toml"
    path.write_text('[simulated]\nunlock_clock = "true"\n')
    board = SimulatedGpu(catalog.board("V100"), VirtualClock())
    commanded = with_commands(board, {COMMANDS_VARIABLE: str(path)})
    assert commanded is not board
    for name in vars(protocol_of(capability)):
        if not name.startswith("_"):
            assert callable(inspect.getattr_static(commanded, name))
