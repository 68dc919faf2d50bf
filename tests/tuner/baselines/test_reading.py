"""Baselines: what is read is what the trainer would run, and what cannot be read is said."""

from pathlib import Path

import pytest

from search_spaces.model_io import load_model_spec, parse_model_spec, preset_names
from search_spaces.parallel_config import ParallelConfig
from tuner import registry
from tuner.baselines import read_baseline
from tuner.baselines.hf_config import config_fields
from tuner.baselines.megatron import layers_of_layout
from tuner.errors import ConfigError
from tuner.testing.exporter_contract import covering

_SCRIPT = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-2}
TP=4
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $RANK"
GPT_ARGS=(
    --num-layers 32          # the model
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 4096 --max-position-embeddings 8192
    --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights
    --rotary-base 500000 --vocab-size 128256
)
PARALLEL="--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 2 \\
  --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce"
# --micro-batch-size 99
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py "${GPT_ARGS[@]}" $PARALLEL \\
    --micro-batch-size 2 --global-batch-size=128 --bf16 --lr 3.0e-4 \\
    --num-virtual-stages-per-pipeline-rank 4 --recompute-activations --fp8-format hybrid
"""


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_megatron_script_with_variables_gives_model_batch_and_configuration(tmp_path):
    found = read_baseline(_write(tmp_path, "pretrain.sh", _SCRIPT))
    assert found.config == ParallelConfig(
        dp=2, tp=4, pp=2, virtual_stages=4, pipeline_schedule="interleaved", zero_stage=1,
        sequence_parallel=True, micro_batch_size=2, recompute="selective", dtype="bf16",
    )  # fmt: skip
    assert (found.devices, found.global_batch_size, found.sequence_length) == (16, 128, 4096)
    assert found.learning_rate == 3e-4
    preset = load_model_spec("llama3-8b")
    assert found.model == preset.model_copy(update={"name": "pretrain"})
    assert found.notes == ("--fp8-format has no counterpart here and was left out",)


def test_deepspeed_works_out_the_third_size(tmp_path):
    text = """{"train_batch_size": 64, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
               "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}"""
    found = read_baseline(_write(tmp_path, "ds.json", text), devices=8)
    assert found.config == ParallelConfig(
        dp=8, micro_batch_size=2, zero_stage=2, dtype="bf16", reduce_dtype="bf16",
        optimizer_offload=True,
    )  # fmt: skip
    assert found.global_batch_size == 64


def test_torchtitan_names_a_preset_and_its_defaults_are_applied(tmp_path):
    text = """
        [model]
        name = "llama3"
        flavor = "8B"
        [training]
        local_batch_size = 1
        seq_len = 8192
        [parallelism]
        data_parallel_shard_degree = -1
        tensor_parallel_degree = 2
        """
    found = read_baseline(_write(tmp_path, "llama3_8b.toml", text), devices=8)
    assert found.model_source == "llama3-8b"
    assert found.config == ParallelConfig(
        dp=4, tp=2, sequence_parallel=True, zero_stage=3, dtype="bf16", micro_batch_size=1
    )
    assert (found.global_batch_size, found.sequence_length) == (4, 8192)
    assert "selective" in found.notes[0]


def test_accelerate_hybrid_shards_are_read_and_the_missing_micro_batch_is_said(tmp_path):
    text = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
parallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 4}
"""
    found = read_baseline(_write(tmp_path, "accelerate.yaml", text))
    assert found.config == ParallelConfig(
        dp=8, zero_stage=3, zero_shard_degree=4, dtype="bf16", reduce_dtype="bf16"
    )
    assert "micro_batch_size" in found.notes[-1]


def test_accelerate_with_deepspeed_reads_the_file_beside_it(tmp_path):
    _write(tmp_path, "ds.json", '{"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true}}')
    text = """
distributed_type: DEEPSPEED
num_processes: 4
deepspeed_config: {deepspeed_config_file: ds.json}
"""
    found = read_baseline(_write(tmp_path, "accelerate.yaml", text))
    assert found.config == ParallelConfig(dp=4, micro_batch_size=4, dtype="fp16")


# exporter -> its file, and the knobs that the file does not hold
_READ_BACK = {
    "megatron-lm": ("megatron_arguments.txt", set()),
    "torchtitan-toml": ("torchtitan.toml", set()),
    "deepspeed": ("ds_config.json", {"recompute", "compile"}),
    "accelerate": ("accelerate.yaml", {"micro_batch_size", "recompute"}),
}


@pytest.mark.parametrize("name", _READ_BACK)
def test_an_export_is_read_as_the_configuration_that_it_came_from(name, tmp_path):
    file, missing = _READ_BACK[name]
    exporter = registry.load("exporters", name)()
    requests = covering(exporter, 25)
    assert len(requests) >= 5
    for request in requests:
        path = _write(tmp_path, file, exporter.export(request).files[file])
        found = read_baseline(path, devices=request.config.world_size, model=request.model)
        read = found.config.model_dump(exclude=missing)
        assert read == request.config.model_dump(exclude=missing), request.config.canonical()
        if name != "accelerate":
            assert found.global_batch_size == request.training.global_batch_size


def test_megatron_models_are_read_back_from_their_export(tmp_path):
    exporter = registry.load("exporters", "megatron-lm")()
    for request in covering(exporter, 12):
        text = exporter.export(request).files["megatron_arguments.txt"]
        path = _write(tmp_path, f"{request.model.name}.txt", text)
        assert read_baseline(path, devices=request.config.world_size).model == request.model


@pytest.mark.parametrize("preset", preset_names())
def test_a_model_survives_its_config_json(preset):
    spec = load_model_spec(preset)
    assert parse_model_spec(config_fields(spec), spec.name) == spec


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("Et*3|(tt|)*2,L", (3, 2, 2, 0)),
        ("E,t*4|t*4,L", (4, 4)),
        ("Et|(t|)*2tL", (1, 1, 1, 1)),
        ("Ett|ttL", (2, 2)),
    ],
)
def test_megatron_layouts(layout, layers):
    assert layers_of_layout(layout) == layers


_ONE_LAYER = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", "[]", "one JSON object"),
        ("a.json", '{"train_batch_size": "auto"}', "on how many devices"),
        ("a.json", '{"train_batch_size": 0}', "positive integer"),
        ("a.toml", "a = ", "not TOML"),
        ("a.toml", "[parallelism]\ndata_parallel_shard_degree = 0", "data_parallel_shard_degree"),
        ("a.yaml", "a: [", "not YAML"),
        ("a.yaml", "distributed_type: TPU", "TPU"),
        ("a.yaml", "3", "a mapping"),
        ("a.sh", "echo hello", "no configuration that is known"),
        ("a.sh", _ONE_LAYER + "--nproc-per-node 4", "--micro-batch-size|vocabulary"),
        ("a.sh", _ONE_LAYER + "--vocab-size 9 --nproc-per-node 3 --tensor-model-parallel-size 2",
         "whole replicas"),
        ("a.sh", "--num-layers $LAYERS --hidden-size 4 --num-attention-heads 1", "variable"),
        ("a.sh", "--num-layers 'four", "quot"),
        ("a.sh", "--hidden-size four", "positive integer"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(name, text, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        read_baseline(_write(tmp_path, name, text))


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text"):
        read_baseline(path)
