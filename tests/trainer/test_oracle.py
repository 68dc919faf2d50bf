"""Parallel configurations against the single process: a few here, the whole list when slow."""

import pytest

from search_spaces.parallel_config import KNOBS, ParallelConfig
from trainer.oracle.__main__ import main
from trainer.oracle.products import all_products, knob_values, parse_product, quick_products
from trainer.oracle.runner import OracleRunner

NAMES = [product.name for product in all_products()]
QUICK = [product.name for product in quick_products(6)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return OracleRunner(tmp_path_factory.mktemp("oracle"))


def _check(runner, name):
    verdict = runner.check(parse_product(name))
    assert verdict.is_equal, verdict


@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUICK)
def test_a_few_products_equal_the_single_process(runner, name):
    _check(runner, name)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in QUICK])
def test_every_product_equals_the_single_process(runner, name):
    _check(runner, name)


def test_the_list_is_long_and_exact_enough():
    exact = [p for p in all_products() if p.config.dtype == p.config.reduce_dtype == "fp32"]
    assert len([p for p in exact if p.config.world_size >= 2]) >= 40
    assert len(NAMES) == len(set(NAMES))


def test_every_legal_value_of_every_knob_is_checked():
    for knob in KNOBS:
        seen = {getattr(product.config, knob) for product in all_products()}
        missing = {(knob, value) for value in knob_values(knob) if value not in seen}
        assert not missing


def test_the_products_that_matter_most_are_there():
    configs = [product.config for product in all_products()]
    for stage in (0, 1, 2, 3):
        wanted = ParallelConfig(tp=2, pp=2, dp=2, zero_stage=stage)
        assert wanted in configs
    interleaved = [c for c in configs if c.pipeline_schedule == "interleaved"]
    assert any(c.recompute != "none" for c in interleaved)


def test_names_read_back():
    for product in all_products():
        assert parse_product(product.name) == product


def test_the_list_is_printed_without_running_anything(capsys):
    assert main(["--list", "--json"]) == 0
    assert f'"count": {len(NAMES)}' in capsys.readouterr().out


@pytest.mark.parametrize("text", ["nonsense=1", "family=bert", "zero_stage=9"])
def test_a_wrong_product_is_one_sentence(text, capsys):
    assert main(["--only", text]) == 2
    assert capsys.readouterr().err.startswith("error: ")
