"""``joulery serving``: meter, tune, sweep and simulate a served language model."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from joulery import serving
from joulery.cli.dispatch import Output, signals_interrupt
from joulery.cli.measure import begin_run_log, reporting_service
from joulery.cli.options import (
    Action,
    duration,
    file,
    flag,
    names,
    number,
    option,
    page_option,
    quantity,
    whole,
    write_file,
    written,
)
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, NotPossibleHereError, UsageError
from joulery.frontier import Origin
from joulery.reports import Paragraph, Report, Table, frontier_report
from joulery.training import RunState
from joulery.units import human, human_duration, kilowatt_hours, per_cent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from joulery.frontier import Frontier
    from joulery.serving import (
        LedgerAccount,
        PolicyOutcome,
        ServiceReport,
        SweepRow,
        UncertainValue,
    )
    from joulery.training import RunLog

    # Writes a reading, None at the end, and the account until then.
    _Sink = Callable[[serving.EngineState | None, LedgerAccount], object]

SCHEMA = "joulery.serving/1"
_TICK_SECONDS = 0.25  # by hand
_SHOW_SECONDS = 1.0  # by hand
# A calibrated model that is further off its log is said not to fit (by hand).
_POOR_FIT = 0.25
# A collector that does not answer delays the end by no more (by hand).
_FLUSH_MILLISECONDS = 2000


def _meter(arguments: argparse.Namespace) -> Output:
    provider = _otlp_provider() if arguments.opentelemetry else None
    watch = serving.ServiceWatch(arguments.engine, arguments.device)
    ledger, progress = watch.ledger(), Progress()
    with ExitStack() as stack:
        stack.callback(watch.close)
        stack.callback(progress.done)
        first = state = watch.read()
        ledger.add(first)
        account = ledger.account()
        sinks = _open_sinks(arguments, watch, first, stack)
        if provider is not None:
            from joulery.integrations.opentelemetry import ServingMetrics

            stack.callback(provider.shutdown, _FLUSH_MILLISECONDS)
            sinks.append(ServingMetrics(watch, provider).write)
        _write(sinks, first, account)  # a file that cannot be written is said at once
        run_log = _begin_run_log(watch, lambda: RunState(tags=_tags(watch, account)))
        with suppress(KeyboardInterrupt), signals_interrupt():  # an end like any other
            while REAL_CLOCK.now() - first.now_seconds < arguments.seconds:
                REAL_CLOCK.sleep(_TICK_SECONDS)
                try:
                    state = watch.read()
                    ledger.add(state)
                    _write(sinks, state, account := ledger.account())
                    progress.show(f"joulery: {_account_line(account)}")
                except Exception as error:  # noqa: BLE001 - an engine that restarts is metered on
                    progress.show(f"joulery: {error}")
        account = ledger.account()
        _write(sinks, None, account)
    if run_log is not None:
        run_log.end(watch.window.measurement)
    document = _head(watch) | asdict(account) | {"by_model": _by_model(watch, account)}
    return Output(document, lambda: _account_report(account, watch), page=arguments.html)


def _begin_run_log(watch: serving.ServiceWatch, state: Callable[[], RunState]) -> RunLog | None:
    """The service as a run of the team, by the names of its models."""
    models = ", ".join(filter(None, watch.reader.tokens_by_model)) or "a model"
    name = f"{models} on {watch.metrics.engine}"
    return begin_run_log(reporting_service(), watch.meter, watch.window, name, "serving", state)


def _tags(watch: serving.ServiceWatch, account: LedgerAccount) -> dict[str, str]:
    """Figures of a service that other runs lack."""
    return {
        "engine": watch.metrics.engine,
        "requests": _count(account.requests),
        "generated tokens": f"{account.generation_tokens:.0f}",
        "prompt token": _figure(account.prefill_joules_per_token, "J"),
        "generated token": _figure(account.decode_joules_per_token, "J"),
        "waiting": f"{account.waiting_watts:.0f} W",
    }


def _otlp_provider() -> Any:
    try:
        from joulery.integrations.opentelemetry import otlp_provider

        return otlp_provider()
    except ImportError:
        raise NotPossibleHereError(
            "OpenTelemetry's SDK or its exporter is not installed",
            remedy="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        ) from None


def _open_sinks(
    arguments: argparse.Namespace,
    watch: serving.ServiceWatch,
    first: serving.EngineState,
    stack: ExitStack,
) -> list[_Sink]:
    """Functions that write each reading where the options ask for it."""
    sinks: list[_Sink] = []
    if arguments.csv is not None:
        write_file(arguments.csv, "", "--csv")
        file = stack.enter_context(arguments.csv.open("w", encoding="utf-8", buffering=1))
        writer = csv.DictWriter(file, list(_log_row(first, first)), lineterminator="\n")
        writer.writeheader()
        sinks.append(lambda state, _: state and writer.writerow(_log_row(state, first)))
    if arguments.prometheus is not None:
        sinks.append(
            lambda _, account: write_file(
                arguments.prometheus, _prometheus(account, watch), "--prometheus"
            )
        )
    return sinks


def _write(
    sinks: Sequence[_Sink], state: serving.EngineState | None, account: LedgerAccount
) -> None:
    for sink in sinks:
        sink(state, account)


def _head(watch: serving.ServiceWatch) -> dict[str, Any]:
    boards = [device.info.name for device in watch.devices]
    origin = watch.provenance.origin.value
    return {
        "schema": SCHEMA,
        "engine": watch.metrics.engine,
        "boards": boards,
        "origin": origin,
        "throttles": watch.throttles,
    }


def _by_model(watch: serving.ServiceWatch, account: LedgerAccount) -> dict[str, dict[str, float]]:
    """The account's tokens and energy above waiting by the model that the engine's labels name."""
    counts = watch.reader.tokens_by_model
    # Tokens came before the first energy was read: the account's are shared out.
    totals = [max(1.0, sum(column)) for column in zip(*counts.values(), strict=True)]
    rows = {}
    for name, (prompt, tokens) in counts.items():
        prompt_tokens = prompt * account.prompt_tokens / totals[0]
        generation_tokens = tokens * account.generation_tokens / totals[1]
        rows[name] = {
            "prompt_tokens": prompt_tokens,
            "generation_tokens": generation_tokens,
            "joules": prompt_tokens * account.prefill_joules_per_token.value
            + generation_tokens * account.decode_joules_per_token.value,
        }
    return rows


def _log_row(state: serving.EngineState, first: serving.EngineState) -> dict[str, float]:
    return {
        "seconds": state.now_seconds - first.now_seconds,
        "joules": state.joules - first.joules,
        "running": state.running,
        "waiting": state.waiting,
        "prompt_tokens": state.prompt_tokens - first.prompt_tokens,
        "generation_tokens": state.generation_tokens - first.generation_tokens,
        "kv_share": state.kv_share,
    }


def _prometheus(account: LedgerAccount, watch: serving.ServiceWatch) -> str:
    """The account as a file for node_exporter's textfile collector."""
    values = {
        "joulery_serving_joules_total": account.joules,
        "joulery_serving_waiting_watts": account.waiting_watts,
        "joulery_serving_prefill_joules_per_token": account.prefill_joules_per_token.value,
        "joulery_serving_prefill_joules_per_token_error": account.prefill_joules_per_token.error,
        "joulery_serving_decode_joules_per_token": account.decode_joules_per_token.value,
        "joulery_serving_decode_joules_per_token_error": account.decode_joules_per_token.error,
        "joulery_serving_joules_per_request": account.joules_per_request.value,
    }
    label = f'engine="{watch.metrics.engine}"'
    lines = [f"{name}{{{label}}} {value}" for name, value in values.items()]
    for model, counts in watch.reader.tokens_by_model.items():
        text = json.dumps(model, ensure_ascii=False)
        lines += [
            f'joulery_serving_tokens_total{{{label},model={text},type="{kind}"}} {count}'
            for kind, count in zip(("prompt", "generated"), counts, strict=True)
        ]
    return "\n".join(lines) + "\n"


