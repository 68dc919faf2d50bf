"""What the tuner's own kernel holds besides the states, where it differs from published stacks.

Its buffers are known from its code, and the dry run, which executes that code, was used to check
every term: the loss walks over blocks of tokens; weight gradients go straight into fp32 buffers of
whole layers, of which ZeRO 2 and 3 have at most three at a time; context parallelism keeps the keys
and values of all ranks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.mesh_memory import activation_spread, has_mesh, mesh_buffers
from search_spaces.cost_models.parameters import (
    dense_layer_parameters,
    expert_layer_parameters,
    matrix_spread,
    mesh_side,
)
from search_spaces.cost_models.points import (
    LAYOUT_1D,
    RECOMPUTE_SELECTIVE,
    Column,
    Points,
)

LOGIT_BLOCK_BYTES, LOW_PRECISION_BLOCK_BYTES = 64.0 * 2**20, 256.0 * 2**20
"""Largest block of logits of the loss."""
PIECE_BYTES = 16.0 * 2**20
"""The fp32 copy of a part of a block in low precision."""
SCATTERS_IN_FLIGHT = 2.0
"""Gradients of whole units under way under ZeRO 2 and 3, beside the one being made."""
COMPILED_BYTES = 560.0 * 2**10
"""What torch's CPU library keeps of each bf16 product that it compiled."""
ATTENTION_ROWS, MOST_BLOCK_TOKENS, MOST_BLOCK_HEAD_DIM = 128.0, 1024.0, 64.0
"""Rows of a block of attention in bf16 on CPU, and up to where attention is done in blocks."""
NORM_VALUES, WIDE_NORM_VALUES = 2.25, 6.0
"""Tensors of hidden size that the two RMS norms of a layer keep besides what a layer norm does."""
LOSS_VALUES, BACKWARD_VALUES, MESSAGE_VALUES = 3.2, 2.0, 2.0
"""Tensors of hidden size that the loss, a layer's backward pass and a pipeline's messages hold."""


def kernel_layer_values(points: Points, *, is_cpu: bool = False) -> tuple[Column, Column]:
    """Values per token that a layer keeps: those on every tensor-parallel rank, and those split.

    A GPT-2 layer keeps 4 of the hidden size that sequence parallelism alone splits, and 12 others;
    an RMS norm on CPU is made of several operations and keeps more, in low precision in fp32.
    """
    hidden, width = points.hidden_size, points.num_heads * points.head_dim
    key_value = points.num_kv_heads * points.head_dim
    rotary = np.minimum(points.gated, 1.0)
    is_wide = is_cpu & (np.asarray(points.dtype_bytes) < 4)
    made = np.where(is_wide, WIDE_NORM_VALUES, NORM_VALUES) * rotary
    if has_mesh(points):  # whose norm is one operation
        made = np.where(np.asarray(points.tp_layout) == LAYOUT_1D, made, 0.0)
    replicated = (4.0 + made) * hidden
    mlp = np.maximum(points.experts_per_token, 1.0) * (2.0 + 2.0 * rotary) * points.ffn_size
    core = (2.0 + rotary) * (width + key_value)
    # a core that recomputes does not keep what the rotation of positions makes either
    redone = (2.0 + 2.0 * rotary) * (width + key_value)
    is_selective = np.asarray(points.recompute) == RECOMPUTE_SELECTIVE
    ring = np.where(
        np.asarray(points.cp) > 1, 2.0 * points.cp * key_value + 2.0 * width, 0.0
    )  # blocks that came by, of all ranks
    split = mlp + core + ring - np.where(is_selective, redone, 0.0)
    return replicated, split


def library_bytes(points: Points, hardware: Hardware) -> Column:
    """Code that the CPU's library compiles for products in low precision, once per shape.

    Three products of each of a layer's four weights and of the projection to the vocabulary, and
    four of every block of attention.
    """
    if not hardware.is_cpu:
        return 0.0
    blocks = np.ceil(points.sequence_length / ATTENTION_ROWS) * _attends_in_blocks(points)
    is_half = np.asarray(points.dtype_bytes) < 4
    return np.where(is_half, COMPILED_BYTES * (15.0 + 4.0 * blocks), 0.0)


