"""Profiles on disk: written whole, read back exactly, refused when foreign."""

import json

import pytest

from joulery.errors import FileError
from joulery.power import Estimate, ProfileFile
from joulery.power._profiles import PowerProfile

FILE = ProfileFile("bert/large", 32, "A100", "driver 550", "LeastEnergy")
SEEN = Estimate(0.1, 200.0, 0.001, 0.002, 100, 10.0)
PROFILE = PowerProfile(180.0, 0.001, SEEN, {100.0: SEEN, 250.0: SEEN})


@pytest.fixture(autouse=True)
def data_home(monkeypatch, tmp_path):
    """A data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_round_trip():
    """A profile that changes on disk would hold another limit."""
    assert FILE.load() is None
    FILE.save(PROFILE)
    assert FILE.load() == PROFILE
    assert list(FILE.path.parent.iterdir()) == [FILE.path], "no parts are left behind"


def test_part_of_a_profile_belongs_to_the_knob_that_was_chosen():
    """The clocks of a profile are no power limits."""
    profile = PowerProfile(180.0, 0.001, SEEN, {180.0: SEEN, 250.0: SEEN, 1.4e9: SEEN})
    assert profile.choice_on([100.0, 180.0, 250.0]).measured == {1: SEEN, 2: SEEN}
    assert profile.choice_on([1.0e9, 1.4e9]) is None


def test_every_part_of_the_key_matters():
    """Another batch size or driver is another job."""
    keys = [
        ProfileFile("bert/large", 64, "A100", "driver 550", "LeastEnergy"),
        ProfileFile("bert/large", 32, "A100", "driver 560", "LeastEnergy"),
        ProfileFile("bert/large", 32, "A100", "driver 550", "LeastEnergy", 8),
    ]
    names = {file.path.name for file in (FILE, *keys)}
    assert len(names) == 4
    assert all("/" not in name for name in names)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": "other/1"}', '{"schema": "joulery.profile/1"}']
)
def test_broken_files_are_named(text):
    """An error without the file's name cannot be acted on."""
    FILE.path.parent.mkdir(parents=True)
    FILE.path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=FILE.path.name):
        FILE.load()


def test_unwritable_folder_is_named(tmp_path):
    """A full or foreign disk must not look like success."""
    (tmp_path / "joulery").write_text("", encoding="utf-8")
    with pytest.raises(FileError, match="cannot be written"):
        FILE.save(PROFILE)


def test_values_that_are_gone_void_the_profile():
    """A new cap of the administrator rules out limits above it."""
    assert PROFILE.choice_on([100.0, 180.0, 250.0]).position == 1
    assert PROFILE.choice_on([100.0, 180.0, 200.0]) is None
    assert PROFILE.choice_on([100.0, 180.0, 250.0, 300.0]) is None, (
        "a raised cap is a new reference"
    )


def test_folder_follows_xdg(tmp_path):
    """Users expect data where XDG says."""
    assert FILE.path.parent == tmp_path / "joulery" / "profiles"


def test_document_says_what_it_is():
    """A user who finds the file should understand it."""
    FILE.save(PROFILE)
    document = json.loads(FILE.path.read_text(encoding="utf-8"))
    assert document["schema"] == "joulery.profile/1"
    assert document["key"]["job"] == "bert/large"