def _count(number: float) -> str:
    return "unknown" if math.isnan(number) else f"{number:,.0f}"


def _figure(figure: UncertainValue, unit: str) -> str:
    if math.isnan(figure.value):
        return "unknown"
    return f"{human(figure.value, unit)} ± {per_cent(figure.relative_error)}"


def _account_line(account: LedgerAccount) -> str:
    prefill, decode = account.prefill_joules_per_token, account.decode_joules_per_token
    watts = account.joules / account.seconds if account.seconds else math.nan
    return (
        f"{human_duration(account.seconds)}, {watts:.0f} W; prompt token {_figure(prefill, 'J')}, "
        f"generated token {_figure(decode, 'J')}"
    )


_FLAGS = {
    "counted-late": "The engine counts tokens when requests end: no energy of a token is known.",
    "few-intervals": "Too little time or traffic to tell prompts and answers apart.",
    "idle-assumed": "No idle time was seen: the power of waiting is assumed from the catalog.",
    "unstable": "Errors are above 3 %: measure longer, or with a load that changes.",
    "idle-above-work": "The boards draw no more at work than idle: energy of tokens is unknown.",
    "inseparable": "Prompts and answers always came together: their figures are not to be trusted.",
}


def _description(watch: serving.ServiceWatch) -> str:
    """What was watched: models, address, boards and date."""
    boards = Counter(device.info.name for device in watch.devices)
    words = [*filter(None, watch.reader.tokens_by_model), watch.url]
    words += [f"{count} × {name}" for name, count in boards.items()]
    return ", ".join([*words, f"{datetime.now(UTC).date()}"])


