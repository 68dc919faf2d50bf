"""Every figure: filled or refused with a reason, labelled with units, safe, told in words."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tuner.web.figures import FIGURES, Missing, Picture
from tuner.web.figures.style import PALETTE, THEMES, log_ticks, number, thinned, wrapped
from tuner.web.study_data import StudyData


def drawn(full: StudyData, name: str) -> Picture:
    found = FIGURES[name].build(full)
    assert isinstance(found, Picture), f"{name}: {found}"
    return found


def axes(figure: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return (
        (name, value)
        for name, value in figure["layout"].items()
        if re.fullmatch(r"[xy]axis\d*", name) and value.get("visible", True)
    )


@pytest.mark.parametrize("name", FIGURES)
def test_a_full_study_has_every_figure(full: StudyData, name: str) -> None:
    picture = drawn(full, name)
    figure = picture.to_json()
    points = sum(len(trace.get(key) or []) for trace in figure["data"] for key in ("x", "z", "q1"))
    assert points > 0
    assert "NaN" not in json.dumps(figure)
    assert picture.caption.endswith(".")
    assert len(picture.caption) > 40


UNITS = re.compile(r"\(.+\)$|^(finished trials|trials|points|pp|tp|dp|micro_batch_size|recompute)$")


@pytest.mark.parametrize("name", FIGURES)
def test_every_axis_has_words_of_its_own_or_a_title_with_a_unit(full: StudyData, name: str) -> None:
    for axis, value in axes(drawn(full, name).to_json()):
        title = value.get("title", {}).get("text", "")
        has_words = bool(value.get("ticktext")) or value.get("autorange") == "reversed"
        assert UNITS.search(title) or (has_words and not title) or title == "pipeline rank", (
            axis, title,
        )  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_a_study_without_trials_has_a_reason_and_no_empty_plot(empty: StudyData, name: str) -> None:
    found = FIGURES[name].build(empty)
    if name == "untried":  # the refused points are known before any trial
        assert isinstance(found, Picture)
        return
    assert isinstance(found, Missing)
    assert found.reason.endswith(".")


@pytest.mark.parametrize("name", FIGURES)
def test_texts_of_the_study_are_escaped(full: StudyData, name: str) -> None:
    for words in _texts(drawn(full, name).to_json()):
        bare = re.sub(r"</?(b|br|extra)/?>", "", words)
        assert "<" not in bare, words


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def test_colours_are_the_safe_palette(full: StudyData) -> None:
    greys = {"#8C8C8C", "white", "black"}
    for name in FIGURES:
        text = json.dumps(drawn(full, name).to_json()["data"])
        used = set(re.findall(r"#[0-9A-Fa-f]{6}", text))
        # cividis brings colours of its own
        if name != "knob-pairs":
            assert used <= set(PALETTE) | greys, name


def test_a_simulated_study_says_that_its_insides_are_predicted(full: StudyData) -> None:
    bare = [
        replace(leader, parts_s={}, stages=(), timeline=(), collectives=())
        for leader in full.leaders
    ]
    assert full.pipelined is not None
    data = replace(full, leaders=bare, pipelined=replace(full.pipelined, timeline=()))
    for name in ("stage-memory", "step-parts", "timeline"):
        assert "predict" in drawn(data, name).caption.lower()


def test_without_a_pipeline_there_is_no_timeline(full: StudyData) -> None:
    assert isinstance(FIGURES["timeline"].build(replace(full, pipelined=None)), Missing)


def test_a_long_timeline_is_drawn_as_an_image(full: StudyData) -> None:
    assert full.pipelined is not None
    action = full.pipelined.timeline[0]
    many = [
        replace(action, micro_batch=i, start_s=float(i), end_s=i + 0.5, pp_rank=i % 2)
        for i in range(3000)
    ]
    data = replace(full, pipelined=replace(full.pipelined, timeline=many))
    figure = drawn(data, "timeline").to_json()
    assert figure["data"][0]["type"] == "heatmap"
    assert "50 %" not in drawn(data, "timeline").caption  # two ranks, each busy a quarter


def test_the_best_of_the_search_is_no_repeat(full: StudyData) -> None:
    best = max(full.trials, key=lambda trial: trial.tokens_per_s or 0)
    again = replace(best, number=99, repeat=1, tokens_per_s=(best.tokens_per_s or 0) * 2)
    data = replace(full, trials=[*full.trials, again])
    line = next(
        trace for trace in drawn(data, "progress").to_json()["data"] if "best" in trace["name"]
    )
    assert max(line["y"]) == best.tokens_per_s


def test_labels_have_room(full: StudyData) -> None:
    assert wrapped("tp1 pp4 dp1 mbs2 zero_bubble", 14) == "tp1 pp4 dp1<br>mbs2<br>zero_bubble"
    assert wrapped("<b>") == "&lt;b&gt;"
    ticks = log_ticks([3.0, 400.0])
    inside = [t for t in ticks["tickvals"] if 3 <= t <= 400]
    assert inside == [5, 10, 20, 50, 100, 200]
    assert math.log10(3) > ticks["range"][0]


def test_numbers_have_four_digits_and_no_exponent() -> None:
    assert number(1_069_294.3) == "1,069,294"
    assert number(0.001234567) == "0.001235"
    assert number(0.0) == "0"


def test_thinning_keeps_both_ends() -> None:
    assert thinned(range(1000), 10)[0] == 0
    assert thinned(range(1000), 10)[-1] == 999
    assert len(thinned(range(1000), 10)) == 10
    assert thinned(range(5), 10) == [0, 1, 2, 3, 4]


def test_themes_have_the_same_parts() -> None:
    light, dark = THEMES["light"]["layout"], THEMES["dark"]["layout"]
    assert light.keys() == dark.keys()
    assert light["paper_bgcolor"] != dark["paper_bgcolor"]
