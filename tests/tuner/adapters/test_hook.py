"""`trainer.report` and what is made of its lines."""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer import hook
from trainer.contract import FailureKind, HookStart, HookStep, parse_hook_line


def lines_of(rank: int, steps: int, **changes: Any) -> list[str]:
    """What a rank writes that takes a second a step; rank 1 is later by a tenth."""
    start = {"kind": "hook_start", "rank": rank, "world_size": 2, "time_s": 100.0}
    step = {"rank": rank, "loss": "2.5", "sequences": 16, "tokens": 16 * 128, "micro_batches": 4}
    found: list[dict[str, Any]] = [start]
    for number in range(1, steps + 1):
        time_s = 100.0 + number + rank / 10
        found.append({"kind": "hook_step", "step": number, "time_s": time_s, **step, **changes})
    return [json.dumps(line) for line in found]


def test_a_step_lasts_until_the_last_rank_ends_it(logs: Any) -> None:
    adapter = logs.adapter_of("report")
    adapter.feed_reports(lines_of(0, 8))
    assert adapter.output().steps == []
    adapter.feed_reports(lines_of(1, 8, peak_memory_bytes=3 << 30))
    result = adapter.output().result
    assert result is not None
    assert result.step_time_s == pytest.approx(1.0)
    assert (result.final_loss, result.peak_memory_bytes) == (2.5, 3 << 30)
    assert adapter.output().steps[0].step_time_s == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequences": 8}, "16 sequences per step"),
        ({"tokens": 1}, "2 tokens per step"),
        ({"micro_batches": 2}, "2 micro-batches"),
    ],
)
def test_counts_that_are_not_the_job_s_are_caught(
    logs: Any, changes: dict[str, int], words: str
) -> None:
    adapter = logs.adapter_of("report")
    for rank in (0, 1):
        adapter.feed_reports(lines_of(rank, 2, **changes))
    failure = adapter.output().failures[0]
    assert failure.failure is FailureKind.IMPLAUSIBLE
    assert words in failure.message


def test_steps_without_sequences_are_not_believed(logs: Any) -> None:
    adapter = logs.adapter_of("report")
    for rank in (0, 1):
        adapter.feed_reports(lines_of(rank, 8, sequences=None, tokens=None))
    assert "never says how large the batch was" in adapter.output().failures[0].message


def test_ranks_that_share_sequences_count_once(logs: Any) -> None:
    job = logs.job_of("report")
    config = job.config.with_knobs(dp=1, tp=2, micro_batch_size=8)
    adapter = logs.adapter_of("report", job.model_copy(update={"config": config}))
    for rank in (0, 1):
        adapter.feed_reports(lines_of(rank, 8, sequences=32, tokens=32 * 128))
    assert adapter.output().result is not None


def test_a_loss_that_is_no_number_is_a_divergence(logs: Any) -> None:
    adapter = logs.adapter_of("report")
    for rank in (0, 1):
        adapter.feed_reports(lines_of(rank, 8, loss="nan"))
    output = adapter.output()
    assert output.failures[0].failure is FailureKind.DIVERGED
    assert all(step.loss is None for step in output.steps)


def test_the_hook_counts_with_every_adapter(logs: Any) -> None:
    """Where a script reports, its own bar does not count."""
    adapter = logs.read("hf-trainer/transformers-5.log")
    for rank in (0, 1):
        adapter.feed_reports(lines_of(rank, 8))
    assert adapter.output().result is not None


def test_the_hook_writes_what_the_contract_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "TUNER_FOLDER": str(tmp_path), "TUNER_NUM_STEPS": "2", "RANK": "1", "WORLD_SIZE": "2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, text)
    run = hook.start()
    assert run.is_trial
    assert [run.step(loss=1.5, sequences=4, tokens=64, micro_batches=2) for _ in "ab"] == [
        False, True,
    ]  # fmt: skip
    lines = [
        parse_hook_line(text) for text in (tmp_path / "report.1.jsonl").read_text().splitlines()
    ]
    start, first = lines[0], lines[1]
    assert isinstance(start, HookStart)
    assert (start.rank, start.world_size) == (1, 2)
    assert isinstance(first, HookStep)
    assert (first.step, first.loss, first.sequences, first.tokens) == (1, 1.5, 4, 64)
    assert first.peak_memory_bytes > 1 << 20


def test_outside_of_a_trial_the_hook_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_FOLDER", raising=False)
    run = hook.start()
    assert not run.is_trial
    assert run.step(loss=object()) is False


def test_the_hook_can_be_copied() -> None:
    """It imports nothing but Python's own library where it is loaded."""
    tree = ast.parse(Path(hook.__file__).read_text())
    names = [
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    ]
    names += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)
