"""Figures of a trial: what must add up, and what is refused when it does not."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from search_spaces.counts import num_parameters
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.contract import MeasureSpec, TrialJob
from trainer.engine import Engine
from trainer.errors import DivergedError, ImplausibleError
from trainer.measure import Recording, breakdown, check_counts, take_census, trial_report
from trainer.mesh import ParallelMesh
from trainer.oracle.products import MODELS
from trainer.timing import Timeline

TRAINING = TrainingSpec(sequence_length=8, global_batch_size=4)
CONFIG = ParallelConfig()
MODEL = MODELS["gpt2"]


@pytest.fixture
def engine():
    return Engine(MODEL, TRAINING, CONFIG, ParallelMesh(CONFIG, 1), 0, torch.device("cpu"))


def test_a_real_step_passes_every_check(engine):
    counts = engine.step(0)
    check_counts(engine, counts)
    assert counts.tokens == TRAINING.tokens_per_step
    assert counts.layer_runs == MODEL.num_layers * 4
    assert counts.loss == pytest.approx(math.log(MODEL.vocab_size), rel=0.05)


@pytest.mark.parametrize("field", ["tokens", "layer_runs", "forward_runs", "backward_runs"])
def test_running_a_quarter_of_the_micro_batches_is_no_number(engine, field):
    counts = engine.step(0)
    fewer = replace(counts, **{field: getattr(counts, field) // 4})
    with pytest.raises(ImplausibleError, match="but the job means"):
        check_counts(engine, fewer)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_divergence(engine, loss):
    with pytest.raises(DivergedError):
        check_counts(engine, replace(engine.step(0), loss=loss))


def test_the_census_finds_the_whole_model(engine):
    assert take_census(engine) == (num_parameters(MODEL), MODEL.num_layers)


def test_the_census_misses_a_lost_parameter(engine):
    engine.units.pop()
    with pytest.raises(ImplausibleError, match="the ranks hold"):
        take_census(engine)


def test_the_census_misses_a_lost_layer(engine):
    engine.stages[0].layer_indices.pop()
    with pytest.raises(ImplausibleError, match="instead of once each"):
        take_census(engine)


def _report(engine, times, peak=None):
    job = TrialJob(
        trial_id="t", model=MODEL, training=TRAINING, config=CONFIG, measure=MeasureSpec(),
        peak_flops_per_s=peak,
    )  # fmt: skip
    recording = Recording(step_times_s=times, counts=engine.step(0))
    census = (num_parameters(MODEL), MODEL.num_layers)
    return trial_report(job, engine, recording, census, peak_memory_bytes=1, startup_s=0.1)


def test_the_report_states_median_and_spread(engine):
    report = _report(engine, [1.0, 5.0, 2.0, 4.0, 3.0])
    assert report.step_time_s == 3.0
    assert report.step_time_iqr_s == 2.0
    assert report.tokens_per_s == pytest.approx(TRAINING.tokens_per_step / 3)
    assert report.num_microbatches == 4
    assert report.mfu is None


def test_mfu_is_model_flops_over_the_peak(engine):
    report = _report(engine, [1.0], peak=1e12)
    assert report.mfu == pytest.approx(report.model_flops_per_step / 1e12)
    assert report.step_time_iqr_s == 0.0


def test_what_no_span_covers_is_bubble():
    spans = [("F", 0, 0, 0.0, 1.0), ("B", 0, 0, 2.0, 4.0), ("W", 0, 0, 4.0, 4.5)]
    parts = breakdown([*spans, ("optimizer", -1, -1, 5.0, 5.5)], 6.0)
    assert parts == {"forward": 1.0, "backward": 2.5, "optimizer": 0.5, "bubble": 2.0}


def test_a_timeline_keeps_the_order_of_its_spans():
    timeline = Timeline(torch.device("cpu"))
    for name in ("F", "B"):
        timeline.start(name, 0, 1)
        timeline.end()
    (first, second) = timeline.spans()
    assert [first[0], second[0]] == ["F", "B"]
    assert 0 <= first[3] <= first[4] <= second[3] <= second[4]


_CLOCK_SCRIPT = """
import sys, time, torch.distributed as dist
from search_spaces.parallel_config import ParallelConfig
from trainer.mesh import ParallelMesh
from trainer.parallel.collectives import Communicator
from trainer.timing import SharedClock
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
world = Communicator(ParallelMesh(ParallelConfig(dp=2), 2), rank).group("world")
clock = SharedClock(world, ["one", "two"], read=lambda: time.monotonic() + 1000.0 * rank)
print(clock.offset_s)
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_clocks_of_two_hosts_are_brought_together(tmp_path):
    command = [sys.executable, "-c", _CLOCK_SCRIPT]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "rendezvous")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    offsets = [float(rank.communicate(timeout=100)[0]) for rank in ranks]
    assert offsets[0] == 0.0
    assert offsets[1] == pytest.approx(-1000.0, abs=0.05)
