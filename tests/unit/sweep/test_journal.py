import json
from dataclasses import replace

import pytest

from joulery.errors import FileError, UsageError
from joulery.sweep import FinishedRun, SweepJournal, SweepPlan, Trial
from joulery.sweep._journal import FILE_NAME

PLAN = SweepPlan(("train",), ("a", "b"), (200.0, 100.0), (1, 2), 2, 200.0)
RUN = FinishedRun(0, 2, 200.0, 0, 12.5, 900.0, 700.0, 0.0, "measured", "counter", 0.01, ("gap",))


def write(folder, *runs, plan=PLAN):
    """A journal with some runs, closed."""
    with SweepJournal.open(folder, plan) as journal:
        for run in runs:
            journal.append(run)


def recorded(folder):
    """The runs in a journal."""
    with SweepJournal.open(folder, PLAN) as journal:
        return journal.runs


def test_runs_come_back_as_they_were(tmp_path):
    """A sweep that goes on would mix wrong figures with right ones."""
    failed = replace(RUN, watts=100.0, exit_code=3, relative_error=None)
    write(tmp_path, RUN)
    write(tmp_path, failed)
    with SweepJournal.open(tmp_path, PLAN) as journal:
        assert journal.runs == [RUN, failed]
        assert journal.done == {Trial(0, 2, 200.0)}


def test_lines_are_only_appended(tmp_path):
    """A crash while rewriting would lose hours of runs."""
    write(tmp_path, RUN)
    before = (tmp_path / FILE_NAME).read_bytes()
    write(tmp_path, replace(RUN, repeat=1))
    assert (tmp_path / FILE_NAME).read_bytes().startswith(before)


def test_every_run_is_on_the_disk_when_it_is_recorded(tmp_path, monkeypatch):
    """A power cut would lose runs that were reported as done."""
    synced = []
    with SweepJournal.open(tmp_path, PLAN) as journal:
        monkeypatch.setattr(
            "os.fsync", lambda _: synced.append((tmp_path / FILE_NAME).read_bytes())
        )
        journal.append(RUN)
    assert len(synced) == 1
    assert synced[0].endswith(b"\n")
    assert json.loads(synced[0].splitlines()[-1])["joules"] == RUN.joules


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_cut_short_is_dropped(tmp_path, cut):
    """A crash in the middle of a write would make the journal useless."""
    write(tmp_path, RUN, replace(RUN, repeat=1))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    write(tmp_path, replace(RUN, repeat=1, seconds=99.0))
    assert [run.seconds for run in recorded(tmp_path)] == [12.5, 99.0]


def test_a_header_cut_short_starts_over(tmp_path):
    """A crash right at the start would block the folder for good."""
    (tmp_path / FILE_NAME).write_bytes(b'{"schema": "joul')
    write(tmp_path, RUN)
    assert recorded(tmp_path) == [RUN]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"work": ("other",)}, "other work"),
        ({"limits_watts": (200.0,)}, "other limits_watts"),
        ({"repeats": 3, "gpu_counts": (1,)}, "other gpu_counts and repeats"),
    ],
)
def test_another_plan_is_refused(tmp_path, change, word):
    """Runs of two different sweeps would be averaged."""
    write(tmp_path, RUN)
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(UsageError, match=word) as refused:
        SweepJournal.open(tmp_path, replace(PLAN, **change))
    assert "--out" in refused.value.remedy
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_two_sweeps_cannot_share_a_folder(tmp_path):
    """Each would set limits under the other's runs."""
    with (
        SweepJournal.open(tmp_path, PLAN),
        pytest.raises(UsageError, match="another sweep is writing"),
    ):
        SweepJournal.open(tmp_path, PLAN)
    write(tmp_path, RUN)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"gpus": 1}\n', b'{"surprise": 1}\n'])
def test_damage_is_reported_with_its_line(tmp_path, line):
    """A traceback would tell the user nothing, and a silent skip would run things twice."""
    write(tmp_path, RUN)
    with (tmp_path / FILE_NAME).open("ab") as journal:
        journal.write(line)
    with pytest.raises(FileError, match="line 3 of"):
        SweepJournal.open(tmp_path, PLAN)


def test_some_other_file_is_no_journal(tmp_path):
    """A user's own file of that name would be appended to."""
    (tmp_path / FILE_NAME).write_text('{"mine": true}\n')
    with pytest.raises(FileError, match="line 1"):
        SweepJournal.open(tmp_path, PLAN)


def test_a_folder_that_is_missing_is_reported(tmp_path):
    """A traceback would tell the user nothing."""
    with pytest.raises(FileError, match="cannot write"):
        SweepJournal.open(tmp_path / "none", PLAN)