def _account_report(account: LedgerAccount, watch: serving.ServiceWatch) -> Report:
    rows = [
        ("energy", human(account.joules, "J")),
        ("per prompt token", _figure(account.prefill_joules_per_token, "J")),
        ("per generated token", _figure(account.decode_joules_per_token, "J")),
        ("per request", _figure(account.joules_per_request, "J")),
        ("while waiting", human(account.waiting_joules, "J")),
        ("power while waiting", f"{account.waiting_watts:.0f} W"),
        ("time", human_duration(account.seconds)),
        ("requests", _count(account.requests)),
        ("prompt tokens", f"{account.prompt_tokens:,.0f}"),
        ("generated tokens", f"{account.generation_tokens:,.0f}"),
    ]
    columns = {
        "figure": lambda row: row[0],
        f">{watch.provenance.origin.value}": lambda row: row[1],
    }
    notes = [Paragraph(_FLAGS[name], soft=True) for name in account.flags]
    if watch.throttles:
        reasons = ", ".join(watch.throttles)
        notes.append(Paragraph(f"Boards were slowed down for a time: {reasons}.", soft=True))
    title = f"Energy of the service on {watch.metrics.engine}"
    table = Table.of(rows, columns)
    return Report(
        title, watch.provenance.origin.value, (Paragraph(_description(watch)), table, *notes)
    )


def _objective(arguments: argparse.Namespace) -> serving.LatencyObjective:
    return serving.LatencyObjective(arguments.ttft, arguments.tpot, arguments.quantile)


def _tune(arguments: argparse.Namespace) -> Output:
    progress = Progress()
    tuner = serving.Tuner(
        arguments.engine, _objective(arguments), devices=arguments.device, knob=arguments.knob
    )
    began, report, run_log = REAL_CLOCK.now(), tuner.report(), None

    def state() -> RunState:
        return _tune_state(tuner, report, _objective(arguments))

    try:
        with signals_interrupt(), tuner:
            while REAL_CLOCK.now() - began < arguments.seconds:
                REAL_CLOCK.sleep(min(_SHOW_SECONDS, arguments.seconds))
                with suppress(Exception):  # a figure that fails does not end the tuner
                    report = tuner.report()
                    progress.show(f"joulery: {_tune_line(report)}")
                    run_log = run_log or _begin_run_log(tuner.watch, state)
    except KeyboardInterrupt:
        tuner.close()  # the signal may have come before the block was entered
    finally:
        progress.done()
    report = tuner.report()
    if run_log is not None:
        run_log.end(tuner.watch.window.measurement)
    document = _head(tuner.watch) | asdict(report)
    return Output(document, lambda: _tune_report(report, _objective(arguments), tuner.watch))


def _mostly(report: ServiceReport) -> str:
    setting = max(report.seconds_at, key=report.seconds_at.__getitem__, default="as found")
    return f"mostly {setting}"


