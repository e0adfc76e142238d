"""Collectives: all cards of a node work for a group; small messages are latency."""

from dataclasses import replace

import pytest

from joulery.prediction import Plan, accelerator, prediction, transformer
from joulery.prediction._links import call_seconds, group_rate

H100, L40S = accelerator("h100"), accelerator("l40s")
LLAMA = transformer(
    {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "feedforward": 14336,
        "vocabulary": 128256,
        "sequence": 8192,
    }
)


def test_a_group_with_one_member_per_node_has_one_card():
    """Tensor-parallel groups of a whole node would share one card between nodes."""
    assert group_rate(H100, 16, inside=8) == pytest.approx(group_rate(H100, 128, inside=1) / 8)
    assert group_rate(H100, 8) > group_rate(H100, 128)


def test_fsdp_loses_little_from_one_node_to_sixteen():
    """Torchtitan lost 2 % from 8 to 128 H100; more makes large clusters look useless."""
    few, many = (
        prediction(
            LLAMA,
            "h100",
            Plan(data=count, micro_batch=2, batch_size=2 * count, shard=3, recompute="full"),
        )
        .points[-1]
        .seconds
        for count in (8, 128)
    )
    assert 0.98 < many / few < 1.1


def test_fsdp_loses_much_on_thousands_of_devices_unless_groups_share():
    """Llama 7B lost 37 % per device from 128 to 2,048 H100 (arXiv 2411.13055)."""
    model = replace(LLAMA, kv_heads=0, feedforward=11008, vocabulary=32000, sequence=4096)
    plan = Plan(micro_batch=2, shard=3, framework="compile")
    few, many, grouped = (
        prediction(model, "h100", replace(plan, data=count, batch_size=2 * count, **changes))
        .points[-1]
        .seconds
        for count, changes in ((128, {}), (2048, {}), (2048, {"shard_group": 128}))
    )
    assert 0.5 < few / many < 0.75
    assert few / grouped > 0.95


def test_small_messages_take_microseconds():
    """NCCL gathers a kilobyte on eight H100 in 11 microseconds, half a gigabyte in 1.4 ms."""
    assert 5e-6 < call_seconds(H100, 8, 2e3) < 25e-6
    assert call_seconds(H100, 8, 2**29) == pytest.approx(1.4e-3, rel=0.25)


def test_boards_without_links_gather_at_the_rate_of_pcie():
    """Eight boards of a server would be slower than the network, or as fast as with NVLink."""
    assert group_rate(L40S, 8) < group_rate(L40S, 4) == group_rate(L40S, 2)
    assert 5e9 < group_rate(L40S, 8) < 25e9
    assert group_rate(L40S, 16) <= group_rate(L40S, 8)
    assert group_rate(accelerator("a40"), 8) == group_rate(L40S, 8)
    assert group_rate(accelerator("a40"), 2) > group_rate(L40S, 2)


def test_servers_with_pcie_alone_are_uncertain():
    """One host in ten would lie outside of an interval that knows only NVLink's spread."""
    sharded, single = (
        prediction(LLAMA, "a100-pcie-80gb", Plan.parse(text, 8, "bf16")).deviation
        for text in ("dp8-mb1-zero3-full-recompute", "dp1-mb1-adam8-full-recompute-lora")
    )
    assert sharded > 1.5 * single
