"""Names of Zeus (zeus 0.16, zeus-ml 0.8), so that code written for it runs on Joulery.

Change the import and nothing else::

    from joulery.integrations.zeus import ZeusMonitor, GlobalPowerLimitOptimizer

Energy comes from ``joulery.Meter`` and power limits are tuned by ``joulery.Run``, so
options that steer Zeus's own profiling (``warmup_steps``, ``pl_step`` …) are checked and then not
needed. A limit is restored to its original value, not to the hardware's maximum.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
import sys
import warnings
from abc import ABCMeta
from collections import deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.background import PeriodicTask
from joulery.hardware import DeviceKind
from joulery.metering import Meter
from joulery.objectives import Cost, LeastEnergy
from joulery.power import weighed_cost
from joulery.training import CallbackLoop, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.hardware import Device
    from joulery.metering import Window
    from joulery.objectives import Objective


__all__ = [
    "Callback",
    "CallbackSet",
    "DeprecatedAliasABCMeta",
    "Energy",
    "GPUPowerDomain",
    "GlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Measurement",
    "PowerDomain",
    "PowerMonitor",
    "Time",
    "ZeusCost",
    "ZeusMonitor",
    "deprecated_alias",
    "get_env",
]

# Longest wait for a sample that is being taken when a monitor stops.
_STOP_SECONDS = 5.0  # by hand


@dataclass(frozen=True, slots=True)
class ZeusMeasurement:
    """Time in seconds and energy in joules of a window, by index of the device."""

    time: float
    gpu_energy: dict[int, float]
    cpu_energy: dict[int, float] | None = None
    dram_energy: dict[int, float] | None = None
    soc_energy: None = None  # of boards that are one chip; none is measured here

    @property
    def total_energy(self) -> float:
        """Energy of the GPUs in joules."""
        return sum(self.gpu_energy.values())


Measurement = ZeusMeasurement  # as Zeus names it


class ZeusMonitor:
    """Measures windows by name, as Zeus's monitor does.

    Args:
        gpu_indices: GPUs among all that this process sees; all unless given.
        cpu_indices: CPU packages; all unless given, none for an empty list.
        approx_instant_energy: Accepted; short windows are always interpolated.
        log_file: CSV file of all windows.
        sync_execution_with: Framework to wait for at the edges of a window.

    Attributes:
        gpus: GPUs that are measured.

    Raises:
        ValueError: An index is out of range.
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        cpu_indices: list[int] | None = None,
        approx_instant_energy: bool = False,  # noqa: FBT001, FBT002 - as Zeus has it
        log_file: str | Path | None = None,
        sync_execution_with: str = "torch",
    ) -> None:
        self.approx_instant_energy = approx_instant_energy
        self.meter = Meter().start()
        gpus = self._of_kind(DeviceKind.GPU)
        self.gpu_indices = list(range(len(gpus))) if gpu_indices is None else list(gpu_indices)
        cpus = self._of_kind(DeviceKind.CPU)
        self.cpu_indices = list(range(len(cpus))) if cpu_indices is None else list(cpu_indices)
        for indices, devices in ((self.gpu_indices, gpus), (self.cpu_indices, cpus)):
            if any(not 0 <= index < len(devices) for index in indices):
                raise ValueError(f"indices {indices} are not all among the {len(devices)} found")
        self.gpus = [gpus[index] for index in self.gpu_indices]
        self._synchronize = _SYNCHRONIZE[sync_execution_with]
        self._windows: dict[str, Window] = {}
        self._log = None if log_file is None else Path(log_file)
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            columns = [f"gpu{index}_energy" for index in self.gpu_indices]
            self._write_row(["start_time", "window_name", "elapsed_time", *columns], "w")

    def begin_window(self, key: str, sync_execution: bool = True, restart: bool = False) -> None:  # noqa: FBT001, FBT002
        """Begin a window.

        Raises:
            ValueError: One of this name is open, and ``restart`` is not asked for.
        """
        if key in self._windows and not restart:
            raise ValueError(f"window {key!r} is open already")
        if sync_execution:
            self._synchronize()
        self._windows[key] = self.meter.begin(key)

    def end_window(
        self,
        key: str,
        sync_execution: bool = True,  # noqa: FBT001, FBT002
        cancel: bool = False,  # noqa: FBT001, FBT002
    ) -> ZeusMeasurement:
        """End a window.

        Raises:
            ValueError: No window of this name is open.
        """
        if key not in self._windows:
            raise ValueError(f"window {key!r} is not open")
        if sync_execution:
            self._synchronize()
        measured = self.meter.end(self._windows.pop(key)).measurement
        if cancel:
            nothing = dict.fromkeys(self.gpu_indices, 0.0)
            return ZeusMeasurement(0.0, nothing, dict.fromkeys(self.cpu_indices, 0.0))
        gpus = _by_index(measured.devices, DeviceKind.GPU, self.gpu_indices)
        cpus = _by_index(measured.devices, DeviceKind.CPU, self.cpu_indices)
        memory = [d.joules for d in measured.devices if d.info.kind is DeviceKind.MEMORY]
        joules = [gpus[index] for index in self.gpu_indices]
        self._write_row([measured.started_at_wall, key, measured.seconds, *joules])
        return ZeusMeasurement(
            measured.seconds, gpus, cpus or None, dict(enumerate(memory)) or None
        )

    def reset_windows(self) -> None:
        """Forget all open windows."""
        for window in self._windows.values():
            self.meter.end(window)
        self._windows.clear()

    def _of_kind(self, kind: DeviceKind) -> list[Device]:
        return [device for device in self.meter.devices if device.info.kind is kind]

    def _write_row(self, row: list[Any], mode: str = "a") -> None:
        if self._log is not None:
            with self._log.open(mode, newline="", encoding="utf-8") as file:
                csv.writer(file).writerow(row)


