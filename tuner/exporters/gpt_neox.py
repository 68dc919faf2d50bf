"""GPT-NeoX: its YAML file."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.exporters import deepspeed_values
from tuner.exporters.base import BaseExporter, Knob, goes, never, schedules, tensor_1d
from tuner.exporters.scripts import head
from tuner.exporters.yaml_text import yaml_file
from tuner.ports import Export, ExportRequest, Refusal

CONFIG = "neox.yml"
_PRECISIONS = {"fp32": "fp32", "bf16": "bfloat16", "fp16": "fp16"}


class GptNeoxExporter(BaseExporter):
    """GPT-NeoX, which stands on DeepSpeed's engine."""

    name = "gpt-neox"
    trainer = "GPT-NeoX"
    versions = "the main branch of 2024 to 2026"
    round_trip = "none: it is not on a registry; its DeepSpeed keys by deepspeed.DeepSpeedConfig"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "dp": goes("implied: devices over the other degrees, num_nodes x num_gpus"),
        "tp": goes("model_parallel_size"),
        **tensor_1d(),
        "sequence_parallel": goes("sequence_parallel"),
        "cp": never("cp", "it has no context parallelism"),
        "ep": never("ep", "its experts are not Mixtral's"),
        "pp": goes("pipe_parallel_size; 0 for one stage"),
        "pipeline_schedule": schedules("1f1b", ("1f1b",), "DeepSpeed's engine runs 1f1b alone"),
        "micro_batch_size": goes("train_micro_batch_size_per_gpu"),
        "dtype": goes("precision"),
        "reduce_dtype": goes("deepspeed_extra_args.communication_data_type"),
        **deepspeed_values.pipeline_engine(
            zero_stage="zero_optimization.stage",
            recompute="checkpoint_activations",
            optimizer_offload="zero_optimization.offload_optimizer",
        ),
    }

    def about_model(self, request: ExportRequest) -> Refusal | None:
        """GPT-2, Llama and Mistral; Qwen's biases and Mixtral it has not."""
        model = request.model
        if model.num_experts or model.qkv_bias:
            reason = f"model {model.name}: of our models it has GPT-2, Llama and Mistral"
            return Refusal(knob="model", reason=reason)
        return super().about_model(request)

    def write(self, request: ExportRequest) -> Export:
        """The YAML and a script that trains with it."""
        title = head(request, self.trainer, self.versions)
        script = (
            f"#!/usr/bin/env bash\n{title}set -euo pipefail\n"
            f'exec python deepy.py train.py "$(cd "$(dirname "$0")" && pwd)/{CONFIG}" "$@"\n'
        )
        return Export(
            files={CONFIG: yaml_file(title, _document(request)), "run.sh": script},
            notes=("add your data and tokenizer, in this file or in one beside it",),
        )


def _document(request: ExportRequest) -> dict[str, Any]:
    config, training = request.config, request.training
    engine = deepspeed_values.document(request)
    travelling = engine.pop("communication_data_type", None)
    document: dict[str, Any] = {
        "pipe_parallel_size": config.pp if config.pp > 1 else 0,
        "model_parallel_size": config.tp,
        "sequence_parallel": config.sequence_parallel,
        "num_nodes": request.num_nodes,
        "num_gpus": request.ranks_per_node,
        **_model(request),
        "precision": _PRECISIONS[config.dtype],
        "checkpoint_activations": config.recompute == "full",
        "checkpoint_num_layers": 1,
        "optimizer": {
            "type": "Adam" if training.optimizer == "adamw" else "SGD",
            "params": {"lr": training.learning_rate},
        },
        **engine,
    }
    if travelling is not None:
        document["deepspeed_extra_args"] = {"communication_data_type": travelling}
    return document


def _model(request: ExportRequest) -> dict[str, Any]:
    model, length = request.model, request.training.sequence_length
    values: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.ffn_size,
        "seq_length": length,
        "max_position_embeddings": max(model.max_positions, length),
        "no_weight_tying": not model.tied_embeddings,
        "gpt_j_residual": False,
        "make_vocab_size_divisible_by": 1,
    }
    if model.family == "gpt2":
        return values | {
            "pos_emb": "learned",
            "norm": "layernorm",
            "layernorm_epsilon": model.norm_eps,
            "activation": "gelu",
        }
    values |= {
        "num_kv_heads": model.num_kv_heads,
        "pos_emb": "rotary",
        "rotary_pct": 1,
        "rotary_emb_base": round(model.rope_theta),
        "norm": "rmsnorm",
        "rms_norm_epsilon": model.norm_eps,
        "activation": "swiglu",
        "use_bias_in_norms": False,
        "use_bias_in_attn_linear": False,
        "use_bias_in_mlp": False,
        "output_layer_parallelism": "column",
    }
    if model.sliding_window is not None:
        values["sliding_window_width"] = model.sliding_window
    return values
