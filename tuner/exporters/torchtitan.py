"""torchtitan from 0.3.0 on: a Python module with the config function."""

from collections.abc import Mapping
from typing import ClassVar

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
{assignments}    config.activation_checkpoint = {checkpoint}
    return config
'''


class TorchtitanExporter(BaseExporter):
    """torchtitan since its configs are Python objects."""

    name = "torchtitan"
    trainer = "torchtitan"
    versions = "0.3.0"
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
        config = request.config
        parallelism = values.parallelism_values(request, ("norm", "lm_head"))
        sections = {
            # CUDA graphs, which it turns on by default, do not go with pipelines.
            "training": values.training_values(request) | {"disable_cuda_graphs": config.pp > 1},
            "parallelism": parallelism
            | ({"enable_sequence_parallel": config.sequence_parallel} if config.tp > 1 else {}),
            "compile": {"enable": config.compile},
        }
        full = config.recompute == "full"
        text = _BODY.format(
            base=f"llama3_{(flavor or 'debugmodel').lower()}",
            assignments="".join(
                f"    config.{section}.{key} = {value!r}\n".replace("'", '"')
                for section, keys in sections.items()
                for key, value in keys.items()
            ),
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
