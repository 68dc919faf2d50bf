"""A launcher: it needs the methods of `tuner.Launcher`; this one has them from ours."""

from pathlib import Path
from typing import Any

from tuner.launchers.simulated import SimulatedLauncher


class SharedNetworkLauncher(SimulatedLauncher):
    """Simulated devices whose network is shared, so that steps vary more than usual.

    The parameters besides `num_devices` and `run_folder` are the launcher's options.
    """

    name = "shared-network"

    def __init__(
        self, *, num_devices: int | None, run_folder: Path, load: float = 0.1, **options: Any
    ) -> None:
        options.setdefault("cluster", "dgx-a100-80")
        super().__init__(num_devices=num_devices, run_folder=run_folder, noise=load, **options)
