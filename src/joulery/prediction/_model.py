"""A transformer as a few numbers.

A description needs no framework: it is a JSON document with the names below. Models of any other
shape come through ``joulery.prediction.capture``.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from joulery.errors import FileError, InvalidValueError, flaw_text

_KV_BYTES = 2.0  # of a number in the KV cache, whatever the precision of the weights


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

    def check_decodes(self) -> None:
        """Refuse a model whose tokens see those after them: it does not answer token by token.

        Raises:
            InvalidValueError: It is one.
        """
        if not self.causal:
            raise InvalidValueError(
                f"{self.name or 'the model'} does not decode: its tokens see those after them",
                remedy="predict a training step that decodes nothing, or give a decoder",
            )

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

    def total_parameters(self) -> int:
        """All parameters."""
        unvisited = (self.experts - self.experts_per_token) * self.expert_layers
        blocks = unvisited * self.block_parameters(self.expert_feedforward)
        embedding = 0 if self.tied else self.embedding_parameters()
        return self.active_parameters() + blocks + embedding

    def cache_bytes(self) -> float:
        """Bytes of one token in the KV cache."""
        if self.kv_rank:
            return self.layers * (self.kv_rank + self.rope_dim) * _KV_BYTES
        return 2 * self.layers * self.key_heads * self.value_width * _KV_BYTES

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
            f"an object of type {type(source).__name__} does not describe a transformer",
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
    kind = source.get("model_type", "")
    _check_kind(kind, source)
    document = {_ALIASES.get(name, name): value for name, value in source.items()}
    document = {name: value for name, value in document.items() if name in names and value}
    document = _DEFAULTS.get(kind, {}) | document
    if "experts" not in document:  # classes of models with experts have a default
        document.pop("expert_nodes", None)
    document.setdefault("feedforward", 4 * document.get("hidden", 0))
    document |= {"gated": kind not in _PLAIN_BLOCKS, "causal": kind not in _BOTH_WAYS}
    document["tied"] = source.get("tie_word_embeddings", kind in _TIED)
    if source.get("v_head_dim"):
        document["head_dim"] = source["v_head_dim"]
    if source.get("multi_query") and not source.get("new_decoder_architecture"):
        document["kv_heads"] = 1
    return document | _expert_layers(kind, source) | _windows(kind, source, document)


def _check_kind(kind: str, source: dict[str, Any]) -> None:
    """Refuse a configuration whose layers may be of other kinds than attention and blocks."""
    strange = [word for word in source.get("layer_types") or () if word not in _LAYER_TYPES]
    strange += [name for name in source if _OTHER_LAYERS.search(name)]
    flaws = [f"layers that are not attention ({strange[0]})"] if strange else []
    if source.get("is_encoder_decoder"):
        flaws.append("an encoder and a decoder")
    if source.get("qk_nope_head_dim", 0) != source.get("v_head_dim", 0):
        flaws.append("values of another width than keys")
    if kind and kind not in _FAMILIES:
        flaws.append("layers that are not known here")
    if flaws:
        raise FileError(
            f"a configuration of type {kind or 'unknown'} has {flaws[0]}",
            remedy="capture its step with joulery.prediction.capture(model, inputs), or, where all "
            "layers are attention and feed-forward blocks, describe it by layers, hidden, heads, "
            "feedforward, vocabulary, sequence and what else applies",
        )


def _expert_layers(kind: str, source: dict[str, Any]) -> dict[str, int]:
    """Shared experts, and layers without experts."""
    layers: dict[str, int] = {}
    if shared := source.get("n_shared_experts"):
        layers["shared_feedforward"] = shared * source.get("moe_intermediate_size", 0)
    if kind == "llama4_text":
        inner = source.get("intermediate_size", 0)
        layers |= {"expert_feedforward": inner, "shared_feedforward": inner}
        layers["feedforward"] = source.get("intermediate_size_mlp") or inner
    step = max(source.get(name) or 1 for name in _EXPERT_STEPS)
    dense = len(source.get("mlp_only_layers") or ())
    if step > 1 or dense:
        count = source.get("num_hidden_layers", 0)
        layers["dense_layers"] = dense + count - count // step
    return layers


def _windows(kind: str, source: dict[str, Any], document: dict[str, Any]) -> dict[str, int]:
    """Tokens that windowed blocks see, and the number of these blocks."""
    window, types = document.get("window", 0), source.get("layer_types")
    layers = document.get("layers", 0)
    if source.get("use_sliding_window", kind not in _WINDOW_OPTIONAL) is False:
        return {"window": 0}
    if chunk := source.get("attention_chunk_size"):  # a token sees half of its chunk on average
        window = chunk // 2
    if not window:
        return {}
    if types:
        windowed = sum(word in _LAYER_TYPES[1:3] for word in types)
        return {"window": window if windowed else 0, "windowed_layers": windowed}
    if kind in _WINDOW_OPTIONAL:
        return {"window": window, "windowed_layers": layers - source.get("max_window_layers", 0)}
    every = source.get("sliding_window_pattern") or _FULL_EVERY.get(kind)
    return {"window": window, "windowed_layers": layers - layers // every if every else 0}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Families of ``transformers`` whose layers are attention and feed-forward blocks, experts or not:
# their sizes as counted here are those of the classes' own models (transformers 5.23) within 1.5 %.
# Tokens of the first see those after them; feed-forward blocks of the next have two matrices.
_BOTH_WAYS = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})
_PLAIN_BLOCKS = _BOTH_WAYS | _words(
    "gpt2 gpt_neox gptj codegen gpt_bigcode opt bloom falcon phi starcoder2 nemotron persimmon "
    "arcee apertus"
)
_FAMILIES = _PLAIN_BLOCKS | _words(
    "llama llama4_text mistral ministral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 "
    "gemma3_text deepseek_v2 deepseek_v3 kimi_k2 glm glm4 glm4_moe gpt_oss cohere cohere2 olmo "
    "olmo2 olmo3 olmoe phi3 phimoe granite granitemoe stablelm smollm3 seed_oss internlm3 helium "
    "ernie4_5 minimax_m2 bitnet"
)
# Families that share input and output embedding unless their configuration says otherwise.
_TIED = _BOTH_WAYS | _words(
    "gpt2 gpt_bigcode opt bloom falcon starcoder2 gemma gemma2 gemma3_text cohere cohere2 smollm3 "
    "ernie4_5"
)
# What classes assume and configurations of theirs may leave out.
_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {"head_dim": 256, "heads": 8, "kv_heads": 4, "vocabulary": 262208},
}
# Families whose windows are off unless switched on, and those with one full layer in so many.
_WINDOW_OPTIONAL = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "olmo3": 4}
_FULL_EVERY |= {"llama4_text": 4}
# Names of the step from one layer with experts to the next.
_EXPERT_STEPS: tuple[str, ...] = ("interleave_moe_layer_step", "decoder_sparse_step")
_EXPERT_STEPS += ("moe_layer_freq", "expert_layer_period")
_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "attention")
# Names that speak of layers without attention, in all families that have such: Mamba, linear and
# recurrent attention, convolutions, and patterns of several kinds.
_OTHER_LAYERS = re.compile(
    "mamba|ssm|rwkv|lru_|recurrent|hybrid|block_type|attn_type|attn_layer_|full_attention_interval|"
    "linear_(attn|conv|key|num|value)|conv_l_cache|state_size",
    re.IGNORECASE,
)
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
    "ffn_hidden_size": "feedforward",
    "num_kv_heads": "kv_heads",
}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, each name of which is there once."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name is there twice")
    return document


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
        document = json.loads(text, object_pairs_hook=_once)
    except OSError as problem:
        raise FileError(
            f"cannot read {path}: {problem.strerror}",
            remedy="give the path of a JSON file; of a model on a hub, that of its config.json",
        ) from None
    except (ValueError, RecursionError) as problem:
        raise FileError(
            f"{path} is not JSON: {flaw_text(problem)}", remedy="write one JSON object"
        ) from None
    if not isinstance(document, dict):
        raise FileError(f"{path} holds no object", remedy='write {"layers": 32, …}')
    return document
