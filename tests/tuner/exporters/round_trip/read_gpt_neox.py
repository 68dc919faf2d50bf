"""Read the keys of neox.yml that GPT-NeoX hands on to DeepSpeed."""

from typing import Any

import yaml
from harness import main, precision
from read_deepspeed import engine_values

_ENGINE = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "zero_optimization", "bf16", "fp16", "data_types",
)  # fmt: skip


def read(folder, world: int) -> dict[str, Any]:
    document = yaml.safe_load((folder / "neox.yml").read_text())
    stages, tensor = max(1, document["pipe_parallel_size"]), document["model_parallel_size"]
    assert document["num_nodes"] * document["num_gpus"] == world
    engine = {key: document[key] for key in _ENGINE if key in document}
    values = engine_values(
        engine | document.get("deepspeed_extra_args", {}), world // (stages * tensor)
    )
    assert precision(document["precision"]) == values["dtype"]
    return values | {"tp": tensor, "pp": stages}


main(read)
