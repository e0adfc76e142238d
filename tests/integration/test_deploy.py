"""What is in deploy/ can be deployed: manifests, units, scripts, dashboards and rules."""

import configparser
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from joulery.cli import COMMANDS, cluster_site, dispatch, governor, main, serving
from joulery.cluster import SitePlan, metrics_text, write_site
from joulery.governor import load_policy
from joulery.hardware import SimulatedGpu, catalog
from joulery.integrations.prometheus import DeviceCollector
from joulery.metering import Meter
from joulery.server._metrics import Metrics
from joulery.serving import EnergyLedger

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PYTHON = "/opt/joulery/bin/python"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def _manifests():
    paths = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return [
        manifest
        for path in paths
        if path.stem != "kustomization"
        for manifest in yaml.safe_load_all(path.read_text("utf-8"))
    ]


def _pods():
    return [
        manifest["spec"]["template"]["spec"]
        for manifest in _manifests()
        if manifest["kind"] in ("DaemonSet", "Deployment")
    ]


def _parse(words):
    """Parse a command of ours, which raises for an option that it does not have."""
    name, *arguments = words
    module = __import__(f"joulery.cli.{name}", fromlist=["COMMAND"])
    parser = dispatch.Parser(prog=name)
    module.COMMAND.define(parser)
    parser.parse(arguments)


@pytest.mark.parametrize("manifest", _manifests(), ids=lambda manifest: manifest["kind"])
def test_manifests_follow_the_published_schemas(manifest):
    """`kubectl apply` refuses a manifest, or ignores a member that is misspelled."""
    if importlib.util.find_spec("kubernetes_validate") is None and os.environ.get("CI") != "true":
        pytest.skip("kubernetes-validate is not installed")
    import kubernetes_validate

    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_manifests_hold_together():
    """A manifest is not applied, has a name that is refused, or selects no pods."""
    manifests = _manifests()
    assert len(manifests) == 8
    for manifest in manifests:
        assert NAME.fullmatch(manifest["metadata"]["name"])
        if manifest["kind"] in ("DaemonSet", "Deployment"):
            spec = manifest["spec"]
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= labels.items()
    resources = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text("utf-8"))
    files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert {*resources["resources"], "kustomization.yaml"} == files


