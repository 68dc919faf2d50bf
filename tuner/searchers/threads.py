"""One thread for the searcher's linear algebra."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped,unused-ignore]

    return ThreadpoolController()


def single_threaded() -> AbstractContextManager[Any]:
    """Keep BLAS to one thread for a while.

    The matrices are small, and on a machine whose cores run trials at the same time, threads that
    spin for each other take a hundred times longer than the arithmetic.
    """
    limited: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limited
