"""Ranks of a training, forked from one process that has imported torch: its import takes seconds.

Each rank runs the same source with the arguments RANK RANKS FOLDER and torchrun's environment, and
writes its output to files of its own.
"""

from __future__ import annotations

import ast
import atexit
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class _TorchProcess:
    """A process that has imported torch and forks the ranks of one training after another."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**env, "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, job: list[Any]) -> None:
        """Start the ranks of a training."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def receive(self, seconds: float) -> bool:
        """Whether all ranks succeeded."""
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], seconds)[0]:
            raise TimeoutError(f"ranks still run after {seconds} s")
        return output.readline() == "0\n"

    def close(self) -> None:
        """End it, if it runs."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


@functools.cache
def _shared_process() -> _TorchProcess:
    """The process for trainings in the environment of the tests."""
    process = _TorchProcess(os.environ)
    atexit.register(process.close)
    return process


class ForkedRanks:
    """Ranks at work.

    Args:
        code: Source that every rank runs.
        ranks: Number of ranks.
        folder: Empty folder for all of them.
        env: Environment, for a process that has to start with it; None for that of the test.
    """

    def __init__(
        self, code: str, ranks: int, folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder, self._ranks, self._own = folder, ranks, env is not None
        script = folder / "rank.py"
        script.write_text(code, encoding="utf-8")
        for rank in range(ranks):
            self.errors(rank).touch()
        self._process = _shared_process() if env is None else _TorchProcess(env)
        environment = dict(os.environ if env is None else env)
        self._process.send([str(script), ranks, str(folder), environment])

    def errors(self, rank: int) -> Path:
        """File with the standard error of a rank."""
        return self._folder / f"rank{rank}.err"

    def outputs(self, seconds: float = 100.0) -> list[tuple[str, str]]:
        """Standard output and error of every rank, all of which must succeed."""
        try:
            succeeded = self._process.receive(seconds)
        except TimeoutError:
            self._process.close()
            _shared_process.cache_clear()
            raise
        if self._own:
            self._process.close()
        texts = [
            (self._folder.joinpath(f"rank{rank}.out").read_text(), self.errors(rank).read_text())
            for rank in range(self._ranks)
        ]
        assert succeeded, [error[-3000:] for _, error in texts]
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


def _fork(script: str, ranks: int, folder: str, environment: dict[str, str]) -> int:
    """Fork the ranks of a training; 0 if all succeed."""
    for module in _modules_of_torch(Path(script)):  # once, not by each rank
        importlib.import_module(module)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.environ.clear()
            os.environ.update(environment)
            code = _run(script, rank, str(ranks), folder)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    failed = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not failed:
            failed = 1
            for other in children:  # they may wait for the one that is gone
                os.kill(other, signal.SIGKILL)
    return failed


def main() -> None:
    """Fork ranks for each line of standard input, and answer with 0 or 1."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for what ranks import from `support`
    import torch

    torch.set_num_threads(1)
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)  # imports what it needs
    for line in sys.stdin:
        print(_fork(*json.loads(line)), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
