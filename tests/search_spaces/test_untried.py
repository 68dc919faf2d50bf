"""Every point of the domains' product is legal or has a reason."""

import itertools
import math

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_io import load_model_spec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.space import SearchSpace
from search_spaces.training_spec import TrainingSpec
from search_spaces.untried import reason_untried, refusals


def make_space(**domains: tuple[object, ...]) -> SearchSpace:
    return SearchSpace(
        load_model_spec("gpt2-tiny"),
        TrainingSpec(sequence_length=64),
        ClusterSpec(devices_per_node=4, memory_bytes=2**30),
        domains,
    )


def test_refusals_and_legal_points_add_up_to_the_product() -> None:
    space = make_space()
    size = math.prod(len(domain) for domain in space.domains.values())
    found = refusals(space)
    assert sum(refusal.num_points for refusal in found) + len(space) == size
    assert [r.num_points for r in found] == sorted((r.num_points for r in found), reverse=True)
    assert all(refusal.example for refusal in found)


def test_refusals_agree_with_a_count_of_the_product() -> None:
    space = make_space(
        dp=(1, 2, 4), tp=(1, 3, 4), pp=(1, 2), zero_stage=(0, 1), virtual_stages=(1,),
        pipeline_schedule=("1f1b",), recompute=("none",), sequence_parallel=(False,),
        micro_batch_size=(1,),
    )  # fmt: skip
    knobs = [domain.knob for domain in space.domains.values()]
    product = [
        ParallelConfig(**dict(zip(knobs, values, strict=True)))
        for values in itertools.product(*space.domains.values())
    ]
    broken = [{found.rule for found in space.violations(config)} for config in product]
    for refusal in refusals(space):
        assert refusal.num_points <= sum(refusal.rule in rules for rules in broken)
    assert sum(r.num_points for r in refusals(space)) == sum(bool(rules) for rules in broken)


def test_a_point_is_untried_for_a_rule_memory_or_the_budget() -> None:
    space = make_space()
    illegal = reason_untried(space, ParallelConfig(tp=2), stop_reason="24 trials were asked for")
    assert (illegal.rule, "2 ranks" in illegal.reason) == ("devices", True)
    config = space.enumerate()[0]
    big = reason_untried(
        space, config, stop_reason="-", peak_memory_bytes=3 * 2**30, probability_fits=0.01
    )
    assert (big.rule, big.reason) == ("memory", "predicted to need 3.0 GiB of 1.0 GiB per device")
    left = reason_untried(space, config, stop_reason="24 trials were asked for")
    assert (left.rule, left.reason) == ("budget", "24 trials were asked for")
    for chance, words in ((0.012, "1.2%"), (0.0, "less than 0.1%")):
        unlikely = reason_untried(space, config, stop_reason="-", chance=chance)
        assert unlikely.rule == "unlikely"
        assert unlikely.reason == f"a chance of {words} to run, by what failed"
