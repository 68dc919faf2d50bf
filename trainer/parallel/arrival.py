"""`Arrival`: a reduction of gradients that is still under way."""

from torch import Tensor

from trainer.parallel.collectives import Pending


class Arrival:
    """A reduction under way, and where its result goes."""

    def __init__(self, pending: Pending, source: Tensor, target: Tensor, *, adds: bool) -> None:
        self._pending: Pending | None = pending
        self._source: Tensor | None = source
        self._target, self._adds = target, adds

    def wait(self) -> None:
        """Wait, store or add the result, and let go of the buffers; a second call is free."""
        pending, source = self._pending, self._source
        if pending is None or source is None:
            return
        self._pending = self._source = None
        pending.wait()
        if self._adds:
            self._target.add_(source)
        elif source.data_ptr() != self._target.data_ptr():
            self._target.copy_(source)
