"""The contract for every exporter of ours, and the law of the base class."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.parallel_config import KNOBS, ParallelConfig
from tuner import registry
from tuner.exporters.base import REFUSED, BaseExporter, goes
from tuner.ports import ExportRequest
from tuner.testing.exporter_contract import (
    MODELS,
    NUM_POINTS,
    ExporterContract,
    requests_of,
    without_comments,
)

NAMES = sorted(registry.EXPORTERS)


@pytest.mark.parametrize("name", NAMES)
class TestExporters(ExporterContract):
    @pytest.fixture(autouse=True)
    def _choose(self, name: str) -> None:
        type(self).exporter_class = registry.load("exporters", name)

    def test_its_name_is_the_registered_one(self, name: str) -> None:
        assert self.exporter().name == name


_ANOTHER = {
    "dp": st.sampled_from((1, 2, 4, 8)),
    "tp": st.sampled_from((1, 2, 4, 8)),
    "tp_layout": st.sampled_from(("1d", "2d", "2.5d")),
    "tp_depth": st.sampled_from((1, 2)),
    "sequence_parallel": st.booleans(),
    "cp": st.sampled_from((1, 2, 4)),
    "ep": st.sampled_from((1, 2, 4)),
    "pp": st.sampled_from((1, 2, 4)),
    "virtual_stages": st.sampled_from((1, 2, 4)),
    "pipeline_schedule": st.sampled_from(("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv")),
    "stage_layers": st.sampled_from((None, (1, 3), (3, 1), (1, 2, 1))),
    "micro_batch_size": st.sampled_from((1, 2, 4)),
    "zero_stage": st.sampled_from((0, 1, 2, 3)),
    "zero_shard_degree": st.sampled_from((0, 2)),
    "recompute": st.sampled_from(("none", "selective", "full")),
    "recompute_layers": st.sampled_from((None, 1, 2)),
    "dtype": st.sampled_from(("fp32", "bf16", "fp16")),
    "reduce_dtype": st.sampled_from(("fp32", "bf16")),
    "compile": st.booleans(),
    "optimizer_offload": st.booleans(),
}


def test_the_law_knows_every_knob() -> None:
    assert set(_ANOTHER) == set(KNOBS)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    model=st.sampled_from(MODELS),
    number=st.integers(0, NUM_POINTS - 1),
    knob=st.sampled_from(KNOBS),
    data=st.data(),
)
def test_one_knob_changes_the_export_or_is_refused_or_is_neutral(
    name: str, model: str, number: int, knob: str, data: st.DataObject
) -> None:
    exporter = registry.load("exporters", name)()
    base = requests_of(model)[number]
    near = base
    if exporter.refusals(base):
        # most points of the space are refused by most trainers: start from one that is not
        able = [r for r in requests_of(model) if not exporter.refusals(r)]
        if not able:
            return
        near = able[number % len(able)]
    config = near.config.with_knobs(**{knob: data.draw(_ANOTHER[knob])})
    changed = ExportRequest(
        model=near.model, training=near.training, cluster=near.cluster, config=config
    )
    if config == near.config or config in _not_points(near, config):
        return
    if exporter.refusals(changed):
        return
    before, after = (without_comments(exporter.export(r).files) for r in (near, changed))
    assert before != after, f"{name} drops {knob}: {near.config.short()} -> {config.short()}"
    assert exporter.goes_to[knob] != REFUSED


def _not_points(request: ExportRequest, config: ParallelConfig) -> list[ParallelConfig]:
    """The configuration itself where no study could have measured it: it then means nothing."""
    from search_spaces.constraints import find_violations

    broken = find_violations(
        config, request.model, request.training, request.cluster, use_all_devices=False
    )
    return [config] if broken else []


def test_an_exporter_that_forgets_a_knob_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="dtype"):

        class Forgetful(BaseExporter):
            knobs = {name: goes("somewhere") for name in KNOBS if name != "dtype"}  # noqa: RUF012


def test_the_contract_finds_a_dropped_knob() -> None:
    own = registry.load("exporters", "tuner")

    class Dropping(own):
        def write(self, request):
            plain = request.config.with_knobs(compile=False)
            return super().write(
                ExportRequest(
                    model=request.model,
                    training=request.training,
                    cluster=request.cluster,
                    config=plain,
                )
            )

    class TestIt(ExporterContract):
        exporter_class = Dropping

    with pytest.raises(AssertionError, match="export the same"):
        TestIt().test_no_two_configurations_have_one_export()
