"""Time of the embedding, the output projection and the loss."""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.collectives import all_reduce_s, group_of, reduce_scatter_s
from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.gemm import gemm_s
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import Column, Points


class EndTimes(NamedTuple):
    """Seconds per micro-batch, forward and backward together, of the two ends of the model."""

    embedding_s: Column
    head_s: Column
    head_forward_s: Column
    hop_gather_s: Column = 0.0
    """Gather of a pipeline message, of which every tensor-parallel rank sent a share."""


def end_times(points: Points, hardware: Hardware, constants: Constants) -> EndTimes:
    """The vocabulary is split over the tensor-parallel ranks, the loss is computed in fp32."""
    training = np.asarray(points.is_training)
    tokens, hidden, size = points.tokens, points.hidden_size, points.dtype_bytes
    vocab = points.vocab_size / points.tp
    args = (size, hardware, constants)
    activations = tokens * hidden * size
    group = group_of(points.tp, 1.0, hardware, constants)
    ring = reduce_scatter_s(activations, group)
    loss = constants.head * tokens * vocab / hardware.memory_bytes_per_s
    forward = gemm_s(tokens, vocab, hidden, *args) + 17.5 * loss + ring
    backward = (
        gemm_s(tokens, hidden, vocab, *args) + gemm_s(vocab, hidden, tokens, *args)
        + 12.5 * loss + ring
    )  # fmt: skip
    moved = constants.elementwise * activations / hardware.memory_bytes_per_s
    lookup = 4.0 * moved + all_reduce_s(activations, group)
    whole = 1.0 - np.minimum(points.sequence_parallel, 1.0)
    return EndTimes(
        embedding_s=lookup + training * 5.0 * moved,
        head_s=forward + training * backward,
        head_forward_s=forward,
        hop_gather_s=whole * ring,
    )
