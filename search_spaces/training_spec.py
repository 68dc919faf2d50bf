"""`TrainingSpec`: the recipe that stays fixed while the parallel configuration is tuned."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from search_spaces.parallel_config import Precision

Workload = Literal["training", "inference"]


class TrainingSpec(BaseModel):
    """Sequence length, global batch and precision of the job that the user wants to run.

    `dtype` is the recipe's precision: the default of the `dtype` knob, which a study may also
    search over. `workload="inference"` measures forward passes alone (prefill throughput).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sequence_length: int = Field(default=1024, ge=1, description="tokens per sequence")
    global_batch_size: int = Field(default=8, ge=1, description="sequences per optimizer step")
    dtype: Precision = Field(default="fp32", description="precision of the recipe")
    workload: Workload = Field(default="training", description="training or inference")
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description="optimizer")
    learning_rate: float = Field(default=1e-4, gt=0, description="learning rate of the optimizer")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes over all replicas."""
        return self.sequence_length * self.global_batch_size
