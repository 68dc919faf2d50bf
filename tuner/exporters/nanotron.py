"""nanotron: the YAML file of `run_train.py`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.exporters.base import (
    BaseExporter,
    Knob,
    goes,
    never,
    only,
    schedules,
    tensor_1d,
    unless,
    whole_layers,
)
from tuner.exporters.scripts import head, torchrun_script
from tuner.exporters.yaml_text import yaml_file
from tuner.ports import Export, ExportRequest, Refusal

CONFIG = "nanotron.yaml"
_ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_STEPS = 100
_ADAMW = {
    "name": "adamW",
    "adam_eps": 1e-8,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "torch_adam_is_fused": True,
}
_OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {"adamw": _ADAMW, "sgd": {"name": "sgd"}}


class NanotronExporter(BaseExporter):
    """nanotron's Llama."""

    name = "nanotron"
    trainer = "nanotron"
    versions = "the main branch of 2025 and 2026; 0.4 has no optimizer_factory yet"
    round_trip = "the parallelism and tokens sections by the dataclasses of nanotron 0.4"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "dp": goes("parallelism.dp"),
        "tp": goes("parallelism.tp"),
        **tensor_1d(),
        "sequence_parallel": goes("parallelism.tp_mode: REDUCE_SCATTER, else ALL_REDUCE"),
        "cp": never("cp", "its Llama cuts no sequence over ranks outside of tp"),
        "ep": never("ep", "its Llama has no experts"),
        "pp": goes("parallelism.pp"),
        "virtual_stages": never(
            "virtual_stages", "a rank holds one stage", virtual_stages=1, stage_layers=None
        ),
        "pipeline_schedule": schedules(
            "parallelism.pp_engine: 1f1b, or afab for gpipe",
            _ENGINES,
            "its engines are 1f1b and afab (gpipe)",
        ),
        "stage_layers": never("stage_layers", "it splits the layers by their cost itself"),
        "micro_batch_size": goes(
            "tokens.micro_batch_size, with tokens.batch_accumulation_per_replica"
        ),
        "zero_stage": goes(
            "optimizer.zero_stage",
            only("zero_stage", (0, 1), "it treats every stage above 0 as 1", zero_stage=1),
        ),
        "zero_shard_degree": never("zero_shard_degree", "it shards over all replicas"),
        **whole_layers("parallelism.recompute_layer"),
        "dtype": goes(
            "model.dtype",
            only("dtype", _DTYPES, "its models are float32 or bfloat16", dtype="bf16"),
        ),
        "reduce_dtype": goes(
            "optimizer.accumulate_grad_in_fp32",
            unless(
                "reduce_dtype",
                lambda r: r.config.reduce_dtype == "fp32" or r.config.dtype == "bf16",
                "gradients are reduced in bf16 with dtype bf16 alone",
                reduce_dtype="fp32",
            ),
        ),
        "compile": never("compile", "it does not torch.compile its layers"),
        "optimizer_offload": never("optimizer_offload", "its optimizer stays on the device"),
    }  # fmt: skip

    def about_model(self, request: ExportRequest) -> Refusal | None:
        """Its trainer builds Llama; other shapes need a class of the user's."""
        model = request.model
        if model.family != "llama" or model.qkv_bias or model.sliding_window:
            return Refusal(knob="model", reason=f"model {model.name}: it builds plain Llama alone")
        if model.head_dim * model.num_heads != model.hidden_size:
            reason = f"model {model.name}: its heads must fill the hidden size"
            return Refusal(knob="model", reason=reason)
        return super().about_model(request)

    def write(self, request: ExportRequest) -> Export:
        """The YAML and a script that runs it."""
        title = head(request, self.trainer, self.versions)
        return Export(
            files={
                CONFIG: yaml_file(title, _document(request)),
                "run.sh": torchrun_script(
                    request, title, f'run_train.py --config-file "$(dirname "$0")/{CONFIG}"',
                    environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
                ),
            },
            notes=("name your data in data_stages and your tokenizer in tokenizer",),
        )  # fmt: skip


def _document(request: ExportRequest) -> dict[str, Any]:
    config, training = request.config, request.training
    parallelism = {
        "dp": config.dp,
        "tp": config.tp,
        "pp": config.pp,
        "expert_parallel_size": config.ep,
        "pp_engine": _ENGINES[config.pipeline_schedule],
        "tp_mode": "REDUCE_SCATTER" if config.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": config.sequence_parallel,
        "recompute_layer": config.recompute == "full",
    }
    return {
        "general": {"project": "tuner", "run": request.model.name, "seed": 42},
        "parallelism": parallelism,
        "model": {
            "dtype": _DTYPES[config.dtype],
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": _model(request),
        },
        "tokenizer": {"tokenizer_name_or_path": None},
        "tokens": {
            "sequence_length": training.sequence_length,
            "train_steps": _STEPS,
            "micro_batch_size": config.micro_batch_size,
            "batch_accumulation_per_replica": request.num_microbatches,
        },
        "optimizer": {
            "zero_stage": config.zero_stage,
            "weight_decay": 0.01,
            "clip_grad": 1.0,
            "accumulate_grad_in_fp32": config.dtype == "bf16" and config.reduce_dtype == "fp32",
            "optimizer_factory": _OPTIMIZERS[training.optimizer],
            "learning_rate_scheduler": {
                "learning_rate": training.learning_rate,
                "lr_warmup_steps": 1,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
                "min_decay_lr": training.learning_rate / 10,
            },
        },
        "logging": {"iteration_step_info_interval": 1},
    }


def _model(request: ExportRequest) -> dict[str, Any]:
    model = request.model
    return {
        "is_llama_config": True,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "max_position_embeddings": max(model.max_positions, request.training.sequence_length),
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied_embeddings,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
