"""Whole logs: step time, memory, loss, and what is wrong with them."""

from dataclasses import replace
from typing import Any

import pytest

from trainer.contract import FailureKind, Phase, TrialOutput
from tuner.adapters.log_lines import LogLine, clean

GIB = 2**30
# step time in seconds, peak memory in GiB, last loss
GOOD = {
    "megatron-lm/core-0.20.log": (2.410, 23.40, 9.26),
    "megatron-lm/core-0.6-torchrun.log": (2.655, 23.40, 9.22),
    "megatron-lm/v2.4.log": (3.120, 0, 9.18),
    "megatron-lm/fp16-skips.log": (2.500, 0, 9.26),
    "megatron-lm/amd-primus.log": (2.700, 0, 9.20),
    "megatron-lm/srun-colour.log": (2.440, 0, 9.20),
    "megatron-deepspeed/2025.log": (3.120, 27.64, 9.20),
    "megatron-deepspeed/argonne.log": (2.991, 0, 9.20),
    "deepspeed/0.16.log": (0.771, 18.02, None),
    "deepspeed/0.6.log": (0.830, 18.02, None),
    "deepspeed/fp16-overflow.log": (0.771, 18.02, None),
    "deepspeed/pipeline.log": (0.810, 2.47, 9.00),
    "torchtitan/0.2.2.log": (0.660, 21.37, 9.24),
    "torchtitan/0.2-two-ranks.log": (0.660, 21.37, 9.24),
    "torchtitan/0.0-wps.log": (0.710, 21.37, 9.24),
    "torchtitan/main-2026-08.log": (0.620, 21.37, 9.24),
    "nanotron/0.4.log": (1.840, 21.13, 9.00),
    "nanotron/2023.log": (1.790, 0, 9.00),
    "nanotron/main-2026-04.log": (1.815, 0, 9.00),
}
IMPLAUSIBLE = {
    "megatron-lm/halved-accumulation.log": ("16 sequences per step", "means 32"),
    "megatron-deepspeed/curriculum.log": ("1024 tokens per sequence", "means 2048"),
    "megatron-deepspeed/rate-of-half.log": ("about 16 sequences per step", "means 32"),
    "deepspeed/accumulation-1.log": ("1 micro-batches", "means 2"),
    "torchtitan/half-the-tokens.log": ("16395 tokens per step", "means 32768"),
    "torchtitan/mesh-without-tp.log": ("1 tensor-parallel ranks", "means 2"),
    "nanotron/half-the-tokens.log": ("about 32700 tokens per step", "means 65536"),
    "hf-trainer/other-accumulation.log": ("8 sequences per step", "means 32"),
}
FAILED = {
    "megatron-lm/oom.log": (FailureKind.OOM, 3, Phase.WARMUP),
    "megatron-lm/nccl-timeout.log": (FailureKind.COMM, 3, Phase.MEASURE),
    "megatron-lm/nan.log": (FailureKind.DIVERGED, None, Phase.MEASURE),
    "megatron-lm/nan-assert.log": (FailureKind.DIVERGED, 5, Phase.INIT),
    "megatron-lm/illegal.log": (FailureKind.ILLEGAL, None, Phase.INIT),
    "megatron-lm/unknown-flag.log": (FailureKind.CRASH, None, Phase.INIT),
    "deepspeed/batch-assert.log": (FailureKind.ILLEGAL, 0, Phase.INIT),
    "deepspeed/scale-minimum.log": (FailureKind.DIVERGED, 0, Phase.MEASURE),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_log_gives_step_time_memory_and_loss(logs: Any, name: str) -> None:
    adapter = logs.read(name)
    output = adapter.output()
    step_time_s, memory_gib, loss = GOOD[name]
    assert output.result is not None, (output.failures, adapter.complaint())
    job = adapter.job
    assert output.result.step_time_s == pytest.approx(step_time_s, rel=0.012)
    assert output.result.tokens_per_s == pytest.approx(
        job.training.tokens_per_step / output.result.step_time_s
    )
    assert 0 < output.result.step_time_iqr_s < 0.05 * step_time_s
    assert len(output.result.step_times_s) == job.measure.measured_steps
    assert output.result.peak_memory_bytes / GIB == pytest.approx(memory_gib, abs=0.01)
    if loss is not None:
        assert output.result.final_loss == pytest.approx(loss, abs=0.02)
    assert adapter.says_enough(output)


@pytest.mark.parametrize("name", GOOD)
def test_the_first_steps_are_no_part_of_the_figure(logs: Any, name: str) -> None:
    steps = logs.read(name).output().steps
    measured = [step for step in steps if not step.is_warmup]
    assert min(step.step for step in measured) >= 2
    assert max(s.step_time_s for s in measured) < 1.1 * min(s.step_time_s for s in measured)


def _with_colour(line: LogLine) -> str:
    return f"\x1b[1;34m{line.text}\x1b[0m"


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "shape",
    ["[rank7]:{}", "[default7]:{}", "7: {}", "[1,7]<stdout>: {}", "(Worker pid=71, ip=10.0.0.7) {}",
     "worker-7: {}", "\x1b[36m{}\x1b[39m"],
)  # fmt: skip
def test_prefixes_and_colours_change_nothing(logs: Any, name: str, shape: str) -> None:
    plain = logs.lines_of(name)
    dressed = [clean(shape.format(_with_colour(line))) for line in plain]
    expected, found = logs.read(name, plain).output(), logs.read(name, dressed).output()
    assert found.result == expected.result
    assert found.steps == expected.steps