def _tune_state(
    tuner: serving.Tuner, report: ServiceReport, objective: serving.LatencyObjective
) -> RunState:
    within = {
        f"within the bound of {name.upper()}": _share(share)
        for name, share in report.attained.items()
    }
    tags = _tags(tuner.watch, report.account) | within
    ttft, tpot = human(objective.ttft_seconds, "s"), human(objective.tpot_seconds, "s")
    bounds = f"TTFT {ttft}, TPOT {tpot} for {100 * objective.quantile:g} % of requests"
    return RunState(
        setting=_mostly(report), objective=bounds, energy_saving=report.saved, tags=tags
    )


def _tune_line(report: ServiceReport) -> str:
    return (
        f"{_mostly(report)}, {_share(report.saved)} saved (predicted); within bounds: "
        f"TTFT {_share(report.attained['ttft'])}, TPOT {_share(report.attained['tpot'])}"
        + (f"; {report.trouble}" if report.trouble else "")
    )


def _share(share: float) -> str:
    return "–" if math.isnan(share) else per_cent(share)


def _tune_report(
    report: ServiceReport, objective: serving.LatencyObjective, watch: serving.ServiceWatch
) -> Report:
    rows = [
        ("TTFT", objective.ttft_seconds, report.latencies["ttft"], report.attained["ttft"]),
        ("TPOT", objective.tpot_seconds, report.latencies["tpot"], report.attained["tpot"]),
    ]
    columns: dict[str, Callable[[Any], str]] = {
        "latency": lambda row: row[0],
        ">bound": lambda row: _milliseconds(row[1]),
        ">median": lambda row: _milliseconds(row[2][0]),
        ">99 %": lambda row: _milliseconds(row[2][1]),
        ">within": lambda row: _share(row[3]),
    }
    settings = {"setting": lambda row: row[0], ">time": lambda row: human_duration(row[1])}
    words = [f"{_share(report.saved)} of the energy saved, as predicted from the catalog."]
    if report.failures:
        words.append(f"{report.failures} failures, the last: {report.trouble}")
    if report.short_seconds:
        words.append(
            f"Requests were late for {human_duration(report.short_seconds)} because a cluster's "
            f"budget left too little power (now {human(report.share_watts or 0.0, 'W')} a board)."
        )
    return Report(
        f"Tuned service on {report.engine}, by its {report.knob}",
        watch.provenance.origin.value,
        (
            Table.of(rows, columns),
            Table.of(report.seconds_at.items(), settings),
            *(Paragraph(text, soft=True) for text in words),
            *_account_report(report.account, watch).blocks,
        ),
    )


def _milliseconds(seconds: float) -> str:
    return "–" if math.isnan(seconds) else f"{1e3 * seconds:.0f} ms"


def _sweep(arguments: argparse.Namespace) -> Output:
    watch = serving.ServiceWatch(arguments.engine, arguments.device)
    knob = serving.BoardsKnob(watch.devices, arguments.knob)
    top, progress = len(knob.settings) - 1, Progress()
    step = max(1, round(top / max(1, arguments.settings - 1)))
    positions = list(range(top, -1, -step))

    def show(row: SweepRow) -> None:
        progress.show(
            f"joulery: {row.setting}: {row.watts:.0f} W, {_figure(row.joules_per_token, 'J')}/token"
        )

    try:
        with signals_interrupt():
            rows, frontier = serving.sweep_service(
                watch, knob, positions, arguments.seconds, on_row=show
            )
    finally:
        progress.done()
        knob.release()
        watch.close()
    if arguments.frontier is not None and frontier is not None:
        write_file(arguments.frontier, frontier.to_json() + "\n", "--frontier")
    document = _head(watch) | {"knob": knob.kind, "settings": [asdict(row) for row in rows]}
    return Output(document, lambda: _sweep_report(rows, watch, frontier), page=arguments.html)


