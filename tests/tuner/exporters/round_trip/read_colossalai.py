"""Call the module's make_plugin with Colossal-AI's own plugins, and read back what they keep."""

import importlib.util
from typing import Any

import torch._inductor.codecache  # torch looks for triton: before the stand-in
import torch.distributed as dist
from harness import main, precision
from stand_ins import stand_in_for
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import PreTrainedModel  # noqa: F401 -- before the stand-ins
from transformers.models.bloom.modeling_bloom import BloomPreTrainedModel  # noqa: F401

stand_in_for("triton", "bitsandbytes", "galore_torch", "flash_attn", "apex", "diffusers")
from colossalai.booster.plugin import GeminiPlugin, MoeHybridParallelPlugin  # noqa: E402


def read(folder, world: int) -> dict[str, Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    spec = importlib.util.spec_from_file_location("plugin", folder / "tuned_plugin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plugin = module.make_plugin()
    assert world == module.WORLD_SIZE
    values = {
        "micro_batch_size": module.MICRO_BATCH_SIZE,
        "num_microbatches": module.GRADIENT_ACCUMULATION_STEPS,
        "global_batch_size": module.GLOBAL_BATCH_SIZE,
        "dp": plugin.dp_size,
        "tp": plugin.tp_size,
        "recompute": "full" if module.GRADIENT_CHECKPOINTING else "none",
    }
    dist.destroy_process_group()
    if isinstance(plugin, GeminiPlugin):
        split = plugin.extra_dp_size > 1
        return values | {
            "zero_stage": 3,
            "zero_shard_degree": plugin.zero_size if split else 0,
            "dtype": precision(str(plugin.gemini_config["mixed_precision"])),
            "optimizer_offload": plugin.gemini_config["offload_optim_frac"] > 0,
            "sequence_parallel": plugin.shard_config.enable_sequence_parallelism,
        }
    mode = plugin.sequence_parallelism_mode if plugin.enable_sequence_parallelism else None
    stages = plugin.stage_manager
    values |= {
        "pp": plugin.pp_size,
        "cp": plugin.sp_size if mode == "ring_attn" else 1,
        "sequence_parallel": mode == "split_gather",
        "zero_stage": plugin.zero_stage,
        "dtype": plugin.precision,
        "optimizer_offload": plugin.zero_config["cpu_offload"],
        "virtual_stages": stages.num_model_chunks if plugin.pp_size > 1 else 1,
    }
    if plugin.zero_stage and plugin.precision != "fp32":
        values["reduce_dtype"] = precision(str(plugin.zero_config["communication_dtype"]))
    if plugin.pp_size > 1:
        kinds = {
            "OneForwardOneBackwardSchedule": "1f1b",
            "InterleavedSchedule": "interleaved",
            "ZeroBubbleVPipeScheduler": "zbv",
        }
        values["pipeline_schedule"] = kinds[type(plugin.scheduler).__name__]
        if plugin.scheduler.microbatch_size is None:
            assert plugin.scheduler.num_microbatch == module.GRADIENT_ACCUMULATION_STEPS
        else:
            assert plugin.scheduler.microbatch_size == module.MICRO_BATCH_SIZE
    if isinstance(plugin, MoeHybridParallelPlugin):
        values["ep"] = plugin.ep_size
    return values


assert torch  # the module may name torch's types
main(read)
