"""DeepSpeed: the JSON config and the arguments of a `transformers` trainer beside it."""

import json
from collections.abc import Mapping
from typing import ClassVar

from tuner.exporters import deepspeed_values
from tuner.exporters.base import (
    REFUSED,
    BaseExporter,
    Knob,
    goes,
    never,
    no_pipeline,
    tensor_1d,
    unless,
    whole_layers,
)
from tuner.exporters.hf_arguments import ARGUMENTS, hf_arguments
from tuner.exporters.scripts import head, torchrun_script
from tuner.ports import Export, ExportRequest

CONFIG = "ds_config.json"


class DeepSpeedExporter(BaseExporter):
    """DeepSpeed under the Hugging Face Trainer."""

    name = "deepspeed"
    trainer = "DeepSpeed"
    versions = "0.16 to 0.19, with transformers 4.50 or newer"
    round_trip = "deepspeed.DeepSpeedConfig of 0.19.8 and transformers.HfArgumentParser"
    knobs: ClassVar[Mapping[str, Knob]] = {
        "dp": goes("implied: world size over tp; train_batch_size must come out"),
        "tp": goes("tensor_parallel.autotp_size"),
        **tensor_1d(),
        "sequence_parallel": never("sequence_parallel", "AutoTP does not shard the norms"),
        "cp": Knob(
            REFUSED,
            (
                unless(
                    "cp",
                    lambda r: r.config.cp == 1,
                    "its sequence parallelism (Ulysses) trades heads, not keys",
                    cp=1,
                    zero_stage=lambda r: r.config.zero_stage if r.config.dp > 1 else 0,
                    zero_shard_degree=0,
                ),
            ),
        ),
        "ep": goes("expert_parallel.autoep_size, of 0.19"),
        **no_pipeline("pipelines are set in the model's code, not in the JSON"),
        "micro_batch_size": goes(
            "train_micro_batch_size_per_gpu and --per_device_train_batch_size"
        ),
        "zero_stage": goes("zero_optimization.stage"),
        "zero_shard_degree": never(
            "zero_shard_degree", "its smaller shard sets (MiCS) were removed in 0.19"
        ),
        **whole_layers("--gradient_checkpointing"),
        "dtype": goes("bf16.enabled, fp16.enabled"),
        "reduce_dtype": goes("communication_data_type"),
        "compile": goes("--torch_compile"),
        "optimizer_offload": goes(
            "zero_optimization.offload_optimizer", deepspeed_values.offload_needs_shards()
        ),
    }

    def write(self, request: ExportRequest) -> Export:
        """The JSON, the trainer's arguments and a script that brings them together."""
        config = request.config
        title = head(request, self.trainer, self.versions)
        document = deepspeed_values.document(request)
        if config.tp > 1:
            document["tensor_parallel"] = {"autotp_size": config.tp}
        if config.ep > 1:
            document["expert_parallel"] = {"enabled": True, "autoep_size": config.ep}
        arguments = hf_arguments(
            request,
            title,
            f"--gradient_checkpointing {str(config.recompute == 'full').lower()}",
            f"--torch_compile {str(config.compile).lower()}",
        )
        program = f'"${{TRAIN:-train.py}}" --deepspeed "$(dirname "$0")/{CONFIG}"'
        return Export(
            files={
                CONFIG: json.dumps(document, indent=2) + "\n",
                ARGUMENTS: arguments,
                "run.sh": torchrun_script(request, title, program, arguments_in=ARGUMENTS),
            },
            notes=("name your training script in TRAIN, e.g. TRAIN=train.py run.sh",),
        )
