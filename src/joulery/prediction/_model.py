"""A transformer as a few numbers.

A description needs no framework: it is a JSON document with the names below. Models of any other
shape come through ``joulery.prediction.capture``.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from joulery.errors import FileError, InvalidValueError


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer, dense or with experts.

    Attributes:
        name: Name of the model.
        layers: Number of blocks.
        hidden: Width of the residual stream.
        heads: Attention heads.
        feedforward: Inner width of a dense block.
        vocabulary: Number of tokens.
        sequence: Tokens per sequence in training.
        kv_heads: Heads of keys and values; as many as ``heads`` where 0.
        head_dim: Width of a head; ``hidden / heads`` where 0.
        gated: Whether the feed-forward block has a gate, hence three matrices.
        tied: Whether input and output embedding are one matrix.
        experts: Experts per layer; 0 for a dense model.
        experts_per_token: Experts that each token visits.
        expert_feedforward: Inner width of an expert; ``feedforward`` where 0.
        shared_feedforward: Inner width of the experts that every token visits.
        dense_layers: First blocks without experts.
        query_rank: Rank of the compressed queries (latent attention); 0 for none.
        kv_rank: Rank of the compressed keys and values (latent attention); 0 for none.
        rope_dim: Width of the part of a head that carries positions (latent attention).
        causal: Whether a token sees only those before it.
        window: Tokens that a token of a windowed block sees; 0 for all.
        windowed_layers: Blocks with a window; all where 0.
        expert_nodes: Nodes that the experts of a token lie on at most; any number where 0.
    """

    layers: int
    hidden: int
    heads: int
    feedforward: int
    vocabulary: int
    sequence: int
    name: str = ""
    kv_heads: int = 0
    head_dim: int = 0
    gated: bool = True
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_feedforward: int = 0
    shared_feedforward: int = 0
    dense_layers: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    causal: bool = True
    window: int = 0
    windowed_layers: int = 0
    expert_nodes: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "feedforward", "vocabulary", "sequence"):
            if not getattr(self, name) > 0:
                raise InvalidValueError(
                    f"{name} must be above 0, not {getattr(self, name)}",
                    remedy="describe a model with at least one layer, head and token",
                )
        for field in fields(self):
            if field.name != "name" and getattr(self, field.name) < 0:
                raise InvalidValueError(
                    f"{field.name} must not be negative", remedy="leave out what does not apply"
                )
        if not self.head_dim and self.hidden % self.heads:
            raise InvalidValueError(
                f"hidden {self.hidden} does not divide by heads {self.heads}",
                remedy="give head_dim where a head's width is not hidden / heads",
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise InvalidValueError(
                f"heads {self.heads} do not divide by kv_heads {self.kv_heads}",
                remedy="every head of keys and values serves as many heads",
            )
        if (
            self.kv_heads > self.heads
            or max(self.dense_layers, self.windowed_layers) > self.layers
            or self.expert_nodes > self.experts
        ):
            raise InvalidValueError(
                "kv_heads must not exceed heads, dense_layers and windowed_layers layers, nor "
                "expert_nodes experts",
                remedy="leave them out where they do not apply",
            )
        if self.experts and not self.expert_feedforward:
            object.__setattr__(self, "expert_feedforward", self.feedforward)
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise InvalidValueError(
                f"{self.experts_per_token} of {self.experts} experts per token cannot be",
                remedy="give experts_per_token between 1 and experts",
            )

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.head_dim or self.hidden // self.heads

    @property
    def head_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.value_width + self.rope_dim

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def expert_layers(self) -> int:
        """Number of blocks with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def seen_share(self) -> float:
        """Share of a sequence that a token attends to, mean of all blocks."""
        full = 0.5 if self.causal else 1.0
        if not self.window:
            return full
        share = (self.windowed_layers or self.layers) / self.layers
        return share * min(full, self.window / self.sequence) + (1 - share) * full

    def attention_parameters(self) -> int:
        """Parameters of one block's attention."""
        value = self.value_width
        output = self.heads * value * self.hidden
        if not self.kv_rank:
            return self.hidden * (self.heads + 2 * self.key_heads) * value + output
        queries = self.heads * self.head_width
        query = (
            self.query_rank * (self.hidden + queries) if self.query_rank else self.hidden * queries
        )
        down = self.hidden * (self.kv_rank + self.rope_dim)
        return query + down + self.kv_rank * self.heads * 2 * value + output

    def block_parameters(self, inner: int) -> int:
        """Parameters of a feed-forward block of inner width ``inner``."""
        return (3 if self.gated else 2) * self.hidden * inner

    def active_parameters(self) -> int:
        """Parameters that every token is multiplied with, the output embedding among them."""
        experts = self.experts_per_token * self.block_parameters(self.expert_feedforward)
        experts += self.block_parameters(self.shared_feedforward)
        dense = (self.layers - self.expert_layers) * self.block_parameters(self.feedforward)
        blocks = self.layers * self.attention_parameters() + dense + self.expert_layers * experts
        return blocks + self.embedding_parameters()

    def embedding_parameters(self) -> int:
        """Parameters of one embedding."""
        return self.vocabulary * self.hidden


def transformer(source: Transformer | dict[str, Any] | str | Path | Any) -> Transformer:
    """A description from a document, a JSON file or a ready object.

    Configurations of ``transformers`` (``num_hidden_layers`` and so on) are understood as well, as
    files, documents or objects.

    Raises:
        FileError: The file cannot be read, or a name in it is unknown or missing.
        InvalidValueError: The source is something else, such as a module.
    """
    if isinstance(source, Transformer):
        return source
    if hasattr(source, "to_dict"):
        source = source.to_dict()
    if isinstance(source, str | Path):
        source = _read(Path(source))
    if not isinstance(source, dict):
        raise InvalidValueError(
            f"a {type(source).__name__} does not describe a transformer",
            remedy="give a JSON file or document, or joulery.prediction.capture(model, inputs)",
        )
    names = {field.name for field in fields(Transformer)}
    source = source.get("text_config", source)
    foreign = any(name in _ALIASES for name in source)
    document = _translate(source, names) if foreign else source
    for name in document:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise FileError(
                f"unknown name {name!r} in the description of a model",
                remedy=f"did you mean {near[0]}"
                if near
                else f"known are {', '.join(sorted(names))}",
            )
    required = [field.name for field in fields(Transformer) if field.default is MISSING]
    missing = [name for name in required if name not in document]
    if missing:
        raise FileError(
            f"the description of a model lacks {', '.join(missing)}",
            remedy=f"give {', '.join(required)}",
        )
    _check_values(document)
    return Transformer(**document)


def _check_values(document: dict[str, Any]) -> None:
    """Refuse values of a description that are of another type, or beyond every model."""
    for name, value in document.items():
        if name == "name":
            if not isinstance(value, str):
                raise FileError(f"the name of a model is {value!r}", remedy="write it in quotes")
            continue
        whole = isinstance(value, int) and (name in _SWITCHES or not isinstance(value, bool))
        if not whole:
            raise FileError(
                f"{name} must be {'true or false' if name in _SWITCHES else 'a whole number'}, "
                f"not {value!r}",
                remedy="write true or false, without quotes"
                if name in _SWITCHES
                else "write it in digits, without quotes, point or exponent",
            )
        if value > _LARGEST_COUNT:
            raise FileError(f"{name} is beyond every model", remedy="give a number below 1e12")


def training_model(source: Any, sequence: int | None = None) -> Transformer:
    """A description with the length of sequences in training.

    A configuration of ``transformers`` states the longest sequence, which is not the one to train
    on, so that the length must be given.

    Raises:
        InvalidValueError: It is not.
    """
    if isinstance(source, str | Path):
        source = _read(Path(source))
    document = source.to_dict() if hasattr(source, "to_dict") else source
    if isinstance(document, dict):
        document = document.get("text_config", document)
        if sequence is None and "sequence" not in document and _POSITIONS & document.keys():
            longest = document[(_POSITIONS & document.keys()).pop()]
            raise InvalidValueError(
                f"the configuration allows sequences of {longest} tokens, but does not say how "
                "long they are in training",
                remedy="give the length with --sequence N (sequence=N), such as 4096",
            )
        if sequence is not None and not _POSITIONS & document.keys():
            document = document | {"sequence": sequence}
    description = transformer(document)
    return description if sequence is None else replace(description, sequence=sequence)


_LARGEST_COUNT = 10**12  # by hand: a thousand times the longest sequence of 2026
_POSITIONS = frozenset({"max_position_embeddings", "n_positions"})
_SWITCHES = ("gated", "tied", "causal")


def _translate(source: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The names of a ``transformers`` configuration in ours; what says nothing here is left out."""
    document = {_ALIASES.get(name, name): value for name, value in source.items()}
    document = {name: value for name, value in document.items() if name in names and value}
    if "experts" not in document:  # classes of models with experts have a default
        document.pop("expert_nodes", None)
    kind = source.get("model_type", "")
    document.setdefault("feedforward", 4 * document.get("hidden", 0))
    document |= {"gated": kind not in _PLAIN_BLOCKS, "causal": kind not in _BOTH_WAYS}
    if shared := source.get("n_shared_experts"):
        document["shared_feedforward"] = shared * source.get("moe_intermediate_size", 0)
    if source.get("use_sliding_window") is False:
        document.pop("window", None)
    elif "window" in document and source.get("layer_types"):
        document["windowed_layers"] = source["layer_types"].count("sliding_attention")
    return document


# Families whose feed-forward blocks have two matrices, and whose tokens see those after them.
_BOTH_WAYS = frozenset({"bert", "roberta", "distilbert", "deberta", "deberta-v2", "electra"})
_GPT = frozenset({"gpt2", "gpt_neo", "gpt_neox", "gptj"})
_PLAIN_BLOCKS = _BOTH_WAYS | _GPT | {"opt", "bloom", "falcon", "phi"}
_ALIASES = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "feedforward",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "sequence",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_feedforward",
    "first_k_dense_replace": "dense_layers",
    "topk_group": "expert_nodes",
    "tie_word_embeddings": "tied",
    "_name_or_path": "name",
    "q_lora_rank": "query_rank",
    "kv_lora_rank": "kv_rank",
    "qk_rope_head_dim": "rope_dim",
    "n_layer": "layers",
    "n_embd": "hidden",
    "n_head": "heads",
    "n_positions": "sequence",
    "n_inner": "feedforward",
    "ffn_dim": "feedforward",
    "sliding_window": "window",
    "shared_expert_intermediate_size": "shared_feedforward",
}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, each name of which is there once."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name is there twice")
    return document


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as problem:
        raise FileError(
            f"cannot read {path}: {problem.strerror}",
            remedy="give the path of a JSON file; of a model on a hub, that of its config.json",
        ) from None
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{path} is not JSON: {problem}", remedy="write one JSON object") from None
    if not isinstance(document, dict):
        raise FileError(f"{path} holds no object", remedy='write {"layers": 32, …}')
    return document
