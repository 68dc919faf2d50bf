"""Faults on request, so that tests can see how the machinery around a trial takes them."""

import os
import signal
import time

import torch

from trainer.contract import FaultSpec, Phase
from trainer.errors import InjectedFaultError

_STEP_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class FaultInjector:
    """Makes one fault happen on one rank when its phase (and step, inside steps) begins."""

    def __init__(self, fault: FaultSpec | None, rank: int, device: torch.device) -> None:
        self._fault = fault if fault is not None and fault.rank == rank else None
        self._device = device
        self.poisons_loss = False

    def enter(self, phase: Phase, step: int | None) -> None:
        """Called at the start of every phase.

        Raises:
            InjectedFaultError: for `crash`; `oom` raises what the allocator raises.
        """
        fault = self._fault
        if fault is None or fault.phase != phase:
            return
        if phase in _STEP_PHASES and step != fault.step:
            return
        self._fault = None
        self._strike(fault)

    def _strike(self, fault: FaultSpec) -> None:
        if fault.kind == "oom":
            torch.empty(2**50, dtype=torch.uint8, device=self._device)
        elif fault.kind == "crash":
            raise InjectedFaultError("a crash was injected", hint="the job's `fault` asked for it")
        elif fault.kind == "hang":
            while True:
                time.sleep(1)
        elif fault.kind == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "exit_zero":
            os._exit(0)
        else:
            self.poisons_loss = True
