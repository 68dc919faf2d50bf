"""The cost model of a stored study is that of the trainer which ran it."""

from dataclasses import replace

import pytest

from search_spaces.cost_models.planning import memory_by_rank
from tuner.web.cost_estimates import config_of, cost_model, predicted_memory
from tuner.web.study_data import StudyData

MODEL = '[model]\nsource = "gpt2-tiny"\n'


@pytest.mark.parametrize(
    ("resolved_config", "is_kernel"),
    [
        (MODEL, True),
        (MODEL + '[trainer]\nadapter = "deepspeed"\ncommand = "run"\n', False),
        ("", False),
        ("a program's own words", False),
    ],
    ids=["kernel", "adapter", "imported", "foreign"],
)
def test_only_the_kernel_has_the_buffers_of_the_kernel(
    full: StudyData, resolved_config: str, is_kernel: bool
) -> None:
    data = replace(full, study=replace(full.study, resolved_config=resolved_config))
    model = cost_model(data)
    assert model is not None
    assert model.is_kernel is is_kernel
    key = full.leaderboard[0].config_key
    ((_, ranks),) = predicted_memory(data, [key])
    assert ranks == memory_by_rank(model, config_of(data, key))
    own = cost_model(full)
    assert own is not None
    assert (ranks == memory_by_rank(own, config_of(full, key))) is is_kernel
