"""Profiles of stages from files: what is read, what is made of it, and what is refused."""

import csv
import json
import os
from pathlib import Path

import pytest

from joulery.errors import FileError, InvalidValueError
from joulery.pipeline import (
    PipelineConfig,
    build_problem,
    make_schedule,
    profiles_from_rows,
    read_profiles,
)

_CSV = """\
stage,instruction,frequency,time,energy,n_time_samples,source
0,forward,1410,0.10,40.0,64,x
0,forward,1200,0.11,35.0,64,y
0,B,1410,0.20,80.0,64,
0,B,1200,0.22,70.0,,
1,forward,1410,0.15,60.0,64,
1,backward,1410,0.30,120.0,64,
"""
_DATA = Path(os.environ.get("JOULERY_DATA", Path(__file__).parents[5] / "shared/data"))


def _read(tmp_path, text, **options):
    path = tmp_path / "profile.csv"
    path.write_text(text, encoding="utf-8")
    return read_profiles(path, **options)


def test_csv_with_extra_columns(tmp_path):
    """A profile with columns of its own would not be read."""
    profiles = _read(tmp_path, _CSV)
    assert profiles.stages == 2
    points = profiles.points(0, "backward", 2)
    assert [(p.setting.clock_hertz, p.seconds, p.joules) for p in points] == [
        (1.41e9, 0.20, 80.0),
        (1.2e9, 0.22, 70.0),
    ]
    assert points[0].provenance.source == "profile.csv"
    assert profiles.notes == ["kept as measured, too few clocks: forward of stage 0 and 3 more"]


def test_json_rows(tmp_path):
    """JSON profiles would not be read."""
    rows = [
        {"stage": 0, "instruction": "forward", "frequency": 1410, "time": 0.1, "energy": 40.0},
        {"stage": 0, "instruction": "backward", "frequency": 1410, "time": 0.2, "energy": 80.0},
    ]
    profiles = _read(tmp_path, json.dumps(rows))
    assert profiles.points(0, "forward", 1)[0].joules == 40.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the profile is empty"),
        ("stage,instruction,frequency,time\n", "lacks the column 'energy'"),
        ("stage,instruction,frequency,time,energy\n", "holds no measurements"),
        ("stage,instruction,frequency,time,energy\n0,forward,1410,x,1\n", "row 1 .*time 'x'"),
        ("stage,instruction,frequency,time,energy\n0,forward,1410,0,1\n", "time 0 is not positive"),
        ("stage,instruction,frequency,time,energy\n0,forward,1410,1,-1\n", "energy -1 is not"),
        ("stage,instruction,frequency,time,energy\n0,forward,1410,nan,1\n", "time 'nan'"),
        ("stage,instruction,frequency,time,energy\n0,forward,1410\n", "time None is no number"),
        ("stage,instruction,frequency,time,energy\n0.5,forward,1,1,1\n", "stage 0.5 is no whole"),
        ("stage,instruction,frequency,time,energy\n-1,forward,1,1,1\n", "stage -1 is no whole"),
        ("stage,instruction,frequency,time,energy\n0,,1,1,1\n", "names no instruction"),
        ("stage,instruction,frequency,time,energy\n99999999,F,1000,1,1\n", "but no stage 0"),
        (_CSV.replace("\n1,", "\n2,"), "has a stage 2, but no stage 1"),
        ("stage,instruction,frequency,time,energy\n0,F,1000,1e300,1\n", "is not between 1e-09 and"),
        ("stage,instruction,frequency,time,energy\n0,F,1000,1,1e-300\n", "is not between 1e-09"),
        ("[", "not valid JSON"),
        ('stage,instruction,frequency,time,energy\n"' + "0" * 200_000, "not valid CSV"),
        ('{"rows": 3}', "not a list of rows"),
        ("[1]", "not a list of rows"),
        ('[{"stage": 0, "instruction": "F", "frequency": true}]', "time None"),
    ],
)
def test_broken_profiles(tmp_path, text, message):
    """A broken profile would show a traceback, or give a wrong plan."""
    with pytest.raises(FileError, match=message):
        _read(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path):
    """A missing or binary file would show a traceback."""
    with pytest.raises(FileError, match="No such file"):
        read_profiles(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(FileError, match="not text"):
        read_profiles(tmp_path / "binary")


def test_missing_profile_names_stage_and_instruction(tmp_path):
    """The missing measurement would not be named."""
    profiles = _read(tmp_path, _CSV.replace("1,backward,1410,0.30,120.0,64,\n", ""))
    with pytest.raises(
        InvalidValueError, match=r"no profile for backward of stage 1.*profile\.csv"
    ):
        build_problem(make_schedule("1f1b", 2, 2), profiles)


def test_wrong_number_of_stages(tmp_path):
    """Stages would be taken from nowhere."""
    with pytest.raises(InvalidValueError, match="has 2 stages, but the schedule 3"):
        build_problem(make_schedule("1f1b", 3, 3), _read(tmp_path, _CSV))


def test_stages_are_split_among_chunks(tmp_path):
    """Interleaving would do the work of each stage several times."""
    profiles = _read(tmp_path, _CSV)
    full = profiles.points(1, "forward", 2)[0]
    piece = profiles.points(3, "forward", 4)[0]
    assert (piece.seconds, piece.joules) == (full.seconds / 2, full.joules / 2)
    problem = build_problem(
        make_schedule("interleaved", 2, 2), profiles, PipelineConfig(devices_per_rank=2)
    )
    assert sum(len(rank) for rank in make_schedule("interleaved", 2, 2).ranks) == len(problem)


def test_halves_are_made_of_wholes_and_wholes_of_halves():
    """Zero-bubble schedules would need a profile of their own."""
    rows = [
        {"stage": 0, "instruction": kind, "frequency": f, "time": t * 1400 / f, "energy": 50.0 * t}
        for kind, t in (("F", 1.0), ("I", 1.2), ("W", 0.8))
        for f in (1400, 700)
    ]
    full = profiles_from_rows(rows).points(0, "backward", 1)
    assert [(p.seconds, p.joules) for p in full] == [(2.0, 100.0), (4.0, 100.0)]
    rows = [dict(row, instruction="B") for row in rows if row["instruction"] == "I"]
    half = profiles_from_rows(rows).points(0, "backward_weight", 1)
    assert half[0].seconds == 0.6
    with pytest.raises(InvalidValueError, match="no profile for recompute"):
        profiles_from_rows(rows).points(0, "recompute", 1)


def test_recomputation_is_a_forward_unless_measured():
    """Early recomputation would need a profile of its own."""
    rows = [{"stage": 0, "instruction": "F", "frequency": 1400, "time": 1.0, "energy": 50.0}]
    assert profiles_from_rows(rows).points(0, "recompute", 1)[0].joules == 50.0
    rows.append({"stage": 0, "instruction": "R", "frequency": 1400, "time": 0.9, "energy": 45.0})
    assert profiles_from_rows(rows).points(0, "recompute", 1)[0].joules == 45.0


def test_scaled_work(tmp_path):
    """A profile of a fraction of a microbatch could not be used."""
    point = _read(tmp_path, _CSV).scaled(10).points(0, "forward", 2)[0]
    assert (point.seconds, point.joules) == (1.0, 400.0)
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidValueError, match="cannot scale"):
            _read(tmp_path, _CSV).scaled(factor)