@pytest.mark.parametrize("pod", _pods(), ids=lambda pod: pod["containers"][0]["name"])
def test_pods_hold_together(pod):
    """A pod does not start: a volume, a port or an option of ours is missing."""
    (container,) = pod["containers"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    _parse(container["args"])
    listen = [word for word in container["args"] if word.startswith("0.0.0.0:")]
    assert [int(word.partition(":")[2]) for word in listen] == list(ports.values())
    for probe in ("livenessProbe", "readinessProbe"):
        check = container.get(probe, {})
        assert check.get("httpGet", {}).get("port") in {*ports, None}
        if "exec" in check:
            command = check["exec"]["command"]
            words = shlex.split(command[2]) if command[0] == "sh" else command
            _parse(words[1 : words.index("|") if "|" in words else None])
    privileged = container["securityContext"].get("privileged", False)
    assert privileged == (container["name"] == "governor")


def test_services_reach_pods():
    """A service has no pods behind it, or names a port that they lack."""
    pods = {
        manifest["spec"]["template"]["metadata"]["labels"]["app"]: manifest["spec"]["template"][
            "spec"
        ]
        for manifest in _manifests()
        if manifest["kind"] in ("DaemonSet", "Deployment")
    }
    services = [manifest["spec"] for manifest in _manifests() if manifest["kind"] == "Service"]
    assert len(services) == 2
    for service in services:
        (container,) = pods[service["selector"]["app"]]["containers"]
        ports = {port["name"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["ports"]} <= ports


def test_the_policy_of_the_manifest_is_one(tmp_path):
    """The governor of a node does not start, since its policy is wrong."""
    (config,) = (manifest for manifest in _manifests() if manifest["kind"] == "ConfigMap")
    path = tmp_path / "governor.toml"
    path.write_text(config["data"]["governor.toml"], "utf-8")
    (rule,) = load_policy(path).rules
    assert rule.must_own, "a pod may set limits on the boards of others"
    assert rule.limits_watts
    assert rule.clocks_hertz


def test_only_pods_of_ours_see_all_boards_of_a_node():
    """A pod that is copied from a page reaches boards of others."""
    for path in (DEPLOY.parent / "docs").rglob("*.md"):
        blocks = re.findall(r"(?ms)^```yaml.*?\n(.*?)^```", path.read_text("utf-8"))
        assert not [block for block in blocks if "NVIDIA_VISIBLE_DEVICES" in block], path


def test_the_image_is_made_of_files_that_exist():
    """The image cannot be built from a checkout."""
    lines = (DEPLOY / "Containerfile").read_text("utf-8").splitlines()
    words = [line.split() for line in lines if line.startswith("COPY ") and "--from" not in line]
    sources = [word for copied in words for word in copied[1:-1]]
    assert {"pyproject.toml", "hatch_build.py", "src"} <= set(sources)
    assert all((DEPLOY.parent / source).exists() for source in sources)


@pytest.mark.parametrize(
    "path", sorted(DEPLOY.glob("systemd/*.service")), ids=lambda path: path.stem
)
def test_units_start_commands_that_exist(path):
    """A unit is restarted for ever whose command has no such option."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(path.read_text("utf-8"))
    assert parser.sections() == ["Unit", "Service", "Install"]
    words = shlex.split(parser["Service"]["ExecStart"])
    assert words[0].startswith("/opt/joulery/bin/")
    _parse(words[words.index("joulery") + 1 :] if "joulery" in words else words[1:])


def test_files_are_those_that_commands_print(monkeypatch, capsys, tmp_path):
    """A file in deploy/ lacks what a later version of its command does."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    state = "/srv/joulery/state"
    texts = {
        "systemd/joulery-governor.service": governor.unit_text(None, {}),
        "systemd/joulery-agent.service": cluster_site._AGENT_UNIT.format(
            python=PYTHON, settings="/srv/joulery/agent.toml"
        ),
        "slurm/prolog.sh": cluster_site._PROLOG.format(state=state),
        "slurm/epilog-slurmctld.sh": cluster_site._EPILOG.format(python=PYTHON, state=state),
    }
    assert main(["export", "--grafana"]) == 0
    texts["grafana/machines.json"] = capsys.readouterr().out
    write_site(tmp_path / "site", SitePlan(("n1",), 1, 1000.0), {})
    texts["grafana/cluster.json"] = (tmp_path / "site" / "grafana.json").read_text("utf-8")
    texts["prometheus/cluster.yaml"] = (tmp_path / "site" / "alerts.yml").read_text("utf-8")
    for name, text in texts.items():
        assert (DEPLOY / name).read_text("utf-8").rstrip() == text.rstrip(), name


@pytest.mark.parametrize(
    ("environment", "lines"),
    [
        ({"SLURM_JOB_ID": "7"}, ["export JOULERY_TAGS=slurm=7"]),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_ACCOUNT": "vision",
                "SLURM_JOB_PARTITION": "a100",
                "JOULERY_TAGS": "night",
                "JOULERY_STORE": "https://joulery.example",
                "JOULERY_TOKEN": "a token",
                "JOULERY_CA_FILE": "/etc/joulery/ca.pem",
            },
            [
                "export JOULERY_STORE=https://joulery.example",
                "export JOULERY_TOKEN=a token",
                "export JOULERY_CA_FILE=/etc/joulery/ca.pem",
                "export JOULERY_TAGS=night,slurm=7,account=vision,partition=a100",
            ],
        ),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_ACCOUNT": "vision",
                "JOULERY_TAGS": "night,slurm=7,account=vision",
            },
            [],
        ),
    ],
    ids=["plain", "full", "again"],
)
def test_the_task_prolog_tags_runs(environment, lines):
    """Runs of a cluster cannot be found by job or account, or a job fails in its prolog."""
    script = DEPLOY / "slurm/task-prolog.sh"
    done = subprocess.run(
        ["/bin/sh", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == lines


@pytest.fixture(scope="module")
def emitted():
    """Label names by the name of every series that our exporters really emit."""
    from joulery.clock import VirtualClock

    clock = VirtualClock()
    meter = Meter([SimulatedGpu(catalog.board("A100"), clock)], clock=clock)
    collector = DeviceCollector(meter)
    clock.sleep(2.0)
    metrics = Metrics()
    metrics.observe("decide", 200, 0.1)
    report = dict.fromkeys(
        ("budget_watts", "power_watts", "caps_watts", "correction", "epoch", "loop_seconds", "at"),
        1.0,
    ) | dict.fromkeys(("is_short", "is_alarmed", "is_metered"), False)
    report |= {name: [] for name in ("paused", "jobs", "lost_nodes", "events")}
    engine = SimpleNamespace(
        metrics=SimpleNamespace(engine="vLLM"),
        reader=SimpleNamespace(tokens_by_model={"llama": (1.0, 1.0)}),
    )
    texts = (
        serving._prometheus(EnergyLedger(100.0).account(), engine),
        metrics.text({"jobs": 1, "events": 1, "open_decisions": 0}).decode(),
        metrics_text(report),
    )
    families = [*collector.collect()]
    for text in texts:
        families += text_string_to_metric_families(text)
    names: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    meter.close()
    return names


def _shell_lines():
    """Lines of commands in pages and in deploy/, with their source; continued ones joined."""
    for path in sorted((DEPLOY.parent / "docs").rglob("*.md")):
        for block in re.findall(
            r"^```bash\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            yield from ((path.name, line) for line in block.replace("\\\n", " ").splitlines())
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8").replace("\\\n", " ")
            yield from ((path.name, line) for line in text.splitlines())


def test_pages_and_files_name_commands_that_exist():
    """A command that no test runs is misspelled, or names an image's entry point again."""
    lines = list(_shell_lines())
    assert len(lines) > 500
    starts = [(name, re.match(r"joulery ([a-z][\w-]*)", line)) for name, line in lines]
    unknown = [(name, match[0]) for name, match in starts if match and match[1] not in COMMANDS]
    assert unknown == []
    # The image's entry point is joulery already; images of others need the word once.
    twice = [(name, line) for name, line in lines if re.search(r"\sjoulery\s+joulery\b", line)]
    assert twice == []


def test_prometheus_reaches_what_the_page_lets_it_scrape():
    """A remote Prometheus gets no figure from a unit that listens for its own machine only."""
    page = (DEPLOY.parent / "docs/how-to/deploy.md").read_text("utf-8")
    (config,) = re.findall(r"```yaml title=\"prometheus.yml\"\n(.*?)```", page, re.DOTALL)
    jobs = yaml.safe_load(config)["scrape_configs"]
    targets = {
        target for job in jobs for part in job["static_configs"] for target in part["targets"]
    }
    units = "".join(path.read_text("utf-8") for path in DEPLOY.glob("systemd/*.service"))
    ports = {target.rpartition(":")[2] for target in targets}
    assert ports <= set(re.findall(r"--listen 0\.0\.0\.0:(\d+)", units))


def _rules():
    for path in sorted(DEPLOY.glob("prometheus/*.yaml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            yield from group["rules"]


def _dashboards():
    return [json.loads(path.read_text("utf-8")) for path in sorted(DEPLOY.glob("grafana/*.json"))]


def _expressions():
    panels = [panel for dashboard in _dashboards() for panel in dashboard["panels"]]
    targets = [target for panel in panels for target in panel.get("targets", [])]
    return [part["expr"] for part in (*_rules(), *targets)]


@pytest.mark.parametrize("expression", _expressions())
def test_expressions_use_series_that_exist(emitted, expression):
    """An alert never fires, or a panel stays empty, since nothing emits its series."""
    series = re.findall(r"\bjoulery_\w+", expression)
    assert series or expression.startswith("up{")  # Prometheus's own
    assert set(series) <= emitted.keys()
    labels = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression)
    labels += [
        label.strip()
        for group in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in group.split(",")
    ]
    assert set(labels) <= {
        "instance",
        "job",
        *(label for name in series for label in emitted[name]),
    }
    assert expression.count("(") == expression.count(")")


def test_rules_and_panels_can_be_read():
    """Prometheus or Grafana refuses the file."""
    for rule in _rules():
        assert ("alert" in rule) != ("record" in rule)
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}
            assert rule["annotations"]["summary"]
    dashboards = _dashboards()
    assert len({dashboard["uid"] for dashboard in dashboards}) == len(dashboards)
    for dashboard in dashboards:
        identifiers = [panel["id"] for panel in dashboard["panels"]]
        assert len(identifiers) == len(set(identifiers))
        for panel in dashboard["panels"]:
            position = panel["gridPos"]
            assert position["x"] + position["w"] <= 24
