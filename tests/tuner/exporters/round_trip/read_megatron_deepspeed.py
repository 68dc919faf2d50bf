"""Read ds_config.json by DeepSpeed, and compare it with the argument file beside it."""

import json
from typing import Any

from harness import main, words
from read_deepspeed import engine_values


def read(folder, world: int) -> dict[str, Any]:
    given = words(folder / "megatron_arguments.txt")
    flags = dict(zip(given, [*given[1:], ""], strict=True))
    tensor = int(flags["--tensor-model-parallel-size"])
    stages = int(flags["--pipeline-model-parallel-size"])
    document = json.loads((folder / "ds_config.json").read_text())
    values = engine_values(document, world // (tensor * stages))
    assert int(flags["--micro-batch-size"]) == values["micro_batch_size"]
    assert int(flags["--global-batch-size"]) == values["global_batch_size"]
    assert int(flags["--zero-stage"]) == values["zero_stage"]
    assert ("--no-pipeline-parallel" in flags) == (stages == 1)
    return values | {"tp": tensor, "pp": stages}


main(read)