@pytest.mark.data
@pytest.mark.skipif(not _DATA.is_dir(), reason="no measurements by others here")
def test_measured_profiles_are_read_and_hardly_changed():
    """Profiles measured by others would not be read, or be smoothed out of recognition."""
    files = sorted((_DATA / "pipeline/profiles").glob("*.csv"))
    assert files
    for path in files:
        cleaned = read_profiles(path)
        with path.open(encoding="utf-8") as file:
            raw = profiles_from_rows(csv.DictReader(file), smooth=False)
        assert cleaned.notes
        for key, curve in raw.instructions.items():
            pairs = list(zip(curve.points, cleaned.instructions[key].points, strict=True))
            times = [abs(after.seconds / before.seconds - 1) for before, after in pairs]
            energies = [abs(after.joules / before.joules - 1) for before, after in pairs]
            assert sum(times) / len(times) < 0.01
            assert sum(energies) / len(energies) < 0.01


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frequency": 1.41e9}, "in MHz, not in Hz"),
        ({"frequency": 1.41e6}, "in MHz, not in Hz"),
        ({"frequency": 1.41}, "in MHz, not in Hz, kHz or GHz"),
        ({"relative_eror": 0.12}, "no column 'relative_eror'"),
        ({"waiting_watts": -1}, "waiting_watts -1 is negative"),
        ({"relative_error": 0.12}, "known to 12 % only"),
    ],
)
def test_rows_that_cannot_be_meant_are_refused(change, words):
    """If it fails clocks in hertz, or guesses, are planned as if they were measurements."""
    row = {"stage": 0, "instruction": "forward", "frequency": 1410, "time": 0.1, "energy": 20.0}
    profiles_from_rows([row | {"relative_error": 0.01}])
    with pytest.raises(FileError, match=words):
        profiles_from_rows([row | change])


