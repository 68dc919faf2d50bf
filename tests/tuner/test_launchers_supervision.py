"""The watchdog on a clock that a test moves, and the search for a cause, without processes."""

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract import (
    FailureKind,
    FailureReport,
    MeasureSpec,
    Phase,
    StepRecord,
    TrialOutput,
)
from tuner.errors import LauncherError
from tuner.launchers.classification import with_failures
from tuner.launchers.rank_processes import RankExit
from tuner.launchers.supervision import Cause, NodeResult, NodeTrial, Patience, patience_of
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_launcher import completed
from tuner.testing.jobs import tiny_job


class FakeGroup:
    """Ranks that do what a test says."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.ranks = tuple(range(num_ranks))
        self.pids = {rank: 10**9 + rank for rank in self.ranks}
        self.exits: dict[int, RankExit] = {}
        self.start_error = ""
        self.is_lost = False
        self.signals: list[signal.Signals] = []
        self.obeys = (signal.SIGTERM, signal.SIGKILL)

    def poll(self) -> bool:
        return len(self.exits) == len(self.ranks)

    def end(self, rank: int, code: int = 0) -> None:
        self.exits[rank] = RankExit(code=code)

    def signal(self, number: signal.Signals, *, whole_group: bool = True) -> None:
        self.signals.append(number)
        if number in self.obeys:
            for rank in set(self.ranks) - set(self.exits):
                self.end(rank, -number)


def watch(
    folder: Path, group: FakeGroup, clock: FakeClock, *, hang_s: float = 10, deadline_s: float = 60
) -> NodeTrial:
    measure = MeasureSpec(hang_s=hang_s, deadline_s=deadline_s)
    return NodeTrial(group, folder, measure, clock=clock)  # type: ignore[arg-type]


def run(trial: NodeTrial, clock: FakeClock, limit_s: float = 200.0) -> tuple[NodeResult, float]:
    """Poll every 0.1 s until the end; the result and when it came."""
    while clock.monotonic_s() < limit_s:
        result = trial.poll()
        if result is not None:
            return result, clock.monotonic_s()
        clock.advance(0.1)
    raise AssertionError("no end")


def test_silence_of_all_ranks_is_a_hang(tmp_path: Path) -> None:
    group, clock = FakeGroup(), FakeClock()
    result, when_s = run(watch(tmp_path, group, clock), clock)
    assert result.cause is Cause.HANG
    assert 10 <= when_s < 12
    assert group.signals[0] is signal.SIGUSR1
    assert result.killed_by_us == (0, 1)


def test_any_growing_file_is_progress_until_the_deadline(tmp_path: Path) -> None:
    group, clock = FakeGroup(), FakeClock()
    trial = watch(tmp_path, group, clock)
    while (result := trial.poll()) is None:
        with (tmp_path / "report.1.jsonl").open("a") as stream:
            stream.write("\n")
        clock.advance(5.0)
    assert result.cause is Cause.TIMEOUT
    assert 60 <= clock.monotonic_s() < 80


def test_a_deaf_rank_gets_sigkill(tmp_path: Path) -> None:
    group, clock = FakeGroup(), FakeClock()
    group.obeys = (signal.SIGKILL,)
    result, _ = run(watch(tmp_path, group, clock), clock)
    assert group.signals == [signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL]
    assert result.cause is Cause.HANG


def test_a_failed_rank_ends_the_others_within_seconds(tmp_path: Path) -> None:
    group, clock = FakeGroup(4), FakeClock()
    trial = watch(tmp_path, group, clock)
    assert trial.poll() is None
    group.end(2, 1)
    result, when_s = run(trial, clock)
    assert result.cause is Cause.RANK_DIED
    assert result.first_failed == 2
    assert result.killed_by_us == (0, 1, 3)
    assert when_s < 2


def test_cancel_kills_without_blame(tmp_path: Path) -> None:
    group, clock = FakeGroup(), FakeClock()
    trial = watch(tmp_path, group, clock)
    trial.cancel()
    result, _ = run(trial, clock)
    assert result.cause is Cause.CANCELLED
    assert not with_failures(TrialOutput(), [result], tiny_job()).failures


def test_ranks_that_outlive_the_result_are_ended_and_the_result_stands(tmp_path: Path) -> None:
    group, clock = FakeGroup(), FakeClock()
    (tmp_path / "report.0.jsonl").write_text(
        completed(tiny_job()).result.model_dump_json() + "\n"  # type: ignore[union-attr]
    )
    result, when_s = run(watch(tmp_path, group, clock), clock)
    assert result.cause is Cause.ENDED
    assert when_s < 8
    output = with_failures(completed(tiny_job()), [result], tiny_job())
    assert output.result is not None
    assert not output.failures


def test_unknown_waiting_times_are_refused() -> None:
    assert patience_of({"settle_s": 3.0}) == Patience(settle_s=3.0)
    with pytest.raises(LauncherError, match=r"'settel_s'.*settle_s"):
        patience_of({"settel_s": 3.0})


def words(kind: FailureKind, rank: int, time_s: float) -> FailureReport:
    return FailureReport(
        failure=kind, phase=Phase.FORWARD, rank=rank, message=kind.value, time_s=time_s
    )


def cause_of(output: TrialOutput, *nodes: NodeResult) -> FailureReport:
    return with_failures(output, nodes, tiny_job()).failures[0]


reports = st.builds(
    words,
    st.sampled_from([kind for kind in FailureKind if kind is not FailureKind.OOM]),
    st.integers(0, 3),
    st.floats(0, 100),
)
results = st.builds(
    NodeResult,
    cause=st.sampled_from(list(Cause)),
    exit_codes=st.dictionaries(st.integers(0, 3), st.integers(-15, 5)),
)


@given(others=st.lists(reports), nodes=st.lists(results, min_size=1), when_s=st.floats(0, 100))
def test_out_of_memory_in_own_words_beats_everything(
    others: list[FailureReport], nodes: list[NodeResult], when_s: float
) -> None:
    failures = sorted([*others, words(FailureKind.OOM, 2, when_s)], key=lambda r: r.time_s)
    first = cause_of(TrialOutput(failures=failures), *nodes)
    assert (first.failure, first.rank) == (FailureKind.OOM, 2)


@given(failures=st.lists(reports), nodes=st.lists(results, min_size=1))
def test_every_end_without_a_result_has_a_cause_unless_cancelled(
    failures: list[FailureReport], nodes: list[NodeResult]
) -> None:
    output = with_failures(TrialOutput(failures=failures), nodes, tiny_job())
    cancelled = any(node.cause is Cause.CANCELLED for node in nodes)
    assert output.failures or cancelled
    assert len(output.failures) in (len(failures), len(failures) + 1)
    assert all(report.message for report in output.failures)


def test_a_dead_rank_beats_the_echoes_of_its_peers() -> None:
    echo = words(FailureKind.COMM, 0, 1.0)
    node = NodeResult(cause=Cause.RANK_DIED, first_failed=0, exit_codes={0: 1, 1: -signal.SIGKILL})
    first = cause_of(TrialOutput(failures=[echo]), node)
    assert (first.failure, first.rank) == (FailureKind.CRASH, 1)


def test_sigkill_with_an_oom_kill_counted_is_out_of_memory() -> None:
    node = NodeResult(
        cause=Cause.RANK_DIED, first_failed=1, exit_codes={1: -signal.SIGKILL}, oom_kills=1
    )
    assert cause_of(TrialOutput(), node).failure is FailureKind.OOM


def test_a_signal_of_ours_is_no_crash() -> None:
    node = NodeResult(
        cause=Cause.HANG, exit_codes={0: -9, 1: -15}, killed_by_us=(0, 1), stacks={0: "here"}
    )
    first = cause_of(TrialOutput(), node)
    assert first.failure is FailureKind.HANG
    assert "--- rank 0 ---\nhere" in first.traceback


def test_a_lost_node_explains_the_others() -> None:
    lost = NodeResult(cause=Cause.NODE_LOST, hostname="node7")
    hit = NodeResult(cause=Cause.RANK_DIED, first_failed=0, exit_codes={0: 1})
    first = cause_of(TrialOutput(failures=[words(FailureKind.COMM, 0, 1.0)]), hit, lost)
    assert first.failure is FailureKind.PREEMPTED
    assert "node7" in first.message


def test_the_phase_and_step_come_from_the_last_step_line() -> None:
    step = StepRecord(step=3, is_warmup=False, step_time_s=0.1, loss=None, tokens=1)
    first = cause_of(TrialOutput(steps=[step]), NodeResult(cause=Cause.TIMEOUT))
    assert (first.phase, first.step) == (Phase.MEASURE, 4)
