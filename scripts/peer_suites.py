"""Run the tests of Zeus and CodeCarbon that use only their public names against our shims.

The source distributions are fetched from the package index into a temporary folder. A test
function counts if it, its class and its helpers use public names of the package and nothing else
of it: no other name, no attribute with an underscore but those of the test case itself, no patch
of one of the package's modules. Everything else of the package is an empty stand-in, so that the
test files can be imported.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SUITES = {
    "codecarbon": (
        "3.3.2",
        {
            "BaseOutput", "EmissionsData", "EmissionsTracker", "FileOutput", "LoggerOutput",
            "OfflineEmissionsTracker", "OutputMethod", "TaskEmissionsData", "track_emissions",
            "track_task_emissions",
        },
    ),
    "zeus": (
        "0.16.0",
        {
            "Callback", "CallbackSet", "DeprecatedAliasABCMeta", "Energy",
            "GlobalPowerLimitOptimizer", "HFGlobalPowerLimitOptimizer", "MaxSlowdownConstraint",
            "Measurement", "Time", "ZeusCost", "ZeusMonitor", "deprecated_alias", "get_env",
        },
    ),
}  # fmt: skip

_CONFTEST = """
import importlib.abc, importlib.machinery, sys, types
from unittest.mock import MagicMock
from joulery.integrations import {package} as shim


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(shim, name, None) or MagicMock(name=name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = StandIn(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
"""


def main() -> int:
    """Run both suites; 1 if a test fails."""
    failed = 0
    for package, (version, public) in SUITES.items():
        with tempfile.TemporaryDirectory() as folder:
            source = _fetched(package, version, Path(folder))
            tests = [
                test
                for path in _test_files(source)
                for test in _public_tests(path, package, public)
            ]
            (source / package).rename(source / "hidden")
            (source / "tests/profile_data").mkdir(exist_ok=True)  # listed on import, and left out
            (source / "conftest.py").write_text(_CONFTEST.format(package=package))
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-n0",
                *tests,
            ]
            code = subprocess.run(command, cwd=source, check=False).returncode
            failed += code != 0
            verdict = "all pass" if code == 0 else "FAILED"
            print(f"{package} {version}: {len(tests)} functions, {verdict}")
    return min(failed, 1)


def _fetched(package: str, version: str, folder: Path) -> Path:
    """The unpacked source distribution."""
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
            "--dest", str(folder), f"{package}=={version}",
        ],
        check=True,
    )  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"{package}-{version}"


def _test_files(source: Path) -> list[Path]:
    """Test files whose helpers are in the distribution, too."""
    found = []
    for path in sorted((source / "tests").rglob("test_*.py")):
        imported = [
            n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)
        ]
        helpers = [
            source / name.replace(".", "/")
            for name in imported
            if name and name.startswith("tests.")
        ]
        if all(helper.with_suffix(".py").exists() for helper in helpers):
            found.append(path)
    return found


def _public_tests(path: Path, package: str, public: set[str]) -> list[str]:
    """Node ids of the tests in a file that use only public names, and at least one."""
    tree = ast.parse(path.read_text())
    names = _Names(tree, package, public)
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and names.is_public_test(node):
            found.append(f"{path}::{node.name}")
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            fixtures = [m for m in methods if m.name in {"setUp", "tearDown", "setUpClass"}]
            if not any(names.uses_private(n) for n in (*node.decorator_list, *fixtures)):
                found += [
                    f"{path}::{node.name}::{m.name}" for m in methods if names.is_public_test(m)
                ]
    return found


class _Names:
    """Names that a file takes from the package, public and private."""

    def __init__(self, tree: ast.Module, package: str, public: set[str]) -> None:
        self._package = package
        self._public: set[str] = set()
        self._private: set[str] = set()
        self._helpers = {
            n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").partition(".")[0] == package
            ):
                for alias in node.names:
                    kind = self._public if alias.name in public else self._private
                    kind.add(alias.asname or alias.name)
            if isinstance(node, ast.Import):
                ours = [alias for alias in node.names if alias.name.partition(".")[0] == package]
                self._private.update((a.asname or a.name).partition(".")[0] for a in ours)

    def is_public_test(self, node: ast.FunctionDef) -> bool:
        if not node.name.startswith("test"):
            return False
        nodes = [part for used in self._with_helpers(node) for part in ast.walk(used)]
        uses = any(isinstance(n, ast.Name) and n.id in self._public for n in nodes)
        return uses and not self.uses_private(node)

    def uses_private(self, node: ast.AST) -> bool:
        return any(
            self._is_private(part) for used in self._with_helpers(node) for part in ast.walk(used)
        )

    def _with_helpers(self, node: ast.AST) -> list[ast.AST]:
        """A function or class, and those of the file that it uses, directly or not."""
        found = [node]
        for used in found:
            names = {_name(part) for part in ast.walk(used)}
            found += [h for name, h in self._helpers.items() if name in names and h not in found]
        return found

    def _is_private(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Constant):
            return str(node.value).startswith(f"{self._package}.")
        if isinstance(node, ast.Attribute):
            its_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            return node.attr.startswith("_") and not node.attr.endswith("__") and not its_own
        return _name(node) in self._private


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""


if __name__ == "__main__":
    raise SystemExit(main())
