"""Published trainings, each with its source.

Shapes, plans and figures were compared with their sources (those of papers with public excerpts of
their tables); what a source does not state is marked below. Factors of frameworks were chosen on
the rows of ``published_runs``, each source left out in turn; no constant on those of
``further_runs``, which were collected later, by somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from predict_data import MODELS

from joulery.prediction import Plan, Transformer, accelerator, transformer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.prediction import Accelerator


@dataclass(frozen=True, slots=True)
class Run:
    """A published training.

    Attributes:
        name: Name of the run.
        source: Document that states it.
        model: Description of the model.
        device: Accelerator.
        plan: Parallel plan.
        tokens_per_second: Tokens per second and device.
    """

    name: str
    source: str
    model: Transformer
    device: Accelerator
    plan: Plan
    tokens_per_second: float

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        tokens = self.plan.batch_size * self.model.sequence
        return tokens / (self.tokens_per_second * self.plan.devices)


_TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
_TITAN_A100 = "torchtitan, docs/performance.md of autumn 2024"
_TITAN_H200 = "torchtitan, benchmarks/llama3_8b_h200_2025-06_torchtitan.md (Trainy)"
# Model, devices, plan, sequences per step, tokens per sequence, precision, tokens/s per device.
# Their H100 have 96 GB of HBM2e at 2.4 TB/s and a limit of 500 W. Micro-batches of pipelines are
# not stated; torchtitan's default is as many as there are stages, 8 and 16 here.
_TITAN_RUNS = (
    ("llama3_8b", "dp8-mb2-zero3-selective-recompute-eager", 16, 8192, "bf16", 5762),
    ("llama3_8b", "dp8-mb2-zero3-selective-recompute-compile", 16, 8192, "bf16", 6667),
    ("llama3_8b", "dp8-mb2-zero3-selective-recompute-compile", 16, 8192, "fp8", 8532),
    ("llama3_8b", "dp8-mb1-zero3-full-recompute-compile", 8, 32768, "fp8", 3890),
    ("llama3_8b", "dp4-cp2-mb1-zero3-full-recompute-compile", 4, 65536, "fp8", 2540),
    ("llama3_8b", "dp2-cp4-mb1-zero3-full-recompute-compile", 2, 131072, "fp8", 1071),
    ("llama3_8b", "dp1-cp8-mb1-zero3-full-recompute-compile", 1, 262144, "fp8", 548),
    ("llama3_8b", "dp128-mb2-zero3-selective-recompute-eager", 256, 8192, "bf16", 5605),
    ("llama3_8b", "dp128-mb2-zero3-selective-recompute-compile", 256, 8192, "bf16", 6514),
    ("llama3_8b", "dp128-mb2-zero3-selective-recompute-compile", 256, 8192, "fp8", 8380),
    ("llama3_70b", "dp32-tp8-mb16-zero3-full-recompute-compile", 512, 8192, "fp8", 829),
    ("llama3.1_405b", "dp8-tp8-pp8-mb4-zero2-full-recompute-compile", 256, 8192, "fp8", 100),
    ("llama3.1_405b", "dp8-tp8-pp8-vp2-mb2-zero2-full-recompute-compile", 256, 8192, "fp8", 128),
)
_A100_RUNS = (
    ("llama3_8b", "dp64-mb1-zero3-selective-recompute-compile", 64, 8192, "bf16", 2973),
    ("llama3_70b", "dp64-mb1-zero3-full-recompute-compile", 64, 8192, "bf16", 331),
)
_H200_RUNS = (
    ("llama3_8b", "dp32-mb2-zero3-selective-recompute-compile", 64, 8192, "fp8", 10938),
    ("llama3_8b", "dp64-mb2-zero3-selective-recompute-compile", 128, 8192, "fp8", 10753),
)

_MEGATRON = "Narayanan et al., SC'21, table 1"
# Heads, width, layers, tensor, pipeline, devices, sequences per step, teraflops per device counted
# with recomputation; micro-batches are not stated and taken as 4, 2 or 1.
_MEGATRON_RUNS = (
    (24, 2304, 24, 1, 1, 32, 512, 137, 4),
    (32, 3072, 30, 2, 1, 64, 512, 138, 4),
    (32, 4096, 36, 4, 1, 128, 512, 142, 4),
    (48, 6144, 40, 8, 1, 256, 1024, 135, 4),
    (64, 8192, 48, 8, 2, 512, 1536, 138, 2),
    (80, 10240, 60, 8, 4, 1024, 1792, 140, 2),
    (96, 12288, 80, 8, 8, 1536, 2304, 148, 1),
    (128, 16384, 96, 8, 16, 1920, 2160, 155, 1),
    (128, 20480, 105, 8, 35, 2520, 2520, 163, 1),
    (160, 25600, 128, 8, 64, 3072, 3072, 163, 1),
)
_KORTHIKANTI = "Korthikanti et al., 2022, table 5"
# Heads, width, layers, pipeline, chunks, sequences per step, micro-batch, seconds with everything
# recomputed, and with selective recomputation.
_KORTHIKANTI_RUNS = (
    (64, 6144, 48, 1, 1, 4, 4, 1.42, 1.10),
    (96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75),
    (128, 20480, 105, 35, 3, 280, 1, 49.05, 37.83),
    (160, 25600, 128, 64, 1, 512, 1, 94.42, 71.49),
)
_LLAMA3 = "The Llama 3 Herd of Models, 2024, table 4"
_SMITH = "Smith et al., MT-NLG 530B, 2022, section 2.4"


def published_runs() -> Iterator[Run]:
    """Every published training."""
    grand_teton = replace(
        accelerator("h100"), memory_bytes=96 * 2**30, bytes_per_second=2.4e12, limit_watts=500.0
    )
    for rows, source, board in (
        (_TITAN_RUNS, _TITAN, grand_teton),
        (_A100_RUNS, _TITAN_A100, accelerator("a100")),
        (_H200_RUNS, _TITAN_H200, accelerator("h200")),
    ):
        for name, text, batch, sequence, precision, rate in rows:
            model = transformer({**MODELS[name], "sequence": sequence, "name": name})
            plan = Plan.parse(text, batch, precision)
            yield Run(f"{name} {text}", source, model, board, plan, rate)
    yield from _megatron_runs()
    yield from _large_runs()


def _gpt(heads: int, hidden: int, layers: int, vocabulary: int = 51200) -> Transformer:
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        feedforward=4 * hidden,
        vocabulary=vocabulary,
        sequence=2048,
        gated=False,
        tied=True,
    )


def _megatron_runs() -> Iterator[Run]:
    board = accelerator("a100")
    for heads, hidden, layers, tensor, pipeline, devices, batch, teraflops, micro in _MEGATRON_RUNS:
        model = _gpt(heads, hidden, layers)
        plan = Plan(
            data=devices // (tensor * pipeline),
            tensor=tensor,
            pipeline=pipeline,
            chunks=2 if pipeline > 1 and layers >= 2 * pipeline else 1,
            micro_batch=micro,
            batch_size=batch,
            shard=0,
            recompute="full",
            fused_attention=False,
        )
        # The paper's own count of operations per token.
        operations = 96 * layers * hidden**2
        operations *= 1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden)
        rate = teraflops * 1e12 / operations
        yield Run(f"GPT {hidden} × {layers}", _MEGATRON, model, board, plan, rate)
    for heads, hidden, layers, pipeline, chunks, batch, micro, *times in _KORTHIKANTI_RUNS:
        for recompute, seconds in zip(("full", "selective"), times, strict=True):
            plan = Plan(
                tensor=8,
                pipeline=pipeline,
                chunks=chunks,
                micro_batch=micro,
                batch_size=batch,
                recompute=recompute,
                fused_attention=False,
            )
            rate = batch * 2048 / seconds / plan.devices
            name = f"GPT {hidden} × {layers}, {recompute}"
            yield Run(name, _KORTHIKANTI, _gpt(heads, hidden, layers), board, plan, rate)


def _large_runs() -> Iterator[Run]:
    h100, a100 = accelerator("h100"), accelerator("a100")
    llama = MODELS["llama3.1_405b"]
    for text, batch, sequence, teraflops in (
        ("dp64-tp8-pp16-vp8-mb1-zero2", 2048, 8192, 430),
        ("dp128-tp8-pp16-vp8-mb1-zero2", 2048, 8192, 400),
        ("dp8-tp8-cp16-pp16-vp8-mb1-zero2", 128, 131072, 380),
    ):
        model = transformer({**llama, "sequence": sequence, "name": "llama3.1_405b"})
        # Model operations: six per parameter, and those of causal attention.
        operations = 6 * 405.8e9 + 6 * 126 * 16384 * sequence
        rate = teraflops * 1e12 / operations
        plan = Plan.parse(text, batch)
        yield Run(f"Llama 3.1 405B, {sequence}", _LLAMA3, model, h100, plan, rate)
    for copies, seconds in ((8, 60.1), (10, 50.2), (12, 44.4)):
        plan = Plan(
            data=copies,
            tensor=8,
            pipeline=35,
            batch_size=1920,
            shard=0,
            recompute="full",
            fused_attention=False,
        )
        rate = 1920 * 2048 / seconds / plan.devices
        yield Run(f"MT-NLG 530B, {plan.devices}", _SMITH, _gpt(128, 20480, 105), a100, plan, rate)
    bloom = Plan.parse("dp8-tp4-pp12-mb2-full-recompute", 2048)
    bloom = replace(bloom, fused_attention=False)
    shape = _gpt(112, 14336, 70, 250880)
    operations = 8 * (12 * 70 * 14336**2 + 14336 * 250880)
    yield Run("BLOOM 176B", "BLOOM, 2022: 150 TFLOPS", shape, a100, bloom, 150e12 / operations)
    deepseek = transformer({**MODELS["deepseekv3"], "sequence": 4096, "name": "deepseekv3"})
    yield Run(
        "DeepSeek-V3",
        "DeepSeek-V3 technical report: 180 thousand H800 hours per trillion tokens",
        deepseek,
        accelerator("h800"),
        Plan.parse("dp128-pp16-ep64-mb1-selective-recompute-dualpipe", 15360, "fp8"),
        1e12 / (180e3 * 3600),
    )
    old = {"layers": 80, "hidden": 8192, "heads": 64, "feedforward": 22016, "vocabulary": 32000}
    yield Run(
        "LLaMA 65B",
        "LLaMA, 2023: 380 tokens/s per GPU on 2,048 A100",
        transformer({**old, "sequence": 2048, "name": "llama-65b"}),
        a100,
        Plan.parse("dp256-tp8-mb1-selective-recompute", 2048),
        380.0,
    )
    for layers, hidden, heads, rate in ((32, 4096, 32, 10_000), (40, 5120, 40, 4_600)):
        shape = Transformer(
            layers=layers,
            hidden=hidden,
            heads=heads,
            feedforward=int(hidden * 2.6875),
            vocabulary=100352,
            sequence=4096,
        )
        # The number of devices is not stated.
        plan = Plan.parse("dp64-mb2-zero3-selective-recompute-compile", 1024)
        yield Run(f"OLMo {layers} × {hidden}", "OLMo-core 1.4, README", shape, h100, plan, rate)


# Layers, width, heads, heads of keys and values, inner width, vocabulary, gated, tied.
_SHAPES = {
    "gpt2": (12, 768, 12, 0, 3072, 50304, False, True),
    "tinyllama": (22, 2048, 32, 4, 5632, 32000, True, False),
    "llama2-7b": (32, 4096, 32, 0, 11008, 32000, True, False),
    "llama2-13b": (40, 5120, 40, 0, 13824, 32000, True, False),
    "llama2-70b": (80, 8192, 64, 8, 28672, 32000, True, False),
    "llama3-8b": (32, 4096, 32, 8, 14336, 128256, True, False),
    "llama3-70b": (80, 8192, 64, 8, 28672, 128256, True, False),
    "llama3-405b": (126, 16384, 128, 8, 53248, 128256, True, False),
    "smollm3": (36, 2048, 16, 4, 11008, 128256, True, True),
    "nemotron-15b": (32, 6144, 48, 8, 24576, 256000, False, False),
    "nemotron-340b": (96, 18432, 96, 8, 73728, 256000, False, False),
    "opt-175b": (96, 12288, 96, 0, 49152, 50272, False, True),
    "neox-20b": (44, 6144, 64, 0, 24576, 50432, False, False),
    "mpt-7b": (32, 4096, 32, 0, 16384, 50432, False, True),
}
_TUNE = "torchtune, README of autumn 2024"
_LLAMA2 = "Llama 2, 2023, table 2: hours of GPUs; plan not stated"
_NANO = "nanoGPT, README"
_NGC = "NGC, DGXC benchmarking 24.11"
_NEMOTRON = "Nemotron-4 340B technical report, 2024, table 2"
_OPT = "OPT, 2022: up to 147 TFLOPS; tensor group not stated"
_NEOX = "GPT-NeoX-20B, 2022: 117 TFLOPS"
_SMOL = "SmolLM3, 2025: 14 thousand tokens/s; micro-batch not stated"
# torchtune computes the loss in chunks and recomputes activations in these recipes.
_LEAN = "full-recompute-chunked-loss-compile"
# Source, model, device, plan, sequences per step, tokens per sequence, tokens/s per device. Hours
# of GPUs and days contain stops. Kernels of TinyLlama and MPT are fused by hand, as Megatron's are.
# Operations of a token, where a source states teraflops: six per parameter, and attention's.
_FURTHER_RUNS = (
    (_NANO, "gpt2", "A100-SXM4-40GB", "dp1-mb12-compile", 12, 1024, 12288 / 0.135),
    (_NANO, "gpt2", "A100-SXM4-40GB", "dp1-mb12-eager", 12, 1024, 12288 / 0.25),
    (
        "TinyLlama, README",
        "tinyllama",
        "A100-SXM4-40GB",
        "dp16-mb8-zero3",
        1024,
        2048,
        24e3,
    ),
    (_TUNE, "llama3-8b", "rtx4090", f"dp1-mb2-lora8-{_LEAN}", 2, 2048, 3083),
    (_TUNE, "llama3-8b", "rtx4090", f"dp1-mb2-qlora8-{_LEAN}", 2, 2048, 2413),
    (_TUNE, "llama3-70b", "a100", f"dp8-mb2-zero3-lora-{_LEAN}", 16, 2048, 3497 / 8),
    (_TUNE, "llama3-405b", "a100", f"dp8-mb2-zero3-qlora-{_LEAN}", 16, 2048, 653 / 8),
    (_SMOL, "smollm3", "h100", "dp192-tp2-mb3-eager", 576, 4096, 14e3),
    (
        _NEMOTRON,
        "nemotron-340b",
        "h100",
        "dp64-tp8-pp12-vp8-mb1",
        2304,
        4096,
        2304 * 4096 / 8 / 6144,
    ),
    (_NGC, "nemotron-340b", "h100", "dp2-tp8-pp8-vp12-mb1", 32, 4096, 32 * 4096 / 4.77 / 128),
    (_NGC, "nemotron-15b", "h100", "dp16-tp4-mb4", 256, 4096, 256 * 4096 / 2.86 / 64),
    (_LLAMA2, "llama2-7b", "a100", "dp1024-mb1-zero3-compile", 1024, 4096, 2e12 / 184320 / 3600),
    (_LLAMA2, "llama2-13b", "a100", "dp1024-mb1-zero3-compile", 1024, 4096, 2e12 / 368640 / 3600),
    (_LLAMA2, "llama2-70b", "a100", "dp128-tp8-pp2-mb1", 1024, 4096, 2e12 / 1720320 / 3600),
    (_OPT, "opt-175b", "a100", "dp124-tp8-mb8-zero3-full-recompute-eager", 992, 2048, 136.2),
    (_NEOX, "neox-20b", "A100-SXM4-40GB", "dp12-tp2-pp4-mb4-full-recompute", 1536, 2048, 898.3),
    (
        "MPT-7B, 2023: 9.5 days",
        "mpt-7b",
        "A100-SXM4-40GB",
        "dp440-mb4-zero3",
        1760,
        2048,
        2769.0,
    ),
)
# Software of 2022 whose scores of attention reach memory.
_UNFUSED = ((_NANO, "eager"), (_OPT, "eager"), (_NEOX, "megatron"))


def further_runs() -> Iterator[Run]:
    """Trainings that no constant was chosen on."""
    names = ("layers", "hidden", "heads", "kv_heads", "feedforward", "vocabulary", "gated", "tied")
    for source, name, device, text, batch, sequence, rate in _FURTHER_RUNS:
        shape = dict(zip(names, _SHAPES[name], strict=True))
        model = transformer({**shape, "sequence": sequence, "name": name})
        plan = Plan.parse(text, batch)
        plan = replace(plan, fused_attention=(source, plan.framework) not in _UNFUSED)
        yield Run(f"{name} {text}", source, model, accelerator(device), plan, rate)
    yield Run(
        "DeepSeek-V2",
        "DeepSeek-V2, 2024: 172.8 thousand H800 hours per trillion tokens",
        transformer(_DEEPSEEK_V2),
        accelerator("h800"),
        Plan.parse("dp128-pp16-ep8-mb1-zb", 9216),
        1e12 / (172.8e3 * 3600),
    )


_DEEPSEEK_V2 = {"layers": 60, "hidden": 5120, "heads": 128, "feedforward": 12288, "head_dim": 128}
_DEEPSEEK_V2 |= {"vocabulary": 102400, "experts": 160, "experts_per_token": 6, "dense_layers": 1}
_DEEPSEEK_V2 |= {"expert_feedforward": 1536, "shared_feedforward": 3072, "query_rank": 1536}
_DEEPSEEK_V2 |= {"kv_rank": 512, "rope_dim": 64, "sequence": 4096, "expert_nodes": 3}
