"""Every pattern takes its own example, and the page lists them all."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.contract import Phase
from tuner import registry
from tuner.adapters.base import Pattern
from tuner.adapters.failures import FAILURE_PATTERNS, FailurePattern, failure_in
from tuner.adapters.log_lines import clean
from tuner.adapters.page import PAGE

ROOT = Path(__file__).parents[3]
_EXAMPLES = [
    pytest.param(name, pattern, id=f"{name}-{pattern.name}")
    for name in registry.ADAPTERS
    for pattern in registry.load("adapters", name).patterns
]


@pytest.mark.parametrize(("name", "pattern"), _EXAMPLES)
def test_an_example_is_taken_by_its_own_pattern(name: str, pattern: Pattern) -> None:
    line = clean(pattern.example)
    adapter = registry.load("adapters", name)
    takers = [item.name for item in adapter.patterns if item.regex.search(line.text)]
    assert takers[:1] == [pattern.name]
    assert callable(getattr(adapter, f"on_{pattern.name}"))


@pytest.mark.parametrize(("name", "pattern"), _EXAMPLES)
def test_no_example_is_a_failure(name: str, pattern: Pattern) -> None:
    assert failure_in(clean(pattern.example), Phase.INIT, None) is None


@pytest.mark.parametrize("pattern", FAILURE_PATTERNS, ids=lambda pattern: pattern.source)
def test_an_example_of_a_failure_has_its_kind(pattern: FailurePattern) -> None:
    found = failure_in(clean(pattern.example), Phase.MEASURE, 3)
    assert found is not None
    assert (found.failure, found.step) == (pattern.kind, 3)


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]:[W1201 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was "
        "not called before program exit, which can leak resources.",
        "UserWarning: The given buffer is not writable",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        " validation loss at iteration 10 | lm loss value: 9.1E+00 | lm loss PPL: 9.0E+03 | ",
        "NCCL version 2.27.5+cuda12.9",
        "loss scale: 4294967296.0",
        "memory headroom 12 GiB, out of 79 GiB",
    ],
)
def test_usual_lines_are_no_failures(text: str) -> None:
    assert failure_in(clean(text), Phase.MEASURE, None) is None


def test_the_rank_of_a_failure_is_the_one_that_speaks() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    for prefix in ("[rank3]: ", "[default3]:", "3: ", "[1,3]<stderr>: "):
        found = failure_in(clean(prefix + text), Phase.INIT, None)
        assert found is not None
        assert found.rank == 3, prefix


def test_every_adapter_has_logs_and_a_name(logs: Any) -> None:
    assert set(logs.runs) == set(registry.ADAPTERS)
    for name in registry.ADAPTERS:
        adapter = logs.adapter_of(name)
        assert adapter.name == name
        assert adapter.needs
        assert adapter.timing
        assert adapter.memory


def test_the_page_is_in_step() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner.adapters.page", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_page_lists_every_adapter_and_version() -> None:
    text = (ROOT / PAGE).read_text()
    for name in registry.ADAPTERS:
        adapter = registry.load("adapters", name)
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert adapter.versions in section
        assert all(pattern.example in section for pattern in adapter.patterns)