def _sweep_report(
    rows: Sequence[SweepRow], watch: serving.ServiceWatch, frontier: Frontier | None
) -> Report:
    columns: dict[str, Callable[[SweepRow], str]] = {
        "setting": lambda row: row.setting,
        ">power": lambda row: f"{row.watts:.0f} W",
        ">tokens/s": lambda row: f"{row.tokens_per_second:.0f}",
        ">J/token": lambda row: _figure(row.joules_per_token, "J"),
        ">J/prompt token": lambda row: _figure(row.prefill_joules_per_token, "J"),
        ">J/generated": lambda row: _figure(row.decode_joules_per_token, "J"),
        ">TTFT 99 %": lambda row: _milliseconds(row.ttft_seconds[1]),
        ">TPOT 99 %": lambda row: _milliseconds(row.tpot_seconds[1]),
    }
    text = (
        f"{_description(watch)}: {rows[0].seconds:.0f} s at each setting under its own traffic. "
        "J/token is at the mean traffic of all rows."
    )
    title = f"Service on {watch.metrics.engine} by setting"
    blocks: tuple[Any, ...] = (Paragraph(text), Table.of(rows, columns))
    if frontier is not None:
        least = min(frontier, key=lambda point: point.joules)
        knee = f"The least energy of a request, {human(least.joules, 'J')}, is at {least.setting}."
        blocks += (Paragraph(knee), *frontier_report(frontier, "A mean request").charts)
    return Report(title, watch.provenance.origin.value, blocks)


def _simulate(arguments: argparse.Namespace) -> Output:
    case, fit = _case(arguments)
    policies = arguments.policies or list(serving.POLICIES)
    unknown = sorted(set(policies) - set(serving.POLICIES))
    if unknown:
        known = ", ".join(serving.POLICIES)
        raise UsageError(f"no policy {unknown[0]!r}", remedy=f"choose among {known}")
    outcomes = serving.compare_policies(case, policies)
    run = case.run_at(len(case.positions()) - 1)
    bounds = case.objective.ttft_seconds, case.objective.tpot_seconds
    waiting = case.board.awake_watts * case.model.boards
    advice = serving.sleep_advice(
        run, waiting, arguments.asleep_watts * case.model.boards, arguments.wake
    )
    if arguments.frontier is not None:
        text = serving.served_frontier(case).to_json()
        write_file(arguments.frontier, text + "\n", "--frontier")
    document = {
        "schema": SCHEMA,
        "origin": Origin.SIMULATED.value,
        "model": case.model.name,
        "device": case.board.name,
        "count": case.model.boards,
        "requests": len(case.requests),
        "seconds": run.seconds,
        "node_watts": serving.node_watts(
            case.board, case.model.boards, run.joules / run.seconds / case.model.boards
        ),
        "attainable": bool(run.attained(*bounds).mean() >= case.objective.quantile),
        "policies": {
            name: asdict(outcome) | _cost(outcome, arguments.price)
            for name, outcome in outcomes.items()
        },
        "idle": advice,
    }
    if fit is not None:
        document["calibration"] = {"ttft_error": fit[0], "tpot_error": fit[1]}
    words = _calibration_words(fit) + _sleep_words(advice)
    return Output(document, lambda: _simulate_report(case, outcomes, words, arguments.price))


def _case(arguments: argparse.Namespace) -> tuple[serving.ServingCase, tuple[float, float] | None]:
    """The case, and how far a log is from the model that was fitted to it."""
    board = serving.serving_board(arguments.device, _products(arguments.precision))
    model = serving.served_model(arguments.model, board, arguments.count, arguments.precision)
    requests = serving.at_rate(serving.read_trace(arguments.trace), arguments.speed)
    requests = requests[: arguments.requests]
    engine = serving.EngineConfig(arguments.batched_tokens, arguments.batch)
    if arguments.knob not in ("clock", "limit"):
        raise UsageError(f"no knob {arguments.knob!r}", remedy="choose clock or limit")
    by_clock = arguments.knob == "clock"
    settings = serving.clock_settings(board) if by_clock else serving.limit_settings(board)
    case = serving.ServingCase(
        requests, model, board, _objective(arguments), engine, settings, lag_seconds=arguments.lag
    )
    if arguments.calibrate is None:
        return case, None
    requests = serving.read_trace(arguments.calibrate)
    ttft, tpot = serving.read_latencies(arguments.calibrate)
    table = board.within(board.limit_watts)
    model = serving.calibrate_model(model, table, requests, ttft, tpot, engine)
    run = serving.ServingSimulation(requests, model, [table], engine=engine).run()
    return replace(case, model=model), serving.latency_errors(run, ttft, tpot)


