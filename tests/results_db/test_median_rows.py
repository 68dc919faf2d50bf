"""The stored medians and first positions, whatever order the trials end in."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results_db.checks import check
from results_db.records import TrialRecord

_names = itertools.count()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ends=st.lists(
        st.lists(
            st.tuples(st.integers(0, 4), st.sampled_from([1.0, 900.0, 1000.0, 1001.0, 1400.0])),
            min_size=1, max_size=4,
        ),
        min_size=1, max_size=7,
    )
)  # fmt: skip
def test_first_positions_are_right_after_every_write(store, make_study, make_outcome, ends):
    """A leader may fall behind by its own repeats, and the bar with it."""
    study = store.create_study(make_study(f"m{next(_names)}"))
    repeats = dict.fromkeys(range(5), 0)
    for batch in ends:
        pairs = []
        for config, tokens_per_s in batch:
            trial = TrialRecord(study_id=study.id, config_key=f"k{config}",
                                knobs={"dp": config + 1}, repeat=repeats[config])  # fmt: skip
            repeats[config] += 1
            pairs.append((trial, make_outcome(tokens_per_s)))
        store.add_results(study.id, pairs)
        assert check(store) == []
