"""Parallel plans: how a training step is spread over devices, and the part of the model on each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulery.arguments import check_whole
from joulery.errors import InvalidValueError
from joulery.prediction._task import WORDS as TASK_WORDS, Task

if TYPE_CHECKING:
    from joulery.prediction._model import Transformer

_SIDES = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "vp": "chunks",
}
_WORDS = {
    **_SIDES,
    "mb": "micro_batch",
    "zero": "shard",
    "hsdp": "shard_group",
    "adam": "state_bits",
}
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "zb", "dualpipe")
FRAMEWORKS = ("megatron", "compile", "eager", "transformers", "replay")
# Words of the text form that are no numbers, by field and value.
_FLAGS: dict[str, tuple[str, Any]] = {
    "fullrecompute": ("recompute", "full"),
    "selectiverecompute": ("recompute", "selective"),
    "offload": ("offload", True),
    "chunkedloss": ("chunked_loss", True),
    "nomaster": ("master", False),
    "fusedbackward": ("fused_backward", True),
    **{name: ("schedule", name) for name in SCHEDULES},
    **{name: ("framework", name) for name in FRAMEWORKS},
}
_HYPHENS = {"full-recompute": "fullrecompute", "selective-recompute": "selectiverecompute"}
_HYPHENS |= {"chunked-loss": "chunkedloss", "no-master": "nomaster"}
_HYPHENS |= {"fused-backward": "fusedbackward"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A parallel plan: how a training step is spread over devices.

    Attributes:
        data: Copies of the model that see different sequences.
        tensor: Devices that share each matrix, and the norms along the sequence.
        pipeline: Stages.
        context: Devices that share each sequence.
        expert: Devices that share the experts, out of data × tensor × context.
        chunks: Parts of the model per stage, visited in turn (interleaved schedule).
        micro_batch: Sequences at a time.
        batch_size: Sequences per step.
        shard: State that data-parallel copies share: 0 nothing, 1 optimizer state, 2 gradients too,
            3 parameters too (ZeRO stages; 3 is FSDP). The text form leaves out 1.
        shard_group: Copies that share among each other; all of them where 0.
        recompute: Activations that are computed again in the backward pass: ``none``,
            ``selective`` (norms and activation functions) or ``full``.
        precision: Precision of the matrix products.
        fused_attention: Whether the scores of attention never reach memory.
        framework: ``megatron`` (Megatron-Core, and others with kernels fused by hand),
            ``compile`` (FSDP or DDP with torch.compile), ``eager`` (FSDP or DDP without),
            ``transformers`` (the Hugging Face Trainer) or ``replay`` (CUDA graphs, which the host
            does not slow down).
        task: What a step computes.
        state_bits: Bits of each of the optimizer's two moments: 32, 16 or 8.
        offload: Whether the optimizer's state lies in the host's memory.
        chunked_loss: Whether logits are computed a part at a time, so that they take no memory.
        master: Whether the optimizer keeps a 32-bit copy of 16-bit parameters; without, gradients
            are of 16 bits too.
        fused_backward: Whether the optimizer runs within the backward pass, so that gradients take
            no memory.
        schedule: Order of a pipeline's work: ``1f1b`` (interleaved where there are chunks), ``zb``
            (zero bubble: gradients of weights fill most of the idle time) or ``dualpipe`` (both
            directions at once, which hides the traffic of experts behind kernels).
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    micro_batch: int = 1
    batch_size: int = 1
    shard: int = 1
    shard_group: int = 0
    recompute: str = "none"
    precision: str = "bf16"
    fused_attention: bool = True
    framework: str = "megatron"
    task: Task = field(default_factory=Task)
    state_bits: int = 32
    offload: bool = False
    chunked_loss: bool = False
    master: bool = True
    fused_backward: bool = False
    schedule: str = "1f1b"

    def __post_init__(self) -> None:
        for name in (*_SIDES.values(), "micro_batch", "batch_size"):
            check_whole(getattr(self, name), f"{name.replace('_', ' ')} of a plan")
        for name, values in (
            ("shard", (0, 1, 2, 3)),
            ("recompute", RECOMPUTE),
            ("framework", FRAMEWORKS),
            ("schedule", SCHEDULES),
            ("state_bits", (8, 16, 32)),
        ):
            if getattr(self, name) not in values:
                raise InvalidValueError(
                    f"{name.replace('_', ' ')} of a plan cannot be {getattr(self, name)!r}",
                    remedy=f"one of {', '.join(map(str, values))}",
                )
        if self.schedule != "1f1b" and self.pipeline < 2:
            raise InvalidValueError(
                f"{self.schedule} is a schedule of pipelines, of which there is none",
                remedy="give two stages or more, such as pp4, or leave it out",
            )
        if self.chunks > 1 and (self.pipeline < 2 or self.schedule != "1f1b"):
            raise InvalidValueError(
                f"vp{self.chunks} interleaves the stages of a 1F1B pipeline, of which there is "
                "none",
                remedy="give two stages or more, such as pp4, and no other schedule, or leave it "
                "out",
            )
        if self.schedule == "dualpipe" and self.pipeline % 2:
            raise InvalidValueError(
                f"dualpipe pairs the stages of both directions, which {self.pipeline} do not allow",
                remedy="give an even number of stages, such as pp4",
            )
        if self.fused_backward and self.batch_size > self.data * self.micro_batch:
            raise InvalidValueError(
                "an optimizer within the backward pass (fused-backward) cannot add up gradients "
                "of several micro-batches",
                remedy="give a batch size of data × micro-batch",
            )
        if self.shard_group and (
            self.shard_group < 1 or self.data * self.context % self.shard_group
        ):
            raise InvalidValueError(
                f"{self.data * self.context} copies do not divide into groups of "
                f"{self.shard_group}",
                remedy="choose a shard group that divides data × context",
            )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def micro_batches(self) -> int:
        """Micro-batches per pipeline and step."""
        return self.batch_size // (self.data * self.micro_batch)

    def tokens(self, sequence: int) -> float:
        """Tokens of one micro-batch on one device."""
        return self.micro_batch * sequence / self.context

    def __str__(self) -> str:
        sides = {word: getattr(self, name) for word, name in _SIDES.items()}
        words = [f"{word}{size}" for word, size in sides.items() if size > 1] or ["dp1"]
        words.append(f"mb{self.micro_batch}")
        if self.shard != 1:
            words.append(f"zero{self.shard}")
        if self.shard_group:
            words.append(f"hsdp{self.shard_group}")
        if self.state_bits != 32:
            words.append(f"adam{self.state_bits}")
        plain = {name: word for word, name in _HYPHENS.items()}
        default = Plan()
        words += [
            plain.get(word, word)
            for word, (name, value) in _FLAGS.items()
            if getattr(self, name) == value and value != getattr(default, name)
        ]
        if task := str(self.task):
            words.append(task)
        return "-".join(words)

    @classmethod
    def parse(cls, text: str, batch_size: int, precision: str = "bf16") -> Plan:
        """A plan from its text form, such as ``dp8-tp2-mb1-zero3``.

        Raises:
            InvalidValueError: A word is not understood.
        """
        plain = text
        for hyphens, word in _HYPHENS.items():
            plain = plain.replace(hyphens, word)
        values: dict[str, Any] = {}
        task: list[str] = []
        for word in plain.split("-"):
            if TASK_WORDS.fullmatch(word):
                task.append(word)
                continue
            name, value = _read_word(word, text)
            if name in values:
                raise InvalidValueError(
                    f"{word!r} in plan {text!r} is there twice, or contradicts another word",
                    remedy="give each once",
                )
            values[name] = value
        if task:
            values["task"] = Task.parse("-".join(task))
        return cls(**values, batch_size=batch_size, precision=precision)

    def check(self, model: Transformer) -> None:
        """Refuse a plan that does not divide.

        Raises:
            InvalidValueError: Some size does not divide what it splits.
        """
        at_once, group = self.data * self.micro_batch, self.data * self.tensor * self.context
        rules = (
            (self.batch_size, at_once, "batch size", "data × micro-batch"),
            (model.heads, self.tensor, "heads", "tensor"),
            (model.sequence, self.context, "sequence", "context"),
            (max(model.experts, 1), self.expert, "experts", "expert"),
            (group, self.expert, "data × tensor × context", "expert"),
        )
        for total, part, of_what, by_what in rules:
            if total % part or total < part:
                raise InvalidValueError(
                    f"{of_what} {total} does not divide by {by_what} {part}",
                    remedy=f"choose {of_what} as a multiple of {part}, or another {by_what}",
                )
        least = 2 * self.pipeline
        if self.schedule == "dualpipe" and (self.micro_batches < least or self.micro_batches % 2):
            raise InvalidValueError(
                f"dualpipe on {self.pipeline} stages cannot work with {self.micro_batches} "
                "micro-batches",
                remedy=f"give an even number of them, {least} or more: a batch size of "
                f"{least * self.data * self.micro_batch}, for example",
            )
        self._check_task(model)
        if self.pipeline * self.chunks > model.layers + 2:
            raise InvalidValueError(
                f"{model.layers} layers do not fill {self.pipeline} pipeline stages of "
                f"{self.chunks} chunks",
                remedy="choose fewer stages or chunks",
            )

    def _check_task(self, model: Transformer) -> None:
        """Refuse a task that the model cannot be trained for."""
        narrowest = min(model.hidden, model.feedforward, model.key_heads * model.value_width)
        if self.task.rank > narrowest:
            raise InvalidValueError(
                f"adapters of rank {self.task.rank} are wider than the narrowest matrix, of "
                f"{narrowest}",
                remedy=f"give a rank up to {narrowest}, such as {self.task.adapter}16",
            )
        if self.task.example_tokens > model.sequence:
            raise InvalidValueError(
                f"examples of {self.task.example_tokens} tokens are longer than a sequence of "
                f"{model.sequence}",
                remedy="give longer sequences (--sequence), or the length that they are cut to",
            )
        if self.task.prompt_tokens >= model.sequence:
            raise InvalidValueError(
                f"prompts of {self.task.prompt_tokens} tokens leave no room for answers in "
                f"sequences of {model.sequence}",
                remedy="give longer sequences (--sequence), which hold prompt and answer, or "
                "shorter prompts",
            )
        if self.task.kind == "grpo":
            model.check_decodes()


def _read_word(word: str, text: str) -> tuple[str, Any]:
    """Field and value of one word of a plan."""
    if word in _FLAGS:
        return _FLAGS[word]
    match = re.fullmatch(rf"({'|'.join(_WORDS)})(\d+)", word)
    if not match:
        raise InvalidValueError(
            f"{word!r} in plan {text!r} is not understood",
            remedy="write it like dp8-tp2-pp4-mb1-zero3-full-recompute",
        )
    return _WORDS[match[1]], int(match[2])


def local_parameters(model: Transformer, plan: Plan, stage: int | None = None) -> float:
    """Parameters that one device of a stage, or of the fullest, holds before they are sharded."""
    if stage is None:
        return max(local_parameters(model, plan, end) for end in {0, plan.pipeline - 1})
    dense, experts = stage_layers(model, plan, stage)
    shared = model.block_parameters(model.shared_feedforward) + model.hidden * model.experts
    embeddings = (stage == 0) + (stage == plan.pipeline - 1)
    if plan.pipeline == 1 and model.tied:
        embeddings = 1
    parameters = (
        (dense + experts) * model.attention_parameters()
        + dense * model.block_parameters(model.feedforward)
        + experts * shared
        + embeddings * model.embedding_parameters()
    )
    return float(parameters / plan.tensor) + expert_parameters(model, plan, stage)


def expert_parameters(model: Transformer, plan: Plan, stage: int) -> float:
    """Parameters of the experts that one device of a stage holds."""
    _, layers = stage_layers(model, plan, stage)
    experts = model.experts * model.block_parameters(model.expert_feedforward)
    return layers * experts / plan.expert


def stage_layers(model: Transformer, plan: Plan, stage: int) -> tuple[int, int]:
    """Layers without and with experts of a pipeline stage; the dense ones come first.

    Where layers do not divide, the first stages have one more, since the last has the head.
    """
    fewest, further = divmod(model.layers, plan.pipeline)
    layers = fewest + (stage < further)
    if not model.experts:
        return layers, 0
    before = stage * fewest + min(stage, further)
    dense = min(max(model.dense_layers - before, 0), layers)
    return dense, layers - dense