def _calibration_words(fit: tuple[float, float] | None) -> str:
    if fit is None:
        return ""
    words = f"The calibrated model's TTFT is {per_cent(fit[0])} off the log's, its TPOT "
    words += f"{per_cent(fit[1])}. "
    if max(fit) <= _POOR_FIT:
        return words
    return (
        f"{words}It does not fit: give the engine's own --batch and --batched-tokens, the log's "
        "board and precision, and times in seconds. "
    )


def _products(precision: str) -> str:
    if precision not in ("bf16", "fp16", "fp8", "int8", "int4"):
        raise InvalidValueError(f"no precision {precision!r}", remedy="bf16, fp8, int8 or int4")
    return "fp8" if precision in ("fp8", "int8") else "bf16"


def _simulate_report(
    case: serving.ServingCase, outcomes: dict[str, PolicyOutcome], words: str, price: float | None
) -> Report:
    full, quantile = outcomes.get("full"), case.objective.quantile
    columns: dict[str, Callable[[PolicyOutcome], str]] = {
        "policy": lambda outcome: f"{outcome.policy} {outcome.setting}".strip(),
        ">energy": lambda outcome: human(outcome.joules, "J"),
        # Energy that was saved by breaking the objective is no saving.
        ">saved": lambda outcome: per_cent(outcome.saved) if outcome.attained >= quantile else "–",
        ">within bounds": lambda outcome: f"{100 * outcome.attained:.2f} %",
        ">TTFT 99 %": lambda outcome: _milliseconds(outcome.ttft_seconds[1]),
        ">TPOT 99 %": lambda outcome: _milliseconds(outcome.tpot_seconds[1]),
    }
    if price is not None:
        columns[">cost"] = lambda outcome: f"{_cost(outcome, price)['cost']:.3g}"
    if full is not None and full.attained < quantile:
        words += (
            f" The objective is out of reach: at full power {100 * full.attained:.1f} % of the "
            f"requests keep their bounds, not {100 * quantile:g} %."
        )
    boards = f"{case.model.boards} × {case.board.name}"
    title = f"{case.model.name} on {boards}, {len(case.requests):,} requests, simulated"
    return Report(title, "simulated", (Table.of(outcomes.values(), columns), Paragraph(words)))


def _cost(outcome: PolicyOutcome, price: float | None) -> dict[str, float]:
    return {} if price is None else {"cost": kilowatt_hours(outcome.joules) * price}


def _sleep_words(advice: dict[str, float]) -> str:
    words = (
        f"The boards are idle {per_cent(advice['idle_share'])} of the time and then draw "
        f"{advice['waiting_watts']:.0f} W. "
    )
    if math.isinf(advice["pays_from_seconds"]):
        return f"{words}Sleeping never pays: it draws no less."
    return (
        f"{words}Sleeping pays in gaps of more than {human_duration(advice['pays_from_seconds'])}: "
        f"there are {advice['gaps_that_pay']:.0f}, sleeping in them would save "
        f"{human(advice['saved_joules'], 'J')}, and the request after each would wait for the "
        "model to load."
    )


def _bound(text: str) -> float:
    """A latency with its unit: 500 could be meant as seconds or milliseconds."""
    if text.strip()[-1:].isdigit():
        raise UsageError(f"{text!r} has no unit", remedy=f"write {text}ms or {text}s")
    return duration(text)


def _devices(text: str) -> list[str]:
    """Names of boards; a number alone is a GPU's position, as for CUDA."""
    devices = names(text)
    if not devices:
        raise UsageError("--device names no board", remedy="leave it out for all GPUs")
    return [f"gpu:{name}" if name.isdigit() else name for name in devices]


