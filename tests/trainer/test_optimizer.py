"""Loss scaling of fp16: what overflows is skipped, by all ranks or none."""

from dataclasses import dataclass

import pytest
import torch

from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.engine import Engine
from trainer.mesh import ParallelMesh
from trainer.optimizer import LossScaler
from trainer.parallel.collectives import Done

MODEL = load_model_spec("gpt2-tiny")
CONFIG = ParallelConfig(dtype="fp16", micro_batch_size=2)
TRAINING = TrainingSpec(sequence_length=16, global_batch_size=2)


@dataclass
class _World:
    """A world in which another rank may have found an overflow."""

    other: float = 0.0

    def all_reduce(self, found: torch.Tensor, *, maximum: bool) -> Done:
        assert maximum
        found.clamp_(min=self.other)
        return Done()


def test_gradients_are_divided_by_the_scale():
    scaler = LossScaler(is_active=True)
    grads = [torch.full((3,), 2.0**17)]
    assert scaler.unscale(grads, _World())
    assert grads[0].tolist() == [2.0] * 3


@pytest.mark.parametrize(("value", "other"), [(float("inf"), 0.0), (float("nan"), 0.0), (1.0, 1.0)])
def test_an_overflow_here_or_elsewhere_halves_the_scale(value, other):
    scaler = LossScaler(is_active=True)
    assert not scaler.unscale([torch.tensor([1.0, value])], _World(other))
    assert scaler.scale == 2.0**15


def test_the_scale_doubles_after_a_quiet_while_and_never_falls_below_one():
    scaler = LossScaler(is_active=True, growth_interval=2)
    for expected in (2.0**16, 2.0**17, 2.0**17, 2.0**18):
        assert scaler.unscale([torch.zeros(1)], _World())
        assert scaler.scale == expected
    for _ in range(30):
        scaler.unscale([torch.tensor([torch.inf])], _World())
    assert scaler.scale == 1.0


def test_other_precisions_are_left_alone():
    scaler = LossScaler(is_active=False)
    grads = [torch.tensor([torch.inf])]
    assert scaler.unscale(grads, _World())
    assert scaler.scale == 1.0


def test_a_step_that_overflows_leaves_the_weights_and_the_next_one_trains():
    engine = Engine(MODEL, TRAINING, CONFIG, ParallelMesh(CONFIG, 1), 0, torch.device("cpu"))
    expected = engine.step(0).loss
    before = [unit.master.clone() for unit in engine.units]
    engine.scaler.scale = 2.0**40
    skipped = engine.step(0)
    assert skipped.loss < expected  # the true loss, after one step of training
    assert engine.scaler.scale == 2.0**39
    assert engine.optimizer.num_steps == 1
    assert all(
        torch.equal(old, unit.master) for old, unit in zip(before, engine.units, strict=True)
    )
    engine.scaler.scale = 2.0**10
    assert engine.step(0).loss == pytest.approx(skipped.loss, rel=1e-3)
    assert engine.optimizer.num_steps == 2
    assert not any(
        torch.equal(old, unit.master) for old, unit in zip(before, engine.units, strict=True)
    )
