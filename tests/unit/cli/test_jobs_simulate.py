"""``joulery jobs simulate``: what it prints, writes and refuses."""

import csv
import json

import pytest

from joulery.cli import jobs
from joulery.cli.dispatch import Parser, run_command
from joulery.jobs.policies import policy_names

STABLE = {
    *("gpu", "dataset", "policy", "recurrences", "seeds", "regret_mean", "regret_sd"),
    *("eta_last5_vs_default", "tta_last5_vs_default", "cost_total_vs_default"),
}


@pytest.fixture
def traces(tmp_path):
    """Two jobs' own tables on one board."""
    sizes, limits = (32, 64, 128), (100, 200)
    (tmp_path / "runs.csv").write_text(
        "job,batch_size,epochs\n"
        + "".join(
            f"{job},{size},{10 + run + size // 32}\n"
            for job in ("nightly", "weekly")
            for size in sizes
            for run in range(3)
        )
    )
    (tmp_path / "power.csv").write_text(
        "gpu,job,batch_size,limit_watts,epoch_seconds,watts\n"
        + "".join(
            f"l4,{job},{size},{limit},{3000 / limit + 900 / size},{0.9 * limit}\n"
            for job in ("nightly", "weekly")
            for size in sizes
            for limit in limits
        )
    )
    (tmp_path / "jobs.csv").write_text(
        "job,default_batch_size,max_epochs\nnightly,128,30\nweekly,64,30\n"
    )
    return tmp_path


@pytest.fixture
def simulate(traces, capsys):
    """Run the command on the traces; exit code, stdout, stderr."""

    def run(*options):
        code = run_command("jobs", "what if", ["simulate", "--trace", str(traces), *options])
        return code, *capsys.readouterr()

    return run


def test_json_is_stable(simulate):
    """Other tools build on these names."""
    code, out, _ = simulate("--policy", "zeus,default", "--seeds", "3", "--json")
    results = json.loads(out)["results"]
    assert code == 0
    assert len(results) == 4
    assert all(set(result) >= STABLE for result in results)
    assert {result["recurrences"] for result in results} == {12}
    default = next(result for result in results if result["policy"] == "default")
    assert default["cost_total_vs_default"] == pytest.approx(1, abs=0.1)


def test_same_seeds_same_figures(simulate):
    """A simulation replays from its seeds."""
    options = ("--policy", "zeus", "--seeds", "4", "--json", "--recurrences", "30")
    assert simulate(*options) == simulate(*options)


def test_table_for_people(simulate):
    """One row per job and policy, with what the columns mean."""
    code, out, _ = simulate("--policy", "grid,oracle", "--seeds", "2", "--dataset", "weekly")
    assert code == 0
    assert "weekly" in out
    assert "nightly" not in out
    assert "Means over 2 seeds" in out


def test_options_reach_the_simulation(simulate):
    """Every what-if changes something."""
    base = ("--policy", "zeus", "--seeds", "5", "--json", "--recurrences", "40")
    plain = simulate(*base)[1]
    for more in (
        ("--eta", "1"),
        ("--beta", "1.1"),
        ("--window", "2"),
        ("--overlap", "5"),
        ("--concurrency", "5"),
        ("--drift", "optimum@10"),
    ):
        code, out, _ = simulate(*base, *more)
        assert code == 0
        assert out != plain, more


def test_log_has_every_action(simulate, tmp_path):
    """Who wonders about a choice finds it with its reason."""
    path = tmp_path / "log.csv"
    code, _, _ = simulate("--policy", "zeus,default", "--seeds", "2", "--log", str(path))
    assert code == 0
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["policy"] for row in rows} == {"zeus", "default"}
    assert len(rows) >= 2 * 2 * 2 * 12


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "zues"),
        ("--policy", ","),
        ("--device", "h100"),
        ("--dataset", "hourly"),
        ("--seeds", "0"),
        ("--seeds", "many"),
        ("--recurrences", "0"),
        ("--eta", "half"),
        ("--eta", "2"),
        ("--eta", "nan"),
        ("--beta", "0.5"),
        ("--beta", "x"),
        ("--window", "1"),
        ("--overlap", "0"),
        ("--drift", "sometimes"),
        ("--drift", "x@1"),
    ],
)
def test_wrong_use(simulate, options):
    """Wrong use ends with exit code 2, a line and a remedy, and prints no figures."""
    code, out, err = simulate("--json", *options)
    assert code == 2
    assert "→" in err
    assert "results" not in json.loads(out)


def test_bad_traces_write_nothing(simulate, traces):
    """A damaged table ends the command before any file is written."""
    with (traces / "power.csv").open("a") as file:
        file.write("l4,nightly,32,300,nan,90\n")
    code, _, err = simulate("--log", str(traces / "log.csv"))
    assert code == 2
    assert "power.csv, row 14: epoch_seconds" in err
    assert not (traces / "log.csv").exists()


def test_unwritable_log(simulate, traces):
    """A log that cannot be written is an error of its own."""
    code, _, err = simulate(
        "--policy", "default", "--seeds", "1", "--log", str(traces / "no" / "log")
    )
    assert code == 2
    assert "no folder" in err


@pytest.mark.parametrize("action", ["simulate", "replay"])
def test_unknown_policies_are_named(action, traces, capsys):
    """A typing error would surface after minutes of work."""
    options = [action, "--trace", str(traces), "--policy", "default,zeuss"]
    options += ["--groups", "/nowhere"] if action == "replay" else []
    assert run_command("jobs", "what if", options) == 2
    assert "'zeuss'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "-0.1", "1.1", "nan"])
def test_eta_is_a_share(text, capsys):
    """A weight outside of 0 to 1 would reward waste."""
    options = ["replay", "--trace", "t", "--groups", "g", f"--eta={text}"]
    assert run_command("jobs", "what if", options) == 2
    assert "--eta" in capsys.readouterr().err


def test_options_parse():
    """The command could not be called as documented."""
    parser = Parser()
    jobs.COMMAND.define(parser)
    arguments = parser.parse_args(["replay", "--trace", "t", "--groups", "g", "--generate"])
    assert arguments.generate == 50_000
    assert arguments.policy == ["default", "grid", "zeus", "joulery"]


def test_help_lists_every_policy(capsys):
    """A policy that was added could not be found."""
    assert run_command("jobs", "what if", ["simulate", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*policy_names(), "oracle"))