_ENGINE = option("--engine", "address of the engine", "URL", required=True)
_DEVICE = option("--device", "boards of the service (default: all GPUs)", "NAME,…", _devices)
# Shorter than a reading says nothing.
_length = quantity("s", _TICK_SECONDS)
_SECONDS = option(
    "--seconds", "length (default: until interrupted)", "TIME", _length, default=math.inf
)
_KNOB = option("--knob", "clock, limit or auto (auto)", "WORD", default="auto")
_BOUNDS = (
    option(
        "--ttft", "bound of the time to first token, such as 500ms", "TIME", _bound, required=True
    ),
    option(
        "--tpot", "bound of the time per output token, such as 50ms", "TIME", _bound, required=True
    ),
    option(
        "--quantile",
        "share of requests to keep both (0.99)",
        "Q",
        number(0.5, 0.9999),
        default=0.99,
    ),
)
COMMAND = Action(
    actions={
        "meter": Action(
            _meter,
            (
                _ENGINE,
                _DEVICE,
                _SECONDS,
                written("--csv", "write every reading", ".csv"),
                written(
                    "--prometheus",
                    "write the account for node_exporter's textfile collector",
                    ".prom",
                ),
                flag("--opentelemetry", "send figures to OTEL_EXPORTER_OTLP_ENDPOINT"),
                page_option("write a page"),
            ),
            summary="joules per prompt token, generated token and request of a running engine",
            epilog="Engines are vLLM, SGLang (--enable-metrics), TensorRT-LLM, llama.cpp "
            "(--metrics) and TGI;\nrequests do not pass through Joulery.\n\nexample: joulery "
            "serving meter --engine http://127.0.0.1:8000 --seconds 2min",
        ),
        "tune": Action(
            _tune,
            (_ENGINE, *_BOUNDS, _DEVICE, _KNOB, _SECONDS),
            summary="hold the clock or limit of least energy that keeps the latencies",
            epilog="example: joulery serving tune --engine http://127.0.0.1:8000 --ttft 0.5s "
            "--tpot 50ms",
        ),
        "sweep": Action(
            _sweep,
            (
                _ENGINE,
                _DEVICE,
                _KNOB,
                option("--seconds", "time at each setting (30s)", "TIME", _length, default=30.0),
                option("--settings", "number of settings (7)", "N", whole(2, 14), default=7),
                written("--frontier", "write the frontier of a mean request as JSON", ".json"),
                page_option("write a page"),
            ),
            summary="watts, tokens per second, latencies and joules per token by setting",
            epilog="example: joulery serving sweep --engine http://127.0.0.1:8000 --html page.html",
        ),
        "simulate": Action(
            _simulate,
            (
                file("--trace", "requests: CSV or JSON lines, also .gz", required=True),
                file(
                    "--model", "description of the model, as for `joulery predict`", required=True
                ),
                option("--device", "board of the catalog", "NAME", required=True),
                option(
                    "--count",
                    "boards of the tensor-parallel group (1)",
                    "N",
                    whole(1, 64),
                    default=1,
                ),
                *_BOUNDS,
                option("--precision", "of the weights (bf16)", "WORD", default="bf16"),
                option("--knob", "clock or limit (clock)", "WORD", default="clock"),
                option(
                    "--policies",
                    "policies to compare (all of full, fixed, ladder, tuner, oracle)",
                    "NAME,…",
                    names,
                ),
                option(
                    "--speed",
                    "factor on the rate of arrivals (1)",
                    "X",
                    number(1e-6, 1e6),
                    default=1.0,
                ),
                option("--requests", "most requests to replay", "N", whole(1, 10**9)),
                option(
                    "--batched-tokens",
                    "most tokens of an iteration (2048)",
                    "N",
                    whole(16, 10**6),
                    default=2048,
                ),
                option("--batch", "most requests at once (256)", "N", whole(1, 10**6), default=256),
                option(
                    "--lag",
                    "time until a setting is in force (0.1s)",
                    "TIME",
                    duration,
                    default=0.1,
                ),
                option("--price", "price of a kilowatt-hour, to print the money", "X", number(0.0)),
                option(
                    "--asleep-watts", "power of a board asleep (20)", "W", number(0.0), default=20.0
                ),
                option(
                    "--wake", "time to load the model again (30s)", "TIME", duration, default=30.0
                ),
                file("--calibrate", "fit times to a log of a real engine (JSON lines)"),
                written(
                    "--frontier",
                    "write the frontier at the objective, a job's curve for `cluster`",
                    ".json",
                ),
            ),
            summary="replay requests through a model of continuous batching, policies side by side",
        ),
    }
)
