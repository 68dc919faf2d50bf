"""A controller that was stopped, killed or lost its database, and the one that comes after it."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from results_db.errors import Unreachable
from results_db.records import Lease, StudyStatus, TrialOutcome, TrialRecord, TrialStatus
from trainer.contract import TrialJob, TrialOutput
from tuner.api.observers import as_observer
from tuner.controller import Controller, StudyOutcome
from tuner.errors import StorageProblem
from tuner.leases import lease_is_dead, own_lease, time_spent_s
from tuner.searchers.random import RandomSearcher
from tuner.study import Study, open_study
from tuner.testing.fake_launcher import FakeLauncher, completed


def launched(launcher: FakeLauncher) -> list[str]:
    """Keys of the points that were started, in order."""
    return [handle.job.config.config_key for handle in launcher.handles]


def run(
    study: Study,
    answer: Callable[[TrialJob], TrialOutput] = completed,
    stop: threading.Event | None = None,
    launcher: FakeLauncher | None = None,
) -> tuple[StudyOutcome, FakeLauncher]:
    launcher = launcher or FakeLauncher(num_devices=2, answer=answer)
    searcher = RandomSearcher(study.candidates, seed=0)
    controller = Controller(study, searcher, launcher, as_observer(None), stop or threading.Event())
    try:
        return controller.run(), launcher
    finally:
        assert not launcher.is_open


def test_stop_puts_the_running_trial_back_and_resume_goes_on(
    make_study: Callable[..., Study],
) -> None:
    study = make_study()
    stop = threading.Event()

    def answer(job: TrialJob) -> TrialOutput | None:
        if len(study.store.trials(study.id)) < 3:
            return completed(job)
        stop.set()
        return None

    outcome, launcher = run(study, answer, stop)
    assert outcome.status is StudyStatus.INTERRUPTED
    statuses = [row.trial.status for row in study.store.trials(study.id)]
    assert statuses == [TrialStatus.COMPLETED, TrialStatus.COMPLETED, TrialStatus.QUEUED]
    again = open_study(study.config.store.url, study.name)
    outcome, second = run(again)
    assert outcome.status is StudyStatus.COMPLETED
    assert outcome.num_completed == 5
    assert launched(second)[0] == launched(launcher)[-1]
    assert not set(launched(second)) & set(launched(launcher)[:-1])
    again.store.close()


def test_time_that_earlier_controllers_spent_counts() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def ran(begin_s: float, end_s: float) -> TrialRecord:
        return TrialRecord(
            study_id=1, config_key="k", knobs={}, started_at=start + timedelta(seconds=begin_s),
            finished_at=start + timedelta(seconds=end_s),
        )  # fmt: skip

    waiting = TrialRecord(study_id=1, config_key="k", knobs={})
    assert time_spent_s([]) == 0
    # two at once, one within another, a short pause between trials, a long one between controllers
    trials = [ran(0, 10), ran(5, 20), ran(6, 8), ran(25, 30), waiting, ran(5000, 5010)]
    assert time_spent_s(trials) == 40
    assert time_spent_s([ran(10, 5), ran(10, 11)]) == 1, "the clock was set back"


def test_a_resumed_study_does_not_get_its_time_anew(make_study: Callable[..., Study]) -> None:
    study = make_study(max_time_s=5.0)
    stop = threading.Event()

    def answer(job: TrialJob) -> TrialOutput:
        if len(study.store.trials(study.id)) == 2:
            stop.set()
        return completed(job)

    run(study, answer, stop)
    begin = datetime.now(UTC) - timedelta(hours=1)
    ran_for_6_s = TrialRecord(
        study_id=study.id, config_key=study.candidates[-1].config.config_key, repeat=9,
        knobs=study.candidates[-1].config.model_dump(mode="json"), started_at=begin,
        finished_at=begin + timedelta(seconds=6),
    )  # fmt: skip
    study.store.add_results(study.id, [(ran_for_6_s, TrialOutcome(status=TrialStatus.FAILED))])
    again = open_study(study.config.store.url, study.name)
    outcome, second = run(again)
    again.store.close()
    assert outcome.reason == "the time limit of 5 s is reached"
    assert launched(second) == []


WRITES = ("add_trials", "claim_trials", "finish_trials", "add_untried", "set_study_status")


class Killed(BaseException):
    """Stands for the end of the controller's process."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("turn", [1, 3])
