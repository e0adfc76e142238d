"""Reading traces: what is understood, and what is refused with file, row and column."""

import math
import sys

import numpy as np
import pytest

from joulery.errors import FileError, InvalidValueError, MissingExtraError
from joulery.simulate import read_traces

TRAIN_HEADER = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"
POWER_HEADER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"
SPEC_HEADER = "dataset,target_metric,default_batch_size,max_epochs"


@pytest.fixture
def zeus(tmp_path):
    """A folder laid out like the published traces; its parts can be written anew."""
    train = [
        f"{name},net,{size},adam,0.1,{run},{target},{epoch}"
        for name in ("squad", "other")
        for size in (16, 32, 64)
        for run, epoch in ((1, 3), (2, 4))
        for target, epoch in ((84.0, epoch + size // 32), (90.0, "nan"))
    ]
    power = [
        f"{name},net,{size},adam,{watts},{1000 / watts + size},{0.8 * watts}"
        for name in ("squad", "other")
        for size in (16, 32, 64)
        for watts in (100, 200)
    ]
    _write(tmp_path / "summary_train.csv", TRAIN_HEADER, train)
    _write(tmp_path / "summary_power_k80.csv", POWER_HEADER, power)
    return tmp_path


def _write(path, header, rows):
    path.write_text("\n".join([header, *rows]) + "\n")


def _append(path, row):
    path.write_text(path.read_text() + row + "\n")


def _refused(folder, *words):
    with pytest.raises(FileError) as refusal:
        read_traces(folder)
    for word in words:
        assert word in refusal.value.message
    assert refusal.value.remedy


def test_published_workload_is_known(zeus):
    """Default, target and epochs of the published workloads need no table."""
    squad = read_traces(zeus).select(datasets=["squad"]).workloads[0]
    assert (squad.gpu, squad.default, squad.max_epochs) == ("k80", 32, 6)
    assert squad.batch_sizes == (16, 32, 64)
    assert squad.epochs.tolist() == [[3, 4], [4, 5], [5, 6]]
    assert squad.limits_watts.tolist() == [100, 200]
    assert squad.epoch_seconds[0].tolist() == [26, 21]
    assert squad.watts[0].tolist() == [80, 160]
    assert squad.max_watts == 200


def test_unknown_workload_is_assumed_and_said(zeus):
    """A workload that nobody described is still simulated, and the assumption is told."""
    traces = read_traces(zeus)
    other = traces.select(datasets=["other"]).workloads[0]
    assert (other.default, other.max_epochs) == (64, 6)
    assert any("other/net/adam" in one and "target_metric 84" in one for one in traces.remarks)


def test_table_of_workloads_wins(zeus):
    """What the user states goes before what was published or assumed."""
    _write(zeus / "workloads.csv", SPEC_HEADER, ["squad,84,16,9", "other,84.0,32,5"])
    loads = {load.dataset: load for load in read_traces(zeus).workloads}
    assert (loads["squad"].default, loads["squad"].max_epochs) == (16, 9)
    assert loads["other"].default == 32
    assert np.isnan(loads["other"].epochs[2, 1])


def test_runs_beyond_the_most_epochs_did_not_reach(zeus):
    """A run that needs more epochs than allowed has failed."""
    _write(zeus / "workloads.csv", SPEC_HEADER, ["squad,84,16,4"])
    squad = read_traces(zeus).select(datasets=["squad"]).workloads[0]
    assert np.isnan(squad.epochs).tolist() == [[False, False], [False, True], [True, True]]


def test_missing_default_falls_back_where_published(zeus):
    """A board without memory for the default takes the largest size that always gets there."""
    path = zeus / "summary_power_k80.csv"
    rows = [line for line in path.read_text().splitlines() if ",32," not in line]
    path.write_text("\n".join(rows) + "\n")
    assert read_traces(zeus).select(datasets=["squad"]).workloads[0].default == 64


def test_missing_cells_are_taken_from_their_neighbours(zeus):
    """A policy may choose any limit; one that was not measured lies between those that were."""
    path = zeus / "summary_power_k80.csv"
    for size in (16, 32, 64):
        _append(path, f"squad,net,{size},adam,150,{40 + size},120")
    path.write_text(path.read_text().replace("squad,net,32,adam,150,72,120\n", ""))
    path.write_text(path.read_text().replace("squad,net,16,adam,100,26.0,80.0\n", ""))
    traces = read_traces(zeus)
    squad = traces.select(datasets=["squad"]).workloads[0]
    assert squad.epoch_seconds[1, 1] == pytest.approx(math.sqrt(42 * 37))
    assert squad.watts[1, 1] == pytest.approx(math.sqrt(80 * 160))
    assert squad.epoch_seconds[0] == pytest.approx([56, 56, 21])
    assert any("2 settings" in remark for remark in traces.remarks)


def test_what_has_no_power_data_is_left_out_and_said(zeus):
    """Batch sizes that a board never ran cannot be replayed on it."""
    _append(zeus / "summary_train.csv", "squad,net,128,adam,0.1,1,84.0,3")
    traces = read_traces(zeus)
    assert 128 not in traces.select(datasets=["squad"]).workloads[0].batch_sizes
    assert any("128" in remark for remark in traces.remarks)
    assert not any("128" in remark for remark in traces.select(datasets=["other"]).remarks)


def test_folder_above_is_understood(zeus, tmp_path):
    """Benchmarks point to the folder of all data, where these traces are one part."""
    (tmp_path / "data").mkdir()
    inner = tmp_path / "data" / "zeus"
    inner.mkdir()
    for file in list(zeus.glob("summary_*")):
        (inner / file.name).write_text(file.read_text())
    assert len(read_traces(tmp_path / "data").workloads) == 2


@pytest.mark.parametrize("column", ["target_epoch", "batch_size", "dataset"])
def test_missing_column_is_named(zeus, column):
    """A file with another layout must not be half understood."""
    path = zeus / "summary_train.csv"
    path.write_text(path.read_text().replace(column, "else", 1))
    _refused(zeus, "summary_train.csv", "row 1", column)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("squad,net,16,adam,300,nan,100", "time_per_epoch"),
        ("squad,net,16,adam,300,1,-5", "average_power"),
        ("squad,net,16.5,adam,300,1,5", "batch_size"),
        ("squad,net,16,adam,inf,1,5", "power_limit"),
        ("squad,net,16,adam,300,soon,5", "time_per_epoch"),
        ("squad,net,16,adam,200,1,5", "power_limit"),
        ("squad,,16,adam,300,1,5", "network"),
    ],
)
def test_bad_power_row_is_named(zeus, row, column):
    """Nobody finds one bad number in five hundred rows without its place."""
    _append(zeus / "summary_power_k80.csv", row)
    _refused(zeus, "summary_power_k80.csv", "row 14", column)


