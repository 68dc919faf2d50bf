"""Our own trainer: the job file that `trainer.worker` reads."""

from collections.abc import Mapping
from typing import ClassVar

from search_spaces.parallel_config import KNOBS
from trainer.contract import CONTRACT_VERSION, TrialJob
from tuner.exporters.base import BaseExporter, Knob, goes
from tuner.exporters.scripts import head, torchrun_script
from tuner.ports import Export, ExportRequest, Refusal

JOB = "job.json"


class OwnExporter(BaseExporter):
    """The kernel that measured the trial."""

    name = "tuner"
    trainer = "tuner's own trainer"
    versions = f"contract {CONTRACT_VERSION}"
    round_trip = "trainer.contract.TrialJob"
    knobs: ClassVar[Mapping[str, Knob]] = {name: goes(f"config.{name}") for name in KNOBS}

    def about_model(self, request: ExportRequest) -> Refusal | None:
        """It runs all that a study can hold."""
        return None

    def write(self, request: ExportRequest) -> Export:
        """The job and a script that runs it; the reports go beside them."""
        job = TrialJob(
            trial_id=request.config.config_key,
            model=request.model,
            training=request.training,
            config=request.config,
            device_kind=request.cluster.device_kind,
            threads_per_rank=request.cluster.threads_per_device,
            peak_flops_per_s=request.cluster.peak_flops_per_s.get(request.config.dtype),
        )
        title = head(request, self.trainer, self.versions)
        program = f'-m trainer.worker --job "$(dirname "$0")/{JOB}"'
        return Export(
            files={
                JOB: job.model_dump_json(indent=2) + "\n",
                "run.sh": torchrun_script(request, title, program),
            }
        )