def _attends_in_blocks(points: Points) -> Column:
    """1 where attention in low precision on CPU goes block by block of rows, else 0."""
    fits = (np.asarray(points.sequence_length) <= MOST_BLOCK_TOKENS) & (np.asarray(points.cp) <= 1)
    fits = fits & (np.asarray(points.head_dim) <= MOST_BLOCK_HEAD_DIM)
    return np.where(fits & (np.asarray(points.dtype_bytes) < 4), 1.0, 0.0)


class KernelBuffers(NamedTuple):
    """Bytes that come and go within a step, at its two moments of greatest need."""

    logits: Column
    """A block of logits, its fp32 copy, the projection's gradient in compute precision."""
    at_loss: Column
    """What else is held while the loss is worked out."""
    in_backward: Column
    """What a layer's backward pass makes."""
    zero_at_loss: Column
    """Gradients and weights of whole units that ZeRO 2 and 3 hold at that moment."""
    zero_early: Column
    """The same in the backward pass of the first layer, when no gradient is under way yet."""
    zero_late: Column
    """And once as many are under way as may be; the activations of as many layers are gone then."""
    tied_gradient: Column
    """The gradient of a table that is embedding and projection: complete at the very end."""
    held: Column
    """What is held at every moment: a mesh's panels."""
    summed: Column
    """Per parameter of the rank: the copy in which a mesh sums gradients over its depth."""


def kernel_buffers(points: Points, hardware: Hardware, constants: Constants) -> KernelBuffers:
    """Of one rank, whatever its place in the pipeline."""
    training = np.asarray(points.is_training)
    size, hidden, tokens = points.dtype_bytes, points.hidden_size, points.tokens
    spread = matrix_spread(points)
    table = points.vocab_size * hidden / spread
    row = tokens * hidden * size / activation_spread(points)
    block_bytes = np.where(np.asarray(size) < 4, LOW_PRECISION_BLOCK_BYTES, LOGIT_BLOCK_BYTES)
    mesh = mesh_buffers(points, block_bytes, is_cpu=hardware.is_cpu)
    pipelined = np.where(np.asarray(points.pp) > 1, MESSAGE_VALUES, 0.0)
    wide = (1.0 + np.minimum(points.gated, 1.0)) * points.ffn_size / points.tp
    backward = np.maximum(tokens * size * wide, mesh.in_backward)
    if hardware.is_cpu:
        backward = np.maximum(backward, _block_attention(points))
    backward = backward + (BACKWARD_VALUES + pipelined) * row
    loss_values = LOSS_VALUES + pipelined
    if hardware.is_cpu:  # the last norm's
        is_wide = (np.asarray(size) < 4) & (np.asarray(points.tp_layout) == LAYOUT_1D)
        wide_norm = 0.5 * (WIDE_NORM_VALUES - NORM_VALUES) * np.minimum(points.gated, 1.0)
        loss_values = loss_values + np.where(is_wide, wide_norm, 0.0)
    stage = np.asarray(points.zero_stage)
    scatters = training * (stage >= 2)
    copies = 2.0 if hardware.is_cpu else 1.0  # gloo receives into a buffer of the same size
    whole = dense_layer_parameters(points) + expert_layer_parameters(points) / points.ep
    layer = 4.0 * whole / spread
    # the last two units of the micro-batch before: the table and positions, or the first layer
    several = np.asarray(points.num_microbatches) > 1
    positions = points.learned_positions * hidden / mesh_side(points)
    second = np.where(positions > 0, positions, whole / spread)
    before = several * copies * 4.0 * (table + second)
    # a mesh's gradient of the table is stored once what gloo received for it is gone
    fresh = np.where((mesh_side(points) > 1) & hardware.is_cpu, 0.0, 4.0 * table)
    weights = (stage >= 3) * size
    present = weights * 2.0 * whole / spread
    return KernelBuffers(
        logits=constants.logits_memory * _logits(points),
        at_loss=loss_values * row + mesh.at_loss,
        in_backward=training * backward,
        zero_at_loss=scatters * (fresh + before) + weights * table,
        zero_early=scatters * layer + present,
        zero_late=scatters * (1.0 + SCATTERS_IN_FLIGHT * copies) * layer + present,
        tied_gradient=scatters * points.tied * 4.0 * table,
        held=mesh.held,
        summed=mesh.summed,
    )


