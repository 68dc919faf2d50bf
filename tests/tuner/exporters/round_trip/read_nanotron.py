"""Read the sections that nanotron 0.4 shares with the main branch by its own dataclasses."""

import sys
import types
from typing import Any
from unittest.mock import MagicMock

import yaml
from harness import main, precision
from stand_ins import stand_in_for

stand_in_for("flash_attn", "apex", "functorch", "triton")
# In 0.4 this module and nanotron.config import each other, whichever comes first.
logging = types.ModuleType("nanotron.logging")
logging.__getattr__ = lambda name: MagicMock()
sys.modules["nanotron.logging"] = logging
from nanotron.config.config import OptimizerArgs, TokensArgs  # noqa: E402, F401
from nanotron.config.parallelism_config import ParallelismArgs  # noqa: E402
from nanotron.config.utils_config import cast_str_to_torch_dtype  # noqa: E402


def read(folder, world: int) -> dict[str, Any]:
    document = yaml.safe_load((folder / "nanotron.yaml").read_text())
    parallelism = document["parallelism"]
    recompute = parallelism.pop("recompute_layer")  # of newer revisions
    found = ParallelismArgs(**parallelism)
    tokens = TokensArgs(**document["tokens"])
    assert found.dp * found.tp * found.pp == world
    optimizer = document["optimizer"]
    schedules = {"AllForwardAllBackward": "gpipe", "OneForwardOneBackward": "1f1b"}
    dtype = precision(str(cast_str_to_torch_dtype(document["model"]["dtype"])))
    in_fp32 = optimizer["accumulate_grad_in_fp32"] or dtype == "fp32"
    return {
        "dp": found.dp,
        "tp": found.tp,
        "pp": found.pp,
        "ep": found.expert_parallel_size,
        "pipeline_schedule": schedules[
            type(found.pp_engine).__name__.removesuffix("PipelineEngine")
        ],
        "sequence_parallel": found.tp_mode.name == "REDUCE_SCATTER",
        "micro_batch_size": tokens.micro_batch_size,
        "recompute": "full" if recompute else "none",
        "zero_stage": optimizer["zero_stage"],
        "dtype": dtype,
        "reduce_dtype": "fp32" if in_fp32 else "bf16",
        "sequence_length": tokens.sequence_length,
        "num_microbatches": tokens.batch_accumulation_per_replica,
    }


main(read)
