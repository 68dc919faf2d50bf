"""Batch arithmetic: honest counters are never doubted, dishonest ones are."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.adapters.batch import Counter, Fact, expected, mismatch
from tuner.adapters.figures import Figure, parse
from tuner.testing.jobs import tiny_job

_PRINTED: dict[str, Callable[[int], Figure]] = {
    "whole": lambda count: parse(str(count)),
    "short": lambda count: parse(f"{float(f'{count:.3g}'):.0f}", 3),
    "exponent": lambda count: parse(f"{count:.6E}"),
}


@pytest.mark.parametrize("form", _PRINTED)
@given(start=st.integers(0, 10**6), gaps=st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_an_honest_counter_agrees(form: str, start: int, gaps: list[int]) -> None:
    job = tiny_job()
    batch, step = job.training.global_batch_size, 1
    counter = Counter("global_batch_size", "'samples'")
    assert counter.at(step, _PRINTED[form](start)) is None
    for gap in gaps:
        step += gap
        fact = counter.at(step, _PRINTED[form](start + (step - 1) * batch))
        assert fact is not None
        assert mismatch(job, fact) is None, fact


@given(real=st.integers(1, 100), steps=st.integers(1, 50))
def test_a_counter_of_another_batch_does_not(real: int, steps: int) -> None:
    job = tiny_job()
    counter = Counter("global_batch_size", "'samples'")
    counter.at(1, Figure(float(real)))
    fact = counter.at(1 + steps, Figure(float(real * (1 + steps))))
    assert fact is not None
    failure = mismatch(job, fact)
    assert (failure is None) == (real == job.training.global_batch_size)
    if failure is not None:
        assert f"says {real} sequences per step" in failure.message
        assert f"means {job.training.global_batch_size}" in failure.message


def test_a_line_that_comes_again_says_nothing_new() -> None:
    counter = Counter("global_batch_size", "'samples'")
    counter.at(1, Figure(8.0))
    assert counter.at(2, Figure(16.0)) is not None
    assert counter.at(2, Figure(99.0)) is None
    assert counter.at(1, Figure(99.0)) is None


@pytest.mark.parametrize("name", expected(tiny_job()))
def test_every_fact_is_compared_and_named(name: str) -> None:
    job = tiny_job()
    wanted = expected(job)[name]
    assert mismatch(job, Fact(name, Figure(float(wanted)), "its header")) is None
    failure = mismatch(job, Fact(name, Figure(wanted + 1.0), "its header"))
    assert failure is not None
    assert f"says {wanted + 1} " in failure.message
    assert failure.message.endswith(f"(its header), but the job means {wanted}")