def _by_index(devices: Sequence[Any], kind: DeviceKind, indices: list[int]) -> dict[int, float]:
    joules = [device.joules for device in devices if device.info.kind is kind]
    return {index: joules[index] for index in indices}


def _wait_for_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


def _wait_for_jax() -> None:
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.block_until_ready(jax.live_arrays())


def _wait_for_cupy() -> None:
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.cuda.Device().synchronize()


_SYNCHRONIZE: dict[str, Callable[[], None]] = {
    "torch": _wait_for_torch,
    "jax": _wait_for_jax,
    "cupy": _wait_for_cupy,
}


class PowerDomain(Enum):
    """Kinds of readings; a board's newest one stands for both of the device."""

    DEVICE_INSTANT = "device_instant"
    DEVICE_AVERAGE = "device_average"
    MEMORY_AVERAGE = "memory_average"


GPUPowerDomain = PowerDomain  # as later versions of Zeus name it


class PowerMonitor:
    """Records the power of GPUs over time, as Zeus's monitor of power does.

    Args:
        gpu_indices: GPUs among all that this process sees; all unless given.
        update_period: Seconds between two samples; 0.1 unless given.
        max_samples_per_gpu: Number of samples that are kept; all unless given.
        power_domains: Kinds of readings; both of the device unless given.

    Raises:
        ValueError: An index is out of range, or a domain is not of the device.
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        update_period: float | None = None,
        max_samples_per_gpu: int | None = None,
        power_domains: list[PowerDomain | str] | None = None,
    ) -> None:
        domains = [PowerDomain.DEVICE_INSTANT, PowerDomain.DEVICE_AVERAGE]
        self._domains = domains if power_domains is None else list(map(PowerDomain, power_domains))
        if PowerDomain.MEMORY_AVERAGE in self._domains:
            raise ValueError("the power of a board's memory is not measured")
        monitor = ZeusMonitor(gpu_indices, [])
        self.gpu_indices, self.update_period = monitor.gpu_indices, update_period or 0.1
        self._ids = dict(zip(self.gpu_indices, (g.info.id for g in monitor.gpus), strict=True))
        self._meter = monitor.meter
        self._samples: dict[int, deque[tuple[float, float]]] = {
            index: deque(maxlen=max_samples_per_gpu) for index in self.gpu_indices
        }
        clock = self._meter.clock
        self._task = PeriodicTask(self._sample, seconds=self.update_period, clock=clock)
        self._task.start()

    def _sample(self) -> None:
        watts, now = self._meter.watts(), self._meter.clock.wall()
        for index, device in self._ids.items():
            if device in watts:
                self._samples[index].append((now, watts[device]))

    def stop(self) -> None:
        """End; what was recorded stays."""
        self._task.stop(_STOP_SECONDS)
        self._meter.close()

    def get_power_timeline(
        self,
        power_domain: PowerDomain | str,
        gpu_index: int | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> dict[int, list[tuple[float, float]]]:
        """Unix times and watts by GPU.

        Raises:
            ValueError: The domain is not monitored.
        """
        if PowerDomain(power_domain) not in self._domains:
            raise ValueError(f"power domain {PowerDomain(power_domain).value} is not monitored")
        first = -math.inf if start_time is None else start_time
        last = math.inf if end_time is None else end_time
        return {
            index: [sample for sample in tuple(samples) if first <= sample[0] <= last]
            for index, samples in self._samples.items()
            if gpu_index in (None, index)
        }

    def get_all_power_timelines(
        self,
        gpu_index: int | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> dict[str, dict[int, list[tuple[float, float]]]]:
        """Unix times and watts by domain and GPU."""
        return {
            domain.value: self.get_power_timeline(domain, gpu_index, start_time, end_time)
            for domain in self._domains
        }

    def get_power(
        self,
        time: float | None = None,
        power_domain: PowerDomain | str = PowerDomain.DEVICE_INSTANT,
    ) -> dict[int, float] | None:
        """Watts by GPU, at the sample nearest to a time or at the latest; None without samples."""
        timelines = self.get_power_timeline(power_domain)
        if not all(timelines.values()):
            return None
        moment = math.inf if time is None else time
        return {
            index: min(reversed(line), key=lambda sample: abs(sample[0] - moment))[1]
            for index, line in timelines.items()
        }

    def get_energy(
        self,
        start_time: float,
        end_time: float,
        power_domain: PowerDomain | str | None = None,
    ) -> dict[int, float] | None:
        """Joules by GPU between two times, from the samples in between; None without GPUs.

        A window of ``ZeusMonitor`` is more accurate: it counts with the boards' own counters.
        """
        domain = self._domains[0] if power_domain is None else power_domain
        timelines = self.get_power_timeline(domain, None, start_time, end_time)
        return {
            index: sum(
                (later[0] - earlier[0]) * (earlier[1] + later[1]) / 2
                for earlier, later in itertools.pairwise(line)
            )
            for index, line in timelines.items()
        } or None


@dataclass(frozen=True, slots=True)
class Energy:
    """Selector: the least energy, at any speed."""

    def objective(self, gpus: Sequence[Device]) -> Objective:
        """The objective of Joulery that it stands for."""
        return LeastEnergy()


@dataclass(frozen=True, slots=True)
class Time:
    """Selector: the least time."""

    def objective(self, gpus: Sequence[Device]) -> Objective:
        """The objective of Joulery that it stands for."""
        return weighed_cost(0.0, gpus)


class ZeusCost:
    """Selector: the cost of Zeus, energy weighed against time by ``eta_knob``."""

    def __init__(self, eta_knob: float, world_size: int = 1) -> None:
        if not 0 <= eta_knob <= 1:
            raise ValueError(f"eta_knob must be between 0 and 1, not {eta_knob}")
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, not {world_size}")
        self.eta_knob = eta_knob
        self.world_size = world_size

    def objective(self, gpus: Sequence[Device]) -> Objective:
        """The objective of Joulery that it stands for."""
        cost: Cost = weighed_cost(self.eta_knob, gpus)
        return cost


class MaxSlowdownConstraint:
    """Selector: the least energy at most ``factor`` times slower, of more than 2 at most twice."""

    def __init__(self, factor: float) -> None:
        if not (math.isfinite(factor) and factor >= 1):
            raise ValueError(f"max_slowdown_factor must be at least 1, not {factor}")
        self.factor = factor

    def objective(self, gpus: Sequence[Device]) -> Objective:
        """The objective of Joulery that it stands for."""
        return LeastEnergy(max_slowdown=min(self.factor - 1, 1.0))


class ZeusCallback:
    """Base class of callbacks; every hook does nothing."""

    def on_train_begin(self) -> None:
        """Training begins."""

    def on_train_end(self) -> None:
        """Training has ended."""

    def on_epoch_begin(self) -> None:
        """An epoch begins."""

    def on_epoch_end(self) -> None:
        """An epoch has ended."""

    def on_step_begin(self) -> None:
        """A step begins."""

    def on_step_end(self) -> None:
        """A step has ended."""

    def on_evaluate(self, metric: float) -> None:
        """The model was evaluated."""

    def on_instruction_begin(self, name: str) -> None:
        """An instruction of a pipeline begins."""

    def on_instruction_end(self, name: str) -> None:
        """An instruction of a pipeline has ended."""


Callback = ZeusCallback  # as Zeus names it


class CallbackSet(ZeusCallback):
    """Several callbacks as one."""

    def __init__(self, callbacks: list[Any]) -> None:
        self.callbacks = callbacks

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def call_all(*args: Any) -> None:
            for callback in self.callbacks:
                getattr(callback, name)(*args)

        return call_all


class GlobalPowerLimitOptimizer(ZeusCallback):
    """Finds and holds the best power limit of the monitor's GPUs while they train.

    Args:
        monitor: Monitor that names the GPUs.
        optimum_selector: Selector of the best limit; ``ZeusCost(0.5)`` unless given.
        wait_steps: Checked and not needed: the tuner finds out when steps have settled.
        warmup_steps: Checked and not needed, likewise.
        profile_steps: Checked and not needed: the tuner measures for as long as it must.
        pl_step: Checked and not needed: the tuner tries whole watts.
        profile_path: Path whose name stands for the job: runs of one name share a profile.

    Raises:
        ValueError: A number of steps or watts is out of range.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - as Zeus has them
        self,
        monitor: ZeusMonitor,
        optimum_selector: Any = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | Path | None = None,
    ) -> None:
        for name, value, least in (
            ("wait_steps", wait_steps, 0),
            ("warmup_steps", warmup_steps, 0),
            ("profile_steps", profile_steps, 1),
            ("pl_step", pl_step, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        selector = optimum_selector or ZeusCost(0.5, max(1, len(monitor.gpu_indices)))
        name = "" if profile_path is None else str(Path(profile_path).absolute())
        objective = selector.objective(monitor.gpus) if monitor.gpus else None
        self.monitor = monitor
        self.optimum_selector = selector
        self.run = Run(
            name, objective=objective, devices=monitor.gpus, process_group=_torch_group()
        )
        self._loop = CallbackLoop(self.run, meter=monitor.meter)

    def on_epoch_begin(self) -> None:
        """An epoch begins."""
        self._loop.begin_epoch()

    def on_epoch_end(self) -> None:
        """An epoch has ended, and something else may follow."""
        self._loop.pause()

    def on_step_begin(self) -> None:
        """A step begins."""
        self._loop.begin_step()

    def on_step_end(self) -> None:
        """A step has ended."""
        self._loop.end_step()

    def on_train_end(self) -> None:
        """Training has ended: the original limit is back in force."""
        self.run.close()


def _torch_group() -> Any:
    """The processes of a data-parallel training of torch; None where there is one only."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    from joulery.integrations.torch_ranks import torch_ranks

    return torch_ranks() if distributed.get_world_size() > 1 else None


def get_env(name: str, valtype: type[Any], default: Any = None) -> Any:
    """Value of an environment variable, as the type that is asked for.

    Raises:
        ValueError: It is not set and has no default, or is not of this type.
    """
    text = os.environ.get(name)
    if text is None:
        if default is None:
            raise ValueError(f"the environment variable {name} is not set")
        return default
    if valtype is not bool:
        return valtype(text)
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{name} must be true or false, not {text!r}")
    return text.lower() == "true"


def deprecated_alias(old_name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a method of a device class another name, whose use warns."""

    def decorate(method: Any) -> Any:
        method.old_name = old_name
        return method

    return decorate


class DeprecatedAliasABCMeta(ABCMeta):
    """Metaclass of device classes that have methods with a ``deprecated_alias``."""

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, body)
        for new_name, method in body.items():
            if old_name := getattr(method, "old_name", None):
                setattr(cls, old_name, _alias(old_name, new_name))


def _alias(old_name: str, new_name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        warnings.warn(f"{old_name} is now {new_name}", DeprecationWarning, stacklevel=2)
        return getattr(self, new_name)(*args, **options)

    return call


def __dir__() -> list[str]:
    return sorted([*__all__, "HFGlobalPowerLimitOptimizer", "ZeusDataLoader"])


def __getattr__(name: str) -> Any:
    if name == "HFGlobalPowerLimitOptimizer":  # needs transformers
        return _hugging_face_optimizer()
    if name == "ZeusDataLoader":  # needs torch
        return _data_loader()
    raise AttributeError(name)


def _hugging_face_optimizer() -> type[Any]:
    from joulery.integrations.transformers import TransformersCallback

    class HFGlobalPowerLimitOptimizer(TransformersCallback):
        """``GlobalPowerLimitOptimizer`` as a callback of transformers' Trainer."""

        def __init__(self, *args: Any, **options: Any) -> None:
            optimizer = GlobalPowerLimitOptimizer(*args, **options)
            super().__init__(optimizer.run, meter=optimizer.monitor.meter)

    init: Any = HFGlobalPowerLimitOptimizer.__init__
    init.__wrapped__ = GlobalPowerLimitOptimizer.__init__
    globals()["HFGlobalPowerLimitOptimizer"] = HFGlobalPowerLimitOptimizer
    return HFGlobalPowerLimitOptimizer


def _data_loader() -> type[Any]:
    from joulery.integrations.torch import EnergyDataLoader

    class ZeusDataLoader(EnergyDataLoader):
        """The loader of zeus-ml 0.8, whose job is described by ``ZEUS_*`` variables.

        ``ZEUS_TARGET_METRIC``, ``ZEUS_JOB_ID`` and ``ZEUS_ETA_KNOB`` are read; its batch size is
        given, so only the power limit is tuned.
        """

        def __init__(
            self, dataset: Any, batch_size: int, max_epochs: int = -1, **options: Any
        ) -> None:
            options.pop("distributed", None)  # found out
            run = None
            if max_epochs > 0:
                target = os.environ.get("ZEUS_TARGET_METRIC")
                run = Run(
                    os.environ.get("ZEUS_JOB_ID", ""),
                    default_batch_size=batch_size,
                    max_epochs=max_epochs,
                    target=None if target is None else float(target),
                    objective=f"cost:eta={os.environ.get('ZEUS_ETA_KNOB', '0.5')}",
                    process_group=_torch_group(),
                )
            super().__init__(dataset, batch_size, run=run, **options)

        @property
        def is_train(self) -> bool:
            """Whether it is the loader for training."""
            return self.run is not None

    globals()["ZeusDataLoader"] = ZeusDataLoader
    return ZeusDataLoader