def test_bad_epoch_is_named(zeus):
    """Zero epochs to the target would be free training."""
    _append(zeus / "summary_train.csv", "squad,net,16,adam,0.1,3,84.0,0")
    _refused(zeus, "summary_train.csv", "row 26", "target_epoch")


def test_unreachable_target_is_named(zeus):
    """A target that no run reached leaves nothing to replay."""
    _write(zeus / "workloads.csv", SPEC_HEADER, ["squad,90,16,9"])
    with pytest.raises((FileError, InvalidValueError), match=r"never reaches|no run reaches"):
        read_traces(zeus)


def test_unknown_target_lists_the_known(zeus):
    """A typing error in the target must not end in an empty set of runs."""
    _write(zeus / "workloads.csv", SPEC_HEADER, ["squad,85,16,9"])
    with pytest.raises(FileError, match="target_metric has no 85") as refusal:
        read_traces(zeus)
    assert "84, 90" in refusal.value.remedy


def test_default_outside_the_set_is_refused(zeus):
    """A default that the user states is not silently replaced."""
    _write(zeus / "workloads.csv", SPEC_HEADER, ["squad,84,48,9"])
    _refused(zeus, "default_batch_size 48")


def test_no_common_batch_size(zeus):
    """Runs and power figures of different batch sizes make no workload."""
    _write(zeus / "summary_train.csv", TRAIN_HEADER, ["squad,net,8,adam,0.1,1,84.0,3"])
    _refused(zeus, "summary_power_k80.csv", "squad/net/adam")


def test_nothing_in_common(zeus):
    """Names that differ between the files are a mistake, not an empty result."""
    _write(zeus / "summary_train.csv", TRAIN_HEADER, ["set,net,8,adam,0.1,1,84.0,3"])
    _refused(zeus, "no dataset")


@pytest.mark.parametrize("content", ["", TRAIN_HEADER + "\n"])
def test_empty_file(zeus, content):
    """An empty file is an error, not an empty result."""
    (zeus / "summary_train.csv").write_text(content)
    _refused(zeus, "summary_train.csv")


