"""What every exporter must do, as a suite that outsiders can run on theirs too.

Subclass `ExporterContract` in a test module, with a name that pytest collects, and set
`exporter_class`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import KNOBS, ParallelConfig
from search_spaces.space import SearchSpace
from search_spaces.training_spec import TrainingSpec
from tuner.errors import NotExpressible
from tuner.ports import Exporter, ExportRequest

MODELS = ("gpt2-tiny", "llama-tiny", "mixtral-tiny")
NUM_POINTS = 700
_NUM_TO_COVER = 3000
# Every value of every knob occurs among the legal points of these domains on 8 devices.
_DOMAINS: Mapping[str, tuple[Any, ...]] = {
    "dtype": ("fp32", "bf16", "fp16"),
    "reduce_dtype": ("fp32", "bf16"),
    "zero_shard_degree": (0, 2),
    "compile": (False, True),
    "optimizer_offload": (False, True),
    "tp_layout": ("1d", "2d", "2.5d"),
    "tp_depth": (1, 2),
    "stage_layers": (None, (1, 3), (3, 1), (1, 2, 1)),
    "recompute_layers": (None, 1),
    "micro_batch_size": (1, 4),
}


def require(condition: bool, message: str) -> None:
    """Raise `AssertionError` with `message` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


@cache
def requests_of(model: str, seed: int = 0, num_points: int = NUM_POINTS) -> list[ExportRequest]:
    """Legal points of a preset on a node of 8 devices, with knobs of all kinds."""
    spec = load_model_spec(model)
    training = TrainingSpec(sequence_length=64, global_batch_size=16)
    cluster = ClusterSpec(devices_per_node=8, device_kind="cuda", device_name="GPU")
    space = SearchSpace(spec, training, cluster, _DOMAINS, use_all_devices=False)
    return [
        ExportRequest(model=spec, training=training, cluster=cluster, config=point)
        for point in space.sample(num_points, seed)
    ]


def covering(exporter: Exporter, limit: int, seed: int = 0) -> list[ExportRequest]:
    """Few requests that the exporter takes, among which many pairs of knob and value occur."""
    able = [
        (request, _pairs(request))
        for model in MODELS
        for request in requests_of(model, seed, _NUM_TO_COVER)
        if not exporter.refusals(request)
    ]
    chosen: list[ExportRequest] = []
    missing = {pair for _, pairs in able for pair in pairs}
    while missing and len(chosen) < limit:
        best, pairs = max(able, key=lambda one: len(one[1] & missing))
        missing -= pairs
        chosen.append(best)
    return chosen


def _pairs(request: ExportRequest) -> set[tuple[str, Any]]:
    knobs = {(name, getattr(request.config, name)) for name in KNOBS}
    return knobs | {("model", request.model.name), ("world_size", request.config.world_size)}


def without_comments(files: Mapping[str, str]) -> dict[str, str]:
    """The files as a trainer sees them: a head that says the configuration is no export of it."""
    return {
        name: "\n".join(line for line in text.splitlines() if not line.startswith("# "))
        for name, text in files.items()
    }


class ExporterContract:
    """Tests that hold for every exporter."""

    exporter_class: ClassVar[type[Any]]

    def exporter(self) -> Exporter:
        """A fresh exporter."""
        made: Exporter = self.exporter_class()
        return made

    def test_it_says_where_every_knob_goes(self) -> None:
        """No knob is missing from its table."""
        exporter = self.exporter()
        require(set(exporter.goes_to) == set(KNOBS), "a knob is missing")
        require(all(exporter.goes_to.values()), "a knob goes nowhere")

    def test_it_names_its_versions_and_its_check(self) -> None:
        """A reader knows what the export is right for."""
        exporter = self.exporter()
        facts = (exporter.name, exporter.trainer, exporter.versions, exporter.round_trip)
        require(all(facts), "a fact is empty")

    def test_no_two_configurations_have_one_export(self) -> None:
        """So no knob is dropped: what is not refused can be told from all others."""
        exporter = self.exporter()
        for model in MODELS:
            seen: dict[tuple[tuple[str, str], ...], ParallelConfig] = {}
            for request in requests_of(model):
                if exporter.refusals(request):
                    continue
                files = without_comments(exporter.export(request).files)
                other = seen.setdefault(tuple(sorted(files.items())), request.config)
                require(
                    other == request.config,
                    f"{other.canonical()} and {request.config.canonical()} export the same",
                )

    def test_what_it_refuses_is_not_exported(self) -> None:
        """A refusal is an error with the knob in its message."""
        exporter = self.exporter()
        for model in MODELS:
            for request in requests_of(model)[:200]:
                refused = exporter.refusals(request)
                if not refused:
                    continue
                try:
                    exporter.export(request)
                except NotExpressible as error:
                    named = all(item.reason in error.message for item in refused)
                    require(named, f"{error.message} leaves out a reason")
                else:
                    raise AssertionError(f"{refused[0].reason}, but there is an export")

    def test_what_it_has_no_word_for_is_refused(self) -> None:
        """Where a knob goes nowhere, all but its neutral value is refused."""
        exporter = self.exporter()
        neutral = ParallelConfig()
        for model in MODELS:
            for request in requests_of(model)[:400]:
                refused = {item.knob for item in exporter.refusals(request)}
                for knob, place in exporter.goes_to.items():
                    differs = getattr(request.config, knob) != getattr(neutral, knob)
                    if place == "-" and differs:
                        require(knob in refused, f"{knob} of {request.config.short()} is dropped")

    def test_the_nearest_can_be_exported(self) -> None:
        """`nearest` ends in something that is not refused, and says what it changed."""
        exporter = self.exporter()
        for model in MODELS:
            for request in requests_of(model)[:400]:
                try:
                    near = exporter.nearest(request)
                except NotExpressible:
                    continue
                require(not exporter.refusals(near.request), "the nearest is refused")
                changed = near.request.config != request.config
                require(bool(near.changes) == changed, "a change is not said")
                batch = near.request.config.micro_batch_size * near.request.config.dp
                whole = request.training.global_batch_size % batch == 0
                require(whole, "the nearest does not divide the global batch")
