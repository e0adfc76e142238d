"""The device contract, run over NVIDIA boards of every kind on the emulated driver."""

import os

import pytest

from joulery.hardware import catalog, nvidia
from joulery.testing.device_contract import DeviceContract
from joulery.testing.emulator import BoardSpec, EmulatedNode, build

BOARD = catalog.board("A100")


class OnEmulatedNode(DeviceContract):
    __test__ = False
    spec = BoardSpec(BOARD)
    position = 0

    @pytest.fixture
    def node(self, tmp_path):
        """The node that the device sits in."""
        if build.compiler() is None and os.environ.get("CI") != "true":
            pytest.skip("no C compiler: the emulated NVML cannot be built")
        with EmulatedNode([self.spec], directory=tmp_path) as running:
            running.load_in_process()
            yield running

    @pytest.fixture
    def device(self, node, clock):
        """The device under test."""
        return nvidia.survey(clock).devices[self.position]


class TestBoard(OnEmulatedNode):
    __test__ = True


class TestUnstampedBoard(OnEmulatedNode):
    __test__ = True
    spec = BoardSpec(BOARD, stamped=False, averages_power=True, noise=0.05)


class TestBoardWithoutFields(OnEmulatedNode):
    __test__ = True
    spec = BoardSpec(BOARD, has_power_fields=False)


class TestOldBoard(OnEmulatedNode):
    __test__ = True
    spec = BoardSpec(BOARD, has_counter=False, has_power_fields=False)


class TestMigBoard(OnEmulatedNode):
    __test__ = True
    spec = BoardSpec(BOARD, mig_slices=(3, 4))


class TestMigInstance(TestMigBoard):
    position = 1


class TestBoardWithoutRights(OnEmulatedNode):
    __test__ = True

    @pytest.fixture
    def device(self, node, clock):
        """The device under test."""
        node.deny(None)
        return nvidia.survey(clock).devices[0]
