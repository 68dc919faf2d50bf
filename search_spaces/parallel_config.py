"""`ParallelConfig`: one point of the space, with a canonical form and a stable key."""

import hashlib
import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

TpLayout = Literal["1d", "2d", "2.5d"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"]
Recompute = Literal["none", "selective", "full"]
Precision = Literal["fp32", "bf16", "fp16"]
ReduceDtype = Literal["fp32", "bf16"]


class ParallelConfig(BaseModel):
    """How one model is laid out on the devices and run; every knob that the tuner may turn.

    The world size is `tp * cp * dp * pp`. `tp` is the whole tensor-parallel group: `q * q` ranks
    under `tp_layout="2d"` and `tp_depth * q * q` under `"2.5d"`. Expert parallelism takes its ranks
    out of `dp`, so `ep` divides `dp`. Values are checked here only by type and sign; whether a
    point is legal for a model on a cluster is the business of `search_spaces.constraints`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dp: int = Field(default=1, ge=1, description="data-parallel replicas")
    tp: int = Field(default=1, ge=1, description="tensor-parallel ranks (all mesh axes together)")
    tp_layout: TpLayout = Field(default="1d", description="1d Megatron, 2d SUMMA, 2.5d SUMMA")
    tp_depth: int = Field(default=1, ge=1, description="depth of the 2.5d mesh")
    sequence_parallel: bool = Field(default=False, description="shard norms over sequence (1d)")
    cp: int = Field(default=1, ge=1, description="context-parallel ranks")
    ep: int = Field(default=1, ge=1, description="expert-parallel ranks, a divisor of dp")
    pp: int = Field(default=1, ge=1, description="pipeline stages per replica, in ranks")
    virtual_stages: int = Field(default=1, ge=1, description="model chunks per pipeline rank")
    pipeline_schedule: ScheduleName = Field(default="1f1b", description="order of the actions")
    stage_layers: tuple[int, ...] | None = Field(
        default=None, description="explicit layers per stage (pp * virtual_stages of them)"
    )
    micro_batch_size: int = Field(default=1, ge=1, description="sequences per micro-batch")
    zero_stage: int = Field(default=0, ge=0, le=3, description="ZeRO stage of the dp group")
    zero_shard_degree: int = Field(
        default=0, ge=0, description="ranks that share one shard set; 0 = the whole dp group (HSDP)"
    )
    recompute: Recompute = Field(default="none", description="activation recomputation")
    recompute_layers: int | None = Field(
        default=None, ge=0, description="layers per stage that recompute; none = all of them"
    )
    dtype: Precision = Field(default="fp32", description="compute precision")
    reduce_dtype: ReduceDtype = Field(default="fp32", description="gradient reduction precision")
    compile: bool = Field(default=False, description="torch.compile the layers")
    optimizer_offload: bool = Field(default=False, description="optimizer states in host memory")

    @property
    def world_size(self) -> int:
        """Ranks that this configuration occupies."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def num_stages(self) -> int:
        """Pipeline stages over all ranks and virtual stages."""
        return self.pp * self.virtual_stages

    def canonical(self) -> dict[str, Any]:
        """Knobs that differ from their defaults, by name; a knob added later changes no old key."""
        dumped = self.model_dump(mode="json")
        defaults = type(self)().model_dump(mode="json")
        return {name: dumped[name] for name in sorted(dumped) if dumped[name] != defaults[name]}

    @property
    def config_key(self) -> str:
        """16 hex digits that identify the point, equal for equal knobs in every process."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def short(self) -> str:
        """One line for people, e.g. `tp2 pp1 dp2 mbs4 zero1`; default knobs are left out."""
        parts = [f"tp{self.tp}", f"pp{self.pp}", f"dp{self.dp}", f"mbs{self.micro_batch_size}"]
        extras = {
            "cp": f"cp{self.cp}", "ep": f"ep{self.ep}", "tp_layout": self.tp_layout,
            "tp_depth": f"depth{self.tp_depth}", "sequence_parallel": "sp",
            "virtual_stages": f"vs{self.virtual_stages}",
            "pipeline_schedule": self.pipeline_schedule, "zero_stage": f"zero{self.zero_stage}",
            "zero_shard_degree": f"shard{self.zero_shard_degree}",
            "recompute": f"recompute-{self.recompute}",
            "recompute_layers": f"recompute_layers{self.recompute_layers}", "dtype": self.dtype,
            "reduce_dtype": f"reduce-{self.reduce_dtype}", "compile": "compile",
            "optimizer_offload": "offload",
            "stage_layers": "stages" + "/".join(map(str, self.stage_layers or ())),
        }  # fmt: skip
        changed = self.canonical()
        return " ".join(parts + [text for name, text in extras.items() if name in changed])

    def with_knobs(self, **knobs: Any) -> Self:
        """A copy with some knobs replaced, checked like a new one."""
        return type(self).model_validate({**self.model_dump(), **knobs})


KNOBS: tuple[str, ...] = tuple(ParallelConfig.model_fields)
