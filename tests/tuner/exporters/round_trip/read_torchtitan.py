"""Build the config by torchtitan 0.3.0's own manager."""

import sys
from typing import Any

from harness import main
from read_torchtitan_toml import knobs
from torchtitan.config import ConfigManager


def read(folder, world: int) -> dict[str, Any]:
    sys.modules.pop("tuned", None)
    sys.path.insert(0, str(folder))
    config = ConfigManager().parse_args(["--module", "tuned", "--config", "tuned"])
    sys.path.remove(str(folder))
    policy = config.activation_checkpoint
    parallel = config.parallelism
    return knobs(config, world, int((folder / "num_layers").read_text())) | {
        "recompute": "none" if policy is None else type(policy).__qualname__.split("AC")[0].lower(),
        "sequence_parallel": parallel.tensor_parallel_degree > 1
        and parallel.enable_sequence_parallel,
    }


main(read)
