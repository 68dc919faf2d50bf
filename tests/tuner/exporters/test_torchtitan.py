"""The config module of torchtitan counts sequences or tokens, as the version that reads it does."""

import sys
import types
from types import SimpleNamespace

import pytest

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from tuner import registry
from tuner.ports import ExportRequest


def _config_of(text: str, training: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    config = SimpleNamespace(
        training=training, parallelism=SimpleNamespace(), compile=SimpleNamespace()
    )
    for name in ("torchtitan", "torchtitan.models", "torchtitan.models.llama3"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    recipes = types.ModuleType("torchtitan.models.llama3.config_registry")
    recipes.llama3_8b = lambda: config
    monkeypatch.setitem(sys.modules, recipes.__name__, recipes)
    module: dict = {}
    exec(compile(text, "tuned.py", "exec"), module)
    return module["tuned"]()


def _text(**knobs) -> str:
    request = ExportRequest(
        model=load_model_spec("llama3-8b"),
        training=TrainingSpec(sequence_length=4096, global_batch_size=64, dtype="bf16"),
        cluster=ClusterSpec(devices_per_node=8),
        config=ParallelConfig(dp=2, zero_stage=3, micro_batch_size=2, dtype="bf16", **knobs),
    )
    return registry.load("exporters", "torchtitan")().export(request).files["tuned.py"]


def test_a_newer_version_is_told_tokens(monkeypatch):
    newer = SimpleNamespace(num_tokens_per_train_step=-1)
    config = _config_of(_text(pp=4), newer, monkeypatch)
    assert config.training.num_tokens_per_train_step == 64 * 4096
    assert config.training.num_tokens_per_microbatch_per_dp_rank == 2 * 4096
    assert config.parallelism.num_pp_microbatches == 64 // (2 * 2)
    assert not hasattr(config.training, "local_batch_size")


def test_0_3_is_told_sequences(monkeypatch):
    config = _config_of(_text(pp=4), SimpleNamespace(), monkeypatch)
    assert config.training.local_batch_size == 32
    assert config.parallelism.pipeline_parallel_microbatch_size == 2
    assert config.training.global_batch_size == 64
    assert not hasattr(config.training, "num_tokens_per_train_step")


def test_without_a_pipeline_a_local_batch_is_a_micro_batch(monkeypatch):
    config = _config_of(_text(tp=4), SimpleNamespace(), monkeypatch)
    assert config.training.local_batch_size == 2
    newer = SimpleNamespace(num_tokens_per_train_step=-1)
    config = _config_of(_text(tp=4), newer, monkeypatch)
    assert not hasattr(config.parallelism, "num_pp_microbatches")
