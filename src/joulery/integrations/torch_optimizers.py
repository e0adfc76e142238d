"""Steps of any optimizer of torch, reported to a run though the script says nothing of Joulery.

``joulery run`` puts a folder with a ``sitecustomize`` in front of ``PYTHONPATH``. Interpreters that
start under it register a hook that torch calls after every step of every optimizer. Whatever goes
wrong, the script runs as without us.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.files import write_atomic
from joulery.training import REPORTS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from joulery.power import ProcessGroup
    from joulery.training import Run

_OPTIMIZER = "torch.optim.optimizer"
# Steps after which ranks agree to tune together: by then each has left word, if it is under
# `joulery run`, since ranks of synchronous training are at most a step apart.
_AGREE_STEPS = 5
# Longest wait of one rank for another within tuning, by hand: above most checkpoints of rank 0.
_RANK_SECONDS = 300.0
_HINTS = {
    "jax": "with JaxStep(update) as update: (joulery.integrations.jax)",
    "keras": "model.fit(..., callbacks=[KerasCallback(Run())]) (joulery.integrations.keras)",
    "deepspeed": "run = joulery.Run() before the loop and run.step() after engine.step()",
}
_STARTUP = '''\
"""Have Joulery follow optimizers of torch, then run the sitecustomize that this one hides."""
import os, sys
_own, _folder = sys.modules[__name__], os.path.dirname(os.path.abspath(__file__))
try:
    from joulery.integrations.torch_optimizers import follow
    follow()
except Exception as _error:  # an interpreter without Joulery is measured only
    sys.stderr.write(f"joulery: this script is measured, not tuned: {_error!r}\\n")
_path = list(sys.path)
sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _folder]
sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _own)
    sys.path[:] = [*sys.path, *(_entry for _entry in _path if _entry not in sys.path)]
    sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _folder]
'''


def startup_path(folder: Path, path: str = "") -> str:
    """``PYTHONPATH`` under which scripts are followed.

    Args:
        folder: Folder that exists while they run.
        path: ``PYTHONPATH`` as it is.
    """
    startup = folder / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(_STARTUP, encoding="utf-8")
    return os.pathsep.join(filter(None, [str(startup), path]))


def read_hints(folder: Path) -> list[str]:
    """Frameworks of scripts that no optimizer of torch was seen in, with what a line would do."""
    names: set[str] = set()
    for path in folder.glob("*.frameworks"):
        with suppress(OSError, ValueError):
            names.update(json.loads(path.read_text(encoding="utf-8")))
    return [f"{name} is measured only; to tune it: {_HINTS[name]}" for name in sorted(names)]


def startup_hints(command: Sequence[str]) -> list[str]:
    """Options of a Python command that keep its script from being followed, with the remedy."""
    if not command or not Path(command[0]).name.startswith("python"):
        return []
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        for position, letter in enumerate(word[1:], start=2):
            if letter in "IES":
                text = f"python -{letter} keeps Joulery from seeing steps; leave -{letter} out"
                return [f"{text}, or report them through joulery.Run"]
            if letter in "cm-":  # what follows is the script's
                return []
            if letter in "WX":
                if position == len(word):
                    next(words, None)  # its value
                break
    return []


def follow() -> None:
    """Follow the optimizers of this process once torch is imported; note other frameworks."""
    follower = OptimizerFollower()
    sys.meta_path.insert(0, _Watcher(follower))
    atexit.register(_note_frameworks, follower)


def _note_frameworks(follower: OptimizerFollower) -> None:
    folder = os.environ.get(REPORTS_VARIABLE)
    names = [name for name in _HINTS if name in sys.modules]
    if folder and names and not follower.steps and "joulery.training._run" not in sys.modules:
        with suppress(OSError):
            write_atomic(Path(folder) / f"{os.getpid()}.frameworks", json.dumps(names).encode())


class _Watcher(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the module of torch's optimizers as others do, and has it followed once it is there."""

    def __init__(self, follower: OptimizerFollower) -> None:
        self._follower = follower
        self._loader: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of that one module, with this object as its loader."""
        if fullname != _OPTIMIZER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As torch's own loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then register the hook."""
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            self._follower.attach(register)


class OptimizerFollower:
    """Reports a step to a run whenever the optimizers of a script have made one.

    A script may step several optimizers in turn, which is one step of training. A step begins
    anew when an optimizer comes again.

    Attributes:
        steps: Number of training steps.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._run: Run | None = None
        self._round: set[int] = set()
        self._handle: Any = None

    def attach(self, register: Any) -> None:
        """Register the hook of all optimizers."""
        self._handle = register(self._after_step)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        try:
            self._step(optimizer)
        except Exception as error:  # noqa: BLE001 - the script is not ours, and runs on
            self._stop(f"this script is not tuned any more: {error!r}")

    def _step(self, optimizer: Any) -> None:
        if self._round and id(optimizer) not in self._round:
            self._round.add(id(optimizer))
            return
        self._round = {id(optimizer)}
        self.steps += 1
        if self._run is not None:
            self._run.step()
        elif self._is_reported_by_script():
            self._stop("")
        else:
            self._begin()

    def _is_reported_by_script(self) -> bool:
        """Whether the script uses a run of its own."""
        return "joulery.training._run" in sys.modules

    def _begin(self) -> None:
        """Begin at the first step; ranks of a job agree first, some steps later."""
        distributed: Any = importlib.import_module("torch.distributed")
        ranks = distributed.is_available() and distributed.is_initialized()
        group: ProcessGroup | None = None
        if ranks and distributed.get_world_size() > 1:
            store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - no other
            store = distributed.PrefixStore("joulery-follow", store)
            store.set(f"rank/{distributed.get_rank()}", "here")
            if self.steps < _AGREE_STEPS:
                return
            if not _all_agree(store, distributed.get_world_size()):
                self._stop("not every rank runs under `joulery run`, so its power is not tuned")
                return
            from joulery.integrations.torch_ranks import torch_ranks

            group = torch_ranks(timeout=timedelta(seconds=_RANK_SECONDS))
        from joulery.training import Run

        self._run = Run(process_group=group)
        # Steps that were taken before the ranks agreed count too.
        self._run.load_state_dict({**self._run.state_dict(), "steps": self.steps - 1})
        self._run.step()

    def _stop(self, reason: str) -> None:
        self._handle.remove()
        if reason:
            sys.stderr.write(f"joulery: {reason}\n")


def _all_agree(store: Any, ranks: int) -> bool:
    """Whether all ranks are here; the first to ask decides for all, so that none waits alone."""
    present = store.check([f"rank/{rank}" for rank in range(ranks)])
    verdict = store.compare_set("verdict", "", "yes" if present else "no")
    return bytes(verdict) == b"yes"
