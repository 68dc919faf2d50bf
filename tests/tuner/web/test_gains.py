"""Laws of the gain over a reference."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.web.gains import _gain, gains_of
from tuner.web.study_data import StudyData

speeds = st.floats(min_value=1.0, max_value=1e6)
shares = st.floats(min_value=0.0, max_value=0.5)


@given(speeds, speeds, shares, shares, st.floats(min_value=0.01, max_value=100.0))
def test_the_ratio_lies_in_its_interval_and_has_no_unit(
    own: float, other: float, own_share: float, other_share: float, scale: float
) -> None:
    def interval(speed: float, share: float) -> tuple[float, float, float]:
        return speed, speed * (1 - share), speed * (1 + share)

    gain = _gain("x", interval(own, own_share), interval(other, other_share))
    assert gain.low <= gain.ratio <= gain.high
    scaled = _gain("x", interval(own * scale, own_share), interval(other * scale, other_share))
    assert abs(scaled.ratio - gain.ratio) <= 1e-6 * gain.ratio
    assert gain.is_certain is (gain.low > 1)


@given(speeds, speeds, shares)
def test_noise_widens_the_interval(own: float, other: float, share: float) -> None:
    sure = _gain("x", (own, own, own), (other, other, other))
    noisy = _gain("x", (own, own * (1 - share), own * (1 + share)), (other, other, other))
    assert noisy.low <= sure.low
    assert noisy.high >= sure.high
    assert sure.low == sure.ratio == sure.high


def test_gains_are_over_baseline_and_median(full: StudyData, empty: StudyData) -> None:
    over_baseline, over_median = gains_of(full)
    assert full.best is not None
    assert full.baseline is not None
    assert over_baseline.reference == "baseline"
    assert over_baseline.ratio == full.best.tokens_per_s / full.baseline.tokens_per_s
    assert over_baseline.is_certain
    assert over_median.tokens_per_s == full.median_tokens_per_s
    assert gains_of(empty) == []
