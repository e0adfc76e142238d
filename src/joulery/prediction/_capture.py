"""Capture one training step of a PyTorch model as operators, without allocating it.

The model runs on fake tensors, which have shapes and no data, while a dispatch mode writes down
every operator of forward, backward and optimizer, and follows the bytes that are alive. A model of
66 billion parameters takes seconds and some hundred megabytes.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, MissingExtraError
from joulery.prediction._graph import Graph, Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

try:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_map_only
except ImportError:
    raise MissingExtraError("capturing a model needs PyTorch", remedy="pip install torch") from None

_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
OPTIMIZERS = ("adamw", "sgd")


def capture(
    model: Any,
    inputs: Any,
    *,
    loss: Callable[[Any], Any] | None = None,
    optimizer: str = "adamw",
) -> Graph:
    """Operators and memory of one training step.

    Args:
        model: A module, or a function that builds one (nothing is allocated then).
        inputs: A tensor, positional inputs as a sequence or named ones as a mapping, or a function
            that makes them.
        loss: Scalar to differentiate, from the model's output; the sum of the output's
            floating-point tensors (or its ``loss``) where None.
        optimizer: ``adamw`` or ``sgd``.

    Raises:
        InvalidValueError: An operator cannot be captured; it is named. Or ``model`` is no module.
    """
    if optimizer not in OPTIMIZERS:
        raise InvalidValueError(
            f"no optimizer {optimizer!r}", remedy=f"one of {', '.join(OPTIMIZERS)}"
        )
    module = _built(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        recorder = _Recorder()
        parameters = _fake_tensors(module)
        trainable = [tensor for tensor in parameters.values() if tensor.requires_grad]
        recorder.ignore(parameters.values())
        values = inputs() if callable(inputs) else inputs
        values = (values,) if isinstance(values, torch.Tensor) else values
        names = dict(values) if isinstance(values, Mapping) else {}
        placed = () if names else tuple(values)
        placed, names = tree_map_only(torch.Tensor, fake.from_tensor, (placed, names))
        try:
            with _as_on_accelerators(), recorder:
                output = torch.func.functional_call(module, parameters, placed, names)
                activations, recorder.phase = recorder.alive, "backward"
                if not trainable:
                    raise InvalidValueError(
                        f"{type(module).__name__} has no parameter to train",
                        remedy="give a module with parameters that require gradients",
                    )
                scalar = (loss or _sum)(output)
                gradients = torch.autograd.grad(scalar, trainable, allow_unused=True)
        except (RuntimeError, TypeError, NotImplementedError) as problem:
            reason, remedy = str(problem).splitlines()[0], "capture the model without that operator"
            if "DataDependent" in type(problem).__name__:
                reason = "its result depends on data, and there is none"
                remedy += " (model.eval() takes random branches out)"
            raise InvalidValueError(
                f"cannot capture {recorder.latest or 'the model'}: {reason}",
                remedy=f"{remedy}, or describe it as JSON",
            ) from problem
        gradient_bytes = sum(_bytes(tensor) for tensor in gradients if tensor is not None)
        state = _optimizer_step(optimizer, trainable, recorder)
    return Graph(
        name=type(module).__name__,
        operators=tuple(recorder.operators()),
        parameters=sum(tensor.numel() for tensor in trainable),
        parameter_bytes=float(sum(_bytes(tensor) for tensor in parameters.values())),
        optimizer_bytes=float(state),
        activation_bytes=float(activations),
        transient_bytes=float(max(recorder.peak, gradient_bytes)),
    )


@contextmanager
def _as_on_accelerators() -> Iterator[None]:
    """Let a CPU's PyTorch run the operators that accelerators run, and print nothing.

    Attention is fused, dropout within: a CPU falls back to many operators in 32 bit as soon as
    there is dropout. oneDNN, which hides a recurrent layer's matrix products in one operator, is
    off; PyTorch's own context manager for that touches a flag of Intel GPUs and warns. The
    traceback of an operator whose error is raised anyway is not logged.
    """
    flags, functional = torch._C, torch.nn.functional  # noqa: SLF001 - the only way unwarned
    log = logging.getLogger("torch._subclasses.fake_tensor")
    one_dnn, was_disabled = flags._get_mkldnn_enabled(), log.disabled  # noqa: SLF001
    plain = functional.scaled_dot_product_attention

    def fused(*arguments: Any, **options: Any) -> Any:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        options.update(zip(names, arguments, strict=False))
        return plain(**{**options, "dropout_p": 0.0})

    flags._set_mkldnn_enabled(False)  # noqa: FBT003, SLF001
    functional.scaled_dot_product_attention, log.disabled = fused, True
    try:
        yield
    finally:
        flags._set_mkldnn_enabled(one_dnn)  # noqa: SLF001
        functional.scaled_dot_product_attention, log.disabled = plain, was_disabled


def _built(model: Any) -> Any:
    """The module itself, or the one that a function builds on the device without memory."""
    if isinstance(model, torch.nn.Module):
        return model
    with torch.device("meta"):
        built = model() if callable(model) else model
    if not isinstance(built, torch.nn.Module):
        raise InvalidValueError(
            f"a {type(built).__name__} is no torch.nn.Module",
            remedy="give a module, or a function that builds one",
        )
    return built


def _fake_tensors(module: Any) -> dict[str, Any]:
    """Parameters and buffers as fake tensors, within a fake mode."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", requires_grad=tensor.requires_grad
        )
        for name, tensor in tensors.items()
    }