def test_a_controller_that_dies_at_a_write_loses_and_repeats_nothing(
    make_study: Callable[..., Study],
    monkeypatch: pytest.MonkeyPatch,
    write: str,
    when: str,
    turn: int,
) -> None:
    study = make_study()
    real = getattr(study.store, write)
    calls = [0]

    def dying(*arguments: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] < turn:
            return real(*arguments, **options)
        if when == "after":
            real(*arguments, **options)
        raise Killed

    monkeypatch.setattr(study.store, write, dying)
    try:
        run(study)
    except Killed:
        finished = {
            row.trial.config_key
            for row in study.store.trials(study.id)
            if row.trial.status.is_terminal
        }
    else:
        finished = {row.trial.config_key for row in study.store.trials(study.id)}
    monkeypatch.undo()
    # the dead controller's leases: its process is gone
    monkeypatch.setattr("tuner.leases.lease_is_dead", lambda lease, now: True)
    again = open_study(study.config.store.url, study.name)
    outcome, second = run(again)
    rows = again.store.trials(again.id)
    again.store.close()
    assert outcome.num_completed == 5 == len(rows)
    assert all(row.trial.status is TrialStatus.COMPLETED for row in rows)
    assert not finished & set(launched(second))


def test_a_second_controller_is_refused(make_study: Callable[..., Study]) -> None:
    study = make_study()
    parent = psutil.Process().parent()
    assert parent is not None
    started = datetime.fromtimestamp(parent.create_time(), UTC)
    lease = own_lease()
    other = Lease(
        host=lease.host, pid=parent.pid, process_started_at=started, heartbeat_at=datetime.now(UTC)
    )
    study.store.claim_study(study.id, other)
    with pytest.raises(StorageProblem, match=str(parent.pid)):
        run(study)
    assert study.store.study_lease(study.id) == other


def test_a_study_is_run_once_at_a_time_in_one_process_too(
    make_study: Callable[..., Study],
) -> None:
    study = make_study(max_trials=2)
    refused: list[str] = []

    def answer(job: TrialJob) -> TrialOutput:
        again = open_study(study.config.store.url, study.name)
        with pytest.raises(StorageProblem, match="is being run by process") as caught:
            run(again)
        again.store.close()
        refused.append(caught.value.message)
        return completed(job)

    outcome, _ = run(study, answer)
    assert outcome.num_completed == 2 == len(refused)


def test_a_study_that_lost_its_database_goes_on_in_the_same_process(
    make_study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written on the way out, and the process that holds the lease may take it again."""
    study = make_study(max_trials=3)
    real = study.store.finish_trials
    writes: list[str] = []

    def away(*arguments: object, **options: object) -> object:
        if len(study.store.trials(study.id)) < 2:
            return real(*arguments, **options)  # type: ignore[arg-type]
        monkeypatch.setattr(study.store, "set_study_status", lambda *_: writes.append("status"))
        monkeypatch.setattr(study.store, "release_study", lambda *_: writes.append("release"))
        raise Unreachable("the server is away")

    monkeypatch.setattr(study.store, "finish_trials", away)
    with pytest.raises(Unreachable):
        run(study)
    assert writes == []
    monkeypatch.undo()
    monkeypatch.setattr("tuner.study.measured_peaks", lambda cluster, dtypes: {"fp32": 1e12})
    again = open_study(study.config.store.url, study.name)
    outcome, _ = run(again)
    again.store.close()
    assert outcome.num_completed == 3


class Gappy(FakeLauncher):
    """Says that there is room for two trials, but the first one leaves too small a gap."""

    most_at_once = 0

    def has_room(self, num_devices: int) -> bool:
        running = [handle for handle in self.handles if not handle.is_done]
        self.most_at_once = max(self.most_at_once, len(running))
        return not running


def test_trials_that_fit_in_number_alone_wait_in_the_queue(
    make_study: Callable[..., Study],
) -> None:
    study = make_study(max_trials=4, parallel_trials=3)
    launcher = Gappy(num_devices=2, num_polls=2)
    searcher = RandomSearcher(study.candidates, seed=0)
    controller = Controller(study, searcher, launcher, as_observer(None), threading.Event())
    assert controller.run().num_completed == 4
    assert launcher.most_at_once == 1
    assert len(launcher.handles) == 4, "none was started twice"


def test_leases() -> None:
    now = datetime.now(UTC)
    lease = own_lease()
    assert not lease_is_dead(lease, now)
    assert lease_is_dead(None, now)
    reused = Lease(
        host=lease.host,
        pid=lease.pid,
        process_started_at=lease.process_started_at - timedelta(hours=1),
        heartbeat_at=now,
    )
    assert lease_is_dead(reused, now)
    elsewhere = Lease(
        host="another", pid=1, process_started_at=now, heartbeat_at=now - timedelta(seconds=30)
    )
    assert not lease_is_dead(elsewhere, now)
    assert lease_is_dead(elsewhere, now + timedelta(minutes=5))
