"""Dry runs: FLOPs against the declared formula, depth, real peaks, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.cost_models.analytic import AnalyticCostModel
from search_spaces.counts import hardware_flops_per_step
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import MeasureSpec, TrialJob, TrialOutput
from trainer.dry_run import PARTS, dry_run, main
from trainer.errors import UnsupportedConfigError
from trainer.live_memory import COMPILED_BYTES, LiveMemory


def job_of(
    model: str = "gpt2-mini", *, tokens: int = 64, batch: int = 4, device_kind: str = "cpu",
    **knobs: Any,
) -> TrialJob:  # fmt: skip
    return TrialJob.model_validate(
        {
            "trial_id": "dry",
            "model": load_model_spec(model),
            "training": TrainingSpec(sequence_length=tokens, global_batch_size=batch),
            "config": ParallelConfig(**knobs),
            "device_kind": device_kind,
        }
    )


def test_live_memory_counts_storages_once_and_until_they_die() -> None:
    with LiveMemory() as memory:
        x = torch.zeros(1000)
        view = x[10:]
        assert memory.live_bytes == 4000
        y = x + 1
        memory.start()
        del y
        assert (memory.live_bytes, memory.peak_bytes) == (4000, 0)
        del x
        assert memory.live_bytes == 4000
        del view
        assert memory.live_bytes == 0


def test_live_memory_follows_resizes_and_sections() -> None:
    with LiveMemory() as memory:
        memory.enter_section("a")
        x = torch.zeros(1000)
        memory.enter_section("b")
        x.untyped_storage().resize_(0)
        assert memory.live_bytes == 0
        x.untyped_storage().resize_(8000)
        assert memory.peaks == {"a": 4000, "b": 8000}


def test_resident_memory_begins_with_the_first_write() -> None:
    with LiveMemory(as_resident=True) as memory:
        x = torch.empty(1000)
        row = x.view(10, 100)[0]
        assert memory.live_bytes == 0
        row.zero_()
        assert memory.live_bytes == 4000
        y = torch.empty(1000)
        torch.add(x, 1, out=y)
        assert memory.live_bytes == 8000


def test_code_that_the_library_compiles_counts_once_for_every_bf16_product() -> None:
    a, b = torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(3, 5, dtype=torch.bfloat16)
    with LiveMemory(as_resident=True) as memory:
        before = memory.live_bytes
        for _ in range(2):
            torch.mm(a, b)
            torch.mm(b.t(), a.t())
        torch.mm(a.float(), b.float())
        torch.mm(a.half(), b.half())
        assert memory.compiled_bytes == memory.live_bytes - before == 2 * COMPILED_BYTES
        assert memory.peak_bytes > memory.compiled_bytes
    with LiveMemory() as memory:
        torch.mm(a, b)
    assert memory.compiled_bytes == 0


def test_live_memory_counts_flops_of_products() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 5)
    with LiveMemory() as memory:
        torch.mm(a, b).addmm_(a, b)
    assert memory.flops == 2 * 2 * (2 * 3 * 5)


@pytest.mark.parametrize(
    "knobs",
    [
        {"micro_batch_size": 4},
        {"dp": 4, "zero_stage": 3, "recompute": "full"},
        {"tp": 2, "sequence_parallel": True, "micro_batch_size": 4},
    ],
)
def test_flops_are_those_of_the_declared_formula(knobs: dict[str, Any]) -> None:
    job = job_of(**knobs)
    found = dry_run(job, 0).hardware_flops * job.config.world_size
    assert found == hardware_flops_per_step(job.model, job.training, job.config)


def test_block_attention_of_the_cpu_computes_the_scores_once_more() -> None:
    job = job_of(dtype="bf16", micro_batch_size=4)
    result = dry_run(job, 0)
    model, training = job.model, job.training
    scores = 2 * training.global_batch_size * training.sequence_length**2 * model.hidden_size
    declared = hardware_flops_per_step(model, training, job.config)
    assert result.hardware_flops == declared + model.num_layers * scores
    # three products of five weights, and four of one block of attention
    assert result.parts_bytes["libraries"] == (15 + 4) * COMPILED_BYTES
    accelerated = dry_run(job.model_copy(update={"device_kind": "cuda"}), 0)
    assert accelerated.hardware_flops == declared
    assert accelerated.parts_bytes["libraries"] == 0


def test_ranks_of_a_pipeline_add_up_and_the_fullest_answers_for_all() -> None:
    job = job_of("gpt2-tiny", tokens=16, pp=2, pipeline_schedule="zero_bubble", micro_batch_size=2)
    ranks = [dry_run(job, rank) for rank in range(2)]
    found = sum(rank.hardware_flops for rank in ranks)
    assert found == hardware_flops_per_step(job.model, job.training, job.config)
    peaks = [rank.peak_memory_bytes for rank in ranks]
    assert dry_run(job).peak_memory_bytes == max(peaks)


def test_two_depths_extend_to_the_exact_run() -> None:
    job = job_of(tp=2, dp=2, zero_stage=2, micro_batch_size=2)
    extended, exact = dry_run(job, 1), dry_run(job, 1, exact=True)
    assert (extended.layers_per_stage_run, exact.layers_per_stage_run) == ((4, 5), (8,))
    assert extended.peak_memory_bytes == exact.peak_memory_bytes
    assert extended.hardware_flops == exact.hardware_flops
    assert extended.parts_bytes == exact.parts_bytes


def test_parts_are_states_of_the_rank_and_sum_to_the_peak() -> None:
    result = dry_run(job_of(dp=2, zero_stage=1), 0)
    parts = result.parts_bytes
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == result.peak_memory_bytes
    # fp32 masters lie in the weights; the two moments are halved over two ranks
    assert parts["parameters"] == parts["gradients"] == parts["optimizer"]


@pytest.mark.parametrize(
    ("job", "rank", "words"),
    [
        (job_of("mixtral-tiny", tokens=16), 0, "routing"),
        (job_of(compile=True), 0, "compiler"),
        (job_of(optimizer_offload=True, device_kind="cuda"), 0, "host memory"),
        (job_of(dp=2), 2, "rank 2 is not among 0..1"),
        (job_of(batch=3, dp=2), 0, "global batch"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence(job: TrialJob, rank: int, words: str) -> None:
    with pytest.raises(UnsupportedConfigError, match=words):
        dry_run(job, rank)
    assert not torch.distributed.is_initialized()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.write_text(job_of("gpt2-tiny", tokens=16, dp=2).model_dump_json())
    assert main(["--job", str(path), "--rank", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rank"], set(answer["parts_bytes"])) == (1, set(PARTS))
    assert main(["--job", str(path), "--rank", "7"]) == 1
    assert "rank 7" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [
        {"dp": 2, "zero_stage": 3, "micro_batch_size": 2},
        {"tp": 2, "micro_batch_size": 2},
        {"pp": 2, "pipeline_schedule": "zero_bubble"},
    ],
)
def test_peak_is_that_of_real_ranks(
    knobs: dict[str, Any], run_trial: Callable[..., TrialOutput]
) -> None:
    job = job_of(tokens=512, batch=8, **knobs)
    measure = MeasureSpec(warmup_steps=2, measured_steps=1, deadline_s=80)
    output = run_trial(model="gpt2-mini", training=job.training, measure=measure, **knobs)
    assert output.result is not None
    assert dry_run(job).peak_memory_bytes == pytest.approx(output.result.peak_memory_bytes, rel=0.1)


@pytest.mark.slow
def test_22b_on_64_ranks_takes_less_than_a_minute() -> None:
    job = job_of(
        "frontier-22b", tokens=2048, batch=32, tp=8, pp=4, dp=2, zero_stage=1, dtype="bf16"
    )
    result = dry_run(job, 0)
    assert result.seconds < 60
    # weights in bf16, gradients in fp32: 2 and 4 bytes of the same elements
    assert result.parts_bytes["gradients"] == 2 * result.parts_bytes["parameters"]


@pytest.mark.parametrize(
    "knobs",
    [
        {"dp": 2, "zero_stage": 2, "recompute": "full"},
        {"cp": 2},
        {"tp": 4, "tp_layout": "2d", "micro_batch_size": 2},
        pytest.param({"dp": 2, "zero_stage": 3}, marks=pytest.mark.slow),
        pytest.param(
            {"tp": 8, "tp_layout": "2.5d", "tp_depth": 2, "micro_batch_size": 4},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"tp": 4, "tp_layout": "2d", "micro_batch_size": 2, "dtype": "bf16"},
            marks=pytest.mark.slow,
        ),
        pytest.param({"dp": 2, "dtype": "bf16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_memory_formula_follows_the_code(knobs: dict[str, Any]) -> None:
    """With nothing fitted; of what libraries allocate a dry run knows the code for bf16."""
    job = job_of("gpt2-tiny", tokens=128, batch=4, **knobs)
    cluster = ClusterSpec(devices_per_node=8)
    estimate = AnalyticCostModel(job.model, job.training, cluster).estimate(job.config)
    formula = estimate.peak_memory_bytes - estimate.memory_parts_bytes["runtime"]
    found = dry_run(job, exact=True)
    seen = found.peak_memory_bytes - found.parts_bytes["libraries"]
    assert formula == pytest.approx(seen, rel=0.03)
