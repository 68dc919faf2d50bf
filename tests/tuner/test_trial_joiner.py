"""Two processes on one study: one leads it, the other runs trials of its queue."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import psutil
import pytest

from results_db.checks import check
from results_db.records import Lease, StudyStatus, TrialStatus
from trainer.contract import TrialJob, TrialOutput
from tuner.controller import StudyOutcome, run_study
from tuner.errors import StorageProblem
from tuner.leases import own_lease
from tuner.ports import StudyProgress, TrialEvent
from tuner.study import Study, open_study
from tuner.testing.fake_launcher import FakeLauncher, completed
from tuner.trial_joiner import JoinOutcome, join_study


class Watch:
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.events: Counter[str] = Counter()

    def on_event(self, event: TrialEvent, progress: StudyProgress) -> None:
        self.events[event.event] += 1

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def lease_of(process: psutil.Process) -> Lease:
    started = datetime.fromtimestamp(process.create_time(), UTC)
    return Lease(
        host=own_lease().host, pid=process.pid, process_started_at=started,
        heartbeat_at=datetime.now(UTC),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def quick_looks_and_a_helper_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper of these tests is a thread; its lease says that it is the parent process."""
    parent = psutil.Process().parent()
    assert parent is not None
    monkeypatch.setattr("tuner.trial_joiner.own_lease", lambda: lease_of(parent))
    monkeypatch.setattr("tuner.trial_joiner.LOOK_S", 0.02)
    monkeypatch.setattr("tuner.controller.LOOK_S", 0.02)


@pytest.fixture
def make_study(make_study: Callable[..., Study]) -> Callable[..., Study]:
    calm = {"max_trials": 6, "parallel_trials": 2, "early_stop": False, "searcher": "random"}
    return lambda **search: make_study(**{**calm, **search})


class Helper(threading.Thread):
    """Joins a study in a thread, on a launcher of its own."""

    def __init__(self, study: Study, launcher: FakeLauncher) -> None:
        super().__init__()
        self.study, self.launcher, self.stop = study, launcher, threading.Event()
        self.outcome: JoinOutcome | None = None

    def run(self) -> None:
        mine = open_study(self.study.config.store.url, self.study.name)
        self.outcome = join_study(mine, Watch(), self.stop, launcher=self.launcher)
        mine.store.close()


def lead(
    study: Study,
    launcher: FakeLauncher,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
) -> StudyOutcome:
    return run_study(study, watch or Watch(), stop, launcher=launcher)


def keys(launcher: FakeLauncher) -> list[str]:
    return [handle.job.config.config_key for handle in launcher.handles]


def starting(helper: Helper) -> Callable[[TrialJob], TrialOutput]:
    """An answer of the leader's launcher that lets the helper in at the first trial."""

    def answer(job: TrialJob) -> TrialOutput:
        if not helper.is_alive() and helper.outcome is None:
            helper.start()
        return completed(job)

    return answer


def test_two_processes_share_the_queue_and_no_trial_runs_twice(
    make_study: Callable[..., Study],
) -> None:
    study = make_study()
    helper = Helper(study, FakeLauncher(num_devices=2, num_polls=3))
    launcher = FakeLauncher(num_devices=2, num_polls=8, answer=starting(helper))
    outcome = lead(study, launcher)
    helper.join(20.0)
    assert outcome.num_completed == 6
    ran = keys(launcher) + keys(helper.launcher)
    assert len(ran) == len(set(ran)) == 6
    assert helper.outcome is not None
    assert helper.outcome.num_trials == len(keys(helper.launcher)) > 0
    assert helper.outcome.reason == "it is completed"
    assert not helper.launcher.is_open
    rows = study.store.trials(study.id)
    assert Counter(row.trial.status for row in rows) == {TrialStatus.COMPLETED: 6}
    assert len({row.trial.lease.pid for row in rows if row.trial.lease}) == 2
    assert check(study.store) == []


def test_nobody_to_join_is_a_sentence(make_study: Callable[..., Study]) -> None:
    study = make_study()
    study.store.set_study_status(study.id, StudyStatus.INTERRUPTED)
    with pytest.raises(StorageProblem, match="nobody leads study 's0': it is int") as caught:
        join_study(study, Watch(), launcher=FakeLauncher(num_devices=2))
    assert "--join" in caught.value.hint
    study.store.set_study_status(study.id, StudyStatus.RUNNING)
    with pytest.raises(StorageProblem, match="its controller is gone"):
        join_study(study, Watch(), launcher=FakeLauncher(num_devices=2))


def test_a_trial_of_a_helper_that_died_runs_again(make_study: Callable[..., Study]) -> None:
    study = make_study(max_trials=3)
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = lease_of(psutil.Process(gone.pid))
    gone.communicate()

    def answer(job: TrialJob) -> TrialOutput:
        for row in study.store.trials(study.id, [TrialStatus.QUEUED])[:1]:
            if not any(item.trial.lease == lease for item in study.store.trials(study.id)):
                study.store.claim_trial(row.trial.id or 0, lease, "f")
        return completed(job)

    watch = Watch()
    outcome = lead(study, FakeLauncher(num_devices=2, num_polls=2, answer=answer), watch)
    assert outcome.num_completed == 3
    assert any("its process had died; it runs again" in text for text in watch.messages)


def test_a_helper_that_is_told_to_stop_gives_its_trial_back(
    make_study: Callable[..., Study],
) -> None:
    study = make_study(max_trials=4)
    helper = Helper(study, FakeLauncher(num_devices=2, num_polls=10**9))

    def answer(job: TrialJob) -> TrialOutput:
        if not helper.is_alive() and helper.outcome is None:
            helper.start()
        while not helper.launcher.handles:
            helper.join(0.01)
        helper.stop.set()
        return completed(job)

    outcome = lead(study, FakeLauncher(num_devices=2, answer=answer))
    helper.join(20.0)
    assert outcome.num_completed == 4
    assert helper.outcome == JoinOutcome(0, "stopped by the user")
    assert all(row.trial.status is TrialStatus.COMPLETED for row in study.store.trials(study.id))


def test_a_helper_ends_its_trial_when_the_leader_stops(make_study: Callable[..., Study]) -> None:
    study = make_study(max_trials=6)
    stop = threading.Event()
    helper = Helper(study, FakeLauncher(num_devices=2, num_polls=20))

    def answer(job: TrialJob) -> TrialOutput:
        if not helper.is_alive() and helper.outcome is None:
            helper.start()
        while not helper.launcher.handles:
            helper.join(0.01)
        stop.set()
        return completed(job)

    outcome = lead(study, FakeLauncher(num_devices=2, answer=answer), stop=stop)
    helper.join(20.0)
    assert outcome.status is StudyStatus.INTERRUPTED
    assert helper.outcome is not None
    assert helper.outcome.reason == "it is interrupted"
    done = study.store.trials(study.id, [TrialStatus.COMPLETED])
    assert len(done) == 1 + helper.outcome.num_trials
    assert study.store.running_trials(study.id) == []


def test_a_helper_takes_only_what_its_devices_hold(make_study: Callable[..., Study]) -> None:
    study = make_study(max_trials=4)
    helper = Helper(study, FakeLauncher(num_devices=1))
    launcher = FakeLauncher(num_devices=2, num_polls=3, answer=starting(helper))
    assert lead(study, launcher).num_completed == 4
    helper.join(20.0)
    assert helper.launcher.handles == []
    assert helper.outcome == JoinOutcome(0, "it is completed")
