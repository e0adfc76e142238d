"""Tasks of the recurring benchmark that need Zeus: its own simulator on one workload, some seeds.

Called by ``recurring.py`` with a JSON list of tasks; prints the list of answers. Frames hold only
the workload and its target: Zeus filters them anew for every run.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from typing import Any

# The traces are cut to one target already; its value does not matter.
_TARGET = 0.5


def simulated(task: dict[str, Any]) -> dict[str, Any]:
    """Every attempt of every seed: batch size, limit, joules, seconds, whether reached."""
    import pandas as pd
    from zeus._legacy.job import Job
    from zeus._legacy.policy.optimizer import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
    from zeus._legacy.simulate import Simulator

    kind = {name: task[name] for name in ("dataset", "network", "optimizer")}
    train = pd.DataFrame(task["train"], columns=["batch_size", "target_epoch"], dtype=float)
    train = train.astype({"batch_size": int}).assign(**kind, target_metric=_TARGET)
    columns = ["batch_size", "power_limit", "time_per_epoch", "average_power"]
    power = pd.DataFrame(task["power"], columns=columns).assign(**kind)
    job = Job(*kind.values(), _TARGET, task["max_epochs"], task["default"])
    runs = []
    started = time.process_time()
    for seed in task["seeds"]:
        simulator = Simulator(
            train,
            power,
            PruningGTSBatchSizeOptimizer(seed=seed, verbose=False),
            JITPowerLimitOptimizer(verbose=False),
            seed=seed + 1_000_000,
            verbose=False,
        )
        with contextlib.redirect_stdout(io.StringIO()):
            history = simulator.simulate_one_job(job, task["recurrences"], 2.0, task["eta"])
        runs.append(
            [
                [int(e.bs), float(e.pl), float(e.energy), float(e.time), bool(e.reached)]
                for e in history
            ]
        )
    return {"runs": runs, "seconds": time.process_time() - started}


def main() -> None:
    """Answer every task; one that Zeus gives up on is answered with its words."""
    answers = []
    for task in json.loads(sys.argv[1]):
        try:
            answers.append(simulated(task))
        except (ImportError, RuntimeError, ValueError, AssertionError) as error:
            answers.append({"failed": f"{type(error).__name__}: {error}"})
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
