import numpy as np
import pytest

from joulery.errors import FileError, InvalidValueError
from joulery.simulate import JobGroups, generate_groups, read_groups
from joulery.simulate._recurring_cluster import default_seconds, k_means, match_groups


def _written(path, *rows):
    path.write_text("job,group,submit_seconds,duration_seconds\n" + "".join(f"{r}\n" for r in rows))
    return path


def test_jobs_are_sorted_into_groups_by_submission(tmp_path):
    """A job would decide before one that was submitted earlier."""
    path = _written(tmp_path / "g.csv", "j1,b,30,5", "j2,a,10,8", "j3,b,20,6", "j4,b,10,7")
    groups = read_groups(path)
    assert len(groups) == 2
    assert groups.sizes.tolist() == [3, 1]
    assert groups.submit_seconds.tolist() == [10.0, 20.0, 30.0, 10.0]
    assert groups.duration_seconds.tolist() == [7.0, 6.0, 5.0, 8.0]
    assert groups.mean_seconds.tolist() == [6.0, 8.0]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("j,a,x,5", "row 2: submit_seconds is no number: 'x'"),
        ("j,a,1,nan", "row 2: duration_seconds must be finite"),
        ("j,a,1,0", "row 2: duration_seconds must be positive"),
        ("j,a", "row 2: submit_seconds is empty"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, complaint):
    """Nobody finds one bad row among a million."""
    with pytest.raises(FileError, match=complaint):
        read_groups(_written(tmp_path / "g.csv", row))


def test_missing_columns_and_files_are_named(tmp_path):
    """The error would not say what to do."""
    path = tmp_path / "g.csv"
    path.write_text("group,submit_seconds\na,1\n")
    with pytest.raises(FileError, match="duration_seconds"):
        read_groups(path)
    with pytest.raises(FileError, match="has no rows"):
        read_groups(_written(tmp_path / "empty.csv"))
    with pytest.raises(FileError, match="cannot read"):
        read_groups(tmp_path / "absent.csv")


def _philly(path, rows=60):
    lines = [
        f"2017-10-09 {hour:02d}:{minute:02d}:00,{duration},1,1,vc{owner}"
        for number in range(rows)
        for hour, minute, duration, owner in [
            (number // 60, number % 60, 100 if number % 2 else 5000, number % 3)
        ]
    ]
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(lines) + "\n")
    return path


def test_generated_groups_hold_similar_jobs_of_one_owner(tmp_path):
    """A group would mix jobs that have nothing in common."""
    groups = generate_groups(_philly(tmp_path / "philly.csv"), 60)
    assert len(groups) == 6
    assert groups.jobs == 60
    for begin, end in zip(groups.first[:-1], groups.first[1:], strict=True):
        assert np.ptp(groups.duration_seconds[begin:end]) == 0
        assert (np.diff(groups.submit_seconds[begin:end]) > 0).all()
    assert "synthetic" in groups.remark


def test_generated_copies_make_as_many_jobs_as_asked_for(tmp_path):
    """A replay of a million jobs would have but a few."""
    groups = generate_groups(_philly(tmp_path / "philly.csv"), 250)
    assert groups.jobs == 250
    assert "varied copies" in groups.remark
    again = generate_groups(_philly(tmp_path / "philly.csv"), 250)
    assert (again.submit_seconds == groups.submit_seconds).all()


def test_generated_from_hours(tmp_path):
    """Jobs of the Alibaba sample would be thousands of times too short."""
    path = tmp_path / "pai.csv"
    path.write_text("arrival_time,length,cpus\n" + "".join(f"{n},1.5,1\n" for n in range(20)))
    assert generate_groups(path, 20).duration_seconds[0] == pytest.approx(5400.0)


def test_a_list_of_something_else_is_refused(tmp_path):
    """A wrong file would be read as jobs."""
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="not a known trace"):
        generate_groups(path, 10)


def test_k_means_finds_separate_clusters_in_order():
    """Groups would be matched to workloads of another length."""
    values = np.array([10.0, 1.0, 1.1, 9.9, 100.0, 0.9])
    assert k_means(values, 3).tolist() == [1, 0, 0, 1, 2, 0]


def test_the_longest_cluster_gets_the_longest_workload(small_workload):
    """Short jobs would stand for long trainings."""
    loads = [small_workload(dataset="long", scale=100.0), small_workload(dataset="short")]
    assert default_seconds(loads[0]) == pytest.approx(100 * 8 * 15.5)
    groups = JobGroups.of(
        np.repeat([0, 1], 3), np.arange(6.0), np.array([5.0, 6, 7, 500, 600, 700])
    )
    workload, ratio = match_groups(groups, loads)
    assert workload.tolist() == [1, 0]
    assert ratio.tolist() == pytest.approx([5 / 6, 1, 7 / 6, 5 / 6, 1, 7 / 6])


def test_too_few_groups_are_refused(small_workload):
    """Clusters would be empty."""
    groups = JobGroups.of(np.zeros(2, dtype=int), np.arange(2.0), np.ones(2))
    with pytest.raises(InvalidValueError, match="1 groups"):
        match_groups(groups, [small_workload(), small_workload(dataset="b")])
