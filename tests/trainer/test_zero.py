"""What each ZeRO stage keeps and sends, counted on real ranks."""

import pytest

from search_spaces.counts import num_parameters
from search_spaces.model_io import load_model_spec
from search_spaces.training_spec import TrainingSpec

pytestmark = pytest.mark.distributed

MODEL = load_model_spec("gpt2-tiny")
NUM_MICRO_BATCHES = 2
TRAINING = TrainingSpec(sequence_length=16, global_batch_size=4)
LAYER_UNITS = MODEL.num_layers + 1  # decoder layers and the final norm
ONE_WAY_UNITS = 2  # token embedding (tied to the head) and positions
UNITS = LAYER_UNITS + ONE_WAY_UNITS


def _calls(output, name):
    return output.ranks[0].collectives.get(name, {}).get("calls", 0)


def _bytes(output, name):
    return output.ranks[0].collectives.get(name, {}).get("bytes", 0)


def _run(run_trial, **knobs):
    output = run_trial(model=MODEL, training=TRAINING, **knobs)
    assert output.result is not None, output.failures
    assert output.result.num_microbatches == NUM_MICRO_BATCHES
    return output


def test_stage_0_reduces_the_whole_gradient_once(run_trial):
    output = _run(run_trial, dp=2)
    assert _calls(output, "replicate.all_reduce") == UNITS
    assert _bytes(output, "replicate.all_reduce") == pytest.approx(
        4 * num_parameters(MODEL), rel=0.01
    )
    assert not _calls(output, "shard.all_gather")


@pytest.mark.parametrize(("stage", "num_scatters"), [(1, 1), (2, NUM_MICRO_BATCHES)])
def test_stages_1_and_2_scatter_gradients_and_gather_weights_once(run_trial, stage, num_scatters):
    output = _run(run_trial, dp=2, zero_stage=stage)
    assert _calls(output, "shard.reduce_scatter") == UNITS * num_scatters
    assert _bytes(output, "shard.reduce_scatter") == pytest.approx(
        num_scatters * 4 * num_parameters(MODEL), rel=0.01
    )
    assert _calls(output, "shard.all_gather") == UNITS
    assert _bytes(output, "shard.all_gather") == pytest.approx(
        4 * num_parameters(MODEL) / 2, rel=0.01
    )
    assert not _calls(output, "replicate.all_reduce")


def test_stage_3_gathers_weights_in_both_passes(run_trial):
    output = _run(run_trial, dp=2, zero_stage=3)
    # a layer in forward and backward; the tied embedding as embedding and as head, positions once
    gathers = NUM_MICRO_BATCHES * (2 * LAYER_UNITS + 2 + 1)
    assert _calls(output, "shard.all_gather") == gathers
    # the tied embedding finishes once as embedding, with the head's part in it
    assert _calls(output, "shard.reduce_scatter") == NUM_MICRO_BATCHES * UNITS


def test_a_hybrid_shard_degree_reduces_one_shard_across_replicas(run_trial):
    output = run_trial(
        model=MODEL, training=TRAINING, dp=4, zero_stage=1, zero_shard_degree=2
    )  # fmt: skip
    assert output.result is not None, output.failures
    assert _calls(output, "shard.reduce_scatter") == UNITS
    assert _calls(output, "replicate.all_reduce") == UNITS
    assert _bytes(output, "replicate.all_reduce") == pytest.approx(
        4 * num_parameters(MODEL) / 2, rel=0.01
    )


def test_every_stage_keeps_less_than_the_one_before(run_trial):
    states = [
        _run(run_trial, dp=2, zero_stage=stage).ranks[0].state_memory_bytes for stage in range(4)
    ]
    # fp32: weights 4, gradients 4, moments 8 bytes a parameter; two ranks halve what is sharded
    expected = [bytes_each * num_parameters(MODEL) for bytes_each in (16, 12, 10, 8)]
    assert states == [pytest.approx(value, rel=0.02) for value in expected]


def test_bf16_gradients_halve_the_bytes_on_the_wire(run_trial):
    exact = _run(run_trial, dp=2, dtype="bf16")
    coarse = _run(run_trial, dp=2, dtype="bf16", reduce_dtype="bf16")
    name = "replicate.all_reduce"
    assert _bytes(coarse, name) == pytest.approx(_bytes(exact, name) / 2)
