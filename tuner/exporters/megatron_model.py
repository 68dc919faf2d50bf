"""A model and recipe as arguments of Megatron's argument parser and of its descendants."""

from tuner.ports import ExportRequest


def model_arguments(request: ExportRequest) -> list[str]:
    """Flags of the model's shape, which Megatron-LM and Megatron-DeepSpeed both have."""
    model, training = request.model, request.training
    words = [
        f"--num-layers {model.num_layers}",
        f"--hidden-size {model.hidden_size}",
        f"--ffn-hidden-size {model.ffn_size}",
        f"--num-attention-heads {model.num_heads}",
        f"--kv-channels {model.head_dim}",
        f"--seq-length {training.sequence_length}",
        f"--max-position-embeddings {max(model.max_positions, training.sequence_length)}",
    ]
    if not model.tied_embeddings:
        words.append("--untie-embeddings-and-output-weights")
    if model.family != "gpt2":
        words += ["--swiglu", "--disable-bias-linear"]
    return _split(words)


def modern_model_arguments(request: ExportRequest) -> list[str]:
    """Flags of the model that Megatron-LM alone knows."""
    model = request.model
    if model.family == "gpt2":
        words = ["--position-embedding-type learned_absolute", "--normalization LayerNorm"]
    else:
        words = [
            "--position-embedding-type rope",
            f"--rotary-base {round(model.rope_theta)}",
            "--normalization RMSNorm",
        ]
    words += [f"--norm-epsilon {model.norm_eps:g}", f"--vocab-size {model.vocab_size}"]
    if model.qkv_bias:
        words.append("--add-qkv-bias")
    if model.num_kv_heads != model.num_heads:
        words += ["--group-query-attention", f"--num-query-groups {model.num_kv_heads}"]
    if model.sliding_window is not None:
        words.append(f"--window-size {model.sliding_window - 1},0")
    if model.num_experts:
        words += [
            f"--num-experts {model.num_experts}",
            f"--moe-router-topk {model.experts_per_token}",
            f"--moe-ffn-hidden-size {model.ffn_size}",
            "--moe-token-dispatcher-type alltoall",
        ]
    return _split(words)


def batch_arguments(request: ExportRequest) -> list[str]:
    """Micro-batch and global batch; Megatron works out the accumulation from the replicas."""
    training = request.training
    return _split(
        [
            f"--micro-batch-size {request.config.micro_batch_size}",
            f"--global-batch-size {training.global_batch_size}",
            f"--optimizer {'adam' if training.optimizer == 'adamw' else 'sgd'}",
            f"--lr {training.learning_rate:g}",
        ]
    )


def precision_arguments(request: ExportRequest) -> list[str]:
    """`--bf16` or `--fp16`; fp32 has no flag."""
    return [] if request.config.dtype == "fp32" else [f"--{request.config.dtype}"]


def _split(words: list[str]) -> list[str]:
    return [part for word in words for part in word.split(" ")]
