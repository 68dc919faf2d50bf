"""Memory that a stack holds because its host runs ahead of the device, and what a lack of it costs.

A collective that runs beside compute keeps its buffers until the device has passed it. The host
meanwhile issues the layers to come, whose buffers cannot be those same bytes: the allocator takes
more. How many depends on how far the host gets, up to the thousand or so launches that a device
queues: some fifty gathered activations without a pipeline. Messages of a pipeline hold the host
back, to a few per micro-batch in flight; a host that is slower than its device needs none.

When the device has no room for all that, the allocator waits for it and returns what is free: the
run goes on with what it needs, but slower.
"""

from typing import NamedTuple

import numpy as np

from search_spaces.cost_models.constants import Constants
from search_spaces.cost_models.hardware import Hardware
from search_spaces.cost_models.points import Column, Points

BUFFERS = 55.0
"""Gathered activations of one micro-batch that the host's lead holds without a pipeline."""
BUFFERS_PER_MICRO_BATCH = 5.5
"""The same per micro-batch in flight where the model is cut into stages."""
USABLE = 0.85
"""Share of a device's memory that is left to the allocator without a search for free blocks."""
EDGE = 0.06
"""Over this share of the memory the lead's buffers give way."""
NEGLIGIBLE = 1e-3
"""Constants below this are off."""


class RunAhead(NamedTuple):
    """Bytes that the host's lead reserves on a rank, and the room for them."""

    single: Column
    """Without a pipeline."""
    per_micro_batch: Column
    """Per micro-batch in flight of a pipeline."""
    room_bytes: float

    def wanted(self, waiting: Column) -> Column:
        """Bytes of a rank with so many micro-batches in flight, if there were room for all."""
        return self.single + self.per_micro_batch * waiting

    def held(self, needed: Column, waiting: Column) -> Column:
        """What is left of them beside what the rank needs."""
        wanted = self.wanted(waiting)
        over = (needed + wanted - self.room_bytes) / (EDGE * self.room_bytes)
        return np.asarray(wanted / (1.0 + np.exp(np.clip(over, -50.0, 50.0))))


def run_ahead(points: Points, hardware: Hardware, constants: Constants) -> RunAhead | None:
    """Of stacks that gather activations beside compute; none where no point has such buffers."""
    most = max(np.max(constants.run_ahead_memory), np.max(constants.run_ahead_stage_memory))
    if points.is_kernel or most < NEGLIGIBLE:
        return None
    gathers = np.asarray(points.sequence_parallel) * np.asarray(points.is_training)
    buffer = points.tokens * points.hidden_size * points.dtype_bytes * (1.0 - 1.0 / points.tp)
    buffer = gathers * buffer
    is_whole = np.asarray(points.pp) <= 1
    return RunAhead(
        single=np.where(is_whole, BUFFERS * constants.run_ahead_memory * buffer, 0.0),
        per_micro_batch=np.where(
            is_whole, 0.0, BUFFERS_PER_MICRO_BATCH * constants.run_ahead_stage_memory * buffer
        ),
        room_bytes=USABLE * hardware.memory_bytes,
    )


SLOWEST = 5.0
"""Factor on the step time that a lack of memory costs at most."""


def pressure(wanted_bytes: Column, hardware: Hardware, constants: Constants) -> Column:
    """Factor on the step time of runs that want more memory than the device has."""
    room = USABLE * hardware.memory_bytes
    factor = np.maximum(wanted_bytes / room, 1.0) ** constants.pressure
    return np.asarray(np.minimum(factor, SLOWEST))
