"""What a training step computes: pre-training, fine-tuning, adapters, preferences."""

from __future__ import annotations

import re
from dataclasses import dataclass

from joulery.errors import InvalidValueError

KINDS = ("pretrain", "sft", "dpo", "grpo")
ADAPTERS = ("lora", "qlora")
# Rank of adapters where none is given; the default of PEFT's examples.
_RANK = 16


@dataclass(frozen=True, slots=True)
class Task:
    """What one step of a training computes.

    Its text form joins words by dashes: ``sft``, ``lora``, ``qlora64`` (of rank 64), ``dpo-lora``,
    ``grpo512`` (prompts of 512 tokens), ``packed700`` and ``padded700`` (examples of 700 tokens
    on average, packed into whole sequences or padded to them).

    Attributes:
        kind: ``pretrain``, ``sft``, ``dpo`` (pairs of answers, with a frozen reference model) or
            ``grpo`` (answers decoded by the model itself, with a frozen reference model).
        adapter: ``lora``, ``qlora`` (frozen weights in four bits), or empty for all parameters.
        rank: Rank of the adapters.
        prompt_tokens: Tokens of a sequence that are not decoded (``grpo``); an eighth where 0.
        example_tokens: Mean length of an example; whole sequences where 0.
        packed: Whether examples share sequences instead of being padded.
    """

    kind: str = "pretrain"
    adapter: str = ""
    rank: int = 0
    prompt_tokens: int = 0
    example_tokens: int = 0
    packed: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.adapter not in ("", *ADAPTERS):
            raise InvalidValueError(
                f"no task {self.kind!r} with adapter {self.adapter!r}",
                remedy=f"one of {', '.join((*KINDS, *ADAPTERS))}",
            )
        if min(self.rank, self.prompt_tokens, self.example_tokens) < 0:
            raise InvalidValueError(
                "rank and tokens of a task must not be negative", remedy="leave out what is default"
            )
        if self.adapter and not self.rank:
            object.__setattr__(self, "rank", _RANK)

    @classmethod
    def parse(cls, text: str) -> Task:
        """A task from its text form, such as ``dpo-lora``.

        Raises:
            InvalidValueError: A word is not understood.
        """
        values: dict[str, str | int | bool] = {}
        for word in filter(None, text.split("-")):
            further = _read(word, text)
            if twice := [name for name in further if name in values]:
                raise InvalidValueError(
                    f"{word!r} in task {text!r} contradicts a word before it ({twice[0]})",
                    remedy="give one kind, one adapter and one length of examples",
                )
            values |= further
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        words = [] if self.kind == "pretrain" else [f"{self.kind}{self.prompt_tokens or ''}"]
        if self.adapter:
            words.append(f"{self.adapter}{self.rank if self.rank != _RANK else ''}")
        if self.example_tokens:
            words.append(f"{'packed' if self.packed else 'padded'}{self.example_tokens}")
        return "-".join(words)

    @property
    def is_tuning(self) -> bool:
        """Whether it adapts a trained model to examples, in small batches."""
        return self.kind != "grpo" and (self.kind != "pretrain" or bool(self.adapter))

    @property
    def reference_forwards(self) -> int:
        """Forward passes of a frozen reference model beside each step."""
        return int(self.kind in ("dpo", "grpo"))

    @property
    def holds_reference(self) -> bool:
        """Whether the reference model takes memory: with adapters it is the model without them."""
        return bool(self.reference_forwards) and not self.adapter

    def useful_share(self, sequence: int) -> float:
        """Share of a sequence's tokens that are not padding."""
        if not self.example_tokens or self.packed:
            return 1.0
        return min(1.0, self.example_tokens / sequence)


WORDS = re.compile(r"(pretrain|sft|dpo|grpo|q?lora|packed|padded)(\d*)")


def _read(word: str, text: str) -> dict[str, str | int | bool]:
    match = WORDS.fullmatch(word)
    if not match:
        raise InvalidValueError(
            f"{word!r} in task {text!r} is not understood",
            remedy="write it like sft, lora, qlora64, dpo-lora, grpo512 or sft-packed700",
        )
    name, number = match[1], int(match[2] or 0)
    if match[2] and not number:
        raise InvalidValueError(
            f"{word!r} in task {text!r} asks for none", remedy=f"give a number, or {name} alone"
        )
    if name in ("packed", "padded") and not number:
        raise InvalidValueError(
            f"{word!r} in task {text!r} lacks the length of examples", remedy=f"write {name}700"
        )
    if number and name in KINDS and name != "grpo":
        raise InvalidValueError(
            f"{word!r} in task {text!r} has a number that {name} does not take",
            remedy=f"write {name}, or {name}-packed{number} where examples have {number} tokens",
        )
    if name in ADAPTERS:
        return {"adapter": name, "rank": number}
    if name in ("packed", "padded"):
        return {"example_tokens": number, "packed": name == "packed"}
    return {"kind": name, "prompt_tokens": number}