def _sum(output: Any) -> Any:
    if getattr(output, "loss", None) is not None:
        return output.loss
    tensors = [
        tensor
        for tensor in tree_flatten(output)[0]
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    ]
    if not tensors:
        raise InvalidValueError(
            "the model's output holds no floating-point tensor",
            remedy="give loss, a function from the output to a scalar",
        )
    return sum(tensor.float().sum() for tensor in tensors)


def _optimizer_step(name: str, trainable: Sequence[Any], recorder: _Recorder) -> int:
    """Write down one optimizer step; the bytes of its state."""
    # Fused optimizers read every parameter, gradient and moment once, and write all but gradients;
    # moments are of the parameters' precision.
    moments = 2 if name == "adamw" else 0
    traffic = sum(_bytes(tensor) * (3 + 2 * moments) for tensor in trainable)
    recorder.phase = "optimizer"
    recorder.add(name, "stream", (0, 0, 0, 0), 0.0, float(traffic), torch.float32)
    return sum(moments * _bytes(tensor) for tensor in trainable)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that writes down operators and follows living bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "forward"
        self.latest = ""
        self.peak = 0
        self.alive = 0
        self._storages: dict[int, Any] = {}
        self._found: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and write it down."""
        del types
        self.latest = str(func)
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace == "aten":
            self._note(func, args, result)
        return result

    def ignore(self, tensors: Any) -> None:
        """Leave tensors out of the living bytes."""
        for tensor in tensors:
            self._storages[id(tensor.untyped_storage())] = None

    def operators(self) -> list[Operator]:
        """Distinct operators with their counts."""
        return [replace(Operator(*key), count=times) for key, times in self._found.items()]

    def add(
        self,
        name: str,
        kind: str,
        shape: tuple[int, int, int, int],
        operations: float,
        traffic: float,
        dtype: Any,
    ) -> None:
        """Write down an operator."""
        precision = _PRECISIONS.get(dtype, "fp32")
        self._found[name, kind, self.phase, shape, operations, traffic, precision] += 1

    def _note(self, func: Any, args: Any, result: Any) -> None:
        outputs = _tensors(result)
        for tensor in outputs:
            self._follow(tensor)
        inputs = _tensors(args)
        if not outputs or (not inputs and not any(tensor.numel() > 1 for tensor in outputs)):
            return
        name = func.overloadpacket.__name__
        traffic = float(sum(map(_bytes, inputs)) + sum(map(_bytes, outputs)))
        dtype = next(
            (tensor.dtype for tensor in outputs if tensor.is_floating_point()), outputs[0].dtype
        )
        special = _SPECIAL.get(name) or _SPECIAL.get(name.removesuffix("_backward"))
        if special is None:
            if name not in _FREE:
                self.add(name, "stream", (0, 0, 0, 0), 0.0, traffic, dtype)
            return
        kind, products = special(name, args, outputs)
        for batch, rows, columns, inner, share in products:
            shape = (batch, rows, columns, inner)
            operations = 2.0 * batch * rows * columns * inner * share
            self.add(name, kind, shape, operations, traffic / len(products), dtype)

    def _follow(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages:
            return
        size = storage.nbytes()
        drop = partial(self._drop, key, size)
        self._storages[key] = weakref.ref(storage, drop)
        self.alive += size
        self.peak = max(self.peak, self.alive)

    def _drop(self, key: int, size: int, _: object) -> None:
        self._storages.pop(key, None)
        self.alive -= size


def _tensors(value: Any) -> list[Any]:
    return [tensor for tensor in tree_flatten(value)[0] if isinstance(tensor, torch.Tensor)]


# Operators that start no kernel of their own weight.
_FREE = frozenset(
    {"_unsafe_view", "empty", "empty_like", "new_empty", "detach", "alias", "lift_fresh", "set_"}
)

Products = list[tuple[int, int, int, int, float]]


def _matmul(name: str, args: Any, outputs: Any) -> tuple[str, Products]:
    del outputs
    first, second = [tensor for tensor in args if isinstance(tensor, torch.Tensor)][-2:]
    batch = first.shape[0] if "b" in name.removeprefix("add").removesuffix("mm") else 1
    return "matmul", [(batch, first.shape[-2], second.shape[-1], first.shape[-1], 1.0)]


def _grouped(name: str, args: Any, outputs: Any) -> tuple[str, Products]:
    """Products of experts with their tokens, each side either ragged or one matrix per expert."""
    del name
    first, second = args[:2]
    experts = max(tensor.shape[0] for tensor in (first, second, *outputs) if tensor.dim() == 3)
    rows, inner, columns = first.shape[-2], first.shape[-1], second.shape[-1]
    sides = [rows, columns, inner]
    if first.dim() == 2 or second.dim() == 2:  # the ragged side is split over the experts
        ragged = 2 if first.dim() == second.dim() else 0 if first.dim() == 2 else 1
        group = sides[ragged]
        sides[ragged] = max(1, group // experts)
        return "matmul", [(experts, *sides, group / (experts * sides[ragged]))]
    return "matmul", [(experts, *sides, 1.0)]


def _convolution(name: str, args: Any, outputs: Any) -> tuple[str, Products]:
    """A convolution as the matrix product that libraries make of it; backward as two."""
    backward = name.endswith("backward")
    image = args[0] if backward else outputs[0]  # of the output's size
    source, weight = (args[1], args[2]) if backward else (args[0], args[1])
    groups = int(args[9] if backward else args[8])
    transposed = bool(args[7] if backward else args[6])
    pixels = image if not transposed else source
    rows = pixels.shape[0] * math.prod(pixels.shape[2:])
    inner = math.prod(weight.shape[1:])
    columns = weight.shape[0] // groups
    product = (groups, rows, columns, inner, 1.0)
    if not backward:
        return "matmul", [product]
    sides = [flag for flag in args[10][:2] if flag]
    gradients = [(groups, rows, inner, columns, 1.0), (groups, inner, columns, rows, 1.0)]
    return "matmul", gradients[: max(1, len(sides))]


def _attention(name: str, args: Any, outputs: Any) -> tuple[str, Products]:
    del outputs
    backward = "backward" in name
    query, key = (args[1], args[2]) if backward else (args[0], args[1])
    heads = math.prod(query.shape[:-2])
    causal = any(argument is True for argument in args)
    share = (0.5 if causal else 1.0) * 2.0 * (2.5 if backward else 1.0)
    return "attention", [(heads, query.shape[-2], query.shape[-1], key.shape[-2], share)]


_SPECIAL: dict[str, Callable[[str, Any, Any], tuple[str, Products]]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_addmm_activation"), _matmul),
    "_grouped_mm": _grouped,
    "convolution": _convolution,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        _attention,
    ),
}
