"""Ranks of a training, forked from one process that has imported torch: its import takes seconds.

Each rank runs the same source with the arguments RANK RANKS FOLDER and torchrun's environment, and
writes its output to files of its own.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class ForkedRanks:
    """Ranks at work.

    Args:
        code: Source that every rank runs.
        ranks: Number of ranks.
        folder: Empty folder for all of them.
        env: Their environment.
    """

    def __init__(
        self, code: str, ranks: int, folder: Path, env: Mapping[str, str] = os.environ
    ) -> None:
        self._folder, self._ranks = folder, ranks
        script = folder / "rank.py"
        script.write_text(code, encoding="utf-8")
        for rank in range(ranks):
            self.errors(rank).touch()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(script), str(ranks), str(folder)],
            env={**env, "PYTHONWARNINGS": "ignore"},
        )

    def errors(self, rank: int) -> Path:
        """File with the standard error of a rank."""
        return self._folder / f"rank{rank}.err"

    def outputs(self, seconds: float = 100.0) -> list[tuple[str, str]]:
        """Standard output and error of every rank, all of which must succeed."""
        try:
            code = self._process.wait(seconds)
        finally:
            self._process.kill()
            self._process.wait()
        texts = [
            (self._folder.joinpath(f"rank{rank}.out").read_text(), self.errors(rank).read_text())
            for rank in range(self._ranks)
        ]
        assert code == 0, [error[-3000:] for _, error in texts]
        return texts


def _run(script: str, rank: int, ranks: str, folder: str) -> int:
    """Exit code of the script as one rank."""
    for stream, end in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/rank{rank}.{end}", os.O_WRONLY | os.O_CREAT), stream)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    sys.argv = [script, str(rank), ranks, folder]
    try:
        exec(Path(script).read_text(encoding="utf-8"), {"__name__": "__main__"})  # noqa: S102
    except BaseException:  # noqa: BLE001 - a fork ends here, whatever went wrong
        traceback.print_exc()
        return 1
    return 0


def _modules_of_torch(script: Path) -> set[str]:
    """Modules of torch that a script imports."""
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.startswith("torch.")}


def main(script: str, ranks: str, folder: str) -> int:
    """Fork the ranks; 0 if all succeed."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for what ranks import from `support`
    import torch

    for module in _modules_of_torch(Path(script)):  # once, not by each rank
        importlib.import_module(module)
    torch.set_num_threads(1)
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)  # imports what it needs
    children = []
    for rank in range(int(ranks)):
        child = os.fork()
        if child == 0:
            code = _run(script, rank, ranks, folder)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    return int(any(os.waitpid(child, 0)[1] for child in children))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
