"""Manifests in deploy/ against the published schemas of Kubernetes."""

from pathlib import Path

import pytest
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate")
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(FOLDER.glob("*.yaml")) if path.stem != "kustomization"],
    ids=lambda path: path.stem,
)
def test_manifests_follow_the_schemas(path):
    """`kubectl apply` refuses a manifest."""
    for manifest in yaml.safe_load_all(path.read_text("utf-8")):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
