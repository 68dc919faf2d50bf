"""Synthetic token batches, equal in every process for equal seeds."""

import torch
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from search_spaces.training_spec import TrainingSpec


def global_batch(
    model: ModelSpec, training: TrainingSpec, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Token ids and next-token targets of one step, each (global batch, tokens), on CPU."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    shape = (training.global_batch_size, training.sequence_length + 1)
    tokens = torch.randint(0, model.vocab_size, shape, generator=generator)
    return tokens[:, :-1], tokens[:, 1:]
