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
    "llama-7b": (32, 4096, 32, 0, 11008, 32000, True, False),
    "llama-13b": (40, 5120, 40, 0, 13824, 32000, True, False),
    "llama-33b": (60, 6656, 52, 0, 17920, 32000, True, False),
    "llama-65b": (80, 8192, 64, 0, 22016, 32000, True, False),
    "bloom-176b": (70, 14336, 112, 0, 57344, 250880, False, True),
    "bloomberg-50b": (70, 7680, 40, 0, 30720, 131072, False, True),
    "starcoder": (40, 6144, 48, 1, 24576, 49152, False, True),
    "falcon-7b": (32, 4544, 71, 1, 18176, 65024, False, True),
    "falcon-40b": (60, 8192, 128, 8, 32768, 65024, False, True),
    "falcon-180b": (80, 14848, 232, 8, 59392, 65024, False, True),
    "phi3-mini": (32, 3072, 32, 0, 8192, 32064, True, False),
    "phi3-medium": (40, 5120, 40, 10, 17920, 32064, True, False),
    "phi-4": (40, 5120, 40, 10, 17920, 100352, True, False),
    "stablelm-3b": (32, 2560, 32, 0, 6912, 50304, True, False),
    "granite-8b": (40, 4096, 32, 8, 12800, 49155, True, True),
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
# Hours of devices that whole trainings took, with their stops, by model cards and papers.
_LLAMA1 = "LLaMA, arXiv 2302.13971, table 15"
_LLAMA2_CARD = "Llama 2, arXiv 2307.09288, table 2"
_LLAMA3_CARD = "Llama 3 and 3.1, model cards; 405B: arXiv 2407.21783"
_BLOOM = "BLOOM, arXiv 2211.05100 and 2211.02001, table 1"
_OPT_LOG = "OPT-175B, logbook: some eight weeks on 992 A100"
_FALCON = (
    "Falcon, model cards (two weeks, two months on 384 A100) and huggingface.co/blog/falcon-180b"
)
_PHI = "Phi-3 and phi-4, model cards: days and devices"
_BLOOMBERG = "BloombergGPT, arXiv 2303.17564: 53 days on 512 A100"
_STARCODER = "StarCoderBase, arXiv 2305.06161, section 5.7"
_STABLELM = "StableLM-3B-4E1T, model card: 30 days on 256 A100"
_NEOX_PAPER = "GPT-NeoX-20B, arXiv 2204.06745: 1,830 hours on 96 A100"
_MPT = "MPT-7B, databricks.com/blog/mpt-7b: 9.5 days on 440 A100"
_SMOL3 = "SmolLM3, huggingface.co/blog/smollm3: 24 days on 384 H100"
_GRANITE = "Granite 3.0 technical report: hours of H100"
# Source, model, device, devices, tokens, tokens per sequence, sequences per step, hours of devices.
# Devices of LLaMA 7B to 33B, Llama 2, Llama 3 8B and 70B and Granite are not stated, nor is the
# batch of Granite. Sources that compute their hours from the time of a step (Pythia, DeepSeek-V3)
# are left out: these contain no stops.
_WHOLE_TRAININGS = (
    (_LLAMA1, "llama-7b", "a100", 2048, 1e12, 2048, 2048, 82_432),
    (_LLAMA1, "llama-13b", "a100", 2048, 1e12, 2048, 2048, 135_168),
    (_LLAMA1, "llama-33b", "a100", 2048, 1.4e12, 2048, 2048, 530_432),
    (_LLAMA1, "llama-65b", "a100", 2048, 1.4e12, 2048, 2048, 1_022_362),
    (_LLAMA2_CARD, "llama2-7b", "a100", 1024, 2e12, 4096, 1024, 184_320),
    (_LLAMA2_CARD, "llama2-13b", "a100", 1024, 2e12, 4096, 1024, 368_640),
    (_LLAMA2_CARD, "llama2-70b", "a100", 2048, 2e12, 4096, 1024, 1_720_320),
    (_LLAMA3_CARD, "llama3-8b", "h100", 1024, 15e12, 8192, 1024, 1.3e6),
    (_LLAMA3_CARD, "llama3-70b", "h100", 4096, 15e12, 8192, 2048, 6.4e6),
    (_LLAMA3_CARD, "llama3-405b", "h100", 16384, 15.6e12, 8192, 2048, 30.84e6),
    (_BLOOM, "bloom-176b", "a100", 384, 366e9, 2048, 2048, 1_082_990),
    (_MPT, "mpt-7b", "A100-SXM4-40GB", 440, 1e12, 2048, 1760, 440 * 9.5 * 24),
    (_SMOL3, "smollm3", "h100", 384, 11.2e12, 4096, 576, 384 * 24 * 24),
    (_BLOOMBERG, "bloomberg-50b", "A100-SXM4-40GB", 512, 569e9, 2048, 2048, 512 * 53 * 24),
    (_STARCODER, "starcoder", "a100", 512, 1e12, 8192, 512, 320_256),
    (_FALCON, "falcon-7b", "A100-SXM4-40GB", 384, 1.5e12, 2048, 2304, 384 * 14 * 24),
    (_FALCON, "falcon-40b", "A100-SXM4-40GB", 384, 1e12, 2048, 1152, 384 * 61 * 24),
    (_FALCON, "falcon-180b", "A100-SXM4-40GB", 4096, 3.5e12, 2048, 2048, 7e6),
    (_OPT_LOG, "opt-175b", "a100", 992, 300e9, 2048, 992, 992 * 56 * 24),
    (_PHI, "phi3-mini", "h100", 512, 3.3e12, 4096, 1024, 512 * 7 * 24),
    (_PHI, "phi3-medium", "h100", 512, 4.8e12, 4096, 1024, 512 * 42 * 24),
    (_PHI, "phi-4", "h100", 1920, 9.8e12, 4096, 5760, 1920 * 21 * 24),
    (_STABLELM, "stablelm-3b", "A100-SXM4-40GB", 256, 4e12, 4096, 1024, 256 * 30 * 24),
    (_NEOX_PAPER, "neox-20b", "A100-SXM4-40GB", 96, 472e9, 2048, 1536, 96 * 1830),
    (_GRANITE, "granite-8b", "h100", 512, 12e12, 4096, 1024, 832_102),
)


