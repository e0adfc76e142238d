"""Files of a new cluster, and settings that contradict each other."""

import json
import re
import subprocess

import pytest

from joulery.cli import main
from joulery.cluster import SitePlan, metrics_text, read_agent_settings, write_site
from joulery.errors import FileError, InvalidValueError
from unit.cluster.test_agent import Bench

INIT = ("cluster", "init", "--boards", "8", "--budget", "9kW", "--fallback", "150")


def settings_file(tmp_path, text, **files):
    """An agent's settings beside a few other files."""
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(content)
    path = tmp_path / "agent.toml"
    path.write_text(f'budget_watts = 2000\nstate = "state"\n{text}\n[nodes]\nn1 = "n1:7001"\n')
    return path


@pytest.mark.parametrize("nodes", ["../x", "n[1-2", "n[a-b]", "n[3-1]", "n 1", "", "n1,n1"])
def test_names_that_are_not_nodes_are_refused(tmp_path, capsys, nodes):
    """A key is written outside the folder, or a cluster of other nodes set up."""
    words = ("--out", str(tmp_path / "site"), "--limits", "100,400", "--nodes", nodes)
    assert main([*INIT, *words]) == 2
    assert "→" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nodes_with_domains_and_addresses_get_settings_and_certificates_that_work(tmp_path):
    """A dot in a node's name breaks the settings, or its certificate names no address."""
    nodes = ("n1.hall.example", "10.0.0.7")
    write_site(tmp_path, SitePlan(nodes, 8, 9000.0), {})
    settings = read_agent_settings(tmp_path / "agent.toml")
    assert settings.nodes == {node: f"{node}:7001" for node in nodes}
    assert settings.lead_seconds >= settings.ttl_seconds + 5, "an agent may die before an event"
    for node, name in zip(nodes, ("DNS:n1.hall.example", "IP Address:10.0.0.7"), strict=True):
        words = ["openssl", "x509", "-noout", "-ext", "subjectAltName"]
        command = [*words, "-in", str(tmp_path / node / "node.pem")]
        assert name in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_second_run_keeps_what_was_edited(tmp_path):
    """Accounts, meters and rules of users are gone after certificates were renewed."""
    plan, settings = SitePlan(("n1",), 8, 9000.0), tmp_path / "agent.toml"
    write_site(tmp_path, plan, {})
    edited = settings.read_text() + "[accounts.vision]\nfloor = 0.75\n"
    settings.write_text(edited)
    names = {path.name for path in write_site(tmp_path, plan, {})}
    assert settings.read_text() == edited
    assert "agent.toml.new" in names
    assert "governor.toml.new" not in names
    settings.write_text((tmp_path / "agent.toml.new").read_text())
    assert "agent.toml.new" not in {path.name for path in write_site(tmp_path, plan, {})}


def test_a_budget_below_the_least_caps_says_what_it_must_be():
    """The remedy is a fallback that no board takes."""
    with pytest.raises(InvalidValueError) as refusal:
        SitePlan(("n1", "n2"), 4, 700.0, 100.0, 150.0, (100.0, 400.0))
    assert "at least 900 W" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "files", "flaw"),
    [
        ("node_watts = -1", {}, "node_watts must be at least 0"),
        ("budget_wats = 5", {}, "use budget_watts"),
        ("[accounts.vision]\nflor = 0.5", {}, "use floor"),
        ('tree = "tree.json"', {"tree": '{"name": "hall", "children": [{"name": "n9"}]}'}, "'n9'"),
    ],
)
def test_settings_that_would_hold_nothing_are_refused(tmp_path, text, files, flaw):
    """A worst case counts as less than nothing, or a mistyped cap is never enforced."""
    with pytest.raises((FileError, InvalidValueError)) as refusal:
        read_agent_settings(settings_file(tmp_path, text, **files))
    assert flaw in str(refusal.value)


def test_the_dashboard_and_alerts_ask_for_figures_that_the_agent_serves(tmp_path):
    """A renamed figure leaves an empty panel, or an alert that never fires."""
    write_site(tmp_path, SitePlan(("n1",), 8, 9000.0), {})
    report = Bench(tmp_path).tick()
    served = set(re.findall(r"^joulery_cluster_\w+", metrics_text(report), re.MULTILINE))
    panels = json.loads((tmp_path / "grafana.json").read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    drawn = set(re.findall(r"joulery_cluster_\w+", " ".join(texts)))
    watched = set(re.findall(r"joulery_cluster_\w+", (tmp_path / "alerts.yml").read_text()))
    assert drawn | watched <= served
    assert served - drawn - watched == {"joulery_cluster_epoch"}