def test_no_power_files(zeus):
    """Runs alone cannot be replayed on anything."""
    (zeus / "summary_power_k80.csv").unlink()
    _refused(zeus, "summary_power_*.csv")


def test_binary_file(zeus):
    """A file that is no text is said to be none."""
    (zeus / "summary_train.csv").write_bytes(b"\xff\xfe\x00\x01")
    _refused(zeus, "summary_train.csv")


def test_missing_folder(tmp_path):
    """A wrong path is said to be one, with what belongs there."""
    _refused(tmp_path / "none", "no folder of traces")


def test_selecting_what_is_not_there(zeus):
    """A misspelt GPU must not select nothing."""
    with pytest.raises(InvalidValueError, match="no GPU 'k81'"):
        read_traces(zeus).select(gpus=["k81"])


@pytest.fixture
def own(tmp_path):
    """A folder with the three tables of one's own."""
    _write(
        tmp_path / "runs.csv",
        "job,batch_size,epochs",
        ["nightly,32,7", "nightly,64,", "nightly,64,9"],
    )
    _write(
        tmp_path / "power.csv",
        "gpu,job,batch_size,limit_watts,epoch_seconds,watts",
        [
            f"{gpu},nightly,{size},{watts},{100 - watts / 10},{watts - 10}"
            for gpu in ("l4", "h100")
            for size in (32, 64)
            for watts in (50, 70)
        ],
    )
    _write(tmp_path / "jobs.csv", "job,default_batch_size,max_epochs", ["nightly,32,20"])
    return tmp_path


def test_own_tables(own):
    """Anyone can describe their own jobs in three small tables."""
    loads = read_traces(own).workloads
    assert [load.gpu for load in loads] == ["h100", "l4"]
    load = loads[0]
    assert (load.dataset, load.default, load.max_epochs) == ("nightly", 32, 20)
    assert math.isnan(load.epochs[1, 0])
    assert load.epochs[1, 1] == 9
    assert load.runs.tolist() == [1, 2]


@pytest.mark.parametrize("table", ["runs", "power", "jobs"])
def test_own_table_missing(own, table):
    """Each of the three tables is needed."""
    (own / f"{table}.csv").unlink()
    _refused(own, table)


def test_own_batch_size_without_power(own):
    """In tables of one's own every run is meant to count."""
    _append(own / "runs.csv", "nightly,128,5")
    _refused(own, "runs.csv", "row 5", "batch_size", "128")


def test_own_job_without_description(own):
    """A job needs a default and a number of epochs."""
    (own / "jobs.csv").write_text("job,default_batch_size,max_epochs\nweekly,32,20\n")
    _refused(own, "nightly")


def test_own_job_without_runs(own):
    """Power data alone cannot be replayed."""
    (own / "runs.csv").write_text("job,batch_size,epochs\nweekly,32,7\n")
    _refused(own, "nightly", "no runs")


def test_own_default_never_reaches(own):
    """A default that never gets there cannot be compared with."""
    _write(own / "runs.csv", "job,batch_size,epochs", ["nightly,32,", "nightly,64,9"])
    with pytest.raises(InvalidValueError, match="default batch size 32 never reaches"):
        read_traces(own)


def test_parquet_without_pyarrow(own, monkeypatch):
    """Without pyarrow a Parquet table is refused with what to install."""
    (own / "runs.csv").rename(own / "runs.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        read_traces(own)


def test_parquet_reads_as_csv_does(own):
    """The same tables as Parquet, with typed columns and nulls, give the same traces."""
    from pyarrow import csv as arrow_csv, parquet

    wanted = read_traces(own)
    for table in ("jobs", "runs", "power"):
        frame = arrow_csv.read_csv(own / f"{table}.csv")
        parquet.write_table(frame, own / f"{table}.parquet")
        (own / f"{table}.csv").unlink()
    for read, as_csv in zip(read_traces(own).workloads, wanted.workloads, strict=True):
        assert read.batch_sizes == as_csv.batch_sizes
        np.testing.assert_array_equal(read.epochs, as_csv.epochs)
        np.testing.assert_array_equal(read.watts, as_csv.watts)


def test_parquet_that_is_none(own):
    """A file of another kind under that name is refused by name."""
    (own / "runs.csv").rename(own / "runs.parquet")
    _refused(own, "runs.parquet")
