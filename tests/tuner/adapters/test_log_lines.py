"""Logs as lines, however they arrive."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tuner.adapters.log_lines import LogTail, clean, split

BAR = "\r 25%|██▌       | 2/8 [00:04<00:12,  2.10s/it]"


def written(path: Path, tail: LogTail, text: str) -> list[str]:
    with path.open("a", newline="") as stream:
        stream.write(text)
    return [line.text for line in tail.read()]


@given(
    data=st.binary(max_size=400).map(lambda raw: raw.replace(b"%|", b"")),
    cuts=st.lists(st.integers(0, 400)),
)
def test_pieces_give_the_same_lines_as_the_whole(
    tmp_path_factory: object, data: bytes, cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    whole, pieces = folder / "whole", folder / "pieces"
    whole.write_bytes(data)
    tail = LogTail(pieces)
    found = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        with pieces.open("ab") as stream:
            stream.write(data[start:end])
        found += [line.text for line in tail.read()]
    found += [line.text for line in tail.read(is_final=True)]
    assert found == [line.text for line in LogTail(whole).read(is_final=True)]


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert list(LogTail(tmp_path / "none").read(is_final=True)) == []


def test_a_half_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert written(path, tail, "step: 1  lo") == []
    assert written(path, tail, "ss: 2.0\nstep") == ["step: 1  loss: 2.0"]
    assert [line.text for line in tail.read(is_final=True)] == ["step"]


def test_a_bar_is_read_before_the_next_one_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert written(path, tail, BAR) == [" 25%|██▌       | 2/8 [00:04<00:12,  2.10s/it]"]
    assert list(tail.read()) == []


def test_only_the_last_of_lines_that_came_together_has_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthree\n")
    tail = LogTail(path)
    changed_s = path.stat().st_mtime_ns / 1e9
    assert [line.arrival_s for line in tail.read()] == [None, None, changed_s]


def test_lines_that_came_since_a_moment_ago_have_its_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    list(tail.read())
    path.write_text("one\ntwo\n")
    changed_s = path.stat().st_mtime_ns / 1e9
    assert [line.arrival_s for line in tail.read()] == [changed_s, changed_s]


def test_carriage_returns_end_lines() -> None:
    assert split(f"a{BAR}{BAR}\r\nb\n\n") == ["a", BAR[1:], BAR[1:], "b"]


def test_times_of_lines_are_read_to_the_millisecond() -> None:
    first = clean("[titan] 2026-01-20 16:02:11,730 - root - INFO - step:  7")
    second = clean(" [2026-01-20 16:02:12.230500] iteration        8/       9 |")
    assert first.stamp_s is not None
    assert second.stamp_s is not None
    assert abs(second.stamp_s - first.stamp_s - 0.5005) < 1e-6
    assert clean("[2026-13-45 16:02:11,730] x").stamp_s is None
    assert clean("[2026-01-20 16:02:11] whole seconds say too little").stamp_s is None
