"""Time of one decoder layer on one rank, forward and backward, compute and collectives apart."""

from dataclasses import dataclass

import numpy as np

from search_spaces.cost_models.attention import attention_times
from search_spaces.cost_models.collectives import all_to_all_s, group_of, hop_s
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.gemm import gemm_s
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import (
    LAYOUT_1D,
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    Column,
    Points,
)
from search_spaces.cost_models.tensor_parallel import tensor_parallel_times

COMPILE_TRAFFIC, COMPILE_HOST = 0.6, 0.5
"""What is left of element-wise traffic and of host time when the layers are compiled."""
REMOTE_RANK = 0.5
"""What a rank on another node adds to contention, over one on the same node."""


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Seconds of one layer per micro-batch on one rank."""

    forward_s: Column
    backward_s: Column
    weight_gradient_s: Column
    """The part of the backward pass that a zero-bubble schedule may put off."""
    recompute_s: Column
    compute_s: Column
    """Arithmetic and element-wise work of forward, backward and recomputation."""
    tensor_parallel_s: Column
    context_parallel_s: Column
    expert_parallel_s: Column
    host_s: Column
    """What the host's floor adds."""
    contention_s: Column
    """The part of `host_s` that is due to pipeline messages; none while the pipeline fills."""

    @property
    def total_s(self) -> Column:
        """Forward, recomputation and backward."""
        return self.forward_s + self.backward_s + self.recompute_s


def _linear_times(
    points: Points, hardware: Hardware, constants: Constants
) -> tuple[Column, Column, Column]:
    """Forward, input-gradient and weight-gradient time of a layer's linear maps."""
    is_2d = np.asarray(points.tp_layout) != LAYOUT_1D
    side = np.where(is_2d, np.sqrt(points.tp / points.tp_depth), 1.0)
    split = np.where(is_2d, side, points.tp)
    tokens = points.tokens / np.where(is_2d, side * points.tp_depth, 1.0)
    hidden = points.hidden_size / side
    query = points.num_heads * points.head_dim
    key_value = points.num_kv_heads * points.head_dim
    experts = np.maximum(points.num_experts / points.ep, 1.0)
    visits = np.maximum(points.experts_per_token, 1.0)
    ffn_tokens = tokens * visits / experts
    shapes = [
        (1.0, tokens, (query + 2.0 * key_value) / split, hidden),
        (1.0, tokens, hidden, query / split),
        (experts, ffn_tokens, points.ffn_size * (1.0 + points.gated) / split, hidden),
        (experts, ffn_tokens, hidden, points.ffn_size / split),
    ]
    forward: Column = 0.0
    inputs: Column = 0.0
    weights: Column = 0.0
    for count, rows, columns, inner in shapes:
        size = points.dtype_bytes
        steps = count * side
        forward = forward + steps * gemm_s(rows, columns, inner, size, hardware, constants)
        inputs = inputs + steps * gemm_s(rows, inner, columns, size, hardware, constants)
        weights = weights + steps * gemm_s(columns, inner, rows, size, hardware, constants)
    return forward, inputs, weights


def _elementwise_s(points: Points, hardware: Hardware, constants: Constants) -> Column:
    """Norms, residuals, activations, rotary or bias-dropout of the forward pass."""
    is_2d = np.asarray(points.tp_layout) != LAYOUT_1D
    spread = np.where(np.asarray(points.sequence_parallel) > 0, points.tp, 1.0)
    spread = np.where(is_2d, points.tp, spread)
    visits = np.maximum(points.experts_per_token, 1.0)
    norm_bytes = np.where(np.asarray(points.fused_norm) > 0, 8.0, 28.0)
    replicated = points.hidden_size * (norm_bytes + 14.0) / spread
    split = (
        visits * (4.0 + 4.0 * points.gated) * points.ffn_size + 12.0 * points.hidden_size
    ) / points.tp
    factor = constants.elementwise * np.where(np.asarray(points.compiled) > 0, COMPILE_TRAFFIC, 1.0)
    scale = points.dtype_bytes / 2.0 * factor / hardware.memory_bytes_per_s
    return points.tokens * (replicated + split) * scale


def _context_parallel(
    points: Points, attention_s: Column, hardware: Hardware, constants: Constants
) -> Column:
    """Ring of keys and values; what attention on the block at hand does not hide."""
    block = (
        2.0 * points.tokens * points.num_kv_heads * points.head_dim / points.tp * points.dtype_bytes
    )
    hop = hop_s(block, points.tp * points.cp, hardware, constants)
    hidden_by = attention_s / points.cp
    exposed = constants.hop_s + np.maximum(hop - constants.hop_s - hidden_by, 0.0)
    return np.where(np.asarray(points.cp) > 1, (points.cp - 1.0) * exposed, 0.0)