@pytest.mark.parametrize("name", IMPLAUSIBLE)
def test_a_batch_that_was_not_run_is_caught(logs: Any, name: str) -> None:
    adapter = logs.read(name)
    output = adapter.output()
    assert output.result is None
    failure = output.failures[0]
    assert failure.failure is FailureKind.IMPLAUSIBLE
    for number in IMPLAUSIBLE[name]:
        assert number.removeprefix("about ")[:4] in failure.message, failure.message
    assert adapter.says_enough(output)


@pytest.mark.parametrize("name", FAILED)
def test_a_failure_is_named(logs: Any, name: str) -> None:
    failure = logs.read(name).output().failures[0]
    assert (failure.failure, failure.rank, failure.phase) == FAILED[name], failure.message


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "changes", [{"global_batch_size": 64}, {"sequence_length": 1024}], ids=["batch", "length"]
)
def test_another_job_s_log_is_not_believed(logs: Any, name: str, changes: dict[str, int]) -> None:
    """Wherever the log can tell: DeepSpeed and old logs know nothing of the sequence."""
    trainer = name.partition("/")[0]
    job = logs.job_of(trainer)
    training = job.training.model_copy(update=changes)
    adapter = logs.adapter_of(trainer, job.model_copy(update={"training": training}))
    adapter.feed(logs.lines_of(name))
    told = {fact.name for fact in adapter.reading.facts}
    tells = {"global_batch_size", "tokens_per_step"} if "global_batch_size" in changes else {
        "sequence_length", "tokens_per_step",
    }  # fmt: skip
    output = adapter.output()
    if told & tells:
        assert output.failures[0].failure is FailureKind.IMPLAUSIBLE
    else:
        assert trainer in ("deepspeed", "megatron-lm")
        assert "sequence_length" in changes


def test_steps_that_were_skipped_are_not_measured(logs: Any) -> None:
    steps = logs.read("megatron-lm/fp16-skips.log").output().steps
    assert [step.is_warmup for step in steps] == [True] * 3 + [False] * 5


def test_a_log_that_never_tells_its_batch_is_not_believed(logs: Any) -> None:
    lines = [line for line in logs.lines_of("torchtitan/0.2.2.log") if "step:" in line.text]
    lines = [replace(line, stamp_s=None) for line in lines]
    failure = logs.read("torchtitan/0.2.2.log", lines).output().failures[0]
    assert failure.failure is FailureKind.IMPLAUSIBLE
    assert "never says how large the batch was" in failure.message


def test_times_that_the_clock_belies_are_not_believed(logs: Any) -> None:
    """Each line says 2.4 s a step and comes 10 s after the last one."""
    lines = logs.lines_of("megatron-lm/core-0.20.log")
    slow = [replace(line, stamp_s=None, arrival_s=10.0 * i) for i, line in enumerate(lines)]
    failure = logs.read("megatron-lm/core-0.20.log", slow).output().failures[0]
    assert failure.failure is FailureKind.IMPLAUSIBLE
    assert "2.4" in failure.message
    assert "10 s" in failure.message


def test_one_late_line_is_no_reason_for_doubt(logs: Any) -> None:
    lines = logs.lines_of("megatron-lm/core-0.20.log")
    late = [
        replace(line, stamp_s=line.stamp_s + 60.0) if line.stamp_s and index > len(lines) - 4
        else line for index, line in enumerate(lines)
    ]  # fmt: skip
    assert logs.read("megatron-lm/core-0.20.log", late).output().result is not None


def test_a_short_log_says_what_is_missing(logs: Any) -> None:
    lines = [
        line
        for line in logs.lines_of("megatron-lm/core-0.20.log")
        if "iteration        8" not in line.text
    ]
    adapter = logs.read("megatron-lm/core-0.20.log", lines[:-3])
    assert adapter.output().result is None
    assert "ends at step 5, but 7 steps are needed" in adapter.complaint()
    assert "--log-interval 1" in adapter.complaint()
    assert "has no line of a step" in logs.adapter_of("nanotron").complaint()


def test_a_line_of_several_steps_counts_as_so_many(logs: Any) -> None:
    """`--log-interval 4`: the first line is warm-up, the second covers four measured steps."""
    adapter = logs.adapter_of("megatron-lm", logs.job_of("megatron-lm", measured_steps=4))
    kept = ("iteration        4/", "iteration        8/")
    adapter.feed(
        line for line in logs.lines_of("megatron-lm/core-0.20.log")
        if any(text in line.text for text in kept)
    )  # fmt: skip
    output = adapter.output()
    assert output.result is not None
    assert output.result.step_times_s == [output.steps[-1].step_time_s]
    assert [step.is_warmup for step in output.steps] == [True, False]


def test_an_mfu_above_one_is_not_believed(logs: Any) -> None:
    job = logs.job_of("megatron-lm").model_copy(update={"peak_flops_per_s": 1e9})
    adapter = logs.adapter_of("megatron-lm", job)
    adapter.feed(logs.lines_of("megatron-lm/core-0.20.log"))
    failure = adapter.output().failures[0]
    assert failure.failure is FailureKind.IMPLAUSIBLE
    assert "MFU" in failure.message


def test_nothing_is_nothing(logs: Any) -> None:
    assert logs.adapter_of("megatron-lm").output() == TrialOutput()