def test_the_time_between_stages_is_read_whatever_the_clocks_of_machines():
    """If it fails communication that was measured counts nothing, or hours between two machines."""
    hop, offset = 0.003, 5000.0
    base = {"frequency": 1410, "time": 0.1, "energy": 20.0}
    rows = [
        base | {"stage": stage, "instruction": kind, "moments": moments}
        for stage, kind, moments in (
            (0, "forward", [[0, 0.0, 0.1], [1, 0.1, 0.2]]),
            (
                1,
                "forward",
                [[0, 0.1 + hop + offset, 0.2 + offset], [1, 0.4 + offset, 0.5 + offset]],
            ),
            (1, "backward", [[0, 0.2 + offset, 0.3 + offset], [1, 0.5 + offset, 0.6 + offset]]),
            (0, "backward", [[0, 0.35, 0.4], [1, 0.6 + hop, 0.7]]),
        )
    ]
    assert profiles_from_rows(rows).communication_seconds == pytest.approx((hop,))
    rows[3].pop("moments")
    assert profiles_from_rows(rows).communication_seconds == ()
    with pytest.raises(FileError, match="moments are no"):
        profiles_from_rows([rows[0] | {"moments": 3}])


@pytest.mark.parametrize(("seconds", "joules"), [(100.0, 20.0), (0.1, 20_000.0)])
def test_implausible_power_is_noted(seconds, joules):
    """If it fails times in milliseconds or energies in millijoules are planned without a word."""
    row = {"stage": 0, "instruction": "forward", "frequency": 1410, "energy": joules}
    assert (
        "check that times are in seconds" in profiles_from_rows([row | {"time": seconds}]).notes[-1]
    )


def _rows(clocks=range(1410, 900, -60), stages=2):
    return [
        {
            "stage": stage,
            "instruction": kind,
            "frequency": clock,
            "time": work * 1410 / clock,
            "energy": work * (100 * 1410 / clock + 300 * (clock / 1410) ** 2),
        }
        for stage in range(stages)
        for kind, work in (("forward", 0.1), ("backward", 0.2))
        for clock in clocks
    ]


@pytest.mark.parametrize("changed", ["time", "energy"])
def test_rows_of_one_clock_that_differ_are_noted_and_contradictions_refused(changed):
    """If it fails a mean of two boards, or of two units, is planned without a word."""
    rows = _rows()
    again = [row | {changed: 1.04 * row[changed]} for row in rows if row["stage"] == 1]
    assert profiles_from_rows(rows).notes == []
    assert profiles_from_rows(rows + rows).notes == [], "rows that are there twice change nothing"
    assert (
        "averaged rows of the same clock, whose means are known to 2 %"
        in profiles_from_rows(rows + again).notes
    )
    again = [row | {changed: 2 * row[changed]} for row in rows if row["stage"] == 1]
    with pytest.raises(FileError, match="forward of stage 1 has several of one clock"):
        profiles_from_rows(rows + again)


def test_stages_that_are_split_are_noted():
    """If it fails a plan of more stages than were measured looks like one of measured stages."""
    profiles = profiles_from_rows(_rows())
    assert profiles.split_notes(2) == []
    (note,) = profiles.split_notes(6)
    assert note.startswith("each of the 2 measured stages is split evenly into 3")


def test_work_that_was_not_measured_at_the_highest_clock_is_noted():
    """If it fails full clocks are slower than those of the board, and plans as slow."""
    rows = [r for r in _rows() if (r["stage"], r["frequency"]) != (1, 1410)]
    (note,) = profiles_from_rows(rows).notes
    assert note.startswith("forward of stage 1 was measured up to 1350 MHz only, others up to 1410")


def test_throttling_is_noted():
    """If it fails nobody hears that full clocks are lower ones than the highest measured."""
    rows = _rows()
    for row in rows:
        if (row["stage"], row["frequency"]) == (1, 1410):
            row["time"] *= 2
    assert any(
        "throttled: forward of stage 1 and 1 more; full clocks are 1350 MHz there" in note
        for note in profiles_from_rows(rows).notes
    )


def test_a_folder_holds_a_file_per_rank(tmp_path):
    """If it fails what the ranks' profilers wrote must be gathered by hand."""
    for stage in (0, 1):
        rows = [
            {"stage": stage, "instruction": kind, "frequency": clock, "time": 0.1, "energy": 20.0}
            for kind in ("forward", "backward")
            for clock in (1410, 1200)
        ]
        (tmp_path / f"rank{stage}.json").write_text(json.dumps(rows))
    assert read_profiles(tmp_path).stages == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no measurements"):
        read_profiles(tmp_path / "empty")