def _expert_parallel(points: Points, hardware: Hardware, constants: Constants) -> Column:
    """Dispatch and combine of one pass."""
    sent = (
        points.tokens * np.maximum(points.experts_per_token, 1.0) * points.hidden_size
        * points.dtype_bytes
    )  # fmt: skip
    group = group_of(points.ep, points.tp * points.cp, hardware, constants)
    return 2.0 * all_to_all_s(sent, group)


def layer_times(
    points: Points,
    hardware: Hardware,
    constants: Constants,
    recomputed: Column,
    crossing: Column,
) -> LayerTimes:
    """All of one layer; a pass takes the longer of the device's time and the host's.

    Depends on `recomputed_share` and `messages_cross_nodes` through the last two arguments alone,
    so that equal work is computed once however many replicas and stages repeat it.
    """
    forward, inputs, weights = _linear_times(points, hardware, constants)
    core = attention_times(points, hardware, constants)
    element = _elementwise_s(points, hardware, constants)
    sums = tensor_parallel_times(points, hardware, constants)
    ring_forward = _context_parallel(points, core.forward_s, hardware, constants)
    ring_backward = 2.0 * _context_parallel(points, core.backward_s / 2.0, hardware, constants)
    experts = _expert_parallel(points, hardware, constants)
    compute_forward = forward + core.forward_s + element
    compute_backward = inputs + weights + core.backward_s + 1.6 * element
    device_forward = compute_forward + sums.forward_s + ring_forward + experts
    device_backward = compute_backward + sums.backward_s + ring_backward + experts
    lighter = np.where(np.asarray(points.compiled) > 0, COMPILE_HOST, 1.0)
    collective = np.where(np.asarray(points.tp) > 1, constants.host_collective_s, 0.0)
    host_forward = constants.host_forward_s * lighter + collective
    host_backward = constants.host_backward_s * lighter + collective
    training = np.asarray(points.is_training)
    full = training * (np.asarray(points.recompute) == RECOMPUTE_FULL)
    selective = training * (np.asarray(points.recompute) == RECOMPUTE_SELECTIVE)
    full, selective = full * recomputed, selective * recomputed
    contention = _contention_s(points, crossing, hardware, constants)
    idle_forward = _excess(host_forward + contention, device_forward)
    idle_backward = _excess(host_backward + contention, device_backward)
    freed = (1.0 + full) * (idle_forward - _excess(host_forward, device_forward)) + training * (
        idle_backward - _excess(host_backward, device_backward)
    )
    return LayerTimes(
        forward_s=device_forward + idle_forward,
        backward_s=training * (device_backward + idle_backward),
        weight_gradient_s=training * weights,
        recompute_s=full * (device_forward + idle_forward) + selective * core.forward_s,
        compute_s=(1.0 + full) * compute_forward
        + training * compute_backward
        + selective * core.forward_s,
        tensor_parallel_s=(1.0 + full) * sums.forward_s + training * sums.backward_s,
        context_parallel_s=(1.0 + full) * ring_forward + training * ring_backward,
        expert_parallel_s=(1.0 + full + training) * experts,
        host_s=(1.0 + full) * idle_forward + training * idle_backward,
        contention_s=freed,
    )


def _contention_s(
    points: Points, crossing: Column, hardware: Hardware, constants: Constants
) -> Column:
    """Host time per layer pass that collectives cost while pipeline messages cross nodes.

    Some stacks serialise the two, and pay for every rank of the group, whatever the size of the
    layer (seen on nanotron over EFA, 1B to 80B). Filling and draining the pipeline is spared.
    """
    contended = crossing * (np.asarray(points.tp) > 1)
    remote = np.maximum(points.tp - hardware.devices_per_node, 0.0)
    return constants.host_contention_s * (points.tp + REMOTE_RANK * remote) * contended


def _excess(host_s: Column, device_s: Column) -> Column:
    """What the host's time adds to the device's: the 16-norm of both, a maximum without a corner.

    Neither is constant from layer to layer, and a corner would hide the host's constants from a fit
    that starts below them.
    """
    ratio = host_s / device_s
    square = ratio * ratio
    fourth = square * square
    sixteenth = fourth * fourth * fourth * fourth
    return device_s * (np.sqrt(np.sqrt(np.sqrt(np.sqrt(1.0 + sixteenth)))) - 1.0)


def recomputed_share(points: Points) -> Column:
    """Share of a rank's layers that recompute."""
    wanted = np.asarray(points.recompute_layers)
    per_rank = np.maximum(points.num_layers / points.pp, 1.0)
    return np.where(wanted < 0, 1.0, np.minimum(wanted / per_rank, 1.0))


def messages_cross_nodes(points: Points, hardware: Hardware) -> Column:
    """1 where a pipeline spans nodes, else 0."""
    crossing = (np.asarray(points.pp) > 1) & (points.num_devices > hardware.devices_per_node)
    return np.asarray(crossing, dtype=np.float64)
