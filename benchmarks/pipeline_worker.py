"""Plans by lowtime for the pipeline benchmark, in the environment that has it.

Called by ``pipeline.py`` with a JSON list of tasks; prints the list of answers. Needs nothing of
Joulery's. A task names a file with instructions by number, their choices, and what waits for what.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def solve(task: dict[str, Any]) -> dict[str, Any]:
    """The whole frontier of one problem, with the clocks of a sample of its points."""
    import networkx as nx
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import Operation
    from lowtime.solver import PhillipsDessouky

    begin = time.process_time()
    try:
        specs = [_spec(choices, task["unit_seconds"]) for choices in task["choices"]]
    except (ValueError, RuntimeError) as unfit:
        # Its exponential model fits few measured profiles as they are.
        return {"failed": str(unfit)}
    fitted = time.process_time()
    operations = [Operation(spec=specs[which]) for which in task["choice_of"]]
    dag = nx.DiGraph()
    for number, operation in enumerate(operations):
        dag.add_node(number, op=operation)
    dag.add_edges_from(task["edges"])
    source, sink = len(operations), len(operations) + 1
    add_source_node(dag, source)
    add_sink_node(dag, sink)
    dag.graph["source_node"], dag.graph["sink_node"] = source, sink
    points, spent, done = [], 0.0, True
    last = time.process_time()
    for result in PhillipsDessouky(dag).run():
        spent += time.process_time() - last
        knobs = None
        if result.iteration % task["every"] == 1 or task["every"] == 1:
            knobs = [operation.assigned_knob for operation in operations]
        points.append([result.real_time, result.cost, knobs])
        if spent > task["seconds"]:
            done = False
            break
        last = time.process_time()
    return {
        "fit_cpu_seconds": fitted - begin,
        "cpu_seconds": spent,
        "finished": done,
        "points": points,
    }


def _spec(choices: list[list[float]], unit_seconds: float) -> Any:
    from lowtime.cost_model import ExponentialModel
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption, OperationSpec

    options = [
        ExecutionOption(real_time=seconds, unit_time=unit_seconds, cost=cost, knob=knob)
        for knob, (seconds, cost) in enumerate(choices)
    ]
    candidates = CandidateExecutionOptions(options=options)
    return OperationSpec(
        options=candidates, cost_model=ExponentialModel(candidates, search_strategy="best")
    )


def _installed() -> bool:
    try:
        import lowtime.solver  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def main() -> None:
    """Answer every task, or None to each where lowtime is not installed."""
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    files = [task["file"] for task in json.loads(sys.argv[1])]
    tasks = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    answers = [solve(task) if _installed() else None for task in tasks]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
