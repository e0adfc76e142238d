"""The device in docs/how-to/add-a-device.md, taken from the page and put to the contract."""

import re
import subprocess
import sys
import tomllib
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from joulery import hardware
from joulery.clock import VirtualClock
from joulery.errors import DeviceError, DeviceLostError
from joulery.hardware import Capability, _discovery as discovery

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-device.md"


def _block(title):
    found = re.search(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found, f"no block {title} in {PAGE}"
    return found[1]


def _run(title):
    module = types.ModuleType(title.removesuffix(".py"))
    sys.modules[module.__name__] = module
    exec(compile(_block(title), title, "exec"), module.__dict__)  # noqa: S102 - our own page
    return module


accelerator = _run("joulery_accelerator.py")
# Under this name pytest collects the page's own test class.
TestAccelerator = _run("test_accelerator.py").TestAccelerator


@pytest.fixture
def root(tmp_path):
    """A hwmon tree with one board and one foreign chip."""
    for folder, name in (("hwmon0", "coretemp"), ("hwmon3", "example_x1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(f"{name}\n")
    (tmp_path / "hwmon3" / "device").symlink_to("0000:3b:00.0")
    (tmp_path / "hwmon3" / "power1_input").write_text("245000000\n")
    return tmp_path


def test_it_is_as_short_as_the_page_promises():
    """A device of one's own must stay a small thing."""
    assert len(_block("joulery_accelerator.py").splitlines()) < 100


def test_it_claims_only_what_answers(root):
    """The page teaches to claim what was tried."""
    (board,) = accelerator.discover(VirtualClock(), root)
    assert board.capabilities == {Capability.POWER}
    assert board.info.id == "example:0000:3b:00.0"
    assert board.read_power() == pytest.approx(245.0)


def test_its_errors_are_of_the_tree(root):
    """The page teaches which error means what."""
    (board,) = accelerator.discover(VirtualClock(), root)
    with pytest.raises(DeviceLostError):
        board.read_energy()
    (root / "hwmon3" / "power1_input").write_text("garbage")
    with pytest.raises(DeviceError):
        board.read_power()


def test_its_entry_point_is_found(root, monkeypatch):
    """The declaration on the page must lead discovery to the device."""
    declared = tomllib.loads(_block("pyproject.toml"))["project"]["entry-points"]
    (value,) = declared[discovery.ENTRY_POINTS].values()
    point = EntryPoint("example", value, discovery.ENTRY_POINTS)
    monkeypatch.setattr(discovery, "entry_points", lambda: [point])
    monkeypatch.setattr(accelerator.discover, "__defaults__", (VirtualClock(), root))
    found = hardware.discover(VirtualClock(), environ={})
    assert "example:0000:3b:00.0" in [device.info.id for device in found]


def test_the_files_of_the_page_install_from_one_folder(tmp_path):
    """If this fails, `pip install .` refuses the folder that the page describes."""
    pytest.importorskip("setuptools")
    folder = tmp_path / "source"
    folder.mkdir()
    for title in ("pyproject.toml", "joulery_accelerator.py", "test_accelerator.py"):
        (folder / title).write_text(_block(title))
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    target = tmp_path / "target"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", target, folder], check=True
    )
    assert (target / "joulery_accelerator.py").exists()
    assert not (target / "test_accelerator.py").exists()
    (declared,) = target.glob("*.dist-info/entry_points.txt")
    assert "example = joulery_accelerator:discover" in declared.read_text()
