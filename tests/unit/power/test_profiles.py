"""Profiles on disk: written whole, read back exactly, refused when foreign."""

import json

import pytest

from joulery.errors import FileError
from joulery.power import Estimate, ProfileFile, ProfileKey
from joulery.power._profiles import PowerProfile

KEY = ProfileKey("bert/large", 32, "A100", "driver 550", "LeastEnergy")
SEEN = Estimate(0.1, 200.0, 0.001, 0.002, 100, 10.0)
PROFILE = PowerProfile(180.0, 0.001, SEEN, {100.0: SEEN, 250.0: SEEN})


def test_round_trip(tmp_path):
    """A profile that changes on disk would hold another limit."""
    file = ProfileFile(KEY, tmp_path)
    assert file.load() is None
    file.save(PROFILE)
    assert file.load() == PROFILE
    assert list(tmp_path.iterdir()) == [file.path], "no parts are left behind"


def test_part_of_a_profile_belongs_to_the_knob_that_was_chosen():
    """The clocks of a profile are no power limits."""
    both = PowerProfile(180.0, 0.001, SEEN, {180.0: SEEN, 250.0: SEEN, 1.4e9: SEEN})
    assert both.choice_on([100.0, 180.0, 250.0]).measured == {1: SEEN, 2: SEEN}
    assert both.choice_on([1.0e9, 1.4e9]) is None


def test_every_part_of_the_key_matters():
    """Another batch size or driver is another job."""
    others = [
        ProfileKey("bert/large", 64, "A100", "driver 550", "LeastEnergy"),
        ProfileKey("bert/large", 32, "A100", "driver 560", "LeastEnergy"),
        ProfileKey("bert/large", 32, "A100", "driver 550", "LeastEnergy", 8),
    ]
    names = {key.file_name for key in (KEY, *others)}
    assert len(names) == 4
    assert all("/" not in name for name in names)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": "other/1"}', '{"schema": "joulery.profile/1"}']
)
def test_broken_files_are_named(tmp_path, text):
    """An error without the file's name cannot be acted on."""
    (tmp_path / KEY.file_name).write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=KEY.file_name):
        ProfileFile(KEY, tmp_path).load()


def test_unwritable_folder_is_named(tmp_path):
    """A full or foreign disk must not look like success."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FileError, match="cannot be written"):
        ProfileFile(KEY, tmp_path / "file").save(PROFILE)


def test_values_that_are_gone_void_the_profile():
    """A new cap of the administrator rules out limits above it."""
    assert PROFILE.choice_on([100.0, 180.0, 250.0]).position == 1
    assert PROFILE.choice_on([100.0, 180.0, 200.0]) is None
    assert PROFILE.choice_on([100.0, 180.0, 250.0, 300.0]) is None, (
        "a raised cap is a new reference"
    )


def test_folder_follows_xdg(monkeypatch, tmp_path):
    """Users expect data where XDG says."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert ProfileFile(KEY).path.parent == tmp_path / "joulery" / "profiles"


def test_document_says_what_it_is(tmp_path):
    """A user who finds the file should understand it."""
    file = ProfileFile(KEY, tmp_path)
    file.save(PROFILE)
    document = json.loads(file.path.read_text(encoding="utf-8"))
    assert document["schema"] == "joulery.profile/1"
    assert document["key"]["job"] == "bert/large"
