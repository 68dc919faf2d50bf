"""The hook for a trainer of one's own: three lines, after which `tuner` can measure it.

    from trainer import report                             # or this file, copied beside the script

    run = report.start()                                   # once per rank, before the first step
    run.step(loss=loss, sequences=len(batch))              # on every rank, after every update

Nothing but Python's own library is used, and outside of a trial nothing is done, so that a script
keeps the lines for good. Where the script runs in an environment without this package (a container
of Megatron, say), this one file can be copied and imported under any name.
"""

import importlib
import json
import os
import socket
import sys
import time
from typing import Any

_FOLDER = "TUNER_FOLDER"
_NUM_STEPS = "TUNER_NUM_STEPS"
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class Run:
    """The trial that this process is a rank of; outside of a trial its methods do nothing."""

    def __init__(self) -> None:
        folder = os.environ.get(_FOLDER, "")
        self.rank = _number(_RANK_VARIABLES, 0)
        self.num_steps = int(os.environ.get(_NUM_STEPS, "0"))
        self._step = 0
        self._file: int | None = None
        if folder:
            path = os.path.join(folder, f"report.{self.rank}.jsonl")  # noqa: PTH118 - plain text
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._write(
            kind="hook_start", rank=self.rank, world_size=_number(_SIZE_VARIABLES, 1),
            hostname=socket.gethostname(), versions=_versions(), time_s=time.time(),
        )  # fmt: skip

    @property
    def is_trial(self) -> bool:
        """Whether a tuner listens."""
        return self._file is not None

    def step(
        self,
        *,
        loss: Any = None,
        sequences: int | None = None,
        tokens: int | None = None,
        micro_batches: int | None = None,
    ) -> bool:
        """Say that an optimizer step has ended, with what this rank ran since the last one.

        The counts are compared with the trial's: they should come from the data that was really
        run. Ranks that work on the same sequences (tensor, pipeline, context parallelism) all say
        the same.

        Args:
            loss: Loss, a number or a tensor of one.
            sequences: Sequences that this rank ran.
            tokens: Tokens that this rank ran.
            micro_batches: Forward passes that they took (gradient accumulation).

        Returns:
            Whether the tuner has seen enough steps; the script may end then, and else is ended.
        """
        if self._file is None:
            return False
        _wait_for_device()
        self._step += 1
        self._write(
            kind="hook_step", rank=self.rank, step=self._step, time_s=time.time(),
            loss=None if loss is None else str(float(loss)), sequences=sequences, tokens=tokens,
            micro_batches=micro_batches, peak_memory_bytes=_peak_memory_bytes(),
        )  # fmt: skip
        return 0 < self.num_steps <= self._step

    def _write(self, **line: Any) -> None:
        if self._file is not None:
            os.write(self._file, (json.dumps(line) + "\n").encode())


def start() -> Run:
    """Begin to report; call it once on every rank, before the first step."""
    return Run()


def transformers_callback() -> Any:
    """A callback that reports for `transformers.Trainer(callbacks=[transformers_callback()])`.

    It counts the micro-batches that were really accumulated, and ends training once the tuner has
    seen enough.
    """
    base: Any = importlib.import_module("transformers").TrainerCallback

    class Callback(base):
        """Reports every optimizer step."""

        def __init__(self) -> None:
            self.run: Run | None = None
            self.micro_batches, self.loss = 0, None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Begin to report."""
            self.run = start()

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Count a micro-batch that no update followed."""
            self.micro_batches += 1

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
            """Keep the loss for the next step's line."""
            self.loss = logs.get("loss", self.loss)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Report an update."""
            count, self.micro_batches = self.micro_batches + 1, 0
            is_enough = self.run is not None and self.run.step(
                loss=self.loss, sequences=count * args.train_batch_size, micro_batches=count
            )
            control.should_training_stop = control.should_training_stop or is_enough

    return Callback()


def _number(variables: tuple[str, ...], default: int) -> int:
    texts = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in texts if text.isdigit()), default)


def _torch() -> Any:
    """Torch where the script has imported it; it is never imported for the hook's sake."""
    return sys.modules.get("torch")


def _has_accelerator(torch: Any) -> bool:
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()


def _wait_for_device() -> None:
    """A step has ended when the device has done its work, not when it was queued."""
    torch = _torch()
    if _has_accelerator(torch):
        torch.cuda.synchronize()


def _peak_memory_bytes() -> int:
    torch = _torch()
    if _has_accelerator(torch):
        return int(torch.cuda.max_memory_allocated())
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1024 if sys.platform == "linux" else 1)


def _versions() -> dict[str, str]:
    torch = _torch()
    found = {"python": sys.version.split()[0]}
    return found if torch is None else {**found, "torch": str(torch.__version__)}
