"""torchtitan from 0.3.0 on: a Python module with the config function."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.exporters import torchtitan_values as values
from tuner.exporters.base import BaseExporter, Knob, goes
from tuner.exporters.scripts import head, torchrun_script
from tuner.ports import Export, ExportRequest, Refusal

MODULE = "tuned.py"
_BODY = '''\
{checkpoint_import}from torchtitan.models.llama3.config_registry import {base}


def tuned():
    """{base} with the tuned settings."""
    config = {base}()
    if hasattr(config.training, "num_tokens_per_train_step"):  # newer than 0.3: it counts tokens
{in_tokens}    else:
{in_sequences}{assignments}    config.activation_checkpoint = {checkpoint}
    return config
'''


class TorchtitanExporter(BaseExporter):
    """torchtitan since its configs are Python objects."""

    name = "torchtitan"
    trainer = "torchtitan"
    versions = "0.3.0, and the main branch of August 2026, which counts its batch in tokens"
    round_trip = "torchtitan.config.ConfigManager of torchtitan 0.3.0"
    knobs: ClassVar[Mapping[str, Knob]] = values.knobs(
        sequence_parallel=goes("parallelism.enable_sequence_parallel"),
    )

    def about_model(self, request: ExportRequest) -> Refusal | None:
        """Llama alone, and AdamW alone."""
        if request.training.optimizer != "adamw":
            return Refusal(knob="optimizer", reason="optimizer sgd: its Llama recipes use AdamW")
        return values.about_model(request) or super().about_model(request)

    def write(self, request: ExportRequest) -> Export:
        """The module and a script that runs it."""
        title = head(request, self.trainer, self.versions)
        flavor = values.flavor(request.model)
        full = request.config.recompute == "full"
        tokens, sequences, others = _settings(request)
        text = _BODY.format(
            base=f"llama3_{(flavor or 'debugmodel').lower()}",
            in_tokens=_assigned(tokens, 8),
            in_sequences=_assigned(sequences, 8),
            assignments=_assigned(others, 4),
            checkpoint_import=_CHECKPOINT_IMPORT if full else "",
            checkpoint="FullAC.Config()" if full else "None",
        )
        notes = [] if flavor else [
            f"put your config of {request.model.name} in place of llama3_debugmodel: torchtitan "
            "has none of its shape",
        ]  # fmt: skip
        program = "-m torchtitan.train --module tuned --config tuned"
        script = torchrun_script(
            request, title, program, environment={"PYTHONPATH": _BESIDE_THE_SCRIPT}
        )
        return Export(files={MODULE: title + text, "run.sh": script}, notes=notes)


_CHECKPOINT_IMPORT = "from torchtitan.distributed.activation_checkpoint import FullAC\n"
_BESIDE_THE_SCRIPT = '"$(cd "$(dirname "$0")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"'


Settings = Mapping[str, Any]
# What 0.3.0 counts in sequences.
_IN_SEQUENCES = (
    "training.local_batch_size",
    "training.global_batch_size",
    "training.seq_len",
    "parallelism.pipeline_parallel_microbatch_size",
)


def _settings(request: ExportRequest) -> tuple[Settings, Settings, Settings]:
    """The batch in tokens, the batch in sequences, and all other fields of the config."""
    config, length = request.config, request.training.sequence_length
    sections = {
        # CUDA graphs, which it turns on by default, do not go with pipelines.
        "training": values.training_values(request) | {"disable_cuda_graphs": config.pp > 1},
        "parallelism": values.parallelism_values(request, ("norm", "lm_head")),
        "compile": {"enable": config.compile},
    }
    fields = {f"{name}.{key}": v for name, keys in sections.items() for key, v in keys.items()}
    if config.tp > 1:
        fields["parallelism.enable_sequence_parallel"] = config.sequence_parallel
    tokens: dict[str, Any] = {
        "training.num_tokens_per_microbatch_per_dp_rank": config.micro_batch_size * length,
        "training.num_tokens_per_train_step": request.training.global_batch_size * length,
        "training.max_context_length": length,
    }
    if config.pp > 1:
        tokens["parallelism.num_pp_microbatches"] = request.num_microbatches
    sequences = {key: fields.pop(key) for key in _IN_SEQUENCES if key in fields}
    return tokens, sequences, fields


def _assigned(settings: Settings, indent: int) -> str:
    lines = [f"{' ' * indent}config.{key} = {value!r}\n" for key, value in settings.items()]
    return "".join(lines).replace("'", '"')