def _block_attention(points: Points) -> Column:
    """What the backward pass of attention in blocks needs above what its layer has freed by then.

    Copies of queries, keys and values (of one sequence they are views) and of the gradient, the
    gradients of three, two of them in fp32 as well, and three blocks of scores; freed are what the
    feed-forward block and the output projection kept.
    """
    width = points.num_heads * points.head_dim
    gates = 1.0 + np.minimum(points.gated, 1.0)
    rows = np.minimum(points.sequence_length, ATTENTION_ROWS)
    copies = np.where(np.asarray(points.micro_batch_size) > 1, 11.0, 8.0)
    made = copies * width + 3.0 * rows * points.num_heads
    freed = 2.0 * gates * points.ffn_size + width + 2.0 * points.hidden_size
    needed = points.tokens * points.dtype_bytes * (made - freed) / points.tp
    return _attends_in_blocks(points) * needed


def _logits(points: Points) -> Column:
    """The loss's block and what is made of it."""
    is_half = np.asarray(points.dtype_bytes) < 4
    scores = points.tokens * points.vocab_size / points.tp
    alone = np.asarray(points.tp) <= 1
    full = np.minimum(4.0 * scores, LOGIT_BLOCK_BYTES)
    bytes_each = np.where(alone, points.dtype_bytes, 4.0)
    block = np.minimum(scores, LOW_PRECISION_BLOCK_BYTES / bytes_each)
    copied = np.where(alone, np.minimum(4.0 * block, PIECE_BYTES), 4.0 * block)
    product = points.dtype_bytes * points.vocab_size * points.hidden_size / points.tp
    low = points.dtype_bytes * block + np.where(
        alone, copied + product, np.maximum(copied, product)
    )
    return np.where(is_half, low, full)


@dataclass(frozen=True, kw_only=True)
class Transients:
    """Bytes above the states and the kept activations at the peak of one rank."""

    activations: Column
    logits: Column
    buffers: Column


def kernel_transients(
    kernel: KernelBuffers,
    layer: Column,
    layer_input: Column,
    redone: Column,
    layers: Column,
    has_head: Column,
) -> Transients:
    """The greater need of the two moments: while the loss is worked out, or in the backward pass.

    `layer` and `layer_input` are the bytes that a layer keeps without recomputation and with it,
    `redone` the layers of the rank that recompute.
    """
    is_redone = np.asarray(redone) > 0
    again = np.where(is_redone, layer - layer_input, 0.0)
    kept = np.where(is_redone, layer_input, layer)
    freed = np.minimum(SCATTERS_IN_FLIGHT, np.maximum(layers - 1.0, 0.0)) * kept
    zero = np.maximum(kernel.zero_early, kernel.zero_late - freed)
    zero = zero + has_head * kernel.tied_gradient
    backward = again + kernel.in_backward + zero
    loss = has_head * (kernel.logits + kernel.at_loss + kernel.zero_at_loss)
    at_loss = loss >= backward
    return Transients(
        activations=np.where(at_loss, has_head * kernel.at_loss, again + kernel.in_backward),
        logits=np.where(at_loss, has_head * kernel.logits, 0.0),
        buffers=np.where(at_loss, has_head * kernel.zero_at_loss, zero),
    )
