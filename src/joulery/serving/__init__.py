"""Serve language models with fewer joules: meter, tune, sweep and simulate.

Examples:
    >>> from joulery.serving import serving_board, served_model
    >>> shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "feedforward": 14336}
    >>> shape |= {"vocabulary": 128256, "sequence": 8192}
    >>> model = served_model(shape, serving_board("h100"))
    >>> round(1e3 * model.weight_seconds, 1)  # milliseconds to read all weights
    5.6
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.serving._batch import BatchRun as BatchRun
    from joulery.serving._boards import (
        ClockTable as ClockTable,
        ServingBoard as ServingBoard,
        node_watts as node_watts,
        serving_board as serving_board,
    )
    from joulery.serving._calibrate import (
        calibrate_model as calibrate_model,
        latency_errors as latency_errors,
    )
    from joulery.serving._compare import (
        POLICIES as POLICIES,
        PolicyOutcome as PolicyOutcome,
        ServingCase as ServingCase,
        capacity as capacity,
        clock_settings as clock_settings,
        compare_policies as compare_policies,
        limit_settings as limit_settings,
        served_frontier as served_frontier,
        sleep_advice as sleep_advice,
    )
    from joulery.serving._controller import (
        KnobCurves as KnobCurves,
        LatencyObjective as LatencyObjective,
        ServingController as ServingController,
        knob_curves as knob_curves,
    )
    from joulery.serving._engines import (
        ENGINES as ENGINES,
        EngineClient as EngineClient,
        EngineMetrics as EngineMetrics,
        EngineReader as EngineReader,
        find_engines as find_engines,
        recognise_engine as recognise_engine,
    )
    from joulery.serving._knobs import KNOBS as KNOBS, BoardsKnob as BoardsKnob
    from joulery.serving._ledger import (
        EnergyLedger as EnergyLedger,
        LedgerAccount as LedgerAccount,
        UncertainValue as UncertainValue,
    )
    from joulery.serving._model import ServedModel as ServedModel, served_model as served_model
    from joulery.serving._policies import ReactiveLadder as ReactiveLadder
    from joulery.serving._requests import (
        ServedRequest as ServedRequest,
        at_rate as at_rate,
        read_latencies as read_latencies,
        read_trace as read_trace,
        synthetic_trace as synthetic_trace,
    )
    from joulery.serving._service import (
        ServiceReport as ServiceReport,
        ServiceWatch as ServiceWatch,
        SweepRow as SweepRow,
        Tuner as Tuner,
        sweep_service as sweep_service,
    )
    from joulery.serving._simulator import (
        EngineConfig as EngineConfig,
        EngineState as EngineState,
        ServingPolicy as ServingPolicy,
        ServingRun as ServingRun,
        ServingSimulation as ServingSimulation,
    )


__getattr__, __dir__ = lazy(__name__)
