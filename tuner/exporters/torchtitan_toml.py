"""torchtitan up to 0.2.2: the TOML file of `--job.config_file`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tuner.config.toml_text import to_toml_text
from tuner.exporters import torchtitan_values as values
from tuner.exporters.base import BaseExporter, Knob, goes, only, unless
from tuner.exporters.fsdp2_values import shard_degree
from tuner.exporters.scripts import head, torchrun_script
from tuner.ports import Export, ExportRequest, Refusal

CONFIG = "torchtitan.toml"


def _is_sharded(request: ExportRequest) -> bool:
    return shard_degree(request) * request.config.cp > 1


def _is_data_parallel_alone(request: ExportRequest) -> bool:
    return request.config.world_size == request.config.dp


class TorchtitanTomlExporter(BaseExporter):
    """torchtitan while it read TOML files."""

    name = "torchtitan-toml"
    trainer = "torchtitan with TOML"
    versions = "0.2.0 to 0.2.2"
    round_trip = "torchtitan.config.ConfigManager of torchtitan 0.2.2"
    knobs: ClassVar[Mapping[str, Knob]] = values.knobs(
        sequence_parallel=goes(
            "always on under tensor_parallel_degree",
            unless(
                "sequence_parallel",
                lambda r: r.config.sequence_parallel or r.config.tp == 1,
                "it cannot be turned off under tp",
                sequence_parallel=True,
            ),
        ),
        zero_stage=goes(
            "0: replicas; 2, 3: shards with parallelism.fsdp_reshard_after_forward",
            only("zero_stage", (0, 2, 3), "its shards hold gradients too", zero_stage=2),
            unless(
                "zero_stage",
                lambda r: r.config.zero_stage > 0 or r.config.dp * r.config.cp == 1
                or _is_data_parallel_alone(r),
                "it replicates only where dp is the sole parallelism",
                zero_stage=2,
            ),
        ),
        dtype=goes(
            "training.mixed_precision_param",
            only("dtype", ("fp32", "bf16"), "it trains in float32 or bfloat16", dtype="bf16"),
            unless(
                "dtype",
                lambda r: r.config.dtype == "fp32" or _is_sharded(r) or _is_data_parallel_alone(r),
                "without shards it has no mixed precision under tp or pp",
                dtype="fp32",
            ),
        ),
    )  # fmt: skip

    def about_model(self, request: ExportRequest) -> Refusal | None:
        """Llama alone."""
        return values.about_model(request) or super().about_model(request)

    def write(self, request: ExportRequest) -> Export:
        """The TOML and a script that runs it."""
        title = head(request, self.trainer, self.versions)
        flavor = values.flavor(request.model)
        model: dict[str, Any] = {"name": "llama3"} | ({"flavor": flavor} if flavor else {})
        document = {
            "model": model,
            "training": values.training_values(request),
            "parallelism": values.parallelism_values(request, ("norm", "output")),
            "activation_checkpoint": {"mode": request.config.recompute},
            "compile": {"enable": request.config.compile},
            "optimizer": {"name": _OPTIMIZERS[request.training.optimizer],
                          "lr": request.training.learning_rate},
        }  # fmt: skip
        notes = [] if flavor else [f"register a flavor of llama3 for {request.model.name}: "
                                   "torchtitan has none of its shape"]  # fmt: skip
        program = f'-m torchtitan.train --job.config_file "$(dirname "$0")/{CONFIG}"'
        return Export(
            files={
                CONFIG: title + to_toml_text(document),
                "run.sh": torchrun_script(request, title, program),
            },
            notes=notes,
        )


_OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
