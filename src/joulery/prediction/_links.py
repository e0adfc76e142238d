"""Time of collectives: within a node over its links, between nodes over all of its network cards.

A ring over several nodes runs once per network card, each with its share of the data; so a group
with ``g`` members in a node moves data at ``g`` cards' rate, as long as the links inside keep up.
Every member of a ring adds a hop.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.prediction._plan import expert_parameters, local_parameters

if TYPE_CHECKING:
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Share of a link's nominal bandwidth that large messages reach; seconds of the smallest call, and
# more for each member; bytes more that a call seems to carry while its pipeline fills, at most half
# of its own: NCCL tables of A100, H100, H200 and B200 (AIConfigurator).
_LINK_SHARE, _CALL_SECONDS, _MEMBER_SECONDS, _FILLING_BYTES = 0.72, 4e-6, 1.2e-6, 4e6
# Boards without links of their own exchange data over PCIe: at its full rate among those of one
# socket, at half of it between two. Servers with PCIe switches reach more, L40S without direct
# access between boards 1.2 GB/s each among eight (AIConfigurator), so that these rates are
# uncertain (``on_another_system``).
_SOCKET_DEVICES, _BETWEEN_SOCKETS = 4, 0.5
# Bytes of gradients that are added up, and of parameters that are handed out, per parameter: 32-bit
# gradients and 16-bit parameters, as Megatron and FSDP do it.
_GRADIENT_BYTES, _PARAMETER_BYTES = 4.0, 2.0
# Seconds that a ring takes from one member to the next, within a node and between nodes: NCCL's own
# estimate for large messages (src/graph/tuning.cc, hwLat, ring, Simple).
_HOP_SECONDS, _NETWORK_HOP_SECONDS = 3.4e-6, 14e-6
# Collectives of a layer that FSDP shards: gathers for forward and backward, a scatter. Copies that
# do not share parameters add up buckets that grow with them, so that hops matter little (Megatron).
_SHARDED_CALLS = 3.0


def group_rate(device: Accelerator, size: int, inside: int = 1) -> float:
    """Bytes per second and device of a collective.

    Args:
        device: Device of the group.
        size: Devices of the group.
        inside: Neighbouring devices between two members: a member is every so many.
    """
    link = _LINK_SHARE * device.link_bytes_per_second
    span = size * inside
    if span <= device.link_domain:
        return link
    if device.in_pcie_server:
        lanes = _LINK_SHARE * min(device.link_bytes_per_second, device.pcie_bytes_per_second)
        lanes *= 1.0 if span <= _SOCKET_DEVICES else _BETWEEN_SOCKETS
        return lanes if span <= device.node_devices else min(lanes, device.network_bytes_per_second)
    members = min(size, max(1, device.link_domain // inside))
    return min(link, _LINK_SHARE * members * device.network_bytes_per_second)


def call_seconds(device: Accelerator, size: int, traffic: float) -> float:
    """Seconds of one gather or scatter of ``traffic`` bytes in all."""
    moved = others(size) * traffic + min(traffic / 2, _FILLING_BYTES)
    fixed = _CALL_SECONDS + _MEMBER_SECONDS * size
    return fixed + moved / group_rate(device, size)


def ring_seconds(device: Accelerator, size: int, inside: int = 1) -> float:
    """Seconds of a ring's hops from one end to the other, which no bandwidth shortens.

    Arguments are those of ``group_rate``.
    """
    domain = device.node_devices if device.in_pcie_server else device.link_domain
    nodes = math.ceil(size / max(1, domain // inside))
    return (size - nodes) * _HOP_SECONDS + (nodes - 1) * _NETWORK_HOP_SECONDS


def others(copies: float) -> float:
    """Share of a tensor that comes from the other copies."""
    return (copies - 1) / copies


def layer_links(model: Transformer, plan: Plan, device: Accelerator) -> tuple[float, float, float]:
    """Seconds of tensor, expert and context collectives of one layer and micro-batch, both ways."""
    tokens = plan.tokens(model.sequence)
    activation = tokens * model.hidden * 2.0
    tensor = experts = context = 0.0
    if plan.tensor > 1:
        tensor = 8 * call_seconds(device, plan.tensor, activation)
    if plan.context > 1:
        keys = 2.0 * tokens * model.key_heads * model.value_width * 2.0
        traffic = 3.0 * (plan.context - 1) * keys / plan.tensor
        context = traffic / group_rate(device, plan.context, plan.tensor)
    if plan.expert > 1:
        experts = 4.0 * _all_to_all(model, plan, device, activation / plan.tensor)
    return tensor, experts, context


def _all_to_all(model: Transformer, plan: Plan, device: Accelerator, activation: float) -> float:
    """Seconds to send every token to its experts: once per node over the network, then inside."""
    inside = activation * model.experts_per_token * others(plan.expert)
    nodes = max(1, round(plan.expert / device.node_devices))
    near = min(nodes, model.expert_nodes or nodes)
    nodes_reached = others(nodes) * near * (1 - (1 - 1 / near) ** model.experts_per_token)
    within = group_rate(device, min(plan.expert, device.node_devices))
    across = _LINK_SHARE * device.network_bytes_per_second
    fixed = _CALL_SECONDS + _MEMBER_SECONDS * plan.expert
    return fixed + max(inside / within, activation * nodes_reached / across)


def copy_seconds(model: Transformer, plan: Plan, device: Accelerator) -> float:
    """Seconds of a step to add up gradients and hand out parameters between copies."""
    copies = plan.data * plan.context
    experts = max(expert_parameters(model, plan, stage) for stage in {0, plan.pipeline - 1})
    dense = local_parameters(model, plan) - experts
    # Experts that are spread over the copies have fewer of them, further apart.
    expert_copies = max(1, copies * plan.tensor // plan.expert)
    if plan.shard < 3:
        traffic = _GRADIENT_BYTES + _PARAMETER_BYTES
        near = others(copies) * dense / group_rate(device, copies, plan.tensor)
        far = others(expert_copies) * experts
        return traffic * (near + far / group_rate(device, expert_copies, plan.expert))
    group = plan.shard_group or copies
    parameters = dense + experts * others(min(group, expert_copies))
    layers = model.layers / plan.pipeline
    return gather_seconds(device, plan, (parameters, layers), group, copies // group)


def gather_seconds(
    device: Accelerator, plan: Plan, sharded: tuple[float, float], group: int, replicas: int
) -> float:
    """Seconds to gather sharded parameters twice per micro-batch and to scatter gradients.

    Args:
        device: Device of the group.
        plan: Parallel plan.
        sharded: Parameters, and layers that hold them.
        group: Devices that share them.
        replicas: Groups.
    """
    parameters, layers = sharded
    gathered = others(group) * parameters / group_rate(device, group, plan.tensor)
    apart = group * plan.tensor
    added = others(replicas) * parameters / group / group_rate(device, replicas, apart)
    passes = 2 * _PARAMETER_BYTES + _GRADIENT_BYTES
    hops = _SHARDED_CALLS * layers * ring_seconds(device, group, plan.tensor)
    return plan.micro_batches * (passes * gathered + hops) + 2 * _GRADIENT_BYTES * added
