"""Laws of the search space: enumeration, membership, sampling and explanations agree."""

import itertools
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.constraints import CONSTRAINTS, Constraint, Setting, find_violations, judge
from search_spaces.counts import hardware_flops_per_step, model_flops_per_step
from search_spaces.errors import SpaceError
from search_spaces.layers import stage_layer_counts
from search_spaces.model_io import load_model_spec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import KNOBS, ParallelConfig
from search_spaces.space import SearchSpace, config_distance, default_domains
from search_spaces.training_spec import TrainingSpec

VALUES: dict[str, list[Any]] = {
    "dp": [1, 2, 3, 4], "tp": [1, 2, 3, 4, 8], "tp_layout": ["1d", "2d", "2.5d"],
    "tp_depth": [1, 2], "sequence_parallel": [False, True], "cp": [1, 2], "ep": [1, 2, 4],
    "pp": [1, 2, 3, 4], "virtual_stages": [1, 2, 3],
    "pipeline_schedule": ["gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"],
    "stage_layers": [None, (1, 3), (2, 2), (1, 2, 2, 3), (3, 3, 2)],
    "micro_batch_size": [1, 2, 3, 4], "zero_stage": [0, 1, 2, 3], "zero_shard_degree": [0, 1, 2],
    "recompute": ["none", "selective", "full"], "recompute_layers": [None, 0, 1, 2],
    "dtype": ["fp32", "bf16"], "reduce_dtype": ["fp32", "bf16"], "compile": [False, True],
    "optimizer_offload": [False, True],
}  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    head_dim = draw(st.sampled_from([4, 6]))
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 4]))
    num_heads = num_kv_heads * draw(st.sampled_from([1, 2]))
    num_experts = draw(st.sampled_from([0, 0, 4]))
    return ModelSpec(
        name="drawn", family="mixtral" if num_experts else draw(st.sampled_from(["gpt2", "llama"])),
        num_layers=draw(st.integers(1, 8)), hidden_size=num_heads * head_dim, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=head_dim, ffn_size=draw(st.sampled_from([24, 30])),
        vocab_size=50, max_positions=draw(st.sampled_from([16, 64])), num_experts=num_experts,
        experts_per_token=min(2, num_experts),
        sliding_window=draw(st.sampled_from([None, None, 16])),
    )  # fmt: skip


@st.composite
def problems(draw: st.DrawFn) -> tuple[ModelSpec, TrainingSpec, ClusterSpec, bool]:
    training = TrainingSpec(
        sequence_length=draw(st.sampled_from([12, 16, 16, 32])),
        global_batch_size=draw(st.sampled_from([4, 8, 12])),
        workload=draw(st.sampled_from(["training", "training", "inference"])),
    )
    cluster = ClusterSpec(devices_per_node=draw(st.integers(1, 8)))
    return draw(models()), training, cluster, draw(st.booleans())


@st.composite
def small_domains(draw: st.DrawFn) -> dict[str, tuple[Any, ...]]:
    """At most 2000 combinations; knobs that stay fixed have their default now and then."""
    room = 2000
    domains = {}
    for knob in draw(st.permutations(KNOBS)):
        most = max(1, min(3, room))
        picked = draw(
            st.lists(st.sampled_from(VALUES[knob]), min_size=1, max_size=most, unique=True)
        )
        if len(picked) == 1 and draw(st.booleans()):
            picked = [ParallelConfig.model_fields[knob].default]
        room //= len(picked)
        domains[knob] = tuple(picked)
    return domains


def make_space(problem: Any, domains: Any) -> SearchSpace:
    model, training, cluster, use_all = problem
    return SearchSpace(model, training, cluster, domains, use_all_devices=use_all)


def tiny_space(num_devices: int, domains: Any = None, **options: bool) -> SearchSpace:
    training = TrainingSpec(sequence_length=64)
    cluster = ClusterSpec(devices_per_node=num_devices)
    return SearchSpace(load_model_spec("gpt2-tiny"), training, cluster, domains, **options)


quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@quick
@given(problems(), small_domains())
def test_enumeration_equals_brute_force(problem: Any, domains: dict[str, tuple[Any, ...]]) -> None:
    space = make_space(problem, domains)
    product = [
        ParallelConfig(**dict(zip(domains, values, strict=True)))
        for values in itertools.product(*domains.values())
    ]
    expected = [config for config in product if space.is_legal(config)]
    found = list(space)
    assert len({config.config_key for config in found}) == len(found)
    assert {c.config_key for c in found} == {c.config_key for c in expected}
    if expected:
        assert space.enumerate() == found
    else:
        with pytest.raises(SpaceError, match="no configuration of the space is legal"):
            space.enumerate()
    for config in product[:: max(1, len(product) // 40)]:
        violations = space.explain(config)
        assert space.contains(config) == (not violations) == (config in found)


configs = st.builds(ParallelConfig, **{knob: st.sampled_from(VALUES[knob]) for knob in KNOBS})


class _Spy:
    """A configuration that shows only some knobs."""

    def __init__(self, config: ParallelConfig, knobs: tuple[str, ...]) -> None:
        self._shown = {knob: getattr(config, knob) for knob in knobs}

    def __getattr__(self, name: str) -> Any:
        if name in KNOBS:
            assert name in self._shown, f"reads {name}, which it does not declare"
            return self._shown[name]
        return getattr(ParallelConfig, name).fget(self)


@settings(max_examples=300, deadline=None)
@given(problems(), configs)
def test_rules_read_only_the_knobs_that_they_declare(problem: Any, config: ParallelConfig) -> None:
    setting = Setting(*problem)
    for rule in CONSTRAINTS:
        spy: Any = _Spy(config, rule.knobs)
        allowed = rule.allows(spy, setting)
        assert allowed == rule.allows(config, setting)
        if not allowed:
            assert rule.reason(spy, setting)


@quick
@given(problems(), configs)
def test_violations_say_what_would_be_legal(problem: Any, config: ParallelConfig) -> None:
    setting = Setting(*problem)
    rules = {rule.name: rule for rule in CONSTRAINTS}
    violations = find_violations(config, *problem[:3], use_all_devices=problem[3])
    for violation in violations:
        rule: Constraint = rules[violation.rule]
        assert violation.message
        assert "\n" not in violation.message
        assert set(violation.legal_values) <= set(rule.knobs)
        for knob, values in violation.legal_values.items():
            for value in values:
                mended = config.with_knobs(**{knob: value})
                assert rule.check(mended, setting) is None
                others = {found.rule for found in judge(mended, setting)} - {"devices"}
                assert others < {found.rule for found in violations} | {"devices"}


def legal_points() -> st.SearchStrategy[Any]:
    """Problems with one legal point of the whole value table each."""

    @st.composite
    def draw_point(draw: st.DrawFn) -> Any:
        problem = draw(problems())
        domains = draw(small_domains())
        # Free the knobs that most rules hang on, so that points are found often.
        for knob in ("dp", "tp", "pp", "stage_layers", "micro_batch_size", "virtual_stages"):
            domains[knob] = tuple(VALUES[knob])
        domains |= {"cp": (1,), "tp_layout": ("1d",), "tp_depth": (1,)}
        points = list(itertools.islice(make_space(problem, domains), 50))
        return problem, draw(st.sampled_from(points)) if points else None

    return draw_point()


@quick
@given(legal_points())
def test_legal_points_conserve_devices_batch_layers_and_heads(drawn: Any) -> None:
    (model, training, cluster, use_all), config = drawn
    if config is None:
        return
    assert config.world_size <= cluster.num_devices
    assert config.world_size == cluster.num_devices or not use_all
    accumulation = training.global_batch_size / (config.micro_batch_size * config.dp)
    assert accumulation == int(accumulation) >= 1
    stages = stage_layer_counts(model.num_layers, config)
    assert len(stages) == config.pp * config.virtual_stages
    assert sum(stages) == model.num_layers
    assert min(stages) >= 1
    assert model.num_heads % config.tp == 0
    assert max(model.num_kv_heads, config.tp) % min(model.num_kv_heads, config.tp) == 0
    least = model_flops_per_step(model, training)
    assert least <= hardware_flops_per_step(model, training, config) <= 4 / 3 * least


@quick
@given(problems(), st.integers(0, 40), st.integers(0, 3))
def test_samples_are_different_legal_points(problem: Any, count: int, seed: int) -> None:
    space = make_space(problem, None)
    try:
        points = space.enumerate()
    except SpaceError:
        return
    sample = space.sample(count, seed)
    assert len(sample) == min(count, len(points))
    assert len({config.config_key for config in sample}) == len(sample)
    assert {config.config_key for config in sample} <= {config.config_key for config in points}
    assert sample == space.sample(count, seed)


def test_samples_are_uniform() -> None:
    space = SearchSpace(
        load_model_spec("gpt2-tiny"),
        TrainingSpec(sequence_length=64),
        ClusterSpec(devices_per_node=2),
    )
    points = space.enumerate()
    hits = dict.fromkeys((config.config_key for config in points), 0)
    for seed in range(200):
        for config in space.sample(len(points) // 4, seed):
            hits[config.config_key] += 1
    assert min(hits.values()) > 20  # 50 expected, standard deviation 6
    assert max(hits.values()) < 80


@settings(max_examples=200, deadline=None)
@given(configs)
def test_configs_round_trip_and_have_stable_keys(config: ParallelConfig) -> None:
    assert ParallelConfig.model_validate_json(config.model_dump_json()) == config
    canonical = config.canonical()
    again = ParallelConfig.model_validate(
        {k: tuple(v) if isinstance(v, list) else v for k, v in canonical.items()}
    )
    assert again == config
    assert again.config_key == config.config_key
    assert len(config.config_key) == 16


def test_keys_never_change() -> None:
    """These stand in users' databases."""
    assert ParallelConfig().config_key == "44136fa355b3678a"
    config = ParallelConfig(dp=2, tp=2, pp=2, zero_stage=1, stage_layers=(3, 5), dtype="bf16")
    assert config.config_key == "a765643a3ea9bca0"


@pytest.mark.parametrize(
    ("domains", "match"),
    [
        ({"tp": [0]}, "tp cannot be 0 .*integers of at least 1"),
        ({"tp": ["2"]}, "tp cannot be '2'"),
        ({"tp": [True]}, "tp cannot be True"),
        ({"tpp": [1]}, "no knob 'tpp' .*did you mean tp"),
        ({"recompute": ["ful"]}, "did you mean full"),
        ({"zero_stage": [4]}, "legal: 0, 1, 2 or 3"),
        ({"dtype": ["int8"]}, "legal: fp32, bf16, fp16"),
        ({"dp": []}, "domain of dp is empty"),
        ({"dp": 4}, "not a list"),
        ({"dtype": "bf16"}, "not a list"),
        ({"stage_layers": [[1, "2"]]}, "a list of layers per stage"),
        ({"compile": [1]}, "legal: false, true"),
    ],
)
def test_impossible_domains_name_the_legal_ones(domains: dict[str, Any], match: str) -> None:
    with pytest.raises(SpaceError, match=match):
        SearchSpace(load_model_spec("gpt2-tiny"), TrainingSpec(), ClusterSpec(), domains)


@pytest.mark.parametrize(
    ("domains", "sequence_length", "match"),
    [
        (
            {"tp": [3], "tp_layout": ["1d"]},
            64,
            r"tp 3 does not divide the 4 attention heads \(legal .*tp 1, 2 or 4",
        ),
        (
            {"micro_batch_size": [3]},
            64,
            "rule global_batch alone .*does not divide the global batch of 8",
        ),
        ({"stage_layers": [[4, 5]]}, 64, r"rule stage_layers alone .*\[4, 5\]"),
        (
            {"stage_layers": [[4, 5]], "pp": [2], "virtual_stages": [1]},
            64,
            "adds up to 9 layers, but the model has 8",
        ),
        ({"cp": [2]}, 62, "context_parallel"),
        (None, 512, "sequence_length 512 exceeds the 256 learned positions"),
    ],
)
def test_an_empty_space_names_the_rule_that_ended_it(
    domains: dict[str, Any] | None, sequence_length: int, match: str
) -> None:
    space = SearchSpace(
        load_model_spec("gpt2-tiny"),
        TrainingSpec(sequence_length=sequence_length),
        ClusterSpec(devices_per_node=8),
        domains,
    )
    with pytest.raises(SpaceError, match=match):
        space.enumerate()
    assert len(space) == 0


def test_repeated_values_make_no_duplicates() -> None:
    domains = {"tp": [1, 1, 2, 1], "stage_layers": [None, [3, 5], (3, 5)]}
    space = tiny_space(2, domains)
    assert space.domains["tp"].values == (1, 2)
    assert len({config.config_key for config in space}) == len(space)
    assert any(config.stage_layers == (3, 5) for config in space)


def test_fewer_devices_when_allowed() -> None:
    sizes = {config.world_size for config in tiny_space(6, use_all_devices=False)}
    assert {1, 2, 4} <= sizes
    assert max(sizes) <= 6
    assert {config.world_size for config in tiny_space(6, {"tp": [1, 2]})} <= {6}


def test_values_outside_of_a_domain_are_explained() -> None:
    space = tiny_space(4, {"zero_stage": [0, 1]})
    config = ParallelConfig(dp=4, zero_stage=3)
    (violation,) = space.explain(config)
    assert (violation.rule, violation.knobs) == ("domain", ("zero_stage",))
    assert "zero_stage 3 is outside of its domain: 0 or 1" in violation.message
    assert space.violations(config) == []
    assert config not in space
    assert space.nearest(config, 1) == [ParallelConfig(dp=4, zero_stage=1)]


def test_nearest_points_change_the_fewest_knobs() -> None:
    space = SearchSpace(
        load_model_spec("gpt2-124m"),
        TrainingSpec(sequence_length=128),
        ClusterSpec(devices_per_node=8),
    )
    wished = ParallelConfig(tp=8, zero_stage=1)
    near = space.nearest(wished, 4)
    distances = [config_distance(wished, config) for config in space]
    assert [config_distance(wished, config) for config in near] == sorted(distances)[:4]


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("workload", ["training", "inference"])
def test_default_spaces_of_a_cpu_are_moderate(num_devices: int, workload: Any) -> None:
    training = TrainingSpec(sequence_length=128, workload=workload)
    cluster = ClusterSpec(devices_per_node=num_devices)
    model = load_model_spec("gpt2-124m")
    space = SearchSpace(model, training, cluster)
    assert 4 <= len(space) <= 1000
    layouts = {(config.tp, config.pp, config.dp) for config in space}
    assert len(layouts) >= min(3, 2 * num_devices - 1)
    assert set(default_domains(model, training, cluster)) == set(KNOBS)


def test_default_dtype_is_the_recipe_s() -> None:
    training = TrainingSpec(sequence_length=64, dtype="bf16")
    space = SearchSpace(load_model_spec("gpt2-tiny"), training, ClusterSpec(devices_per_node=2))
    assert {config.dtype for config in space} == {"bf16"}


def test_a_large_space_enumerates_fast() -> None:
    """GPT-3 175B on 512 devices; the bound leaves room for a slow machine that others share."""
    training = TrainingSpec(sequence_length=2048, global_batch_size=1536, dtype="bf16")
    cluster = ClusterSpec(device_kind="cuda", num_nodes=64, devices_per_node=8)
    begin = time.process_time()
    space = SearchSpace(load_model_spec("gpt3-175b"), training, cluster)
    assert len(space) > 60_000
    assert time.process_time() - begin < 4
