"""Runs one rank in a fresh interpreter: `python -P -m tuner.launchers.rank_main ENTRY ARGUMENTS`.

The `spawn` start method, for libraries that cannot be forked after they were imported.
"""

import faulthandler
import importlib
import signal
import sys
from pathlib import Path

from tuner.launchers.fork_server import stack_file


def main(arguments: list[str]) -> int:
    """Call `module:function` with folder, rank, world size, local rank and init method."""
    entry, folder, rank, world_size, local_rank, init_method = arguments
    stacks = (Path(folder) / stack_file(int(rank))).open("w")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    module, function = entry.split(":")
    run_rank = getattr(importlib.import_module(module), function)
    code: int = run_rank(folder, int(rank), int(world_size), int(local_rank), init_method)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
