"""``joulery run``: where its settings come from."""

import os
import sys

import pytest

from joulery.cli import main


@pytest.fixture
def environments(monkeypatch):
    """Environments that commands were run in."""
    seen = []

    def run(_command, environment, **_):
        seen.append(environment)
        return 0

    monkeypatch.setattr("joulery.metering.run_command", run)
    return seen


@pytest.mark.parametrize(
    ("options", "variables", "objective", "knob"),
    [
        ([], {}, "cost:eta=0.5", None),
        ([], {"JOULERY_OBJECTIVE": "edp", "JOULERY_KNOB": "clock"}, "edp", "clock"),
        (
            ["--objective", "edp", "--knob", "limit"],
            {"JOULERY_OBJECTIVE": "eds:k=2"},
            "edp",
            "limit",
        ),
    ],
)
def test_options_come_before_the_environment(
    environments, monkeypatch, options, variables, objective, knob
):
    """If this fails, a documented variable is silently overridden by a default."""
    for name in ("JOULERY_OBJECTIVE", "JOULERY_KNOB"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    main(["run", *options, "--", sys.executable, "-c", ""])
    (environment,) = environments
    assert environment["JOULERY_OBJECTIVE"] == objective
    assert environment.get("JOULERY_KNOB") == knob
    assert "JOULERY_DRY_RUN" not in environment or "JOULERY_DRY_RUN" in os.environ