@dataclass(frozen=True, slots=True)
class Training:
    """A whole published training.

    Attributes:
        source: Document that states it.
        model: Description of the model.
        device: Accelerator.
        devices: Number of devices.
        tokens: Tokens in all.
        batch_size: Sequences per step.
        hours: Hours of all devices.
    """

    source: str
    model: Transformer
    device: str
    devices: int
    tokens: float
    batch_size: int
    hours: float


def whole_trainings() -> Iterator[Training]:
    """Whole trainings; the factor of lost time was chosen on them, leaving each source out."""
    for source, name, device, devices, tokens, sequence, batch, hours in _WHOLE_TRAININGS:
        model = _shape(name, sequence)
        yield Training(source, model, device, devices, tokens, batch, hours)


def _shape(name: str, sequence: int) -> Transformer:
    names = ("layers", "hidden", "heads", "kv_heads", "feedforward", "vocabulary", "gated", "tied")
    shape = dict(zip(names, _SHAPES[name], strict=True))
    if name.startswith("falcon"):
        shape["head_dim"] = 64
    return transformer({**shape, "sequence": sequence, "name": name})


# Software of 2022 whose scores of attention reach memory.
_UNFUSED = ((_NANO, "eager"), (_OPT, "eager"), (_NEOX, "megatron"))


def further_runs() -> Iterator[Run]:
    """Trainings that no constant was chosen on."""
    for source, name, device, text, batch, sequence, rate in _FURTHER_RUNS:
        model = _shape(name, sequence)
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
